"""Rules of the Messages API: where a finding points, and what is not held against a request."""

from __future__ import annotations

import base64
import struct

import pytest

from holdfast.messages.size.image_size import read_image_size
from holdfast.providers.rules.validate import validate_request

FIVE = {"type": "ephemeral"}
BUDGET = {"thinking": {"type": "enabled", "budget_tokens": 2000}, "max_tokens": 4000, "model": "claude-sonnet-4-5"}
THRESHOLD = {"betas": ["compact-2026-01-12"], "context_management": {"edits": [{"type": "compact_20260112"}]}}


def ask(*contents, **fields):
    """Return a body whose contents alternate between user and assistant."""
    return {"messages": [said(index, content) for index, content in enumerate(contents)], **fields}


def said(index, content):
    return {"role": ("user", "assistant")[index % 2], "content": content}


def text(words="a", **more):
    return {"type": "text", "text": words, **more}


def use(id_="t1", **more):
    return {"type": "tool_use", "id": id_, "name": "ls", "input": {}, **more}


def result(id_="t1", content="ok", **more):
    return {"type": "tool_result", "tool_use_id": id_, "content": content, **more}


def called(*uses, results, **fields):
    """Return a body with one batch of calls and what answers it."""
    return ask("x", list(uses), list(results), **fields)


def search(id_="srv1"):
    return {"type": "server_tool_use", "id": id_, "name": "web_search", "input": {}}


def found(id_="srv1"):
    return {"type": "web_search_tool_result", "tool_use_id": id_, "content": []}


def image(mime="image/png", data="QUJD"):
    return {"type": "image", "source": {"type": "base64", "media_type": mime, "data": data}}


def png(width, height):
    head = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR" + struct.pack(">II", width, height)
    return image(data=base64.b64encode(head).decode())


def inside(role, at=1, **fields):
    """Return a conversation with a system message at place ``at``."""
    messages = ask("a", "b", "c")["messages"]
    messages.insert(at, {"role": role, "content": "s"})
    return {"messages": messages, "model": "claude-opus-5", **fields}


def added(name):
    """Return a block that defines a tool in the middle of a conversation."""
    return {"type": "tool_addition", "tool": {"type": "tool_definition", "definition": TOOL | {"name": name}}}


def removed(name):
    """Return a block that takes a tool away."""
    return {"type": "tool_removal", "tool": {"type": "tool_reference", "name": name}}


def over(tokens):
    """Return an edit that compacts when the input is over so many tokens."""
    return {"type": "compact_20260112", "trigger": {"type": "input_tokens", "value": tokens}}


def compacted(**more):
    return {"type": "compaction", "content": "S", "signature": "s", **more}


TOOL = {"name": "ls", "input_schema": {"type": "object"}}
OLD, NEWER = "claude-sonnet-4-5", "claude-opus-5"
THOUGHT = {"type": "thinking", "thinking": "hm", "signature": "s"}


def broken(body, **more):
    return [(one.rule, one.path) for one in validate_request(body, "anthropic", **more)]


@pytest.mark.parametrize(
    ("body", "rule", "path"),
    [
        (called(use(), results=[text()]), "anthropic.pair", "$.messages[1].content[0].id"),
        (ask("x", [use()]), "anthropic.pair", "$.messages[1].content[0].id"),
        (ask("x", [use()], "wait", "ok", [result()]), "anthropic.orphan", "$.messages[4].content[0].tool_use_id"),
        (called(use(), results=[text(), result()]), "anthropic.results-first", "$.messages[2].content[1]"),
        (ask("a", [result()], "b"), "anthropic.block-role", "$.messages[1].content[0]"),
        ({"messages": None}, "anthropic.messages", "$.messages"),
        ({"messages": [5]}, "anthropic.shape", "$.messages[0]"),
        ({"messages": [{"role": "user", "content": None}]}, "anthropic.shape", "$.messages[0].content"),
        (ask([{"type": "text"}]), "anthropic.text-nonempty", "$.messages[0].content[0].text"),
        (ask(" \t"), "anthropic.text-nonblank", "$.messages[0].content"),
        (inside("system", 0), "anthropic.system-place", "$.messages[0].role"),
        (ask("q", [text(), found()], "b"), "anthropic.server-pair", "$.messages[1].content[1].tool_use_id"),
        (ask("q", [search()], "go on"), "anthropic.server-pair", "$.messages[1].content[0].id"),
        (ask("q", [search()], [result("srv1")]), "anthropic.orphan", "$.messages[2].content[0].tool_use_id"),
        (
            called(use(), results=[result(content=[text("", cache_control=FIVE)])]),
            "anthropic.cache-place",
            "$.messages[2].content[0].content[0].cache_control",
        ),
        (
            ask("a", thinking={"type": "adaptive"}, model="claude-sonnet-4-5"),
            "anthropic.thinking-mode",
            "$.thinking.type",
        ),
        (ask("a", thinking={"type": "disabled"}, model="claude-fable-5"), "anthropic.thinking-mode", "$.thinking.type"),
        (
            ask("a", thinking={"type": "disabled"}, model="claude-opus-5", output_config={"effort": "max"}),
            "anthropic.thinking-mode",
            "$.thinking.type",
        ),
        (ask("a", tool_choice={"type": "auto"}), "anthropic.tool-choice", "$.tool_choice"),
        (
            ask([{"type": "document", "source": {"type": "base64", "media_type": "text/html", "data": "QQ=="}}]),
            "anthropic.media-type",
            "$.messages[0].content[0].source.media_type",
        ),
        (ask("a", system=5), "anthropic.system-prompt", "$.system"),
        (ask("a", **BUDGET, top_k=5), "anthropic.thinking-company", "$.top_k"),
        (ask("a", **BUDGET, top_p=0.5), "anthropic.thinking-company", "$.top_p"),
        (
            ask("a", **BUDGET, tools=[TOOL], tool_choice={"type": "any"}),
            "anthropic.thinking-company",
            "$.tool_choice.type",
        ),
        (
            ask([removed("rm"), text()], tools=[TOOL]),
            "anthropic.tool-reference",
            "$.messages[0].content[0].tool.name",
        ),
    ],
)
def test_validate_request_reports_the_path_of_a_finding(body, rule, path):
    """A finding has the path at which the request breaks the rule."""
    assert (rule, path) in broken(body)


@pytest.mark.parametrize(
    "body",
    [
        {"messages": [said(0, "a"), said(0, "b"), said(1, "c"), said(1, "d"), said(0, "e")]},
        {
            "messages": [
                said(0, "x"),
                said(1, [use()]),
                said(1, [use("t2")]),
                said(0, [result()]),
                said(0, [result("t2")]),
            ]
        },
        {"messages": [*ask("x", [use()], [result()])["messages"], {"role": "system", "content": "s"}]},
        called(use(), results=[result(content="")]),
        called(use(), results=[{"type": "tool_result", "tool_use_id": "t1"}]),
        called(use(), results=[result(content=[image(), text()]), text()]),
        ask("q", [search()], model="claude-opus-4-8"),
        ask("q", [search(), found()], model="claude-opus-4-8"),
        ask("q", [compacted()], **THRESHOLD | {"context_management": None}, model="claude-opus-5"),
        ask(
            "q",
            [search("c"), use(caller={"type": "code_execution_20260120", "tool_id": "c"})],
            [result()],
            [found("c"), text()],
            "b",
        ),
        {"messages": [said(0, [result("t7")])], "thread": {"type": "continue", "previous_message_id": "m"}},
        {"messages": [said(0, "a"), {"role": "system", "content": "s", "clear_at": "never"}]},
        ask([added("rm"), removed("rm"), text()], tools=[TOOL]),
        ask("a", "{", model="nobody/knows"),
        ask("a", "{"),
        ask("a", "{", model="claude-opus-5", fallback_credit_token="t"),
        ask("x", [use()], [result()], "done", "next", **BUDGET),
        ask("a", **BUDGET | {"max_tokens": 1500}, betas=["interleaved-thinking-2025-05-14"]),
        ask("q", [search(), use()], [result()]),
        ask("q", [search(), use()], [result()], [found(), text()], "b"),
        ask("q", [search("c"), search(), use()], [result()], [found(), found("c"), use("t2")], [result("t2")]),
        ask("x", [THOUGHT, text()], compaction={"type": "summarize"}, betas=["compact-2026-09-04"]),
    ],
)
def test_validate_request_accepts_lenient_forms_of_anthropic(body):
    """Merged roles, paused turns, calls by server tools, threads and unknown models are no findings."""
    assert broken(body) == []


def test_validate_request_knows_models_that_think_by_default():
    """Without a thinking option, thinking is off only on models that do not think by default."""
    rules = {model: {rule for rule, _ in broken(ask("x", [THOUGHT, text()], model=model))} for model in (OLD, NEWER)}
    assert "anthropic.thinking-off" in rules[OLD]
    assert "anthropic.thinking-off" not in rules[NEWER]


@pytest.mark.parametrize("listed", [1.5, True, "x", {"a": 1}, None])
def test_validate_request_ignores_body_betas_that_are_no_list(listed):
    """Malformed betas in the body leave those of the headers in force."""
    body = ask("a", betas=listed, compaction={"type": "summarize"})
    assert broken(body, betas=["compact-2026-09-04"]) == []
    assert broken(body) == [("anthropic.compaction-beta", "$.compaction")]


def test_validate_request_counts_betas_of_the_headers():
    """Beta features requested in the headers count like those in the body."""
    body = ask("a", compaction={"type": "summarize"})
    assert broken(body, betas=["compact-2026-09-04"]) == []
    edits = {"edits": [{"type": "clear_tool_uses_20250919"}]}
    assert broken(ask("a", context_management=edits)) == []
    assert broken(ask("a", context_management=edits), betas=[]) != []


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
