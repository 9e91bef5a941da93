"""Cache breakpoints: where a request tells the provider to remember its prefix."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from itertools import chain

from holdfast.planning.settings import Settings
from holdfast.planning.stages.escape_tags import ESCAPE_RULE
from holdfast.state.conversation_state import ConversationState
from holdfast.state.edits import Edit
from holdfast.state.plan import PlanOptions
from holdfast.state.target import Target
from holdfast.state.view import count_leading_messages, list_projection_origins, map_normalized_position

CREATION_RULES = frozenset({"spill", "lines", ESCAPE_RULE})
"""Rules of edits on what no request had shown: what stands before them was never read otherwise."""


def choose_cache_breakpoints(
    state: ConversationState, normalization: tuple[Edit, ...], target: Target, settings: Settings
) -> PlanOptions:
    """Return the options with markers on the tail, where the last request still stands, the frontier, and between.

    ``state`` is as it was before this request. The marker where the last one still stands (its tail, as a
    rule) hits the cache however many blocks were added since; the ones at the end of the frame and at the frontier
    survive the next change behind them. Most important first; none where the API has no explicit ones.
    """
    max_markers = target.dialect.max_cache_breakpoints
    place = _build_position_lookup(state)
    tail = place(len(state.history.sized_messages) - 1)
    message_count = tail + 1 + sum(len(edit.replacement) - (edit.span.stop - edit.span.start) for edit in normalization)
    if max_markers == 0 or message_count <= 0 or settings.cache.breakpoints == "none":
        return PlanOptions()
    if settings.cache.breakpoints == "tail":
        return PlanOptions(cache_breakpoints=(map_normalized_position(tail, normalization),))
    every = settings.cache.breakpoint_interval_blocks if target.cache_rules.lookback is not None else 0
    other_indexes = (max(state.last_request.unchanged_until, state.view.first_kept) - 1, _find_mutation_frontier(state))
    candidates = chain((tail,), map(place, other_indexes), map(place, _find_intermediate_indexes(state, every)))
    chosen: dict[int, None] = {}
    while len(chosen) < max(1, max_markers - 1) and (position := next(candidates, None)) is not None:
        if position >= state.view.pinned_count or position == tail:
            chosen[map_normalized_position(position, normalization)] = None
    return PlanOptions(cache_breakpoints=tuple(chosen), setup_breakpoint=max_markers > 1)


def _build_position_lookup(state: ConversationState) -> Callable[[int], int]:
    """Return what tells where in the projection the last of what stands for a slot, or before it, is."""
    lead = count_leading_messages(state)
    if not any(
        edit.span.part is None for _, edits in state.view.edits.iter_from(state.view.first_kept) for edit in edits
    ):
        return lambda index: lead + max(index, state.view.first_kept - 1) - state.view.first_kept
    homes = list_projection_origins(state)[lead:]
    return lambda index: lead + bisect_right(homes, index) - 1


def _find_mutation_frontier(state: ConversationState) -> int:
    """Return the last slot in which something that had been shown was replaced, or the one before the kept ones."""
    changed_indexes = (
        index
        for index, edits in state.view.edits.iter_from(state.view.first_kept)
        if any(edit.rule not in CREATION_RULES for edit in edits)
    )
    return max(changed_indexes, default=state.view.first_kept - 1)


def _find_intermediate_indexes(state: ConversationState, interval: int) -> Iterator[int]:
    """Yield slots from the newest back to what was seen, with at least so many blocks behind each; 0 is none."""
    blocks = 0
    for index in (
        range(len(state.history.sized_messages) - 1, max(state.last_request.seen_count, state.view.first_kept) - 1, -1)
        if interval
        else ()
    ):
        if blocks >= interval:
            blocks = 0
            yield index
        blocks += len(state.history.messages[index].parts)
