"""Deciding: what the next request shows is planned, written into the log, and told."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import dropwhile, takewhile
from typing import TypeVar

from msgspec.structs import replace

from holdfast.model.entries import Answer, Entry, Failure
from holdfast.model.entries import Request as Asked
from holdfast.model.plan import Plan
from holdfast.model.target import Target, World
from holdfast.policy.pipeline import advance
from holdfast.policy.unsealing import RULE, is_of_seals, unseal
from holdfast.runtime import compacting
from holdfast.runtime.course import Course
from holdfast.runtime.journal import Journal, Prepared
from holdfast.runtime.requests import Request
from holdfast.telemetry import events

T = TypeVar("T")
NO_HELP = "the request is refused like that without what the provider had sealed too: it is shown again from here on"
"""What is told where leaving it out is taken back, and written behind the rule's name."""


async def next_request(course: Course, request: Request, world: World, plan: Plan | None = None) -> Prepared:
    """Return the next request for ``request``, decided and in the log; ``plan`` is the one to begin with."""
    while True:
        plan, known = await compacting.planned(course, request, world, plan)
        prepared = await _decided(course, request, plan, known)
        if prepared is not None:
            return prepared
        plan = None


async def smaller_request(course: Course, request: Request, world: World, rung: str) -> Prepared | str:
    """Return the request planned anew under pressure, or why it would not be smaller; then nothing is written."""
    while True:
        plan, known = await compacting.planned(course, request, world, trigger="overflow")
        useless = compacting.useless(plan, rung)
        if useless:
            await compacting.made(course, plan, known, useless)
            return useless
        prepared = await _decided(course, request, plan, known)
        if prepared is not None:
            return prepared


async def leave_out_sealed(course: Course, target: Target, write: Callable[[Plan], T | None]) -> T | None:
    """Return what ``write`` does of the plan without what the provider sealed, once told; nothing where nothing is.

    ``write`` puts it into the log, or returns nothing where it stands no more. Where it was no help since the last
    answer it is none now.
    """

    def left_out() -> tuple[Plan | None, T | None]:
        plan = None if _was_no_help(course.journal) else unsealing(course.journal, target)
        return plan, None if plan is None else write(plan)

    while True:
        plan, written = await course.means.stored(left_out)
        if plan is None:
            return None
        if written:
            await compacting.made(course, plan, World())
            _tell(course, plan)
            return written


async def show_sealed(course: Course) -> None:
    """Take back that what is sealed is left out, tell and write it, where no answer came since: it was no help."""
    journal = course.journal

    def taken_back() -> bool:
        with journal.together():
            helpless = _unanswered_unsealing(journal)
            for id_ in helpless:
                journal.undo(id_)
            if helpless:
                journal.fail(f"{RULE}: {NO_HELP}")
        return bool(helpless)

    if await course.means.stored(taken_back):
        course.tell(events.Noticed(course.key, RULE, NO_HELP))


def unsealing(journal: Journal, target: Target) -> Plan | None:
    """Return the plan that leaves out what is sealed, and decides no more; nothing where nothing is."""
    policy = replace(journal.policy, stages=((RULE, unseal),))
    plan = advance(journal.branch, target, policy)
    return plan if plan.record or plan.compaction is not None else None


def _unanswered_unsealing(journal: Journal) -> list[str]:
    """Return the ids of what leaves out what is sealed, and was asked with but never answered, the newest first."""
    law = {id_ for id_, what in journal.branch.law if is_of_seals(what)}
    shown = dropwhile(lambda entry: not isinstance(entry.body, Asked), _since_answer(journal) if law else ())
    return [entry.id for entry in shown if entry.id in law]


def _was_no_help(journal: Journal) -> bool:
    """Whether leaving out what is sealed was taken back since the last answer: the refusals are about something else.

    Behind an answer another one may be about what is sealed.
    """
    failures = [entry.body for entry in _since_answer(journal) if isinstance(entry.body, Failure)]
    return any(failure.reason.startswith(f"{RULE}:") for failure in failures)


def _since_answer(journal: Journal) -> Iterator[Entry]:
    """Return the entries behind the last answer, the newest first."""
    path = journal.store.path(journal.key, journal.leaf)
    return takewhile(lambda entry: not isinstance(entry.body, Answer), reversed(path))


async def announce(course: Course, plan: Plan, prepared: Prepared, world: World) -> None:
    """Tell what was decided, unless it is the same request again: that was told before."""
    if prepared.plan is not plan:
        await compacting.made(course, prepared.plan, world)
        _tell(course, prepared.plan)


async def _decided(course: Course, request: Request, plan: Plan, world: World) -> Prepared | None:
    """Return the request of ``plan``, once what it decides is in the log and told; nothing where more was said."""
    prepared = await course.means.stored(lambda: course.commit(plan, request.target, world))
    if prepared is not None:
        await announce(course, plan, prepared, world)
    return prepared


def _tell(course: Course, plan: Plan) -> None:
    """Tell what ``plan`` decided."""
    rules: dict[str, list[int]] = {}
    for edit in plan.record:
        rules.setdefault(edit.rule, []).append(edit.saves)
    for rule, saves in rules.items():
        course.tell(events.Decided(course.key, rule, len(saves), sum(saves)))
    for notice in plan.notices:
        course.tell(events.Noticed(course.key, notice.rule, notice.why))
