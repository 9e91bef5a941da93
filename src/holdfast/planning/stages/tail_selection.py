"""Selection: where the kept tail begins. One rule for each policy; all cut at legal places only."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence

from msgspec import Struct

from holdfast.messages.cut_points import find_cut_points
from holdfast.messages.message import Message
from holdfast.planning.builder import PlanBuilder
from holdfast.planning.presets.measures import estimate_opencode_tokens, estimate_pi_tokens, list_shown_messages_from
from holdfast.planning.presets.triggers import compute_opencode_limit
from holdfast.planning.settings import Settings
from holdfast.state.conversation_state import ConversationState
from holdfast.state.target import ModelLimits
from holdfast.state.turns import find_newest_answer_index, find_turn_starts
from holdfast.state.view import list_shown_indexes, list_shown_sized_messages_at


def list_tail_starts(builder: PlanBuilder) -> list[int]:
    """Return where the kept tail may begin, best first: slots of the branch, its end for no tail at all.

    Where a compaction has a goal, smaller tails follow the one of another rule than ours.
    """
    state, settings = builder.state, builder.settings
    messages = list_shown_messages_from(state, state.view.first_kept)
    legal = find_cut_points(messages)
    if not legal:
        return []
    candidates = _TAIL_RULES[settings.tail](builder, messages, legal)
    if candidates and settings.goal_share and settings.tail != "share":
        candidates = [
            *candidates,
            *(offset for offset in _select_by_share(builder, messages, legal) if offset > candidates[-1]),
        ]
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
    budget = builder.to_estimator_tokens(builder.compute_compaction_share(builder.settings.tail_share))
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


def _select_by_tokens(builder: PlanBuilder, messages: list[Message], cut_points: list[int]) -> list[int]:
    """pi: enough of the newest, from the first legal place on."""
    settings = builder.settings
    tail_cut = find_pi_cut_point(messages, settings.tail_tokens, cut_points, settings.chars_per_token)
    return [] if tail_cut is None else [tail_cut.start]


class PiCutPoint(Struct, frozen=True):
    """Where a kept tail begins; ``split_turn_start`` is where the turn begins that it splits, if it splits one."""

    start: int
    split_turn_start: int | None = None


def find_pi_cut_point(
    entries: Sequence[Message | None],
    keep_tokens: int,
    cut_points: Container[int] | None = None,
    chars_per_token: int = 4,
) -> PiCutPoint | None:
    """Return where pi's kept tail begins: the first place at or behind which ``keep_tokens`` tokens stand, at no
    result.

    Where no place is left behind that one, it is the last place of all; where ``keep_tokens`` is never reached, the
    first. Entries that say nothing (``None``) right before it come along. ``cut_points`` narrows the places; nothing if
    none is.
    """
    places = [at for at, entry in enumerate(entries) if entry is not None and entry.role != "tool"]
    places = [at for at in places if cut_points is None or at in cut_points]
    if not places:
        return None
    tail_tokens, edge = 0, 0
    for edge in range(len(entries) - 1, -1, -1):
        entry = entries[edge]
        tail_tokens += 0 if entry is None else estimate_pi_tokens(entry, chars_per_token)
        if tail_tokens >= keep_tokens:
            break
    else:
        edge = 0
    cut_index = next((at for at in places if at >= edge), places[-1])
    turns = [at for at, entry in enumerate(entries[: cut_index + 1]) if entry is not None and entry.is_turn_start]
    start = cut_index
    while start and entries[start - 1] is None:
        start -= 1
    return PiCutPoint(start, turns[-1] if turns and turns[-1] != cut_index else None)


def _select_by_turns(builder: PlanBuilder, messages: list[Message], cut_points: list[int]) -> list[int]:
    """opencode: the last turns that fit together; the first that does not is split where its rest fits."""
    settings = builder.settings
    first = min(find_turn_starts(messages)[-settings.tail_turns :], default=0) if settings.tail_turns else len(messages)
    sizes = [0] * first + [estimate_opencode_tokens(message) for message in messages[first:]]
    start = find_opencode_tail_start(
        messages, sizes, compute_opencode_tail_budget(builder.target.limits, settings), settings.tail_turns, cut_points
    )
    return [offset for offset in cut_points if offset >= start][:1]


def compute_opencode_tail_budget(limits: ModelLimits, settings: Settings) -> int:
    """Return the tokens opencode's kept tail may have: a share of what is usable, clamped, or exactly what is said."""
    if not settings.tail_usable_share:
        return settings.tail_tokens
    share_tokens = int(compute_opencode_limit(limits, settings) * settings.tail_usable_share)
    return min(settings.tail_tokens, max(settings.tail_tokens_min, share_tokens))


def find_opencode_tail_start(
    messages: Sequence[Message], sizes: Sequence[int], budget: int, turns: int, cut_points: Container[int] | None = None
) -> int:
    """Return where opencode's kept tail begins: the last ``turns`` turns that fit ``budget``; the end for no tail.

    The newest that does not fit is split at the earliest message whose rest fits, and ends the search. A tail that
    would hold everything is none: nothing would be left to summarise.
    """
    start = stop = len(messages)
    for turn in reversed(find_turn_starts(messages)[-turns:] if turns > 0 else []):
        if sum(sizes[turn:stop]) > budget:
            inside = [index for index in range(turn + 1, stop) if cut_points is None or index in cut_points]
            start = next((index for index in inside if sum(sizes[index:stop]) <= budget), start)
            break
        budget -= sum(sizes[turn:stop])
        start = stop = turn
    return start or len(messages)


def _select_unanswered_only(_draft: PlanBuilder, messages: list[Message], cut_points: list[int]) -> list[int]:
    """Claude Code: nothing is kept but a user message that waits for its answer."""
    if messages and messages[-1].is_turn_start and len(messages) - 1 in cut_points:
        return [len(messages) - 1]
    return cut_points[-1:]


_TAIL_RULES: dict[str, Callable[[PlanBuilder, list[Message], list[int]], list[int]]] = {
    "share": _select_by_share,
    "tokens": _select_by_tokens,
    "turns": _select_by_turns,
    "none": _select_unanswered_only,
}


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
