"""A file that is one JSON array is read according to its elements."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis_strategies import conversation_strategy
from msgspec.structs import replace

from holdfast.errors import UnrecognizedContent
from holdfast.formats import read_recording
from holdfast.providers.anthropic import messages as anthropic
from holdfast.providers.gemini import messages as gemini
from holdfast.providers.openai_chat import messages as openai_chat
from holdfast.providers.openai_responses import messages as openai_responses
from holdfast.providers.registry import API_SPECS
from holdfast.providers.requests.message_dicts import encode_messages
from holdfast.state.entries import MessageEntry

APIS = {wire.API_NAME: wire for wire in (anthropic, openai_chat, openai_responses, gemini)}
ALIKE = {anthropic.API_NAME, openai_chat.API_NAME}
TIME = "2026-01-01T00:00:00.000Z"
CLAUDE = {"type": "user", "sessionId": "s", "cwd": "/w", "timestamp": TIME}
SESSIONS = {
    "claude-code": [
        CLAUDE | {"uuid": "u0", "parentUuid": None, "message": {"role": "user", "content": "hi"}},
        CLAUDE | {"uuid": "u1", "parentUuid": "u0", "message": {"role": "user", "content": "there"}},
    ],
    "codex": [
        {"timestamp": TIME, "type": "session_meta", "payload": {"id": "s", "cwd": "/w"}},
        {"timestamp": TIME, "type": "response_item", "payload": {"type": "message", "role": "user", "content": []}},
    ],
    "pi": [
        {"type": "session", "version": 3, "id": "s", "timestamp": TIME, "cwd": "/w"},
        {
            "type": "message",
            "id": "a",
            "parentId": None,
            "timestamp": TIME,
            "message": {"role": "user", "content": "hi"},
        },
    ],
    "gemini-cli": [
        {"sessionId": "s", "projectHash": "x", "startTime": TIME},
        {"id": "1", "timestamp": TIME, "type": "user", "content": "hi"},
        {"id": "2", "timestamp": TIME, "type": "gemini", "content": "yes"},
    ],
}
SPREAD = st.sampled_from([None, 1])


def list_messages(data):
    """Return the messages of a recording without their raw bytes."""
    found = [
        entry.body.sized_message.message
        for entry in read_recording(data).entries
        if isinstance(entry.body, MessageEntry)
    ]
    return [
        replace(
            message, parts=tuple(replace(part, raw=None) if hasattr(part, "raw") else part for part in message.parts)
        )
        for message in found
    ]


@given(conversation_strategy(), st.sampled_from([*APIS]), SPREAD)
def test_read_recording_detects_the_api_of_a_message_list(messages, api, indent):
    """A bare list of messages, on one line or many, is read as the request of its API; lists that Anthropic and Chat
    write alike are read alike.
    """
    wire = encode_messages(api, messages)
    written = wire[1] if isinstance(wire, tuple) else wire
    data = json.dumps(written, indent=indent).encode()
    whole = b'{"api":"%s","request":{"%s":%s}}' % (api.encode(), API_SPECS[api].messages_field.encode(), data)
    if not written:
        return
    assert read_recording(data).api == api or {read_recording(data).api, api} == ALIKE
    assert list_messages(data) == list_messages(whole)


@pytest.mark.parametrize("tool", SESSIONS)
@pytest.mark.parametrize("indent", [None, 1])
def test_read_recording_reads_session_lines_in_an_array(tool, indent):
    """A tool's session lines put into one array give the same entries as the file of lines."""
    lines = SESSIONS[tool]
    written = b"".join(json.dumps(line, separators=(",", ":")).encode() + b"\n" for line in lines)
    found = read_recording(json.dumps(lines, indent=indent).encode())
    assert found == read_recording(written)
    assert found.format == tool


def test_read_recording_reads_messages_of_an_opencode_server():
    """The message list that an opencode server returns is read like opencode's export."""
    part = {"id": "p", "sessionID": "ses_1", "messageID": "m", "type": "text", "text": "hi"}
    messages = [{"info": {"id": "m", "role": "user", "sessionID": "ses_1", "time": {"created": 1}}, "parts": [part]}]
    found = read_recording(json.dumps(messages).encode())
    assert (found.format, found.session) == ("opencode", "ses_1")
    assert found == read_recording(json.dumps({"info": {"id": "ses_1"}, "messages": messages}).encode())


def test_read_recording_takes_the_longest_request_in_an_array():
    """The longest of several requests is the session, as in a file of lines."""
    bodies = [{"messages": [{"role": "user", "content": str(at)} for at in range(count)]} for count in (1, 3, 2)]
    assert len(list_messages(json.dumps(bodies).encode())) == 3


CALL = {
    "role": "assistant",
    "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
}
ITEM = {"type": "function_call_output", "call_id": "c", "output": "r"}
EXPORT = {"info": {"id": "ses_1"}, "messages": []}


@pytest.mark.parametrize(
    ("elements", "expected"),
    [
        ([], "it is empty"),
        ([1, 2], "the first is no object"),
        ([{"from": "human", "value": "hi"}], "the first has from, value"),
        ([{"type": "human", "content": "hi"}], "the first has type, content"),
        ([CALL, ITEM], r"\[0\] is of openai-chat and \[1\] is of openai-responses"),
        ([EXPORT, EXPORT], "2 sessions; give each"),
    ],
)
def test_read_recording_rejects_arrays_it_cannot_assign(elements, expected):
    """A list of no known API, or of several, is rejected; the error says what the list has and what to give."""
    with pytest.raises(UnrecognizedContent, match=expected) as caught:
        read_recording(json.dumps(elements).encode(), "list.json")
    assert "give" in str(caught.value)


THOUGHT = {"type": "thinking", "thinking": "hm", "signature": "s"}


@pytest.mark.parametrize(
    "elements",
    [
        [{"role": "user", "content": "hi"}, CALL | {"content": [THOUGHT, {"type": "text", "text": "t"}]}],
        [{"role": "user", "content": [{"type": "document", "source": {}}]}, CALL],
        [{"role": "user", "content": "hi", "parts": []}, {"role": "assistant", "content": "yo", "parts": None}],
        [{"role": "user", "content": "hi", "tool_calls": None}, {"role": "assistant", "content": "yo"}],
    ],
)
def test_read_recording_ignores_router_fields_in_chat_messages(elements):
    """Blocks that routers accept in Chat, and empty fields, do not point to another API; no text is lost."""
    assert (
        list_messages(json.dumps(elements).encode())[0] == list_messages(json.dumps({"messages": elements}).encode())[0]
    )
