"""Read files given to a command, and write output files."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from holdfast.cli.output.errors import CommandError
from holdfast.errors import FormatError

PRIVATE_FILE, PRIVATE_FOLDER = 0o600, 0o700
"""Only the owner may read sessions (invariant private-files)."""
STDIN = "-"
PIPE_TIMEOUT = 3.0
"""Seconds to wait until a pipe has a writer. Chosen by judgement: a shell that makes one connects it long before."""


def read_input_file(name: str) -> bytes:
    """Read the file ``name``; ``-`` is standard input.

    Raises ``FormatError`` for a folder, a device or a pipe without a writer, and ``OSError`` if it cannot be read.
    """
    if name == STDIN:
        return get_standard_input().read()
    path = Path(name)
    if not name:
        raise FormatError("the file name is empty; give the name of a file")
    if path.is_dir():
        raise FormatError(f"{name} is a folder; give the files in it, for example {path / '*.jsonl'}")
    # Some devices, like /dev/zero, never end.
    if path.is_char_device() or path.is_block_device():
        raise FormatError(f"{name} is a device, not a file; give a file, or - for standard input")
    return read_pipe(path) if path.is_fifo() else path.read_bytes()


def read_pipe(path: Path, timeout: float = PIPE_TIMEOUT) -> bytes:
    """Read everything written into the pipe at ``path``. Raises ``FormatError`` if it has no writer."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as pipe:
        select.select([pipe], [], [], timeout)
        first_byte = pipe.read(1)  # None: a writer has not written yet; b"": there is no writer
        if first_byte == b"":
            raise FormatError(f"{path} is a pipe without a writer; start the program that writes to it, or give a file")
        os.set_blocking(descriptor, True)
        return (first_byte or b"") + pipe.read()


def get_standard_input() -> BinaryIO:
    """Return standard input. Raises ``CommandError`` if it is closed."""
    if sys.stdin is None:
        raise CommandError("standard input is closed; give the name of a file")
    return sys.stdin.buffer


def iter_input_lines(name: str) -> Iterator[bytes]:
    """Yield the lines of the file ``name``, or of standard input as they arrive."""
    if name == STDIN:
        for line in get_standard_input():
            yield line.removesuffix(b"\n")
        return
    data = read_input_file(name)
    if data:
        yield from data.removesuffix(b"\n").split(b"\n")


def make_private_folder(path: Path) -> None:
    """Make ``path`` and its missing parents, accessible to the owner only."""
    if not path.is_dir():
        path.mkdir(PRIVATE_FOLDER, parents=True, exist_ok=True)


@contextmanager
def open_output_file(name: str, *, force: bool) -> Iterator[BinaryIO]:
    """Open the file ``name`` for writing, as ``open_private_file`` does.

    An existing file is replaced only with ``force``, and a store never. Raises ``CommandError`` otherwise.
    """
    if name == STDIN:
        raise CommandError("'-' is not a file name for output; leave --output out to use standard output")
    path = Path(name)
    if path.is_dir():
        raise CommandError(f"{path} is a folder; give the name of a file in it")
    if path.exists() and not path.is_file():
        raise CommandError(f"{path} is not a regular file; leave --output out to use standard output")
    if os.path.lexists(path) and not force:
        raise CommandError(f"{path} already exists; give another name, or --force to replace it")
    if path.exists() and _is_store_file(path):
        raise CommandError(f"{path} is a store of sessions and is never replaced; give another name")
    with open_private_file(path) as file:
        yield file


def _is_store_file(path: Path) -> bool:
    from holdfast.store.sql.migrations import is_store_file

    return is_store_file(path)


@contextmanager
def open_private_file(path: Path) -> Iterator[BinaryIO]:
    """Open ``path`` for writing so that it changes only at the end, all at once, and only the owner can read it.

    An ``OSError`` names ``path``, not the temporary file.
    """
    # The part file is in the same folder, since a rename is atomic only within one file system.
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        descriptor = os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, PRIVATE_FILE)
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, PRIVATE_FILE)
            yield file
        part.replace(path)
    except BaseException as error:
        # A part file that already existed belongs to somebody else.
        if not isinstance(error, FileExistsError):
            with suppress(OSError):
                part.unlink()
        if isinstance(error, OSError) and error.filename == str(part):
            error.filename = str(path)
            error.filename2 = None
        raise
