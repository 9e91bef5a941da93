"""What a conversation that parts from its log takes along: what was decided of the part that both say, and learned."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from msgspec.structs import replace

from holdfast.model.branch import Branch
from holdfast.model.entries import (
    FORGOTTEN,
    OVERFLOW,
    Body,
    BranchSummary,
    Compaction,
    Decision,
    Entry,
    Failure,
    Note,
    Request,
    Said,
)
from holdfast.model.gauging import LEAST_LIMIT

NEARLY = 2
"""[H] Slots that a refused request may have had more, so that its size still tells of what is left: a reminder."""
AGAIN = 2
"""The same words of a provider teach something the second time too: no limit explains them. Then no more."""


def carried(branch: Branch, path: Sequence[Entry], start: int, count: int) -> list[Body]:
    """Return what ``path``, that of ``branch``, tells from entry ``start`` on of its first ``count`` slots, in order.

    Where a conversation parts from its log before ``start``, it goes on with that: what was decided of them, that
    requests showed them (whose basis is another one here), and what an overflow taught. What was told there already,
    by an earlier branch from the same place, is not told again.
    """
    law = {id_ for id_, _ in branch.law}
    there = _bodies_there(path[:start])
    told, slots = list(there), count
    forgotten = max((at for at in range(start, len(path)) if _forgets(path[at].body)), default=-1)
    for at, entry in enumerate(path[start:], start):
        body = entry.body
        if isinstance(body, Request):
            slots = body.slots
            told += _shown_again(body, told, count)
        elif isinstance(body, Failure) and body.kind == OVERFLOW and body.limit and at > forgotten:
            lesson = body if slots <= count + NEARLY else replace(body, requested=0, elsewhere=True)
            told += [lesson] if _is_news(lesson, _remembered(told)) else []
        elif at == forgotten and body not in told:
            told.append(body)
        elif entry.id in law and (part := within(body, count)) is not None:
            told.append(part)
    return told[len(there) :]


def _bodies_there(path: Sequence[Entry]) -> list[Body]:
    """Return what stands at the end of ``path`` behind the last message."""
    there = takewhile(lambda entry: not isinstance(entry.body, Said | BranchSummary), reversed(path))
    return [entry.body for entry in there][::-1]


def _shown_again(request: Request, told: Sequence[Body], count: int) -> list[Body]:
    """Return the request that showed the first ``count`` slots, unless ``told`` has it and nothing decided since."""
    again = Request("", count, request.model, request.window)
    newest = next((body for body in reversed(told) if isinstance(body, Request | Decision | Compaction)), None)
    is_told = isinstance(newest, Request) and replace(newest, basis="") == again
    return [again] if count and not is_told else []


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


def within(body: Body, count: int) -> Body | None:
    """Return the part of what was decided that is about the first ``count`` slots."""
    if isinstance(body, Decision):
        edits = tuple(edit for edit in body.edits if edit.span.stop <= count)
        return Decision(edits) if edits else None
    if isinstance(body, Compaction) and body.keep <= count and all(edit.span.stop <= count for edit in body.edits):
        return body
    return None
