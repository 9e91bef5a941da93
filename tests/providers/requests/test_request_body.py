"""A request body is parsed and rendered again."""

from __future__ import annotations

import json

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.errors import FormatError, UnrecognizedContent
from holdfast.messages.message import Message
from holdfast.messages.parts import Text, ToolResult
from holdfast.messages.size.tokens import build_sized_message
from holdfast.providers.anthropic.cache_control import MAX_BREAKPOINTS
from holdfast.providers.registry import get_api_dialect
from holdfast.providers.requests.parsed_request import measure_parsed_request, parse_request
from holdfast.providers.requests.request_body import build_request_body, render_request
from holdfast.state.plan import PlanOptions
from holdfast.store.sql.rows import load_message_decoders

SPACED = (
    b'{\n  "model": "claude-opus-4-8", "max_tokens": 50,\n  "x_new": {"b":1, "a": [ ]},\n  "messages" : [ '
    b'{"role": "user",  "content": "\\u0041\\n"} , {"role":"assistant","content":[{"type":"text", "text":"b"},'
    b'{"type":"tool_use","id":"t","name":"n","input":{"z": 1}}]} , {"role":"user","content":['
    b'{"type":"tool_result","tool_use_id":"t","content":"out"}]} ] ,\n "system": [{"type":"text","text":"s"}]\n}\n'
)
CHAT = (
    b'{"model":"gpt-5","messages":[{"role":"system","content":"s"},{"role":"user","content":"a","name":"bob"}],'
    b'"max_completion_tokens":9}'
)


@pytest.mark.parametrize("raw", [SPACED, CHAT])
def test_render_request_without_edits_returns_the_same_object(raw):
    """An unedited body comes back as the same object."""
    parsed_request = parse_request(raw)
    assert render_request(parsed_request, parsed_request.messages) is raw
    assert (
        render_request(
            parsed_request, list(parsed_request.messages), PlanOptions(max_tokens=parsed_request.requested_max_tokens)
        )
        is raw
    )


def test_render_request_takes_equal_bytes_for_no_edit():
    """Messages that came back from a store with the same bytes change nothing."""
    copies = [replace(message) for message in parse_request(SPACED).messages]
    assert render_request(parse_request(SPACED), copies) is SPACED


def test_parse_request_reads_api_model_limit_fields_and_messages():
    """The parsed request has the fields in their order and a sized message for each message."""
    parsed_request = parse_request(SPACED)
    assert (parsed_request.api, parsed_request.model, parsed_request.requested_max_tokens) == (
        "anthropic",
        "claude-opus-4-8",
        50,
    )
    assert list(parsed_request.fields) == ["model", "max_tokens", "x_new", "messages", "system"]
    assert [message.message.role for message in parsed_request.messages] == ["user", "assistant", "tool"]
    assert all(
        message.api == "anthropic" and message.raw is not None and not message.tokens
        for message in parsed_request.messages
    )
    assert all(
        message.raw is not None and message.tokens > 0 and message.digest
        for message in measure_parsed_request(parsed_request).messages
    )
    assert parsed_request.messages[0].message == Message.from_text("user", "A\n")
    assert parse_request(CHAT).requested_max_tokens == 9


@pytest.mark.parametrize(
    ("raw", "alone"),
    [
        (SPACED, True),
        (CHAT, True),
        (b'{"model":"gpt-5","input":[{"role":"user","content":"a"}]}', False),
        (b'{"contents":[{"role":"user","parts":[{"text":"a"}]}]}', False),
    ],
)
def test_parse_request_has_a_decoder_if_messages_stand_alone(raw, alone):
    """If neighbours do not affect a message, the decoder, which is also the store's, reads the same from its bytes."""
    parsed_request = parse_request(raw)
    assert (parsed_request.decode_message is not None) == alone
    if parsed_request.decode_message is not None:
        assert parsed_request.decode_message is load_message_decoders()[parsed_request.api]
        assert [parsed_request.decode_message(bytes(message.raw)) for message in parsed_request.messages] == [
            message.message for message in parsed_request.messages
        ]


def test_render_request_changes_only_the_bytes_of_an_edit():
    """With one message replaced, everything before and after it stays byte for byte, including spacing."""
    parsed_request = parse_request(SPACED)
    result = ToolResult("t", content=(Text("short"),))
    edited = replace(
        build_sized_message(Message("tool", (result,))), api="anthropic", base_raw=parsed_request.messages[2].raw
    )
    out = render_request(parsed_request, [*parsed_request.messages[:2], edited])
    assert out == SPACED.replace(b'"content":"out"', b'"content":"short"')


def test_render_request_inserts_and_removes_messages():
    """Removed and added messages are spliced in with the body's own spacing."""
    parsed_request = parse_request(SPACED)
    out = render_request(
        parsed_request, [parsed_request.messages[0], build_sized_message(Message.from_text("assistant", "c"))]
    )
    assert b'"\\u0041\\n"} , {"role":"assistant","content":"c"} ] ,\n "system"' in out
    assert json.loads(render_request(parsed_request, []))["messages"] == []


def test_render_request_fills_an_empty_message_list():
    """An empty list of messages can be filled."""
    parsed_request = parse_request(b'{"system":"s","messages":[ ]}')
    assert json.loads(render_request(parsed_request, [build_sized_message(Message.from_text("user", "a"))]))[
        "messages"
    ] == [{"role": "user", "content": "a"}]


@pytest.mark.parametrize(
    ("requested", "limit", "sent"),
    [(9_000, 3_000, 5_001), (9_000, 6_000, 6_000), (5_001, 3_000, 5_001), (4_000, 3_000, 4_000)],
)
def test_render_request_keeps_max_tokens_over_the_thinking_budget(requested, limit, sent):
    """valid-request: Anthropic refuses a limit that is not over the thinking budget; a wrong limit set by the caller
    stays.
    """
    thinking = {"type": "enabled", "budget_tokens": 5_000}
    fields = {"max_tokens": requested, "thinking": thinking, "messages": [{"role": "user", "content": "Go."}]}
    parsed_request = parse_request(json.dumps({"model": "claude-sonnet-4-5", **fields}).encode(), "anthropic")
    assert (
        json.loads(render_request(parsed_request, parsed_request.messages, PlanOptions(max_tokens=limit)))["max_tokens"]
        == sent
    )


def test_render_request_sets_max_tokens_in_place():
    """A new limit replaces the old one in place, under the name that the body uses; a body without one gets it."""
    parsed_request = parse_request(SPACED)
    assert render_request(parsed_request, parsed_request.messages, PlanOptions(max_tokens=7)) == SPACED.replace(
        b'"max_tokens": 50', b'"max_tokens": 7'
    )
    chat = parse_request(CHAT)
    assert b'"max_completion_tokens":7}' in render_request(chat, chat.messages, PlanOptions(max_tokens=7))
    bare = parse_request(b'{"messages":[]}', "openai-chat")
    assert json.loads(render_request(bare, (), PlanOptions(max_tokens=7))) == {
        "messages": [],
        "max_completion_tokens": 7,
    }


def test_output_limit_of_ours_has_the_providers_name():
    """A limit that we write where the body has none has the name that its provider knows; the body's own name stays."""
    dialect = get_api_dialect("openai-chat", "mistral-large-latest")
    options = PlanOptions(max_tokens=7, max_tokens_field=dialect.max_tokens_field)
    bare = parse_request(b'{"model":"mistral-large-latest","messages":[]}', "openai-chat")
    assert render_request(bare, (), options) == b'{"model":"mistral-large-latest","messages":[],"max_tokens":7}'
    chat = parse_request(CHAT)
    assert b'"max_completion_tokens":7}' in render_request(chat, chat.messages, options)


def test_render_request_translates_a_message_of_another_api():
    """A message that arrived over Chat is written as an Anthropic message, without bytes of its old form."""
    parsed_request = parse_request(SPACED)
    foreign = parse_request(CHAT).messages[1]
    out = json.loads(render_request(parsed_request, [foreign]))
    assert out["messages"] == [{"role": "user", "content": "a"}]


def test_build_request_body_from_messages_alone():
    """A request can be built without an original; messages with raw bytes keep them."""
    sized_messages = parse_request(SPACED).messages
    out = build_request_body(
        "anthropic", "claude-opus-4-8", sized_messages, setup_fields={"system": "s"}, options=PlanOptions(max_tokens=5)
    )
    read = json.loads(out)
    assert {key: read[key] for key in ("model", "system", "max_tokens")} == {
        "model": "claude-opus-4-8",
        "system": "s",
        "max_tokens": 5,
    }
    assert b'{"role": "user",  "content": "\\u0041\\n"}' in out


def test_setup_digest_ignores_breakpoints_messages_and_options():
    """The digest changes with tools and system prompt only."""
    plain = parse_request(b'{"system":[{"type":"text","text":"s"}],"messages":[]}').setup
    marked = b'{"messages":[{"role":"user","content":"a"}],"max_tokens":1,"system":[{"type":"text","text":"s",'
    marked += b'"cache_control":{"type":"ephemeral"}}]}'
    assert parse_request(marked).setup == plain
    assert parse_request(b'{"system":[{"type":"text","text":"t"}],"messages":[]}').setup.digest != plain.digest
    assert plain.tokens > 0
    assert parse_request(CHAT).setup.tokens == 0


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", "cannot be read"),
        (b"[]", "object"),
        (b"\xef\xbb\xbf{}", "byte order mark"),
        (b'{"messages":[{"role":"user","content":"\\ud800 and on"}]}', "byte"),
        (b'{"messages":[{"role":"user","content":"\xff"}]}', "byte 39"),
        (b'{"messages":[],"temperature":NaN}', "byte"),
        (b'{"messages":[' + b"[" * 1_000_000 + b"]" * 1_000_000 + b"]}", "nested"),
        (b'{"messages":[{"role":"user","content":[' + b"[" * 1_000_000 + b"]" * 1_000_000 + b"]}]}", "nested"),
        (b'{"messages":[{"role":"user","content":"a"},5]}', r"\$\.messages\[1\]"),
        (b'{"messages":{}}', r"\$\.messages"),
        (b'{"messages":[],"model":"a","messages":[]}', "twice"),
        (b'{"a":1,"messages":[],"a":1}', "twice"),
    ],
)
def test_parse_request_rejects_malformed_bodies_with_the_reason(raw, reason):
    """A body that is not one JSON object of the API's shape is a ``FormatError``, whatever the damage."""
    with pytest.raises(FormatError, match=reason):
        parse_request(raw)


def test_parse_request_rejects_an_unknown_api():
    """The error lists the known APIs."""
    with pytest.raises(UnrecognizedContent, match="openai-chat"):
        parse_request(CHAT, "fax")


_TEXT = st.text(max_size=8)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | _TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXT, inner, max_size=3),
    max_leaves=6,
)
_BLOCKS = st.one_of(
    st.fixed_dictionaries({"type": st.just("text"), "text": _TEXT}, optional={"cache_control": _JSON}),
    st.fixed_dictionaries({"type": st.just("thinking"), "thinking": _TEXT, "signature": st.text(min_size=1)}),
    st.fixed_dictionaries(
        {"type": st.just("tool_use"), "id": _TEXT, "name": _TEXT, "input": st.dictionaries(_TEXT, _JSON)}
    ),
    st.fixed_dictionaries({"type": st.just("tool_result"), "tool_use_id": _TEXT, "content": _TEXT | st.lists(_JSON)}),
    st.dictionaries(_TEXT, _JSON, max_size=3),
)
_ANTHROPIC = st.fixed_dictionaries(
    {
        "role": st.sampled_from(["user", "assistant", "system", "other"]),
        "content": _TEXT | st.lists(_BLOCKS, max_size=4),
    }
)
_CALLS = st.fixed_dictionaries(
    {"id": _TEXT, "type": st.just("function"), "function": st.fixed_dictionaries({"name": _TEXT, "arguments": _TEXT})}
)
_CHAT = st.one_of(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "system", "developer"]), "content": _TEXT}),
    st.fixed_dictionaries(
        {"role": st.just("assistant"), "content": _TEXT, "tool_calls": st.lists(_CALLS, min_size=1, max_size=2)},
        optional={"reasoning_content": st.text(min_size=1)},
    ),
    st.fixed_dictionaries({"role": st.just("tool"), "tool_call_id": _TEXT, "content": _TEXT}),
)


_FULL = [{"role": "user", "content": [{"type": "text", "text": "", "cache_control": []}] * count} for count in (2, 3)]
"""One breakpoint more than the API accepts."""


@given(st.lists(_ANTHROPIC, max_size=5), st.dictionaries(_TEXT, _JSON, max_size=3), st.booleans())
@example(messages=_FULL, fields={}, spaced=False)
def test_render_request_returns_any_anthropic_body(messages, fields, spaced):
    """Any body comes back as the same object, and as equal JSON from its parts; of surplus breakpoints only the
    newest are written anew.
    """
    raw = json.dumps({**fields, "messages": messages}, indent=1 if spaced else None).encode()
    parsed_request = parse_request(raw, "anthropic")
    assert render_request(parsed_request, parsed_request.messages) is raw
    assume(json.dumps(messages).count('"cache_control"') <= MAX_BREAKPOINTS)
    _assert_comes_back_from_parts(raw, messages, parsed_request)


@given(st.lists(_CHAT, max_size=5))
def test_render_request_returns_any_chat_body(messages):
    """Any body comes back as the same object, and as equal JSON from its parts."""
    raw = json.dumps({"messages": messages}).encode()
    parsed_request = parse_request(raw, "openai-chat")
    assert render_request(parsed_request, parsed_request.messages) is raw
    _assert_comes_back_from_parts(raw, messages, parsed_request)


def _assert_comes_back_from_parts(raw, messages, parsed_request):
    """Assert that nothing is lost if every message is encoded from its parts."""
    again = [replace(message, raw=None) for message in parsed_request.messages]
    assert json.loads(render_request(parsed_request, again)) == json.loads(raw) | {"messages": messages}
