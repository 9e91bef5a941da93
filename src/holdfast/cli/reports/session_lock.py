"""The journal of a session at its leaf, for what a person decides about it while others may talk on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import takewhile

from holdfast.engine.log.journal import Journal
from holdfast.planning.pipeline import Policy
from holdfast.state.entries import Compaction, Decision
from holdfast.store.base import SessionStore


@contextmanager
def at_leaf(store: SessionStore, key: str, policy: Policy = Policy()) -> Iterator[Journal]:
    """Hold session ``key``, and yield its journal at its leaf; what is written inside is where the session goes on.

    A proxy or an agent may have said more before it was held: a decision beside that would be in force nowhere.
    """
    journal = Journal.open(store, key, policy)
    with journal.leased():
        journal.join()
        with journal.one_write():
            yield journal


def decided_behind(journal: Journal, before: str | None) -> list[str]:
    """Return the ids of what was decided on the branch of ``journal`` behind entry ``before``, the newest first."""
    new = takewhile(lambda entry: entry.id != before, reversed(journal.store.path(journal.key, journal.leaf)))
    return [entry.id for entry in new if isinstance(entry.body, Decision | Compaction)]
