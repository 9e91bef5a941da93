"""Where the kept tail begins: our own rule, unless the policy has another; all cut at legal places only."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.messages.cut_points import find_cut_points
from holdfast.messages.message import Message
from holdfast.planning.builder import PlanBuilder
from holdfast.planning.shown_messages import list_shown_messages_from
from holdfast.state.conversation_state import ConversationState
from holdfast.state.turns import find_newest_answer_index
from holdfast.state.view import list_shown_indexes, list_shown_sized_messages_at


def list_tail_starts(builder: PlanBuilder) -> list[int]:
    """Return where the kept tail may begin, best first: slots of the branch, its end for no tail at all.

    Where a compaction has a goal, smaller tails follow the one of another rule than ours.
    """
    state = builder.state
    messages = list_shown_messages_from(state, state.view.first_kept)
    legal = find_cut_points(messages)
    if not legal:
        return []
    candidates = builder.rules.select_tail_starts(builder, messages, legal)
    if candidates is None:
        candidates = _select_by_share(builder, messages, legal)
    elif candidates and builder.settings.compaction.goal_share:
        smaller_tails = _select_by_share(builder, messages, legal)
        candidates = [*candidates, *(offset for offset in smaller_tails if offset > candidates[-1])]
    return [state.view.first_kept + offset for offset in candidates if offset in legal]


def find_tail_cut_points(state: ConversationState) -> list[int]:
    """Return the slots at which a kept tail may begin, ascending; the end is one where no call is open."""
    return [
        state.view.first_kept + offset
        for offset in find_cut_points(list_shown_messages_from(state, state.view.first_kept))
    ]


def _select_by_share(builder: PlanBuilder, messages: list[Message], cut_points: list[int]) -> list[int]:
    """Ours: the largest tail within its share of the room; else the newest group alone; else nothing.

    Results that the model waits for are kept with their calls wherever it begins.
    """
    budget = builder.to_estimator_tokens(builder.compute_compaction_share(builder.settings.compaction.tail_share))
    best = _find_largest_tail(builder.state, cut_points, budget)
    unseen = find_first_unseen_user_message(builder) - builder.state.view.first_kept
    shown_first = [offset for offset in cut_points if offset <= min(best, unseen)][-1:] if unseen < best else []
    newest = [offset for offset in cut_points if offset < len(messages)][-1:]
    candidates = dict.fromkeys([*shown_first, *([best] if best < len(messages) else []), *newest, cut_points[-1]])
    last = max(
        (
            offset
            for offset in cut_points
            if offset <= find_answer_with_unread_results(builder.state) - builder.state.view.first_kept
        ),
        default=cut_points[-1],
    )
    return list(dict.fromkeys([*(offset for offset in candidates if offset < last), last]))


def find_answer_with_unread_results(state: ConversationState) -> int:
    """Return the slot of the newest answer, where results behind it wait to be read; the end where none do."""
    newest = find_newest_answer_index(state, state.view.first_kept)
    waits = newest >= 0 and any(message.results for message in state.history.messages.slice(newest + 1))
    return newest if waits else len(state.history.sized_messages)


def find_first_unseen_user_message(builder: PlanBuilder) -> int:
    """Return the slot of the first message of the user that no request has shown yet; the end if there is none."""
    state = builder.state
    seen_count = (
        state.last_request.previous_coverage[0]
        if state.usage.learned_limits.overflows_since_answer
        else state.last_request.seen_count
    )  # what was refused nobody read
    places = range(max(state.view.first_kept, seen_count), len(state.history.sized_messages))
    return next(
        (index for index in places if state.history.messages[index].is_turn_start), len(state.history.sized_messages)
    )


def measure_tail(state: ConversationState, keep: int) -> int:
    """Return the size of the slots from ``keep`` on as the projection shows them, in estimator tokens."""
    return sum(
        sized_message.tokens
        for index in list_shown_indexes(state, keep)
        for sized_message in list_shown_sized_messages_at(state, index)
    )


def _find_largest_tail(state: ConversationState, cut_points: Sequence[int], budget: int) -> int:
    """Return the first legal place behind which no more than ``budget`` stands; looks no further back than that."""
    places = set(cut_points)
    stop = len(state.history.sized_messages) - state.view.first_kept
    best, tail_tokens = stop, 0
    for place in range(stop - 1, -1, -1):
        tail_tokens += sum(
            sized_message.tokens for sized_message in list_shown_sized_messages_at(state, state.view.first_kept + place)
        )
        if tail_tokens > budget:
            break
        if place in places:
            best = place
    return best
