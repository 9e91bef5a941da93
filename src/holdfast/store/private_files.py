"""Files and directories that only their owner can read, and the errors of a disk under our names."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from holdfast.errors import StoreError, StoreReadOnly

FILE_MODE, DIRECTORY_MODE = 0o600, 0o700
"""Modes of everything that a store creates, whatever the umask (invariant private-files)."""
_CREATE_FLAGS = os.O_CREAT | os.O_EXCL | os.O_RDWR | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_DISK_ERRNOS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}
"""Errors of a disk that is full or broken."""
_ACCESS_ERRNOS = {errno.EROFS, errno.EACCES, errno.EPERM}
"""Errors of a user without permission."""

FREE_SPACE_ADVICE = "free space (begin with `holdfast gc`, which needs none), then open the store again"
ACCESS_ADVICE = "give yourself access to it and its folder, or another path with --store"
"""Advice for each of the two."""


def is_existing_path(path: Path) -> bool:
    """Return whether anything is at ``path``; raises ``OSError`` if that cannot be told, as in another user's
    directory.

    ``Path.exists`` returns False for that from Python 3.14 on.
    """
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: no file can have such a name
        return False
    return True


def make_directory(path: Path) -> None:
    """Create ``path`` and its missing parents with private modes; existing directories keep theirs."""
    if path.is_dir():
        return
    if path.parent != path:
        make_directory(path.parent)
    with suppress(FileExistsError):  # another process made it meanwhile
        path.mkdir(DIRECTORY_MODE)
        # The umask may have taken bits away.
        path.chmod(DIRECTORY_MODE)


def create_private_file(path: Path) -> int:
    """Create an empty file at ``path`` and return its descriptor; raises ``FileExistsError`` if anything is there."""
    descriptor = os.open(path, _CREATE_FLAGS, FILE_MODE)
    os.fchmod(descriptor, FILE_MODE)  # the umask may have taken bits away
    return descriptor


def write_and_sync(descriptor: int, pieces: Iterable[bytes]) -> int:
    """Write all ``pieces``, wait until they are on disk, and return the size of the file."""
    for piece in pieces:
        view = memoryview(piece)
        while view:  # a write may take fewer bytes than it was given
            written = os.write(descriptor, view)
            view = view[written:]
    os.fsync(descriptor)
    return os.fstat(descriptor).st_size


@contextmanager
def lock_directory(path: Path, *, is_exclusive: bool = False, allow_symlink: bool = False) -> Iterator[int]:
    """Hold a lock on the directory at ``path``, shared or exclusive; yield its descriptor.

    On a file system without locks the block runs without one. A symbolic link raises ``OSError`` unless
    ``allow_symlink``.
    """
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    if not allow_symlink:
        flags |= os.O_NOFOLLOW
    descriptor = os.open(path, flags)
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX if is_exclusive else fcntl.LOCK_SH)
        yield descriptor
    finally:
        os.close(descriptor)


def sync_directory(path: Path) -> None:
    """Wait until the names in ``path`` are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def build_store_error(error: OSError, subject: str) -> StoreError:
    """Return the ``StoreError`` for an ``OSError``; ``subject`` names the failed action. A full or read-only disk is
    ``StoreReadOnly``.
    """
    # The system's text begins with a capital, and stands inside a sentence here.
    why = error.strerror or str(error)
    problem = f"{subject}: {why[:1].lower()}{why[1:]}"
    if error.errno in _DISK_ERRNOS:
        return StoreReadOnly(f"{problem}; {FREE_SPACE_ADVICE}")
    if error.errno in _ACCESS_ERRNOS:
        return StoreReadOnly(f"{problem}; {ACCESS_ADVICE}")
    return StoreError(f"{problem}; check that path, or give another with --store")
