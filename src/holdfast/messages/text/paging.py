"""Pages of a long text: a range of characters or lines, or the matches of a search, and how to go on.

Every range becomes one of characters, so that a text of few very long lines is read like any other. A page is full or
the last one: n bytes take at most ⌈n / ``MIN_PAGE_CHARS``⌉ calls, and following ``next`` gives every character once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from msgspec import Struct

from holdfast.errors import FormatError
from holdfast.messages.text.scan import TextExtent, TextReader, find_line_number, find_line_start, measure_extent
from holdfast.messages.text.search import SearchQuery, iter_match_rows, parse_search_query

MIN_PAGE_CHARS = 48_000
"""[H] Characters, and so bytes, that every page but the last has at least."""
MAX_PAGE_CHARS = 49_500
"""[H] Characters of a page at most: with its heading it stays under the 50,000 from which results are spilled [K]."""
MAX_PAGE_BYTES = 64_500
"""[H] And bytes of UTF-8: with its heading under 64 KiB."""
MIN_PAGE_LIMIT = 2_000
"""[H] Characters that a page may be limited to at least."""
PAGE_SLACK_CHARS = MAX_PAGE_CHARS - MIN_PAGE_CHARS
"""Characters that a page may give up to end with a line; a tenth of it if it is small."""
MAX_PAGE_MATCHES = 200
"""[H] Lines with a match on one page."""
_RANGE_PATTERN = re.compile(r"\s*([0-9]+)\s*(?:(?:-|–|:|\.\.)\s*([0-9]*)\s*)?\Z")
_UNBOUNDED = 10**15
"""A number that is beyond the end of every text; longer ones are not made into numbers."""


class CharRange(NamedTuple):
    """A range of characters, the last excluded."""

    start: int
    stop: int


class TextPage(Struct, frozen=True, omit_defaults=True):
    """A part of a text. Lines count from 1, the last included; characters from 0, the last excluded."""

    text: str
    first_line: int
    last_line: int
    """The lines that it shows or, for a search, looked at."""
    start_char: int
    stop_char: int
    """The same in characters."""
    total_lines: int
    total_chars: int
    """Of the whole text."""
    match_count: int | None = None
    """Lines on this page that match, where something was searched for."""
    next_arguments: dict[str, str] | None = None
    """The arguments of the call that goes on from here; nothing at the end."""


def read_text_page(
    read_range: TextReader,
    *,
    lines: str = "",
    chars: str = "",
    search: str = "",
    number: int = 1,
    extent: TextExtent | None = None,
    max_chars: int = MAX_PAGE_CHARS,
) -> TextPage:
    """Return page ``number`` of what is asked for of a text; raises ``FormatError`` where there is no such thing.

    ``lines`` is ``a-b``, ``a`` or ``a-``, counted from 1; ``chars`` is ``a-b`` or ``a-``, counted from 0, without b.
    ``search`` shows the lines that match, of the range or of everything. ``extent`` is the text's extent if it is
    known; ``max_chars`` are the characters that a page may have, where that is less than usual.
    """
    extent = measure_extent(read_range) if extent is None else extent
    if number < 1:
        raise FormatError(f"there is no page {number}: pages count from 1; {_describe_text_size(extent)}")
    at = 0
    for at, current_page in enumerate(
        iter_text_pages(read_range, lines=lines, chars=chars, search=search, extent=extent, max_chars=max_chars), 1
    ):
        if at == number:
            return current_page
    raise FormatError(f"there is no page {number}: what was asked for ends on page {at}; {_describe_text_size(extent)}")


def iter_text_pages(
    read_range: TextReader,
    *,
    lines: str = "",
    chars: str = "",
    search: str = "",
    extent: TextExtent | None = None,
    max_chars: int = MAX_PAGE_CHARS,
) -> Iterator[TextPage]:
    """Yield what is asked for page after page, to its end."""
    extent = measure_extent(read_range) if extent is None else extent
    span = _resolve_range(read_range, extent, lines, chars)
    search_query = parse_search_query(search) if search else None
    max_chars = max(MIN_PAGE_LIMIT, min(max_chars, MAX_PAGE_CHARS))
    start = span.start
    while True:
        remaining_span = CharRange(start, span.stop)
        next_page = (
            _read_range_page(read_range, extent, remaining_span, max_chars)
            if search_query is None
            else _read_match_page(read_range, extent, remaining_span, search_query, search, max_chars)
        )
        yield next_page
        if next_page.next_arguments is None:
            return
        start = next_page.stop_char


def count_page_chars(text: str, max_chars: int = MAX_PAGE_CHARS) -> int:
    """Return how many characters of ``text`` make a page: as many as it takes, less a begun line if that is short."""
    slack = min(PAGE_SLACK_CHARS, max_chars // 10)
    max_chars = min(len(text), max_chars)
    raw_bytes = text[:max_chars].encode("utf-8", "surrogatepass")
    if len(raw_bytes) > MAX_PAGE_BYTES:
        edge = MAX_PAGE_BYTES
        while raw_bytes[edge] & 0xC0 == 0x80:
            edge -= 1
        max_chars = len(raw_bytes[:edge].decode("utf-8", "surrogatepass"))
    if max_chars == len(text):
        return max_chars
    line = text.rfind("\n", max_chars - slack, max_chars)
    return max_chars if line < 0 else line + 1


def _read_range_page(read_range: TextReader, extent: TextExtent, span: CharRange, max_chars: int) -> TextPage:
    """Return the first page of a range."""
    text = read_range(span.start, min(span.stop, span.start + max_chars + 1))
    text = text[: count_page_chars(text, max_chars)]
    return _build_page(read_range, extent, text, span, span.start + len(text))


def _read_match_page(
    read_range: TextReader, extent: TextExtent, span: CharRange, search_query: SearchQuery, search: str, max_chars: int
) -> TextPage:
    """Return the first page of the lines in a range that match."""
    blocks: list[str] = []
    room, room_bytes = max_chars, MAX_PAGE_BYTES
    stop, matches = span.stop, 0
    for match in iter_match_rows(read_range, extent, span.start, span.stop, search_query):
        room -= len(match.text) + 1
        room_bytes -= len(match.text.encode("utf-8", "surrogatepass")) + 1
        if min(room, room_bytes) < 0 or matches == MAX_PAGE_MATCHES:
            stop = match.start
            break
        blocks.append(match.text)
        matches += 1
    return _build_page(read_range, extent, "\n".join(blocks), span, stop, search, matches)


def _build_page(
    read_range: TextReader,
    extent: TextExtent,
    text: str,
    span: CharRange,
    stop: int,
    search: str = "",
    matches: int | None = None,
) -> TextPage:
    """Return the page that shows ``text`` for the characters up to ``stop`` of a range."""
    search_params = {"search": search} if search else {}
    end = "" if span.stop == extent.chars else str(span.stop)
    return TextPage(
        text,
        find_line_number(read_range, extent, span.start),
        find_line_number(read_range, extent, max(span.start, stop - 1)),
        span.start,
        stop,
        extent.lines,
        extent.chars,
        matches,
        search_params | {"chars": f"{stop}-{end}"} if stop < span.stop else None,
    )


# -- ranges ------------------------------------------------------------------------------------------------------------


def _resolve_range(read_range: TextReader, extent: TextExtent, lines: str, chars: str) -> CharRange:
    """Return the characters that are asked for."""
    if lines and chars:
        raise FormatError(f"lines={lines[:40]!r} and chars={chars[:40]!r} are two ranges; give one of them")
    if lines:
        first, last = _parse_range("lines", lines, extent, alone=True)
        if first == 0 or first > extent.lines:
            raise _build_range_error("lines", lines, extent, f"lines count from 1 to {extent.lines}")
        return CharRange(
            find_line_start(read_range, extent, first), find_line_start(read_range, extent, min(last, extent.lines) + 1)
        )
    if chars:
        start, stop = _parse_range("chars", chars, extent, alone=False)
        if start > extent.chars or (start == extent.chars and extent.chars):
            raise _build_range_error("chars", chars, extent, f"characters count from 0 to {extent.chars}")
        return CharRange(start, min(stop, extent.chars))
    return CharRange(0, extent.chars)


def _parse_range(kind: str, text: str, extent: TextExtent, *, alone: bool) -> CharRange:
    """Return the two numbers of a range; one that is open has no end, and ``alone`` a number means itself."""
    match = _RANGE_PATTERN.match(text)
    example = 'lines="12-480"' if kind == "lines" else 'chars="0-4000"'
    if match is None:
        raise FormatError(
            f"{kind}={text[:40]!r} is no range; give two numbers, for example {example}; {_describe_text_size(extent)}"
        )
    start = _parse_number(match[1])
    stop = _parse_number(match[2]) if match[2] else start if match[2] is None and alone else _UNBOUNDED
    if stop < start or (stop == start and not alone):
        raise _build_range_error(kind, text, extent, "it ends before anything is in it")
    return CharRange(start, stop)


def _parse_number(digits: str) -> int:
    return int(digits) if len(digits) < 16 else _UNBOUNDED


def _build_range_error(kind: str, text: str, extent: TextExtent, why: str) -> FormatError:
    return FormatError(f"{kind}={text[:40]!r} is not there: {why}; {_describe_text_size(extent)}")


def _describe_text_size(extent: TextExtent) -> str:
    """Return how long the text is and what can be asked for, in words."""
    return f"the text has {extent.lines:,} lines and {extent.chars:,} characters: give a range within it, or none"
