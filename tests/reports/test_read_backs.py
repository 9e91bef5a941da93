"""When a model read a message back: which calls count, and where the story of the message shows them."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from holdfast.config import load_shipped_catalog
from holdfast.engine.recall_sources import find_text_source
from holdfast.errors import UnknownId
from holdfast.messages.message import Message
from holdfast.messages.parts import Text, ToolCall, ToolResult
from holdfast.messages.size.tokens import build_sized_message
from holdfast.messages.text.text_cuts import hash_text
from holdfast.planning.extract.constants import HANDLE_CHARS
from holdfast.reports.messages.message_events import list_message_events, read_decision_entries
from holdfast.reports.messages.message_story import explain_message
from holdfast.reports.messages.read_backs import MAX_CALL_TOKENS, list_recall_calls, select_read_backs
from holdfast.reports.requests.request_size import ESTIMATOR_SIZE
from holdfast.reports.sessions.history import load_branch_history
from holdfast.reports.sessions.timeline import load_timeline
from holdfast.state.edits import Edit, Span
from holdfast.state.entries import DecisionEntry, Entry, MessageEntry, RequestEntry
from holdfast.store.base import SessionInfo
from holdfast.store.open_store import open_store

KEY = "s"
LOG = "\n".join(f"line {number}: nothing" for number in range(400))
HASH = hash_text(LOG)
SAID_ID = "5a1df00d-0002"
OTHER_ID = "77aa00bb-0001"


def say(role, *parts):
    """Return the body of a message."""
    return MessageEntry(build_sized_message(Message(role, parts)))


def call_tool(name, arguments):
    """Return the body of an answer with one call."""
    return say("assistant", ToolCall("r", name, arguments if isinstance(arguments, str) else json.dumps(arguments)))


def write_log(store, calls):
    """Write a session in which message 1 is spilled, and then each call of ``calls`` is the answer to a request."""
    assert store.blobs.store_content(LOG) == HASH
    edit = Edit(Span(1, 2, 0), (Text("[preview]"),), "spill", "long", 500, HASH)
    bodies = [
        (OTHER_ID, say("user", Text("Go on."))),
        (SAID_ID, say("tool", ToolResult("c", "read", (Text(LOG),)))),
        ("dec1", DecisionEntry((edit,))),
    ]
    for number, body in enumerate(calls):
        bodies.append((f"req{number}", RequestEntry(f"d{number}", 2 + number, "m", 10_000)))
        bodies.append((f"call{number}", body))
    entries, parent = [], None
    for id_, body in bodies:
        entries.append(Entry(id_, parent, body, time_ms=1_780_000_000_000))
        parent = id_
    store.create_session(KEY, SessionInfo(KEY))
    store.append_entries(KEY, entries)


ids = st.one_of(
    st.integers(0, 64).map(lambda count: HASH[:count]),
    st.integers(0, len(SAID_ID)).map(lambda count: SAID_ID[:count]),
    st.integers(0, len(OTHER_ID)).map(lambda count: OTHER_ID[:count]),
    st.sampled_from([HASH[:HANDLE_CHARS] + ".txt", HASH[:8].upper(), "req0", "0" * 12, " "]),
)


@given(st.lists(ids, max_size=4))
def test_a_call_reads_back_what_the_tool_answers_it_with(text_ids):
    """For any beginning of any id: a call counts exactly if the tool would answer it with this message's text."""
    with open_store(":memory:") as store:
        write_log(store, [call_tool("recall", {"id": text_id}) for text_id in text_ids])
        expected = []
        for number, text_id in enumerate(text_ids):
            try:
                source_id = find_text_source(store, KEY, text_id).id
            except UnknownId:
                continue
            if source_id in {SAID_ID, HASH[:HANDLE_CHARS]}:
                expected.append(f"call{number}")
        calls = list_recall_calls(store.read_entries(KEY, "message", max_tokens=MAX_CALL_TOKENS))
        selected = select_read_backs(calls, SAID_ID, [HASH[:HANDLE_CHARS]])
        assert [call.entry for call in selected] == expected

        # The page and the command tell the same, each with the request that was answered.
        timeline = load_timeline(store, store.get_session(KEY), load_shipped_catalog())
        events = list_message_events(
            timeline, read_decision_entries(store, KEY, timeline), 1, store.get_entry(KEY, SAID_ID), recall_calls=calls
        )
        shown = [event for event in events if event.kind == "read_back"]
        numbers = [int(entry.removeprefix("call")) + 1 for entry in expected]
        assert [event.request for event in shown] == numbers
        assert [event.text for event in shown] == [f"the model read it back at request {n}" for n in numbers]
        story = explain_message(store.get_session(KEY), load_branch_history(store, KEY), 1, len(LOG), ESTIMATOR_SIZE)
        assert [(call.entry, call.request) for call in story.read_backs] == list(zip(expected, numbers, strict=True))


@given(
    st.sampled_from(["recall", "fetch_result", "mcp__holdfast__recall", "holdfast.recall", "read", "recaller", ""]),
    st.sampled_from(
        ['{"id": "abcdef"}', '{"id": 123456}', '{"search": "x"}', "{}", "", "[]", "not JSON", '{"id": []}']
    ),
)
def test_only_calls_of_the_recall_tool_with_an_id_count(name, arguments):
    """The tool's names, also behind the name of a server; other tools, searches and broken arguments do not."""
    calls = list_recall_calls([Entry("e", None, call_tool(name, arguments))])
    is_recall = name in {"recall", "fetch_result", "mcp__holdfast__recall", "holdfast.recall"}
    found = {'{"id": "abcdef"}': ["abcdef"], '{"id": 123456}': ["123456"]}.get(arguments, [])
    assert [call.text_id for call in calls] == (found if is_recall else [])
