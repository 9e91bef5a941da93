"""Blobs: texts under the SHA-256 of their bytes, as files or in memory.

A file is complete before it gets its name (written as a draft, flushed, renamed), so an existing name stands for a
durable text; torn, damaged or planted files are replaced. Names are hashes only: no outside string becomes a path,
and no link is followed.
"""

from __future__ import annotations

import os
import re
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from hashlib import sha256
from math import inf
from pathlib import Path
from threading import RLock
from typing import NamedTuple

from holdfast.errors import StoreCorrupt, StoreError, StoreReadOnly, StoreReplaced, UnknownId
from holdfast.store.base import BlobItem, Quota
from holdfast.store.blobs.blob_total import BLOB_QUOTA_ADVICE, BlobTotal, check_quota
from holdfast.store.blobs.text_pages import (
    BLOB_PIECE_BYTES,
    BlobTextIndex,
    index_blob_text,
    iter_content_bytes,
    read_blob_characters,
)
from holdfast.store.private_files import (
    build_store_error,
    create_private_file,
    lock_directory,
    make_directory,
    sync_directory,
    write_and_sync,
)

MAX_TEXT_INDEXES = 64
"""Number of text indexes kept in memory. The index of a text of 100 MB takes 50 kB, so all of them take a few MB."""
LOCATION_FILE = "location"
"""File among the blobs of a store's file that says that they are elsewhere (``blob_place``)."""
HASH_PATTERN = re.compile(r"[0-9a-f]{64}\Z")
_DRAFT_PATTERN = re.compile(r"[0-9a-f]{2}/\.[0-9a-f]{16}\.tmp\Z")


def encode_blob(content: str | bytes) -> bytes:
    """Return the bytes that are stored and hashed; lone surrogates become three bytes each."""
    if isinstance(content, str):
        return content.encode("utf-8", "surrogatepass")
    return bytes(content)


def check_hash(hash_: str) -> str:
    """Return ``hash_`` if it is 64 lower-case hexadecimal digits; raises ``UnknownId`` otherwise."""
    if not HASH_PATTERN.match(hash_):
        msg = f"{hash_[:80]!r} is not a blob hash (64 digits 0-9a-f); copy it from the record that names the blob"
        raise UnknownId(msg)
    return hash_


class FileBlobStore:
    """Blobs as files ``ab/cdef…`` under ``root``, which is created by the first ``store_content``."""

    def __init__(self, root: str | os.PathLike[str], quota: Quota = Quota()) -> None:
        self.root = Path(root)
        self._refused = ""
        """The first refusal of the disk; every later write is refused with it."""
        self._total = BlobTotal(self.root, self._count_bytes, quota.blob_bytes)
        self._indexes: dict[tuple[str, int, int], BlobTextIndex] = {}
        """Text indexes by hash, size and time of the file, the least recently used first."""

    def _count_bytes(self) -> int:
        return sum(blob.size for blob in self.iter_items())

    def store_content(self, content: str | bytes) -> str:
        """Store ``content`` durably and return its hash; if it is stored already, only its time changes."""
        hash_, length = hash_content(content)
        if self._refused:
            raise StoreReadOnly(self._refused)
        if (self.root / LOCATION_FILE).exists():
            msg = f"another process has put the texts of this store elsewhere than in {self.root}; open the store again"
            raise StoreReplaced(msg)
        path = self._get_blob_path(hash_)
        try:
            make_directory(path.parent)
            # Shared with other writers; a deletion locks exclusively, so a blob found intact here is not removed.
            with lock_directory(path.parent) as shard:
                if self._is_intact(hash_, length):
                    _refresh_mtime(path)
                    os.fsync(shard)
                else:
                    self._write_blob(path, content, length)
        except StoreError:
            raise
        except OSError as error:
            store_error = build_store_error(
                error, f"blob {hash_[:12]} ({length:,} bytes) was not stored in {self.root}"
            )
            # As for the database: after one refusal, every later write fails at once with the same reason.
            if isinstance(store_error, StoreReadOnly):
                self._refused = str(store_error)
            raise store_error from error
        return hash_

    def read_bytes(self, hash_: str, start: int = 0, stop: int | None = None) -> bytes:
        """Return bytes ``start`` to ``stop``."""
        start = max(0, start)
        with os.fdopen(self._open_blob(hash_), "rb", 0) as file:
            if start or stop is not None:
                # A part cannot be hashed; making the index verifies the whole file, once.
                self._get_text_index(hash_, file.fileno())
            file.seek(start)
            if stop is None:
                data = file.readall()
            else:
                data = _read_count(file.fileno(), max(0, stop - start))
        is_whole = start == 0 and stop is None
        if is_whole and sha256(data).hexdigest() != hash_:
            raise _build_damage_error(hash_)
        return data

    def read_text(self, hash_: str, start: int = 0, stop: int | None = None) -> str:
        """Return characters ``start`` to ``stop``, read piece by piece."""
        descriptor = self._open_blob(hash_)
        try:
            return read_blob_characters(
                lambda at: _read_pieces(descriptor, at),
                self._get_text_index(hash_, descriptor),
                start,
                stop,
            )
        finally:
            os.close(descriptor)

    def count_characters(self, hash_: str) -> int:
        """Return the number of characters that ``read_text`` can return."""
        descriptor = self._open_blob(hash_)
        try:
            return self._get_text_index(hash_, descriptor).characters
        finally:
            os.close(descriptor)

    def has_blob(self, hash_: str) -> bool:
        """Return whether the blob exists."""
        return _get_file_size(self._get_blob_path(check_hash(hash_))) is not None

    def get_size(self, hash_: str) -> int:
        """Return the blob's size in bytes."""
        length = _get_file_size(self._get_blob_path(check_hash(hash_)))
        if length is None:
            raise _build_missing_error(hash_)
        return length

    def iter_hashes(self) -> Iterator[str]:
        """Yield the hash of every blob, in no particular order."""
        for path in self.root.glob("??/*"):
            if HASH_PATTERN.match(path.parent.name + path.name):
                yield path.parent.name + path.name

    def remove_blob(self, hash_: str) -> None:
        """Delete the blob. The caller makes sure that no entry names it."""
        self._delete_file(self._get_blob_path(check_hash(hash_)), None)

    def iter_items(self) -> Iterator[BlobItem]:
        """Yield every blob and draft, in no particular order; anything but a regular file is ignored."""
        for path in self.root.glob("??/*"):
            file_stat = _stat_plain_file(path)
            if file_stat is None:
                continue
            hash_ = path.parent.name + path.name
            draft_name = f"{path.parent.name}/{path.name}"
            if HASH_PATTERN.match(hash_):
                yield BlobItem(hash_, file_stat.st_size, file_stat.st_mtime)
            elif _DRAFT_PATTERN.match(draft_name):
                yield BlobItem(draft_name, file_stat.st_size, file_stat.st_mtime, is_draft=True)

    def remove_if_older(self, name: str, before: float) -> bool:
        """Delete that blob or draft unless it was stored at ``before`` or later; return whether it was deleted."""
        if _DRAFT_PATTERN.match(name):
            path = self.root / name
        else:
            path = self._get_blob_path(check_hash(name))
        return self._delete_file(path, before)

    def _delete_file(self, path: Path, before: float | None) -> bool:
        """Delete the file at ``path`` while no writer can find it there and rely on it; return whether it did."""
        try:
            if _stat_plain_file(path) is None and not path.is_symlink():
                return False
            with lock_directory(path.parent, is_exclusive=True):
                # Looked at under the lock: a writer may have just stored it again.
                if before is not None and path.lstat().st_mtime >= before:
                    return False
                path.unlink()
            self._total.invalidate()
        except FileNotFoundError:
            return False
        except OSError as error:
            raise build_store_error(error, f"{path} was not removed") from error
        return True

    def _get_blob_path(self, hash_: str) -> Path:
        return self.root / hash_[:2] / hash_[2:]

    def _open_blob(self, hash_: str) -> int:
        path = self._get_blob_path(check_hash(hash_))
        if _get_file_size(path) is None:
            raise _build_missing_error(hash_)
        try:
            # Without O_NONBLOCK, a pipe planted under the name would hang the reader.
            return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError as error:  # deleted since it was looked for
            raise _build_missing_error(hash_) from error
        except OSError as error:
            raise build_store_error(error, f"blob {path} cannot be read") from error

    def _is_intact(self, hash_: str, length: int) -> bool:
        """Return whether the blob exists and has the content of its hash."""
        if _get_file_size(self._get_blob_path(hash_)) != length:
            return False
        try:
            self.count_characters(hash_)  # verifies the hash, once for each file
        except StoreCorrupt:
            return False
        return True

    def _get_text_index(self, hash_: str, descriptor: int) -> BlobTextIndex:
        """Return the index of an open blob, built once for each file; raises ``StoreCorrupt`` if the hash is wrong."""
        file_stat = os.fstat(descriptor)
        # Size and time are part of the key: a file that changed is read and verified again.
        key = (hash_, file_stat.st_size, file_stat.st_mtime_ns)
        text_index = self._indexes.pop(key, None)
        if text_index is None:
            text_index = index_blob_text(lambda start: _read_pieces(descriptor, start))
        if text_index.hash != hash_:
            raise _build_damage_error(hash_)
        self._indexes[key] = text_index
        for old_key in list(self._indexes)[:-MAX_TEXT_INDEXES]:
            self._indexes.pop(old_key, None)  # another thread may have removed it
        return text_index

    def _write_blob(self, path: Path, content: str | bytes, length: int) -> None:
        """Write ``content`` to a draft and rename it to ``path``, replacing a damaged file there."""
        # A random name in the same directory: two writers never share a draft, and the rename is atomic.
        draft = path.with_name(f".{secrets.token_hex(8)}.tmp")
        with self._total.reserve(length):
            descriptor = create_private_file(draft)
            try:
                try:
                    written_bytes = write_and_sync(descriptor, iter_content_bytes(content))
                finally:
                    os.close(descriptor)
                # A disk that is nearly full may take fewer bytes without an error.
                if written_bytes != length:
                    raise OSError(f"{written_bytes:,} bytes of it were written")
                draft.replace(path)
            finally:
                with suppress(OSError):
                    draft.unlink(missing_ok=True)
            # The rename is durable only once the directory is; the directory itself may be new too.
            sync_directory(path.parent)
            sync_directory(path.parent.parent)


class MemoryBlobStore:
    """Blobs in memory, for tests and for sessions that are not kept."""

    def __init__(self, quota: Quota = Quota()) -> None:
        self._blobs: dict[str, _MemoryBlob] = {}
        self._indexes: dict[str, BlobTextIndex] = {}
        self._total = 0
        self._quota = quota.blob_bytes
        self._turn = RLock()
        """Held while a blob is added or removed; reading needs no lock."""

    def store_content(self, content: str | bytes) -> str:
        """Store ``content`` and return its hash."""
        hash_, length = hash_content(content)
        with self._turn:
            stored_blob = self._blobs.get(hash_)
            if stored_blob is not None:
                self._blobs[hash_] = _MemoryBlob(stored_blob.text, time.time())
                return hash_
            check_quota(
                self._total,
                length,
                self._quota,
                "the blobs",
                BLOB_QUOTA_ADVICE,
            )
            self._total += length
            self._blobs[hash_] = _MemoryBlob(encode_blob(content), time.time())
        return hash_

    def read_bytes(self, hash_: str, start: int = 0, stop: int | None = None) -> bytes:
        """Return bytes ``start`` to ``stop``."""
        stored_blob = self._blobs.get(check_hash(hash_))
        if stored_blob is None:
            raise _build_missing_error(hash_)
        # Negative bounds count as 0, as they do for a file, and not from the end as in a slice.
        first = max(0, start)
        last = None if stop is None else max(0, stop)
        return stored_blob.text[first:last]

    def read_text(self, hash_: str, start: int = 0, stop: int | None = None) -> str:
        """Return characters ``start`` to ``stop``."""
        data = self.read_bytes(hash_)
        text_index = self._get_text_index(hash_, data)
        return read_blob_characters(lambda offset: _slice_pieces(data, offset), text_index, start, stop)

    def count_characters(self, hash_: str) -> int:
        """Return the number of characters that ``read_text`` can return."""
        return self._get_text_index(hash_, self.read_bytes(hash_)).characters

    def has_blob(self, hash_: str) -> bool:
        """Return whether the blob exists."""
        return check_hash(hash_) in self._blobs

    def get_size(self, hash_: str) -> int:
        """Return the blob's size in bytes."""
        return len(self.read_bytes(hash_))

    def iter_hashes(self) -> Iterator[str]:
        """Yield the hash of every blob."""
        yield from list(self._blobs)

    def remove_blob(self, hash_: str) -> None:
        """Delete the blob."""
        self.remove_if_older(hash_, inf)

    def iter_items(self) -> Iterator[BlobItem]:
        """Yield every blob; there are no drafts."""
        for hash_, stored_blob in list(self._blobs.items()):
            yield BlobItem(hash_, len(stored_blob.text), stored_blob.stored_at)

    def remove_if_older(self, name: str, before: float) -> bool:
        """Delete that blob unless it was stored at ``before`` or later; return whether it was deleted."""
        with self._turn:
            stored_blob = self._blobs.get(check_hash(name))
            if stored_blob is None or stored_blob.stored_at >= before:
                return False
            del self._blobs[name]
            self._indexes.pop(name, None)
            self._total -= len(stored_blob.text)
        return True

    def _get_text_index(self, hash_: str, data: bytes) -> BlobTextIndex:
        text_index = self._indexes.get(hash_)
        if text_index is None:
            text_index = self._indexes[hash_] = index_blob_text(lambda offset: _slice_pieces(data, offset))
        return text_index


class _MemoryBlob(NamedTuple):
    """A blob in memory; ``stored_at`` is in seconds since 1970."""

    text: bytes
    stored_at: float


def hash_content(content: str | bytes) -> tuple[str, int]:
    """Return the hash and the length in bytes of ``content``."""
    digest = sha256()
    length = 0
    for piece in iter_content_bytes(content):
        digest.update(piece)
        length += len(piece)
    return digest.hexdigest(), length


def _read_pieces(descriptor: int, start: int) -> Iterator[bytes]:
    """Yield the content of an open file from byte ``start`` on."""
    os.lseek(descriptor, start, os.SEEK_SET)
    while piece := os.read(descriptor, BLOB_PIECE_BYTES):
        yield piece


def _read_count(descriptor: int, count: int) -> bytes:
    """Return the next ``count`` bytes of an open file, or fewer at its end."""
    data = bytearray()
    while len(data) < count:
        # At most 16 MB a read: ``count`` comes from a caller and must not make the buffer.
        piece = os.read(descriptor, min(count - len(data), 1 << 24))
        if not piece:
            break
        data += piece
    return bytes(data)


def _slice_pieces(data: bytes, start: int) -> Iterator[bytes]:
    for offset in range(start, len(data), BLOB_PIECE_BYTES):
        yield data[offset : offset + BLOB_PIECE_BYTES]


def _refresh_mtime(path: Path) -> None:
    """Set the file's time to now. An error is ignored: where nothing can be written, nothing can be deleted either."""
    with suppress(OSError):
        os.utime(path, follow_symlinks=False)


def _stat_plain_file(path: Path) -> os.stat_result | None:
    """Return the status of the regular file at ``path`` if its directory is a real one too, or None."""
    try:
        file_stat = path.lstat()
        directory_stat = path.parent.lstat()
    except OSError:
        return None
    is_plain = stat.S_ISREG(file_stat.st_mode) and stat.S_ISDIR(directory_stat.st_mode)
    return file_stat if is_plain else None


def _get_file_size(path: Path) -> int | None:
    """Return the size of the regular file at ``path``, or None if there is no such file."""
    file_stat = _stat_plain_file(path)
    return None if file_stat is None else file_stat.st_size


def _build_missing_error(hash_: str) -> UnknownId:
    return UnknownId(f"blob {hash_} is not in the store; restore the file from a backup of this store")


def _build_damage_error(hash_: str) -> StoreCorrupt:
    return StoreCorrupt(f"blob {hash_} has content that does not match its hash; restore it from a backup")
