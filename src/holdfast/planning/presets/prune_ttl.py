"""As OpenClaw prunes: once the cache has outlived its time, long results are trimmed, then old ones cleared."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from holdfast.messages.message import result_text
from holdfast.messages.parts import Media, Opaque, Text, ToolResult
from holdfast.messages.size.tokens import IMAGE_TOKENS, count
from holdfast.messages.size.weighted_chars import CHARS_A_TOKEN, weigh, weigh_part
from holdfast.planning.builder import Draft
from holdfast.planning.presets.measures import total_shown
from holdfast.planning.settings import Settings
from holdfast.planning.stages.prune.shown import CLEARED, may_go
from holdfast.planning.stages.tool_results import tool_names
from holdfast.planning.stages.truncate import Held, held_results
from holdfast.state.branch.branch import Branch, is_spared
from holdfast.state.branch.view import leading
from holdfast.state.edits import Edit, Span

NO_IMAGE = "[Image removed with the middle of this result]"
"""What stands in a trimmed result for an image."""


class _Old(Struct, frozen=True):
    """A result that may be pruned: as it is shown, as it would be shown, and under which rule."""

    held: Held
    now: ToolResult
    rule: str = ""


def ttl(draft: Draft) -> Draft:
    """Return the draft with old results trimmed or cleared when the cache is cold."""
    return draft.decide(tuple(_pruned(draft))) if _is_cold(draft) else draft


def _is_cold(draft: Draft) -> bool:
    return draft.world.cache == "cold" or draft.world.idle >= draft.settings.prune_ttl


def _pruned(draft: Draft) -> Iterator[Edit]:
    """Yield the edits of the results behind the newest answers, by how much of the window all characters take."""
    settings, chars = draft.settings, draft.room.window * CHARS_A_TOKEN
    total = total_shown(draft.branch, weigh)
    if total < settings.prune_soft_share * chars:
        return
    old = [_trimmed(one, settings) for one in _prunable(draft)]
    total -= sum(weigh_part(one.held.result) - weigh_part(one.now) for one in old)
    over = total - settings.prune_hard_share * chars
    if over >= 0 and sum(weigh_part(one.now) for one in old) >= settings.prune_hard_chars:
        old = list(_cleared(old, over))
    for one in old:
        if one.rule:
            yield _edit(one)


def _prunable(draft: Draft) -> Iterator[Held]:
    """Yield the results that may go: behind the first words of a user and before the newest answers, oldest first."""
    branch, kept = draft.branch, draft.settings.prune_keep_answers
    answers = [at for at in range(branch.keep, len(branch.slots)) if branch.messages[at].role == "assistant"]
    if len(answers) < kept:
        return
    first = _first_words(branch)
    last, names, goes = answers[-kept] if kept else len(branch.slots), tool_names(branch), may_go(draft.settings)
    for one in held_results(branch):
        if is_spared(branch, one.slot, one.place):
            continue
        if first < one.slot < last and goes(names(one.slot, one.result)):
            yield one


def _first_words(branch: Branch) -> int:
    """Return where a user first speaks in what is shown; a summary is a user's words too."""
    if leading(branch) > branch.pinned:
        return branch.keep - 1
    slots = range(branch.keep, len(branch.slots))
    return next((index for index in slots if branch.messages[index].starts_turn), len(branch.slots))


def _trimmed(one: Held, settings: Settings) -> _Old:
    """Return a result with its middle trimmed, where it is long enough."""
    ends = settings.prune_trim_chars
    text = "\n".join(map(_words, one.result.content))
    if len(text) <= max(settings.prune_trim_over, 2 * ends):
        return _Old(one, one.result)
    note = f"[Tool result trimmed: kept first {ends} chars and last {ends} chars of {len(text)} chars.]"
    head, tail = text[:ends], text[len(text) - ends :]
    return _Old(one, _saying(one.result, f"{head}\n...\n{tail}\n\n{note}"), "trim")


def _words(part: Text | Media | Opaque) -> str:
    return part.text if isinstance(part, Text) else NO_IMAGE if isinstance(part, Media) else ""


def _cleared(old: list[_Old], over: float) -> Iterator[_Old]:
    """Yield ``old``, the oldest cleared until less than the share of the window is taken."""
    for one in old:
        frees = weigh_part(one.now) - len(CLEARED)
        if over >= 0 and frees > 0:
            over -= frees
            yield _Old(one.held, _saying(one.held.result, CLEARED), "prune")
        else:
            yield one


def _saying(result: ToolResult, text: str) -> ToolResult:
    """Return ``result`` with ``text`` for all its words and images."""
    rest = tuple(part for part in result.content if isinstance(part, Opaque))
    return ToolResult(result.call_id, result.name, (Text(text), *rest), result.is_error)


def _edit(one: _Old) -> Edit:
    text, short = result_text(one.held.result), result_text(one.now)
    images = sum(isinstance(part, Media) for part in one.held.result.content)
    saves = count(text) - count(short) + images * IMAGE_TOKENS
    why = f"an old result of {len(text):,} characters, {len(short):,} stay"
    return Edit(Span(one.held.slot, one.held.slot + 1, one.held.place), (one.now,), one.rule, why, saves)
