"""As OpenClaw prunes: by the lifetime of the cache, long results first trimmed, then cleared."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.model.branch import Branch
from holdfast.model.edits import Edit
from holdfast.model.messages import result_text
from holdfast.policy.draft import Draft
from holdfast.policy.prune.shown import Result, cleared, shown_results


def ttl(draft: Draft) -> list[Edit]:
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
    edit = cleared(one, f"{one.text[:ends]}\n...\n{one.text[-ends:]}\n{notice}", "trim")
    if edit is None:
        return 0
    edits.append(edit)
    return len(one.text) - 2 * ends


def _hard(old: list[Result], total: int, goal: float) -> list[Edit]:
    edits: list[Edit] = []
    for one in old:
        if total < goal:
            break
        edit = cleared(one)
        if edit is not None:
            edits.append(edit)
            total -= len(one.text)
    return edits


def _all_texts(branch: Branch) -> Iterator[str]:
    for index in range(branch.keep, len(branch.slots)):
        message = branch.slots[index].message
        yield message.text
        yield from (result_text(result) for result in message.results)
