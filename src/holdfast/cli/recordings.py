"""The sessions that a file holds: one, or all of a database."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO

from msgspec import Struct
from msgspec.structs import replace

from holdfast.cli.files import STDIN, content
from holdfast.cli.output.errors import Stopped
from holdfast.errors import FormatError
from holdfast.formats import Recording, read, read_lazily
from holdfast.formats.common.lines import LineFile

Progress = Callable[[int, int], None]
"""Told how many bytes of a file are read, and how many it has."""
_NAME_BYTES = 8
"""Of the digest that names a session without an id of its own: an import of the same file has to find it."""


class Source(Struct, frozen=True):
    """A session before it is read: what messages call it, and how it is read."""

    name: str
    read: Callable[[], Recording]
    """Raises ``HoldfastError`` or ``OSError`` where it cannot be read."""


def sources(file: str, session: str = "", *, single: bool = False, lazily: Progress | None = None) -> Iterator[Source]:
    """Yield the sessions in ``file``; of a database all, or the one that ``session`` names by its beginning.

    Each is to be read before the next is asked for. Where only a ``single`` one will do, more of them are an error.
    With ``lazily`` a session's words stay in the file, if its format allows, until they are asked for; that too has to
    be before the next is asked for. It is told how much of the file is read.
    """
    from holdfast.store.foreign import opencode as foreign

    path = Path(file)
    if not file or not foreign.is_database(path):
        if session:
            raise Stopped(f"--session names a session of opencode's database, and {file} is no database")
        if lazily is None or file in ("", STDIN) or not path.is_file():
            yield Source(file, partial(_read_whole, file))
            return
        with path.open("rb") as opened:
            yield Source(file, partial(_read_lazily, file, opened, lazily))
        return
    with foreign.opened(path) as there:
        found = there.roots(session)
        if not found:
            raise FormatError(f"{file} holds no session; give a database that opencode has used")
        if single and len(found) > 1:
            raise Stopped(f"one session is asked for, and {file} holds {len(found)}; name one with --session")
        for one in found:
            yield Source(f"{file}#{one.id}", partial(there.recording, one.id))


def _read_whole(file: str) -> Recording:
    """Return the recording in a file, under an id that is the same for the same file where it has none of its own."""
    data = content(file)
    found = read(data)
    return found if found.session else replace(found, session=f"{found.format}-{_digest_of(data)}")


def _read_lazily(name: str, file: BinaryIO, progress: Progress) -> Recording:
    """Return the recording in an open file, its words left there; what cannot be read so is read as a whole.

    A tool may be writing it: what was not there at first is not looked at.
    """
    size = os.fstat(file.fileno()).st_size
    found = read_lazily(LineFile(partial(_lines_of, file, size, progress), partial(_read_at, file)))
    if found is None:
        return _read_whole(name)
    progress(size, size)
    return found if found.session else replace(found, session=f"{found.format}-{_digest_of_file(file, size)}")


def _lines_of(file: BinaryIO, size: int, progress: Progress) -> Iterator[bytes]:
    """Yield the lines in the first ``size`` bytes of a file; tell ``progress`` of every hundredth, not of each line."""
    step, done, told = max(1, size // 100), 0, 0
    file.seek(0)
    while done < size and (line := file.readline(size - done)):
        yield line
        done += len(line)
        if told + step <= done < size:
            told = done
            progress(done, size)


def _read_at(file: BinaryIO, start: int, length: int) -> bytes:
    return os.pread(file.fileno(), length, start)


def _digest_of(data: bytes) -> str:
    return blake2b(data, digest_size=_NAME_BYTES).hexdigest()


def _digest_of_file(file: BinaryIO, size: int) -> str:
    digest = blake2b(digest_size=_NAME_BYTES)
    file.seek(0)
    while block := file.read(min(size, 2**20)):
        digest.update(block)
        size -= len(block)
    return digest.hexdigest()
