"""A text that is read piece by piece: how long it is, and where its lines stand, without holding it whole.

It is walked once, which leaves a mark at every piece; from then on any line is found at the cost of a piece.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeAlias

from msgspec import Struct

TextReader: TypeAlias = Callable[[int, int], str]
"""Characters ``start`` to ``stop`` of a text, fewer where it ends."""

SCAN_PIECE_CHARS = 1 << 16
"""Characters that are read at once."""


class TextPiece(NamedTuple):
    """A part of a text, and the character it begins at."""

    start: int
    text: str


class TextExtent(Struct, frozen=True):
    """How long a text is, and how many line ends stand before each of its pieces; the last number is of all."""

    chars: int
    line_ends_before: tuple[int, ...]

    @property
    def lines(self) -> int:
        """Lines, the one behind the last line end too: an empty text has one."""
        return self.line_ends_before[-1] + 1


def make_text_reader(text: str) -> TextReader:
    """Return ``text`` in the form in which it is read."""
    return lambda start, stop: text[start:stop]


def measure_extent(read_range: TextReader) -> TextExtent:
    """Return how long a text is; it is walked once, and one piece is held at a time."""
    chars, ends = 0, [0]
    while text := read_range(chars, chars + SCAN_PIECE_CHARS):
        chars += len(text)
        ends.append(ends[-1] + text.count("\n"))
    return TextExtent(chars, tuple(ends))


def iter_text_pieces(read_range: TextReader, start: int, stop: int) -> Iterator[TextPiece]:
    """Yield characters ``start`` to ``stop`` in pieces."""
    for at in range(start, stop, SCAN_PIECE_CHARS):
        yield TextPiece(at, read_range(at, min(stop, at + SCAN_PIECE_CHARS)))


def find_line_start(read_range: TextReader, extent: TextExtent, number: int) -> int:
    """Return the character that line ``number`` begins at, counted from 1; the end of the text where there is none."""
    if number <= 1:
        return 0
    if number > extent.lines:
        return extent.chars
    ends = number - 1  # line ends before it
    before = bisect_left(extent.line_ends_before, ends) - 1
    text = read_range(before * SCAN_PIECE_CHARS, (before + 1) * SCAN_PIECE_CHARS)
    at = -1
    for _ in range(ends - extent.line_ends_before[before]):
        at = text.index("\n", at + 1)
    return before * SCAN_PIECE_CHARS + at + 1


def find_line_number(read_range: TextReader, extent: TextExtent, char: int) -> int:
    """Return the number of the line that character ``char`` belongs to."""
    number = char // SCAN_PIECE_CHARS
    if char >= extent.chars:
        return extent.lines
    return extent.line_ends_before[number] + read_range(number * SCAN_PIECE_CHARS, char).count("\n") + 1
