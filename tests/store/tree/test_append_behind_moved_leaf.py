"""An append that must extend the session's leaf is not written beside another writer's entries."""

from __future__ import annotations

from pathlib import Path

import pytest
from sample_entries import SAMPLE_KEY, list_ids, make_message_chain

from holdfast.engine.log.journal import Journal
from holdfast.messages.message import Message
from holdfast.state.entries import DecisionEntry, Entry, MessageEntry
from holdfast.store.base import SessionStore
from holdfast.store.open_store import open_store


@pytest.fixture(params=["disk", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> SessionStore:
    """Return an empty store of either kind."""
    return open_store(tmp_path / "agent.db" if request.param == "disk" else ":memory:")


def test_append_entries_onward_writes_only_at_the_leaf(store: SessionStore) -> None:
    """With ``onward`` entries are appended at the session's leaf; anywhere else nothing is written and the result says
    so.
    """
    with store:
        store.create_session(SAMPLE_KEY)
        assert store.append_entries(SAMPLE_KEY, make_message_chain("ab"), onward=True).is_leaf_moved
        before = store.get_session(SAMPLE_KEY)
        result = store.append_entries(SAMPLE_KEY, make_message_chain("xy", "a"), onward=True)
        assert (result.is_leaf_moved, result.seq, result.leaf) == (False, 0, "b")
        assert store.get_session(SAMPLE_KEY) == before
        assert list_ids(store.read_entries(SAMPLE_KEY)) == ["a", "b"]
        assert store.append_entries(SAMPLE_KEY, make_message_chain("c", "b"), onward=True).is_leaf_moved
        assert list_ids(store.read_path(SAMPLE_KEY)) == ["a", "b", "c"]


def test_journal_append_notices_other_writers(store: SessionStore) -> None:
    """A decision appended by another writer applies at the next append, and a message of another writer makes the
    journal a branch.
    """
    with store:
        journal = Journal.open(store, SAMPLE_KEY)
        journal.append(Message.from_text("user", "one"))
        decision = Entry("d", journal.leaf, DecisionEntry(()))
        store.append_entries(SAMPLE_KEY, [decision])
        (second,) = journal.append(Message.from_text("user", "two"))
        assert store.get_entry(SAMPLE_KEY, second).parent == "d"
        assert [id_ for id_, _ in journal.state.view.active_decisions] == ["d"]
        body = store.read_path(SAMPLE_KEY)[-1].body
        assert isinstance(body, MessageEntry)
        store.append_entries(SAMPLE_KEY, [Entry("s", second, body)])
        (third,) = journal.append(Message.from_text("user", "three"))
        assert (store.get_entry(SAMPLE_KEY, third).parent, store.get_session(SAMPLE_KEY).leaf_id) == (second, "s")
        assert [message.text for message in journal.state.history.messages] == ["one", "two", "three"]
