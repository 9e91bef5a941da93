"""A lease on a session: a file lock, which the system drops when its holder ends, however it ends."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from math import inf
from pathlib import Path

from holdfast.errors import StoreError, StoreLocked
from holdfast.store.base import LEASE_WAIT
from holdfast.store.private_files import build_store_error, create_private_file, make_directory
from holdfast.store.sql.database import BRIEF_WAIT

RETRY_PAUSE = 0.001
"""Seconds between two tries: who writes without a pause leaves a gap about as short. [M]"""

_OPEN_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
_last_timeouts: dict[str, float] = {}
"""When somebody waited in vain last for the lock in a file that nobody here had since."""
_lock_descriptors: set[int] = set()
_descriptor_lock = threading.RLock()
"""Held while a descriptor comes or goes, and while the process forks: no child has one that is not in
``_lock_descriptors``.
"""


def _close_inherited_locks() -> None:
    """Close the inherited descriptors in a forked child: the lock stays the parent's alone."""
    for descriptor in _lock_descriptors:
        with suppress(OSError):
            os.close(descriptor)
    _lock_descriptors.clear()
    _descriptor_lock.release()


os.register_at_fork(
    before=_descriptor_lock.acquire, after_in_parent=_descriptor_lock.release, after_in_child=_close_inherited_locks
)


@contextmanager
def hold_session_lock(directory: Path, key: str) -> Iterator[None]:
    """Hold the lease of session ``key``; ``StoreLocked`` if somebody else has it for ``LEASE_WAIT`` seconds.

    The lock file in ``directory`` is named by the key's hash and stays there. A second lease of the same session in
    one process waits like anybody's; soon behind one that waited in vain it waits for ``BRIEF_WAIT`` seconds.
    """
    name = sha256(key.encode("utf-8", "surrogatepass")).hexdigest()[:32] + ".lock"
    file = f"{directory}{os.sep}{name}"
    with _descriptor_lock:
        descriptor = _open_lock_file(directory, name)
        _lock_descriptors.add(descriptor)
    try:
        seconds = _choose_lock_wait(file)
        if not _try_lock(descriptor, seconds):
            _last_timeouts[file] = time.monotonic()
            msg = (
                f"session {key!r} is being written by somebody else (waited {seconds:g} s); "
                "end the other process, or work on a copy"
            )
            raise StoreLocked(msg)
        _last_timeouts.pop(file, None)
        yield
    finally:
        with _descriptor_lock:
            if descriptor in _lock_descriptors:  # else this is a child that was forked inside
                _lock_descriptors.discard(descriptor)
                os.close(descriptor)


def _open_lock_file(directory: Path, name: str) -> int:
    try:
        try:
            return os.open(f"{directory}{os.sep}{name}", _OPEN_FLAGS)
        except FileNotFoundError:
            make_directory(directory)
        with suppress(FileExistsError):
            return create_private_file(directory / name)
        return os.open(directory / name, _OPEN_FLAGS)
    except OSError as error:
        raise build_store_error(error, f"no lock file could be made in {directory}") from error


def _choose_lock_wait(file: str) -> float:
    """Return the seconds to wait for the lock in ``file``: few soon behind a wait in vain, for they would add up."""
    is_soon = time.monotonic() - _last_timeouts.get(file, -inf) < LEASE_WAIT
    return min(BRIEF_WAIT, LEASE_WAIT) if is_soon else LEASE_WAIT


def _try_lock(descriptor: int, seconds: float) -> bool:
    """Return whether the lock is held now; it is not where somebody else has it for so many ``seconds``."""
    end = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                msg = f"the file system has no locks ({error}); put the store on a local disk"
                raise StoreError(msg) from error
        else:
            return True
        if time.monotonic() >= end:
            return False
        time.sleep(RETRY_PAUSE)
