"""Texts under the SHA-256 of their bytes: as files, or in memory.

A file is whole before it has its name (written beside, flushed, then renamed), so a name that is there stands for a
durable text; what stood there torn, damaged or planted gives way. Names are hashes and nothing else: no outside
string becomes a path, and no link is followed.
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

from holdfast.errors import StoreCorrupt, StoreError, StoreReadOnly, UnknownId
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
"""How many blobs' indexes are kept: one for each 100 MB text takes 50 kB."""
_HASH_PATTERN = re.compile(r"[0-9a-f]{64}\Z")
_DRAFT_PATTERN = re.compile(r"[0-9a-f]{2}/\.[0-9a-f]{16}\.tmp\Z")


def encode_blob(content: str | bytes) -> bytes:
    """Return the bytes that are stored and hashed; lone surrogates become three bytes each."""
    return content.encode("utf-8", "surrogatepass") if isinstance(content, str) else bytes(content)


def check_hash(hash_: str) -> str:
    """Return ``hash_`` if it is 64 lower-case hexadecimal digits, else raise ``UnknownId``."""
    if not _HASH_PATTERN.match(hash_):
        msg = f"{hash_[:80]!r} is no blob hash: 64 digits 0-9a-f; copy it from the record that names the blob"
        raise UnknownId(msg)
    return hash_


class FileBlobStore:
    """Blobs as files ``ab/cdef…`` under ``root``, which is made at the first ``store_content``."""

    def __init__(self, root: str | os.PathLike[str], quota: Quota = Quota()) -> None:
        self.root = Path(root)
        self._refused = ""
        self._tally = BlobTotal(self.root, lambda: sum(blob.size for blob in self.iter_items()), quota.blob_bytes)
        self._indexes: dict[tuple[str, int, int], BlobTextIndex] = {}

    def store_content(self, content: str | bytes) -> str:
        """Store ``content`` durably and return its hash; storing it again only makes it young."""
        hash_, length = _hash_content(content)
        if self._refused:
            raise StoreReadOnly(self._refused)
        path = self._get_blob_path(hash_)
        try:
            make_directory(path.parent)
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
            if isinstance(store_error, StoreReadOnly):
                self._refused = str(store_error)
            raise store_error from error
        return hash_

    def read_bytes(self, hash_: str, start: int = 0, stop: int | None = None) -> bytes:
        """Return bytes ``start`` to ``stop``."""
        start = max(0, start)
        with os.fdopen(self._open_blob(hash_), "rb", 0) as file:
            if start or stop is not None:
                self._get_text_index(hash_, file.fileno())
            file.seek(start)
            data = file.readall() if stop is None else _read_count(file.fileno(), max(0, stop - start))
        if start == 0 and stop is None and sha256(data).hexdigest() != hash_:
            raise _build_damage_error(hash_)
        return data

    def read_text(self, hash_: str, start: int = 0, stop: int | None = None) -> str:
        """Return characters ``start`` to ``stop``, read piece by piece."""
        descriptor = self._open_blob(hash_)
        try:
            return read_blob_characters(
                lambda at: _read_pieces(descriptor, at), self._get_text_index(hash_, descriptor), start, stop
            )
        finally:
            os.close(descriptor)

    def count_characters(self, hash_: str) -> int:
        """Return how many characters ``read_text`` has."""
        descriptor = self._open_blob(hash_)
        try:
            return self._get_text_index(hash_, descriptor).characters
        finally:
            os.close(descriptor)

    def has_blob(self, hash_: str) -> bool:
        """Return whether the blob is there."""
        return _get_file_size(self._get_blob_path(check_hash(hash_))) is not None

    def get_size(self, hash_: str) -> int:
        """Return the blob's size in bytes."""
        length = _get_file_size(self._get_blob_path(check_hash(hash_)))
        if length is None:
            raise _build_missing_error(hash_)
        return length

    def iter_hashes(self) -> Iterator[str]:
        """Yield every hash there is, in no order."""
        for path in self.root.glob("??/*"):
            if _HASH_PATTERN.match(path.parent.name + path.name):
                yield path.parent.name + path.name

    def remove_blob(self, hash_: str) -> None:
        """Delete the blob; the caller knows that no entry names it."""
        self._delete_file(self._get_blob_path(check_hash(hash_)), None)

    def iter_items(self) -> Iterator[BlobItem]:
        """Yield every blob and draft there is, in no order; what is no plain file is none."""
        for path in self.root.glob("??/*"):
            name, draft = path.parent.name + path.name, f"{path.parent.name}/{path.name}"
            file_stat = _stat_plain_file(path)
            if file_stat is not None and _HASH_PATTERN.match(name):
                yield BlobItem(name, file_stat.st_size, file_stat.st_mtime)
            elif file_stat is not None and _DRAFT_PATTERN.match(draft):
                yield BlobItem(draft, file_stat.st_size, file_stat.st_mtime, is_draft=True)

    def remove_if_older(self, name: str, before: float) -> bool:
        """Delete that blob or draft unless it was stored at ``before`` or later."""
        return self._delete_file(
            self.root / name if _DRAFT_PATTERN.match(name) else self._get_blob_path(check_hash(name)), before
        )

    def _delete_file(self, path: Path, before: float | None) -> bool:
        """Delete the file at ``path``, while nobody can find it there and rely on it."""
        try:
            if _stat_plain_file(path) is None and not path.is_symlink():
                return False
            with lock_directory(path.parent, is_exclusive=True):
                if before is not None and path.lstat().st_mtime >= before:
                    return False
                path.unlink()
            self._tally.invalidate()
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
            return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError as gone:  # since it was looked for
            raise _build_missing_error(hash_) from gone
        except OSError as error:
            raise build_store_error(error, f"blob {path} cannot be read") from error

    def _is_intact(self, hash_: str, length: int) -> bool:
        """Return whether the blob is there with the content it is named by."""
        if _get_file_size(self._get_blob_path(hash_)) != length:
            return False
        try:
            self.count_characters(hash_)
        except StoreCorrupt:
            return False
        return True

    def _get_text_index(self, hash_: str, descriptor: int) -> BlobTextIndex:
        """Return the index of an open blob, made once for each file; ``StoreCorrupt`` if it is not what it is named."""
        file_stat = os.fstat(descriptor)
        file = (hash_, file_stat.st_size, file_stat.st_mtime_ns)
        text_index = self._indexes.pop(file, None) or index_blob_text(lambda at: _read_pieces(descriptor, at))
        if text_index.hash != hash_:
            raise _build_damage_error(hash_)
        self._indexes[file] = text_index
        for old in list(self._indexes)[:-MAX_TEXT_INDEXES]:  # other threads may read too
            self._indexes.pop(old, None)
        return text_index

    def _write_blob(self, path: Path, content: str | bytes, length: int) -> None:
        """Write ``content`` beside ``path`` and give it the name; what stands there is replaced."""
        draft = path.with_name(f".{secrets.token_hex(8)}.tmp")
        with self._tally.reserve(length):
            descriptor = create_private_file(draft)
            try:
                try:
                    written_bytes = write_and_sync(descriptor, iter_content_bytes(content))
                finally:
                    os.close(descriptor)
                if written_bytes != length:
                    raise OSError(f"{written_bytes:,} bytes of it were written")
                draft.replace(path)
            finally:
                with suppress(OSError):
                    draft.unlink(missing_ok=True)
            sync_directory(path.parent)
            sync_directory(path.parent.parent)


class MemoryBlobStore:
    """Blobs in memory, for tests and for sessions nobody keeps."""

    def __init__(self, quota: Quota = Quota()) -> None:
        self._held: dict[str, _MemoryBlob] = {}
        self._indexes: dict[str, BlobTextIndex] = {}
        self._total = 0
        self._quota = quota.blob_bytes
        self._turn = RLock()
        """Held while one comes or goes; it is read without."""

    def store_content(self, content: str | bytes) -> str:
        """Store ``content`` and return its hash."""
        hash_, length = _hash_content(content)
        with self._turn:
            stored_blob = self._held.get(hash_)
            if stored_blob is None:
                check_quota(self._total, length, self._quota, "the blobs", BLOB_QUOTA_ADVICE)
                self._total += length
            self._held[hash_] = _MemoryBlob(
                encode_blob(content) if stored_blob is None else stored_blob.text, time.time()
            )
        return hash_

    def read_bytes(self, hash_: str, start: int = 0, stop: int | None = None) -> bytes:
        """Return bytes ``start`` to ``stop``."""
        stored_blob = self._held.get(check_hash(hash_))
        if stored_blob is None:
            raise _build_missing_error(hash_)
        return stored_blob.text[max(0, start) : None if stop is None else max(0, stop)]

    def read_text(self, hash_: str, start: int = 0, stop: int | None = None) -> str:
        """Return characters ``start`` to ``stop``."""
        data = self.read_bytes(hash_)
        return read_blob_characters(lambda at: _slice_pieces(data, at), self._get_text_index(hash_, data), start, stop)

    def count_characters(self, hash_: str) -> int:
        """Return how many characters ``read_text`` has."""
        return self._get_text_index(hash_, self.read_bytes(hash_)).characters

    def has_blob(self, hash_: str) -> bool:
        """Return whether the blob is there."""
        return check_hash(hash_) in self._held

    def get_size(self, hash_: str) -> int:
        """Return the blob's size in bytes."""
        return len(self.read_bytes(hash_))

    def iter_hashes(self) -> Iterator[str]:
        """Yield every hash there is."""
        yield from list(self._held)

    def remove_blob(self, hash_: str) -> None:
        """Delete the blob."""
        self.remove_if_older(hash_, inf)

    def iter_items(self) -> Iterator[BlobItem]:
        """Yield every blob there is; there are no drafts."""
        for hash_, stored_blob in list(self._held.items()):
            yield BlobItem(hash_, len(stored_blob.text), stored_blob.at)

    def remove_if_older(self, name: str, before: float) -> bool:
        """Delete that blob unless it was stored at ``before`` or later."""
        with self._turn:
            stored_blob = self._held.get(check_hash(name))
            if stored_blob is None or stored_blob.at >= before:
                return False
            del self._held[name]
            self._indexes.pop(name, None)
            self._total -= len(stored_blob.text)
        return True

    def _get_text_index(self, hash_: str, data: bytes) -> BlobTextIndex:
        text_index = self._indexes.get(hash_)
        if text_index is None:
            text_index = self._indexes[hash_] = index_blob_text(lambda at: _slice_pieces(data, at))
        return text_index


class _MemoryBlob(NamedTuple):
    """A blob in memory, and when it was stored last, in seconds since 1970."""

    text: bytes
    at: float


def _hash_content(content: str | bytes) -> tuple[str, int]:
    """Return the hash and the length in bytes of ``content``."""
    digest, length = sha256(), 0
    for piece in iter_content_bytes(content):
        digest.update(piece)
        length += len(piece)
    return digest.hexdigest(), length


def _read_pieces(descriptor: int, start: int) -> Iterator[bytes]:
    """Yield an open file from byte ``start`` on."""
    os.lseek(descriptor, start, os.SEEK_SET)
    while piece := os.read(descriptor, BLOB_PIECE_BYTES):
        yield piece


def _read_count(descriptor: int, count: int) -> bytes:
    """Return the next ``count`` bytes of an open file, or what there is."""
    out = bytearray()
    while len(out) < count and (piece := os.read(descriptor, min(count - len(out), 1 << 24))):
        out += piece
    return bytes(out)


def _slice_pieces(data: bytes, start: int) -> Iterator[bytes]:
    for at in range(start, len(data), BLOB_PIECE_BYTES):
        yield data[at : at + BLOB_PIECE_BYTES]


def _refresh_mtime(path: Path) -> None:
    """Let the file be as young as one that was just written; where nothing may be written nothing may be deleted."""
    with suppress(OSError):
        os.utime(path, follow_symlinks=False)


def _stat_plain_file(path: Path) -> os.stat_result | None:
    """Return what is known of the plain file at ``path``, or nothing if none is there."""
    try:
        file_stat = path.lstat()
        inside = stat.S_ISDIR(path.parent.lstat().st_mode)
    except OSError:
        return None
    return file_stat if inside and stat.S_ISREG(file_stat.st_mode) else None


def _get_file_size(path: Path) -> int | None:
    """Return the size of the plain file at ``path``, or nothing if none is there."""
    file_stat = _stat_plain_file(path)
    return None if file_stat is None else file_stat.st_size


def _build_missing_error(hash_: str) -> UnknownId:
    return UnknownId(f"no blob {hash_} is here; restore the file from a backup of this store")


def _build_damage_error(hash_: str) -> StoreCorrupt:
    return StoreCorrupt(f"blob {hash_} does not have the content it is named by; take it from a backup")
