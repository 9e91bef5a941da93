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
from holdfast.messages.text.scan import Extent, Read, line_at, pieces

Query: TypeAlias = tuple[tuple[str, ...], ...]
"""Alternatives, each of words in small letters that follow each other on one line."""

LONGEST_QUERY = 500
"""[H] Characters of a query."""
MOST_ALTERNATIVES = 20
"""[H] Alternatives of a query."""
LONGEST_ROW = 4_000
"""[H] Characters of a line that are looked at as one; a longer line is searched in pieces of this length."""
OVERLAP = 1_000
"""[H] Characters of the next piece that are looked at too, so that no match is lost between two."""
FEW = 2_000
"""[H] Characters of lines that are looked at one by one."""
_ESCAPED = re.compile(r"\\(?=[^\w\s])")
CONTEXT = 2
"""[H] Lines shown before and after one that matches."""
SHOWN = 400
"""[H] Characters of a matching line that are shown, around the match."""
SHOWN_BESIDE = 160
"""[H] Characters of a neighbour that are shown."""


class Row(NamedTuple):
    """A line, or a piece of one that is long."""

    line: int
    start: int
    """The character it begins at."""
    text: str
    ahead: str = ""
    """What follows on the same line, as far as it is looked at."""


class Find(NamedTuple):
    """A row that matches, as it is shown, and the character it begins at."""

    start: int
    text: str


def query(text: str) -> Query:
    r"""Return what ``text`` asks for; raises ``FormatError`` where nothing is left to look for, or too much.

    A backslash before a mark (``\(``) may be meant or not, so both are looked for.
    """
    words = small(text.strip("\n"))
    if len(words) > LONGEST_QUERY or words.count("|") >= MOST_ALTERNATIVES:
        most = f"{LONGEST_QUERY} characters and {MOST_ALTERNATIVES} alternatives are the most"
        raise FormatError(f"the search has {len(words):,} characters and {words.count('|')} bars; {most}: give fewer")
    forms = dict.fromkeys((words, _ESCAPED.sub("", words)))
    wanted = [tuple([part for part in one.split(".*") if part]) for form in forms for one in form.split("|")]
    if "\n" in words or not any(wanted):
        raise FormatError(f"search={text[:40]!r} has no word to look for in a line; give some words of one line")
    return tuple(dict.fromkeys(one for one in wanted if one))


def small(text: str) -> str:
    """Return ``text`` in small letters, every character in its place whatever stands beside it."""
    low = text.casefold()
    return low if len(low) == len(text) else text.translate(_growing()).casefold()


@cache
def _growing() -> dict[int, str]:
    """Return the first small letter of each character that becomes several."""
    every = map(chr, range(sys.maxunicode + 1))
    return {ord(one): low[0] for one in every if len(low := one.casefold()) > 1}


def finds(read: Read, held: Extent, start: int, stop: int, wanted: Query) -> Iterator[Find]:
    """Yield the rows that begin at characters ``start`` to ``stop`` and match, each with its neighbours, in order."""
    before: deque[Row] = deque(maxlen=CONTEXT)
    waiting: list[str] = []
    found, after = -1, 0
    for row in _rows(read, held, start, stop, wanted):
        at = _match(row, wanted)
        if at is not None:
            if waiting:
                yield Find(found, "\n".join(waiting))
            waiting = [*(_beside(one) for one in before), _around(row, at)]
            before.clear()
            found, after = row.start, CONTEXT
        elif after:
            waiting.append(_beside(row))
            after -= 1
        else:
            before.append(row)
    if waiting:
        yield Find(found, "\n".join(waiting))


def _match(row: Row, wanted: Query) -> int | None:
    """Return where in a row the first alternative that is there begins; what begins ahead is the next row's."""
    text = small(row.text + row.ahead)
    starts = [at for one in wanted if 0 <= (at := _first(text, one)) < len(row.text)]
    return min(starts, default=None)


def _first(text: str, words: tuple[str, ...]) -> int:
    """Return where the first of ``words`` begins if all follow each other in ``text``, else -1."""
    begins, at = -1, 0
    for one in words:
        at = text.find(one, at)
        if at < 0:
            return -1
        begins = at if begins < 0 else begins
        at += len(one)
    return begins


def _rows(read: Read, held: Extent, start: int, stop: int, wanted: Query) -> Iterator[Row]:
    """Yield the rows of a range that may match, with their neighbours; what is beyond it is not looked at."""
    number = line_at(read, held, start)
    at, rest = start, ""
    for piece in pieces(read, start, stop):
        text = rest + piece.text
        end = text.rfind("\n") + 1
        yield from _likely(Row(number, at, text[:end]), small(text[:end]), wanted)
        number += text.count("\n", 0, end)
        at, rest = at + end, text[end:]
        while len(rest) >= LONGEST_ROW + OVERLAP:
            yield Row(number, at, rest[:LONGEST_ROW], rest[LONGEST_ROW : LONGEST_ROW + OVERLAP])
            at += LONGEST_ROW
            rest = rest[LONGEST_ROW:]
    yield from _parts(Row(number, at, rest))


def _likely(lines: Row, low: str, wanted: Query) -> Iterator[Row]:
    """Yield the rows of whole ``lines``, in small letters ``low``; where none can match, those at either end.

    A line matches only where all the words of an alternative are, so most lines need not be told apart.
    """
    text = lines.text
    half = low.find("\n", len(low) // 2) + 1
    if not any(all(word in low for word in one) for one in wanted):
        head, tail = _end_of_lines(text, CONTEXT), _start_of_lines(text, CONTEXT)
        if head < tail:
            yield from _split(lines._replace(text=text[:head]))
            yield from _split(_behind(lines, tail))
            return
    elif len(text) > FEW and half < len(text):
        yield from _likely(lines._replace(text=text[:half]), low[:half], wanted)
        yield from _likely(_behind(lines, half), low[half:], wanted)
        return
    yield from _split(lines)


def _behind(lines: Row, at: int) -> Row:
    """Return ``lines`` without their first ``at`` characters."""
    return Row(lines.line + lines.text.count("\n", 0, at), lines.start + at, lines.text[at:])


def _end_of_lines(text: str, count: int) -> int:
    """Return where the first ``count`` lines end, or their last where there are fewer."""
    at = 0
    for _ in range(count):
        at = text.find("\n", at) + 1 or len(text)
    return at


def _start_of_lines(text: str, count: int) -> int:
    """Return where the last ``count`` lines begin, each with its end."""
    at = len(text)
    for _ in range(count):
        at = text.rfind("\n", 0, max(0, at - 1)) + 1
    return at


def _split(lines: Row) -> Iterator[Row]:
    """Yield the rows of whole lines."""
    at = lines.start
    for number, line in enumerate(lines.text.split("\n")[:-1], lines.line):
        yield from _parts(Row(number, at, line))
        at += len(line) + 1


def _parts(row: Row) -> Iterator[Row]:
    """Yield a line in pieces of at most ``LONGEST_ROW``."""
    for at in range(0, max(1, len(row.text)), LONGEST_ROW):
        end = at + LONGEST_ROW
        yield Row(row.line, row.start + at, row.text[at:end], row.text[end : end + OVERLAP])


def _around(row: Row, at: int) -> str:
    """Return a row with a match as it is shown: a long one around its match, with where that stands."""
    text = row.text + row.ahead
    if len(text) <= SHOWN:
        return f"{row.line}: {text}"
    start = max(0, min(at - SHOWN // 4, len(text) - SHOWN))
    cut = text[start : start + SHOWN]
    return f"{row.line}: (from character {row.start + start}) …{cut}…"


def _beside(row: Row) -> str:
    return f"{row.line}- {row.text[:SHOWN_BESIDE]}{'…' if len(row.text) > SHOWN_BESIDE else ''}"
