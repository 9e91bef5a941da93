"""Two journals at one session: what the other one decides counts, what it says makes a branch."""

from __future__ import annotations

import pytest

from holdfast.config import get_target
from holdfast.engine.log.journal import Journal
from holdfast.messages.message import Message
from holdfast.messages.parts import Text, ToolCall, ToolResult
from holdfast.store.open_store import open_store

WHERE = get_target("anthropic", "claude-sonnet-4-5", window=200_000)


@pytest.fixture(params=["memory", "disk"])
def store(request, tmp_path):
    with open_store(":memory:" if request.param == "memory" else tmp_path / "agent.db") as opened:
        yield opened


def worked(store):
    """Return a journal that has spilled one result."""
    journal = Journal.open(store, "k")
    journal.append(Message.from_text("user", "go"), Message("assistant", (ToolCall("c", "bash"),)))
    journal.append(Message("tool", (ToolResult("c", "bash", (Text("a line of a log\n" * 9_000),)),)))
    journal.prepare_request(WHERE)
    assert journal.state.view.active_decisions
    return journal


def words(store, leaf=None):
    return [
        slot.message.text
        for slot in Journal.open(store, "k", leaf=leaf).state.history.sized_messages
        if slot.message.text
    ]


def test_an_undo_elsewhere_counts_here(store):
    """What another terminal takes back no longer counts in a running session, which goes on behind it."""
    journal = worked(store)
    Journal.open(store, "k").undo()
    journal.append(Message.from_text("assistant", "done"), Message.from_text("user", "next"))
    assert journal.state.view.active_decisions == ()
    assert words(store) == ["go", "done", "next"]
    assert store.get_session("k").leaf_id == journal.leaf


def test_an_undo_between_two_tries_counts(store):
    """A request that was prepared is prepared anew where somebody took a decision of it back."""
    journal = worked(store)
    shown = journal.prepare_request(WHERE).messages
    Journal.open(store, "k").undo()
    again = journal.prepare_request(WHERE).messages
    assert len(str(again[-1].message)) > 10 * len(str(shown[-1].message))
    assert again == Journal.open(store, "k").prepare_request(WHERE).messages


def test_a_decision_elsewhere_is_repeated_here(store):
    """A decision that another process recorded is shown by the requests of this one."""
    journal = Journal.open(store, "k")
    journal.append(Message.from_text("user", "go"), Message("assistant", (ToolCall("c", "bash"),)))
    journal.append(Message("tool", (ToolResult("c", "bash", (Text("a line of a log\n" * 9_000),)),)))
    other = Journal.open(store, "k").prepare_request(WHERE)
    assert journal.prepare_request(WHERE).messages == other.messages
    assert len(journal.state.view.active_decisions) == 1


def test_words_elsewhere_make_a_branch(store):
    """Where both say something, the second is a branch beside the first, and nothing is lost."""
    journal = worked(store)
    Journal.open(store, "k").append(Message.from_text("assistant", "theirs"))
    journal.append(Message.from_text("assistant", "ours"))
    assert words(store) == ["go", "theirs"]
    assert words(store, journal.leaf) == ["go", "ours"]


def test_a_fork_stays_a_fork(store):
    """What is decided on the session's own branch does not count on a fork."""
    journal = worked(store)
    fork = journal.fork_at(journal.leaf)
    journal.undo()
    fork.append(Message.from_text("assistant", "here"))
    assert fork.state.view.active_decisions
    assert not journal.state.view.active_decisions


def test_a_fork_leaves_the_session_where_it_is(store):
    """What is said first on a fork from the session's end is beside the session, which goes on as it was."""
    journal = worked(store)
    fork = journal.fork_at(journal.leaf)
    fork.append(Message.from_text("assistant", "what if"))
    journal.append(Message.from_text("assistant", "done"))
    assert words(store) == ["go", "done"]
    assert words(store, fork.leaf) == ["go", "what if"]
    assert store.get_session("k").leaf_id == journal.leaf
