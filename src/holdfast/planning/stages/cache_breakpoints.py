"""Cache breakpoints: the places at which a request tells the provider to remember its prefix.

Without explicit breakpoints Anthropic's API caches nothing. It looks for a cached prefix at each breakpoint and up to
20 blocks before it, so breakpoints must stand where an earlier request had one, or near to it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator

from holdfast.planning.extract.summary_builder import count_extract_parts
from holdfast.planning.settings import Settings
from holdfast.planning.shown_messages import has_whole_message_edit
from holdfast.planning.stages.escape_tags import ESCAPE_RULE
from holdfast.state.conversation_state import ConversationState
from holdfast.state.edits import Edit
from holdfast.state.plan import PlanOptions
from holdfast.state.target import Target
from holdfast.state.view import count_leading_messages, list_projection_origins, map_normalized_position

CREATION_RULES = frozenset({"spill", "lines", ESCAPE_RULE})
"""Rules of edits on content that no request had shown. They do not change the cached prefix, since it never held what
they replace."""


def choose_cache_breakpoints(
    state: ConversationState,
    normalization: tuple[Edit, ...],
    target: Target,
    settings: Settings,
) -> PlanOptions:
    """Return the plan's options with its cache breakpoints; without any if the API has no explicit ones.

    ``state`` is as it was before this request. The breakpoints count positions in the request, after ``normalization``.
    """
    max_breakpoints = target.dialect.max_cache_breakpoints
    get_position = _build_position_lookup(state)
    tail = get_position(len(state.history.sized_messages) - 1)
    message_count = tail + 1
    for edit in normalization:
        message_count += len(edit.replacement) - (edit.span.stop - edit.span.start)
    if max_breakpoints == 0 or message_count <= 0 or settings.cache.breakpoints == "none":
        return PlanOptions()
    if settings.cache.breakpoints == "tail":
        return PlanOptions(cache_breakpoints=(map_normalized_position(tail, normalization),))
    # One of the API's breakpoints is left to the setup.
    max_message_breakpoints = max(1, max_breakpoints - 1)
    inner_breakpoint = _find_inner_breakpoint(state)
    breakpoints: dict[int, None] = {}
    for position in _list_candidate_positions(state, target, settings, get_position):
        # A breakpoint on a pinned system message would cost one for what the one on the setup covers already.
        if position >= state.view.pinned_count or position == tail:
            breakpoints[map_normalized_position(position, normalization)] = None
        if len(breakpoints) == max_message_breakpoints:
            break
    if inner_breakpoint is not None:
        summary_position = map_normalized_position(inner_breakpoint[0], normalization)
        inner_breakpoint = (summary_position, inner_breakpoint[1]) if summary_position in breakpoints else None
    return PlanOptions(
        cache_breakpoints=tuple(breakpoints),
        inner_breakpoint=inner_breakpoint,
        setup_breakpoint=max_breakpoints > 1,
    )


def _find_inner_breakpoint(state: ConversationState) -> tuple[int, int] | None:
    """Return the position of the summary and how many of its parts the next compaction may leave as they are.

    Return None if that is all of them or none.
    """
    compaction = state.view.compaction
    if compaction is None or compaction.summary is None:
        return None
    lasting_count = count_extract_parts(compaction)
    if not 0 < lasting_count < len(compaction.summary.parts):
        return None
    return state.view.pinned_count, lasting_count


def _list_candidate_positions(
    state: ConversationState,
    target: Target,
    settings: Settings,
    get_position: Callable[[int], int],
) -> Iterator[int]:
    """Yield the positions of the request that may have a breakpoint, the most important first."""
    view = state.view
    # The tail, so that the next request can read all of this one.
    yield get_position(len(state.history.sized_messages) - 1)
    # The end of what the last request showed and nothing has changed since, its tail as a rule. It has an entry in the
    # cache, and is found there however many blocks were added.
    yield get_position(max(state.last_request.unchanged_until, view.first_kept) - 1)
    # The "frontier" of the setting: the last message that a decision changed. A policy that clears old results a few at
    # a time changes messages after this place next, so the prefix up to here stays valid and can be read from the
    # cache. In replays of such a policy, requests with a breakpoint here cost a quarter of what they cost with one at
    # the tail alone.
    yield get_position(_find_last_changed_message(state))
    # Places in between, for a fork or a retry that begins in the middle of new content.
    if target.cache_rules.lookback is not None and settings.cache.breakpoint_interval_blocks:
        for index in _find_intermediate_indexes(state, settings.cache.breakpoint_interval_blocks):
            yield get_position(index)


def _build_position_lookup(state: ConversationState) -> Callable[[int], int]:
    """Return a function that maps a message index to the last position of the request that shows it.

    For a message that is not shown it is the position before it.
    """
    view = state.view
    leading_count = count_leading_messages(state)
    if not _has_whole_message_edits(state):
        # Every kept message stands for itself, so positions need no list of the whole request.
        return lambda index: leading_count + max(index, view.first_kept - 1) - view.first_kept
    origins = list_projection_origins(state)[leading_count:]
    return lambda index: leading_count + bisect_right(origins, index) - 1


def _has_whole_message_edits(state: ConversationState) -> bool:
    """Return whether a custom stage replaced kept messages as a whole."""
    edits_by_message = state.view.edits.iter_from(state.view.first_kept)
    return any(has_whole_message_edit(edits) for _, edits in edits_by_message)


def _find_last_changed_message(state: ConversationState) -> int:
    """Return the index of the last message in which something that a request had shown was replaced.

    If there is none, return the index before the first kept message: the summary is shown there.
    """
    last_changed = state.view.first_kept - 1
    for index, edits in state.view.edits.iter_from(state.view.first_kept):
        if any(edit.rule not in CREATION_RULES for edit in edits):
            last_changed = max(last_changed, index)
    return last_changed


def _find_intermediate_indexes(state: ConversationState, interval: int) -> Iterator[int]:
    """Yield message indexes in the new content, newest first, each with at least ``interval`` blocks after it."""
    first_new = max(state.last_request.seen_count, state.view.first_kept)
    blocks = 0
    for index in range(len(state.history.sized_messages) - 1, first_new - 1, -1):
        if blocks >= interval:
            blocks = 0
            yield index
        blocks += len(state.history.messages[index].parts)
