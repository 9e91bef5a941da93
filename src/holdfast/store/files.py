"""Files and directories that only their owner can read, and what a refusing disk is called."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from holdfast.errors import StoreError, StoreReadOnly

FILE, DIRECTORY = 0o600, 0o700
"""Modes of everything a store makes, whatever the umask (invariant X1)."""
_NEW = os.O_CREAT | os.O_EXCL | os.O_RDWR | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}
"""What a disk says that is full or broken."""
_CLOSED = {errno.EROFS, errno.EACCES, errno.EPERM}
"""What it says where this user may not."""

FREE = "free space (begin with `holdfast gc`, which needs none), then open the store again"
ACCESS = "give yourself access to it and its folder, or another path with --store"
"""What to do about either."""


def is_there(path: Path) -> bool:
    """Return whether anything is at ``path``; ``OSError`` where that cannot be told, as in a folder of somebody else's.

    ``Path.exists`` says no to that from Python 3.14 on.
    """
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError, ValueError):  # the last: no file can have such a name
        return False
    return True


def make_directory(path: Path) -> None:
    """Create ``path`` and the parents it lacks; those that are there keep their modes."""
    if path.is_dir():
        return
    if path.parent != path:
        make_directory(path.parent)
    with suppress(FileExistsError):
        path.mkdir(DIRECTORY)
        path.chmod(DIRECTORY)


def create(path: Path) -> int:
    """Return a descriptor of a new, empty file at ``path``; ``FileExistsError`` if anything is there."""
    descriptor = os.open(path, _NEW, FILE)
    os.fchmod(descriptor, FILE)
    return descriptor


def write_all(descriptor: int, pieces: Iterable[bytes]) -> int:
    """Write all of ``pieces``, wait until the disk has them, and return the length of the file."""
    for piece in pieces:
        view = memoryview(piece)
        while view:
            view = view[os.write(descriptor, view) :]
    os.fsync(descriptor)
    return os.fstat(descriptor).st_size


@contextmanager
def locked(path: Path, *, alone: bool = False, linked: bool = False) -> Iterator[int]:
    """Hold the directory at ``path``, together with others or ``alone``; yield its descriptor.

    Where the file system has no locks it is held without. A link in its place is an ``OSError`` unless ``linked``.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | (0 if linked else os.O_NOFOLLOW))
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield descriptor
    finally:
        os.close(descriptor)


def sync_directory(path: Path) -> None:
    """Wait until the disk has the names in ``path``."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def refusal(error: OSError, what: str) -> StoreError:
    """Return the error of this package for ``error``, which came of ``what``."""
    why = error.strerror or str(error)
    told = f"{what}: {why[:1].lower()}{why[1:]}"
    if error.errno in _FULL | _CLOSED:
        return StoreReadOnly(f"{told}; {FREE if error.errno in _FULL else ACCESS}")
    return StoreError(f"{told}; check that path, or give another with --store")
