"""An outline of a text that is not shown: the lines that name most things for their length, with their numbers."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.messages.references import Reference, background, of_piece
from holdfast.messages.text.cutting import one_line
from holdfast.planning.extract.max_coverage import lazy_greedy
from holdfast.planning.settings import KINDS, LONGEST_OUTLINE_LINE, OUTLINE_PLACES, OUTLINE_SCAN


def outline(text: str, chars: int, first: int = 1, start: int = 0, stop: int | None = None) -> list[str]:
    """Return lines of ``text`` as ``number: line``, in order, together within ``chars``.

    Only what lies between characters ``start`` and ``stop`` is looked at; ``first`` is the number of the line there.
    Each name counts once, so the lines are chosen to be about different things. Of a very long text some places are
    read, evenly spaced.
    """
    if chars <= 0:
        return []
    known = background()
    candidates: list[tuple[list[Reference], int]] = []
    shown: list[str] = []
    weights: dict[Reference, float] = {}
    for number, line in _lines(text, first, start, len(text) if stop is None else stop):
        short = one_line(line, LONGEST_OUTLINE_LINE)
        refs = [ref for piece in short.split() for ref in of_piece(piece) if ref[1] not in known]
        if refs:
            weights.update((ref, KINDS.get(ref[0], 1.0)) for ref in refs)
            shown.append(f"{number}: {short}")
            candidates.append((refs, len(shown[-1]) + 1))
    chosen = sorted(lazy_greedy(candidates, weights, chars))
    return [shown[number] for number in chosen]


def _lines(text: str, first: int, start: int, stop: int) -> Iterator[tuple[int, str]]:
    """Yield the lines between ``start`` and ``stop`` with their numbers; of more than ``OUTLINE_SCAN``, a sample."""
    if stop - start <= OUTLINE_SCAN:
        yield from enumerate(text[start:stop].split("\n"), first)
        return
    step, size = (stop - start) // OUTLINE_PLACES, OUTLINE_SCAN // OUTLINE_PLACES
    for at in range(start, stop - size, step):
        begin, end = text.find("\n", at, at + size) + 1, text.rfind("\n", at, at + size)
        if 0 < begin <= end:  # whole lines
            yield from enumerate(text[begin:end].split("\n"), first + text.count("\n", start, begin))
