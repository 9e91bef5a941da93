"""A session file put right on the disk: looked through, written anew beside it, and only then put in its place."""

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

from holdfast.cli.files import PRIVATE_FILE
from holdfast.errors import FormatError
from holdfast.formats.repair import TOOLS, Dropped, Finding, Survey, mended, survey, tool_of, whole
from holdfast.formats.repair.tools import Tool
from holdfast.store.files import is_there

MISSING = "there is no such file; check the path"
Read = Callable[[int], None]
"""Is told, after each line, how many bytes it has."""


class FileRepaired(Struct, frozen=True):
    """What was found in a session file, and what became of it."""

    file: str
    format: str = ""
    findings: tuple[Finding, ...] = ()
    reason: str = ""
    """Why nothing was rewritten, where something kept it from being repaired."""
    backup: str = ""
    """The file as it was, where it was replaced."""
    left_out: str = ""
    """The file that holds what is not in the repaired one, a JSON object for each piece."""


class _Passing:
    """The lines of a file, which are counted and summed up as they pass."""

    def __init__(self, file: BinaryIO, read: Read) -> None:
        file.seek(0)
        self._file, self._read, self._sum = file, read, blake2b()

    def __iter__(self) -> Iterator[bytes]:
        for line in self._file:
            self._sum.update(line)
            self._read(len(line))
            yield line

    @property
    def sum(self) -> bytes:
        """The digest of all that passed."""
        return self._sum.digest()


def repair_file(path: Path, *, format_: str = "", dry_run: bool = False, read: Read = lambda _: None) -> FileRepaired:
    """Repair the session file at ``path`` and return what was found; nothing found: it is not touched.

    ``format_`` is its tool, where its content may not tell. Where a link stands the file it leads to is repaired.
    Memory is bounded by the longest line and a few words of each. Raises ``FormatError`` for what is no session file,
    and where the file changed in the meantime.
    """
    if not is_there(path):
        return FileRepaired(str(path), reason=MISSING)
    if not path.is_file():
        raise FormatError("a folder or a device is no session file; give the files in it")
    real = path.resolve()
    with real.open("rb") as file:
        held = os.fstat(file.fileno())
        tool = TOOLS[format_] if format_ else tool_of(file)
        if tool is None:
            file.seek(0)
            return FileRepaired(str(path), whole(file.read()).format)
        lines = _Passing(file, read)
        found = survey(lines, tool)
        if found.is_fine or found.reason or dry_run:
            return FileRepaired(str(path), found.format, found.findings, found.reason)
        backup, left = _replaced(real, file, (tool, found), held, lines.sum)
    return FileRepaired(str(path), found.format, found.findings, "", backup, left)


def _replaced(
    path: Path, file: BinaryIO, what: tuple[Tool, Survey], held: os.stat_result, read: bytes
) -> tuple[str, str]:
    """Write the file as it should be and put it in the place of ``path``; return the old one, and what is left out."""
    stamp = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{os.getpid()}"
    part, left = _beside(path, f".{secrets.token_hex(4)}.part"), _beside(path, f".left-out-{stamp}")
    try:
        lines = _Passing(file, lambda _: None)
        dropped = _written(part, left, mended(lines, *what), held)
        _check_same(path, held, same=lines.sum == read)
        backup = _kept(path, f".bak-{stamp}")
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        left.unlink(missing_ok=True)
        raise
    if not dropped:
        left.unlink()
    _synced(path.parent)
    return str(backup), str(left) if dropped else ""


def _written(part: Path, left: Path, pieces: Iterator[bytes | Dropped], held: os.stat_result) -> int:
    """Write a file and what is left out of it; both are on the disk at the end. Return how much is left out."""
    dropped = 0
    with _new(part) as new, _new(left) as other:
        os.fchmod(new.fileno(), stat.S_IMODE(held.st_mode))
        with suppress(PermissionError):
            os.fchown(new.fileno(), held.st_uid, held.st_gid)
        for piece in pieces:
            if isinstance(piece, bytes):
                new.write(piece)
            else:
                dropped += 1
                other.write(_told(piece))
        for one in (new, other):
            one.flush()
            os.fsync(one.fileno())
    return dropped


def _told(piece: Dropped) -> bytes:
    """Return a piece that is left out as a line of JSON."""
    told: dict[str, object] = {"line": piece.line, "why": piece.why}
    try:
        told["text"] = piece.raw.decode()
    except UnicodeDecodeError:
        told["base64"] = base64.b64encode(piece.raw).decode()
    return json.dumps(told, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"


def _check_same(path: Path, held: os.stat_result, *, same: bool) -> None:
    """Raise ``FormatError`` if ``path`` is another file than it was, or has other content."""
    now = path.stat()
    if same and _told_apart(now) == _told_apart(held):
        return
    raise FormatError(f"{path} changed while it was read; close the tool that writes it, and try again")


def _told_apart(held: os.stat_result) -> tuple[int, int, int, int]:
    return held.st_dev, held.st_ino, held.st_size, held.st_mtime_ns


def _kept(path: Path, ending: str) -> Path:
    """Give the file a second name, under which it stays as it is; what a tool still writes into it goes there too."""
    backup = _beside(path, ending)
    try:
        backup.hardlink_to(path)
    except OSError:  # a file system without links: a copy
        with path.open("rb") as old, _new(backup) as new:
            os.fchmod(new.fileno(), stat.S_IMODE(os.fstat(old.fileno()).st_mode))
            while piece := old.read(1 << 20):
                new.write(piece)
            new.flush()
            os.fsync(new.fileno())
    return backup


def _beside(path: Path, ending: str) -> Path:
    """Return a free name beside ``path``."""
    names = (f"{path.name}{f'-{number}' if number else ''}{ending}" for number in range(1_000))
    return next(one for one in map(path.with_name, names) if not os.path.lexists(one))


def _new(path: Path) -> BinaryIO:
    return os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, PRIVATE_FILE), "wb")


def _synced(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
