"""Find the sessions in a file: one, or all of a database."""

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
from holdfast.cli.files.joined_rollouts import JoinedRollouts
from holdfast.cli.files.trajectory_files import read_following_files
from holdfast.cli.output.errors import CommandError
from holdfast.errors import FormatError
from holdfast.formats import Recording, read_recording, read_recording_lazily
from holdfast.formats.atif.document import FORMAT as ATIF
from holdfast.formats.common.lines import LineFile

ReadProgress = Callable[[int, int], None]
"""Called with the number of bytes read, and the size of the file."""
SESSION_FILE_OF_FOLDER = "events.jsonl"
"""Name of the session in a folder of Copilot CLI, which keeps each session in a folder of its own."""
_SESSION_ID_BYTES = 8
"""Length of the digest that names a session without an id; it must be stable, so that importing again finds it."""


class RecordingSource(Struct, frozen=True):
    """A session that can be read: its name in messages, and the function that reads it."""

    name: str
    read: Callable[[], Recording]
    """Raises ``HoldfastError`` or ``OSError`` if it cannot be read."""


def iter_recordings(
    file: str,
    session: str = "",
    *,
    single: bool = False,
    progress: ReadProgress | None = None,
) -> Iterator[RecordingSource]:
    """Yield the sessions in ``file``: for a database all, or the one with an id that begins with ``session``.

    Read each before asking for the next. With ``single``, several sessions are an error. With ``progress``, message
    texts stay in the file until they are used, if the format allows; they too must be used before the next session.
    """
    from holdfast.store.foreign.open_database import open_foreign_database
    from holdfast.store.foreign.sqlite_files import is_sqlite_file

    path = Path(file)
    if file and (path / SESSION_FILE_OF_FOLDER).is_file():
        path = path / SESSION_FILE_OF_FOLDER
        file = str(path)
    if not file or not is_sqlite_file(path):
        if session:
            raise CommandError(f"--session names a session of a database, but {file} is not a database")
        if file in ("", STDIN) or not path.is_file():
            yield RecordingSource(file, partial(_read_recording_file, file))
            return
        # The file stays open until the next session is asked for, so that lazy texts can still be read.
        with path.open("rb") as stream, JoinedRollouts(path, stream) as rollouts:
            yield RecordingSource(file, _choose_reader(file, stream, rollouts, progress))
        return
    with open_foreign_database(path) as there:
        roots = there.list_root_sessions(session)
        if not roots:
            raise FormatError(f"{file} has no sessions; give a database that its tool has used")
        if single and len(roots) > 1:
            raise CommandError(f"one session is needed, but {file} has {len(roots)}; choose one with --session")
        for root in roots:
            yield RecordingSource(f"{file}#{root.id}", partial(there.read_recording, root.id))


def _choose_reader(
    file: str, stream: BinaryIO, rollouts: JoinedRollouts, progress: ReadProgress | None
) -> Callable[[], Recording]:
    """Return the function that reads an open file: alone or with what it goes on from, completely or on demand."""
    if rollouts.is_joined and progress is None:
        return lambda: read_recording(b"".join(rollouts.iter_lines()))
    if rollouts.is_joined and progress is not None:
        return partial(_read_joined_rollouts, rollouts, progress)
    if progress is None:
        return partial(_read_recording_file, file)
    return partial(_read_recording_file_lazily, file, stream, progress)


def _read_joined_rollouts(rollouts: JoinedRollouts, progress: ReadProgress) -> Recording:
    """Read a fork of Codex with the rollouts that it goes on from, and leave its texts there."""
    size = rollouts.size
    recording = read_recording_lazily(LineFile(rollouts.iter_lines, rollouts.read_at))
    progress(size, size)
    return recording or read_recording(b"".join(rollouts.iter_lines()))


def _read_recording_file(file: str) -> Recording:
    """Read the recording in a file; one without an id gets a stable one from the file's digest."""
    data = read_input_file(file)
    recording = read_recording(data)
    if recording.format == ATIF:
        recording = read_following_files(file, data, recording)
    if recording.session:
        return recording
    return replace(recording, session=f"{recording.format}-{_digest_bytes(data)}")


def _read_recording_file_lazily(name: str, file: BinaryIO, progress: ReadProgress) -> Recording:
    """Read the recording in an open file and leave its texts there; formats that do not allow it are read completely.

    The size is taken first: a tool may be appending, and later lines are left for the next import.
    """
    size = os.fstat(file.fileno()).st_size
    lines = LineFile(partial(_iterate_file_lines, file, size, progress), partial(_read_file_range, file))
    recording = read_recording_lazily(lines)
    if recording is None:
        return _read_recording_file(name)
    progress(size, size)
    if recording.session:
        return recording
    return replace(recording, session=f"{recording.format}-{_digest_file(file, size)}")


def _iterate_file_lines(file: BinaryIO, size: int, progress: ReadProgress) -> Iterator[bytes]:
    """Yield the lines in the first ``size`` bytes of a file, and report progress at every hundredth."""
    step = max(1, size // 100)
    position = 0
    reported_position = 0
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
