"""The store in memory obeys the rules of every store."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from samples import KEY, chain, same_request, unnumbered
from store_conformance import BlobStoreRules, SessionStoreRules
from strategies import logs

from holdfast.state.branch.branch import Branch
from holdfast.state.entries import Entry
from holdfast.store import open_store
from holdfast.store.base import BlobStore, Quota, SessionInfo, SessionStore
from holdfast.store.blobs.blobs import MemoryBlobs
from holdfast.store.memory import MemoryStore


@pytest.mark.usefixtures("impatient")
class TestMemoryStore(SessionStoreRules):
    """Every rule but lasting."""

    durable = False

    def open(self, place: Path) -> SessionStore:
        """Return an empty store."""
        return MemoryStore()

    def limited(self, place: Path, quota: Quota) -> SessionStore:
        """Return an empty store with a quota."""
        return open_store(":memory:", quota=quota)


class TestMemoryBlobs(BlobStoreRules):
    """Every rule of blobs."""

    def open(self, place: Path) -> BlobStore:
        """Return an empty blob store."""
        return MemoryBlobs()


@given(logs())
def test_a_branch_that_was_taken_is_the_branch(log: list[Entry]) -> None:
    """What another store read and this one holds makes the same requests, and goes on as it does there."""
    taken, put = MemoryStore(), MemoryStore()
    taken.take(SessionInfo(KEY, model="m"), log)
    put.put(KEY, log)
    more = chain(["more"], log[-1].id if log else None)
    for store in (taken, put) if log else (taken,):
        assert unnumbered(store.path(KEY)) == unnumbered(log)
        store.append(KEY, more)
        assert unnumbered(store.path(KEY)) == unnumbered([*log, *more])
        assert same_request(store.branch(KEY), Branch.build([*log, *more]))
    assert (taken.session(KEY).entries, taken.session(KEY).model) == (len(log) + 1, "m")
