"""The lease of a session: a file lock, which the system releases when its holder ends, in whatever way."""

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
from holdfast.store.sql.database import BRIEF_WAIT, BRIEF_WAIT_PERIOD

RETRY_PAUSE = 0.001
"""Seconds between two tries for the lock.

Measured: a process that writes without pausing releases the lock for about a millisecond at a time. A longer pause
misses those gaps and starves.
"""

_OPEN_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
_last_timeouts: dict[str, float] = {}
"""For each lock file, when a wait for it failed last (monotonic seconds); removed once this process gets the lock."""
_lock_descriptors: set[int] = set()
_descriptor_lock = threading.RLock()
"""Held while a descriptor is opened or closed, and while the process forks, so ``_lock_descriptors`` is complete in a
forked child.
"""


def _close_inherited_locks() -> None:
    """Close inherited descriptors in a forked child, which would otherwise keep the parent's locks held."""
    for descriptor in _lock_descriptors:
        with suppress(OSError):
            os.close(descriptor)
    _lock_descriptors.clear()
    _descriptor_lock.release()


os.register_at_fork(
    before=_descriptor_lock.acquire,
    after_in_parent=_descriptor_lock.release,
    after_in_child=_close_inherited_locks,
)


@contextmanager
def hold_session_lock(directory: Path, key: str) -> Iterator[None]:
    """Hold the lease of session ``key``; raises ``StoreLocked`` if another holder has it for ``LEASE_WAIT`` seconds.

    The lock file in ``directory`` is named by the hash of the key and is never removed. A second lease of the same
    session in one process waits like that of another process. After a wait that failed, the next ones are
    ``BRIEF_WAIT`` only, until the lock was free or nobody has tried for ``BRIEF_WAIT_PERIOD``.
    """
    name = sha256(key.encode("utf-8", "surrogatepass")).hexdigest()[:32] + ".lock"
    file = f"{directory}{os.sep}{name}"
    # A descriptor that a fork copied before it was listed would keep the lock alive in the child.
    with _descriptor_lock:
        descriptor = _open_lock_file(directory, name)
        _lock_descriptors.add(descriptor)
    try:
        seconds = _choose_lock_wait(file)
        if not _try_lock(descriptor, seconds):
            _last_timeouts[file] = time.monotonic()
            msg = (
                f"session {key!r} is being written by another process (waited {seconds:g} s); "
                "end the other process, or work on a copy"
            )
            raise StoreLocked(msg)
        _last_timeouts.pop(file, None)
        yield
    finally:
        with _descriptor_lock:
            if descriptor in _lock_descriptors:  # not so in a child that was forked while the lease was held
                _lock_descriptors.discard(descriptor)
                os.close(descriptor)


def _open_lock_file(directory: Path, name: str) -> int:
    try:
        # The common case first: lock files are never removed.
        try:
            return os.open(f"{directory}{os.sep}{name}", _OPEN_FLAGS)
        except FileNotFoundError:
            make_directory(directory)
        # Another process may create the file first.
        with suppress(FileExistsError):
            return create_private_file(directory / name)
        return os.open(directory / name, _OPEN_FLAGS)
    except OSError as error:
        raise build_store_error(error, f"no lock file could be made in {directory}") from error


def _choose_lock_wait(file: str) -> float:
    """Return the seconds to wait for the lock in ``file``: few after a failed wait, as such waits would add up."""
    seconds_since_timeout = time.monotonic() - _last_timeouts.get(file, -inf)
    if seconds_since_timeout < BRIEF_WAIT_PERIOD:
        return min(BRIEF_WAIT, LEASE_WAIT)
    return LEASE_WAIT


def _try_lock(descriptor: int, seconds: float) -> bool:
    """Try for ``seconds`` to get the lock, and return whether it is held now."""
    end = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            # EACCES: where the file system emulates flock by POSIX locks, as NFS does.
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                msg = f"the file system has no locks ({error}); put the store on a local disk"
                raise StoreError(msg) from error
        else:
            return True
        if time.monotonic() >= end:
            return False
        time.sleep(RETRY_PAUSE)
