"""Messages decoded by one API are planned for and encoded by another."""

from __future__ import annotations

import json
from contextlib import suppress
from itertools import permutations

import msgspec
import pytest
import rule_cases
from anthropic.types.beta.message_create_params import MessageCreateParams as Messages
from google.genai import types
from hypothesis import given
from hypothesis import strategies as st
from hypothesis_strategies import conversation_strategy
from openai.types.chat.completion_create_params import CompletionCreateParams as Chat
from openai.types.responses.response_create_params import ResponseCreateParams as Responses
from pydantic import TypeAdapter

from holdfast import apply, plan
from holdfast.config import get_target
from holdfast.errors import FormatError
from holdfast.messages.message import collect_media_in_messages, get_result_text
from holdfast.providers.anthropic import messages as anthropic
from holdfast.providers.foreign.convert_request import convert_request
from holdfast.providers.foreign.foreign_bytes import drop_foreign_bytes
from holdfast.providers.gemini import messages as gemini
from holdfast.providers.openai_chat import messages as openai_chat
from holdfast.providers.openai_responses import messages as openai_responses
from holdfast.providers.registry import API_SPECS
from holdfast.providers.requests.message_dicts import decode_messages, encode_messages
from holdfast.providers.rules.validate import validate_request
from holdfast.testing.provider.client import STRICTEST_MODELS

WIRE = {
    "anthropic": anthropic,
    "openai-chat": openai_chat,
    "openai-responses": openai_responses,
    "gemini": gemini,
}
PAIRS = list(permutations(WIRE, 2))


def list_exchanges(messages):
    """Return name and arguments of each call, with its result."""
    results = {result.call_id: get_result_text(result) for message in messages for result in message.results}
    calls = [call for message in messages for call in message.calls]
    return [(call.name, json.loads(call.arguments), results.get(call.id)) for call in calls]


@pytest.mark.parametrize(("of", "to"), PAIRS, ids=[" to ".join(pair) for pair in PAIRS])
@given(data=st.data())
def test_encode_messages_writes_messages_of_any_reader(of, to, data):
    """Calls, results, text and pictures decoded by one API are encoded in the form of another, and are valid."""
    messages = data.draw(conversation_strategy(turns=3, api=of, thinking=False, system=False))
    decoded = decode_messages(of, encode_messages(of, messages))
    sent = encode_messages(to, apply(decoded, plan(decoded, get_target(to, STRICTEST_MODELS[to]))))
    body = {"model": STRICTEST_MODELS[to], API_SPECS[to].messages_field: sent} | (
        {"max_tokens": 900} if to == "anthropic" else {}
    )
    assert validate_request(msgspec.json.encode(body), to) == ()
    back = decode_messages(to, sent)
    for (name, arguments, output), (name_, arguments_, output_) in zip(
        list_exchanges(decoded), list_exchanges(back), strict=True
    ):
        assert (name, arguments) == (name_, arguments_)
        assert all(line in output_ for line in output.splitlines())
    words = "\n".join(message.text for message in back)
    assert all(line in words for message in decoded for line in message.text.splitlines())
    shown = [
        message for message in decoded if to != "openai-chat" or not message.results
    ]  # whose results hold no pictures
    assert {part.source for part in collect_media_in_messages(*shown)} <= {
        part.source for part in collect_media_in_messages(*back)
    }


@pytest.mark.parametrize("api", WIRE)
@given(data=st.data())
def test_drop_foreign_bytes_keeps_messages_of_the_own_api(api, data):
    """A message decoded by its own API is returned as the same object."""
    messages = data.draw(conversation_strategy(turns=3, api=api))
    for message in decode_messages(api, encode_messages(api, messages)):
        assert drop_foreign_bytes(message, api) is message


# -- fields of one API in a body of another ----------------------------------------------------------------------------

TYPES = {"anthropic": Messages, "openai-chat": Chat, "openai-responses": Responses, "gemini": types.Content}
FREE = frozenset({"input", "args", "arguments", "response", "input_audio", "cache_control"})
"""Fields with free content."""


def get_known_fields(api):
    """Return the fields that the provider's SDK knows, by the ``type`` of their object ("" if it has none)."""
    known = {}
    waiting = [TypeAdapter(TYPES[api]).json_schema()]
    while waiting:
        schema = waiting.pop()
        if isinstance(schema, dict):
            if isinstance(properties := schema.get("properties"), dict):
                type_schema = properties.get("type") if isinstance(properties.get("type"), dict) else {}
                for type_ in type_schema.get("enum") or [type_schema.get("const", "")]:
                    known.setdefault(type_, set()).update(properties)
            waiting += schema.values()
        elif isinstance(schema, list):
            waiting += schema
    return known


KNOWN = {api: get_known_fields(api) for api in TYPES}
KNOWN["openai-responses"]["input_audio"] = {"type", "input_audio"}  # as our rules take it


def find_unknown_fields(value, known):
    """Yield the types, and the fields of objects, that are not ``known``."""
    if isinstance(value, list):
        for element in value:
            yield from find_unknown_fields(element, known)
    if not isinstance(value, dict):
        return
    type_ = value.get("type", "")
    if type_ not in known:
        yield f"type {type_}"
    for key, inner in value.items():
        if key not in known.get(type_, {key}):
            yield f"{type_}.{key}"
        if key not in FREE:
            yield from find_unknown_fields(inner, known)


CITED = {"citations": [{"type": "char_location", "cited_text": "q", "document_index": 0}]}
MARK = {"cache_control": {"type": "ephemeral"}}
RICH = {
    "anthropic": [
        {"role": "user", "content": [{"type": "text", "text": "q", **MARK}]},
        {"role": "assistant", "content": [{"type": "text", "text": "a", **CITED}]},
        {"role": "assistant", "content": [{"type": "compaction", "content": "S", **MARK}]},
        {"role": "user", "content": [{"type": "document", "title": "t", "context": "c", "source": {"type": "url"}}]},
    ],
    "openai-chat": [
        {"role": "developer", "name": "bob", "content": "be brief"},
        {"role": "assistant", "content": "a", "refusal": "no", "annotations": [], "audio": {"id": "x"}},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://x", "detail": "low"}}]},
    ],
    "openai-responses": [
        {"role": "assistant", "content": "a"},
        {"type": "compaction", "encrypted_content": "x", "id": "cmp_1"},
        {"role": "user", "content": [{"type": "input_image", "image_url": "https://x", "detail": "low"}]},
    ],
    "gemini": [
        {"role": "model", "parts": [{"text": "a", "thoughtSignature": "QUJD", "thought": True}, {"text": "b"}]},
        {"role": "user", "parts": [{"inlineData": {"mimeType": "image/png", "data": "QUJD", "displayName": "n"}}]},
    ],
}
"""Messages with fields that only their own API knows."""


def list_message_lists(api):
    """Yield message lists that are valid for an API: those of its rule cases, and the rich ones."""
    yield RICH[api]
    for case in rule_cases.load_cases(api):
        listed = (
            json.loads(case["request"]).get(API_SPECS[api].messages_field)
            if case["kept"] and len(case["request"]) < 10_000
            else 0
        )
        if isinstance(listed, list):
            yield listed


@pytest.mark.parametrize(("of", "to"), PAIRS, ids=[" to ".join(pair) for pair in PAIRS])
def test_encode_messages_writes_no_field_of_another_api(of, to):
    """Only fields and types that the provider knows are written, whoever decoded the list; unparsed messages stay as
    they are, and so does a breakpoint on text of unknown origin.
    """
    for listed in list_message_lists(of):
        decoded = decode_messages(of, listed)
        if any(part.kind == "message" for message in decoded for part in message.parts if hasattr(part, "kind")):
            continue
        found = {*find_unknown_fields(encode_messages(to, decoded), KNOWN[to])}
        assert found <= {"text.cache_control", "text.prompt_cache_breakpoint"}, (listed, found)
    assert not {*find_unknown_fields(encode_messages(to, decode_messages(of, RICH[of])), KNOWN[to])}


@pytest.mark.parametrize(("of", "to"), PAIRS, ids=[" to ".join(pair) for pair in PAIRS])
def test_convert_request_leaves_no_field_of_another_api(of, to):
    """The messages of a converted body have no field or type that the provider does not know."""
    for listed in list_message_lists(of):
        body = json.dumps({"model": "m", API_SPECS[of].messages_field: listed}).encode()
        with suppress(FormatError):  # a part of the history lies with the provider
            sent = json.loads(convert_request(body, to, api=of)[0])[API_SPECS[to].messages_field]
            assert not {*find_unknown_fields(sent, KNOWN[to])}, listed


@pytest.mark.parametrize("api", WIRE)
def test_drop_foreign_bytes_keeps_every_case_of_the_own_api(api):
    """An API's own fields stay, whatever they are called."""
    for listed in list_message_lists(api):
        for message in decode_messages(api, listed):
            assert drop_foreign_bytes(message, api) is message


def test_encode_messages_keeps_router_breakpoints_in_chat():
    """Chat: text with a cache breakpoint keeps it, unless it came with fields that only another API has."""
    marked = [{"role": "user", "content": [{"type": "text", "text": "q", **MARK}]}]
    assert encode_messages("openai-chat", decode_messages("openai-chat", marked)) == marked
    call = {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {}}]}
    sent = encode_messages("openai-chat", decode_messages("anthropic", [*marked, call]))
    assert sent[0] == {"role": "user", "content": "q"}


def test_encode_messages_takes_no_text_for_a_field_name():
    """Chat: text that equals or contains the name of another API's field changes nothing."""
    for word in ("citations", 'it says "citations"', "cache_control"):
        marked = [{"role": "user", "content": [{"type": "text", "text": word, **MARK}]}]
        assert encode_messages("openai-chat", decode_messages("openai-chat", marked)) == marked


@pytest.mark.parametrize("to", ["anthropic", "gemini", "openai-responses"])
def test_encode_messages_writes_a_chat_refusal_as_text(to):
    """A refusal in Chat, beside the content or in it, becomes text in every other API."""
    beside = {"role": "assistant", "content": None, "refusal": "I will not."}
    inside = {"role": "assistant", "content": [{"type": "refusal", "refusal": "I will not."}]}
    for message in (beside, inside):
        assert "I will not." in json.dumps(encode_messages(to, decode_messages("openai-chat", [message])))
