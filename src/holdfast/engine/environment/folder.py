"""Files within a folder: nothing outside of it is read or named, whatever links and dots lie on the way."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from holdfast.errors import FormatError

_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
"""A pipe does not make anybody wait, and a link that appeared since the place was looked up is not followed."""
_SHOWN = 200
"""Characters of a path that an error repeats."""


def within(root: Path, named: str | Path) -> Path:
    """Return where ``named`` really is: ``root``, which has no links in it, or a place below, there or not.

    Raises ``FormatError`` for every other place.
    """
    try:
        real = (root / named).resolve()
    except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: links in a circle
        raise FormatError(f"{_told(named)} is no path: {error}; give one below the working folder") from None
    if not real.is_relative_to(root):
        raise FormatError(f"{_told(named)} is outside of the working folder; give a path below it")
    return real


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """Open a file, and nothing but a file, for reading. ``FormatError`` for a folder, a pipe or a device."""
    number = os.open(path, _FLAGS)
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise FormatError(f"{_told(path.name)} is no file; give the path of one")
    with os.fdopen(number, "rb") as file:
        yield file


def words(data: bytes, name: str) -> str:
    """Return the text that ``data`` is; ``FormatError`` where it is none."""
    if b"\0" in data:
        raise FormatError(f"{_told(name)} is no text: it holds zero bytes; give a file in UTF-8")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise FormatError(f"{_told(name)} is no UTF-8 (byte {error.start:,}); give a file in UTF-8") from None


def beginning(root: Path, named: str | Path, most: int) -> tuple[str, int]:
    """Return the first ``most`` bytes of a text below ``root``, no letter of it in halves, and how many are left out.

    Raises ``FormatError`` and ``OSError``.
    """
    with opened(within(root, named)) as file:
        data = file.read(most + 1)
        left = max(0, os.fstat(file.fileno()).st_size - most) if len(data) > most else 0
    held = data[:most]
    while left and held and data[len(held)] & 0xC0 == 0x80:
        held, left = held[:-1], left + 1
    return words(held, str(named)), left


def _told(named: str | Path) -> str:
    """Return a path as an error repeats it: on one line, with nothing that steers a terminal."""
    text = str(named)
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…")
