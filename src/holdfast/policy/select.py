"""Selection: where the kept tail begins. One rule for each policy; all cut at legal places only."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import msgspec

from holdfast.model.branch import Branch, shown
from holdfast.model.messages import Message
from holdfast.model.parts import Media, Text, Thinking, ToolCall, ToolResult
from holdfast.policy.draft import Draft
from holdfast.view.boundaries import legal_cuts
from holdfast.view.turns import turn_starts


def tails(draft: Draft) -> list[int]:
    """Return where the kept tail may begin, best first: slots of the branch, its end for no tail at all."""
    branch = draft.branch
    messages = shown_messages(branch, branch.keep)
    legal = legal_cuts(messages)
    if not legal:
        return []
    wanted = _RULES[draft.settings.tail](draft, messages, legal)
    return [branch.keep + cut for cut in wanted if cut in legal]


def _share(draft: Draft, messages: list[Message], legal: list[int]) -> list[int]:
    """Ours: the largest tail within its share of the room; else the newest group alone; else nothing."""
    budget = draft.own(draft.room.share(draft.settings.tail_share))
    best = _largest_within(draft.branch, legal, budget)
    unseen = _first_unseen(draft, messages)
    shown_first = [cut for cut in legal if cut <= min(best, unseen)][-1:] if unseen < best else []
    newest = [cut for cut in legal if cut < len(messages)][-1:]
    return list(dict.fromkeys([*shown_first, *([best] if best < len(messages) else []), *newest, legal[-1]]))


def _first_unseen(draft: Draft, messages: list[Message]) -> int:
    """Return where the first message of the user stands that no request has shown yet; the end if there is none."""
    start = max(0, draft.branch.seen - draft.branch.keep)
    return next((place for place in range(start, len(messages)) if messages[place].starts_turn), len(messages))


def _tokens(draft: Draft, messages: list[Message], legal: list[int]) -> list[int]:
    """pi: walk back until enough is kept; the first legal place from there on, or else the last one."""
    held = 0
    for index in range(len(messages) - 1, -1, -1):
        held += chars_over_4(messages[index])
        if held >= draft.settings.tail_tokens:
            later = [cut for cut in legal if index <= cut < len(messages)]
            return later[:1] or [cut for cut in legal if cut < len(messages)][-1:]
    return legal[:1]


def _turns(draft: Draft, messages: list[Message], legal: list[int]) -> list[int]:
    """opencode: the last turns that fit together; the first that does not is split where its rest fits."""
    settings, room = draft.settings, draft.room
    budget = int(room.usable * settings.tail_usable_share)
    budget = min(settings.tail_tokens, max(settings.tail_tokens_min, budget))
    starts = turn_starts(messages)[-settings.tail_turns :]
    start, stop = len(messages), len(messages)
    for turn in reversed(starts):
        size = sum(chars_over_4(message) for message in messages[turn:stop])
        if size > budget:
            return [_split(messages, legal, turn, stop, budget, start)]
        budget -= size
        start = stop = turn
    return [start if start > 0 else len(messages)]


def _split(messages: list[Message], legal: list[int], turn: int, stop: int, budget: int, start: int) -> int:
    for cut in legal:
        if turn < cut < stop and sum(chars_over_4(message) for message in messages[cut:stop]) <= budget:
            return cut
    return start


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


def shown_messages(branch: Branch, start: int) -> list[Message]:
    """Return the messages from slot ``start`` on as the projection shows them, one for each slot."""
    if not branch.edits:
        return branch.messages.slice(start)
    slots = [(index, shown(branch, index)) for index in range(start, len(branch.slots))]
    return [found[0].message if len(found) == 1 else branch.messages[index] for index, found in slots]


def tail_size(branch: Branch, keep: int) -> int:
    """Return the size of the slots from ``keep`` on as the projection shows them, in estimator tokens."""
    return sum(slot.size for index in range(keep, len(branch.slots)) for slot in shown(branch, index))


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


def chars_over_4(message: Message) -> int:
    """Return the tokens of ``message`` as pi and opencode estimate them: characters over four, rounded up."""
    return math.ceil(sum(_chars(part) for part in message.parts) / 4)


def _chars(part: object) -> int:
    if isinstance(part, Text | Thinking):
        return len(part.text)
    if isinstance(part, ToolCall):
        return len(part.name) + len(part.arguments)
    if isinstance(part, ToolResult):
        return sum(_chars(inner) for inner in part.content)
    return 4_800 if isinstance(part, Media) else len(msgspec.json.encode(part))
