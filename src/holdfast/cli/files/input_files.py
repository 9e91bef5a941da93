"""Files that a command is given, and files that it writes."""

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
"""Sessions are their owner's business (invariant private-files)."""
STDIN = "-"
PIPE_TIMEOUT = 3.0
"""Seconds in which somebody must have opened a pipe for writing. [H] A shell that made it has, long before."""


def read_input_file(name: str) -> bytes:
    """Return the bytes of the file ``name``; ``-`` is standard input.

    Raises ``FormatError`` for a folder, a device and a pipe without a writer, and ``OSError`` for what cannot be read.
    """
    if name == STDIN:
        return get_standard_input().read()
    path = Path(name)
    if not name:
        raise FormatError("an empty text is no file's name; give the name of a file")
    if path.is_dir():
        raise FormatError(f"{name} is a folder; give the files in it, for example {path / '*.jsonl'}")
    if path.is_char_device() or path.is_block_device():  # some never end
        raise FormatError(f"{name} is a device and no file; give a file, or - for standard input")
    return read_pipe(path) if path.is_fifo() else path.read_bytes()


def read_pipe(path: Path, timeout: float = PIPE_TIMEOUT) -> bytes:
    """Return what is written into the pipe at ``path``; ``FormatError`` where nobody does."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as pipe:
        select.select([pipe], [], [], timeout)
        first_byte = pipe.read(1)  # nothing yet where somebody is about to write, b"" where nobody is
        if first_byte == b"":
            raise FormatError(f"{path} is a pipe into which nobody writes; start who writes, or give a file")
        os.set_blocking(descriptor, True)
        return (first_byte or b"") + pipe.read()


def get_standard_input() -> BinaryIO:
    """Return standard input; ``CommandError`` where it is closed."""
    if sys.stdin is None:
        raise CommandError("standard input is closed; give the name of a file")
    return sys.stdin.buffer


def iter_input_lines(name: str) -> Iterator[bytes]:
    """Yield the lines of the file ``name``, or of standard input, each as soon as it is there."""
    if name == STDIN:
        yield from (line.removesuffix(b"\n") for line in get_standard_input())
    elif data := read_input_file(name):
        yield from data.removesuffix(b"\n").split(b"\n")


def make_private_folder(path: Path) -> None:
    """Make ``path`` and the folders above it that are missing, for their owner only."""
    if not path.is_dir():
        path.mkdir(PRIVATE_FOLDER, parents=True, exist_ok=True)


@contextmanager
def open_output_file(name: str, *, force: bool) -> Iterator[BinaryIO]:
    """Open the file ``name`` as ``open_private_file`` does; one that is there gives way only to ``force``, a store
    never.
    """
    if name == STDIN:
        raise CommandError("'-' is no file to write to; leave --output out for standard output")
    path = Path(name)
    if path.is_dir():
        raise CommandError(f"{path} is a folder; give the name of a file in it")
    if path.exists() and not path.is_file():
        raise CommandError(f"{path} is no file that could be replaced; leave --output out and use standard output")
    if os.path.lexists(path) and not force:
        raise CommandError(f"{path} is there already; give another name, or --force to replace it")
    if path.exists() and _is_store_file(path):
        raise CommandError(f"{path} is a store of sessions, which nothing replaces; give another name")
    with open_private_file(path) as file:
        yield file


def _is_store_file(path: Path) -> bool:
    from holdfast.store.sql.migrations import is_store_file

    return is_store_file(path)


@contextmanager
def open_private_file(path: Path) -> Iterator[BinaryIO]:
    """Open ``path`` for writing: it is there whole at the end, for its owner only, or is what it was before.

    An ``OSError`` names ``path``, whatever was written meanwhile.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        descriptor = os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, PRIVATE_FILE)
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, PRIVATE_FILE)
            yield file
        part.replace(path)
    except BaseException as error:
        if not isinstance(error, FileExistsError):
            with suppress(OSError):
                part.unlink()
        if isinstance(error, OSError) and error.filename == str(part):
            error.filename, error.filename2 = str(path), None
        raise
