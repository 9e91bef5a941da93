"""Equivalence of messages in different bytes, and the signing models of signatures."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st
from hypothesis_strategies import message_strategy
from msgspec import Raw

from holdfast.messages.equality import canonicalize_arguments, encode_comparable_bytes, is_equivalent_message
from holdfast.messages.message import Message
from holdfast.messages.parts import Media, Opaque, ProviderSignature, Text, Thinking, ToolCall, ToolResult
from holdfast.messages.signatures import copy_signing_models, set_signing_model

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(message_strategy())
def test_is_equivalent_message_ignores_signer_thinking_and_splits(message):
    """Every message is equivalent to itself, with another signing model, without thinking, and with texts
    split in two.
    """
    assert is_equivalent_message(message, message)
    assert is_equivalent_message(message, set_signing_model(message, "m"))
    visible_parts = tuple(part for part in message.parts if not isinstance(part, Thinking))
    assert is_equivalent_message(message, Message(message.role, visible_parts))
    halves = [half for part in visible_parts for half in _split_text(part)]
    assert is_equivalent_message(Message(message.role, tuple(halves)), message)


def _split_text(part):
    middle = len(part.text) // 2 if type(part) is Text else 0
    return [Text(part.text[:middle]), Text(part.text[middle:])] if type(part) is Text else [part]


@given(message_strategy(), message_strategy())
def test_is_equivalent_message_requires_equal_text_calls_and_results(message, other):
    """No text, call or result of equivalent messages differs."""
    if is_equivalent_message(message, other):
        assert message.text.replace("\n", "") == other.text.replace("\n", "")
        assert [(call.id, call.name) for call in message.calls] == [(call.id, call.name) for call in other.calls]
        assert [result.call_id for result in message.results] == [result.call_id for result in other.results]


@given(message_strategy(), message_strategy())
def test_encode_comparable_bytes_agrees_with_equivalence(message, other):
    """Equivalent messages have the same comparable bytes, whatever their signer and in however many pieces."""
    visible_parts = [part for part in message.parts if not isinstance(part, Thinking)]
    halves = [half for part in visible_parts for half in _split_text(part)]
    assert (
        encode_comparable_bytes(message)
        == encode_comparable_bytes(set_signing_model(message, "m"))
        == encode_comparable_bytes(Message(message.role, tuple(halves)))
    )
    assert encode_comparable_bytes(message) == b"".join(
        encode_comparable_bytes(Message(message.role, (part,))) for part in message.parts
    )
    if is_equivalent_message(message, other):
        assert encode_comparable_bytes(message) == encode_comparable_bytes(other)


@given(JSON.filter(lambda value: isinstance(value, dict)))
def test_is_equivalent_message_compares_arguments_as_json(value):
    """Spaces, key order and escapes do not make arguments different."""
    encodings = [json.dumps(value), json.dumps(value, indent=2, sort_keys=True), json.dumps(value, ensure_ascii=False)]
    calls = [Message("assistant", (ToolCall("c", "read", text),)) for text in encodings]
    assert is_equivalent_message(calls[0], calls[1])
    assert is_equivalent_message(calls[0], calls[2])
    other = Message("assistant", (ToolCall("c", "read", json.dumps({**value, "\x00new": 1})),))
    assert not is_equivalent_message(calls[0], other)


def test_canonicalize_arguments_compares_numbers_by_value():
    """``2.0`` and ``2`` are one number, ``true`` and ``1`` two values; text that is no JSON stays unchanged."""
    assert canonicalize_arguments('{"a": 2.0}') == canonicalize_arguments('{"a":2}') == '{"a":2}'
    assert canonicalize_arguments('{"a": true}') != canonicalize_arguments('{"a": 1}')
    assert canonicalize_arguments("") == "{}"
    assert canonicalize_arguments('{"a": ') == '{"a": '
    assert canonicalize_arguments('{"a": 1e999}') == '{"a": 1e999}'


def test_is_equivalent_message_ignores_positional_call_ids():
    """A call without an id is named by its position, which chunking changes, so such ids are not compared."""
    first, second = (Message("assistant", (ToolCall(f"ls#{position}", "ls"),)) for position in (1, 2))
    assert is_equivalent_message(first, second)
    assert not is_equivalent_message(first, Message("assistant", (ToolCall("toolu_1", "ls"),)))


def test_is_equivalent_message_compares_common_fields_of_opaque_parts():
    """A client may leave out and add fields of an unknown part, but not change one."""
    call = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"query": "kelp"}}

    def build_opaque(**fields):
        return Message("assistant", (Opaque("web_search_call", Raw(json.dumps(call | fields).encode())),))

    assert is_equivalent_message(build_opaque(), build_opaque(status=None, cache_control={"type": "ephemeral"}))
    assert not is_equivalent_message(build_opaque(), build_opaque(action={"query": "rock"}))
    assert not is_equivalent_message(build_opaque(), Message("assistant", (Opaque("web_search_call", Raw(b"[1")),)))
    assert not is_equivalent_message(build_opaque(), Message("assistant"))


def test_is_equivalent_message_compares_message_fields_both_have():
    """``annotations`` may come back or not, but another name is another speaker."""
    messages = [Message("user", (Text("kelp"), Opaque("message.name", Raw(name)))) for name in (b'"a"', b'"b"')]
    assert is_equivalent_message(messages[0], Message.from_text("user", "kelp"))
    assert not is_equivalent_message(*messages)


def test_is_equivalent_message_compares_media_and_results():
    """Another picture, another error flag or another text makes a message different."""
    picture = Media("image", "image/png", 3, "", "AAAA")
    result = ToolResult("c", "read", (Text("kelp"), picture))
    message = Message("tool", (result,))
    assert is_equivalent_message(message, Message("tool", (ToolResult("c", "", (Text("ke"), Text("lp"), picture)),)))
    for other in (
        ToolResult("c", "read", (Text("kelp"), Media("image", "image/png", 3, "", "BBBB"))),
        ToolResult("c", "read", (Text("kelp"), picture), is_error=True),
        ToolResult("d", "read", (Text("kelp"), picture)),
        ToolResult("c", "read", (Text("rock"), picture)),
    ):
        assert not is_equivalent_message(message, Message("tool", (other,)))


# -- signatures --------------------------------------------------------------------------------------------------------


def test_set_signing_model_marks_thinking_and_gemini_signatures():
    """Thinking and every Gemini signature belong to the model; a signature that names the source of a call does not."""
    signature = ProviderSignature("anthropic", "", "srvtoolu_1")
    parts = (
        Thinking("hm", ProviderSignature("anthropic", "", "c2ln")),
        ToolCall("c", "read", "{}", signature),
        ToolCall("c", "read", "{}", ProviderSignature("gemini", "", "c2ln")),
        Text("kelp", ProviderSignature("gemini", "", "c2ln")),
        Thinking("old", ProviderSignature("anthropic", "claude-old", "c2ln")),
    )
    models = [part.signature.model for part in set_signing_model(Message("assistant", parts), "m").parts]
    assert models == ["m", "", "m", "m", "claude-old"]
    message = Message("assistant", (parts[1], Text("kelp")))
    assert set_signing_model(message, "m") is message
    assert set_signing_model(Message("assistant", parts), "").parts == parts


def test_copy_signing_models_matches_signatures_in_other_bytes():
    """A client may send a signature back without its model and in the other base64 alphabet."""
    known = Message("assistant", (Thinking("", ProviderSignature("gemini", "m", "a+/b==")), Text("kelp")))
    received = Message("assistant", (Thinking("", ProviderSignature("gemini", "", "a-_b")), Text("kelp")))
    assert copy_signing_models(received, known).parts[0].signature == ProviderSignature("gemini", "m", "a-_b")
    other = Message("assistant", (Thinking("", ProviderSignature("gemini", "", "else")),))
    assert copy_signing_models(other, known) is other


def test_equal_opaque_parts_have_equal_hashes():
    """Messages with parts that Holdfast does not interpret can be keys: equal bytes are one, other bytes another."""
    parts = [Opaque("search", Raw(text)) for text in (b'{"a":1}', b'{"a":1}', b'{"a":2}')]
    assert len({Message("assistant", (part,)) for part in parts}) == 2
