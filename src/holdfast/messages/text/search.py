"""Searching a long text: the lines that match, with their numbers and their neighbours.

What is searched for is plain words, upper and lower case alike. ``a|b`` is either, and ``a.*b`` is both on one line in
this order. There is no other pattern, so a search takes time linear in the text, whatever a model asks for; and a line
that has the words just as they were written, marks and all, always matches.
"""

from __future__ import annotations

import re
import sys
from collections import deque
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple, TypeAlias

from holdfast.errors import FormatError
from holdfast.messages.text.scan import TextExtent, TextReader, find_line_number, iter_text_pieces

SearchQuery: TypeAlias = tuple[tuple[str, ...], ...]
"""Alternatives, each of words in small letters that follow each other on one line."""

MAX_QUERY_CHARS = 500
"""[H] Characters of a query."""
MAX_ALTERNATIVES = 20
"""[H] Alternatives of a query."""
MAX_ROW_CHARS = 4_000
"""[H] Characters of a line that are looked at as one; a longer line is searched in pieces of this length."""
ROW_OVERLAP_CHARS = 1_000
"""[H] Characters of the next piece that are looked at too, so that no match is lost between two."""
ROW_BY_ROW_CHARS = 2_000
"""[H] Characters of lines that are looked at one by one."""
_ESCAPED_MARK = re.compile(r"\\(?=[^\w\s])")
CONTEXT_LINES = 2
"""[H] Lines shown before and after one that matches."""
MATCH_LINE_CHARS = 400
"""[H] Characters of a matching line that are shown, around the match."""
CONTEXT_LINE_CHARS = 160
"""[H] Characters of a neighbour that are shown."""


class SearchRow(NamedTuple):
    """A line, or a piece of one that is long."""

    line: int
    start: int
    """The character it begins at."""
    text: str
    ahead: str = ""
    """What follows on the same line, as far as it is looked at."""


class MatchRow(NamedTuple):
    """A row that matches, as it is shown, and the character it begins at."""

    start: int
    text: str


def parse_search_query(text: str) -> SearchQuery:
    r"""Return what ``text`` asks for; raises ``FormatError`` where nothing is left to look for, or too much.

    A backslash before a mark (``\(``) may be meant or not, so both are looked for.
    """
    words = lowercase_keep_length(text.strip("\n"))
    if len(words) > MAX_QUERY_CHARS or words.count("|") >= MAX_ALTERNATIVES:
        limit_text = f"{MAX_QUERY_CHARS} characters and {MAX_ALTERNATIVES} alternatives are the most"
        raise FormatError(
            f"the search has {len(words):,} characters and {words.count('|')} bars; {limit_text}: give fewer"
        )
    forms = dict.fromkeys((words, _ESCAPED_MARK.sub("", words)))
    alternatives = [
        tuple([part for part in alternative.split(".*") if part]) for form in forms for alternative in form.split("|")
    ]
    if "\n" in words or not any(alternatives):
        raise FormatError(f"search={text[:40]!r} has no word to look for in a line; give some words of one line")
    return tuple(dict.fromkeys(alternative for alternative in alternatives if alternative))


def lowercase_keep_length(text: str) -> str:
    """Return ``text`` in small letters, every character in its place whatever stands beside it."""
    low = text.casefold()
    return low if len(low) == len(text) else text.translate(_map_growing_characters()).casefold()


@cache
def _map_growing_characters() -> dict[int, str]:
    """Return the first small letter of each character that becomes several."""
    every = map(chr, range(sys.maxunicode + 1))
    return {ord(char): low[0] for char in every if len(low := char.casefold()) > 1}


def iter_match_rows(
    read_range: TextReader, extent: TextExtent, start: int, stop: int, search_query: SearchQuery
) -> Iterator[MatchRow]:
    """Yield the rows that begin at characters ``start`` to ``stop`` and match, each with its neighbours, in order."""
    before: deque[SearchRow] = deque(maxlen=CONTEXT_LINES)
    waiting: list[str] = []
    match_start, after = -1, 0
    for row in _iter_rows(read_range, extent, start, stop, search_query):
        at = _find_match(row, search_query)
        if at is not None:
            if waiting:
                yield MatchRow(match_start, "\n".join(waiting))
            waiting = [*(_format_context_line(context_row) for context_row in before), _format_match(row, at)]
            before.clear()
            match_start, after = row.start, CONTEXT_LINES
        elif after:
            waiting.append(_format_context_line(row))
            after -= 1
        else:
            before.append(row)
    if waiting:
        yield MatchRow(match_start, "\n".join(waiting))


def _find_match(row: SearchRow, search_query: SearchQuery) -> int | None:
    """Return where in a row the first alternative that is there begins; what begins ahead is the next row's."""
    text = lowercase_keep_length(row.text + row.ahead)
    starts = [
        at for alternative in search_query if 0 <= (at := _find_words_in_order(text, alternative)) < len(row.text)
    ]
    return min(starts, default=None)


def _find_words_in_order(text: str, words: tuple[str, ...]) -> int:
    """Return where the first of ``words`` begins if all follow each other in ``text``, else -1."""
    begins, at = -1, 0
    for word in words:
        at = text.find(word, at)
        if at < 0:
            return -1
        begins = at if begins < 0 else begins
        at += len(word)
    return begins


def _iter_rows(
    read_range: TextReader, extent: TextExtent, start: int, stop: int, search_query: SearchQuery
) -> Iterator[SearchRow]:
    """Yield the rows of a range that may match, with their neighbours; what is beyond it is not looked at."""
    number = find_line_number(read_range, extent, start)
    at, remainder = start, ""
    for piece in iter_text_pieces(read_range, start, stop):
        text = remainder + piece.text
        end = text.rfind("\n") + 1
        yield from _iter_likely_rows(SearchRow(number, at, text[:end]), lowercase_keep_length(text[:end]), search_query)
        number += text.count("\n", 0, end)
        at, remainder = at + end, text[end:]
        while len(remainder) >= MAX_ROW_CHARS + ROW_OVERLAP_CHARS:
            yield SearchRow(
                number, at, remainder[:MAX_ROW_CHARS], remainder[MAX_ROW_CHARS : MAX_ROW_CHARS + ROW_OVERLAP_CHARS]
            )
            at += MAX_ROW_CHARS
            remainder = remainder[MAX_ROW_CHARS:]
    yield from _split_long_line(SearchRow(number, at, remainder))


def _iter_likely_rows(lines: SearchRow, low: str, search_query: SearchQuery) -> Iterator[SearchRow]:
    """Yield the rows of whole ``lines``, in small letters ``low``; where none can match, those at either end.

    A line matches only where all the words of an alternative are, so most lines need not be told apart.
    """
    text = lines.text
    half = low.find("\n", len(low) // 2) + 1
    if not any(all(word in low for word in alternative) for alternative in search_query):
        head, tail = _find_end_of_lines(text, CONTEXT_LINES), _find_start_of_lines(text, CONTEXT_LINES)
        if head < tail:
            yield from _split_lines(lines._replace(text=text[:head]))
            yield from _split_lines(_skip_characters(lines, tail))
            return
    elif len(text) > ROW_BY_ROW_CHARS and half < len(text):
        yield from _iter_likely_rows(lines._replace(text=text[:half]), low[:half], search_query)
        yield from _iter_likely_rows(_skip_characters(lines, half), low[half:], search_query)
        return
    yield from _split_lines(lines)


def _skip_characters(lines: SearchRow, at: int) -> SearchRow:
    """Return ``lines`` without their first ``at`` characters."""
    return SearchRow(lines.line + lines.text.count("\n", 0, at), lines.start + at, lines.text[at:])


def _find_end_of_lines(text: str, count: int) -> int:
    """Return where the first ``count`` lines end, or their last where there are fewer."""
    at = 0
    for _ in range(count):
        at = text.find("\n", at) + 1 or len(text)
    return at


def _find_start_of_lines(text: str, count: int) -> int:
    """Return where the last ``count`` lines begin, each with its end."""
    at = len(text)
    for _ in range(count):
        at = text.rfind("\n", 0, max(0, at - 1)) + 1
    return at


def _split_lines(lines: SearchRow) -> Iterator[SearchRow]:
    """Yield the rows of whole lines."""
    at = lines.start
    for number, line in enumerate(lines.text.split("\n")[:-1], lines.line):
        yield from _split_long_line(SearchRow(number, at, line))
        at += len(line) + 1


def _split_long_line(row: SearchRow) -> Iterator[SearchRow]:
    """Yield a line in pieces of at most ``MAX_ROW_CHARS``."""
    for at in range(0, max(1, len(row.text)), MAX_ROW_CHARS):
        end = at + MAX_ROW_CHARS
        yield SearchRow(row.line, row.start + at, row.text[at:end], row.text[end : end + ROW_OVERLAP_CHARS])


def _format_match(row: SearchRow, at: int) -> str:
    """Return a row with a match as it is shown: a long one around its match, with where that stands."""
    text = row.text + row.ahead
    if len(text) <= MATCH_LINE_CHARS:
        return f"{row.line}: {text}"
    start = max(0, min(at - MATCH_LINE_CHARS // 4, len(text) - MATCH_LINE_CHARS))
    excerpt = text[start : start + MATCH_LINE_CHARS]
    return f"{row.line}: (from character {row.start + start}) …{excerpt}…"


def _format_context_line(row: SearchRow) -> str:
    return f"{row.line}- {row.text[:CONTEXT_LINE_CHARS]}{'…' if len(row.text) > CONTEXT_LINE_CHARS else ''}"
