"""What a conversation that parts from its log takes along: what was decided of the part that both say, and learned.

An undo is taken along as what it undid, and the undo: no rule takes again what it brought back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile

from msgspec.structs import replace

from holdfast.state.branch.branch import Branch
from holdfast.state.branch.fork import within
from holdfast.state.calibration.model_stats import Known, all_known, noted
from holdfast.state.calibration.token_estimate import PRIOR_WEIGHT
from holdfast.state.entries import (
    HISTORY,
    Body,
    BranchSummary,
    Compaction,
    Decision,
    Entry,
    Frame,
    Note,
    Request,
    Revoke,
    Said,
)

NEARLY = 0.05
"""[H] Ratios of a model's tokens to ours that differ by less make no other plan worth a note."""

_SHOWING = Request | Decision | Compaction | Revoke
"""What says, or changes, what the next request shows."""


def carried(branch: Branch, path: Sequence[Entry], start: int, count: int) -> list[Entry]:
    """Return what ``path``, that of ``branch``, tells from entry ``start`` on of its first ``count`` slots, in order.

    Where a conversation parts from its log before ``start``, it goes on with that: what was decided of them or taken
    back, and that requests showed them (whose basis is another one here). What was told there already, by an earlier
    branch from the same place, is not told again.
    """
    law = {id_ for id_, _ in branch.law}
    known = {entry.id for entry in path[:start]}
    told, again = _bodies_there(path[:start]), list[Entry]()
    framed = next((at for at, one in enumerate(path) if isinstance(one.body, Frame | Request)), -1)
    for at, entry in enumerate(path[start:], start):
        body = entry.body
        new: Body | None = None
        if isinstance(body, Request):
            new = _shown_again(body, told, count)
        elif isinstance(body, Frame):
            new = body if at == framed else None  # the first request had it: who parts here had no other
        elif isinstance(body, Revoke):
            new = body if body.id in known else None
        elif isinstance(body, Decision | Compaction):
            new = within(body, count) if entry.id in law else _undone(body, count)
        if new is not None:
            known.add(entry.id)
            told.append(new)
            again.append(replace(entry, body=new))
    return again


def told_there(body: Body, basis: str, ids: Mapping[str, str]) -> Body:
    """Return what was carried as it is told where requests have this ``basis``; ``ids`` are the new for the old."""
    if isinstance(body, Request):
        return replace(body, basis=basis)
    return Revoke(ids.get(body.id, body.id)) if isinstance(body, Revoke) else body


def lessons(there: Branch, before: Branch) -> list[Note]:
    """Return the note by which ``there`` knows of models what ``before`` does; none where it nearly does."""
    known, told = all_known(there), all_known(before)
    same = len(known) == len(told) and all(_is_nearly(*pair) for pair in zip(known, told, strict=True))
    return [] if same else [noted(before)]


def _is_nearly(known: Known, told: Known) -> bool:
    ratios = [(one.gauge.true + PRIOR_WEIGHT) / (one.gauge.estimated + PRIOR_WEIGHT) for one in (known, told)]
    return replace(known, gauge=told.gauge) == told and abs(ratios[0] - ratios[1]) < NEARLY


def _undone(body: Decision | Compaction, count: int) -> Body | None:
    """Return what a rule would do again to the first ``count`` slots, were it not known that ``body`` was undone."""
    edits = within(Decision(body.edits), count)
    if isinstance(body, Compaction) and body.trigger == HISTORY:
        return Compaction(min(body.keep, count), edits=edits.edits if edits else (), trigger=HISTORY)
    return edits


def _bodies_there(path: Sequence[Entry]) -> list[Body]:
    """Return what stands at the end of ``path`` behind the last message."""
    behind = takewhile(lambda entry: not isinstance(entry.body, Said | BranchSummary), reversed(path))
    return [entry.body for entry in behind][::-1]


def _shown_again(request: Request, told: Sequence[Body], count: int) -> Request | None:
    """Return the request that showed the first ``count`` slots, unless ``told`` has it and nothing decided since."""
    again = Request("", count, request.model, request.window, request.api)
    newest = next((body for body in reversed(told) if isinstance(body, _SHOWING)), None)
    is_told = isinstance(newest, Request) and replace(newest, basis="") == again
    return again if count and not is_told else None
