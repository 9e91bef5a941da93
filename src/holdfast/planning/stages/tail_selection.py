"""Where the tail that a compaction keeps may begin: by our own rule, or by the rule of the policy.

A tail begins at a legal cut point only, so that no call is separated from its results and no open call is summarized
(invariant calls-with-results, docs/invariants.md).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from holdfast.messages.cut_points import find_cut_points
from holdfast.messages.message import Message
from holdfast.planning.builder import PlanBuilder
from holdfast.planning.shown_messages import list_shown_messages_from
from holdfast.state.conversation_state import ConversationState
from holdfast.state.turns import find_newest_answer_index
from holdfast.state.view import list_shown_indexes, list_shown_sized_messages_at


def list_tail_starts(builder: PlanBuilder) -> list[int]:
    """Return the message indexes at which the kept tail may begin, best first.

    The index after the last message stands for no tail at all. If the policy has a rule of its own and a compaction
    must reach a goal, the smaller tails of our rule follow: one that is too large would otherwise leave no way to
    compact.
    """
    state = builder.state
    messages = list_shown_messages_from(state, state.view.first_kept)
    cut_points = find_cut_points(messages)
    if not cut_points:
        return []
    offsets = builder.rules.select_tail_starts(builder, messages, cut_points)
    if offsets is None:
        offsets = _select_by_share(builder, messages, cut_points)
    elif offsets and builder.settings.compaction.goal_share:
        smallest_tail = offsets[-1]
        smaller_tails = []
        for offset in _select_by_share(builder, messages, cut_points):
            if offset > smallest_tail:
                smaller_tails.append(offset)
        offsets = [*offsets, *smaller_tails]
    return [state.view.first_kept + offset for offset in offsets if offset in cut_points]


def find_tail_cut_points(state: ConversationState) -> list[int]:
    """Return every message index at which a kept tail may begin, ascending.

    The index after the last message is among them unless a call is open.
    """
    first_kept = state.view.first_kept
    return [first_kept + offset for offset in find_cut_points(list_shown_messages_from(state, first_kept))]


def _select_by_share(builder: PlanBuilder, messages: list[Message], cut_points: list[int]) -> list[int]:
    """Return the offsets of our own rule, best first: the largest tail within its share, then smaller ones.

    The smaller ones are the newest call group alone, then nothing. No tail begins after the newest answer while its
    results are unread: they stay with their calls.
    """
    first_kept = builder.state.view.first_kept
    end = len(messages)
    budget = builder.to_estimator_tokens(builder.compute_compaction_share(builder.settings.compaction.tail_share))
    largest = _find_largest_tail(builder.state, cut_points, budget)
    first_unseen = find_first_unseen_user_message(builder) - first_kept

    candidates: list[int | None] = []
    if first_unseen < largest:
        # Invariant newest-user-message (docs/invariants.md): a user message that no request has shown yet is kept even
        # if the tail then exceeds its share.
        candidates.append(find_last_cut_point(cut_points, first_unseen))
    if largest < end:
        candidates.append(largest)
    candidates.append(find_last_cut_point(cut_points, end - 1))
    candidates.append(cut_points[-1])

    unread_answer = find_answer_with_unread_results(builder.state) - first_kept
    latest = find_last_cut_point(cut_points, unread_answer)
    if latest is None:
        latest = cut_points[-1]
    earlier = []
    for offset in candidates:
        if offset is not None and offset < latest:
            earlier.append(offset)
    return list(dict.fromkeys([*earlier, latest]))


def find_last_cut_point(cut_points: Sequence[int], limit: int) -> int | None:
    """Return the last of the ascending ``cut_points`` that is at most ``limit``, or None if all are over it."""
    count = bisect_right(cut_points, limit)
    return cut_points[count - 1] if count else None


def find_answer_with_unread_results(state: ConversationState) -> int:
    """Return the index of the newest answer if results of its calls wait to be read.

    Otherwise return the number of messages, which is the position after every message.
    """
    newest_answer = find_newest_answer_index(state, state.view.first_kept)
    if newest_answer >= 0:
        newer_messages = state.history.messages.slice(newest_answer + 1)
        if any(message.results for message in newer_messages):
            return newest_answer
    return len(state.history.sized_messages)


def find_first_unseen_user_message(builder: PlanBuilder) -> int:
    """Return the index of the first user message that no answered request has shown.

    Otherwise return the number of messages, which is the position after every message.
    """
    state = builder.state
    seen_count = state.last_request.seen_count
    if state.usage.learned_limits.overflows_since_answer:
        # The newest request was refused, so the model has read only the messages of the one before it.
        seen_count = state.last_request.previous_coverage[0]
    end = len(state.history.sized_messages)
    for index in range(max(state.view.first_kept, seen_count), end):
        if state.history.messages[index].is_turn_start:
            return index
    return end


def measure_tail(state: ConversationState, keep: int) -> int:
    """Return the size in estimator tokens of the messages from index ``keep`` on, as a request shows them."""
    return sum(measure_shown_message(state, index) for index in list_shown_indexes(state, keep))


def measure_shown_message(state: ConversationState, index: int) -> int:
    """Return the size in estimator tokens of one message as a request shows it."""
    return sum(sized_message.tokens for sized_message in list_shown_sized_messages_at(state, index))


def _find_largest_tail(state: ConversationState, cut_points: Sequence[int], max_tokens: int) -> int:
    """Return the offset of the first cut point with at most ``max_tokens`` after it, or the end.

    The walk begins at the newest message and stops once the tail is too large, so it costs the size of the tail and not
    that of the history.
    """
    legal_offsets = set(cut_points)
    first_kept = state.view.first_kept
    end = len(state.history.sized_messages) - first_kept
    largest = end
    tail_tokens = 0
    for offset in range(end - 1, -1, -1):
        tail_tokens += measure_shown_message(state, first_kept + offset)
        if tail_tokens > max_tokens:
            break
        if offset in legal_offsets:
            largest = offset
    return largest
