"""A lesson about a field changes that field of a body and no other byte; what a client needs is never left out."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.providers.errors.named_fields import NamedField, read_named_fields
from holdfast.providers.requests.adapt_body import (
    apply_field_lessons,
    find_wrong_lessons,
    make_field_lessons,
    remove_betas,
)
from holdfast.state.field_lessons import ONLY_EMPTY, FieldLesson, describe_field_lesson

CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"store":1}'}}
CHAT = {
    "model": "m",
    "store": False,
    "max_tokens": 90_000,
    "presence_penalty": 0,
    "response_format": {"type": "json_object"},
    "messages": [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "hi", "name": "ann", "tool_calls": None},
        {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "name": "look", "content": "a store"},
        {"role": "assistant", "content": "well", "reasoning_content": "so"},
    ],
    "tools": [
        {
            "type": "function",
            "function": {"name": "look", "strict": True, "parameters": {"type": "object", "properties": {}}},
        }
    ],
}


def adapt(text, body, betas=()):
    """Return the body after the refusal ``text``, decoded, and the lessons."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lessons = make_field_lessons(read_named_fields(text), data, betas)
    return json.loads(apply_field_lessons(data, lessons)), lessons


def without(body, *path):
    """Return a copy of ``body`` without the field at ``path``."""
    copy = json.loads(json.dumps(body))
    holder = copy
    for step in path[:-1]:
        holder = holder[step]
    del holder[path[-1]]
    return copy


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("property 'store' is unsupported", ("store",)),
        ("Model m does not support parameter presencePenalty.", ("presence_penalty",)),
        ("messages.1.user.name: Extra inputs are not permitted", ("messages", 1, "name")),
        ("messages.1.tool_calls: Extra inputs are not permitted", ("messages", 1, "tool_calls")),
        ("property 'strict' is unsupported", ("tools", 0, "function", "strict")),
        ("tools.0.function.strict: Extra inputs are not permitted", ("tools", 0, "function", "strict")),
    ],
)
def test_apply_field_lessons_leaves_out_the_named_field(text, path):
    """The field goes where it stands, and everything else stays."""
    assert adapt(text, CHAT)[0] == without(CHAT, *path)


@pytest.mark.parametrize(
    "text",
    [
        "property 'reasoning_content' is unsupported",
        (
            "'messages.2' : for 'role:assistant' the following must be satisfied[('messages.2' : property"
            " 'reasoning_content' is unsupported)]"
        ),
        "messages.2.assistant.reasoning_content: Extra inputs are not permitted",
        # A gateway that put a message of its own in front counts differently.
        "messages.3.assistant.reasoning_content: Extra inputs are not permitted",
    ],
)
def test_apply_field_lessons_leaves_a_field_out_of_every_message_of_the_role(text):
    """One message is named and all of that role have the field left out, or the next refusal would name the next."""
    expected = without(without(CHAT, "messages", 2, "reasoning_content"), "messages", 4, "reasoning_content")
    assert adapt(text, CHAT)[0] == expected


NEEDED = (
    *("model", "messages", "tools", "stream", "response_format", "system", "input", "contents"),
    *("messages[2].tool_calls", "messages[2].role", "messages[3].tool_call_id", "messages[3].content"),
    *("messages[2].tool_calls[0].id", "messages[2].tool_calls[0].function", "messages[3].name"),
    *("messages[2].tool_calls[0].function.arguments", "tools[0].function.name", "tools[0].function"),
    *(
        "tools[0].function.parameters",
        "tools[0].function.parameters.type",
        "messages",
        "messages[1]",
        "messages.1.user",
    ),
)


@pytest.mark.parametrize("field", NEEDED)
def test_apply_field_lessons_never_leaves_out_what_the_client_needs(field):
    """Whatever a server says, the model, words, roles, ids, calls and tools stay."""
    body, lessons = adapt(f"Unknown parameter: '{field}'.", {**CHAT, "stream": True, "system": "s"})
    assert body == {**CHAT, "stream": True, "system": "s"}
    assert all(lesson.value == "null" for lesson in lessons)


def test_apply_field_lessons_fills_reasoning_beside_calls():
    """Kimi wants reasoning on messages with calls and takes a space; a message without calls is left alone."""
    body = {"model": "k", "messages": [{"role": "user", "content": "s"}, {"role": "assistant", "tool_calls": [CALL]}]}
    body["messages"] += [{"role": "assistant", "content": "x"}, {"role": "assistant", "reasoning_content": ""}]
    text = "thinking is enabled but reasoning_content is missing in assistant tool call message at index 1"
    adapted, _ = adapt(text, body)
    assert adapted["messages"][1] == {"role": "assistant", "tool_calls": [CALL], "reasoning_content": " "}
    assert adapted["messages"][2:] == body["messages"][2:]
    adapted, _ = adapt("The `reasoning_content` in the thinking mode must be passed back to the API.", body)
    assert [message.get("reasoning_content") for message in adapted["messages"]] == [None, " ", " ", " "]


def test_apply_field_lessons_fills_what_has_one_right_value():
    """A missing summary is an empty list and missing parameters are an empty schema; sealed content stays."""
    item = {"type": "reasoning", "id": "rs_1", "encrypted_content": "abc"}
    adapted, _ = adapt("Missing required parameter: 'input[0].summary'.", {"input": [item]})
    assert adapted == {"input": [{**item, "summary": []}]}
    tool = {"type": "function", "function": {"name": "f"}}
    adapted, _ = adapt("invalid params, function parameters is empty (2013)", {"tools": [tool]})
    assert adapted["tools"][0]["function"]["parameters"] == {"type": "object", "properties": {}}
    for field in ("model", "messages", "messages[0].role", "max_tokens", "temperature"):
        assert adapt(f"Missing required parameter: '{field}'.", CHAT) == (CHAT, ())


def test_apply_field_lessons_lowers_limits_to_the_cap():
    """The output limit of the body is lowered, whatever the server calls it; a lower one stays."""
    text = "max_completion_tokens is too large: 90000. This model supports at most 4096 completion tokens"
    assert adapt(text, CHAT)[0] == {**CHAT, "max_tokens": 4_096}
    assert adapt(text, {**CHAT, "max_tokens": 4_000})[0]["max_tokens"] == 4_000
    options = {"contents": [], "generationConfig": {"maxOutputTokens": 100_000, "topK": 3}}
    text = "it has a maxOutputTokens value of 100000 but the supported range is from 1 (inclusive) to 65537 (exclusive)"
    assert adapt(text, options)[0]["generationConfig"] == {"maxOutputTokens": 65_536, "topK": 3}
    body = {"max_tokens": 64_000, "thinking": {"type": "enabled", "budget_tokens": 32_000}}
    text = "max_tokens: 64000 > 8192, which is the maximum allowed number of output tokens"
    assert adapt(text, body)[0] == {"max_tokens": 8_192, "thinking": {"type": "enabled", "budget_tokens": 4_096}}


def test_apply_field_lessons_renames_only_output_limits():
    """The name that a server gives is used for the output limit, with the client's number."""
    text = "Unsupported parameter: '{}' is not supported with this model. Use '{}' instead."
    adapted, _ = adapt(text.format("max_tokens", "max_completion_tokens"), CHAT)
    assert adapted == {**without(CHAT, "max_tokens"), "max_completion_tokens": 90_000}
    assert adapt(text.format("messages", "input"), CHAT) == (CHAT, ())


def test_make_field_lessons_reads_betas_of_headers_and_body():
    """A named beta is left out of both; without a name all of them are."""
    body = {"anthropic_beta": ["a-1", "b-2"], "messages": []}
    text = "Unexpected value(s) `a-1`, `zz-9` for the `anthropic-beta` header."
    adapted, lessons = adapt(text, body, ("a-1", "c-3"))
    assert (adapted["anthropic_beta"], remove_betas("a-1,c-3", lessons)) == (["b-2"], "c-3")
    adapted, lessons = adapt("invalid beta flag", body, ("a-1", "c-3"))
    assert ("anthropic_beta" in adapted, remove_betas("a-1, c-3", lessons)) == (False, "")


@pytest.mark.parametrize(
    ("lesson", "text", "is_wrong"),
    [
        (FieldLesson("drop", ("store",)), "Missing required parameter: 'store'.", True),
        (FieldLesson("drop", ("store",)), "Unknown parameter: 'seed'.", False),
        (FieldLesson("drop", ("reasoning", "effort")), "Model x does not support parameter reasoningEffort.", True),
        (FieldLesson("drop", ("messages", "*", "name")), "Unknown parameter: 'messages[3].name'.", True),
        (FieldLesson("cap", ("max_tokens",), limit=9), "Range of max_tokens should be [1, 4096]", True),
        (FieldLesson("rename", ("max_tokens",), value="b"), "Unknown parameter: 'b'.", True),
        (FieldLesson("beta", value="b-1"), "invalid beta flag", True),
        (FieldLesson("beta", value="b-1"), "Unexpected value(s) `b-2` for the `anthropic-beta` header", False),
        (FieldLesson("beta", value="b-1"), "Unknown parameter: 'store'.", False),
    ],
)
def test_find_wrong_lessons_finds_those_whose_field_is_named_again(lesson, text, is_wrong):
    """A lesson is wrong if its field is refused although it was applied, whatever is said about it."""
    assert find_wrong_lessons(read_named_fields(text), [lesson]) == ((lesson,) if is_wrong else ())


def test_apply_field_lessons_keeps_all_other_bytes():
    """White space, escapes and the order of fields stay, also around a first or last field that goes."""
    data = b'{ "store" : true,\n  "model": "m\\u00e9",  "x": 1e5 ,"messages": [ {"name":"a" , "role":"user"} , 3 ] }'
    lessons = [FieldLesson("drop", ("store",)), FieldLesson("drop", ("messages", "*", "name"), ("user",))]
    assert apply_field_lessons(data, lessons) == (
        b'{ "model": "m\\u00e9",  "x": 1e5 ,"messages": [ {"role":"user"} , 3 ] }'
    )
    data = b'{"messages":[{"role":"user","name":"a" }],"store":true }'
    assert apply_field_lessons(data, lessons) == b'{"messages":[{"role":"user" }] }'
    assert apply_field_lessons(b'{"store":1}', lessons) == b"{}"
    for other in (b"[1]", b"not json", b'{"messages":{"name":1}}', b'{"model":"m"}'):
        assert apply_field_lessons(other, lessons) is other


words = st.sampled_from(
    ["store", "name", "messages", "tools", "role", "content", "reasoning_content", "id", "0", "1", "*", "model", "x"]
)
named_fields = st.builds(
    NamedField,
    st.sampled_from(["refused", "missing", "capped", "renamed", "beta"]),
    st.lists(words, min_size=1, max_size=4).map(tuple),
    st.integers(16, 10**6),
    st.sampled_from(["", "max_completion_tokens", "x", "content"]),
    st.sampled_from(["", "tool_calls"]),
)


def _strip_optional(body):
    """Return the words, roles, ids, calls, tools and the model of a body."""
    needed = ("role", "content", "tool_call_id", "tool_calls")
    # An absent text may become an empty one: both say nothing.
    messages = [{name: message.get(name) or "" for name in needed} for message in body["messages"]]
    tools = [(tool["type"], tool["function"]["name"], tool["function"]["parameters"]) for tool in body["tools"]]
    return body["model"], messages, tools, body["response_format"]


@given(st.lists(named_fields, max_size=6))
def test_field_lessons_keep_what_was_said_and_are_idempotent(fields):
    """For any refusals: no word, role, id, call or tool changes, and the lessons change nothing a second time."""
    data = json.dumps(CHAT).encode()
    lessons = make_field_lessons(fields, data)
    adapted = apply_field_lessons(data, lessons)
    assert _strip_optional(json.loads(adapted)) == _strip_optional(CHAT)
    assert apply_field_lessons(adapted, lessons) == adapted


def test_describe_field_lesson_tells_that_only_empty_fields_are_left_out():
    """Calls of tools are kept where there are any, and the user is not told otherwise."""
    lesson = FieldLesson("drop", ("messages", "*", "tool_calls"), ("",), value=ONLY_EMPTY)
    assert describe_field_lesson(lesson) == "`messages[].tool_calls` is left out where it is empty"
