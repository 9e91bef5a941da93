"""Rules of the Messages API: the path of each finding, and requests that are accepted."""

from __future__ import annotations

import base64
import struct

import pytest

from holdfast.messages.size.image_size import read_image_size
from holdfast.providers.rules.validate import validate_request

FIVE = {"type": "ephemeral"}
BUDGET = {"thinking": {"type": "enabled", "budget_tokens": 2000}, "max_tokens": 4000, "model": "claude-sonnet-4-5"}
THRESHOLD = {"betas": ["compact-2026-01-12"], "context_management": {"edits": [{"type": "compact_20260112"}]}}


def build_body(*contents, **fields):
    """Return a body whose contents alternate between user and assistant."""
    return {"messages": [build_message(index, content) for index, content in enumerate(contents)], **fields}


def build_message(index, content):
    return {"role": ("user", "assistant")[index % 2], "content": content}


def build_text(words="a", **more):
    return {"type": "text", "text": words, **more}


def build_tool_use(id_="t1", **more):
    return {"type": "tool_use", "id": id_, "name": "ls", "input": {}, **more}


def build_tool_result(id_="t1", content="ok", **more):
    return {"type": "tool_result", "tool_use_id": id_, "content": content, **more}


def build_body_with_calls(*uses, results, **fields):
    """Return a body with one batch of calls and their results."""
    return build_body("x", list(uses), list(results), **fields)


def build_search_call(id_="srv1"):
    return {"type": "server_tool_use", "id": id_, "name": "web_search", "input": {}}


def build_search_result(id_="srv1"):
    return {"type": "web_search_tool_result", "tool_use_id": id_, "content": []}


def build_image(mime="image/png", data="QUJD"):
    return {"type": "image", "source": {"type": "base64", "media_type": mime, "data": data}}


def build_png(width, height):
    head = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR" + struct.pack(">II", width, height)
    return build_image(data=base64.b64encode(head).decode())


def build_body_with_role(role, at=1, **fields):
    """Return a conversation with a message of ``role`` at index ``at``."""
    messages = build_body("a", "b", "c")["messages"]
    messages.insert(at, {"role": role, "content": "s"})
    return {"messages": messages, "model": "claude-opus-5", **fields}


def build_tool_addition(name):
    """Return a block that defines a tool in the middle of a conversation."""
    return {"type": "tool_addition", "tool": {"type": "tool_definition", "definition": TOOL | {"name": name}}}


def build_tool_removal(name):
    """Return a block that removes a tool."""
    return {"type": "tool_removal", "tool": {"type": "tool_reference", "name": name}}


def build_compaction_edit(tokens):
    """Return an edit that compacts an input of more than ``tokens`` tokens."""
    return {"type": "compact_20260112", "trigger": {"type": "input_tokens", "value": tokens}}


def build_compaction_block(**more):
    return {"type": "compaction", "content": "S", "signature": "s", **more}


TOOL = {"name": "ls", "input_schema": {"type": "object"}}
OLD, NEWER = "claude-sonnet-4-5", "claude-opus-5"
THOUGHT = {"type": "thinking", "thinking": "hm", "signature": "s"}


def list_findings(body, **more):
    return [(finding.rule, finding.path) for finding in validate_request(body, "anthropic", **more)]


@pytest.mark.parametrize(
    ("body", "rule", "path"),
    [
        (
            build_body_with_calls(build_tool_use(), results=[build_text()]),
            "anthropic.pair",
            "$.messages[1].content[0].id",
        ),
        (build_body("x", [build_tool_use()]), "anthropic.pair", "$.messages[1].content[0].id"),
        (
            build_body("x", [build_tool_use()], "wait", "ok", [build_tool_result()]),
            "anthropic.orphan",
            "$.messages[4].content[0].tool_use_id",
        ),
        (
            build_body_with_calls(build_tool_use(), results=[build_text(), build_tool_result()]),
            "anthropic.results-first",
            "$.messages[2].content[1]",
        ),
        (build_body("a", [build_tool_result()], "b"), "anthropic.block-role", "$.messages[1].content[0]"),
        ({"messages": None}, "anthropic.messages", "$.messages"),
        ({"messages": [5]}, "anthropic.shape", "$.messages[0]"),
        ({"messages": [{"role": "user", "content": None}]}, "anthropic.shape", "$.messages[0].content"),
        (build_body([{"type": "text"}]), "anthropic.text-nonempty", "$.messages[0].content[0].text"),
        (build_body(" \t"), "anthropic.text-nonblank", "$.messages[0].content"),
        (build_body_with_role("system", 0), "anthropic.system-place", "$.messages[0].role"),
        (
            build_body("q", [build_text(), build_search_result()], "b"),
            "anthropic.server-pair",
            "$.messages[1].content[1].tool_use_id",
        ),
        (build_body("q", [build_search_call()], "go on"), "anthropic.server-pair", "$.messages[1].content[0].id"),
        (
            build_body("q", [build_search_call()], [build_tool_result("srv1")]),
            "anthropic.orphan",
            "$.messages[2].content[0].tool_use_id",
        ),
        (
            build_body_with_calls(
                build_tool_use(), results=[build_tool_result(content=[build_text("", cache_control=FIVE)])]
            ),
            "anthropic.cache-place",
            "$.messages[2].content[0].content[0].cache_control",
        ),
        (
            build_body("a", thinking={"type": "adaptive"}, model="claude-sonnet-4-5"),
            "anthropic.thinking-mode",
            "$.thinking.type",
        ),
        (
            build_body("a", thinking={"type": "disabled"}, model="claude-fable-5"),
            "anthropic.thinking-mode",
            "$.thinking.type",
        ),
        (
            build_body("a", thinking={"type": "disabled"}, model="claude-opus-5", output_config={"effort": "max"}),
            "anthropic.thinking-mode",
            "$.thinking.type",
        ),
        (build_body("a", tool_choice={"type": "auto"}), "anthropic.tool-choice", "$.tool_choice"),
        (
            build_body([{"type": "document", "source": {"type": "base64", "media_type": "text/html", "data": "QQ=="}}]),
            "anthropic.media-type",
            "$.messages[0].content[0].source.media_type",
        ),
        (build_body("a", system=5), "anthropic.system-prompt", "$.system"),
        (build_body("a", **BUDGET, top_k=5), "anthropic.thinking-company", "$.top_k"),
        (build_body("a", **BUDGET, top_p=0.5), "anthropic.thinking-company", "$.top_p"),
        (
            build_body("a", **BUDGET, tools=[TOOL], tool_choice={"type": "any"}),
            "anthropic.thinking-company",
            "$.tool_choice.type",
        ),
        (
            build_body([build_tool_removal("rm"), build_text()], tools=[TOOL]),
            "anthropic.tool-reference",
            "$.messages[0].content[0].tool.name",
        ),
    ],
)
def test_validate_request_reports_the_path_of_a_finding(body, rule, path):
    """A finding has the path at which the request breaks the rule."""
    assert (rule, path) in list_findings(body)


@pytest.mark.parametrize(
    "body",
    [
        {
            "messages": [
                build_message(0, "a"),
                build_message(0, "b"),
                build_message(1, "c"),
                build_message(1, "d"),
                build_message(0, "e"),
            ]
        },
        {
            "messages": [
                build_message(0, "x"),
                build_message(1, [build_tool_use()]),
                build_message(1, [build_tool_use("t2")]),
                build_message(0, [build_tool_result()]),
                build_message(0, [build_tool_result("t2")]),
            ]
        },
        {
            "messages": [
                *build_body("x", [build_tool_use()], [build_tool_result()])["messages"],
                {"role": "system", "content": "s"},
            ]
        },
        build_body_with_calls(build_tool_use(), results=[build_tool_result(content="")]),
        build_body_with_calls(build_tool_use(), results=[{"type": "tool_result", "tool_use_id": "t1"}]),
        build_body_with_calls(
            build_tool_use(), results=[build_tool_result(content=[build_image(), build_text()]), build_text()]
        ),
        build_body("q", [build_search_call()], model="claude-opus-4-8"),
        build_body("q", [build_search_call(), build_search_result()], model="claude-opus-4-8"),
        build_body("q", [build_compaction_block()], **THRESHOLD | {"context_management": None}, model="claude-opus-5"),
        build_body(
            "q",
            [build_search_call("c"), build_tool_use(caller={"type": "code_execution_20260120", "tool_id": "c"})],
            [build_tool_result()],
            [build_search_result("c"), build_text()],
            "b",
        ),
        {
            "messages": [build_message(0, [build_tool_result("t7")])],
            "thread": {"type": "continue", "previous_message_id": "m"},
        },
        {"messages": [build_message(0, "a"), {"role": "system", "content": "s", "clear_at": "never"}]},
        build_body([build_tool_addition("rm"), build_tool_removal("rm"), build_text()], tools=[TOOL]),
        build_body("a", "{", model="nobody/knows"),
        build_body("a", "{"),
        build_body("a", "{", model="claude-opus-5", fallback_credit_token="t"),
        build_body("x", [build_tool_use()], [build_tool_result()], "done", "next", **BUDGET),
        build_body("a", **BUDGET | {"max_tokens": 1500}, betas=["interleaved-thinking-2025-05-14"]),
        build_body("q", [build_search_call(), build_tool_use()], [build_tool_result()]),
        build_body(
            "q",
            [build_search_call(), build_tool_use()],
            [build_tool_result()],
            [build_search_result(), build_text()],
            "b",
        ),
        build_body(
            "q",
            [build_search_call("c"), build_search_call(), build_tool_use()],
            [build_tool_result()],
            [build_search_result(), build_search_result("c"), build_tool_use("t2")],
            [build_tool_result("t2")],
        ),
        build_body("x", [THOUGHT, build_text()], compaction={"type": "summarize"}, betas=["compact-2026-09-04"]),
    ],
)
def test_validate_request_accepts_lenient_forms_of_anthropic(body):
    """Merged roles, paused turns, calls by server tools, threads and unknown models are no findings."""
    assert list_findings(body) == []


def test_validate_request_knows_models_that_think_by_default():
    """Without a thinking option, thinking is off only on models that do not think by default."""
    rules = {
        model: {rule for rule, _ in list_findings(build_body("x", [THOUGHT, build_text()], model=model))}
        for model in (OLD, NEWER)
    }
    assert "anthropic.thinking-off" in rules[OLD]
    assert "anthropic.thinking-off" not in rules[NEWER]


@pytest.mark.parametrize("listed", [1.5, True, "x", {"a": 1}, None])
def test_validate_request_ignores_body_betas_that_are_no_list(listed):
    """Malformed betas in the body leave those of the headers in force."""
    body = build_body("a", betas=listed, compaction={"type": "summarize"})
    assert list_findings(body, betas=["compact-2026-09-04"]) == []
    assert list_findings(body) == [("anthropic.compaction-beta", "$.compaction")]


def test_validate_request_counts_betas_of_the_headers():
    """Beta features requested in the headers count like those in the body."""
    body = build_body("a", compaction={"type": "summarize"})
    assert list_findings(body, betas=["compact-2026-09-04"]) == []
    edits = {"edits": [{"type": "clear_tool_uses_20250919"}]}
    assert list_findings(build_body("a", context_management=edits)) == []
    assert list_findings(build_body("a", context_management=edits), betas=[]) != []


@pytest.mark.parametrize(
    ("head", "size"),
    [
        (b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR" + struct.pack(">II", 300, 40), (300, 40)),
        (b"GIF89a" + struct.pack("<HH", 300, 40), (300, 40)),
        (b"\xff\xd8\xff\xe0\x00\x04ab\xff\xc2\x00\x11\x08" + struct.pack(">HH", 40, 300) + b"\0\0\0", (300, 40)),
        (b"RIFF\0\0\0\0WEBPVP8X" + bytes(8) + b"\x2b\x01\x00\x27\x00\x00", (300, 40)),
        (b"RIFF\0\0\0\0WEBPVP8 " + bytes(10) + struct.pack("<HH", 300, 40), (300, 40)),
        (b"RIFF\0\0\0\0WEBPVP8L" + bytes(5) + (299 | 39 << 14).to_bytes(4, "little"), (300, 40)),
        (b"BM", None),
        (b"\x89PNG", None),
    ],
)
def test_read_image_size_reads_the_header_of_each_format(head, size):
    """Width and height come from the first bytes of the image; an unknown format gives None."""
    assert read_image_size(base64.b64encode(head).decode()) == size
