"""Files and directories that only their owner can read, and what a refusing disk is called."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

from holdfast.errors import StoreError, StoreReadOnly

FILE, DIRECTORY = 0o600, 0o700
"""Modes of everything a store makes, whatever the umask (invariant X1)."""
_NEW = os.O_CREAT | os.O_EXCL | os.O_RDWR | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_REFUSED = {
    errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS, errno.EACCES, errno.EPERM,
}  # fmt: skip
"""What a disk says that is full, broken or read-only."""


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


def write_all(descriptor: int, content: bytes) -> None:
    """Write all of ``content`` and wait until the disk has it."""
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]
    os.fsync(descriptor)


def sync_directory(path: Path) -> None:
    """Wait until the disk has the names in ``path``."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def refusal(error: OSError, what: str) -> StoreError:
    """Return the error of this package for ``error``, which came of ``what``."""
    if error.errno in _REFUSED:
        return StoreReadOnly(f"{what}: {error}; free space or give write access, then open the store again")
    return StoreError(f"{what}: {error}; check that path, or give another with --store")
