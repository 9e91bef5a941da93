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
from holdfast.store.base import Held, Quota
from holdfast.store.blobs.blob_total import BLOBS, Tally, check_room
from holdfast.store.blobs.text_pages import PIECE, Index, encoded, index, page
from holdfast.store.files import create, locked, make_directory, refusal, sync_directory, write_all

INDEXES = 64
"""How many blobs' indexes are kept: one for each 100 MB text takes 50 kB."""
_HASH = re.compile(r"[0-9a-f]{64}\Z")
_DRAFT = re.compile(r"[0-9a-f]{2}/\.[0-9a-f]{16}\.tmp\Z")


def as_bytes(content: str | bytes) -> bytes:
    """Return the bytes that are stored and hashed; lone surrogates become three bytes each."""
    return content.encode("utf-8", "surrogatepass") if isinstance(content, str) else bytes(content)


def checked(hash_: str) -> str:
    """Return ``hash_`` if it is 64 lower-case hexadecimal digits, else raise ``UnknownId``."""
    if not _HASH.match(hash_):
        msg = f"{hash_[:80]!r} is no blob hash: 64 digits 0-9a-f; copy it from the record that names the blob"
        raise UnknownId(msg)
    return hash_


class FileBlobs:
    """Blobs as files ``ab/cdef…`` under ``root``, which is made at the first ``put``."""

    def __init__(self, root: str | os.PathLike[str], quota: Quota = Quota()) -> None:
        self.root = Path(root)
        self._refused = ""
        self._tally = Tally(self.root, lambda: sum(one.size for one in self.held()), quota.blob_bytes)
        self._indexes: dict[tuple[str, int, int], Index] = {}

    def put(self, content: str | bytes) -> str:
        """Store ``content`` durably and return its hash; storing it again only makes it young."""
        hash_, length = _measured(content)
        if self._refused:
            raise StoreReadOnly(self._refused)
        path = self._path(hash_)
        try:
            make_directory(path.parent)
            with locked(path.parent) as shard:
                if self._is_whole(hash_, length):
                    _touch(path)
                    os.fsync(shard)
                else:
                    self._write(path, content, length)
        except StoreError:
            raise
        except OSError as error:
            named = refusal(error, f"blob {hash_[:12]} ({length:,} bytes) was not stored in {self.root}")
            if isinstance(named, StoreReadOnly):
                self._refused = str(named)
            raise named from error
        return hash_

    def get(self, hash_: str, start: int = 0, stop: int | None = None) -> bytes:
        """Return bytes ``start`` to ``stop``."""
        start = max(0, start)
        with os.fdopen(self._open(hash_), "rb", 0) as file:
            if start or stop is not None:
                self._index(hash_, file.fileno())
            file.seek(start)
            held = file.readall() if stop is None else _read(file.fileno(), max(0, stop - start))
        if start == 0 and stop is None and sha256(held).hexdigest() != hash_:
            raise _damaged(hash_)
        return held

    def text(self, hash_: str, start: int = 0, stop: int | None = None) -> str:
        """Return characters ``start`` to ``stop``, read piece by piece."""
        descriptor = self._open(hash_)
        try:
            return page(lambda at: _pieces(descriptor, at), self._index(hash_, descriptor), start, stop)
        finally:
            os.close(descriptor)

    def characters(self, hash_: str) -> int:
        """Return how many characters ``text`` has."""
        descriptor = self._open(hash_)
        try:
            return self._index(hash_, descriptor).characters
        finally:
            os.close(descriptor)

    def has(self, hash_: str) -> bool:
        """Return whether the blob is there."""
        return _length(self._path(checked(hash_))) is not None

    def size(self, hash_: str) -> int:
        """Return the blob's size in bytes."""
        length = _length(self._path(checked(hash_)))
        if length is None:
            raise _missing(hash_)
        return length

    def hashes(self) -> Iterator[str]:
        """Yield every hash there is, in no order."""
        for path in self.root.glob("??/*"):
            if _HASH.match(path.parent.name + path.name):
                yield path.parent.name + path.name

    def remove(self, hash_: str) -> None:
        """Delete the blob; the caller knows that no entry names it."""
        self._delete(self._path(checked(hash_)), None)

    def held(self) -> Iterator[Held]:
        """Yield every blob and draft there is, in no order; what is no plain file is none."""
        for path in self.root.glob("??/*"):
            name, draft = path.parent.name + path.name, f"{path.parent.name}/{path.name}"
            found = _found(path)
            if found is not None and _HASH.match(name):
                yield Held(name, found.st_size, found.st_mtime)
            elif found is not None and _DRAFT.match(draft):
                yield Held(draft, found.st_size, found.st_mtime, is_draft=True)

    def discard(self, name: str, before: float) -> bool:
        """Delete that blob or draft unless it was stored at ``before`` or later."""
        return self._delete(self.root / name if _DRAFT.match(name) else self._path(checked(name)), before)

    def _delete(self, path: Path, before: float | None) -> bool:
        """Delete the file at ``path``, while nobody can find it there and rely on it."""
        try:
            if _found(path) is None and not path.is_symlink():
                return False
            with locked(path.parent, alone=True):
                if before is not None and path.lstat().st_mtime >= before:
                    return False
                path.unlink()
            self._tally.forget()
        except FileNotFoundError:
            return False
        except OSError as error:
            raise refusal(error, f"{path} was not removed") from error
        return True

    def _path(self, hash_: str) -> Path:
        return self.root / hash_[:2] / hash_[2:]

    def _open(self, hash_: str) -> int:
        path = self._path(checked(hash_))
        if _length(path) is None:
            raise _missing(hash_)
        try:
            return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError as gone:  # since it was looked for
            raise _missing(hash_) from gone
        except OSError as error:
            raise refusal(error, f"blob {path} cannot be read") from error

    def _is_whole(self, hash_: str, length: int) -> bool:
        """Return whether the blob is there with the content it is named by."""
        if _length(self._path(hash_)) != length:
            return False
        try:
            self.characters(hash_)
        except StoreCorrupt:
            return False
        return True

    def _index(self, hash_: str, descriptor: int) -> Index:
        """Return the index of an open blob, made once for each file; ``StoreCorrupt`` if it is not what it is named."""
        found = os.fstat(descriptor)
        file = (hash_, found.st_size, found.st_mtime_ns)
        known = self._indexes.pop(file, None) or index(lambda at: _pieces(descriptor, at))
        if known.hash != hash_:
            raise _damaged(hash_)
        self._indexes[file] = known
        for old in list(self._indexes)[:-INDEXES]:  # other threads may read too
            self._indexes.pop(old, None)
        return known

    def _write(self, path: Path, content: str | bytes, length: int) -> None:
        """Write ``content`` beside ``path`` and give it the name; what stands there is replaced."""
        draft = path.with_name(f".{secrets.token_hex(8)}.tmp")
        with self._tally.adding(length):
            descriptor = create(draft)
            try:
                try:
                    written = write_all(descriptor, encoded(content))
                finally:
                    os.close(descriptor)
                if written != length:
                    raise OSError(f"{written:,} bytes of it were written")
                draft.replace(path)
            finally:
                with suppress(OSError):
                    draft.unlink(missing_ok=True)
            sync_directory(path.parent)
            sync_directory(path.parent.parent)


class MemoryBlobs:
    """Blobs in memory, for tests and for sessions nobody keeps."""

    def __init__(self, quota: Quota = Quota()) -> None:
        self._held: dict[str, _Kept] = {}
        self._indexes: dict[str, Index] = {}
        self._total = 0
        self._quota = quota.blob_bytes
        self._turn = RLock()
        """Held while one comes or goes; it is read without."""

    def put(self, content: str | bytes) -> str:
        """Store ``content`` and return its hash."""
        hash_, length = _measured(content)
        with self._turn:
            known = self._held.get(hash_)
            if known is None:
                check_room(self._total, length, self._quota, "the blobs", BLOBS)
                self._total += length
            self._held[hash_] = _Kept(as_bytes(content) if known is None else known.text, time.time())
        return hash_

    def get(self, hash_: str, start: int = 0, stop: int | None = None) -> bytes:
        """Return bytes ``start`` to ``stop``."""
        known = self._held.get(checked(hash_))
        if known is None:
            raise _missing(hash_)
        return known.text[max(0, start) : None if stop is None else max(0, stop)]

    def text(self, hash_: str, start: int = 0, stop: int | None = None) -> str:
        """Return characters ``start`` to ``stop``."""
        held = self.get(hash_)
        return page(lambda at: _cut(held, at), self._index(hash_, held), start, stop)

    def characters(self, hash_: str) -> int:
        """Return how many characters ``text`` has."""
        return self._index(hash_, self.get(hash_)).characters

    def has(self, hash_: str) -> bool:
        """Return whether the blob is there."""
        return checked(hash_) in self._held

    def size(self, hash_: str) -> int:
        """Return the blob's size in bytes."""
        return len(self.get(hash_))

    def hashes(self) -> Iterator[str]:
        """Yield every hash there is."""
        yield from list(self._held)

    def remove(self, hash_: str) -> None:
        """Delete the blob."""
        self.discard(hash_, inf)

    def held(self) -> Iterator[Held]:
        """Yield every blob there is; there are no drafts."""
        for hash_, known in list(self._held.items()):
            yield Held(hash_, len(known.text), known.at)

    def discard(self, name: str, before: float) -> bool:
        """Delete that blob unless it was stored at ``before`` or later."""
        with self._turn:
            known = self._held.get(checked(name))
            if known is None or known.at >= before:
                return False
            del self._held[name]
            self._indexes.pop(name, None)
            self._total -= len(known.text)
        return True

    def _index(self, hash_: str, held: bytes) -> Index:
        known = self._indexes.get(hash_)
        if known is None:
            known = self._indexes[hash_] = index(lambda at: _cut(held, at))
        return known


class _Kept(NamedTuple):
    """A blob in memory, and when it was stored last, in seconds since 1970."""

    text: bytes
    at: float


def _measured(content: str | bytes) -> tuple[str, int]:
    """Return the hash and the length in bytes of ``content``."""
    digest, length = sha256(), 0
    for piece in encoded(content):
        digest.update(piece)
        length += len(piece)
    return digest.hexdigest(), length


def _pieces(descriptor: int, start: int) -> Iterator[bytes]:
    """Yield an open file from byte ``start`` on."""
    os.lseek(descriptor, start, os.SEEK_SET)
    while piece := os.read(descriptor, PIECE):
        yield piece


def _read(descriptor: int, count: int) -> bytes:
    """Return the next ``count`` bytes of an open file, or what there is."""
    out = bytearray()
    while len(out) < count and (piece := os.read(descriptor, min(count - len(out), 1 << 24))):
        out += piece
    return bytes(out)


def _cut(held: bytes, start: int) -> Iterator[bytes]:
    for at in range(start, len(held), PIECE):
        yield held[at : at + PIECE]


def _touch(path: Path) -> None:
    """Let the file be as young as one that was just written; where nothing may be written nothing may be deleted."""
    with suppress(OSError):
        os.utime(path, follow_symlinks=False)


def _found(path: Path) -> os.stat_result | None:
    """Return what is known of the plain file at ``path``, or nothing if none is there."""
    try:
        held = path.lstat()
        inside = stat.S_ISDIR(path.parent.lstat().st_mode)
    except OSError:
        return None
    return held if inside and stat.S_ISREG(held.st_mode) else None


def _length(path: Path) -> int | None:
    """Return the size of the plain file at ``path``, or nothing if none is there."""
    found = _found(path)
    return None if found is None else found.st_size


def _missing(hash_: str) -> UnknownId:
    return UnknownId(f"no blob {hash_} is here; restore the file from a backup of this store")


def _damaged(hash_: str) -> StoreCorrupt:
    return StoreCorrupt(f"blob {hash_} does not have the content it is named by; take it from a backup")
