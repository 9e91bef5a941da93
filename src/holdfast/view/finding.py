"""Searching a long text: the lines that match, with their numbers and their neighbours.

What is searched for is plain words, upper and lower case alike. ``a|b`` is either, and ``a.*b`` is both on one line in
this order. There is no other pattern, so a search takes time linear in the text, whatever a model asks for; and a line
that has the words just as they were written, marks and all, always matches.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

from holdfast.errors import FormatError
from holdfast.view.extent import Extent, Read, line_at, pieces

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
    return low if len(low) == len(text) else "".join([one.casefold()[0] for one in text])


def finds(read: Read, held: Extent, start: int, stop: int, wanted: Query) -> Iterator[Find]:
    """Yield the rows that begin at characters ``start`` to ``stop`` and match, each with its neighbours, in order."""
    before: deque[Row] = deque(maxlen=CONTEXT)
    waiting: list[str] = []
    found, after = -1, 0
    for row in _rows(read, held, start, stop):
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


def _rows(read: Read, held: Extent, start: int, stop: int) -> Iterator[Row]:
    """Yield the rows of a range; what is beyond it is not looked at."""
    number = line_at(read, held, start)
    at, rest = start, ""
    for piece in pieces(read, start, stop):
        *whole, rest = (rest + piece.text).split("\n")
        for line in whole:
            yield from _parts(Row(number, at, line))
            at += len(line) + 1
            number += 1
        while len(rest) >= LONGEST_ROW + OVERLAP:
            yield Row(number, at, rest[:LONGEST_ROW], rest[LONGEST_ROW : LONGEST_ROW + OVERLAP])
            at += LONGEST_ROW
            rest = rest[LONGEST_ROW:]
    yield from _parts(Row(number, at, rest))


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
