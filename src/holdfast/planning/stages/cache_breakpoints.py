"""Cache breakpoints: where a request tells the provider to remember its prefix."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from itertools import chain

from holdfast.planning.settings import Settings
from holdfast.planning.stages.escape_tags import NEUTRALISE
from holdfast.state.branch.branch import Branch
from holdfast.state.branch.view import leading, origins, patched_position
from holdfast.state.edits import Edit
from holdfast.state.plan import Options
from holdfast.state.target import Target

AT_CREATION = frozenset({"spill", "lines", NEUTRALISE})
"""Rules of edits on what no request had shown: what stands before them was never read otherwise."""


def breakpoints(branch: Branch, repair: tuple[Edit, ...], target: Target, settings: Settings) -> Options:
    """Return the options with markers on the tail, where the last request still stands, the frontier, and between.

    ``branch`` is as it was before this request. The marker where the last one still stands (its tail, as a
    rule) hits the cache however many blocks were added since; the ones at the end of the frame and at the frontier
    survive the next change behind them. Most important first; none where the API has no explicit ones.
    """
    most = target.dialect.markers
    place = _placing(branch)
    tail = place(len(branch.slots) - 1)
    left = tail + 1 + sum(len(edit.put) - (edit.span.stop - edit.span.start) for edit in repair)
    if most == 0 or left <= 0 or settings.markers == "none":
        return Options()
    if settings.markers == "tail":
        return Options(markers=(patched_position(tail, repair),))
    every = settings.markers_every if target.cache.lookback is not None else 0
    others = (max(branch.standing, branch.keep) - 1, _frontier(branch))
    wanted = chain((tail,), map(place, others), map(place, _between(branch, every)))
    chosen: dict[int, None] = {}
    while len(chosen) < max(1, most - 1) and (one := next(wanted, None)) is not None:
        if one >= branch.pinned or one == tail:
            chosen[patched_position(one, repair)] = None
    return Options(markers=tuple(chosen), frame_marker=most > 1)


def _placing(branch: Branch) -> Callable[[int], int]:
    """Return what tells where in the projection the last of what stands for a slot, or before it, is."""
    lead = leading(branch)
    if not any(edit.span.part is None for _, edits in branch.edits.find_from(branch.keep) for edit in edits):
        return lambda index: lead + max(index, branch.keep - 1) - branch.keep
    homes = origins(branch)[lead:]
    return lambda index: lead + bisect_right(homes, index) - 1


def _frontier(branch: Branch) -> int:
    """Return the last slot in which something that had been shown was replaced, or the one before the kept ones."""
    changed = (
        index
        for index, edits in branch.edits.find_from(branch.keep)
        if any(edit.rule not in AT_CREATION for edit in edits)
    )
    return max(changed, default=branch.keep - 1)


def _between(branch: Branch, every: int) -> Iterator[int]:
    """Yield slots from the newest back to what was seen, with at least so many blocks behind each; 0 is none."""
    blocks = 0
    for index in range(len(branch.slots) - 1, max(branch.seen, branch.keep) - 1, -1) if every else ():
        if blocks >= every:
            blocks = 0
            yield index
        blocks += len(branch.messages[index].parts)
