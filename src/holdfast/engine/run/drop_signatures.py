"""Unsealing, driven: what a provider sealed and takes no more is left out, and shown again where that was no help."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import dropwhile, takewhile
from typing import TypeVar

from msgspec.structs import replace

from holdfast import events
from holdfast.engine.compaction import compact as compacting
from holdfast.engine.log.journal import Journal
from holdfast.engine.session_runtime import SessionRuntime
from holdfast.planning.pipeline import plan_request
from holdfast.recovery.signatures import DROP_SIGNATURES_RULE, drop_signed_parts, is_signature_drop
from holdfast.state.entries import NOTE_SIGNATURES_RESTORED, AnswerEntry, Entry, NoteEntry
from holdfast.state.entries import RequestEntry as Asked
from holdfast.state.plan import Plan
from holdfast.state.target import Target

T = TypeVar("T")
SIGNATURES_RESTORED_NOTICE = (
    "the request is refused like that without what the provider had sealed too: it is shown again from here on"
)
"""What is told where leaving it out is taken back."""


async def drop_signatures(runtime: SessionRuntime, target: Target, write: Callable[[Plan], T | None]) -> T | None:
    """Return what ``write`` does of the plan without what the provider sealed, once told; nothing where nothing is.

    ``write`` puts it into the log, or returns nothing where it stands no more. Where it was no help since the last
    answer it is none now.
    """

    def left_out() -> tuple[Plan | None, T | None]:
        plan = None if _has_failed_since_answer(runtime.journal) else plan_without_signatures(runtime.journal, target)
        return plan, None if plan is None else write(plan)

    while True:
        plan, result = await runtime.resources.run_in_worker(left_out)
        if plan is None:
            return None
        if result:
            await compacting.emit_compaction(runtime, plan)
            compacting.emit_decisions(runtime, plan)
            return result


async def restore_signatures(runtime: SessionRuntime) -> None:
    """Take back that what is sealed is left out, tell and write it, where no answer came since: it was no help."""
    journal = runtime.journal

    def taken_back() -> bool:
        with journal.hold_lease():
            helpless = _find_unanswered_drops(journal)
            for id_ in helpless:
                journal.undo(id_)
            if helpless:
                journal.add_notes(NoteEntry(NOTE_SIGNATURES_RESTORED))
        return bool(helpless)

    if await runtime.resources.run_in_worker(taken_back):
        runtime.emit_event(events.NoticeGiven(runtime.key, DROP_SIGNATURES_RULE, SIGNATURES_RESTORED_NOTICE))


def plan_without_signatures(journal: Journal, target: Target) -> Plan | None:
    """Return the plan that leaves out what is sealed, and decides no more; nothing where nothing is."""
    policy = replace(journal.policy, stages=((DROP_SIGNATURES_RULE, drop_signed_parts),))
    plan = plan_request(journal.state, target, policy)
    return plan if plan.record or plan.compaction is not None else None


def _find_unanswered_drops(journal: Journal) -> list[str]:
    """Return the ids of what leaves out what is sealed, and was asked with but never answered, the newest first."""
    law = {id_ for id_, decision in journal.state.view.active_decisions if is_signature_drop(decision)}
    later_entries = dropwhile(
        lambda entry: not isinstance(entry.body, Asked), _iter_entries_since_answer(journal) if law else ()
    )
    return [entry.id for entry in later_entries if entry.id in law]


def _has_failed_since_answer(journal: Journal) -> bool:
    """Whether leaving out what is sealed was taken back since the last answer: the refusals are about something else.

    Behind an answer another one may be about what is sealed.
    """
    notes = [entry.body for entry in _iter_entries_since_answer(journal) if isinstance(entry.body, NoteEntry)]
    return any(note.reason == NOTE_SIGNATURES_RESTORED for note in notes)


def _iter_entries_since_answer(journal: Journal) -> Iterator[Entry]:
    """Return the entries behind the last answer, the newest first."""
    path = journal.store.read_path(journal.key, journal.leaf)
    return takewhile(lambda entry: not isinstance(entry.body, AnswerEntry), reversed(path))
