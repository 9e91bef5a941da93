"""Changes of files as values: what will be written, and how each is undone, also in a file that has changed since.

This module does no I/O. A file that is as it was written gets exactly its earlier bytes back. In any other, only what
is ours is taken out, and what cannot be told apart from the user's own stays, with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import unified_diff
from hashlib import sha256
from typing import TypeAlias

import msgspec
from msgspec import Struct

from holdfast.cli.always_on.json_members import (
    get_json_token,
    is_plain_empty_object,
    remove_json_member,
    replace_json_token,
    set_json_string,
)
from holdfast.errors import ConfigError


class MarkedBlock(Struct, frozen=True, tag="block"):
    """Lines of ours between a first and a last line that mark them."""

    text: bytes
    """The block with its marks, each line with its end."""
    has_added_newline: bool = False
    """Whether the file had no final line end, so that one was put before the block."""


class ReplacedText(Struct, frozen=True, tag="replacement"):
    """A text of the user's that another stands for."""

    old: bytes
    new: bytes


class JsonMember(Struct, frozen=True, tag="member"):
    """A member of a JSON object that holds our string."""

    names: tuple[str, ...]
    value: str
    old_token: bytes | None = None
    """The value that stood there before, as JSON, or None."""
    existing_depth: int = 0
    """How many of the objects around it were there before."""


class OwnFile(Struct, frozen=True, tag="file"):
    """The whole file is ours."""


_EMPTY_FILE = re.compile(rb"\s*(\{\s*\}\s*)?")
"""A file with nothing in it, or an empty JSON object."""
Mark: TypeAlias = MarkedBlock | ReplacedText | JsonMember | OwnFile


class FileChange(Struct, frozen=True):
    """A file to write: its bytes before (None: it does not exist) and after, and what in it is ours."""

    path: str
    before: bytes | None
    after: bytes
    marks: tuple[Mark, ...]


class AppliedChange(Struct, frozen=True):
    """What must be kept of a change to undo it. The user's file is kept only where it was changed."""

    path: str
    existed: bool
    before_digest: str
    after_digest: str
    offset: int
    """Where the file was changed."""
    old: bytes
    """The bytes that stood there."""
    new_length: int
    """How many bytes stand there now."""
    marks: tuple[Mark, ...]


class UndoneChange(Struct, frozen=True):
    """How a file is after the undo (None: gone), and what had to be left in it, with the reason."""

    path: str
    before: bytes | None
    after: bytes | None
    left: tuple[str, ...] = ()


def record_change(change: FileChange) -> AppliedChange:
    """Return what is needed to undo ``change``."""
    before = change.before or b""
    offset = _count_common_bytes(before, change.after)
    tail = _count_common_bytes(before[offset:][::-1], change.after[offset:][::-1])
    return AppliedChange(
        change.path,
        change.before is not None,
        _digest(before),
        _digest(change.after),
        offset,
        before[offset : len(before) - tail],
        len(change.after) - tail - offset,
        change.marks,
    )


def undo_change(applied: AppliedChange, current: bytes | None) -> UndoneChange:
    """Return how a file whose bytes are now ``current`` (None: it is gone) looks without our change."""
    path = applied.path
    # A file that somebody has removed stays removed.
    if current is None:
        return UndoneChange(path, None, None)
    if _digest(current) == applied.after_digest:
        if not applied.existed:
            return UndoneChange(path, current, None)
        end = applied.offset + applied.new_length
        return UndoneChange(path, current, current[: applied.offset] + applied.old + current[end:])
    if applied.existed and _digest(current) == applied.before_digest:
        return UndoneChange(path, current, current)
    return _undo_in_changed_file(applied, current)


def _undo_in_changed_file(applied: AppliedChange, current: bytes) -> UndoneChange:
    """Take out of a file that somebody has changed what is ours."""
    data = current
    left = []
    # The last first, because later marks may lie inside objects that earlier ones made.
    for mark in reversed(applied.marks):
        try:
            data = _remove_mark(mark, data)
        except ConfigError as error:
            left.append(str(error))
    if not applied.existed and data != current and _EMPTY_FILE.fullmatch(data):
        return UndoneChange(applied.path, current, None, tuple(left))
    return UndoneChange(applied.path, current, data, tuple(left))


def _remove_mark(mark: Mark, data: bytes) -> bytes:
    """Return ``data`` without ``mark``. Raises ``ConfigError`` with the reason if it must stay."""
    match mark:
        case MarkedBlock():
            return _remove_block(mark, data)
        case ReplacedText():
            if data.count(mark.new) != 1:
                raise ConfigError(f"{_show(mark.new)} is not there once, so nothing was put back in its place")
            return data.replace(mark.new, mark.old)
        case JsonMember():
            return _remove_member(mark, data)
        case OwnFile():
            raise ConfigError("this file was written by holdfast and changed since; remove it if you do not need it")


def _remove_block(mark: MarkedBlock, data: bytes) -> bytes:
    own_lines = [line.rstrip(b"\r\n") for line in mark.text.splitlines(keepends=True)]
    lines = data.splitlines(keepends=True)
    plain_lines = [line.rstrip(b"\r\n") for line in lines]
    try:
        first = plain_lines.index(own_lines[0])
        last = plain_lines.index(own_lines[-1], first)
    except ValueError as error:
        raise ConfigError(
            f"the lines between {_show(own_lines[0])} and {_show(own_lines[-1])} are not there"
        ) from error
    # Lines that somebody wrote between the marks are theirs.
    kept = [line for line in lines[first : last + 1] if line.rstrip(b"\r\n") not in own_lines]
    before, after = b"".join(lines[:first]), b"".join([*kept, *lines[last + 1 :]])
    if mark.has_added_newline and not after:
        before = before.removesuffix(b"\n").removesuffix(b"\r")
    return before + after


def _remove_member(mark: JsonMember, data: bytes) -> bytes:
    name = ".".join(mark.names)
    token = get_json_token(data, mark.names)
    if token is None:
        raise ConfigError(f"{name} is not there any more")
    if _decode_string(token) != mark.value:
        raise ConfigError(f"{name} has another value than the one written by holdfast, so it was left")
    if mark.old_token is not None:
        return replace_json_token(data, mark.names, mark.old_token)
    data = remove_json_member(data, mark.names)
    for depth in range(len(mark.names) - 1, mark.existing_depth, -1):
        if not is_plain_empty_object(data, mark.names[:depth]):
            break
        data = remove_json_member(data, mark.names[:depth])
    return data


def _decode_string(token: bytes) -> object:
    try:
        return msgspec.json.decode(token)
    except (msgspec.MsgspecError, UnicodeError):
        return None


def _show(data: bytes) -> str:
    return data.decode("utf-8", "replace").strip()


def _count_common_bytes(one: bytes, other: bytes) -> int:
    """Return the length of the longest common beginning."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[:middle] == other[:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _digest(data: bytes) -> str:
    return sha256(data).hexdigest()


# -- making changes ----------------------------------------------------------------------------------------------------


def append_block(
    path: str, before: bytes | None, name: str, lines: Sequence[str], *, at_top: bool = False
) -> FileChange:
    """Return the change that adds ``lines``, between marks that name the instance, at the end or the top of a file."""
    data = before or b""
    newline = b"\r\n" if b"\r\n" in data else b"\n"
    marked_lines = [f"# >>> holdfast {name} >>>", *lines, f"# <<< holdfast {name} <<<"]
    text = b"".join(line.encode() + newline for line in marked_lines)
    if at_top:
        mark_length = 3 if data.startswith(b"\xef\xbb\xbf") else 0
        return FileChange(path, before, data[:mark_length] + text + data[mark_length:], (MarkedBlock(text),))
    needs_newline = bool(data) and not data.endswith(b"\n")
    gap = newline if needs_newline else b""
    return FileChange(path, before, data + gap + text, (MarkedBlock(text, needs_newline),))


def set_json_members(path: str, before: bytes | None, values: Sequence[tuple[tuple[str, ...], str]]) -> FileChange:
    """Return the change that sets strings in a JSON file, each at its path of names. Raises ``ConfigError``."""
    data = before or b""
    marks = []
    for names, value in values:
        old_token = None
        existing_depth = 0
        try:
            if data.strip():
                old_token = get_json_token(data, names)
                while existing_depth < len(names) - 1:
                    if get_json_token(data, names[: existing_depth + 1]) is None:
                        break
                    existing_depth += 1
            data = set_json_string(data, names, value)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from error
        marks.append(JsonMember(names, value, old_token, existing_depth))
    return FileChange(path, before, data, tuple(marks))


def render_diff(path: str, before: bytes | None, after: bytes | None) -> list[str]:
    """Return the lines of a unified diff of a file; None stands for a file that does not exist."""
    old = (before or b"").decode("utf-8", "replace").splitlines()
    new = (after or b"").decode("utf-8", "replace").splitlines()
    from_name = path if before is not None else "/dev/null"
    to_name = path if after is not None else "/dev/null"
    return list(unified_diff(old, new, from_name, to_name, lineterm="", n=2))
