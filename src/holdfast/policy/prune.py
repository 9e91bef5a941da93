"""Prune: old tool results give way to a line. Each dialect says when, and which; a decision is made once."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgspec import Struct

from holdfast.model.branch import Branch
from holdfast.model.edits import Edit, Span
from holdfast.model.messages import result_text
from holdfast.model.parts import ToolResult
from holdfast.policy.draft import Draft
from holdfast.policy.results import tool_name
from holdfast.policy.spill import edited_parts, replaced
from holdfast.view.tokens import count

CLEARED = "[Old tool result content cleared]"
"""What opencode and Claude Code show in place of a cleared result."""


class Result(Struct, frozen=True):
    """A result that is shown now, with the size of its words in estimator tokens."""

    slot: int
    part: int
    result: ToolResult
    text: str
    tokens: int


def prune(draft: Draft) -> Draft:
    """Return the draft with old results cleared as the policy's dialect says."""
    dialect = _DIALECTS.get(draft.settings.prune)
    return draft if dialect is None else draft.decide(tuple(dialect(draft)))


def shown_results(branch: Branch) -> Iterator[Result]:
    """Yield the results that the projection shows whole, newest first."""
    for index in range(len(branch.slots) - 1, branch.keep - 1, -1):
        edited = edited_parts(branch, index)
        parts = branch.slots[index].message.parts if None not in edited else ()
        for place in range(len(parts) - 1, -1, -1):
            part = parts[place]
            if isinstance(part, ToolResult) and place not in edited:
                text = result_text(part)
                yield Result(index, place, part, text, count(text))


def _clear(one: Result, text: str = CLEARED, rule: str = "prune") -> Edit | None:
    saves = one.tokens - count(text)
    if saves <= 0 or len(text) >= len(one.text):
        return None
    why = f"an old result of {len(one.text):,} characters, {len(text):,} stay"
    return Edit(Span(one.slot, one.slot + 1, one.part), (replaced(one.result, text),), rule, why, saves)


def _exempt(draft: Draft, one: Result) -> bool:
    return tool_name(draft.branch, one.slot, one.result) in draft.settings.prune_exempt


def _epoch(draft: Draft) -> list[Edit]:
    """Ours: at a cold cache only, behind the newest share of results, and only if it frees enough."""
    if draft.world.cache != "cold":
        return []
    settings, room = draft.settings, draft.room
    keep = draft.own(settings.prune_keep or room.share(settings.prune_keep_share))
    least = draft.own(min(settings.prune_minimum, room.share(settings.prune_minimum_share)))
    return _behind(draft, shown_results(draft.branch), keep, least)


def _opencode(draft: Draft) -> list[Edit]:
    """opencode: skip until the second user message from the end, keep the newest tokens, free enough or nothing."""
    users, start = 0, 0
    for index in range(len(draft.branch.slots) - 1, draft.branch.keep - 1, -1):
        users += draft.branch.slots[index].message.starts_turn
        if users == 2:
            start = index
            break
    results = (one for one in shown_results(draft.branch) if one.slot < start)
    return _behind(draft, results, draft.settings.prune_keep, draft.settings.prune_minimum)


def _behind(draft: Draft, results: Iterator[Result], keep: int, least: int) -> list[Edit]:
    edits: list[Edit] = []
    held = 0
    for one in results:
        if _exempt(draft, one):
            continue
        held += one.tokens
        edit = _clear(one) if held > keep else None
        if edit is not None:
            edits.append(edit)
    return edits if sum(edit.saves for edit in edits) > least else []


def _idle(draft: Draft) -> list[Edit]:
    """Claude Code: when the last answer is over an hour old, all but the newest five."""
    if draft.world.idle <= draft.settings.prune_idle:
        return []
    old = list(shown_results(draft.branch))[draft.settings.prune_keep_results :]
    return [edit for one in old if (edit := _clear(one)) is not None]


def _ttl(draft: Draft) -> list[Edit]:
    """OpenClaw: when the cache has gone cold, trim long results; over half the window, clear the oldest."""
    settings, branch = draft.settings, draft.branch
    if draft.world.cache != "cold":
        return []
    chars = draft.room.window * 4
    total = sum(len(part_text) for part_text in _all_texts(branch))
    if total < settings.prune_soft_share * chars:
        return []
    answers = [i for i in range(branch.keep, len(branch.slots)) if branch.slots[i].message.role == "assistant"]
    if len(answers) < settings.prune_keep_answers:
        return []
    edge = answers[-settings.prune_keep_answers]
    old = [one for one in shown_results(branch) if one.slot < edge][::-1]
    edits: list[Edit] = []
    for one in old:
        total -= _trim(settings.prune_trim_over, settings.prune_trim_chars, one, edits)
    left = sum(len(one.text) for one in old)
    if total >= settings.prune_hard_share * chars and left >= settings.prune_hard_chars:
        edits = _hard(old, total, settings.prune_hard_share * chars)
    return edits


def _trim(over: int, ends: int, one: Result, edits: list[Edit]) -> int:
    """Add the edit that trims ``one``; return the characters it frees."""
    if len(one.text) <= over:
        return 0
    notice = f"[Tool result trimmed: kept first {ends} chars and last {ends} chars of {len(one.text)} chars.]"
    edit = _clear(one, f"{one.text[:ends]}\n...\n{one.text[-ends:]}\n{notice}", "trim")
    if edit is None:
        return 0
    edits.append(edit)
    return len(one.text) - 2 * ends


def _hard(old: list[Result], total: int, goal: float) -> list[Edit]:
    edits: list[Edit] = []
    for one in old:
        if total < goal:
            break
        edit = _clear(one)
        if edit is not None:
            edits.append(edit)
            total -= len(one.text)
    return edits


def _all_texts(branch: Branch) -> Iterator[str]:
    for index in range(branch.keep, len(branch.slots)):
        message = branch.slots[index].message
        yield message.text
        yield from (result_text(result) for result in message.results)


_DIALECTS: dict[str, Callable[[Draft], list[Edit]]] = {
    "epoch": _epoch,
    "opencode": _opencode,
    "idle": _idle,
    "ttl": _ttl,
}
