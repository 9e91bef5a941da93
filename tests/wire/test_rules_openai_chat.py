"""Every rule of Chat Completions, with a request that keeps it and one that breaks it; and the validator's entry."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import Unrecognised
from holdfast.wire.rules import RULES, validate

USER = {"role": "user", "content": "x"}


def call(id_="c1", **function):
    return {"id": id_, "type": "function", "function": {"name": "ls", "arguments": "{}", **function}}


def calls(*listed, **more):
    return {"role": "assistant", "content": None, "tool_calls": list(listed), **more}


def tool(id_="c1", content="ok"):
    return {"role": "tool", "tool_call_id": id_, "content": content}


def ask(*messages, **fields):
    return {"messages": list(messages), **fields}


def part(kind, value="a"):
    return {"type": kind, kind: value}


FUNCTION = {"type": "function", "function": {"name": "ls"}}

KEPT_AND_BROKEN = {
    "openai-chat.messages": (ask(USER), ask()),
    "openai-chat.roles": (ask({"role": "developer", "content": "a"}, USER), ask({"role": "model", "content": "a"})),
    "openai-chat.content": (
        ask(USER, calls(call()), tool(), {"role": "assistant", "content": None, "refusal": "no"}),
        ask(USER, {"role": "assistant", "content": None}),
    ),
    "openai-chat.parts": (
        ask({"role": "user", "content": [part("text"), part("image_url", {"url": "https://x"})]}),
        ask(USER, calls(call()), tool(content=[part("image_url", {"url": "https://x"})])),
    ),
    "openai-chat.unknown-part": (ask(USER), ask({"role": "user", "content": [part("video_url", {"url": "x"})]})),
    "openai-chat.part-fields": (
        ask({"role": "user", "content": [part("input_audio", {"data": "QQ==", "format": "wav"})]}),
        ask({"role": "user", "content": [part("image_url", "https://x")]}),
    ),
    "openai-chat.refusal": (
        ask(USER, {"role": "assistant", "content": [part("refusal")]}),
        ask(USER, {"role": "assistant", "content": [part("refusal"), part("text")]}),
    ),
    "openai-chat.pair": (
        ask(USER, calls(call(), call("c2")), tool("c2"), tool()),
        ask(USER, calls(call()), USER, tool()),
    ),
    "openai-chat.orphan": (ask(USER, calls(call()), tool(), USER), ask(USER, tool())),
    "openai-chat.second-result": (ask(USER, calls(call()), tool()), ask(USER, calls(call()), tool(), tool())),
    "openai-chat.unique-ids": (
        ask(USER, calls(call()), tool(), calls(call()), tool()),
        ask(USER, calls(call(), call()), tool()),
    ),
    "openai-chat.tool-calls": (ask(USER, calls(call()), tool()), ask(USER, calls(content="a"))),
    "openai-chat.call-shape": (
        ask(USER, calls({"id": "c1", "type": "custom", "custom": {"name": "p", "input": "free"}}), tool()),
        ask(USER, calls(call(arguments={})), tool()),
    ),
    "openai-chat.ids": (
        ask(USER, calls(call("c" * 64)), tool("c" * 64)),
        ask(USER, calls(call("c" * 65)), tool("c" * 65)),
    ),
    "openai-chat.legacy": (
        ask(
            USER,
            {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
            {"role": "function", "name": "f", "content": None},
        ),
        ask(USER, {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": {}}}),
    ),
    "openai-chat.name": (ask(USER | {"name": "bob"}), ask(USER | {"name": "bob jones"})),
    "openai-chat.tools": (ask(USER, tools=[FUNCTION]), ask(USER, tools=[])),
    "openai-chat.tool-choice": (ask(USER, tools=[FUNCTION], tool_choice="auto"), ask(USER, tool_choice="auto")),
    "openai-chat.limits": (ask(USER, max_completion_tokens=1), ask(USER, max_tokens=0)),
}

NAMES = [rule.name for rule in RULES if rule.name.startswith("openai-chat.")]
LEVELS = {rule.name: rule.level for rule in RULES}


def broken(body):
    return [(one.rule, one.path) for one in validate(body, "openai-chat")]


def test_each_rule_has_its_examples():
    """There is a kept and a broken example for every rule, and none for a rule that is gone."""
    assert sorted(KEPT_AND_BROKEN) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_request_that_keeps_the_rule_is_taken(name):
    """The kept example breaks no rule at all."""
    assert broken(KEPT_AND_BROKEN[name][0]) == []


@pytest.mark.parametrize("name", NAMES)
def test_a_request_that_breaks_the_rule_is_found(name):
    """The broken example is found under the rule's name, with its level and a path."""
    hits = [one for one in validate(KEPT_AND_BROKEN[name][1], "openai-chat") if one.rule == name]
    assert hits
    assert all(one.level == LEVELS[name] and one.path.startswith("$") for one in hits)


@pytest.mark.parametrize(
    ("body", "rule", "path"),
    [
        (ask({"role": "user", "content": None}), "openai-chat.content", "$.messages[0].content"),
        (ask(USER, calls(call()), tool(content=[])), "openai-chat.content", "$.messages[2].content"),
        (ask(USER, calls(call())), "openai-chat.pair", "$.messages[1].tool_calls"),
        (ask(tool(), USER), "openai-chat.orphan", "$.messages[0].tool_call_id"),
        (ask(USER, calls(call()), tool("c2")), "openai-chat.orphan", "$.messages[2].tool_call_id"),
        (ask(USER | {"tool_calls": [call()]}), "openai-chat.tool-calls", "$.messages[0].tool_calls"),
        (ask({"role": "user", "content": [part("tool_result")]}), "openai-chat.parts", "$.messages[0].content[0].type"),
        (
            ask(USER, calls(call(name="a b")), tool()),
            "openai-chat.call-shape",
            "$.messages[1].tool_calls[0].function.name",
        ),
        (ask(5), "openai-chat.messages", "$.messages[0]"),
    ],
)
def test_findings_name_the_place(body, rule, path):
    """A finding says where the request breaks the rule."""
    assert (rule, path) in broken(body)


def test_order_and_repeated_ids_are_free():
    """Chat has no alternation, no first and no last role, and takes ids again in a later turn."""
    answer = {"role": "assistant", "content": "a"}
    assert broken(ask(answer, USER, USER, {"role": "system", "content": "s"}, answer)) == []


def test_every_rule_explains_itself():
    """A rule has a sentence, evidence and a source; one that is only inferred warns, all others refuse."""
    assert len({rule.name for rule in RULES}) == len(RULES)
    for rule in RULES:
        assert rule.text.endswith(".")
        assert rule.source
        assert rule.level == ("warning" if rule.evidence == "inferred" else "error")


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{", b'{"a":NaN}', b'{"a":"\\ud800 x"}', b"[" * 100_000, {"messages": ["\ud800"]}]
)
def test_what_is_no_json_is_one_finding(body):
    """A body no API can read is one finding at its root."""
    assert [(one.rule, one.path) for one in validate(body, "openai-chat")] == [("json", "$")]


def test_the_api_is_told_or_asked_for():
    """Without an API the body tells it; a body of no known API, or an API without rules, is refused."""
    assert validate(json.dumps(ask(USER)).encode()) == ()
    with pytest.raises(Unrecognised):
        validate({"contents": []})
    with pytest.raises(Unrecognised):
        validate(ask(USER), "gemini")


_KINDS = ("text", "tool_use", "tool_result", "image", "function", "base64", "compaction", "assistant")
_KEYS = (
    *("type", "role", "content", "id", "name", "tool_use_id", "source", "cache_control", "tool_calls", "tool_call_id"),
    *("function", "arguments", "caller", "tool", "trigger", "value", "ttl", "text"),
)
_FIELDS = (
    *("system", "tools", "tool_choice", "thinking", "compaction", "context_management", "cache_control", "betas"),
    *("model", "max_tokens", "output_config", "temperature", "top_p", "thread", "max_completion_tokens"),
)
_NUMBERS = st.integers(-9, 9) | st.floats(allow_nan=False, allow_infinity=False)
_JSON = st.recursive(
    st.none() | st.booleans() | _NUMBERS | st.text(max_size=4) | st.sampled_from(_KINDS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_KEYS), inner, max_size=4),
    max_leaves=12,
)
_APIS = st.sampled_from(["anthropic", "openai-chat"])


@given(_JSON, st.dictionaries(st.sampled_from(_FIELDS), _JSON, max_size=4), _APIS)
def test_no_json_makes_the_validator_fail(messages, fields, api):
    """Any JSON whatever gets findings, never an exception."""
    body = {**fields, "messages": messages}
    assert validate(body, api) == validate(json.dumps(body).encode(), api)


@given(st.lists(_JSON, max_size=4), _APIS)
def test_no_message_makes_the_validator_fail(messages, api):
    """Any list of messages gets findings, never an exception."""
    shaped = [
        {"role": "assistant", "content": one, "tool_calls": one} if isinstance(one, list) else one for one in messages
    ]
    assert isinstance(validate({"messages": shaped}, api), tuple)
