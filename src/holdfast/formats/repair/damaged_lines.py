"""The lines of a damaged file, and the whole JSON objects on them.

Tools write one object a line. A crash leaves half of one, the next write continues on the same line, a disk leaves
NUL bytes. Every object that is still whole on such a line is found again, and the rest is reported.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from holdfast.formats.common.lines import BOM, DECODE_ERRORS, replace_bad_escapes
from holdfast.formats.repair.findings import DamageKind
from holdfast.providers.common.json.raw_json import encode_json

JsonObject = Mapping[str, Any]
LineTest = Callable[[JsonObject], bool]
"""Returns whether an object can be a line of the tool. Inside a broken line there are objects that are parts of one."""

MAX_SEAMS = 10_000
"""Number of places in one damaged line at which a whole object is looked for. It bounds the time, as each costs up to
a scan of the line.

Chosen by judgement: a line of 10 MB has about a hundred such places, so only a hostile file reaches the limit.
"""
_OBJECT_START = re.compile(r'\{\s*"')
_BLANK_RUN = re.compile(r"[\s\x00\ufeff,]*")
_JSON_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
# Not strict: a damaged line may have NUL bytes and other control characters inside strings.
_scan_json = json.JSONDecoder(strict=False).raw_decode
_PARSE_ERRORS = (ValueError, RecursionError)


class ObjectPiece(Struct, frozen=True):
    """An object that is a line or becomes one; ``value`` is None if it is nested too deeply to be decoded."""

    raw: bytes
    value: JsonObject | None


class LineInspection(Struct, frozen=True):
    """One line of the file: the objects on it, and its damage, or None."""

    number: int
    raw: bytes
    """The line as it is in the file, with its line end."""
    pieces: tuple[ObjectPiece, ...] = ()
    damage: DamageKind | None = None
    description: str = ""
    loses_bytes: bool = False
    """Whether some bytes of the line belong to none of its objects."""


def inspect_lines(raws: Iterable[bytes], is_line: LineTest) -> Iterator[LineInspection]:
    r"""Yield the lines of a file, which are given with their line ends; only ``\n`` ends a line."""
    for number, raw in enumerate(raws, 1):
        yield inspect_line(number, raw, is_line)


def inspect_line(number: int, raw: bytes, is_line: LineTest) -> LineInspection:
    """Return one line with its damage; a blank line has no objects and no damage."""
    if not raw.strip():
        return LineInspection(number, raw)
    try:
        value = msgspec.json.decode(raw)
    except RecursionError:
        return _inspect_deep_line(number, raw)
    except DECODE_ERRORS:
        return _inspect_broken_line(number, raw, is_line)
    if isinstance(value, dict):
        return LineInspection(number, raw, (ObjectPiece(raw.strip(), value),))
    return LineInspection(
        number,
        raw,
        damage="no object",
        description="the line is no JSON object",
        loses_bytes=True,
    )


def _inspect_deep_line(number: int, raw: bytes) -> LineInspection:
    """Return a line that is nested too deeply to be decoded: an object if its brackets are balanced."""
    bare = raw.strip()
    outside_strings = _JSON_STRING.sub(b"", bare)
    open_count = outside_strings.count(b"{") + outside_strings.count(b"[")
    close_count = outside_strings.count(b"}") + outside_strings.count(b"]")
    has_open_string = b'"' in outside_strings
    if bare.startswith(b"{") and open_count == close_count and not has_open_string:
        return LineInspection(number, raw, (ObjectPiece(bare, None),))
    return LineInspection(number, raw, (), *_describe_damage(bare, (), len(bare), None), loses_bytes=True)


def _inspect_broken_line(number: int, raw: bytes, is_line: LineTest) -> LineInspection:
    """Return a line that cannot be decoded, with the objects that are whole on it."""
    bare = raw.strip()
    text, bad_byte = _decode_utf8_leniently(bare)
    candidates, leftovers = _find_whole_objects(text, is_line)
    objects = candidates
    if bad_byte is not None:
        # U+FFFD inside a text is bearable; in the name of a field or a role it makes another line of it.
        objects = [candidate for candidate in candidates if _has_intact_names(candidate)]
        leftovers += [candidate for candidate in candidates if not _has_intact_names(candidate)]
    pieces = []
    for object_text in objects:
        object_bytes = _encode_decodable(object_text)
        pieces.append(ObjectPiece(object_bytes, _decode_unless_deep(object_bytes)))
    leftover_characters = sum(len(leftover) for leftover in leftovers)
    damage, description = _describe_damage(bare, tuple(pieces), leftover_characters, bad_byte)
    keeps_all_bytes = damage == "welded" and not leftovers and bad_byte is None
    return LineInspection(number, raw, tuple(pieces), damage, description, loses_bytes=not keeps_all_bytes)


def _decode_utf8_leniently(raw: bytes) -> tuple[str, int | None]:
    """Return ``raw`` as text, and the offset of the first byte that is not UTF-8 (replaced by U+FFFD), or None."""
    try:
        return raw.decode(), None
    except UnicodeDecodeError as error:
        return raw.decode("utf-8", "replace"), error.start


# Two records on one line come from an append that was interrupted (qwen-code#3681), NUL bytes from a write that the
# disk never completed (ccrider#11).
def _find_whole_objects(text: str, is_line: LineTest) -> tuple[list[str], list[str]]:
    """Return the objects that are whole in ``text``, and the pieces between them."""
    objects: list[str] = []
    leftovers: list[str] = []
    seams_left = MAX_SEAMS
    start = _skip_blanks(text, 0)
    while start < len(text):
        end = _find_object_end(text, start, None)
        if end is not None:
            objects.append(text[start:end])
        else:
            end, seams_left = _find_next_object(text, start + 1, is_line, seams_left)
            leftovers.append(text[start:end])
        start = _skip_blanks(text, end)
    return objects, leftovers


def _find_next_object(text: str, start: int, is_line: LineTest, seams_left: int) -> tuple[int, int]:
    """Return where the next whole object that can be a line begins (or the end), and the number of tries left."""
    for seam in _OBJECT_START.finditer(text, start):
        if not seams_left:
            break
        seams_left -= 1
        if _find_object_end(text, seam.start(), is_line) is not None:
            return seam.start(), seams_left
    return len(text), seams_left


def _find_object_end(text: str, start: int, is_line: LineTest | None) -> int | None:
    """Return where the object that begins at ``start`` ends, or None if it is not whole or cannot be a line."""
    try:
        value, end = _scan_json(text, start)
    except _PARSE_ERRORS:
        return None
    if not isinstance(value, dict):
        return None
    return end if is_line is None or is_line(value) else None


def _skip_blanks(text: str, start: int) -> int:
    blank = _BLANK_RUN.match(text, start)
    return blank.end() if blank is not None else start


def _has_intact_names(text: str) -> bool:
    """Return whether an object has no U+FFFD in the names of its fields, nor in its types and roles."""
    try:
        return _has_clean_names(_scan_json(text)[0])
    except RecursionError:
        return False


def _has_clean_names(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(_has_clean_names, value))
    if not isinstance(value, dict):
        return True
    names = [*value, str(value.get("type")), str(value.get("role"))]
    if any("\ufffd" in name for name in names):
        return False
    return all(map(_has_clean_names, value.values()))


def _encode_decodable(text: str) -> bytes:
    """Return an object as JSON that every decoder accepts: its own bytes, or a copy with bad characters replaced."""
    raw = text.encode()
    try:
        msgspec.json.decode(raw)
    except RecursionError:
        return raw
    except DECODE_ERRORS:
        return replace_bad_escapes(encode_json(_scan_json(text)[0]))
    return raw


def _decode_unless_deep(raw: bytes) -> JsonObject | None:
    try:
        value: JsonObject = msgspec.json.decode(raw)
    except RecursionError:
        return None
    return value


def _describe_damage(
    bare: bytes,
    pieces: tuple[ObjectPiece, ...],
    leftover_characters: int,
    bad_byte: int | None,
) -> tuple[DamageKind, str]:
    """Return kind and description of a line's damage."""
    if not pieces and leftover_characters:
        return "torn", f"the line is cut off after {len(bare):,} bytes"
    if not pieces:
        return "torn", "the line holds NUL bytes alone"
    if leftover_characters:
        line_count = _format_line_count(len(pieces))
        return "welded", f"half a line of {leftover_characters:,} characters is welded to {line_count}"
    if len(pieces) > 1:
        return "welded", f"{_format_line_count(len(pieces))} are welded into one"
    if bad_byte is not None:
        return "encoding", f"the line is not UTF-8 (byte {bad_byte})"
    if bare.startswith(BOM):
        return "encoding", "the line begins with a byte order mark"
    return "characters", "the line holds what is no character or number in JSON (NUL, half a surrogate pair, NaN)"


def _format_line_count(count: int) -> str:
    return "a whole line" if count == 1 else f"{count:,} lines"
