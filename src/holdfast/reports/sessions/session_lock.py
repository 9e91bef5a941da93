"""Lock a session for a decision made by hand while others may be using it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.engine.log.journal import Journal
from holdfast.planning.pipeline import Policy
from holdfast.state.entries import CompactionEntry, DecisionEntry
from holdfast.store.base import SessionStore


@contextmanager
def open_journal_at_leaf(store: SessionStore, key: str, policy: Policy = Policy()) -> Iterator[Journal]:
    """Lock session ``key`` and yield its journal at the current leaf; entries written inside continue from there.

    The leaf is read under the lock. A proxy or agent may have added entries before, and a decision written beside them
    would be on a dead branch.
    """
    journal = Journal.open(store, key, policy)
    with journal.hold_lease():
        journal.join_session()
        with journal.batch_writes():
            yield journal


def list_decisions_after(journal: Journal, before_id: str | None) -> list[str]:
    """List the ids of decisions on the branch of ``journal`` after entry ``before_id``, the newest first."""
    ids = []
    for entry in reversed(journal.store.read_path(journal.key, journal.leaf)):
        if entry.id == before_id:
            break
        if isinstance(entry.body, DecisionEntry | CompactionEntry):
            ids.append(entry.id)
    return ids
