"""What is to go onward is not written beside what somebody else said."""

from __future__ import annotations

from pathlib import Path

import pytest
from samples import KEY, chain, ids

from holdfast.engine.log.journal import Journal
from holdfast.messages.message import Message
from holdfast.state.entries import Decision, Entry, Said
from holdfast.store import open_store
from holdfast.store.base import SessionStore


@pytest.fixture(params=["disk", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> SessionStore:
    """Return an empty store of either kind."""
    return open_store(tmp_path / "agent.db" if request.param == "disk" else ":memory:")


def test_what_goes_onward_is_written_behind_the_leaf_alone(store: SessionStore) -> None:
    """Behind the session's leaf it is appended as ever; anywhere else nothing is written, and the answer says so."""
    with store:
        store.create(KEY)
        assert store.append(KEY, chain("ab"), onward=True).moved
        before = store.session(KEY)
        told = store.append(KEY, chain("xy", "a"), onward=True)
        assert (told.moved, told.seq, told.leaf) == (False, 0, "b")
        assert store.session(KEY) == before
        assert ids(store.entries(KEY)) == ["a", "b"]
        assert store.append(KEY, chain("c", "b"), onward=True).moved
        assert ids(store.path(KEY)) == ["a", "b", "c"]


def test_a_journal_finds_what_others_did_when_it_writes(store: SessionStore) -> None:
    """What was decided behind its leaf counts in it, and what was said there makes it a branch, at the next verb."""
    with store:
        journal = Journal.open(store, KEY)
        journal.append(Message.of("user", "one"))
        decided = Entry("d", journal.leaf, Decision(()))
        store.append(KEY, [decided])
        (two,) = journal.append(Message.of("user", "two"))
        assert store.entry(KEY, two).parent == "d"
        assert [id_ for id_, _ in journal.branch.law] == ["d"]
        said = store.path(KEY)[-1].body
        assert isinstance(said, Said)
        store.append(KEY, [Entry("s", two, said)])
        (three,) = journal.append(Message.of("user", "three"))
        assert (store.entry(KEY, three).parent, store.session(KEY).leaf) == (two, "s")
        assert [message.text for message in journal.branch.messages] == ["one", "two", "three"]
