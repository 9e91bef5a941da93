"""A journal only accepts values of the right types and a valid session key."""

from __future__ import annotations

import pytest
from sample_entries import SAMPLE_KEY

from holdfast.engine.log.journal import Journal
from holdfast.errors import LogConflict
from holdfast.messages.message import Message
from holdfast.messages.parts import ProviderSignature, Text, Thinking, ToolCall, ToolResult
from holdfast.messages.sized_message import SizedMessage

INVALID_MESSAGES = {
    "arguments": Message("assistant", (ToolCall("c", "bash", {"a": 1}),)),
    "arguments`": Message("assistant", (ToolCall("c", "bash", None),)),
    r"\.id`": Message("assistant", (ToolCall(5, "bash", "{}"),)),
    "is_error": Message("tool", (ToolResult("c", is_error="yes"),)),
    "role": Message("boss", (Text("work"),)),
    "parts": Message("user", "work"),
    "text": Message("user", (Text(5),)),
    "signature": Message("assistant", (Thinking("hm", signature="x"),)),
    "data": SizedMessage(Message("assistant", (Thinking("hm", signature=ProviderSignature("anthropic", "m", 5)),))),
    "object": "work",
}


@pytest.mark.parametrize("field", INVALID_MESSAGES)
def test_journal_append_rejects_fields_of_a_wrong_type(store, field):
    """A refused append names the field and changes neither journal nor log."""
    journal = Journal.open(store, SAMPLE_KEY)
    journal.append(Message.from_text("user", "hello"))
    branch, leaf = journal.state, journal.leaf
    with pytest.raises(LogConflict, match=field):
        journal.append(Message.from_text("user", "fine"), INVALID_MESSAGES[field])
    assert (journal.state, journal.leaf, store.get_session(SAMPLE_KEY).leaf_id) == (branch, leaf, leaf)
    assert [slot.message.text for slot in store.open_state(SAMPLE_KEY).history.sized_messages] == ["hello"]
    journal.append(Message.from_text("assistant", "on"))
    assert store.read_tips(SAMPLE_KEY)[0].id == journal.leaf


def test_journal_open_rejects_an_empty_session_key(store):
    """No session is created for a key that is refused."""
    with pytest.raises(LogConflict, match="session key"):
        Journal.open(store, "")
    assert store.list_sessions() == []
