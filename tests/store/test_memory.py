"""The memory store obeys the rules of every store."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis_strategies import log_strategy
from sample_entries import SAMPLE_KEY, drop_sequence_numbers, is_same_request, make_message_chain
from store_conformance import BlobStoreRules, SessionStoreRules

from holdfast.state.conversation_state import ConversationState
from holdfast.state.entries import Entry
from holdfast.store.base import BlobStore, Quota, SessionInfo, SessionStore
from holdfast.store.blobs.blobs import MemoryBlobStore
from holdfast.store.memory import MemoryStore
from holdfast.store.open_store import open_store


@pytest.mark.usefixtures("short_lease_wait")
class TestMemoryStore(SessionStoreRules):
    """The common rules, except durability."""

    is_durable = False

    def open(self, place: Path) -> SessionStore:
        """Return an empty store."""
        return MemoryStore()

    def open_limited(self, place: Path, quota: Quota) -> SessionStore:
        """Return an empty store with a quota."""
        return open_store(":memory:", quota=quota)


class TestMemoryBlobs(BlobStoreRules):
    """The common rules of blobs."""

    def open(self, place: Path) -> BlobStore:
        """Return an empty blob store."""
        return MemoryBlobStore()


@given(log_strategy())
def test_adopt_session_equals_import_entries(log: list[Entry]) -> None:
    """A session adopted from another store gives the same requests and continues as an imported one does."""
    adopted, imported = MemoryStore(), MemoryStore()
    adopted.adopt_session(SessionInfo(SAMPLE_KEY, model="m"), log)
    imported.import_entries(SAMPLE_KEY, log)
    more = make_message_chain(["more"], log[-1].id if log else None)
    for store in (adopted, imported) if log else (adopted,):
        assert drop_sequence_numbers(store.read_path(SAMPLE_KEY)) == drop_sequence_numbers(log)
        store.append_entries(SAMPLE_KEY, more)
        assert drop_sequence_numbers(store.read_path(SAMPLE_KEY)) == drop_sequence_numbers([*log, *more])
        assert is_same_request(store.open_state(SAMPLE_KEY), ConversationState.from_entries([*log, *more]))
    assert (adopted.get_session(SAMPLE_KEY).entry_count, adopted.get_session(SAMPLE_KEY).model) == (len(log) + 1, "m")
