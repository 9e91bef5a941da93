"""Texts under the SHA-256 of their bytes: as files, or in memory.

A file is whole before it has its name (written beside, flushed, then linked), so a name that is there stands for a
durable text. Names are hashes and nothing else: no outside string becomes a path.
"""

from __future__ import annotations

import codecs
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from holdfast.errors import StoreCorrupt, StoreReadOnly, UnknownId
from holdfast.store.files import create, make_directory, refusal, sync_directory, write_all

PIECE = 1 << 16
"""Bytes read at once when a text is paged by characters."""
_HASH = re.compile(r"[0-9a-f]{64}\Z")


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

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root)
        self._refused = ""

    def put(self, content: str | bytes) -> str:
        """Store ``content`` durably and return its hash; storing it again changes nothing."""
        held = as_bytes(content)
        hash_ = sha256(held).hexdigest()
        if self._refused:
            raise StoreReadOnly(self._refused)
        path = self._path(hash_)
        if _length(path) == len(held):
            return hash_
        try:
            make_directory(path.parent)
            self._write(path, held)
        except OSError as error:
            named = refusal(error, f"blob {hash_[:12]} ({len(held):,} bytes) was not stored")
            if isinstance(named, StoreReadOnly):
                self._refused = str(named)
            raise named from error
        return hash_

    def get(self, hash_: str, start: int = 0, stop: int | None = None) -> bytes:
        """Return bytes ``start`` to ``stop``; a whole read is verified against the hash."""
        start = max(0, start)
        with os.fdopen(self._open(hash_), "rb") as file:
            file.seek(start)
            held = file.read() if stop is None else file.read(max(0, stop - start))
        if start == 0 and stop is None and sha256(held).hexdigest() != hash_:
            raise _damaged(hash_)
        return held

    def text(self, hash_: str, start: int = 0, stop: int | None = None) -> str:
        """Return characters ``start`` to ``stop``, read piece by piece."""
        with os.fdopen(self._open(hash_), "rb") as file:
            return _page(iter(lambda: file.read(PIECE), b""), start, stop)

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
        path = self._path(checked(hash_))
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise refusal(error, f"blob {hash_[:12]} was not removed") from error

    def _path(self, hash_: str) -> Path:
        return self.root / hash_[:2] / hash_[2:]

    def _open(self, hash_: str) -> int:
        path = self._path(checked(hash_))
        if _length(path) is None:
            raise _missing(hash_)
        try:
            return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            raise refusal(error, f"blob {hash_[:12]} cannot be read") from error

    def _write(self, path: Path, held: bytes) -> None:
        """Write ``held`` beside ``path`` and give it the name; what stands there torn is replaced."""
        draft = path.with_name(f".{secrets.token_hex(8)}.tmp")
        descriptor = create(draft)
        try:
            try:
                write_all(descriptor, held)
            finally:
                os.close(descriptor)
            _name(draft, path, len(held))
        finally:
            with suppress(OSError):
                draft.unlink(missing_ok=True)
        sync_directory(path.parent)
        sync_directory(path.parent.parent)


class MemoryBlobs:
    """Blobs in memory, for tests and for sessions nobody keeps."""

    def __init__(self) -> None:
        self._held: dict[str, bytes] = {}

    def put(self, content: str | bytes) -> str:
        """Store ``content`` and return its hash."""
        held = as_bytes(content)
        hash_ = sha256(held).hexdigest()
        self._held.setdefault(hash_, held)
        return hash_

    def get(self, hash_: str, start: int = 0, stop: int | None = None) -> bytes:
        """Return bytes ``start`` to ``stop``."""
        held = self._held.get(checked(hash_))
        if held is None:
            raise _missing(hash_)
        return held[max(0, start) : None if stop is None else max(0, stop)]

    def text(self, hash_: str, start: int = 0, stop: int | None = None) -> str:
        """Return characters ``start`` to ``stop``."""
        return _page(iter([self.get(hash_)]), start, stop)

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
        self._held.pop(checked(hash_), None)


def _page(pieces: Iterator[bytes], start: int, stop: int | None) -> str:
    """Return characters ``start`` to ``stop`` of the text in ``pieces``; bytes that are no UTF-8 become U+FFFD."""
    decoder = codecs.getincrementaldecoder("utf-8")("surrogatepass")
    page, at, start = [], 0, max(0, start)
    for piece in pieces:
        text = decoder.decode(piece)
        page.append(text[max(0, start - at) : None if stop is None else max(0, stop - at)])
        at += len(text)
        if stop is not None and at >= stop:
            break
    return "".join(page)


def _name(draft: Path, path: Path, length: int) -> None:
    """Give ``draft`` the name ``path``, exclusively; only a torn file or something that is no file gives way."""
    try:
        os.link(draft, path, follow_symlinks=False)
    except FileExistsError:
        if _length(path) != length:
            draft.replace(path)
    except OSError:  # a file system without links
        draft.replace(path)


def _length(path: Path) -> int | None:
    """Return the size of the file at ``path``, or nothing if no plain file is there."""
    try:
        held = path.lstat()
    except OSError:
        return None
    return held.st_size if stat.S_ISREG(held.st_mode) else None


def _missing(hash_: str) -> UnknownId:
    return UnknownId(f"no blob {hash_} is here; restore the file from a backup of this store")


def _damaged(hash_: str) -> StoreCorrupt:
    return StoreCorrupt(f"blob {hash_} does not have the content it is named by; take it from a backup")
