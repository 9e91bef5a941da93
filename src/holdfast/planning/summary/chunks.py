"""Parts: a conversation divided so that the writer of a summary can read each; nothing is left out of all of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from msgspec import Struct

from holdfast.errors import CompactionFailed
from holdfast.messages.cut_points import legal_cuts
from holdfast.messages.message import Message
from holdfast.messages.size.tokens import count
from holdfast.planning.settings import Settings
from holdfast.planning.summary.grapheme_cuts import ends
from holdfast.planning.summary.rendering import Style, rendered

_JOINT = 2
"""Tokens that the empty line between two blocks costs at most, with what rounding hides."""
LEAST_ROOM = 500
"""Tokens under which a part holds too little to be worth a request. [H]"""
_LEAST_CHARS = 40
"""Characters that every text keeps while there is another way to make a part fit."""


class Part(Struct, frozen=True):
    """Messages ``start`` to ``stop`` of a head, as text."""

    start: int
    stop: int
    text: str
    tokens: int
    """Of the estimator."""


def room(window: int, output: int, fixed: int, scale: float, settings: Settings) -> int:
    """Return the estimator tokens that one part may have in a ``window``, beside ``output`` and ``fixed`` ones.

    ``scale`` real tokens are one of the estimator. Raises ``CompactionFailed`` where no useful part would fit.
    """
    overhead = min(settings.summary_overhead, window // 8)
    left = int((window - output - overhead) / settings.summary_safety / scale) - fixed
    if left < LEAST_ROOM:
        raise CompactionFailed(
            f"a window of {window:,} tokens leaves {max(0, left):,} for what is to be summarised, beside {output:,} of"
            f" output and {fixed:,} of instructions; let a model with a larger window write summaries"
        )
    return left


def parts(head: Sequence[Message], size: int, style: Style = Style()) -> tuple[Part, ...]:
    """Return ``head`` in parts of about equal size, each of at most ``size`` estimator tokens, every message in one.

    A call and its results are in the same part. What is longer than ``size`` alone is told shorter.
    """
    atoms = [_part(head, start, stop, size, style) for start, stop in pairwise(_places(head))]
    return tuple([_joined(group) for group in packed(atoms, size)])


def packed(atoms: Sequence[Part], size: int) -> Iterator[list[Part]]:
    """Yield neighbours together, each group within ``size`` and about as large as the others."""
    costs = [one.tokens + _JOINT for one in atoms]
    share = sum(costs) / max(1, math.ceil(sum(costs) / max(1, size)))
    held: list[Part] = []
    tokens = 0
    for one, cost in zip(atoms, costs, strict=True):
        if held and (tokens + cost > size + _JOINT or tokens >= share):
            yield held
            held, tokens = [], 0
        held.append(one)
        tokens += cost
    if held:
        yield held


def _places(head: Sequence[Message]) -> list[int]:
    return sorted({0, len(head), *legal_cuts(head)})


def _part(head: Sequence[Message], start: int, stop: int, size: int, style: Style) -> Part:
    text = told_within(head[start:stop], size, style)
    return Part(start, stop, text, count(text))


def _joined(group: Sequence[Part]) -> Part:
    text = "\n\n".join([one.text for one in group if one.text])
    return Part(group[0].start, group[-1].stop, text, count(text))


# -- what is too long --------------------------------------------------------------------------------------------------


def told_within(messages: Iterable[Message], size: int, style: Style = Style()) -> str:
    """Return ``messages`` as text of at most ``size`` tokens: every text of theirs is cut shorter until all fit."""
    held = list(messages)
    text = rendered(held, style)
    most = len(text)
    while count(text) > size and most > _LEAST_CHARS:
        most //= 2
        text = rendered(held, style.at_most(max(_LEAST_CHARS, most)))
    return shortened(text, size)


def shortened(text: str, size: int) -> str:
    """Return ``text`` in at most ``size`` tokens: its start, and its end."""
    told, most = text, len(text)
    while (tokens := count(told)) > size:
        most = min(most * 3 // 4, most * max(0, size) // tokens)
        head, end = ends(text, most, 0.5)
        told = f"{head}\n[...]\n{end}" if most > _LEAST_CHARS else head
    return told
