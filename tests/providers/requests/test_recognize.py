"""The API of a body is recognized, and the dialect of a model chosen."""

from __future__ import annotations

import json

import pytest

from holdfast.errors import FormatError, UnrecognizedContent
from holdfast.providers.anthropic.models import get_claude_traits
from holdfast.providers.common.json.body_fields import parse_body_fields
from holdfast.providers.registry import get_api_dialect
from holdfast.providers.requests.recognize import recognize_api, recognize_expected_api

USER = {"role": "user", "content": "hi"}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def recognize(provider="", **fields):
    return recognize_api(parse_body_fields(json.dumps(fields).encode()), provider)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"system": "s", "messages": [USER]}, "anthropic"),
        ({"anthropic_version": "bedrock-2023-05-31", "messages": [USER]}, "anthropic"),
        ({"max_tokens": 5, "model": "claude-x", "messages": [USER]}, "anthropic"),
        ({"tools": [{"name": "f", "input_schema": {"type": "object"}}], "messages": [USER]}, "anthropic"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t"}]}]}, "anthropic"),
        ({"messages": [{"role": "assistant", "content": [{"type": "web_search_tool_result"}]}]}, "anthropic"),
        ({"messages": [USER]}, "openai-chat"),
        ({"max_tokens": 5, "model": "fake-1", "messages": [USER]}, "openai-chat"),
        ({"model": "claude-x", "stream_options": {}, "messages": [USER]}, "openai-chat"),
        ({"model": "claude-x", "messages": [{"role": "system", "content": "s"}, USER]}, "openai-chat"),
        ({"model": "claude-x", "messages": [USER, {"role": "assistant", "tool_calls": [CALL]}]}, "openai-chat"),
        ({"model": "claude-x", "tools": [{"type": "function", "function": {}}], "messages": [USER]}, "openai-chat"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "openai-chat"),
    ],
)
def test_recognize_api_by_fields_roles_and_blocks(fields, expected):
    """An API is recognized by what only it has, else by the model; the default is Chat."""
    assert recognize(**fields) == expected


SYSTEM_FIRST = {"model": "claude-x", "max_tokens": 5, "messages": [{"role": "system", "content": "s"}, USER]}
"""A mistake that people make on the Messages API, and a valid request to a gateway that speaks Chat Completions."""
CHAT_FIELDS = [
    {"tools": [{"type": "function", "function": {"name": "f"}}]},
    {"tool_choice": "auto"},
    {"parallel_tool_calls": True},
    {"functions": []},
    {"stream_options": {"include_usage": True}},
    {"max_completion_tokens": 5},
    {"response_format": {"type": "json_object"}},
    {"n": 1},
    {"stop": ["a"]},
    {"seed": 1},
    {"user": "u"},
    {"logprobs": True},
    {"frequency_penalty": 0.5},
]
CHAT_MESSAGES = [
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c", "content": "a"},
    {"role": "developer", "content": "d"},
    {"role": "user", "name": "bo", "content": "hi"},
    {"role": "assistant", "content": "a", "reasoning_content": "b"},
    {"role": "assistant", "content": None, "refusal": "no"},
    {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}]},
]


@pytest.mark.parametrize(
    "body",
    [
        *({**SYSTEM_FIRST, **field} for field in CHAT_FIELDS),
        *({**SYSTEM_FIRST, "messages": [*SYSTEM_FIRST["messages"], message]} for message in CHAT_MESSAGES),
    ],
)
def test_recognize_api_takes_a_system_message_first_for_chat_if_anything_else_is_chats(body):
    """A bare Claude name with a system message first is Messages only if nothing in the body says otherwise."""
    assert recognize(**SYSTEM_FIRST) == "anthropic"
    assert recognize(**body) == "openai-chat"


@pytest.mark.parametrize(
    ("provider", "expected"),
    [
        ("anthropic", "anthropic"),
        ("vertex", "anthropic"),
        ("bedrock", "anthropic"),
        ("openai", "openai-chat"),
        ("openrouter", "openai-chat"),
        ("groq", "openai-chat"),
    ],
)
def test_recognize_api_goes_by_the_provider_if_the_body_does_not_tell(provider, expected):
    """A named provider tells which of two APIs is meant, but not against what only the other API has."""
    assert recognize(provider, **SYSTEM_FIRST) == expected
    assert recognize(provider, max_tokens=5, messages=[USER]) == expected
    assert recognize(provider, system="s", messages=[USER]) == "anthropic"
    assert recognize(provider, messages=[USER, {"role": "assistant", "tool_calls": [CALL]}]) == "openai-chat"
    assert recognize(provider, contents=[]) == "gemini"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"contents": []}, "gemini"),
        ({"contents": [{"parts": [{"text": "a"}]}], "model": "m"}, "gemini"),
        ({"generationConfig": {}}, "gemini"),
        ({"input": "a"}, "openai-responses"),
        ({"model": "m", "input": [USER], "instructions": "s"}, "openai-responses"),
        ({"model": "m", "previous_response_id": "r"}, "openai-responses"),
    ],
)
def test_recognize_api_by_the_name_of_the_message_list(fields, expected):
    """``input`` is Responses and ``contents`` is Gemini; without either, fields that only one API has decide."""
    assert recognize(**fields) == expected


BLOCK = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t"}]}
USES = {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {}}]}
TOOLS = {"tools": [{"name": "f", "input_schema": {"type": "object"}}]}
ROLE = {"role": "tool", "tool_call_id": "c", "content": "a"}
CERTAIN_BODIES = {
    "anthropic": [
        {"system": "s", "messages": [USER]},
        {**TOOLS, "messages": [USER]},
        {"messages": [USER, USES, BLOCK]},
        {"model": "gpt-5", "max_tokens": 9, **TOOLS, "messages": [USER]},
    ],
    "openai-chat": [
        {"messages": [USER, {"role": "assistant", "tool_calls": [CALL]}]},
        {"messages": [USER, ROLE]},
        {"tools": [{"type": "function", "function": {}}], "messages": [USER]},
        {"model": "claude-x", "max_completion_tokens": 9, "messages": [USER]},
    ],
    "openai-responses": [{"input": [USER]}, {"input": "a", "system": "s"}],
    "gemini": [{"contents": []}],
}
"""Bodies with something that only one API has."""
AMBIGUOUS_BODIES = [
    {"messages": [USER]},
    {"messages": [USER], "model": "claude-x", "max_tokens": 5},
    {"messages": [USER], "model": "gpt-5"},
    {"messages": [USER], "thinking": {"type": "enabled"}, "stop": ["a"], "user": "u", "seed": 1},
    {"messages": [{"role": "assistant", "content": [{"type": "thinking", "thinking": []}]}, USER]},
    {"messages": [USER, USES, BLOCK, ROLE]},
    {"messages": [{"role": "system", "content": "s"}, USER, {"role": "developer", "content": "d"}, USER]},
    {"messages": [{"role": "user", "content": [{"type": "image_url"}, {"type": "file"}]}]},
    {"messages": [USER, BLOCK]},
    {"messages": [USER, ROLE], **TOOLS},
]
"""Bodies without evidence, with fields that servers of either API accept, or with marks of both APIs."""


@pytest.mark.parametrize("likely", CERTAIN_BODIES)
@pytest.mark.parametrize(
    ("expected", "fields"), [(api, fields) for api, bodies in CERTAIN_BODIES.items() for fields in bodies]
)
def test_recognize_expected_api_prefers_certain_evidence(likely, expected, fields):
    """Evidence is the message list, or tools, roles, blocks and fields if the lists have the same name."""
    assert recognize_expected_api(parse_body_fields(json.dumps(fields).encode()), likely) == expected


@pytest.mark.parametrize("likely", ["anthropic", "openai-chat"])
@pytest.mark.parametrize("fields", AMBIGUOUS_BODIES)
def test_recognize_expected_api_falls_back_to_the_expected_api(likely, fields):
    """A model name, a field that gateways pass on, or marks of both APIs decide nothing."""
    assert recognize_expected_api(parse_body_fields(json.dumps(fields).encode()), likely) == likely


@pytest.mark.parametrize(
    "fields",
    [
        {"a": 1},
        {},
        {"model": "text-embed", "input": "a", "encoding_format": "float"},
        {"model": "tts", "input": "a", "voice": "v"},
        {"model": "m", "prompt": "a"},
    ],
)
def test_recognize_api_rejects_other_bodies(fields):
    """Bodies of other calls are rejected with the names of the message lists that are known."""
    with pytest.raises(UnrecognizedContent, match="'messages' or 'input' or 'contents'"):
        recognize(**fields)


@pytest.mark.parametrize(
    ("model", "prefill", "inside", "binds", "images"),
    [
        ("claude-3-5-sonnet-20241022", True, False, False, 100),
        ("claude-2.1", True, False, False, 100),
        ("claude-sonnet-4-20250514", True, False, False, 100),
        ("anthropic.claude-opus-4-5-20251101-v1:0", True, False, False, 100),
        ("anthropic/claude-haiku-4.5", True, False, False, 100),
        ("claude-opus-4-6", False, False, False, 600),
        ("claude-opus-4-8", False, True, False, 600),
        ("claude-opus-5", False, True, False, 600),
        ("claude-opus-5-20260401", False, True, False, 600),
        ("claude-sonnet-5", False, False, False, 600),
        ("claude-opus-5-5", False, True, True, 600),
        ("claude-sonnet-5-5", False, True, True, 600),
        ("claude-haiku-5-5", False, True, True, 600),
        ("claude-fable-5", False, True, False, 600),
        ("claude-mythos-5-1", False, True, True, 600),
        ("claude-fable-5-2[1m]", False, True, True, 600),
        ("claude-opus-4-9", False, True, True, 600),
        ("claude-opus-6", False, True, True, 600),
        ("us.anthropic.claude-sonnet-7-1-v1:0", False, True, True, 600),
        ("somebody/new", False, False, True, 600),
        ("", False, False, True, 600),
    ],
)
def test_get_api_dialect_follows_family_and_version_of_claude(model, prefill, inside, binds, images):
    """A model newer than all known ones takes system messages inside like the newest known; an unknown name gets the
    strictest rules and no guessed limit.
    """
    dialect = get_api_dialect("anthropic", model)
    assert (
        not dialect.must_end_with_user,
        dialect.system_position == "turn",
        dialect.binds_thinking,
        dialect.max_images,
    ) == (
        prefill,
        inside,
        binds,
        images,
    )
    assert (dialect.must_start_with_user, dialect.merges_same_role, dialect.max_cache_breakpoints) == (
        True,
        get_claude_traits(model) is None,
        4,
    )


def test_get_claude_traits_is_none_for_unknown_models():
    """Nothing is claimed about an unknown model, so the validator cannot reject a request for it."""
    assert get_claude_traits("claude-opus-7") is None
    assert get_claude_traits("fake-1") is None


def test_get_api_dialect_of_chat():
    """Chat has no order of roles, merges nothing, and wants short ids and no media in results."""
    dialect = get_api_dialect("openai-chat", "gpt-5")
    assert (
        dialect.must_start_with_user,
        dialect.must_end_with_user,
        dialect.merges_same_role,
        dialect.allows_media_in_results,
    ) == (False,) * 4
    assert (dialect.id_max, dialect.results_grouped, dialect.max_cache_breakpoints) == (64, False, 0)


@pytest.mark.parametrize("mark", ["", "\ufeff"], ids=["bare", "marked"])
@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
def test_parse_body_fields_names_utf_16_and_utf_32(encoding, mark):
    """The error names the encoding and what to do, whatever the body contains."""
    for body in ('{"model":"m","messages":[]}', '{"model":"é","messages":[]}'):
        with pytest.raises(FormatError, match=rf"^the body is {encoding[:6].upper()}; encode it as UTF-8$"):
            parse_body_fields((mark + body).encode(encoding))
