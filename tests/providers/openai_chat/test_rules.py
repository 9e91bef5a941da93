"""Rules of Chat Completions: the path of each finding, and requests that are accepted."""

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


def build_body(*messages, **fields):
    return {"messages": list(messages), **fields}


def part(kind, value="a"):
    return {"type": kind, kind: value}


def list_findings(body):
    return [(finding.rule, finding.path) for finding in validate_request(body, "openai-chat")]


@pytest.mark.parametrize(
    ("body", "rule", "path"),
    [
        (build_body({"role": "user", "content": None}), "openai-chat.content", "$.messages[0].content"),
        (build_body(USER, calls(call()), tool(content=[])), "openai-chat.content", "$.messages[2].content"),
        (build_body(USER, calls(call())), "openai-chat.pair", "$.messages[1].tool_calls"),
        (build_body(tool(), USER), "openai-chat.orphan", "$.messages[0].tool_call_id"),
        (build_body(USER, calls(call()), tool("c2")), "openai-chat.orphan", "$.messages[2].tool_call_id"),
        (build_body(USER | {"tool_calls": [call()]}), "openai-chat.tool-calls", "$.messages[0].tool_calls"),
        (
            build_body({"role": "user", "content": [part("tool_result")]}),
            "openai-chat.parts",
            "$.messages[0].content[0].type",
        ),
        (
            build_body(USER, calls(call(name="a b")), tool()),
            "openai-chat.call-name",
            "$.messages[1].tool_calls[0].function.name",
        ),
        (build_body(5), "openai-chat.messages", "$.messages[0]"),
    ],
)
def test_validate_request_reports_the_path_of_a_finding(body, rule, path):
    """A finding has the path at which the request breaks the rule."""
    assert (rule, path) in list_findings(body)


def test_validate_request_allows_any_role_order_and_repeated_ids():
    """Chat has no alternation, no first and no last role, and accepts repeated ids in a later turn."""
    answer = {"role": "assistant", "content": "a"}
    assert list_findings(build_body(answer, USER, USER, {"role": "system", "content": "s"}, answer)) == []
