"""Leave out signed parts that a provider no longer accepts, and show them again if that did not help.

A signature (a thinking block's, encrypted reasoning) can only be verified by the provider that made it. When another
key or organization asks, some providers refuse the whole conversation because of it.
"""

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
from holdfast.state.entries import NOTE_SIGNATURES_RESTORED, AnswerEntry, Entry, NoteEntry, RequestEntry
from holdfast.state.plan import Plan
from holdfast.state.target import Target

T = TypeVar("T")
SIGNATURES_RESTORED_NOTICE = (
    "the request is also refused without signatures and encrypted data, so they are shown again from here on"
)
"""Text of the notice given when leaving out signed parts did not help and is undone."""


async def drop_signatures(runtime: SessionRuntime, target: Target, write: Callable[[Plan], T | None]) -> T | None:
    """Plan without signed parts, call ``write`` to commit the plan, announce it, and return the result of ``write``.

    Return None if no part is signed, or if this was tried since the last answer and undone. ``write`` runs in the
    worker and returns None if the log has moved on; then the plan is made again.
    """

    def plan_and_write() -> tuple[Plan | None, T | None]:
        if _has_failed_since_answer(runtime.journal):
            return None, None
        plan = plan_without_signatures(runtime.journal, target)
        if plan is None:
            return None, None
        return plan, write(plan)

    while True:
        plan, result = await runtime.resources.run_in_worker(plan_and_write)
        if plan is None:
            return None
        if result:
            await compacting.emit_compaction(runtime, plan)
            compacting.emit_decisions(runtime, plan)
            return result


async def restore_signatures(runtime: SessionRuntime) -> None:
    """Undo the decisions that left out signed parts, if no answer came since: the refusals are about something else.

    Does nothing if an answer came. The undo is recorded, so that the same is not tried again before the next answer.
    """
    journal = runtime.journal

    def undo_unanswered_drops() -> bool:
        with journal.hold_lease():
            decision_ids = _find_unanswered_drops(journal)
            for decision_id in decision_ids:
                journal.undo(decision_id)
            if decision_ids:
                journal.add_notes(NoteEntry(NOTE_SIGNATURES_RESTORED))
        return bool(decision_ids)

    if await runtime.resources.run_in_worker(undo_unanswered_drops):
        runtime.emit_event(events.NoticeGiven(runtime.key, DROP_SIGNATURES_RULE, SIGNATURES_RESTORED_NOTICE))


def plan_without_signatures(journal: Journal, target: Target) -> Plan | None:
    """Return a plan that leaves out signed parts and decides nothing else, or None if nothing shown is signed."""
    policy = replace(journal.policy, stages=((DROP_SIGNATURES_RULE, drop_signed_parts),))
    plan = plan_request(journal.state, target, policy)
    has_decision = bool(plan.record) or plan.compaction is not None
    return plan if has_decision else None


def _find_unanswered_drops(journal: Journal) -> list[str]:
    """Return the ids of active signature drops that a request was sent with and no answer came to, newest first."""
    drop_ids = set()
    for id_, decision in journal.state.view.active_decisions:
        if is_signature_drop(decision):
            drop_ids.add(id_)
    if not drop_ids:
        return []  # the common case: spares reading the path
    # Entries newer than the newest request were decided after it and have not been tried.
    tried_entries = dropwhile(
        lambda entry: not isinstance(entry.body, RequestEntry), _iter_entries_since_answer(journal)
    )
    return [entry.id for entry in tried_entries if entry.id in drop_ids]


def _has_failed_since_answer(journal: Journal) -> bool:
    """Return whether leaving out signed parts was undone since the last answer.

    Only since the last answer: a refusal after that may be about other signatures.
    """
    for entry in _iter_entries_since_answer(journal):
        if isinstance(entry.body, NoteEntry) and entry.body.reason == NOTE_SIGNATURES_RESTORED:
            return True
    return False


def _iter_entries_since_answer(journal: Journal) -> Iterator[Entry]:
    """Yield the entries after the last answer, newest first."""
    path = journal.store.read_path(journal.key, journal.leaf)
    return takewhile(lambda entry: not isinstance(entry.body, AnswerEntry), reversed(path))
