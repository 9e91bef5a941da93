"""Messages that say the same in other bytes, and the models of seals."""

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
def test_what_was_said_is_like_itself_whoever_sealed_it(message):
    """Every message is like itself, with reasoning left out, and with words in two pieces."""
    assert is_equivalent_message(message, message)
    assert is_equivalent_message(message, set_signing_model(message, "m"))
    spoken = tuple(part for part in message.parts if not isinstance(part, Thinking))
    assert is_equivalent_message(message, Message(message.role, spoken))
    halves = [half for part in spoken for half in _halves(part)]
    assert is_equivalent_message(Message(message.role, tuple(halves)), message)


def _halves(part):
    at = len(part.text) // 2 if type(part) is Text else 0
    return [Text(part.text[:at]), Text(part.text[at:])] if type(part) is Text else [part]


@given(message_strategy(), message_strategy())
def test_what_is_alike_has_the_same_words_calls_and_results(one, other):
    """No word, call or result may differ."""
    if is_equivalent_message(one, other):
        assert one.text.replace("\n", "") == other.text.replace("\n", "")
        assert [(call.id, call.name) for call in one.calls] == [(call.id, call.name) for call in other.calls]
        assert [result.call_id for result in one.results] == [result.call_id for result in other.results]


@given(message_strategy(), message_strategy())
def test_what_is_alike_is_one_stream(message, other):
    """Whoever sealed it and in however many pieces it came; two that are not alike seldom share one."""
    spoken = [part for part in message.parts if not isinstance(part, Thinking)]
    halves = [half for part in spoken for half in _halves(part)]
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
def test_arguments_have_one_form_however_they_are_written(value):
    """Spaces, the order of keys and escapes are no other arguments."""
    written = [json.dumps(value), json.dumps(value, indent=2, sort_keys=True), json.dumps(value, ensure_ascii=False)]
    calls = [Message("assistant", (ToolCall("c", "read", text),)) for text in written]
    assert is_equivalent_message(calls[0], calls[1])
    assert is_equivalent_message(calls[0], calls[2])
    other = Message("assistant", (ToolCall("c", "read", json.dumps({**value, "\x00new": 1})),))
    assert not is_equivalent_message(calls[0], other)


def test_numbers_are_what_they_are_worth():
    """``2.0`` and ``2`` are one number; ``true`` and ``1`` are two values; what is no JSON stays as it is."""
    assert canonicalize_arguments('{"a": 2.0}') == canonicalize_arguments('{"a":2}') == '{"a":2}'
    assert canonicalize_arguments('{"a": true}') != canonicalize_arguments('{"a": 1}')
    assert canonicalize_arguments("") == "{}"
    assert canonicalize_arguments('{"a": ') == '{"a": '
    assert canonicalize_arguments('{"a": 1e999}') == '{"a": 1e999}'


def test_ids_that_only_tell_a_place_are_none():
    """A call without an id is named by its place in its content, which chunks change."""
    one, other = (Message("assistant", (ToolCall(f"ls#{place}", "ls"),)) for place in (1, 2))
    assert is_equivalent_message(one, other)
    assert not is_equivalent_message(one, Message("assistant", (ToolCall("toolu_1", "ls"),)))


def test_parts_that_nobody_reads_agree_in_what_both_say():
    """A client may leave out and add fields; it may not change one."""
    said = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"query": "kelp"}}

    def opaque(**fields):
        return Message("assistant", (Opaque("web_search_call", Raw(json.dumps(said | fields).encode())),))

    assert is_equivalent_message(opaque(), opaque(status=None, cache_control={"type": "ephemeral"}))
    assert not is_equivalent_message(opaque(), opaque(action={"query": "rock"}))
    assert not is_equivalent_message(opaque(), Message("assistant", (Opaque("web_search_call", Raw(b"[1")),)))
    assert not is_equivalent_message(opaque(), Message("assistant"))


def test_fields_of_a_message_count_where_both_have_them():
    """``annotations`` may come back or not; another name is another one who speaks."""
    named = [Message("user", (Text("kelp"), Opaque("message.name", Raw(name)))) for name in (b'"a"', b'"b"')]
    assert is_equivalent_message(named[0], Message.from_text("user", "kelp"))
    assert not is_equivalent_message(*named)


def test_media_and_results_are_looked_at():
    """Another picture, another error or another text is something else."""
    picture = Media("image", "image/png", 3, "", "AAAA")
    result = ToolResult("c", "read", (Text("kelp"), picture))
    same = Message("tool", (result,))
    assert is_equivalent_message(same, Message("tool", (ToolResult("c", "", (Text("ke"), Text("lp"), picture)),)))
    for other in (
        ToolResult("c", "read", (Text("kelp"), Media("image", "image/png", 3, "", "BBBB"))),
        ToolResult("c", "read", (Text("kelp"), picture), is_error=True),
        ToolResult("d", "read", (Text("kelp"), picture)),
        ToolResult("c", "read", (Text("rock"), picture)),
    ):
        assert not is_equivalent_message(same, Message("tool", (other,)))


# -- seals -------------------------------------------------------------------------------------------------------------


def test_a_model_is_noted_on_what_it_reads_back_alone():
    """Thinking, and every signature of Gemini's, are a model's own; the block that a call came from is not."""
    seal = ProviderSignature("anthropic", "", "srvtoolu_1")
    parts = (
        Thinking("hm", ProviderSignature("anthropic", "", "c2ln")),
        ToolCall("c", "read", "{}", seal),
        ToolCall("c", "read", "{}", ProviderSignature("gemini", "", "c2ln")),
        Text("kelp", ProviderSignature("gemini", "", "c2ln")),
        Thinking("old", ProviderSignature("anthropic", "claude-old", "c2ln")),
    )
    models = [part.signature.model for part in set_signing_model(Message("assistant", parts), "m").parts]
    assert models == ["m", "", "m", "m", "claude-old"]
    message = Message("assistant", (parts[1], Text("kelp")))
    assert set_signing_model(message, "m") is message
    assert set_signing_model(Message("assistant", parts), "").parts == parts


def test_the_model_of_a_seal_is_known_again_in_other_bytes():
    """A client sends the same seal back without its model, and in the other alphabet of base64."""
    known = Message("assistant", (Thinking("", ProviderSignature("gemini", "m", "a+/b==")), Text("kelp")))
    came = Message("assistant", (Thinking("", ProviderSignature("gemini", "", "a-_b")), Text("kelp")))
    assert copy_signing_models(came, known).parts[0].signature == ProviderSignature("gemini", "m", "a-_b")
    other = Message("assistant", (Thinking("", ProviderSignature("gemini", "", "else")),))
    assert copy_signing_models(other, known) is other
