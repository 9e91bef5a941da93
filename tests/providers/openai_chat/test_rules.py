"""Rules of Chat Completions: where a finding points, and what is not held against a request."""

from __future__ import annotations

import pytest

from holdfast.providers.rules.validate import validate_request

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


def broken(body):
    return [(one.rule, one.path) for one in validate_request(body, "openai-chat")]


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
            "openai-chat.call-name",
            "$.messages[1].tool_calls[0].function.name",
        ),
        (ask(5), "openai-chat.messages", "$.messages[0]"),
    ],
)
def test_validate_request_reports_the_path_of_a_finding(body, rule, path):
    """A finding has the path at which the request breaks the rule."""
    assert (rule, path) in broken(body)


def test_validate_request_allows_any_role_order_and_repeated_ids():
    """Chat has no alternation, no first and no last role, and accepts repeated ids in a later turn."""
    answer = {"role": "assistant", "content": "a"}
    assert broken(ask(answer, USER, USER, {"role": "system", "content": "s"}, answer)) == []
