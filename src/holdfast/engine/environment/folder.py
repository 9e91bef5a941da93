"""Files within a folder: nothing outside of it is read or named, whatever links and dots lie on the way."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from holdfast.errors import FormatError

_READ_OPEN_FLAGS = (
    os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
)
"""A pipe does not make anybody wait, and a link that appeared since the place was looked up is not followed."""
_MAX_SHOWN_PATH_CHARS = 200
"""Characters of a path that an error repeats."""


def resolve_path_inside(root: Path, path: str | Path) -> Path:
    """Return where ``path`` really is: ``root``, which has no links in it, or a place below, there or not.

    Raises ``FormatError`` for every other place.
    """
    try:
        real = (root / path).resolve()
    except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: links in a circle
        raise FormatError(f"{_quote_path(path)} is no path: {error}; give one below the working folder") from None
    if not real.is_relative_to(root):
        raise FormatError(f"{_quote_path(path)} is outside of the working folder; give a path below it")
    return real


@contextmanager
def open_regular_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file, and nothing but a file, for reading. ``FormatError`` for a folder, a pipe or a device."""
    number = os.open(path, _READ_OPEN_FLAGS)
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise FormatError(f"{_quote_path(path.name)} is no file; give the path of one")
    with os.fdopen(number, "rb") as file:
        yield file


def decode_utf8(data: bytes, name: str) -> str:
    """Return the text that ``data`` is; ``FormatError`` where it is none."""
    if b"\0" in data:
        raise FormatError(f"{_quote_path(name)} is no text: it holds zero bytes; give a file in UTF-8")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise FormatError(f"{_quote_path(name)} is no UTF-8 (byte {error.start:,}); give a file in UTF-8") from None


def read_file_beginning(root: Path, path: str | Path, max_bytes: int) -> tuple[str, int]:
    """Return the first ``max_bytes`` bytes of a text below ``root``, no letter of it in halves, and how many are left
    out.

    Raises ``FormatError`` and ``OSError``.
    """
    with open_regular_file(resolve_path_inside(root, path)) as file:
        data = file.read(max_bytes + 1)
        omitted_bytes = max(0, os.fstat(file.fileno()).st_size - max_bytes) if len(data) > max_bytes else 0
    prefix = data[:max_bytes]
    while omitted_bytes and prefix and data[len(prefix)] & 0xC0 == 0x80:
        prefix, omitted_bytes = prefix[:-1], omitted_bytes + 1
    return decode_utf8(prefix, str(path)), omitted_bytes


def _quote_path(path: str | Path) -> str:
    """Return a path as an error repeats it: on one line, with nothing that steers a terminal."""
    text = str(path)
    return repr(text if len(text) <= _MAX_SHOWN_PATH_CHARS else f"{text[:_MAX_SHOWN_PATH_CHARS]}…")
