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

from holdfast.cli.files.input_files import STDIN, read_input_file
from holdfast.cli.output.errors import CommandError
from holdfast.errors import FormatError
from holdfast.formats import Recording, read_recording, read_recording_lazily
from holdfast.formats.common.lines import LineFile

ReadProgress = Callable[[int, int], None]
"""Told how many bytes of a file are read, and how many it has."""
_SESSION_ID_BYTES = 8
"""Of the digest that names a session without an id of its own: an import of the same file has to find it."""


class RecordingSource(Struct, frozen=True):
    """A session before it is read: what messages call it, and how it is read."""

    name: str
    read: Callable[[], Recording]
    """Raises ``HoldfastError`` or ``OSError`` where it cannot be read."""


def iter_recordings(
    file: str, session: str = "", *, single: bool = False, progress: ReadProgress | None = None
) -> Iterator[RecordingSource]:
    """Yield the sessions in ``file``; of a database all, or the one that ``session`` names by its beginning.

    Each is to be read before the next is asked for. Where only a ``single`` one will do, more of them are an error.
    With ``progress`` a session's words stay in the file, if its format allows, until they are asked for; that too has
    to be before the next is asked for. It is told how much of the file is read.
    """
    from holdfast.store.foreign import opencode as foreign

    path = Path(file)
    if not file or not foreign.is_sqlite_file(path):
        if session:
            raise CommandError(f"--session names a session of opencode's database, and {file} is no database")
        if progress is None or file in ("", STDIN) or not path.is_file():
            yield RecordingSource(file, partial(_read_recording_file, file))
            return
        with path.open("rb") as stream:
            yield RecordingSource(file, partial(_read_recording_file_lazily, file, stream, progress))
        return
    with foreign.open_opencode_database(path) as there:
        roots = there.list_root_sessions(session)
        if not roots:
            raise FormatError(f"{file} holds no session; give a database that opencode has used")
        if single and len(roots) > 1:
            raise CommandError(f"one session is asked for, and {file} holds {len(roots)}; name one with --session")
        for root in roots:
            yield RecordingSource(f"{file}#{root.id}", partial(there.read_recording, root.id))


def _read_recording_file(file: str) -> Recording:
    """Return the recording in a file, under an id that is the same for the same file where it has none of its own."""
    data = read_input_file(file)
    recording = read_recording(data)
    return recording if recording.session else replace(recording, session=f"{recording.format}-{_digest_bytes(data)}")


def _read_recording_file_lazily(name: str, file: BinaryIO, progress: ReadProgress) -> Recording:
    """Return the recording in an open file, its words left there; what cannot be read so is read as a whole.

    A tool may be writing it: what was not there at first is not looked at.
    """
    size = os.fstat(file.fileno()).st_size
    recording = read_recording_lazily(
        LineFile(partial(_iterate_file_lines, file, size, progress), partial(_read_file_range, file))
    )
    if recording is None:
        return _read_recording_file(name)
    progress(size, size)
    return (
        recording if recording.session else replace(recording, session=f"{recording.format}-{_digest_file(file, size)}")
    )


def _iterate_file_lines(file: BinaryIO, size: int, progress: ReadProgress) -> Iterator[bytes]:
    """Yield the lines in the first ``size`` bytes of a file; tell ``progress`` of every hundredth, not of each line."""
    step, position, reported_position = max(1, size // 100), 0, 0
    file.seek(0)
    while position < size and (line := file.readline(size - position)):
        yield line
        position += len(line)
        if reported_position + step <= position < size:
            reported_position = position
            progress(position, size)


def _read_file_range(file: BinaryIO, start: int, length: int) -> bytes:
    return os.pread(file.fileno(), length, start)


def _digest_bytes(data: bytes) -> str:
    return blake2b(data, digest_size=_SESSION_ID_BYTES).hexdigest()


def _digest_file(file: BinaryIO, size: int) -> str:
    digest = blake2b(digest_size=_SESSION_ID_BYTES)
    file.seek(0)
    while block := file.read(min(size, 2**20)):
        digest.update(block)
        size -= len(block)
    return digest.hexdigest()
