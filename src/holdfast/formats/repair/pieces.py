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

from holdfast.formats.common.lines import BOM, UNREADABLE, clean
from holdfast.formats.repair.values import What
from holdfast.providers.common.json.raw_json import write

Object = Mapping[str, Any]
Fits = Callable[[Object], bool]
"""Whether an object can be a line of the tool; asked where one is found in the midst of something broken."""

SEAMS = 10_000
"""[H] Places in one damaged line where a whole object is looked for: a line of 10 MB has about a hundred."""
_SEAM = re.compile(r'\{\s*"')
_BLANK = re.compile(r"[\s\x00\ufeff,]*")
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_DECODE = json.JSONDecoder(strict=False).raw_decode
_NONE = (ValueError, RecursionError)


class Piece(Struct, frozen=True):
    """An object that is a line, or is to be one; ``said`` is nothing where it is nested too deeply to be looked at."""

    raw: bytes
    said: Object | None


class Line(Struct, frozen=True):
    """One line of the file: the objects on it, and what is wrong with it (nothing: it stays)."""

    number: int
    raw: bytes
    """With its end, as it stands in the file."""
    pieces: tuple[Piece, ...] = ()
    kind: What | None = None
    what: str = ""
    loses: bool = False
    """Whether some of its bytes are in none of its objects."""


def lines_of(raws: Iterable[bytes], fits: Fits) -> Iterator[Line]:
    r"""Yield the lines of a file, given with their ends; only ``\n`` ends one."""
    for number, raw in enumerate(raws, 1):
        yield line_of(number, raw, fits)


def line_of(number: int, raw: bytes, fits: Fits) -> Line:
    """Return one line; a blank one has no pieces and nothing wrong."""
    if not raw.strip():
        return Line(number, raw)
    try:
        said = msgspec.json.decode(raw)
    except RecursionError:
        return _deep(number, raw)
    except UNREADABLE:
        return _mended(number, raw, fits)
    if isinstance(said, dict):
        return Line(number, raw, (Piece(raw.strip(), said),))
    return Line(number, raw, kind="no object", what="the line is no JSON object", loses=True)


def _deep(number: int, raw: bytes) -> Line:
    """Return a line that is nested too deeply to be read: an object if its brackets close."""
    bare = raw.strip()
    outside = _STRING.sub(b"", bare)
    opened, closed = (sum(outside.count(one) for one in pair) for pair in ((b"{", b"["), (b"}", b"]")))
    if bare.startswith(b"{") and opened == closed and b'"' not in outside:
        return Line(number, raw, (Piece(bare, None),))
    return Line(number, raw, (), *_fault(bare, (), len(bare), None), loses=True)


def _mended(number: int, raw: bytes, fits: Fits) -> Line:
    """Return a line that does not decode, with the objects that are whole on it."""
    bare = raw.strip()
    text, strange = _text(bare)
    found, left = _objects(text, fits)
    if strange is not None:
        left += [one for one in found if not _says_what_it_is(one)]
        found = [one for one in found if _says_what_it_is(one)]
    pieces = tuple([Piece(one, _said(one)) for one in map(_sound, found)])
    kind, what = _fault(bare, pieces, sum(map(len, left)), strange)
    whole = kind == "welded" and not left and strange is None
    return Line(number, raw, pieces, kind, what, loses=not whole)


def _text(raw: bytes) -> tuple[str, int | None]:
    """Return ``raw`` as text, and where it first is no UTF-8 (that becomes U+FFFD)."""
    try:
        return raw.decode(), None
    except UnicodeDecodeError as error:
        return raw.decode("utf-8", "replace"), error.start


def _objects(text: str, fits: Fits) -> tuple[list[str], list[str]]:
    """Return the objects that are whole in ``text``, and what lies between them."""
    found: list[str] = []
    left: list[str] = []
    at, seams = 0, SEAMS
    while (at := _after_blanks(text, at)) < len(text):
        end = _end(text, at, None)
        if end is None:
            start, seams = _next(text, at + 1, fits, seams)
            left.append(text[at:start])
            at = start
        else:
            found.append(text[at:end])
            at = end
    return found, left


def _next(text: str, at: int, fits: Fits, seams: int) -> tuple[int, int]:
    """Return where the next object begins that is whole and fits, or the end; and how many places may yet be tried."""
    for seam in _SEAM.finditer(text, at):
        if not seams:
            break
        seams -= 1
        if _end(text, seam.start(), fits) is not None:
            return seam.start(), seams
    return len(text), seams


def _end(text: str, at: int, fits: Fits | None) -> int | None:
    """Return where the object ends that begins at ``at``; nothing if there is none, or it does not fit."""
    try:
        said, end = _DECODE(text, at)
    except _NONE:
        return None
    return end if isinstance(said, dict) and (fits is None or fits(said)) else None


def _after_blanks(text: str, at: int) -> int:
    blank = _BLANK.match(text, at)
    return blank.end() if blank is not None else at


def _says_what_it_is(text: str) -> bool:
    """Return whether an object still has the names of its fields, its kinds and roles, without U+FFFD in them."""
    try:
        return _is_named(_DECODE(text)[0])
    except RecursionError:
        return False


def _is_named(said: Any) -> bool:
    if isinstance(said, list):
        return all(map(_is_named, said))
    if not isinstance(said, dict):
        return True
    told = (*said, *(str(said.get(name)) for name in ("type", "role")))
    return not any("\ufffd" in one for one in told) and all(map(_is_named, said.values()))


def _sound(text: str) -> bytes:
    """Return an object as JSON that every reader takes: its own bytes, or without what is no character in them."""
    raw = text.encode()
    try:
        msgspec.json.decode(raw)
    except RecursionError:
        return raw
    except UNREADABLE:
        return clean(write(_DECODE(text)[0]))
    return raw


def _said(raw: bytes) -> Object | None:
    try:
        said: Object = msgspec.json.decode(raw)
    except RecursionError:
        return None
    return said


def _fault(bare: bytes, pieces: tuple[Piece, ...], left: int, strange: int | None) -> tuple[What, str]:
    """Return what is wrong with a line."""
    if not pieces:
        return ("torn", f"the line is cut off after {len(bare):,} bytes" if left else "the line holds NUL bytes alone")
    if left:
        return "welded", f"half a line of {left:,} characters is welded to {_count(len(pieces))}"
    if len(pieces) > 1:
        return "welded", f"{_count(len(pieces))} are welded into one"
    if strange is not None:
        return "encoding", f"the line is not UTF-8 (byte {strange})"
    if bare.startswith(BOM):
        return "encoding", "the line begins with a byte order mark"
    return "characters", "the line holds what is no character or number in JSON (NUL, half a surrogate pair, NaN)"


def _count(count: int) -> str:
    return "a whole line" if count == 1 else f"{count:,} lines"
