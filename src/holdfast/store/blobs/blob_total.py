"""The total size of all blobs, kept as a number in a file, so that checking a quota needs no walk over them.

The number exists while a quota is in use. Writing or deleting a blob without a quota removes it, and it is counted
again when needed. It is raised before a blob is written, so a crash leaves it too large, never too small.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from holdfast.errors import QuotaExceeded
from holdfast.store.private_files import FILE_MODE, lock_directory

BLOB_QUOTA_ADVICE = "free some with `holdfast gc`, or raise blob_bytes in [store] of holdfast.toml"
SESSION_QUOTA_ADVICE = "go on in a new session, or raise session_bytes in [store] of holdfast.toml"
"""Advice for a quota that is exceeded."""
_TOTAL_DIGITS = 20
"""Fixed width of the number: one that was cut off by a crash is not taken for a smaller one."""


class BlobTotal:
    """The total of the blobs under ``root``; ``count`` walks over them if it is missing."""

    def __init__(self, root: Path, count: Callable[[], int], limit: int = 0) -> None:
        self._root = root
        self._file = root / ".total"
        self._count = count
        self._limit = limit

    @contextmanager
    def reserve(self, length: int) -> Iterator[None]:
        """Reserve room for a blob of ``length`` bytes, which is written in the block; raises ``QuotaExceeded`` without
        room.
        """
        if not self._limit:
            self.invalidate()
            yield
            self.invalidate()  # again: a process with a quota may have counted while the blob was written
            return
        with lock_directory(self._root, is_exclusive=True, allow_symlink=True):
            current_bytes = self._read_total()
            check_quota(
                current_bytes,
                length,
                self._limit,
                "the blobs",
                BLOB_QUOTA_ADVICE,
            )
            self._write_total(current_bytes + length)
            try:
                yield
            except BaseException:
                self._write_total(current_bytes)  # the blob was not written
                raise

    def invalidate(self) -> None:
        """Remove the number, so that it is counted again when needed."""
        self._file.unlink(missing_ok=True)

    def _read_total(self) -> int:
        content = b""
        # Only a regular file: a link or a device under that name was not written by us.
        with suppress(OSError):
            if stat.S_ISREG(self._file.lstat().st_mode):
                content = self._file.read_bytes()
        if len(content) == _TOTAL_DIGITS and content.isdigit():
            return int(content)
        total = self._count()
        self._write_total(total)
        return total

    def _write_total(self, total: int) -> None:
        with suppress(OSError):  # without the number the blobs are counted
            # A new file each time: nothing planted under the name is followed or written to.
            self._file.unlink(missing_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            descriptor = os.open(self._file, flags, FILE_MODE)
            with os.fdopen(descriptor, "wb") as file:
                file.write(b"%0*d" % (_TOTAL_DIGITS, total))


def check_quota(
    current_bytes: int,
    new_bytes: int,
    limit: int,
    subject: str,
    advice: str,
) -> None:
    """Raise ``QuotaExceeded`` if ``new_bytes`` more than ``current_bytes`` exceed ``limit`` (0: no limit)."""
    if limit and current_bytes + new_bytes > limit:
        msg = (
            f"{subject} would hold {current_bytes + new_bytes:,} bytes, {new_bytes:,} of them new, and the quota "
            f"is {limit:,}; "
            f"nothing was written: {advice}"
        )
        raise QuotaExceeded(msg)


def add_session_bytes(
    key: str,
    current_bytes: int,
    new_bytes: int,
    limit: int,
) -> int:
    """Return the sum of a session's bytes and new ones; raises ``QuotaExceeded`` if it exceeds ``limit``."""
    check_quota(
        current_bytes,
        new_bytes,
        limit,
        f"session {key[:80]!r}",
        SESSION_QUOTA_ADVICE,
    )
    return current_bytes + new_bytes
