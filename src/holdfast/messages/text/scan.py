"""A text that is read piece by piece: how long it is, and where its lines stand, without holding it whole.

It is walked once, which leaves a mark at every piece; from then on any line is found at the cost of a piece.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeAlias

from msgspec import Struct

Read: TypeAlias = Callable[[int, int], str]
"""Characters ``start`` to ``stop`` of a text, fewer where it ends."""

PIECE = 1 << 16
"""Characters that are read at once."""


class Piece(NamedTuple):
    """A part of a text, and the character it begins at."""

    start: int
    text: str


class Extent(Struct, frozen=True):
    """How long a text is, and how many line ends stand before each of its pieces; the last number is of all."""

    chars: int
    ends: tuple[int, ...]

    @property
    def lines(self) -> int:
        """Lines, the one behind the last line end too: an empty text has one."""
        return self.ends[-1] + 1


def reader(text: str) -> Read:
    """Return ``text`` in the form in which it is read."""
    return lambda start, stop: text[start:stop]


def extent(read: Read) -> Extent:
    """Return how long a text is; it is walked once, and one piece is held at a time."""
    chars, ends = 0, [0]
    while text := read(chars, chars + PIECE):
        chars += len(text)
        ends.append(ends[-1] + text.count("\n"))
    return Extent(chars, tuple(ends))


def pieces(read: Read, start: int, stop: int) -> Iterator[Piece]:
    """Yield characters ``start`` to ``stop`` in pieces."""
    for at in range(start, stop, PIECE):
        yield Piece(at, read(at, min(stop, at + PIECE)))


def line_start(read: Read, held: Extent, number: int) -> int:
    """Return the character that line ``number`` begins at, counted from 1; the end of the text where there is none."""
    if number <= 1:
        return 0
    if number > held.lines:
        return held.chars
    ends = number - 1  # line ends before it
    before = bisect_left(held.ends, ends) - 1
    text = read(before * PIECE, (before + 1) * PIECE)
    at = -1
    for _ in range(ends - held.ends[before]):
        at = text.index("\n", at + 1)
    return before * PIECE + at + 1


def line_at(read: Read, held: Extent, char: int) -> int:
    """Return the number of the line that character ``char`` belongs to."""
    number = char // PIECE
    if char >= held.chars:
        return held.lines
    return held.ends[number] + read(number * PIECE, char).count("\n") + 1
