"""Read a file again whenever it changes, in a thread."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

FOLLOW_SECONDS = 1.0
"""How often a file is looked at. Chosen by judgement: that is one call of the system."""
READING_SHARE = 0.1
"""Share of the time that reading may take: a file of a gigabyte takes minutes, and is then read again after as many
times ten. Chosen by judgement."""


@contextmanager
def follow_file(path: Path, read_file: Callable[[], object], seconds: float = FOLLOW_SECONDS) -> Iterator[None]:
    """Call ``read_file`` whenever ``path`` has another size or time than now, until the block ends.

    A file that is gone, or cannot be read just now, is looked at again later: what was read of it stays.
    """
    stop = Event()
    thread = Thread(target=_follow, args=(path, read_file, seconds, stop, _get_version(path)), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _follow(
    path: Path, read_file: Callable[[], object], seconds: float, stop: Event, version: tuple[int, int] | None
) -> None:
    pause = seconds
    while not stop.wait(pause):
        newest_version = _get_version(path)
        if newest_version is None or newest_version == version:
            continue
        version = newest_version
        began = time.monotonic()
        read_file()
        pause = max(seconds, (time.monotonic() - began) / READING_SHARE)


def _get_version(path: Path) -> tuple[int, int] | None:
    """Return what changes with the content of a file; None if there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size
