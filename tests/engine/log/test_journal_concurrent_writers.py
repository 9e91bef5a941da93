"""Two journals of one session: decisions of the other apply here too; messages of the other make a branch."""

from __future__ import annotations

from contextlib import contextmanager

import pytest

from holdfast.config import get_target
from holdfast.engine.log.journal import Journal
from holdfast.messages.message import Message
from holdfast.messages.parts import Text, ToolCall, ToolResult
from holdfast.state.entries import Entry, NoteEntry
from holdfast.store.memory import MemoryStore
from holdfast.store.open_store import open_store

TARGET = get_target("anthropic", "claude-sonnet-4-5", window=200_000)


@pytest.fixture(params=["memory", "disk"])
def store(request, tmp_path):
    with open_store(":memory:" if request.param == "memory" else tmp_path / "agent.db") as opened:
        yield opened


def open_journal_with_spill(store):
    """Return a journal of a session in which one result is spilled."""
    journal = Journal.open(store, "k")
    journal.append(Message.from_text("user", "go"), Message("assistant", (ToolCall("c", "bash"),)))
    journal.append(Message("tool", (ToolResult("c", "bash", (Text("a line of a log\n" * 9_000),)),)))
    journal.prepare_request(TARGET)
    assert journal.state.view.active_decisions
    return journal


def list_texts(store, leaf=None):
    return [
        slot.message.text
        for slot in Journal.open(store, "k", leaf=leaf).state.history.sized_messages
        if slot.message.text
    ]


def test_undo_by_another_journal_applies_here(store):
    """A running session follows an undo of another process and continues behind it."""
    journal = open_journal_with_spill(store)
    Journal.open(store, "k").undo()
    journal.append(Message.from_text("assistant", "done"), Message.from_text("user", "next"))
    assert journal.state.view.active_decisions == ()
    assert list_texts(store) == ["go", "done", "next"]
    assert store.get_session("k").leaf_id == journal.leaf


def test_prepare_request_plans_anew_after_an_undo_by_another_journal(store):
    """A prepared request is planned again when another journal revoked one of its decisions."""
    journal = open_journal_with_spill(store)
    messages = journal.prepare_request(TARGET).messages
    Journal.open(store, "k").undo()
    again = journal.prepare_request(TARGET).messages
    assert len(str(again[-1].message)) > 10 * len(str(messages[-1].message))
    assert again == Journal.open(store, "k").prepare_request(TARGET).messages


class BusySession(MemoryStore):
    """A store in which another process always writes a note just before a lease is obtained."""

    leases = 0

    @contextmanager
    def hold_lease(self, key):
        """Write, then hold the lease; fail if there is no end of leases."""
        self.leases += 1
        assert self.leases < 100, "leases are taken without an end"
        with super().hold_lease(key):
            if self.list_sessions():
                note = Entry(f"other-{self.leases}", self.get_session(key).leaf_id, NoteEntry("note"))
                self.append_entries(key, [note])
            yield


def test_prepare_request_ends_while_another_process_writes_all_the_time():
    """However often the log moves on, the request is planned for the log as it is then, and committed."""
    store = BusySession()
    journal = Journal.open(store, "k")
    journal.append(Message.from_text("user", "go"))
    prepared_request = journal.prepare_request(TARGET)
    assert store.get_session("k").leaf_id == journal.leaf == prepared_request.request_id


def test_prepare_request_applies_a_decision_of_another_journal(store):
    """A decision that another process recorded shapes the requests of this one."""
    journal = Journal.open(store, "k")
    journal.append(Message.from_text("user", "go"), Message("assistant", (ToolCall("c", "bash"),)))
    journal.append(Message("tool", (ToolResult("c", "bash", (Text("a line of a log\n" * 9_000),)),)))
    other = Journal.open(store, "k").prepare_request(TARGET)
    assert journal.prepare_request(TARGET).messages == other.messages
    assert len(journal.state.view.active_decisions) == 1


def test_append_after_a_message_of_another_journal_makes_a_branch(store):
    """The second message starts a branch beside the first, and both are kept."""
    journal = open_journal_with_spill(store)
    Journal.open(store, "k").append(Message.from_text("assistant", "theirs"))
    journal.append(Message.from_text("assistant", "ours"))
    assert list_texts(store) == ["go", "theirs"]
    assert list_texts(store, journal.leaf) == ["go", "ours"]


def test_fork_ignores_an_undo_on_the_session_branch(store):
    """Decisions on the session's own branch do not apply to a fork."""
    journal = open_journal_with_spill(store)
    fork = journal.fork_at(journal.leaf)
    journal.undo()
    fork.append(Message.from_text("assistant", "here"))
    assert fork.state.view.active_decisions
    assert not journal.state.view.active_decisions


def test_fork_at_the_leaf_does_not_move_the_session(store):
    """A message on a fork from the session's end lies beside the session, which continues as before."""
    journal = open_journal_with_spill(store)
    fork = journal.fork_at(journal.leaf)
    fork.append(Message.from_text("assistant", "what if"))
    journal.append(Message.from_text("assistant", "done"))
    assert list_texts(store) == ["go", "done"]
    assert list_texts(store, fork.leaf) == ["go", "what if"]
    assert store.get_session("k").leaf_id == journal.leaf
