from __future__ import annotations

import json

import pytest

from holdfast.errors import UnrecognizedContent
from holdfast.formats import request_bodies as bodies
from holdfast.formats.base import get_full_history_entries, list_model_calls
from holdfast.formats.export import export_bytes
from holdfast.providers.registry import API_NAMES
from holdfast.state.entries import MessageEntry, NoteEntry, RequestSetup


def told(recording):
    return [
        f"{entry.body.sized_message.message.role}: {entry.body.sized_message.message.text}"
        for entry in get_full_history_entries(recording)
        if isinstance(entry.body, MessageEntry)
    ]


def encoded(value, **options):
    return json.dumps(value, **options).encode()


TALK = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
ANTHROPIC = {"model": "claude-x", "max_tokens": 99, "system": "Be kind.", "messages": TALK}
CHAT = {"model": "gpt-x", "messages": [{"role": "system", "content": "Be kind."}, *TALK]}


def test_body_of_the_messages_api():
    """System and tools are the frame; each message is an entry with its own bytes; the rest of the body is a note."""
    recording = bodies.read_request_bodies(encoded(ANTHROPIC))
    assert (recording.format, recording.api, recording.model) == ("anthropic", "anthropic", "claude-x")
    assert told(recording) == ["user: hi", "assistant: ho"]
    note, frame = recording.entries[0].body, recording.entries[1].body
    assert isinstance(note, NoteEntry)
    assert json.loads(note.raw) == ANTHROPIC | {"messages": None}
    assert isinstance(frame, RequestSetup)
    assert frame.tokens > 0
    assert [step.model for step in list_model_calls(recording)] == ["claude-x"]


def test_body_of_chat():
    """The system prompt is a message there."""
    recording = bodies.read_request_bodies(encoded(CHAT))
    assert (recording.format, told(recording)) == ("openai-chat", ["system: Be kind.", "user: hi", "assistant: ho"])


@pytest.mark.parametrize(
    ("body", "api"),
    [
        ({"messages": TALK}, "openai-chat"),
        ({"messages": TALK, "tools": [{"name": "a", "input_schema": {}}]}, "anthropic"),
        ({"messages": TALK, "anthropic_version": "bedrock"}, "anthropic"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "x"}]}]}, "anthropic"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "anthropic"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}]}, "openai-chat"),
        ({"path": "/v1/messages", "body": {"messages": TALK}}, "anthropic"),
        ({"path": "/v1/chat/completions", "body": {"messages": TALK}}, "openai-chat"),
        ({"api": "anthropic", "request": {"messages": TALK}}, "anthropic"),
        (TALK, "openai-chat"),
    ],
)
def test_whose_body_it_is(body, api):
    """Said by the wrapper or the path, else by fields and blocks that only one API has; Chat otherwise."""
    recording = bodies.read_request_bodies(encoded(body))
    assert (recording.api, len(get_full_history_entries(recording)) > 0) == (api, True)


def test_body_over_several_lines():
    """One JSON value may be indented."""
    assert told(bodies.read_request_bodies(encoded(CHAT, indent=2))) == told(bodies.read_request_bodies(encoded(CHAT)))
    assert told(bodies.read_request_bodies(encoded(TALK, indent=2))) == ["user: hi", "assistant: ho"]


def test_longest_request_is_the_session():
    """Of several requests the one with the most messages counts, the last of equals; the others are counted."""
    longer = {"api": "openai-chat", "request": {"messages": [*TALK, {"role": "user", "content": "more"}]}}
    lines = [longer, longer | {"request": {"messages": [*TALK, {"role": "user", "content": "last"}]}}, CHAT["messages"]]
    lines[2] = {"messages": TALK}
    data = b"\n".join([*map(encoded, lines), b'{"n":1,"body":null}', b'{"torn'])
    recording = bodies.read_request_bodies(data)
    assert told(recording)[-1] == "user: last"
    assert recording.skipped_counts == {"shorter request": 2, "line without messages": 1}
    assert [problem.line for problem in recording.problems] == [5]


def test_message_that_cannot_be_read_is_a_note():
    """A message that is none stays as a note in its place; the others are read."""
    recording = bodies.read_request_bodies(encoded({"messages": [TALK[0], {"content": 5}, TALK[1]]}))
    assert told(recording) == ["user: hi", "assistant: ho"]
    assert "messages[1]" in recording.problems[0].reason
    assert any(isinstance(entry.body, NoteEntry) and entry.body.raw == b'{"content": 5}' for entry in recording.entries)


RESPONSES = {
    "model": "gpt-x",
    "instructions": "Be kind.",
    "input": [
        {"role": "user", "content": "hi"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "out"},
    ],
}
GEMINI = {
    "systemInstruction": {"parts": [{"text": "Be kind."}]},
    "contents": [
        {"parts": [{"text": "hi"}]},
        {"role": "model", "parts": [{"functionCall": {"name": "f", "args": {}}}]},
        {"role": "user", "parts": [{"functionResponse": {"name": "f", "response": {"output": "out"}}}]},
    ],
}


GEMINI_2 = {"path": "/v1beta/models/gemini-2.5-pro:generateContent", "body": GEMINI}
"""Models before Gemini 3 want no signatures, so nothing is to be repaired."""


@pytest.mark.parametrize(("body", "api"), [(RESPONSES, "openai-responses"), (GEMINI_2, "gemini")])
def test_bodies_of_the_other_two(body, api):
    """Their lists are read as messages, what the model said without a break as one; calls find their results."""
    recording = bodies.read_request_bodies(encoded(body))
    said = [
        entry.body.sized_message
        for entry in get_full_history_entries(recording)
        if isinstance(entry.body, MessageEntry)
    ]
    assert (recording.format, [slot.message.role for slot in said]) == (api, ["user", "assistant", "tool"])
    assert said[1].message.calls[0].id == said[2].message.results[0].call_id
    assert all(slot.api == api and slot.tokens for slot in said)
    assert any(isinstance(entry.body, RequestSetup) for entry in recording.entries)
    assert json.loads(export_bytes(recording, api)) == body.get("body", body)


@pytest.mark.parametrize(
    ("line", "api", "model"),
    [
        ({"path": "/v1/responses", "body": RESPONSES}, "openai-responses", "gpt-x"),
        ({"path": "/v1beta/models/gemini-x:streamGenerateContent?alt=sse", "body": GEMINI}, "gemini", "gemini-x"),
        ({"api": "gemini", "request": GEMINI}, "gemini", ""),
        (RESPONSES["input"], "openai-responses", ""),
        (GEMINI["contents"], "gemini", ""),
        ({"model": "m", "input": "hi"}, "openai-responses", "m"),
    ],
)
def test_where_the_other_two_lie(line, api, model):
    """They may be bare, wrapped, captured with a path that names the model, a list, or one string."""
    recording = bodies.read_request_bodies(encoded(line))
    assert (recording.api, recording.model, told(recording)[0]) == (api, model, "user: hi")


@pytest.mark.parametrize("body", [ANTHROPIC, CHAT, RESPONSES, GEMINI])
@pytest.mark.parametrize("api", API_NAMES)
def test_any_body_becomes_a_body_of_any_api(body, api):
    """Every recorded request can be written as a request of every API, with the same words."""
    out = export_bytes(bodies.read_request_bodies(encoded(body)), api)
    again = bodies.read_request_bodies(out)
    assert again.api == api
    assert "user: hi" in told(again)


def test_an_item_that_is_none_is_a_note():
    """Beside an element that cannot be read the items are read one by one."""
    recording = bodies.read_request_bodies(encoded({"input": [RESPONSES["input"][0], 5, *RESPONSES["input"][2:]]}))
    assert [one.split(":")[0] for one in told(recording)] == ["user", "assistant", "tool"]
    assert "input[1]" in recording.problems[0].reason


@pytest.mark.parametrize(
    "data", [b'{"messages":[]}', b'{"messages":[{"a":1}]}', b"[1,2]", b'{"body":null,"method":"GET"}']
)
def test_nothing_to_read(data):
    """Without a message that has a role there is no session."""
    with pytest.raises(UnrecognizedContent, match="messages"):
        bodies.read_request_bodies(data)


def test_same_body_same_session():
    """The session's id is made of the body, so importing it twice is importing it once."""
    assert bodies.read_request_bodies(encoded(CHAT)).session == bodies.read_request_bodies(encoded(CHAT)).session
    assert bodies.read_request_bodies(encoded(CHAT)).session != bodies.read_request_bodies(encoded(ANTHROPIC)).session
