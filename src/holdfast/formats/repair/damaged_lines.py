"""Lines as they stand in a damaged file, and the whole objects on them.

Tools write one object a line. A crash leaves half of one, the next write goes on behind it, a disk leaves NUL bytes:
whatever is whole on such a line is found again, and the rest is told.
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
"""Whether an object can be a line of the tool; asked where one is found in the midst of something broken."""

MAX_SEAMS = 10_000
"""[H] Places in one damaged line where a whole object is looked for: a line of 10 MB has about a hundred."""
_OBJECT_START = re.compile(r'\{\s*"')
_BLANK_RUN = re.compile(r"[\s\x00\ufeff,]*")
_JSON_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_scan_json = json.JSONDecoder(strict=False).raw_decode
_PARSE_ERRORS = (ValueError, RecursionError)


class ObjectPiece(Struct, frozen=True):
    """An object that is a line, or is to be one; ``value`` is nothing where it is nested too deeply to be looked at."""

    raw: bytes
    value: JsonObject | None


class LineInspection(Struct, frozen=True):
    """One line of the file: the objects on it, and what is wrong with it (nothing: it stays)."""

    number: int
    raw: bytes
    """With its end, as it stands in the file."""
    pieces: tuple[ObjectPiece, ...] = ()
    damage: DamageKind | None = None
    description: str = ""
    loses_bytes: bool = False
    """Whether some of its bytes are in none of its objects."""


def inspect_lines(raws: Iterable[bytes], fits: LineTest) -> Iterator[LineInspection]:
    r"""Yield the lines of a file, given with their ends; only ``\n`` ends one."""
    for number, raw in enumerate(raws, 1):
        yield inspect_line(number, raw, fits)


def inspect_line(number: int, raw: bytes, fits: LineTest) -> LineInspection:
    """Return one line; a blank one has no pieces and nothing wrong."""
    if not raw.strip():
        return LineInspection(number, raw)
    try:
        value = msgspec.json.decode(raw)
    except RecursionError:
        return _inspect_deep_line(number, raw)
    except DECODE_ERRORS:
        return _inspect_broken_line(number, raw, fits)
    if isinstance(value, dict):
        return LineInspection(number, raw, (ObjectPiece(raw.strip(), value),))
    return LineInspection(number, raw, damage="no object", description="the line is no JSON object", loses_bytes=True)


def _inspect_deep_line(number: int, raw: bytes) -> LineInspection:
    """Return a line that is nested too deeply to be read: an object if its brackets close."""
    bare = raw.strip()
    outside = _JSON_STRING.sub(b"", bare)
    open_count, close_count = (sum(outside.count(bracket) for bracket in pair) for pair in ((b"{", b"["), (b"}", b"]")))
    if bare.startswith(b"{") and open_count == close_count and b'"' not in outside:
        return LineInspection(number, raw, (ObjectPiece(bare, None),))
    return LineInspection(number, raw, (), *_describe_damage(bare, (), len(bare), None), loses_bytes=True)


def _inspect_broken_line(number: int, raw: bytes, fits: LineTest) -> LineInspection:
    """Return a line that does not decode, with the objects that are whole on it."""
    bare = raw.strip()
    text, strange = _decode_utf8_leniently(bare)
    objects, leftovers = _find_whole_objects(text, fits)
    if strange is not None:
        leftovers += [candidate for candidate in objects if not _has_intact_names(candidate)]
        objects = [candidate for candidate in objects if _has_intact_names(candidate)]
    pieces = tuple(
        [ObjectPiece(candidate, _decode_unless_deep(candidate)) for candidate in map(_encode_decodable, objects)]
    )
    kind, message = _describe_damage(bare, pieces, sum(map(len, leftovers)), strange)
    whole = kind == "welded" and not leftovers and strange is None
    return LineInspection(number, raw, pieces, kind, message, loses_bytes=not whole)


def _decode_utf8_leniently(raw: bytes) -> tuple[str, int | None]:
    """Return ``raw`` as text, and where it first is no UTF-8 (that becomes U+FFFD)."""
    try:
        return raw.decode(), None
    except UnicodeDecodeError as error:
        return raw.decode("utf-8", "replace"), error.start


def _find_whole_objects(text: str, fits: LineTest) -> tuple[list[str], list[str]]:
    """Return the objects that are whole in ``text``, and what lies between them."""
    objects: list[str] = []
    leftovers: list[str] = []
    at, seams = 0, MAX_SEAMS
    while (at := _skip_blanks(text, at)) < len(text):
        end = _find_object_end(text, at, None)
        if end is None:
            start, seams = _find_next_object(text, at + 1, fits, seams)
            leftovers.append(text[at:start])
            at = start
        else:
            objects.append(text[at:end])
            at = end
    return objects, leftovers


def _find_next_object(text: str, at: int, fits: LineTest, seams: int) -> tuple[int, int]:
    """Return where the next object begins that is whole and fits, or the end; and how many places may yet be tried."""
    for seam in _OBJECT_START.finditer(text, at):
        if not seams:
            break
        seams -= 1
        if _find_object_end(text, seam.start(), fits) is not None:
            return seam.start(), seams
    return len(text), seams


def _find_object_end(text: str, at: int, fits: LineTest | None) -> int | None:
    """Return where the object ends that begins at ``at``; nothing if there is none, or it does not fit."""
    try:
        value, end = _scan_json(text, at)
    except _PARSE_ERRORS:
        return None
    return end if isinstance(value, dict) and (fits is None or fits(value)) else None


def _skip_blanks(text: str, at: int) -> int:
    blank = _BLANK_RUN.match(text, at)
    return blank.end() if blank is not None else at


def _has_intact_names(text: str) -> bool:
    """Return whether an object still has the names of its fields, its kinds and roles, without U+FFFD in them."""
    try:
        return _has_clean_names(_scan_json(text)[0])
    except RecursionError:
        return False


def _has_clean_names(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(_has_clean_names, value))
    if not isinstance(value, dict):
        return True
    names = (*value, *(str(value.get(name)) for name in ("type", "role")))
    return not any("\ufffd" in name_text for name_text in names) and all(map(_has_clean_names, value.values()))


def _encode_decodable(text: str) -> bytes:
    """Return an object as JSON that every reader takes: its own bytes, or without what is no character in them."""
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
    bare: bytes, pieces: tuple[ObjectPiece, ...], leftover_characters: int, strange: int | None
) -> tuple[DamageKind, str]:
    """Return what is wrong with a line."""
    if not pieces:
        return (
            "torn",
            f"the line is cut off after {len(bare):,} bytes"
            if leftover_characters
            else "the line holds NUL bytes alone",
        )
    if leftover_characters:
        return (
            "welded",
            f"half a line of {leftover_characters:,} characters is welded to {_format_line_count(len(pieces))}",
        )
    if len(pieces) > 1:
        return "welded", f"{_format_line_count(len(pieces))} are welded into one"
    if strange is not None:
        return "encoding", f"the line is not UTF-8 (byte {strange})"
    if bare.startswith(BOM):
        return "encoding", "the line begins with a byte order mark"
    return "characters", "the line holds what is no character or number in JSON (NUL, half a surrogate pair, NaN)"


def _format_line_count(count: int) -> str:
    return "a whole line" if count == 1 else f"{count:,} lines"
