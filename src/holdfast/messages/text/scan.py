"""Measure a text that is read piece by piece, and find its lines, without holding it whole.

The text is read through once, counting the line ends of each piece. After that any line is found by reading one piece.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeAlias

from msgspec import Struct

TextReader: TypeAlias = Callable[[int, int], str]
"""Return characters ``start`` to ``stop`` of a text; fewer at its end."""

SCAN_PIECE_CHARS = 1 << 16
"""Characters that are read at once. It bounds the memory of a scan; chosen by judgement."""


class TextPiece(NamedTuple):
    """A part of a text, and the position of its first character."""

    start: int
    text: str


class TextExtent(Struct, frozen=True):
    """The length of a text, and how many line ends come before each of its pieces (last: in all of it)."""

    chars: int
    line_ends_before: tuple[int, ...]

    @property
    def lines(self) -> int:
        """Number of lines, including the one after the last line end: an empty text has one."""
        return self.line_ends_before[-1] + 1


def make_text_reader(text: str) -> TextReader:
    """Return a reader of a text that is in memory."""
    return lambda start, stop: text[start:stop]


def measure_extent(read_range: TextReader) -> TextExtent:
    """Measure a text by reading it once, one piece at a time."""
    chars, ends = 0, [0]
    while text := read_range(chars, chars + SCAN_PIECE_CHARS):
        chars += len(text)
        ends.append(ends[-1] + text.count("\n"))
    return TextExtent(chars, tuple(ends))


def iter_text_pieces(read_range: TextReader, start: int, stop: int) -> Iterator[TextPiece]:
    """Yield characters ``start`` to ``stop`` in pieces."""
    for piece_start in range(start, stop, SCAN_PIECE_CHARS):
        yield TextPiece(piece_start, read_range(piece_start, min(stop, piece_start + SCAN_PIECE_CHARS)))


def find_line_start(read_range: TextReader, extent: TextExtent, number: int) -> int:
    """Return the position at which line ``number`` (from 1) begins, or the text's length past the last line."""
    if number <= 1:
        return 0
    if number > extent.lines:
        return extent.chars
    line_ends = number - 1
    piece = bisect_left(extent.line_ends_before, line_ends) - 1
    piece_start = piece * SCAN_PIECE_CHARS
    text = read_range(piece_start, piece_start + SCAN_PIECE_CHARS)
    line_end = -1
    for _ in range(line_ends - extent.line_ends_before[piece]):
        line_end = text.index("\n", line_end + 1)
    return piece_start + line_end + 1


def find_line_number(read_range: TextReader, extent: TextExtent, char: int) -> int:
    """Return the number, from 1, of the line that contains character ``char``."""
    if char >= extent.chars:
        return extent.lines
    piece = char // SCAN_PIECE_CHARS
    text_before = read_range(piece * SCAN_PIECE_CHARS, char)
    return extent.line_ends_before[piece] + text_before.count("\n") + 1
