"""Results at creation: a big one is spilled, with a preview left behind; so are the biggest of a big message.

Only *fresh* texts are candidates, those no request has shown. What the model has seen whole is *frozen*; what was
replaced keeps its replacement byte for byte, because the decision is in the log (*mustReapply*).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import accumulate
from math import inf
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from holdfast.messages.message import result_text
from holdfast.messages.parts import ToolResult
from holdfast.messages.sized_message import characters_at_most
from holdfast.planning.builder import Draft
from holdfast.planning.settings import Settings
from holdfast.planning.stages.append_limit import is_capped
from holdfast.planning.stages.spill import Whole, spill, usual, wholes
from holdfast.state.branch.branch import Branch
from holdfast.state.branch.view import replaced_parts, shown_slots

OWN = "holdfast"
"""Name of our MCP server; clients put it, with underscores, before the names of its tools."""


def limit_results(draft: Draft) -> Draft:
    """Return the draft with every fresh result, and all that came between two answers, within their limits.

    Where texts cannot be stored away every result stays whole.
    """
    settings, room = draft.settings, draft.room
    if not (settings.spill_chars or settings.spill_tools) or not draft.world.spill:
        return draft
    most = draft.own(room.share(settings.spill_share)) if settings.spill_share else 0
    budget = draft.own(room.share(settings.message_share)) if settings.message_share and settings.spill_chars else 0
    groups = list(_groups(draft.branch, _few(settings, most, budget)))
    if not groups:
        return draft
    limit = _limits(draft.branch, settings)
    own = frozenset(shown_slots(draft.branch, draft.branch.seen))
    for group in groups:
        big: list[Whole] = []
        rest: list[Whole] = []
        for one in wholes(draft.branch, filter(own.__contains__, group)):
            if is_capped(one.text):
                continue
            chars = limit(one)
            if one.is_result and chars:
                (big if _is_big(one, chars, most) else rest).append(one)
            elif budget and not one.is_result:
                rest.append(one)
        more = _over_budget(draft, group, big, rest, budget)
        draft = spill(draft, [*big, *_with_room(draft, big, rest, more, budget, most)], "spill")
    return draft


class _Few(Struct, frozen=True):
    """So few tokens and characters that they are within every limit, however they are counted."""

    tokens: float
    chars: float


def _few(settings: Settings, *tokens: int) -> _Few:
    """Return what is few beside the limits of ``tokens``, of one result and of all: sizes of parts are rounded."""
    chars = (settings.spill_chars, *settings.spill_tools.values(), settings.message_chars)
    return _Few(min(filter(None, tokens), default=inf) / 2, min(filter(None, chars), default=inf))


def _limits(branch: Branch, settings: Settings) -> Callable[[Whole], int]:
    """Return the question how many characters a result may have; 0 where it is never spilled."""
    names = tool_names(branch)

    def limit(one: Whole) -> int:
        name = names(one.slot, one.part) if isinstance(one.part, ToolResult) else ""
        if own_name(name) in settings.spill_exempt or name in settings.spill_exempt:
            return 0
        return settings.spill_tools.get(name, settings.spill_chars)

    return limit


def own_name(name: str) -> str:
    """Return the name of a tool without that of our server, which MCP clients put before it."""
    return name.rpartition(f"{OWN}_")[2].lstrip("_")


def _is_big(one: Whole, chars: int, tokens: int) -> bool:
    return len(one.text) > chars or bool(tokens and one.tokens > tokens)


def _groups(branch: Branch, few: _Few) -> Iterator[range]:
    """Yield the fresh slots, those of one message to the API together: what stands between two answers.

    Those that hold so few, all together, that nobody need look at each of their texts are left out, where nothing in
    their message was shown and nothing in them decided about.
    """
    first, fresh, edited = branch.seen, branch.slots.slice(branch.seen), branch.edits
    begins = first <= branch.keep or branch.messages[first - 1].role == "assistant"
    tokens = [0, *accumulate([slot.size for slot in fresh])]
    chars = [0, *accumulate([characters_at_most(slot) for slot in fresh])]
    answers = [at for at, slot in enumerate(fresh) if slot.message.role == "assistant"]
    for start, stop in zip([0, *[at + 1 for at in answers]], [*answers, len(fresh)], strict=True):
        is_few = tokens[stop] - tokens[start] <= few.tokens and chars[stop] - chars[start] <= few.chars
        is_new = (start or begins) and not any(at in edited for at in range(first + start, first + stop))
        if start < stop and not (is_few and is_new):
            yield range(first + start, first + stop)


ToolNames: TypeAlias = Callable[[int, ToolResult], str]
"""The name of the tool that gave a result, which stands in a slot."""


def tool_names(branch: Branch) -> ToolNames:
    """Return what tells the tool of a result of ``branch``, looked up at its call where the result does not say.

    Each message of calls is looked through once.
    """

    @cache
    def called(home: int) -> dict[str, str]:
        return {call.id: call.name for call in reversed(branch.slots[home].message.calls)}

    def name(index: int, result: ToolResult) -> str:
        home = index if result.name else branch.callers.get(result.call_id, index)
        return called(home).get(result.call_id, "") if home < index else result.name

    return name


def _over_budget(draft: Draft, group: range, gone: Sequence[Whole], rest: Sequence[Whole], tokens: int) -> list[Whole]:
    """Return the largest of ``rest`` that must go too so that the message is within its budget.

    Characters are of results alone, tokens of everything; the newest words of the user go last. The largest are those
    of most tokens, or of most characters where only these have a budget.
    """

    def size(one: Whole) -> int:
        return one.tokens if tokens else len(one.text)

    small = usual(draft)
    chars = draft.settings.message_chars if draft.settings.spill_chars else 0
    held_chars = sum(len(one.text) for one in rest if one.is_result) + small * len(gone)
    held_chars += _others(draft.branch, group, {(one.slot, one.place) for one in (*gone, *rest)}) if chars else 0
    held_tokens = sum(one.tokens for one in rest) + small // 4 * len(gone)
    newest = max((one.slot for one in rest if not one.is_result), default=-1)
    more: list[Whole] = []
    for one in sorted(rest, key=lambda one: (one.slot == newest, -size(one), one.slot, one.place)):
        if (not chars or held_chars <= chars) and (not tokens or held_tokens <= tokens):
            break
        stays = small if len(one.text) > 2 * small else 0
        more.append(one)
        held_chars -= len(one.text) - stays if one.is_result else 0
        held_tokens -= one.tokens - stays // 4
    return more


def _with_room(
    draft: Draft, gone: Sequence[Whole], rest: Sequence[Whole], more: Sequence[Whole], tokens: int, most: int
) -> list[Whole]:
    """Return ``more`` of ``rest``, the user's words with the room there is: a fair share of what all else leaves.

    That is at most as much as one result may have.
    """
    words = [one for one in more if not one.is_result]
    previews = usual(draft) // 4 * (len(gone) + len(more) - len(words))
    stays = sum(one.tokens for one in rest) - sum(one.tokens for one in more) + previews
    each = min(most, (tokens - stays) // max(1, len(words)))
    return [one if one.is_result else replace(one, room=max(0, each)) for one in more]


def _others(branch: Branch, group: range, judged: set[tuple[int, int]]) -> int:
    """Return the characters of the results that count and cannot go: seen before, exempt, or too short to give way."""
    start = group.start
    while start > branch.keep and branch.messages[start - 1].role != "assistant":
        start -= 1
    return sum(
        len(result_text(part))
        for index in range(start, group.stop)
        for place, part in enumerate(replaced_parts(branch.messages[index], branch.edits.get(index, ())))
        if isinstance(part, ToolResult) and (index, place) not in judged
    )
