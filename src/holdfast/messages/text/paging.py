"""Pages of a long text: a range of characters or lines, or the matches of a search, and how to go on.

Every range becomes one of characters, so that a text of few very long lines is read like any other. A page is full or
the last one: n bytes take at most ⌈n / ``PAGE``⌉ calls, and following ``next`` gives every character once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from msgspec import Struct

from holdfast.errors import FormatError
from holdfast.messages.text.scan import Extent, Read, extent, line_at, line_start
from holdfast.messages.text.search import Query, finds, query

PAGE = 48_000
"""[H] Characters, and so bytes, that every page but the last has at least."""
MOST_CHARS = 49_500
"""[H] Characters of a page at most: with its heading it stays under the 50,000 from which results are spilled [K]."""
MOST_BYTES = 64_500
"""[H] And bytes of UTF-8: with its heading under 64 KiB."""
LEAST_CHARS = 2_000
"""[H] Characters that a page may be limited to at least."""
SLACK = MOST_CHARS - PAGE
"""Characters that a page may give up to end with a line; a tenth of it if it is small."""
MATCHES = 200
"""[H] Lines with a match on one page."""
_RANGE = re.compile(r"\s*([0-9]+)\s*(?:(?:-|–|:|\.\.)\s*([0-9]*)\s*)?\Z")
_ENDLESS = 10**15
"""A number that is beyond the end of every text; longer ones are not made into numbers."""


class Span(NamedTuple):
    """A range of characters, the last excluded."""

    start: int
    stop: int


class Page(Struct, frozen=True, omit_defaults=True):
    """A part of a text. Lines count from 1, the last included; characters from 0, the last excluded."""

    text: str
    first: int
    last: int
    """The lines that it shows or, for a search, looked at."""
    start: int
    stop: int
    """The same in characters."""
    lines: int
    chars: int
    """Of the whole text."""
    matches: int | None = None
    """Lines on this page that match, where something was searched for."""
    next: dict[str, str] | None = None
    """The arguments of the call that goes on from here; nothing at the end."""


def page(
    read: Read,
    *,
    lines: str = "",
    chars: str = "",
    search: str = "",
    number: int = 1,
    held: Extent | None = None,
    most: int = MOST_CHARS,
) -> Page:
    """Return page ``number`` of what is asked for of a text; raises ``FormatError`` where there is no such thing.

    ``lines`` is ``a-b``, ``a`` or ``a-``, counted from 1; ``chars`` is ``a-b`` or ``a-``, counted from 0, without b.
    ``search`` shows the lines that match, of the range or of everything. ``held`` is the text's extent if it is known;
    ``most`` are the characters that a page may have, where that is less than usual.
    """
    held = extent(read) if held is None else held
    if number < 1:
        raise FormatError(f"there is no page {number}: pages count from 1; {_whole(held)}")
    at = 0
    for at, found in enumerate(following(read, lines=lines, chars=chars, search=search, held=held, most=most), 1):
        if at == number:
            return found
    raise FormatError(f"there is no page {number}: what was asked for ends on page {at}; {_whole(held)}")


def following(
    read: Read,
    *,
    lines: str = "",
    chars: str = "",
    search: str = "",
    held: Extent | None = None,
    most: int = MOST_CHARS,
) -> Iterator[Page]:
    """Yield what is asked for page after page, to its end."""
    held = extent(read) if held is None else held
    span = _span(read, held, lines, chars)
    wanted = query(search) if search else None
    most = max(LEAST_CHARS, min(most, MOST_CHARS))
    start = span.start
    while True:
        rest = Span(start, span.stop)
        found = _shown(read, held, rest, most) if wanted is None else _matching(read, held, rest, wanted, search, most)
        yield found
        if found.next is None:
            return
        start = found.stop


def cut(text: str, most: int = MOST_CHARS) -> int:
    """Return how many characters of ``text`` make a page: as many as it takes, less a begun line if that is short."""
    slack = min(SLACK, most // 10)
    most = min(len(text), most)
    held = text[:most].encode("utf-8", "surrogatepass")
    if len(held) > MOST_BYTES:
        edge = MOST_BYTES
        while held[edge] & 0xC0 == 0x80:
            edge -= 1
        most = len(held[:edge].decode("utf-8", "surrogatepass"))
    if most == len(text):
        return most
    line = text.rfind("\n", most - slack, most)
    return most if line < 0 else line + 1


def _shown(read: Read, held: Extent, span: Span, most: int) -> Page:
    """Return the first page of a range."""
    text = read(span.start, min(span.stop, span.start + most + 1))
    text = text[: cut(text, most)]
    return _page(read, held, text, span, span.start + len(text))


def _matching(read: Read, held: Extent, span: Span, wanted: Query, search: str, most: int) -> Page:
    """Return the first page of the lines in a range that match."""
    blocks: list[str] = []
    room, room_bytes = most, MOST_BYTES
    stop, matches = span.stop, 0
    for found in finds(read, held, span.start, span.stop, wanted):
        room -= len(found.text) + 1
        room_bytes -= len(found.text.encode("utf-8", "surrogatepass")) + 1
        if min(room, room_bytes) < 0 or matches == MATCHES:
            stop = found.start
            break
        blocks.append(found.text)
        matches += 1
    return _page(read, held, "\n".join(blocks), span, stop, search, matches)


def _page(
    read: Read, held: Extent, text: str, span: Span, stop: int, search: str = "", matches: int | None = None
) -> Page:
    """Return the page that shows ``text`` for the characters up to ``stop`` of a range."""
    more = {"search": search} if search else {}
    end = "" if span.stop == held.chars else str(span.stop)
    return Page(
        text,
        line_at(read, held, span.start),
        line_at(read, held, max(span.start, stop - 1)),
        span.start,
        stop,
        held.lines,
        held.chars,
        matches,
        more | {"chars": f"{stop}-{end}"} if stop < span.stop else None,
    )


# -- ranges ------------------------------------------------------------------------------------------------------------


def _span(read: Read, held: Extent, lines: str, chars: str) -> Span:
    """Return the characters that are asked for."""
    if lines and chars:
        raise FormatError(f"lines={lines[:40]!r} and chars={chars[:40]!r} are two ranges; give one of them")
    if lines:
        first, last = _range("lines", lines, held, alone=True)
        if first == 0 or first > held.lines:
            raise _beyond("lines", lines, held, f"lines count from 1 to {held.lines}")
        return Span(line_start(read, held, first), line_start(read, held, min(last, held.lines) + 1))
    if chars:
        start, stop = _range("chars", chars, held, alone=False)
        if start > held.chars or (start == held.chars and held.chars):
            raise _beyond("chars", chars, held, f"characters count from 0 to {held.chars}")
        return Span(start, min(stop, held.chars))
    return Span(0, held.chars)


def _range(what: str, text: str, held: Extent, *, alone: bool) -> Span:
    """Return the two numbers of a range; one that is open has no end, and ``alone`` a number means itself."""
    found = _RANGE.match(text)
    example = 'lines="12-480"' if what == "lines" else 'chars="0-4000"'
    if found is None:
        raise FormatError(f"{what}={text[:40]!r} is no range; give two numbers, for example {example}; {_whole(held)}")
    start = _number(found[1])
    stop = _number(found[2]) if found[2] else start if found[2] is None and alone else _ENDLESS
    if stop < start or (stop == start and not alone):
        raise _beyond(what, text, held, "it ends before anything is in it")
    return Span(start, stop)


def _number(digits: str) -> int:
    return int(digits) if len(digits) < 16 else _ENDLESS


def _beyond(what: str, text: str, held: Extent, why: str) -> FormatError:
    return FormatError(f"{what}={text[:40]!r} is not there: {why}; {_whole(held)}")


def _whole(held: Extent) -> str:
    """Return how long the text is and what can be asked for, in words."""
    return f"the text has {held.lines:,} lines and {held.chars:,} characters: give a range within it, or none"
