"""What a conversation that parts from its log takes along: what was decided of the part that both say, and learned.

An undo is taken along as what it undid, and the undo: no rule takes again what it brought back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile

from msgspec.structs import replace

from holdfast.model.branch import Branch
from holdfast.model.entries import (
    FORGOTTEN,
    HISTORY,
    OVERFLOW,
    Body,
    BranchSummary,
    Compaction,
    Decision,
    Entry,
    Failure,
    Frame,
    Note,
    Request,
    Revoke,
    Said,
)
from holdfast.model.forking import within
from holdfast.model.gauging import LEAST_LIMIT

NEARLY = 2
"""[H] Slots that a refused request may have had more, so that its size still tells of what is left: a reminder."""
AGAIN = 2
"""The same words of a provider teach something the second time too: no limit explains them. Then no more."""


_SHOWING = Request | Decision | Compaction | Revoke
"""What says, or changes, what the next request shows."""


def carried(branch: Branch, path: Sequence[Entry], start: int, count: int) -> list[Entry]:
    """Return what ``path``, that of ``branch``, tells from entry ``start`` on of its first ``count`` slots, in order.

    Where a conversation parts from its log before ``start``, it goes on with that: what was decided of them or taken
    back, that requests showed them (whose basis is another one here), and what an overflow taught. What was told there
    already, by an earlier branch from the same place, is not told again.
    """
    law = {id_ for id_, _ in branch.law}
    known = {entry.id for entry in path[:start]}
    told, slots, again = _bodies_there(path[:start]), count, list[Entry]()
    framed = next((at for at, one in enumerate(path) if isinstance(one.body, Frame | Request)), -1)
    forgotten = max((at for at in range(start, len(path)) if _forgets(path[at].body)), default=-1)
    for at, entry in enumerate(path[start:], start):
        body = entry.body
        new: Body | None = None
        if isinstance(body, Request):
            slots = body.slots
            new = _shown_again(body, told, count)
        elif isinstance(body, Failure) and body.kind == OVERFLOW and body.limit and at > forgotten:
            lesson = body if slots <= count + NEARLY else replace(body, requested=0, elsewhere=True)
            new = lesson if _is_news(lesson, _remembered(told)) else None
        elif at == forgotten:
            new = None if body in told else body
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
    again = Request("", count, request.model, request.window)
    newest = next((body for body in reversed(told) if isinstance(body, _SHOWING)), None)
    is_told = isinstance(newest, Request) and replace(newest, basis="") == again
    return again if count and not is_told else None


def _forgets(body: Body) -> bool:
    """Whether what overflows told before ``body`` counts no more."""
    return isinstance(body, Note) and body.reason == FORGOTTEN


def _remembered(told: Sequence[Body]) -> list[Body]:
    """Return what was ``told`` since the window was forgotten last."""
    return list(takewhile(lambda body: not _forgets(body), reversed(told)))


def _is_news(lesson: Failure, told: Sequence[Body]) -> bool:
    """Whether an overflow teaches more than those ``told``: branches of branches would repeat every one for ever."""
    if not lesson.elsewhere:
        return told.count(lesson) < AGAIN
    known = [body.limit for body in told if isinstance(body, Failure) and body.elsewhere]
    return LEAST_LIMIT <= lesson.limit < min(known, default=lesson.limit + 1)
