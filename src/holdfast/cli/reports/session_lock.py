"""The journal of a session at its leaf, for what a person decides about it while others may talk on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import takewhile

from holdfast.engine.log.journal import Journal
from holdfast.planning.pipeline import Policy
from holdfast.state.entries import CompactionEntry, DecisionEntry
from holdfast.store.base import SessionStore


@contextmanager
def open_journal_at_leaf(store: SessionStore, key: str, policy: Policy = Policy()) -> Iterator[Journal]:
    """Hold session ``key``, and yield its journal at its leaf; what is written inside is where the session goes on.

    A proxy or an agent may have said more before it was held: a decision beside that would be in force nowhere.
    """
    journal = Journal.open(store, key, policy)
    with journal.hold_lease():
        journal.join_session()
        with journal.batch_writes():
            yield journal


def list_decisions_after(journal: Journal, before_id: str | None) -> list[str]:
    """Return the ids of what was decided on the branch of ``journal`` behind entry ``before_id``, the newest first."""
    new = takewhile(lambda entry: entry.id != before_id, reversed(journal.store.read_path(journal.key, journal.leaf)))
    return [entry.id for entry in new if isinstance(entry.body, DecisionEntry | CompactionEntry)]
