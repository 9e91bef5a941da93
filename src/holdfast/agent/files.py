"""Tools for files: ``read_file``, ``write_file``, ``edit_file`` and ``list_folder``.

Each changes one file as a whole or not at all. The docstrings and descriptions of the argument structs are sent to the
model, so their wording is part of every request.
"""

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

from holdfast.agent.workspace import Workspace
from holdfast.engine.environment.folder import decode_utf8, open_regular_file
from holdfast.errors import FormatError
from holdfast.messages.text.text_cuts import flatten_to_line

MAX_READ_BYTES = 4_000_000
"""Bytes of a file that one call reads. It bounds the memory; long results are spilled anyway. Chosen by judgement."""
MAX_LISTED_NAMES = 2_000
"""Names of a folder that are listed; more would only fill the window. Chosen by judgement."""
_LINE_RANGE_PATTERN = re.compile(r"\s*(\d{1,12})\s*(?:(?:-|–|:|,|\.\.)\s*(\d{0,12})\s*)?\Z")
_NO_LAST_LINE = 10**12
"""Last line of a range without an end; no file has so many."""
_MAX_SIMILAR_CHARS = 120
"""Characters that an error shows of a line similar to the one that was not found."""

PathName = Annotated[str, Meta(description="A file below the working folder.")]


class ReadArguments(Struct, frozen=True, forbid_unknown_fields=True):
    """Reads a text file, whole or in part. A skill is read as skill:NAME, a file beside it as skill:NAME/FILE."""

    path: Annotated[str, Meta(description="A file below the working folder, or skill:NAME.")]
    lines: Annotated[str, Meta(description='Only these lines, counted from 1, the last included: "12-480".')] = ""


class WriteArguments(Struct, frozen=True, forbid_unknown_fields=True):
    """Writes a file, with the folders it needs. What was in it before is replaced."""

    path: PathName
    text: Annotated[str, Meta(description="All that the file is to hold.")]


class EditArguments(Struct, frozen=True, forbid_unknown_fields=True):
    """Replaces a piece of a file. The old text must stand there exactly once, letter by letter, blanks too."""

    path: PathName
    old: Annotated[str, Meta(description="The text that goes, with enough around it to be found once.")]
    new: Annotated[str, Meta(description="The text that comes in its place.")]


class ListArguments(Struct, frozen=True, forbid_unknown_fields=True):
    """Lists a folder: names, a slash behind folders, sizes of files in bytes."""

    folder: Annotated[str, Meta(description="A folder below the working folder; . is that itself.")] = "."


# -- reading -----------------------------------------------------------------------------------------------------------


def read_file(workspace: Workspace, arguments: ReadArguments) -> str:
    """Return the text of a file or of a range of its lines. Raises ``FormatError`` and ``OSError``."""
    path = workspace.resolve_readable(arguments.path)
    with open_regular_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        # A range is read line by line, so that a part of a huge file can be read too.
        if arguments.lines:
            return _read_line_range(file, arguments, *_parse_line_range(arguments.lines), size)
        if size > MAX_READ_BYTES:
            raise FormatError(f'{arguments.path} has {size:,} bytes; give lines, for example "1-2000", or search it')
        text = decode_utf8(file.read(MAX_READ_BYTES), arguments.path)
    return text or f"[{arguments.path} is empty]"


def _parse_line_range(lines: str) -> tuple[int, int]:
    match = _LINE_RANGE_PATTERN.match(lines)
    first = last = 0
    if match:
        first = int(match[1])
        # A single number is one line; a range without an end goes on to the last line.
        if match[2] is None:
            last = first
        else:
            last = int(match[2] or _NO_LAST_LINE)
    if not first or last < first:
        raise FormatError(f'{lines!r} is not a range of lines; give two numbers from 1 on, for example "12-480"')
    return first, last


def _read_line_range(file: BinaryIO, arguments: ReadArguments, first: int, last: int, size: int) -> str:
    """Return a range of lines, after a line that names it and says how to read on."""
    file_lines: list[bytes] = []
    length = 0
    last_read = first - 1
    hint = ""
    for number, line in enumerate(islice(_iter_lines(file), first - 1, last), first):
        length += len(line)
        if length > MAX_READ_BYTES:
            hint = f'; go on with lines="{number}-"'
            break
        file_lines.append(line)
        last_read = number
    # The file ends before the range begins.
    if not file_lines:
        raise FormatError(f"{arguments.path} has no line {first}; it has {size:,} bytes: give a range within it")
    text = decode_utf8(b"".join(file_lines), arguments.path)
    return f"[{arguments.path}: lines {first}-{last_read}{hint}]\n{text}"


def _iter_lines(file: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of a file; one longer than ``MAX_READ_BYTES`` in pieces that end between characters."""
    while line := file.readline(MAX_READ_BYTES):
        cut_bytes = 0
        if len(line) == MAX_READ_BYTES:
            whole_bytes = utf_8_decode(line, "replace", False)[1]  # noqa: FBT003
            cut_bytes = len(line) - whole_bytes
        file.seek(-cut_bytes, os.SEEK_CUR)
        yield line[: len(line) - cut_bytes]


# -- writing -----------------------------------------------------------------------------------------------------------


def write_file(workspace: Workspace, arguments: WriteArguments) -> str:
    """Write a file and return a report. If it raises ``FormatError`` or ``OSError``, nothing was written."""
    path = _resolve_writable(workspace, arguments.path)
    existed = path.exists()
    path.parent.mkdir(parents=True, exist_ok=True)
    data = arguments.text.encode("utf-8", "replace")
    _replace_file_content(path, data)
    done = "replaced" if existed else "wrote"
    size = f"{_format_number_of_lines(arguments.text)}, {_format_count(len(data), 'byte')}"
    return f"{done} {workspace.get_shown_path(path)}: {size}"


def edit_file(workspace: Workspace, arguments: EditArguments) -> str:
    """Replace a piece of a file and return where. If it raises ``FormatError`` or ``OSError``, nothing was changed."""
    path = _resolve_writable(workspace, arguments.path)
    with open_regular_file(path) as file:
        text = decode_utf8(file.read(), arguments.path)
    old = arguments.old
    new = arguments.new
    # The model sees Windows line ends as plain ones and copies them so; the file must keep its own.
    if old not in text and "\r\n" in text and "\r" not in old:
        old = old.replace("\n", "\r\n")
        new = new.replace("\n", "\r\n")
    start = _find_once(text, old, arguments.path)
    if old == new:
        raise FormatError("old and new are the same text, so nothing would change; give the text as it is to be")
    new_text = text[:start] + new + text[start + len(old) :]
    _replace_file_content(path, new_text.encode("utf-8", "replace"))
    line_number = _get_line_number(text, start)
    change = f"{_format_number_of_lines(old)} became {_format_number_of_lines(new)}"
    return f"changed {workspace.get_shown_path(path)} at line {line_number}: {change}"


def _get_line_number(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


def _format_number_of_lines(text: str) -> str:
    # A last line without a line end counts too.
    has_begun_line = bool(text) and not text.endswith("\n")
    return _format_count(text.count("\n") + has_begun_line, "line")


def _format_count(count: int, unit: str) -> str:
    if count == 1:
        return f"1 {unit}"
    return f"{count:,} {unit}s"


def _find_once(text: str, old: str, name: str) -> int:
    """Return the position of ``old`` in ``text``; raise ``FormatError`` unless it occurs exactly once."""
    if not old:
        raise FormatError("old is empty; give the text that is to be replaced, or write the whole file")
    # With a lookahead, so that overlapping occurrences count; 21 are enough to show 20.
    occurrences = re.finditer(f"(?={re.escape(old)})", text)
    positions = [match.start() for match in islice(occurrences, 21)]
    if len(positions) == 1:
        return positions[0]
    if positions:
        lines = ", ".join([str(_get_line_number(text, position)) for position in positions[:20]])
        raise FormatError(f"old occurs in {name} more than once, at lines {lines}; add more of the text around it")
    hint = _describe_similar_line(text, old)
    raise FormatError(f"old does not occur in {name} exactly like this{hint}; read the file and copy from it")


def _describe_similar_line(text: str, old: str) -> str:
    """Return a hint at the line that equals the first one of ``old`` except for white space, or ``""``."""
    first_words: list[str] = []
    for line in old.splitlines():
        if line.strip():
            first_words = line.split()
            break
    if not first_words:
        return ""
    for number, line in enumerate(text.splitlines(), 1):
        if line.split() == first_words:
            shown_line = flatten_to_line(repr(line), _MAX_SIMILAR_CHARS)
            return f" (line {number} has the same words as its first line: {shown_line})"
    return ""


def _resolve_writable(workspace: Workspace, file_name: str) -> Path:
    """Return the path of a file that may be written: a regular file, or nothing yet."""
    path = workspace.resolve_path(file_name)
    if path == workspace.root or (path.exists() and not path.is_file()):
        raise FormatError(f"{file_name} is not a file, so it cannot be written; give the path of a file")
    return path


def _replace_file_content(path: Path, data: bytes) -> None:
    """Replace the content of a file and keep its permissions; readers see all of the old content or all of the new."""
    # In the same folder, because a file can only be renamed at once within one file system.
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


def list_folder(workspace: Workspace, arguments: ListArguments) -> str:
    """Return the names in a folder. Raises ``FormatError`` and ``OSError``."""
    with os.scandir(workspace.resolve_path(arguments.folder)) as scan:
        entries = sorted(scan, key=lambda entry: entry.name)
    lines = [_format_dir_entry(entry) for entry in entries[:MAX_LISTED_NAMES]]
    hidden_count = len(entries) - len(lines)
    if hidden_count:
        lines.append(f"[and {hidden_count:,} more]")
    return "\n".join(lines) or f"[{arguments.folder} is empty]"


def _format_dir_entry(entry: os.DirEntry[str]) -> str:
    if entry.is_symlink():
        return f"{entry.name}@"
    if entry.is_dir():
        return f"{entry.name}/"
    try:
        return f"{entry.name}  {entry.stat().st_size:,}"
    except OSError:
        return entry.name
