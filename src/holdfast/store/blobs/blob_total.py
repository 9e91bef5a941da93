"""How many bytes the blobs hold together: one number in a file, so that a quota costs no walk over them.

The number is there while a quota is in use. Whoever writes or deletes a blob without one takes it away, and it is
counted anew. It is raised before a blob is written: a crash makes it too large, never too small.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from holdfast.errors import QuotaExceeded
from holdfast.store.files import FILE, locked

BLOBS = "free some with `holdfast gc`, or raise blob_bytes in [store] of holdfast.toml"
SESSION = "go on in a new session, or raise session_bytes in [store] of holdfast.toml"
"""What to do about a quota."""
_DIGITS = 20
"""A number is written in so many digits: one that was cut off is not taken for a smaller one."""


class Tally:
    """The number beside the blobs of ``root``; ``count`` walks over them where it is missing."""

    def __init__(self, root: Path, count: Callable[[], int], limit: int = 0) -> None:
        self._root = root
        self._file = root / ".total"
        self._count = count
        self._limit = limit

    @contextmanager
    def adding(self, length: int) -> Iterator[None]:
        """Let a blob of ``length`` bytes be written inside; ``QuotaExceeded`` if there is no room for it."""
        if not self._limit:
            self.forget()
            yield
            self.forget()  # somebody may have counted meanwhile
            return
        with locked(self._root, alone=True, linked=True):
            held = self._read()
            check_room(held, length, self._limit, "the blobs", BLOBS)
            self._write(held + length)
            try:
                yield
            except BaseException:
                self._write(held)
                raise

    def forget(self) -> None:
        """Have the number counted anew when it is needed next."""
        self._file.unlink(missing_ok=True)

    def _read(self) -> int:
        try:
            told = self._file.read_bytes() if stat.S_ISREG(self._file.lstat().st_mode) else b""
        except OSError:
            told = b""
        if len(told) == _DIGITS and told.isdigit():
            return int(told)
        counted = self._count()
        self._write(counted)
        return counted

    def _write(self, total: int) -> None:
        with suppress(OSError):  # without the number there is a walk
            self._file.unlink(missing_ok=True)
            descriptor = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, FILE)
            with os.fdopen(descriptor, "wb") as file:
                file.write(b"%0*d" % (_DIGITS, total))


def check_room(held: int, more: int, limit: int, what: str, advice: str) -> None:
    """Raise ``QuotaExceeded`` if ``more`` bytes beside ``held`` are over ``limit`` (0: no limit)."""
    if limit and held + more > limit:
        msg = (
            f"{what} would hold {held + more:,} bytes, {more:,} of them new, and the quota is {limit:,}; "
            f"nothing was written: {advice}"
        )
        raise QuotaExceeded(msg)


def weighed(key: str, held: int, more: int, limit: int) -> int:
    """Return the bytes of session ``key``, ``held`` before ``more``; ``QuotaExceeded`` if there is no room for them."""
    check_room(held, more, limit, f"session {key[:80]!r}", SESSION)
    return held + more
