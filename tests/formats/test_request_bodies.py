from __future__ import annotations

import json

import pytest

from holdfast.errors import UnrecognizedContent
from holdfast.formats import request_bodies as bodies
from holdfast.formats.base import get_full_history_entries, list_model_calls
from holdfast.formats.export import export_bytes
from holdfast.providers.registry import API_NAMES
from holdfast.state.entries import MessageEntry, NoteEntry, RequestSetup


def list_messages(recording):
    return [
        f"{entry.body.sized_message.message.role}: {entry.body.sized_message.message.text}"
        for entry in get_full_history_entries(recording)
        if isinstance(entry.body, MessageEntry)
    ]


def encode_json(value, **options):
    return json.dumps(value, **options).encode()


TALK = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
ANTHROPIC = {"model": "claude-x", "max_tokens": 99, "system": "Be kind.", "messages": TALK}
CHAT = {"model": "gpt-x", "messages": [{"role": "system", "content": "Be kind."}, *TALK]}


def test_read_request_bodies_reads_an_anthropic_body():
    """System and tools are the request setup; each message is an entry with its bytes; the rest of the body is a
    note.
    """
    recording = bodies.read_request_bodies(encode_json(ANTHROPIC))
    assert (recording.format, recording.api, recording.model) == ("anthropic", "anthropic", "claude-x")
    assert list_messages(recording) == ["user: hi", "assistant: ho"]
    note, setup = recording.entries[0].body, recording.entries[1].body
    assert isinstance(note, NoteEntry)
    assert json.loads(note.raw) == ANTHROPIC | {"messages": None}
    assert isinstance(setup, RequestSetup)
    assert setup.tokens > 0
    assert [step.model for step in list_model_calls(recording)] == ["claude-x"]


def test_read_request_bodies_reads_a_chat_body():
    """In Chat the system prompt is a message."""
    recording = bodies.read_request_bodies(encode_json(CHAT))
    assert (recording.format, list_messages(recording)) == (
        "openai-chat",
        ["system: Be kind.", "user: hi", "assistant: ho"],
    )


@pytest.mark.parametrize(
    ("body", "api"),
    [
        ({"messages": TALK}, "openai-chat"),
        ({"messages": TALK, "tools": [{"name": "a", "input_schema": {"type": "object"}}]}, "anthropic"),
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
def test_read_request_bodies_detects_the_api(body, api):
    """The wrapper or the path names the API, else fields and blocks that only one API has; Chat is the default."""
    recording = bodies.read_request_bodies(encode_json(body))
    assert (recording.api, len(get_full_history_entries(recording)) > 0) == (api, True)


def test_read_request_bodies_reads_indented_json():
    """One JSON value may be indented."""
    assert list_messages(bodies.read_request_bodies(encode_json(CHAT, indent=2))) == list_messages(
        bodies.read_request_bodies(encode_json(CHAT))
    )
    assert list_messages(bodies.read_request_bodies(encode_json(TALK, indent=2))) == ["user: hi", "assistant: ho"]


def test_read_request_bodies_takes_the_longest_request():
    """The request with the most messages is the session, the last one of equals; the others are counted."""
    longer = {"api": "openai-chat", "request": {"messages": [*TALK, {"role": "user", "content": "more"}]}}
    lines = [longer, longer | {"request": {"messages": [*TALK, {"role": "user", "content": "last"}]}}, CHAT["messages"]]
    lines[2] = {"messages": TALK}
    data = b"\n".join([*map(encode_json, lines), b'{"n":1,"body":null}', b'{"torn'])
    recording = bodies.read_request_bodies(data)
    assert list_messages(recording)[-1] == "user: last"
    assert recording.skipped_counts == {"shorter request": 2, "line without messages": 1}
    assert [problem.line for problem in recording.problems] == [5]


def test_read_request_bodies_turns_a_malformed_message_into_a_note():
    """A malformed message stays as a note in its place; the others are read."""
    recording = bodies.read_request_bodies(encode_json({"messages": [TALK[0], {"content": 5}, TALK[1]]}))
    assert list_messages(recording) == ["user: hi", "assistant: ho"]
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
"""Models before Gemini 3 need no signatures, so nothing has to be normalized."""


@pytest.mark.parametrize(("body", "api"), [(RESPONSES, "openai-responses"), (GEMINI_2, "gemini")])
def test_read_request_bodies_reads_responses_and_gemini_bodies(body, api):
    """Adjacent items of the model are one message, calls find their results, and the body is exported unchanged."""
    recording = bodies.read_request_bodies(encode_json(body))
    messages = [
        entry.body.sized_message
        for entry in get_full_history_entries(recording)
        if isinstance(entry.body, MessageEntry)
    ]
    assert (recording.format, [sized_message.message.role for sized_message in messages]) == (
        api,
        ["user", "assistant", "tool"],
    )
    assert messages[1].message.calls[0].id == messages[2].message.results[0].call_id
    assert all(sized_message.api == api and sized_message.tokens for sized_message in messages)
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
def test_read_request_bodies_finds_wrapped_and_bare_bodies(line, api, model):
    """A body may be bare, wrapped, captured with a path that names the model, a list, or one string."""
    recording = bodies.read_request_bodies(encode_json(line))
    assert (recording.api, recording.model, list_messages(recording)[0]) == (api, model, "user: hi")


@pytest.mark.parametrize("body", [ANTHROPIC, CHAT, RESPONSES, GEMINI])
@pytest.mark.parametrize("api", API_NAMES)
def test_export_converts_any_body_to_any_api(body, api):
    """Every recorded request can be written as a request of every API, with the same text."""
    out = export_bytes(bodies.read_request_bodies(encode_json(body)), api)
    again = bodies.read_request_bodies(out)
    assert again.api == api
    assert "user: hi" in list_messages(again)


def test_read_request_bodies_turns_a_malformed_item_into_a_note():
    """Beside a malformed element the items are read one by one."""
    recording = bodies.read_request_bodies(encode_json({"input": [RESPONSES["input"][0], 5, *RESPONSES["input"][2:]]}))
    assert [message.split(":")[0] for message in list_messages(recording)] == ["user", "assistant", "tool"]
    assert "input[1]" in recording.problems[0].reason


@pytest.mark.parametrize(
    "data", [b'{"messages":[]}', b'{"messages":[{"a":1}]}', b"[1,2]", b'{"body":null,"method":"GET"}']
)
def test_read_request_bodies_rejects_bodies_without_messages(data):
    """Without a message that has a role there is no session."""
    with pytest.raises(UnrecognizedContent, match="messages"):
        bodies.read_request_bodies(data)


def test_read_request_bodies_derives_the_session_id_from_the_body():
    """Importing a body twice gives one session."""
    assert (
        bodies.read_request_bodies(encode_json(CHAT)).session == bodies.read_request_bodies(encode_json(CHAT)).session
    )
    assert (
        bodies.read_request_bodies(encode_json(CHAT)).session
        != bodies.read_request_bodies(encode_json(ANTHROPIC)).session
    )
