"""Read files within a folder; nothing outside of it is read, whatever links and ``..`` a path contains."""

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
"""Opening a pipe must not block, and a link put in the file's place since its path was resolved is not followed."""
_MAX_SHOWN_PATH_CHARS = 200
"""Characters of a path that an error repeats."""


def resolve_path_inside(root: Path, path: str | Path) -> Path:
    """Return ``path`` with links resolved: ``root``, or a path below it, whether or not it exists.

    ``root`` must be resolved itself. Raises ``FormatError`` for a path outside of it.
    """
    try:
        resolved_path = (root / path).resolve()
    except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: links in a circle
        raise FormatError(f"{_quote_path(path)} is not a path: {error}; give one below the working folder") from None
    if not resolved_path.is_relative_to(root):
        raise FormatError(f"{_quote_path(path)} is outside of the working folder; give a path below it")
    return resolved_path


@contextmanager
def open_regular_file(path: Path) -> Iterator[BinaryIO]:
    """Open a regular file for reading. Raises ``FormatError`` for a folder, a pipe or a device."""
    descriptor = os.open(path, _READ_OPEN_FLAGS)
    # Checked after opening: what the path named before may have been replaced since.
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise FormatError(f"{_quote_path(path.name)} is not a file; give the path of one")
    with os.fdopen(descriptor, "rb") as file:
        yield file


def decode_utf8(data: bytes, name: str) -> str:
    """Decode ``data``. Raises ``FormatError``, naming ``name``, if it is not UTF-8 text."""
    if b"\0" in data:
        raise FormatError(f"{_quote_path(name)} is not a text file: it has zero bytes; give a file in UTF-8")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise FormatError(f"{_quote_path(name)} is not UTF-8 (byte {error.start:,}); give a file in UTF-8") from None


def read_file_beginning(root: Path, path: str | Path, max_bytes: int) -> tuple[str, int]:
    """Return the first ``max_bytes`` bytes of a text file below ``root`` as text, and the number of bytes left out.

    No character is cut in half. Raises ``FormatError`` if it is not a text file below ``root``, and ``OSError``.
    """
    with open_regular_file(resolve_path_inside(root, path)) as file:
        data = file.read(max_bytes + 1)
        is_longer = len(data) > max_bytes
        if is_longer:
            omitted_bytes = max(0, os.fstat(file.fileno()).st_size - max_bytes)
        else:
            omitted_bytes = 0
    prefix = data[:max_bytes]
    # A byte 10xxxxxx after the prefix continues a character that begins in it.
    while omitted_bytes and prefix and data[len(prefix)] & 0xC0 == 0x80:
        prefix = prefix[:-1]
        omitted_bytes += 1
    return decode_utf8(prefix, str(path)), omitted_bytes


def _quote_path(path: str | Path) -> str:
    """Return a path for an error message: on one line, and without control characters for the terminal."""
    text = str(path)
    if len(text) > _MAX_SHOWN_PATH_CHARS:
        text = f"{text[:_MAX_SHOWN_PATH_CHARS]}…"
    return repr(text)
