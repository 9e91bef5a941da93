"""Files and directories that only their owner can read, and what a refusing disk is called."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from holdfast.errors import StoreError, StoreReadOnly

FILE_MODE, DIRECTORY_MODE = 0o600, 0o700
"""Modes of everything a store makes, whatever the umask (invariant private-files)."""
_CREATE_FLAGS = os.O_CREAT | os.O_EXCL | os.O_RDWR | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_DISK_ERRNOS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}
"""What a disk says that is full or broken."""
_ACCESS_ERRNOS = {errno.EROFS, errno.EACCES, errno.EPERM}
"""What it says where this user may not."""

FREE_SPACE_ADVICE = "free space (begin with `holdfast gc`, which needs none), then open the store again"
ACCESS_ADVICE = "give yourself access to it and its folder, or another path with --store"
"""What to do about either."""


def is_existing_path(path: Path) -> bool:
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
        path.mkdir(DIRECTORY_MODE)
        path.chmod(DIRECTORY_MODE)


def create_private_file(path: Path) -> int:
    """Return a descriptor of a new, empty file at ``path``; ``FileExistsError`` if anything is there."""
    descriptor = os.open(path, _CREATE_FLAGS, FILE_MODE)
    os.fchmod(descriptor, FILE_MODE)
    return descriptor


def write_and_sync(descriptor: int, pieces: Iterable[bytes]) -> int:
    """Write all of ``pieces``, wait until the disk has them, and return the length of the file."""
    for piece in pieces:
        view = memoryview(piece)
        while view:
            view = view[os.write(descriptor, view) :]
    os.fsync(descriptor)
    return os.fstat(descriptor).st_size


@contextmanager
def lock_directory(path: Path, *, is_exclusive: bool = False, allow_symlink: bool = False) -> Iterator[int]:
    """Hold the directory at ``path``, together with others or ``is_exclusive``; yield its descriptor.

    Where the file system has no locks it is held without. A link in its place is an ``OSError`` unless
    ``allow_symlink``.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | (0 if allow_symlink else os.O_NOFOLLOW))
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX if is_exclusive else fcntl.LOCK_SH)
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


def build_store_error(error: OSError, subject: str) -> StoreError:
    """Return the error of this package for ``error``, which came of ``subject``."""
    why = error.strerror or str(error)
    problem = f"{subject}: {why[:1].lower()}{why[1:]}"
    if error.errno in _DISK_ERRNOS | _ACCESS_ERRNOS:
        return StoreReadOnly(f"{problem}; {FREE_SPACE_ADVICE if error.errno in _DISK_ERRNOS else ACCESS_ADVICE}")
    return StoreError(f"{problem}; check that path, or give another with --store")
