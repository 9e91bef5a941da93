"""Unread results: what answers the newest calls is cut short, each to a fair share, before any of it is folded away."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from holdfast.messages.message import part_text, result_text
from holdfast.messages.parts import ToolResult
from holdfast.messages.size.tokens import count
from holdfast.planning.builder import Draft
from holdfast.planning.presets.measures import shown_parts
from holdfast.planning.stages.smallest_request import LEVELS, NOTICE, UNREAD, cut_text
from holdfast.planning.stages.spill import replaced
from holdfast.planning.stages.tail_selection import open_turn, tail_size
from holdfast.state.branch.view import shown_slots
from holdfast.state.edits import Blob, Edit, Span


def shorten_unread(draft: Draft, share: int, tail: int) -> Draft:
    """Return the draft with the results that the model waits for cut to ``share`` tokens together, or to the least.

    ``tail`` is what they and all that stands with them may take. Images and documents stay.
    """
    branch, start = draft.branch, open_turn(draft.branch)
    held = [
        (index, place, part)
        for index in shown_slots(branch, start)
        for place, part in shown_parts(branch, index).items()
        if isinstance(part, ToolResult)
    ]
    sizes = [count(result_text(part)) for _, _, part in held]
    beside = tail_size(branch, start) - sum(sizes)
    each = max(_fair(sizes, min(draft.own(share), draft.own(tail) - beside)) - NOTICE, LEVELS[-1][1])
    return draft.give_way(pair for one in held for pair in _cut(draft, *one, each))


def _fair(sizes: Sequence[int], most: int) -> int:
    """Return how much each of ``sizes`` may have at most, so that together they have no more than ``most``."""
    left = most
    for index, size in enumerate(sorted(sizes)):
        share = left // (len(sizes) - index)
        if size > share:
            return share
        left -= size
    return max(sizes, default=0) + NOTICE


def _cut(draft: Draft, slot: int, place: int, shown: ToolResult, most: int) -> Iterator[tuple[Edit, Blob | None]]:
    """Yield the edit that shows a result in about ``most`` tokens, and its whole text, where that is shorter."""
    text = result_text(shown)
    short, blob = cut_text(draft, text, part_text(draft.branch.messages[slot].parts[place]), most)
    saves = count(text) - count(short)
    if saves > 0:
        why = f"{len(text):,} characters shown, {len(short):,} stay: all that the model waits for must fit together"
        put = (replaced(shown, short),)
        yield Edit(Span(slot, slot + 1, place), put, UNREAD, why, saves, blob.hash if blob else ""), blob
