"""Write the requests of a replay to files for inspection, one ``{file, policy, step, request}`` per line."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from msgspec import Raw, Struct

from holdfast.cli.files.input_files import make_private_folder, open_private_file
from holdfast.cli.output.errors import CommandError, describe_error

MAX_STEM_LENGTH = 100
"""Characters of a session file's name that are kept, so that the suffixes stay below the limit of file systems."""


class RequestDumpLine(Struct):
    """A request that would have been sent, its body byte for byte. Steps count from 0."""

    file: str
    policy: str
    step: int
    request: Raw


class RequestDumpFolder:
    """A folder with one file of requests for each session and policy.

    Raises ``CommandError`` if it cannot be written.
    """

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._taken: dict[str, int] = {}
        probe = self._folder / ".holdfast"
        if self._folder.exists() and not self._folder.is_dir():
            raise CommandError(f"{self._folder} is a file; give a folder with --dump")
        with _stop_on_disk_error(self._folder):
            make_private_folder(self._folder)
            with open_private_file(probe):
                pass
            probe.unlink()

    def open_session(self, file: str) -> SessionDump:
        """Return the dump for the requests of ``file``; a repeated name gets a number."""
        clean_name = re.sub(r"[^\w.-]", "_", Path(file).stem, flags=re.ASCII)
        stem = clean_name[:MAX_STEM_LENGTH] or "session"
        number = self._taken.get(stem, 0) + 1
        self._taken[stem] = number
        if number > 1:
            stem = f"{stem}-{number}"
        return SessionDump(self._folder, file, stem)


class SessionDump:
    """The requests of one session."""

    def __init__(self, folder: Path, file: str, stem: str) -> None:
        self._folder = folder
        self._file = file
        self._stem = stem

    @contextmanager
    def open_policy_file(self, policy: str) -> Iterator[Callable[[int, bytes], None]]:
        """Open one policy's file and yield a function that writes a step's body; the file appears once complete."""
        path = self._folder / f"{self._stem}.{policy}.jsonl"

        with _stop_on_disk_error(path), open_private_file(path) as out:

            def write(step: int, body: bytes) -> None:
                line = RequestDumpLine(self._file, policy, step, Raw(_compact_body(body)))
                with _stop_on_disk_error(path):
                    out.write(msgspec.json.encode(line) + b"\n")

            yield write


def _compact_body(body: bytes) -> bytes:
    """Return ``body`` unchanged, or compacted if it has line ends, which would break the line format."""
    return msgspec.json.format(body, indent=-1) if b"\n" in body else body


@contextmanager
def _stop_on_disk_error(path: Path) -> Iterator[None]:
    """End the command if the disk refuses a write: later files would fail as well."""
    try:
        yield
    except OSError as error:
        raise CommandError(f"requests cannot be written to {path}: {describe_error(error)}") from error
