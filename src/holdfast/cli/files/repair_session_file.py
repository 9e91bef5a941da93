"""Repair a session file on disk: read it, write a new one beside it, and only then replace it."""

from __future__ import annotations

import base64
import json
import os
import secrets
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO

from msgspec import Struct

from holdfast.cli.files.input_files import PRIVATE_FILE
from holdfast.errors import FormatError
from holdfast.formats.repair.findings import DroppedBytes, RepairFinding, RepairSurvey
from holdfast.formats.repair.repair_session import make_clean_survey, recognize_repair_tool
from holdfast.formats.repair.rewrite import rewrite_lines
from holdfast.formats.repair.survey import survey_session_file
from holdfast.formats.repair.tools import REPAIR_TOOLS, RepairTool
from holdfast.store.private_files import is_existing_path

FILE_MISSING = "there is no such file; check the path"
LineProgress = Callable[[int], None]
"""Called after each line with its length in bytes."""


class SessionFileRepair(Struct, frozen=True):
    """The findings in a session file, and the result of its repair."""

    file: str
    format: str = ""
    findings: tuple[RepairFinding, ...] = ()
    reason: str = ""
    """Why the file could not be repaired, or an empty string."""
    backup: str = ""
    """The original file, if it was replaced."""
    left_out: str = ""
    """The file with the parts missing from the repaired one, a JSON object for each."""


class _HashingLines:
    """The lines of a file, hashed as they pass."""

    def __init__(self, file: BinaryIO, on_line: LineProgress) -> None:
        file.seek(0)
        self._file = file
        self._read = on_line
        self._sum = blake2b()

    def __iter__(self) -> Iterator[bytes]:
        for line in self._file:
            self._sum.update(line)
            self._read(len(line))
            yield line

    @property
    def digest(self) -> bytes:
        """The digest of all lines so far."""
        return self._sum.digest()


def repair_file_on_disk(
    path: Path,
    *,
    format_: str = "",
    dry_run: bool = False,
    on_line: LineProgress = lambda _: None,
) -> SessionFileRepair:
    """Repair the session file at ``path`` and return the findings; an undamaged file is not touched.

    ``format_`` names its tool if the content may not show it. Links are followed. Memory is bounded by the longest line
    and a few words of each. Raises ``FormatError`` if it is not a session file, or if it changed during the repair.
    """
    if not is_existing_path(path):
        return SessionFileRepair(str(path), reason=FILE_MISSING)
    if not path.is_file():
        raise FormatError("this is a folder or a device; give the session files in it")
    real = path.resolve()
    with real.open("rb") as file:
        old_stat = os.fstat(file.fileno())
        tool = REPAIR_TOOLS[format_] if format_ else recognize_repair_tool(file)
        if tool is None:
            file.seek(0)
            return SessionFileRepair(str(path), make_clean_survey(file.read()).format)
        lines = _HashingLines(file, on_line)
        file_survey = survey_session_file(lines, tool)
        if file_survey.is_fine or file_survey.reason or dry_run:
            return SessionFileRepair(
                str(path),
                file_survey.format,
                file_survey.findings,
                file_survey.reason,
            )
        backup, leftovers = _replace_file(real, file, (tool, file_survey), old_stat, lines.digest)
    return SessionFileRepair(str(path), file_survey.format, file_survey.findings, "", backup, leftovers)


def _replace_file(
    path: Path,
    file: BinaryIO,
    tool_and_survey: tuple[RepairTool, RepairSurvey],
    old_stat: os.stat_result,
    read_digest: bytes,
) -> tuple[str, str]:
    """Write the repaired file and replace ``path``; return the names of the backup and the file of left-out parts."""
    stamp = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{os.getpid()}"
    part = _find_free_name(path, f".{secrets.token_hex(4)}.part")
    leftovers = _find_free_name(path, f".left-out-{stamp}")
    try:
        lines = _HashingLines(file, lambda _: None)
        dropped_count = _write_repaired(part, leftovers, rewrite_lines(lines, *tool_and_survey), old_stat)
        # The file was read twice; if its tool wrote in between, the repair would drop the new lines.
        _check_unchanged(path, old_stat, is_same=lines.digest == read_digest)
        backup = _make_backup(path, f".bak-{stamp}")
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        leftovers.unlink(missing_ok=True)
        raise
    if not dropped_count:
        leftovers.unlink()
    # Without this a crash of the system could undo the rename.
    _sync_folder(path.parent)
    return str(backup), str(leftovers) if dropped_count else ""


def _write_repaired(
    part: Path,
    leftovers: Path,
    pieces: Iterator[bytes | DroppedBytes],
    old_stat: os.stat_result,
) -> int:
    """Write the repaired file and the left-out parts, sync both to disk, and return the number of parts left out."""
    dropped_count = 0
    with _create_private(part) as new, _create_private(leftovers) as leftovers_file:
        os.fchmod(new.fileno(), stat.S_IMODE(old_stat.st_mode))
        with suppress(PermissionError):
            os.fchown(new.fileno(), old_stat.st_uid, old_stat.st_gid)
        for piece in pieces:
            if isinstance(piece, bytes):
                new.write(piece)
            else:
                dropped_count += 1
                leftovers_file.write(_encode_dropped(piece))
        for stream in (new, leftovers_file):
            stream.flush()
            os.fsync(stream.fileno())
    return dropped_count


def _encode_dropped(piece: DroppedBytes) -> bytes:
    """Encode a left-out part as a line of JSON."""
    record: dict[str, object] = {"line": piece.line, "why": piece.reason}
    try:
        record["text"] = piece.raw.decode()
    except UnicodeDecodeError:
        record["base64"] = base64.b64encode(piece.raw).decode()
    return json.dumps(record, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"


def _check_unchanged(path: Path, old_stat: os.stat_result, *, is_same: bool) -> None:
    """Raise ``FormatError`` if ``path`` was replaced or changed since it was opened."""
    now = path.stat()
    if is_same and _get_file_identity(now) == _get_file_identity(old_stat):
        return
    raise FormatError(f"{path} changed while it was read; close the tool that writes it, and try again")


def _get_file_identity(old_stat: os.stat_result) -> tuple[int, int, int, int]:
    return old_stat.st_dev, old_stat.st_ino, old_stat.st_size, old_stat.st_mtime_ns


def _make_backup(path: Path, ending: str) -> Path:
    """Give the file a second name, so that it survives the replacement; a tool that has it open writes there."""
    backup = _find_free_name(path, ending)
    try:
        backup.hardlink_to(path)
    except OSError:  # a file system without hard links needs a copy
        with path.open("rb") as old, _create_private(backup) as new:
            os.fchmod(new.fileno(), stat.S_IMODE(os.fstat(old.fileno()).st_mode))
            while piece := old.read(1 << 20):
                new.write(piece)
            new.flush()
            os.fsync(new.fileno())
    return backup


def _find_free_name(path: Path, ending: str) -> Path:
    """Return an unused name beside ``path``."""
    candidate = path.with_name(f"{path.name}{ending}")
    number = 0
    # ``lexists``, because a broken link also takes the name.
    while os.path.lexists(candidate):
        number += 1
        candidate = path.with_name(f"{path.name}-{number}{ending}")
    return candidate


def _create_private(path: Path) -> BinaryIO:
    return os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, PRIVATE_FILE), "wb")


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
