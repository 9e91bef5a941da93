"""Ours: old results go where the prefix breaks anyway, where space is needed, or where it pays.

What goes leaves a line with a handle, through which it is read back; where texts cannot be stored away nothing goes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

from holdfast.messages.parts import ToolResult
from holdfast.messages.text.cutting import fingerprint
from holdfast.planning.builder import Draft
from holdfast.planning.settings import HANDLE
from holdfast.planning.stages.append_limit import is_capped
from holdfast.planning.stages.compaction import over_trigger
from holdfast.planning.stages.prune.shown import may_go
from holdfast.planning.stages.spill import Whole, shown_as, wholes
from holdfast.planning.stages.tool_results import tool_names
from holdfast.state.branch.branch import Branch, is_spared
from holdfast.state.branch.turns import newest_answer
from holdfast.state.branch.view import shown_slots
from holdfast.state.costs import broken
from holdfast.state.edits import Blob, Edit


def epoch(draft: Draft) -> Draft:
    """Return the draft with its old results given way to a line each, if ``prune_when`` names a reason that holds.

    Old are those behind the newest share of results; they go together, if that frees enough. Where the price is the
    only reason, those stay that have too much behind them.
    """
    settings, room = draft.settings, draft.room
    reasons = set(settings.prune_when) & {"price", *_reasons(draft)}
    if not reasons or not draft.world.spill:
        return draft
    keep = draft.own(settings.prune_keep or room.share(settings.prune_keep_share))
    least = draft.own(min(settings.prune_minimum, room.share(settings.prune_minimum_share)))
    old = list(_old(draft, keep))
    if sum(one.tokens for one in old) <= least:
        return draft
    pairs = [pair for pair in map(_cleared, old) if pair[0].saves > 0]
    if reasons == {"price"}:
        pairs = pairs[: _worth(draft, [edit for edit, _ in pairs])]
    if sum(edit.saves for edit, _ in pairs) <= least:
        return draft
    return draft.give_way(pairs)


def _reasons(draft: Draft) -> Iterator[str]:
    """Yield why this is a moment at which old results may go, whatever that does to the cached prefix."""
    branch, target = draft.branch, draft.target
    if draft.world.cache == "cold":
        yield "cold"
    if branch.seen and (_is_broken(draft) or branch.model != target.model):
        yield "broken"
    if draft.settings.auto and over_trigger(draft):
        yield "space"


def _is_broken(draft: Draft) -> bool:
    """Return whether the prefix breaks by a decision of this draft or by another frame.

    That an undo breaks it too is no reason: what the user just brought back is not taken away again at once.
    """
    branch = draft.branch
    decided = draft.compaction is not None or any(edit.span.start < branch.seen for edit in draft.record)
    return decided or (branch.quiet == 0 and branch.framed == len(branch.slots))


def _old(draft: Draft, keep: int) -> Iterator[Whole]:
    """Yield the answered results behind the newest ``keep`` tokens of results, newest first; no message is split.

    What an undo brought back is not among them, nor what stays for good: results of exempt tools, and those that hold
    the only handle of a longer text. A breakpoint behind the last message of which results went stands on what no
    later prune changes.
    """
    branch, held, edge = draft.branch, 0, len(draft.branch.slots)
    names, goes = tool_names(branch), may_go(draft.settings)
    newest = newest_answer(branch, branch.keep)
    answered = (index for index in shown_slots(branch, branch.keep) if index < newest)
    for one in reversed(list(wholes(branch, answered))):
        if isinstance(one.part, ToolResult) and goes(names(one.slot, one.part)) and not is_capped(one.text):
            held += one.tokens
            if held <= keep:
                edge = one.slot
            elif one.slot < edge and not is_spared(branch, one.slot, one.place):
                yield one


def _cleared(one: Whole) -> tuple[Edit, Blob]:
    """Return the edit that leaves a line of a result, and its text to be stored."""
    blob = Blob(fingerprint(one.text), one.text)
    line = f'[Old result of {len(one.text):,} characters cleared; recall(id="{blob.hash[:HANDLE]}") returns it]'
    why = f"an old result of {len(one.text):,} characters, {len(line):,} stay"
    return shown_as(one, line, blob, "prune", why), blob


def _worth(draft: Draft, edits: Sequence[Edit]) -> int:
    """Return how many of ``edits``, newest first, pay most; 0 is none.

    They pay where ``saved x requests to come x read > suffix x (write - read)``, by the prices of the target.
    """
    prices, behind = draft.target.prices, _behind(draft.branch)
    again = broken(prices, is_hour=draft.branch.learned.hour)
    requests = max(draft.settings.prune_requests, draft.branch.quiet)
    most, best, saved = 0.0, 0, 0
    for number, edit in enumerate(edits, 1):
        saved += edit.saves
        suffix = behind[edit.span.start - draft.branch.keep] - saved
        gain = saved * requests * prices.read - suffix * again
        if gain > most:
            most, best = gain, number
    return best


def _behind(branch: Branch) -> list[int]:
    """Return, for each slot from the first kept one on, the tokens of it and of what is shown behind it."""
    sizes = [
        slot.size - sum(edit.saves for edit in branch.edits.get(index, ()))
        for index, slot in enumerate(branch.slots.slice(branch.keep), branch.keep)
    ]
    return list(accumulate(reversed(sizes)))[::-1]
