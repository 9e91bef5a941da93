"""Tools for files: ``read``, ``write``, ``edit`` and ``ls``. Each changes one file whole, or not at all."""

from __future__ import annotations

import os
import re
import uuid
from codecs import utf_8_decode
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated, BinaryIO

from msgspec import Meta, Struct

from holdfast.agent.workspace import Workplace
from holdfast.engine.environment.folder import opened, words
from holdfast.errors import FormatError
from holdfast.messages.text.cutting import one_line

READ_BYTES = 4_000_000
"""[H] Bytes of a file that one call reads; what is too long for a request is stored away and shown as a preview."""
LISTED = 2_000
"""[H] Names of a folder that are listed."""
_RANGE = re.compile(r"\s*(\d{1,12})\s*(?:(?:-|–|:|,|\.\.)\s*(\d{0,12})\s*)?\Z")
_NEAR = 120
"""Characters of a line that resembles what was looked for."""

PathName = Annotated[str, Meta(description="A file below the working folder.")]


class Read(Struct, frozen=True, forbid_unknown_fields=True):
    """Reads a text file, whole or in part. A skill is read as skill:NAME, a file beside it as skill:NAME/FILE."""

    path: Annotated[str, Meta(description="A file below the working folder, or skill:NAME.")]
    lines: Annotated[str, Meta(description='Only these lines, counted from 1, the last included: "12-480".')] = ""


class Write(Struct, frozen=True, forbid_unknown_fields=True):
    """Writes a file, with the folders it needs. What was in it before is replaced."""

    path: PathName
    text: Annotated[str, Meta(description="All that the file is to hold.")]


class Edit(Struct, frozen=True, forbid_unknown_fields=True):
    """Replaces a piece of a file. The old text must stand there exactly once, letter by letter, blanks too."""

    path: PathName
    old: Annotated[str, Meta(description="The text that goes, with enough around it to be found once.")]
    new: Annotated[str, Meta(description="The text that comes in its place.")]


class Ls(Struct, frozen=True, forbid_unknown_fields=True):
    """Lists a folder: names, a slash behind folders, sizes of files in bytes."""

    folder: Annotated[str, Meta(description="A folder below the working folder; . is that itself.")] = "."


# -- reading -----------------------------------------------------------------------------------------------------------


def read(place: Workplace, asked: Read) -> str:
    """Return what a file says. Raises ``FormatError`` and ``OSError``."""
    path = place.readable(asked.path)
    with opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        if asked.lines:
            return _part(file, asked, *_range(asked.lines), size)
        if size > READ_BYTES:
            raise FormatError(f'{asked.path} has {size:,} bytes; give lines, for example "1-2000", or search it')
        text = words(file.read(READ_BYTES), asked.path)
    return text or f"[{asked.path} is empty]"


def _range(lines: str) -> tuple[int, int]:
    found = _RANGE.match(lines)
    first = int(found[1]) if found else 0
    last = first if found and found[2] is None else int((found and found[2]) or 10**12)
    if not first or last < first:
        raise FormatError(f'{lines!r} is no range of lines; give two numbers from 1 on, for example "12-480"')
    return first, last


def _part(file: BinaryIO, asked: Read, first: int, last: int, size: int) -> str:
    """Return a range of lines under a line that says which."""
    kept: list[bytes] = []
    length, stop, rest = 0, first - 1, ""
    for number, line in enumerate(islice(_lines(file), first - 1, last), first):
        length += len(line)
        if length > READ_BYTES:
            rest = f'; go on with lines="{number}-"'
            break
        kept.append(line)
        stop = number
    if not kept:
        raise FormatError(f"{asked.path} has no line {first}; it has {size:,} bytes: give a range within it")
    return f"[{asked.path}: lines {first}-{stop}{rest}]\n{words(b''.join(kept), asked.path)}"


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of a file; one that is too long for a call in pieces, no letter of it in halves."""
    while line := file.readline(READ_BYTES):
        half = len(line) - utf_8_decode(line, "replace", False)[1] if len(line) == READ_BYTES else 0  # noqa: FBT003
        file.seek(-half, os.SEEK_CUR)
        yield line[: len(line) - half]


# -- writing -----------------------------------------------------------------------------------------------------------


def write(place: Workplace, asked: Write) -> str:
    """Return what was written. Raises ``FormatError`` and ``OSError``; nothing was written then."""
    path = _own(place, asked.path)
    was_there = path.exists()
    path.parent.mkdir(parents=True, exist_ok=True)
    data = asked.text.encode("utf-8", "replace")
    _replace(path, data)
    size = f"{_lines_of(asked.text)}, {len(data):,} byte{'' if len(data) == 1 else 's'}"
    return f"{'replaced' if was_there else 'wrote'} {place.name(path)}: {size}"


def edit(place: Workplace, asked: Edit) -> str:
    """Return where a piece was replaced. Raises ``FormatError`` and ``OSError``; nothing was changed then."""
    path = _own(place, asked.path)
    with opened(path) as file:
        text = words(file.read(), asked.path)
    old, new = asked.old, asked.new
    if old not in text and "\r\n" in text and "\r" not in old:
        old, new = old.replace("\n", "\r\n"), new.replace("\n", "\r\n")
    at = _once(text, old, asked.path)
    if old == new:
        raise FormatError("old and new are the same text, so nothing would change; give the text as it is to be")
    _replace(path, (text[:at] + new + text[at + len(old) :]).encode("utf-8", "replace"))
    return (
        f"changed {place.name(path)} at line {text.count(chr(10), 0, at) + 1}: {_lines_of(old)} became {_lines_of(new)}"
    )


def _lines_of(text: str) -> str:
    count = text.count("\n") + (not text.endswith("\n") and bool(text))
    return f"{count:,} line{'' if count == 1 else 's'}"


def _once(text: str, old: str, name: str) -> int:
    """Return where ``old`` stands; ``FormatError`` where it does not stand there exactly once."""
    if not old:
        raise FormatError("old is empty; give the text that is to be replaced, or write the whole file")
    places = list(islice((found.start() for found in re.finditer(f"(?={re.escape(old)})", text)), 21))
    if len(places) == 1:
        return places[0]
    if places:
        lines = ", ".join(str(text.count("\n", 0, at) + 1) for at in places[:20])
        raise FormatError(f"old stands in {name} more than once, at lines {lines}; give more of what is around it")
    raise FormatError(
        f"old does not stand in {name}, letter by letter{_near(text, old)}; read the file and copy from it"
    )


def _near(text: str, old: str) -> str:
    """Return where a line stands that is the first of ``old`` but for blanks, if one does."""
    first = next((line.split() for line in old.splitlines() if line.strip()), [])
    for number, line in enumerate(text.splitlines(), 1):
        if first and line.split() == first:
            return f" (line {number} is nearly its first one: {one_line(repr(line), _NEAR)})"
    return ""


def _own(place: Workplace, named: str) -> Path:
    """Return where a file is that may be written: nothing is there yet, or a file."""
    path = place.path(named)
    if path == place.root or (path.exists() and not path.is_file()):
        raise FormatError(f"{named} is no file, so it cannot be written; give the path of one")
    return path


def _replace(path: Path, data: bytes) -> None:
    """Put ``data`` in the place of a file, with the permissions it has; who reads it sees all of the old or the new."""
    new = path.parent / f".{uuid.uuid4().hex}.tmp"
    number = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
    try:
        with os.fdopen(number, "wb") as file:
            file.write(data)
        if path.exists():
            new.chmod(path.stat().st_mode & 0o7777)
        new.replace(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise


# -- folders -----------------------------------------------------------------------------------------------------------


def ls(place: Workplace, asked: Ls) -> str:
    """Return the names in a folder. Raises ``FormatError`` and ``OSError``."""
    with os.scandir(place.path(asked.folder)) as found:
        entries = sorted(found, key=lambda one: one.name)
    lines = [_listed(one) for one in entries[:LISTED]]
    more = len(entries) - len(lines)
    return "\n".join([*lines, *([f"[and {more:,} more]"] if more else [])]) or f"[{asked.folder} is empty]"


def _listed(one: os.DirEntry[str]) -> str:
    if one.is_symlink():
        return f"{one.name}@"
    if one.is_dir():
        return f"{one.name}/"
    try:
        return f"{one.name}  {one.stat().st_size:,}"
    except OSError:
        return one.name
