"""Search a long text: the matching lines with their numbers and neighbouring lines.

A query is plain words, ignoring case. ``a|b`` matches either, and ``a.*b`` both on one line in this order. There is no
other pattern: models write these two all the time, and without more a search takes time linear in the text, whatever a
model asks for. A line that contains the query exactly as it is written always matches.
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
"""Alternatives; each is lower-case words that must follow each other on one line."""

MAX_QUERY_CHARS = 500
"""Characters of a query. It bounds the time of a search and is far above any real query; chosen by judgement."""
MAX_ALTERNATIVES = 20
"""Alternatives of a query. Each is looked for in the whole text."""
MAX_ROW_CHARS = 4_000
"""Characters of a line that are searched as one; a longer line is searched in pieces (*rows*) of this length."""
ROW_OVERLAP_CHARS = 1_000
"""Characters of the next row that are searched too, so that a match across the border is found."""
ROW_BY_ROW_CHARS = 2_000
"""Characters of text that are split into lines at once, if they may contain a match.

A longer text is halved first: mostly one half contains no match and need not be split. Chosen by judgement.
"""
_ESCAPED_MARK = re.compile(r"\\(?=[^\w\s])")
CONTEXT_LINES = 2
"""Lines shown before and after a match: enough to see where it is. Chosen by judgement, as the next two."""
MATCH_LINE_CHARS = 400
"""Characters of a matching line that are shown, around the match."""
CONTEXT_LINE_CHARS = 160
"""Characters of a neighbouring line that are shown."""


class SearchRow(NamedTuple):
    """A line, or a piece of a long one; also several whole lines that are still to be split."""

    line: int
    start: int
    """Position of its first character in the text."""
    text: str
    ahead: str = ""
    """The first characters after it on the same line, for matches across the border."""


class MatchRow(NamedTuple):
    """A match with its neighbouring lines, formatted, and the position of its first character."""

    start: int
    text: str


def parse_search_query(text: str) -> SearchQuery:
    r"""Parse a query. Raises ``FormatError`` if it has no words, or too many.

    A backslash before a mark (``\(``) may be an escape or be meant, so both are searched for.
    """
    words = lowercase_keep_length(text.strip("\n"))
    if len(words) > MAX_QUERY_CHARS or words.count("|") >= MAX_ALTERNATIVES:
        limit_text = f"{MAX_QUERY_CHARS} characters and {MAX_ALTERNATIVES} alternatives are the most"
        raise FormatError(
            f"the search has {len(words):,} characters and {words.count('|')} bars; {limit_text}: give fewer"
        )
    forms = dict.fromkeys((words, _ESCAPED_MARK.sub("", words)))
    alternatives: list[tuple[str, ...]] = []
    for form in forms:
        for alternative in form.split("|"):
            alternatives.append(_split_words(alternative))
    # Lines are searched one by one, so a query with a line break could never match.
    if "\n" in words or not any(alternatives):
        raise FormatError(f"search={text[:40]!r} has no word to look for in a line; give some words of one line")
    return tuple(dict.fromkeys(alternative for alternative in alternatives if alternative))


def _split_words(alternative: str) -> tuple[str, ...]:
    return tuple([word for word in alternative.split(".*") if word])


def lowercase_keep_length(text: str) -> str:
    """Return ``text`` case-folded without changing its length, so that positions in both are the same."""
    folded = text.casefold()
    if len(folded) == len(text):
        return folded
    return text.translate(_map_growing_characters()).casefold()


@cache
def _map_growing_characters() -> dict[int, str]:
    """Return the first folded letter of each character that folds to several, such as ``ß``."""
    first_letters: dict[int, str] = {}
    for code_point in range(sys.maxunicode + 1):
        folded = chr(code_point).casefold()
        if len(folded) > 1:
            first_letters[code_point] = folded[0]
    return first_letters


def iter_match_rows(
    read_range: TextReader,
    extent: TextExtent,
    start: int,
    stop: int,
    search_query: SearchQuery,
) -> Iterator[MatchRow]:
    """Yield the matches in the rows that begin at ``start`` to ``stop``, in order, each with its neighbouring lines.

    Matches close to each other share the lines between them.
    """
    lines_before: deque[SearchRow] = deque(maxlen=CONTEXT_LINES)
    block: list[str] = []
    block_start, remaining_context = -1, 0
    for row in _iter_rows(read_range, extent, start, stop, search_query):
        match_position = _find_match(row, search_query)
        if match_position is not None:
            if block:
                yield MatchRow(block_start, "\n".join(block))
            block = [_format_context_line(context_row) for context_row in lines_before]
            block.append(_format_match(row, match_position))
            lines_before.clear()
            block_start, remaining_context = row.start, CONTEXT_LINES
        elif remaining_context:
            block.append(_format_context_line(row))
            remaining_context -= 1
        else:
            lines_before.append(row)
    if block:
        yield MatchRow(block_start, "\n".join(block))


def _find_match(row: SearchRow, search_query: SearchQuery) -> int | None:
    """Return where in ``row`` the first match begins, or None. A match that begins in ``ahead`` is the next row's."""
    # Case-folded without changing its length, or positions would not fit the original text.
    text = lowercase_keep_length(row.text + row.ahead)
    positions: list[int] = []
    for words in search_query:
        position = _find_words_in_order(text, words)
        if 0 <= position < len(row.text):
            positions.append(position)
    return min(positions, default=None)


def _find_words_in_order(text: str, words: tuple[str, ...]) -> int:
    """Return where the first of ``words`` begins if they follow each other in ``text``, else -1."""
    first_position, position = -1, 0
    for word in words:
        position = text.find(word, position)
        if position < 0:
            return -1
        if first_position < 0:
            first_position = position
        position += len(word)
    return first_position


def _iter_rows(
    read_range: TextReader,
    extent: TextExtent,
    start: int,
    stop: int,
    search_query: SearchQuery,
) -> Iterator[SearchRow]:
    """Yield the rows of a range that may match, and their neighbours."""
    line_number = find_line_number(read_range, extent, start)
    # The text is read in pieces, which may end within a line: that line, which begins at ``position``, is kept for the
    # next piece to complete.
    position, unfinished_line = start, ""
    for piece in iter_text_pieces(read_range, start, stop):
        text = unfinished_line + piece.text
        end = text.rfind("\n") + 1
        lines = SearchRow(line_number, position, text[:end])
        yield from _iter_likely_rows(lines, lowercase_keep_length(lines.text), search_query)
        line_number += text.count("\n", 0, end)
        position, unfinished_line = position + end, text[end:]
        # A very long line is yielded in rows as it is read, so that it is never held whole.
        while len(unfinished_line) >= MAX_ROW_CHARS + ROW_OVERLAP_CHARS:
            ahead = unfinished_line[MAX_ROW_CHARS : MAX_ROW_CHARS + ROW_OVERLAP_CHARS]
            yield SearchRow(line_number, position, unfinished_line[:MAX_ROW_CHARS], ahead)
            position += MAX_ROW_CHARS
            unfinished_line = unfinished_line[MAX_ROW_CHARS:]
    yield from _split_long_line(SearchRow(line_number, position, unfinished_line))


def _iter_likely_rows(lines: SearchRow, folded_text: str, search_query: SearchQuery) -> Iterator[SearchRow]:
    """Yield the rows of whole ``lines``; if no line can match, only those at either end, as context of others.

    A line matches only if it contains all words of an alternative. So most of a text is ruled out by a few fast
    searches and never split into lines.
    """
    text = lines.text
    half = folded_text.find("\n", len(folded_text) // 2) + 1
    can_match = any(all(word in folded_text for word in words) for words in search_query)
    if not can_match:
        # Lines at either end may be the context of a match in the text before or after.
        head_end = _find_end_of_lines(text, CONTEXT_LINES)
        tail_start = _find_start_of_lines(text, CONTEXT_LINES)
        if head_end < tail_start:
            yield from _split_lines(lines._replace(text=text[:head_end]))
            yield from _split_lines(_skip_characters(lines, tail_start))
            return
    elif len(text) > ROW_BY_ROW_CHARS and half < len(text):
        yield from _iter_likely_rows(
            lines._replace(text=text[:half]),
            folded_text[:half],
            search_query,
        )
        yield from _iter_likely_rows(
            _skip_characters(lines, half),
            folded_text[half:],
            search_query,
        )
        return
    yield from _split_lines(lines)


def _skip_characters(lines: SearchRow, count: int) -> SearchRow:
    """Return ``lines`` without their first ``count`` characters."""
    return SearchRow(
        lines.line + lines.text.count("\n", 0, count),
        lines.start + count,
        lines.text[count:],
    )


def _find_end_of_lines(text: str, count: int) -> int:
    """Return the position after the first ``count`` lines, or after all of them if there are fewer."""
    position = 0
    for _ in range(count):
        position = text.find("\n", position) + 1 or len(text)
    return position


def _find_start_of_lines(text: str, count: int) -> int:
    """Return the position at which the last ``count`` lines begin."""
    position = len(text)
    for _ in range(count):
        position = text.rfind("\n", 0, max(0, position - 1)) + 1
    return position


def _split_lines(lines: SearchRow) -> Iterator[SearchRow]:
    """Yield the rows of whole lines."""
    position = lines.start
    for number, line in enumerate(lines.text.split("\n")[:-1], lines.line):
        yield from _split_long_line(SearchRow(number, position, line))
        position += len(line) + 1


def _split_long_line(row: SearchRow) -> Iterator[SearchRow]:
    """Yield a line in rows of at most ``MAX_ROW_CHARS``; an empty line is one row."""
    for start in range(0, max(1, len(row.text)), MAX_ROW_CHARS):
        end = start + MAX_ROW_CHARS
        text = row.text[start:end]
        overlap = row.text[end : end + ROW_OVERLAP_CHARS]
        yield SearchRow(row.line, row.start + start, text, overlap)


def _format_match(row: SearchRow, match_position: int) -> str:
    """Format a matching row: its number and its text, of a long one only the part around the match."""
    text = row.text + row.ahead
    if len(text) <= MATCH_LINE_CHARS:
        return f"{row.line}: {text}"
    # A quarter of the excerpt stands before the match, or more if the text ends soon after it.
    latest_start = len(text) - MATCH_LINE_CHARS
    start = max(0, min(match_position - MATCH_LINE_CHARS // 4, latest_start))
    excerpt = text[start : start + MATCH_LINE_CHARS]
    return f"{row.line}: (from character {row.start + start}) …{excerpt}…"


def _format_context_line(row: SearchRow) -> str:
    ellipsis = "…" if len(row.text) > CONTEXT_LINE_CHARS else ""
    return f"{row.line}- {row.text[:CONTEXT_LINE_CHARS]}{ellipsis}"
