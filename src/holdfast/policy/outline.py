"""An outline of a text that is not shown: the lines that name most things for their length, with their numbers."""

from __future__ import annotations

from holdfast.policy.cover import lazy_greedy
from holdfast.policy.settings import KINDS, LONGEST_OUTLINE_LINE
from holdfast.view.references import Reference, background, of_piece
from holdfast.view.text import one_line


def outline(text: str, chars: int, first: int = 1) -> list[str]:
    """Return lines of ``text`` as ``number: line``, in order, together within ``chars``; ``first`` is its first line.

    Each name counts once, so the lines are chosen to be about different things.
    """
    if chars <= 0:
        return []
    known = background()
    candidates: list[tuple[list[Reference], int]] = []
    shown: list[str] = []
    weights: dict[Reference, float] = {}
    for number, line in enumerate(text.split("\n"), first):
        short = one_line(line, LONGEST_OUTLINE_LINE)
        refs = [ref for piece in short.split() for ref in of_piece(piece) if ref[1] not in known]
        if refs:
            weights.update((ref, KINDS.get(ref[0], 1.0)) for ref in refs)
            shown.append(f"{number}: {short}")
            candidates.append((refs, len(shown[-1]) + 1))
    chosen = sorted(lazy_greedy(candidates, weights, chars))
    return [shown[number] for number in chosen]
