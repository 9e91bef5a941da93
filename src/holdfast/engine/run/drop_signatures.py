"""Unsealing, driven: what a provider sealed and takes no more is left out, and shown again where that was no help."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import dropwhile, takewhile
from typing import TypeVar

from msgspec.structs import replace

from holdfast import events
from holdfast.engine.compaction import compact as compacting
from holdfast.engine.log.journal import Journal
from holdfast.engine.session_runtime import Course
from holdfast.planning.pipeline import advance
from holdfast.recovery.signatures import RULE, is_of_seals, unseal
from holdfast.state.entries import NO_HELP, Answer, Entry, Note
from holdfast.state.entries import Request as Asked
from holdfast.state.plan import Plan
from holdfast.state.target import Target

T = TypeVar("T")
WHY = "the request is refused like that without what the provider had sealed too: it is shown again from here on"
"""What is told where leaving it out is taken back."""


async def leave_out(course: Course, target: Target, write: Callable[[Plan], T | None]) -> T | None:
    """Return what ``write`` does of the plan without what the provider sealed, once told; nothing where nothing is.

    ``write`` puts it into the log, or returns nothing where it stands no more. Where it was no help since the last
    answer it is none now.
    """

    def left_out() -> tuple[Plan | None, T | None]:
        plan = None if _was_no_help(course.journal) else plan_without(course.journal, target)
        return plan, None if plan is None else write(plan)

    while True:
        plan, written = await course.means.in_worker(left_out)
        if plan is None:
            return None
        if written:
            await compacting.made(course, plan)
            compacting.tell_decided(course, plan)
            return written


async def show_again(course: Course) -> None:
    """Take back that what is sealed is left out, tell and write it, where no answer came since: it was no help."""
    journal = course.journal

    def taken_back() -> bool:
        with journal.leased():
            helpless = _unanswered(journal)
            for id_ in helpless:
                journal.undo(id_)
            if helpless:
                journal.remark(Note(NO_HELP))
        return bool(helpless)

    if await course.means.in_worker(taken_back):
        course.tell(events.Noticed(course.key, RULE, WHY))


def plan_without(journal: Journal, target: Target) -> Plan | None:
    """Return the plan that leaves out what is sealed, and decides no more; nothing where nothing is."""
    policy = replace(journal.policy, stages=((RULE, unseal),))
    plan = advance(journal.branch, target, policy)
    return plan if plan.record or plan.compaction is not None else None


def _unanswered(journal: Journal) -> list[str]:
    """Return the ids of what leaves out what is sealed, and was asked with but never answered, the newest first."""
    law = {id_ for id_, what in journal.branch.law if is_of_seals(what)}
    shown = dropwhile(lambda entry: not isinstance(entry.body, Asked), _since_answer(journal) if law else ())
    return [entry.id for entry in shown if entry.id in law]


def _was_no_help(journal: Journal) -> bool:
    """Whether leaving out what is sealed was taken back since the last answer: the refusals are about something else.

    Behind an answer another one may be about what is sealed.
    """
    notes = [entry.body for entry in _since_answer(journal) if isinstance(entry.body, Note)]
    return any(note.reason == NO_HELP for note in notes)


def _since_answer(journal: Journal) -> Iterator[Entry]:
    """Return the entries behind the last answer, the newest first."""
    path = journal.store.path(journal.key, journal.leaf)
    return takewhile(lambda entry: not isinstance(entry.body, Answer), reversed(path))
