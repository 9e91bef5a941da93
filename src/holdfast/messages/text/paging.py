"""Pages of a long text: a range of characters or lines, or the matches of a search, and how to read on.

Every range is converted to one of characters, so that a text of few very long lines is paged like any other. Every page
but the last has at least ``MIN_PAGE_CHARS``, so n characters take at most ⌈n / ``MIN_PAGE_CHARS``⌉ calls; following
``next_arguments`` yields every character once.
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
"""Characters that every page but the last has at least: the number of calls for a text is bounded."""
MAX_PAGE_CHARS = 49_500
"""Characters that a page has at most. With its heading it stays below the 50,000 characters from which our preset
spills results, so that a page is never spilled again."""
MAX_PAGE_BYTES = 64_500
"""UTF-8 bytes that a page has at most: with its heading it stays below 64 KiB. Chosen by judgement."""
MIN_PAGE_LIMIT = 2_000
"""Smallest limit a caller can set for a page; below it, headings would cost more than the text. Chosen by judgement."""
PAGE_SLACK_CHARS = MAX_PAGE_CHARS - MIN_PAGE_CHARS
"""Characters that a page may give up to end at a line; small pages give up at most a tenth."""
MAX_PAGE_MATCHES = 200
"""Matching lines on one page. A search with more matches is better narrowed than read on. Chosen by judgement."""
_RANGE_PATTERN = re.compile(r"\s*([0-9]+)\s*(?:(?:-|–|:|\.\.)\s*([0-9]*)\s*)?\Z")
_UNBOUNDED = 10**15
"""A position past the end of every text; numbers with more digits are read as this."""


class CharRange(NamedTuple):
    """A range of characters; ``stop`` is excluded."""

    start: int
    stop: int


class TextPage(Struct, frozen=True, omit_defaults=True):
    """A part of a text. Lines count from 1 and include the last; characters count from 0 and exclude the last."""

    text: str
    first_line: int
    """First line that the page shows or, for a search, looked at."""
    last_line: int
    """Last line likewise."""
    start_char: int
    """First character likewise."""
    stop_char: int
    """Character after the last likewise."""
    total_lines: int
    """Lines of the whole text."""
    total_chars: int
    """Characters of the whole text."""
    match_count: int | None = None
    """Matching lines on this page; None if nothing was searched for."""
    next_arguments: dict[str, str] | None = None
    """Arguments of the call that reads on from here; None on the last page."""


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
    """Return page ``number`` of the requested part of a text.

    ``lines`` is ``a-b``, ``a`` or ``a-``, counted from 1 and including b; ``chars`` is ``a-b`` or ``a-``, counted from
    0 and excluding b. With ``search`` only the matching lines of that range are shown. ``extent`` is the text's extent
    if it is known already; ``max_chars`` limits a page further than ``MAX_PAGE_CHARS``. Raises ``FormatError`` for a
    range or a page that does not exist.
    """
    extent = measure_extent(read_range) if extent is None else extent
    if number < 1:
        raise FormatError(f"there is no page {number}: pages count from 1; {_describe_text_size(extent)}")
    pages = iter_text_pages(
        read_range,
        lines=lines,
        chars=chars,
        search=search,
        extent=extent,
        max_chars=max_chars,
    )
    page_number = 0
    for page_number, current_page in enumerate(pages, 1):
        if page_number == number:
            return current_page
    raise FormatError(
        f"there is no page {number}: what was asked for ends on page {page_number}; {_describe_text_size(extent)}"
    )


def iter_text_pages(
    read_range: TextReader,
    *,
    lines: str = "",
    chars: str = "",
    search: str = "",
    extent: TextExtent | None = None,
    max_chars: int = MAX_PAGE_CHARS,
) -> Iterator[TextPage]:
    """Yield all pages of the requested part of a text; the arguments are those of ``read_text_page``."""
    extent = measure_extent(read_range) if extent is None else extent
    span = _resolve_range(read_range, extent, lines, chars)
    search_query = parse_search_query(search) if search else None
    # A caller's limit is not followed below MIN_PAGE_LIMIT.
    max_chars = max(MIN_PAGE_LIMIT, min(max_chars, MAX_PAGE_CHARS))
    start = span.start
    while True:
        remaining_span = CharRange(start, span.stop)
        if search_query is None:
            page = _read_range_page(read_range, extent, remaining_span, max_chars)
        else:
            page = _read_match_page(
                read_range,
                extent,
                remaining_span,
                search_query,
                search,
                max_chars,
            )
        yield page
        if page.next_arguments is None:
            return
        start = page.stop_char


def count_page_chars(text: str, max_chars: int = MAX_PAGE_CHARS) -> int:
    """Return how many characters of ``text`` make a page: the most that fit, cut at a line end if one is near."""
    slack = min(PAGE_SLACK_CHARS, max_chars // 10)
    max_chars = min(len(text), max_chars)
    raw_bytes = text[:max_chars].encode("utf-8", "surrogatepass")
    if len(raw_bytes) > MAX_PAGE_BYTES:
        edge = MAX_PAGE_BYTES
        while raw_bytes[edge] & 0xC0 == 0x80:  # a continuation byte: do not cut inside a character
            edge -= 1
        max_chars = len(raw_bytes[:edge].decode("utf-8", "surrogatepass"))
    if max_chars == len(text):
        return max_chars
    line_end = text.rfind("\n", max_chars - slack, max_chars)
    return max_chars if line_end < 0 else line_end + 1


def _read_range_page(
    read_range: TextReader,
    extent: TextExtent,
    span: CharRange,
    max_chars: int,
) -> TextPage:
    """Return the first page of a range of characters."""
    # One character more than a page, so that a page which ends the range is not cut back to its last line.
    read_stop = min(span.stop, span.start + max_chars + 1)
    text = read_range(span.start, read_stop)
    page_chars = count_page_chars(text, max_chars)
    page_text = text[:page_chars]
    return _build_page(read_range, extent, page_text, span, span.start + len(page_text))


def _read_match_page(
    read_range: TextReader,
    extent: TextExtent,
    span: CharRange,
    search_query: SearchQuery,
    search: str,
    max_chars: int,
) -> TextPage:
    """Return the first page of the lines in a range that match."""
    blocks: list[str] = []
    remaining_chars, remaining_bytes = max_chars, MAX_PAGE_BYTES
    stop, match_count = span.stop, 0
    for match in iter_match_rows(
        read_range,
        extent,
        span.start,
        span.stop,
        search_query,
    ):
        remaining_chars -= len(match.text) + 1
        remaining_bytes -= len(match.text.encode("utf-8", "surrogatepass")) + 1
        is_full = remaining_chars < 0 or remaining_bytes < 0 or match_count == MAX_PAGE_MATCHES
        if is_full:
            stop = match.start
            break
        blocks.append(match.text)
        match_count += 1
    return _build_page(
        read_range,
        extent,
        "\n".join(blocks),
        span,
        stop,
        search,
        match_count,
    )


def _build_page(
    read_range: TextReader,
    extent: TextExtent,
    text: str,
    span: CharRange,
    stop: int,
    search: str = "",
    match_count: int | None = None,
) -> TextPage:
    """Build the page that shows ``text`` for the characters of ``span`` up to ``stop``."""
    next_arguments: dict[str, str] | None = None
    if stop < span.stop:
        next_arguments = {"search": search} if search else {}
        end = "" if span.stop == extent.chars else str(span.stop)
        next_arguments["chars"] = f"{stop}-{end}"
    return TextPage(
        text,
        find_line_number(read_range, extent, span.start),
        find_line_number(read_range, extent, max(span.start, stop - 1)),
        span.start,
        stop,
        extent.lines,
        extent.chars,
        match_count,
        next_arguments,
    )


# -- ranges ------------------------------------------------------------------------------------------------------------


def _resolve_range(
    read_range: TextReader,
    extent: TextExtent,
    lines: str,
    chars: str,
) -> CharRange:
    """Return the range of characters that ``lines`` or ``chars`` ask for; the whole text if neither is given."""
    if lines and chars:
        raise FormatError(f"lines={lines[:40]!r} and chars={chars[:40]!r} are two ranges; give one of them")
    if lines:
        first, last = _parse_range("lines", lines, extent, can_be_single=True)
        if first == 0 or first > extent.lines:
            reason = f"lines count from 1 to {extent.lines}"
            raise _build_range_error("lines", lines, extent, reason)
        last_line = min(last, extent.lines)
        start = find_line_start(read_range, extent, first)
        stop = find_line_start(read_range, extent, last_line + 1)
        return CharRange(start, stop)
    if chars:
        start, stop = _parse_range("chars", chars, extent, can_be_single=False)
        # An empty text still has its (empty) page at 0.
        is_behind_end = start > extent.chars or (start == extent.chars and extent.chars > 0)
        if is_behind_end:
            reason = f"characters count from 0 to {extent.chars}"
            raise _build_range_error("chars", chars, extent, reason)
        return CharRange(start, min(stop, extent.chars))
    return CharRange(0, extent.chars)


def _parse_range(
    kind: str,
    text: str,
    extent: TextExtent,
    *,
    can_be_single: bool,
) -> CharRange:
    """Parse ``a-b``, ``a-`` (to the end of the text) or, with ``can_be_single``, ``a`` alone as ``a-a``.

    The numbers are returned as they are; whether the last is included is up to the caller.
    """
    match = _RANGE_PATTERN.match(text)
    example = 'lines="12-480"' if kind == "lines" else 'chars="0-4000"'
    if match is None:
        raise FormatError(
            f"{kind}={text[:40]!r} is no range; give two numbers, for example {example}; {_describe_text_size(extent)}"
        )
    start = _parse_number(match[1])
    stop = _UNBOUNDED
    if match[2]:
        stop = _parse_number(match[2])
    elif match[2] is None and can_be_single:
        stop = start
    if stop < start or (stop == start and not can_be_single):
        raise _build_range_error(kind, text, extent, "it ends before anything is in it")
    return CharRange(start, stop)


def _parse_number(digits: str) -> int:
    # Python limits the digits of a number it parses, and a model may send any text.
    return int(digits) if len(digits) < 16 else _UNBOUNDED


def _build_range_error(kind: str, text: str, extent: TextExtent, why: str) -> FormatError:
    return FormatError(f"{kind}={text[:40]!r} is not there: {why}; {_describe_text_size(extent)}")


def _describe_text_size(extent: TextExtent) -> str:
    """Return the last words of an error: how long the text is, and which ranges can be asked for."""
    return f"the text has {extent.lines:,} lines and {extent.chars:,} characters: give a range within it, or none"
