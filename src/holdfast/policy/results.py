"""Results at creation: a big one is spilled, with a preview left behind; so are the biggest of a big message.

Only *fresh* texts are candidates, those no request has shown. What the model has seen whole is *frozen*; what was
replaced keeps its replacement byte for byte, because the decision is in the log (*mustReapply*).
"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.model.branch import Branch
from holdfast.model.parts import ToolResult
from holdfast.policy.draft import Draft
from holdfast.policy.spill import Whole, spill, wholes


def limit_results(draft: Draft) -> Draft:
    """Return the draft with every fresh result, and all that came between two answers, within their limits."""
    settings, room = draft.settings, draft.room
    if not settings.spill_chars:
        return draft
    most = draft.own(room.share(settings.spill_share)) if settings.spill_share else 0
    budget = draft.own(room.share(settings.message_share)) if settings.message_share else 0
    for group in _groups(draft.branch):
        fresh = [one for one in wholes(draft.branch, group) if budget or one.is_result]
        allowed = [one for one in fresh if not _is_exempt(draft, one)]
        big = [one for one in allowed if one.is_result and _is_big(one, settings.spill_chars, most)]
        rest = [one for one in allowed if one not in big]
        draft = spill(draft, [*big, *_over_budget(draft, big, rest, settings.message_chars, budget)], "spill")
    return draft


def _is_exempt(draft: Draft, one: Whole) -> bool:
    part = one.part
    return isinstance(part, ToolResult) and tool_name(draft.branch, one.slot, part) in draft.settings.spill_exempt


def _is_big(one: Whole, chars: int, tokens: int) -> bool:
    return len(one.text) > chars or bool(tokens and one.tokens > tokens)


def _groups(branch: Branch) -> Iterator[range]:
    """Yield the fresh slots, those of one message to the API together: what stands between two answers."""
    start = branch.seen
    for index in range(branch.seen, len(branch.slots) + 1):
        if index == len(branch.slots) or branch.slots[index].message.role == "assistant":
            if index > start:
                yield range(start, index)
            start = index + 1


def tool_name(branch: Branch, index: int, result: ToolResult) -> str:
    """Return the name of the tool that gave ``result``, looked up at its call where the result does not say."""
    if result.name:
        return result.name
    home = branch.callers.get(result.call_id, index)
    if home < index:
        for call in branch.slots[home].message.calls:
            if call.id == result.call_id:
                return call.name
    return ""


def _over_budget(draft: Draft, gone: list[Whole], rest: list[Whole], chars: int, tokens: int) -> list[Whole]:
    """Return the largest of ``rest`` that must go too so that the message is within its budget.

    Characters are of results alone, tokens of everything; the newest words of the user go last.
    """
    small = draft.settings.preview_chars
    held_chars = sum(len(one.text) for one in rest if one.is_result) + small * len(gone)
    held_tokens = sum(one.tokens for one in rest) + small // 4 * len(gone)
    newest = max((one.slot for one in rest if not one.is_result), default=-1)
    more: list[Whole] = []
    for one in sorted(rest, key=lambda one: (one.slot == newest, -one.tokens, one.slot, one.place)):
        if (not chars or held_chars <= chars) and (not tokens or held_tokens <= tokens):
            break
        stays = small if len(one.text) > 2 * small else 0
        more.append(one)
        held_chars -= len(one.text) - stays if one.is_result else 0
        held_tokens -= one.tokens - stays // 4
    return more
