"""Selection: where the kept tail begins. One rule for each policy; all cut at legal places only."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence

from msgspec import Struct

from holdfast.messages.cut_points import legal_cuts
from holdfast.messages.message import Message
from holdfast.planning.builder import Draft
from holdfast.planning.presets.measures import estimate_tokens, json_tokens, shown_messages
from holdfast.planning.presets.triggers import usable
from holdfast.planning.settings import Settings
from holdfast.state.branch.branch import Branch
from holdfast.state.branch.turns import newest_answer, turn_starts
from holdfast.state.branch.view import shown, shown_slots
from holdfast.state.target import Limits


def tails(draft: Draft) -> list[int]:
    """Return where the kept tail may begin, best first: slots of the branch, its end for no tail at all.

    Where a compaction has a goal, smaller tails follow the one of another rule than ours.
    """
    branch, settings = draft.branch, draft.settings
    messages = shown_messages(branch, branch.keep)
    legal = legal_cuts(messages)
    if not legal:
        return []
    wanted = _RULES[settings.tail](draft, messages, legal)
    if wanted and settings.goal_share and settings.tail != "share":
        wanted = [*wanted, *(cut for cut in _share(draft, messages, legal) if cut > wanted[-1])]
    return [branch.keep + cut for cut in wanted if cut in legal]


def cuts(branch: Branch) -> list[int]:
    """Return the slots at which a kept tail may begin, ascending; the end is one where no call is open."""
    return [branch.keep + cut for cut in legal_cuts(shown_messages(branch, branch.keep))]


def _share(draft: Draft, messages: list[Message], legal: list[int]) -> list[int]:
    """Ours: the largest tail within its share of the room; else the newest group alone; else nothing.

    Results that the model waits for are kept with their calls wherever it begins.
    """
    budget = draft.own(draft.share(draft.settings.tail_share))
    best = _largest_within(draft.branch, legal, budget)
    unseen = first_unseen(draft) - draft.branch.keep
    shown_first = [cut for cut in legal if cut <= min(best, unseen)][-1:] if unseen < best else []
    newest = [cut for cut in legal if cut < len(messages)][-1:]
    wanted = dict.fromkeys([*shown_first, *([best] if best < len(messages) else []), *newest, legal[-1]])
    last = max((cut for cut in legal if cut <= open_turn(draft.branch) - draft.branch.keep), default=legal[-1])
    return list(dict.fromkeys([*(cut for cut in wanted if cut < last), last]))


def open_turn(branch: Branch) -> int:
    """Return the slot of the newest answer, where results behind it wait to be read; the end where none do."""
    newest = newest_answer(branch, branch.keep)
    waits = newest >= 0 and any(message.results for message in branch.messages.slice(newest + 1))
    return newest if waits else len(branch.slots)


def first_unseen(draft: Draft) -> int:
    """Return the slot of the first message of the user that no request has shown yet; the end if there is none."""
    branch = draft.branch
    seen = branch.found[0] if branch.learned.overflows else branch.seen  # what was refused nobody read
    places = range(max(branch.keep, seen), len(branch.slots))
    return next((index for index in places if branch.messages[index].starts_turn), len(branch.slots))


def _tokens(draft: Draft, messages: list[Message], legal: list[int]) -> list[int]:
    """pi: enough of the newest, from the first legal place on."""
    settings = draft.settings
    found = cut_point(messages, settings.tail_tokens, legal, settings.chars_per_token)
    return [] if found is None else [found.start]


class Cut(Struct, frozen=True):
    """Where a kept tail begins; ``turn`` is where the turn begins that it splits, if it splits one."""

    start: int
    turn: int | None = None


def cut_point(
    entries: Sequence[Message | None], keep: int, legal: Container[int] | None = None, chars_per_token: int = 4
) -> Cut | None:
    """Return where pi's kept tail begins: the first place at or behind which ``keep`` tokens stand, at no result.

    Where no place is left behind that one, it is the last place of all; where ``keep`` is never reached, the first.
    Entries that say nothing (``None``) right before it come along. ``legal`` narrows the places; nothing if none is.
    """
    places = [at for at, entry in enumerate(entries) if entry is not None and entry.role != "tool"]
    places = [at for at in places if legal is None or at in legal]
    if not places:
        return None
    held, edge = 0, 0
    for edge in range(len(entries) - 1, -1, -1):
        entry = entries[edge]
        held += 0 if entry is None else estimate_tokens(entry, chars_per_token)
        if held >= keep:
            break
    else:
        edge = 0
    cut = next((at for at in places if at >= edge), places[-1])
    turns = [at for at, entry in enumerate(entries[: cut + 1]) if entry is not None and entry.starts_turn]
    start = cut
    while start and entries[start - 1] is None:
        start -= 1
    return Cut(start, turns[-1] if turns and turns[-1] != cut else None)


def _turns(draft: Draft, messages: list[Message], legal: list[int]) -> list[int]:
    """opencode: the last turns that fit together; the first that does not is split where its rest fits."""
    settings = draft.settings
    first = min(turn_starts(messages)[-settings.tail_turns :], default=0) if settings.tail_turns else len(messages)
    sizes = [0] * first + [json_tokens(message) for message in messages[first:]]
    start = select(messages, sizes, preserve_recent_budget(draft.target.limits, settings), settings.tail_turns, legal)
    return [cut for cut in legal if cut >= start][:1]


def preserve_recent_budget(limits: Limits, settings: Settings) -> int:
    """Return the tokens opencode's kept tail may have: a share of what is usable, clamped, or exactly what is said."""
    if not settings.tail_usable_share:
        return settings.tail_tokens
    wanted = int(usable(limits, settings) * settings.tail_usable_share)
    return min(settings.tail_tokens, max(settings.tail_tokens_min, wanted))


def select(
    messages: Sequence[Message], sizes: Sequence[int], budget: int, turns: int, legal: Container[int] | None = None
) -> int:
    """Return where opencode's kept tail begins: the last ``turns`` turns that fit ``budget``; the end for no tail.

    The newest that does not fit is split at the earliest message whose rest fits, and ends the search. A tail that
    would hold everything is none: nothing would be left to summarise.
    """
    start = stop = len(messages)
    for turn in reversed(turn_starts(messages)[-turns:] if turns > 0 else []):
        if sum(sizes[turn:stop]) > budget:
            inside = [cut for cut in range(turn + 1, stop) if legal is None or cut in legal]
            start = next((cut for cut in inside if sum(sizes[cut:stop]) <= budget), start)
            break
        budget -= sum(sizes[turn:stop])
        start = stop = turn
    return start or len(messages)


def _none(_draft: Draft, messages: list[Message], legal: list[int]) -> list[int]:
    """Claude Code: nothing is kept but a user message that waits for its answer."""
    if messages and messages[-1].starts_turn and len(messages) - 1 in legal:
        return [len(messages) - 1]
    return legal[-1:]


_RULES: dict[str, Callable[[Draft, list[Message], list[int]], list[int]]] = {
    "share": _share,
    "tokens": _tokens,
    "turns": _turns,
    "none": _none,
}


def tail_size(branch: Branch, keep: int) -> int:
    """Return the size of the slots from ``keep`` on as the projection shows them, in estimator tokens."""
    return sum(slot.size for index in shown_slots(branch, keep) for slot in shown(branch, index))


def _largest_within(branch: Branch, legal: Sequence[int], budget: int) -> int:
    """Return the first legal place behind which no more than ``budget`` stands; looks no further back than that."""
    places = set(legal)
    stop = len(branch.slots) - branch.keep
    best, held = stop, 0
    for place in range(stop - 1, -1, -1):
        held += sum(slot.size for slot in shown(branch, branch.keep + place))
        if held > budget:
            break
        if place in places:
            best = place
    return best
