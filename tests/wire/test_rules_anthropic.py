"""Every rule of the Messages API, with a request that keeps it and one that breaks it."""

from __future__ import annotations

import base64
import struct

import pytest

from holdfast.wire.rules import RULES, validate
from holdfast.wire.rules.pixels import pixels

FIVE = {"type": "ephemeral"}
HOUR = {"type": "ephemeral", "ttl": "1h"}
BUDGET = {"thinking": {"type": "enabled", "budget_tokens": 2000}, "max_tokens": 4000, "model": "claude-sonnet-4-5"}
ON_DEMAND = {"betas": ["compact-2026-09-04"], "compaction": {"type": "summarize"}}
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


def edited(*edits, **fields):
    """Return a body that asks for these context edits."""
    return ask("a", context_management={"edits": list(edits)}, **fields)


def over(tokens):
    """Return an edit that compacts when the input is over so many tokens."""
    return {"type": "compact_20260112", "trigger": {"type": "input_tokens", "value": tokens}}


def compacted(**more):
    return {"type": "compaction", "content": "S", "signature": "s", **more}


def from_assistant(*contents, **fields):
    """Return a body that the assistant opens."""
    return {"messages": [said(index + 1, content) for index, content in enumerate(contents)], **fields}


CLEAR_THINKING = {"type": "clear_thinking_20251015"}
CLEAR_RESULTS = {"type": "clear_tool_uses_20250919"}
THINKING = {"type": "thinking", "thinking": "hm", "signature": "s"}
TOOL = {"name": "ls", "input_schema": {"type": "object"}}
ADVISOR = {"type": "advisor_20260301", "name": "advisor"}
ADVISED = [search("s") | {"name": "advisor"}, found("s") | {"type": "advisor_tool_result"}]
MANY = [text(cache_control=FIVE)] * 4

KEPT_AND_BROKEN = {
    "anthropic.size": (ask("a"), ask("a" * (32 * 1024 * 1024))),
    "anthropic.messages": (ask("a"), ask()),
    "anthropic.shape": (ask([text()]), ask([{"text": "a"}])),
    "anthropic.roles": (ask("a"), {"messages": [{"role": "tool", "content": "a"}]}),
    "anthropic.strict": (ask("a"), {"messages": [{"role": "user", "content": "a", "id": "m"}]}),
    "anthropic.foreign-block": (ask([image()]), ask([{"type": "image_url", "image_url": {"url": "x"}}])),
    "anthropic.unknown-block": (ask([text()]), ask([{"type": "hologram"}])),
    "anthropic.unknown-field": (ask([text(citations=None)]), ask([text(id="x")])),
    "anthropic.first-user": (from_assistant([compacted()], "b"), from_assistant("hi", "a")),
    "anthropic.content-nonempty": (ask("a", ""), ask("a", [], "b")),
    "anthropic.system-support": (inside("system"), inside("system", model="claude-haiku-4-5")),
    "anthropic.system-place": (inside("system", 3), inside("system", 2)),
    "anthropic.system-blocks": (
        {"messages": [said(0, "a"), {"role": "system", "content": [text()]}], "model": "claude-opus-5"},
        {"messages": [said(0, "a"), {"role": "system", "content": [image()]}], "model": "claude-opus-5"},
    ),
    "anthropic.pair": (called(use(), use("t2"), results=[result("t2"), result()]), called(use(), results=[text()])),
    "anthropic.orphan": (called(use(), results=[result()]), ask([result("t9")])),
    "anthropic.results-first": (
        called(use(), results=[result(), text()]),
        called(use(), use("t2"), results=[result(), text(), result("t2")]),
    ),
    "anthropic.one-result": (called(use(), results=[result()]), called(use(), results=[result(), result()])),
    "anthropic.unique-ids": (
        ask("x", [use()], [result()], [use("t2")], [result("t2")]),
        ask("x", [use()], [result()], [use()], [result()]),
    ),
    "anthropic.id-pattern": (
        called(use("a_-9"), results=[result("a_-9")]),
        called(use("c|fc_1"), results=[result("c|fc_1")]),
    ),
    "anthropic.name-pattern": (
        called(use(name="a-b_1"), results=[result()]),
        called(use(name="a.b"), results=[result()]),
    ),
    "anthropic.name-length": (
        called(use(name="n" * 64), results=[result()]),
        called(use(name="n" * 65), results=[result()]),
    ),
    "anthropic.input-object": (called(use(), results=[result()]), called(use(input="{}"), results=[result()])),
    "anthropic.block-role": (called(use(), results=[result()]), ask([THINKING, text()])),
    "anthropic.media-role": (ask([image()]), ask("a", [image()], "b")),
    "anthropic.result-blocks": (
        called(use(), results=[result(content=[text(), image()])]),
        called(use(), results=[result(content=[use("t2")])]),
    ),
    "anthropic.error-text": (
        called(use(), results=[result(content=[text()], is_error=True)]),
        called(use(), results=[result(content=[image()], is_error=True)]),
    ),
    "anthropic.server-pair": (ask("q", [search(), found(), text()], "b"), ask("q", [search(), text()], "b")),
    "anthropic.advisor": (
        ask("q", ADVISED, "b", tools=[ADVISOR]),
        ask("q", ADVISED, "b", tools=[TOOL]),
    ),
    "anthropic.tool-reference": (
        called(use(), results=[result(content=[{"type": "tool_reference", "tool_name": "ls"}])], tools=[TOOL]),
        called(use(), results=[result(content=[{"type": "tool_reference", "tool_name": "rm"}])], tools=[TOOL]),
    ),
    "anthropic.text-nonempty": (ask([text()]), called(use(), results=[result(content=[text("")])])),
    "anthropic.text-nonblank": (ask(" a "), ask([text(" \n")])),
    "anthropic.trailing-space": (
        ask("a", "b ", "c", model="claude-sonnet-4-5"),
        ask("a", "b ", model="claude-sonnet-4-5"),
    ),
    "anthropic.prefill": (ask("a", "{", model="claude-sonnet-4-5"), ask("a", "{", model="claude-opus-4-6")),
    "anthropic.thinking-sealed": (
        ask("a", [THINKING | {"thinking": ""}, {"type": "redacted_thinking", "data": "d"}, text()], "b"),
        ask("a", [{"type": "thinking", "thinking": "hm"}, text()], "b"),
    ),
    "anthropic.final-thinking": (ask("a", [THINKING, text()], "b"), ask("a", [text(), THINKING], "b")),
    "anthropic.media-source": (ask([image()]), ask([{"type": "image", "source": {"type": "path", "path": "/x"}}])),
    "anthropic.media-type": (ask([image("image/webp")]), ask([image("image/bmp")])),
    "anthropic.image-count": (
        ask([image()] * 100, model="claude-haiku-4-5"),
        ask([image()] * 101, model="claude-haiku-4-5"),
    ),
    "anthropic.image-size": (ask([png(8000, 8000)]), ask([png(2001, 10)] * 21)),
    "anthropic.max-tokens": (ask("a", max_tokens=0), ask("a", max_tokens=-1)),
    "anthropic.sampling": (ask("a", temperature=0.5), ask("a", temperature=1.5)),
    "anthropic.system-prompt": (ask("a", system=[text()]), ask("a", system=[text("")])),
    "anthropic.tool-shape": (ask("a", tools=[TOOL]), ask("a", tools=[{"name": "ls"}])),
    "anthropic.tool-names": (ask("a", tools=[TOOL]), ask("a", tools=[TOOL, TOOL])),
    "anthropic.tool-choice": (
        ask("a", tools=[TOOL], tool_choice={"type": "tool", "name": "ls"}),
        ask("a", tools=[TOOL], tool_choice={"type": "tool", "name": "rm"}),
    ),
    "anthropic.thinking-mode": (
        ask("a", thinking={"type": "adaptive"}, model="claude-opus-4-7"),
        ask("a", thinking={"type": "enabled", "budget_tokens": 2000}, model="claude-opus-4-7"),
    ),
    "anthropic.thinking-budget": (
        ask("a", **BUDGET),
        ask("a", **BUDGET | {"max_tokens": 2000}),
    ),
    "anthropic.thinking-company": (ask("a", **BUDGET, temperature=1), ask("a", **BUDGET, temperature=0.2)),
    "anthropic.thinking-first": (
        ask("x", [THINKING, use()], [result()], [use("t2")], [result("t2")], **BUDGET),
        ask("x", [use()], [result()], [THINKING, use("t2")], [result("t2")], **BUDGET),
    ),
    "anthropic.thinking-off": (
        ask("x", [THINKING, text()], "b", model="claude-sonnet-4-5"),
        ask("x", [THINKING, text()], model="claude-sonnet-4-5"),
    ),
    "anthropic.binding-beta": (
        ask(
            "a",
            thinking={"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "drop_block"}},
            betas=["thinking-binding-controls-2026-08-01"],
        ),
        ask("a", thinking={"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "drop_block"}}),
    ),
    "anthropic.cache-count": (ask(MANY), ask(MANY, cache_control=FIVE)),
    "anthropic.cache-shape": (ask([text(cache_control=HOUR)]), ask([text(cache_control=FIVE | {"ttl": "1d"})])),
    "anthropic.cache-order": (
        ask([text(cache_control=HOUR), text(cache_control=FIVE)]),
        ask([text(cache_control=HOUR)], system=[text(cache_control=FIVE)]),
    ),
    "anthropic.cache-place": (
        ask("a", [THINKING, text(cache_control=FIVE)], "b"),
        ask("a", [THINKING | {"cache_control": FIVE}, text()], "b"),
    ),
    "anthropic.compaction-content": (
        ask("a", [compacted(content=None), text()], "b"),
        from_assistant([compacted(content="")], "b"),
    ),
    "anthropic.compaction-first": (
        ask("a", [{"type": "compaction", "content": "S"}, text()], "b", **THRESHOLD),
        ask("a", [compacted()], "b", betas=["compact-2026-09-04"]),
    ),
    "anthropic.compaction-single": (
        from_assistant([compacted()], "a", [compacted(content=None), text()], "b"),
        from_assistant([compacted()], "a", [compacted()], "b"),
    ),
    "anthropic.compaction-or-edit": (
        from_assistant([{"type": "compaction", "content": "S"}], "a", **THRESHOLD),
        from_assistant([compacted()], "a", **THRESHOLD),
    ),
    "anthropic.compaction-exclusive": (
        ask("a", "b", "c", **ON_DEMAND, tools=[TOOL], tool_choice={"type": "auto"}),
        ask("a", "b", "c", **ON_DEMAND, stop_sequences=["x"]),
    ),
    "anthropic.compaction-shape": (
        ask("a", **ON_DEMAND),
        ask("a", **ON_DEMAND | {"compaction": {"type": "threshold"}}),
    ),
    "anthropic.compaction-turn": (ask("a", "b", **ON_DEMAND, model="claude-opus-5"), ask("a", [use()], **ON_DEMAND)),
    "anthropic.compaction-something": (
        from_assistant([compacted()], "a", **ON_DEMAND),
        from_assistant([compacted()], **ON_DEMAND),
    ),
    "anthropic.compaction-beta": (ask("a", **ON_DEMAND), ask("a", compaction={"type": "summarize"})),
    "anthropic.edit-betas": (ask("a", **THRESHOLD), ask("a", **THRESHOLD | {"betas": ["other"]})),
    "anthropic.edit-order": (edited(CLEAR_THINKING, CLEAR_RESULTS), edited(CLEAR_RESULTS, CLEAR_THINKING)),
    "anthropic.edit-trigger": (edited(over(50_000)), edited(over(49_999))),
    "anthropic.edit-thinking": (edited(CLEAR_THINKING), edited(CLEAR_THINKING, thinking={"type": "disabled"})),
}

NAMES = [rule.name for rule in RULES if rule.name.startswith("anthropic.")]
LEVELS = {rule.name: rule.level for rule in RULES}


def broken(body, **more):
    return [(one.rule, one.path) for one in validate(body, "anthropic", **more)]


def test_each_rule_has_its_examples():
    """There is a kept and a broken example for every rule, and none for a rule that is gone."""
    assert sorted(KEPT_AND_BROKEN) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_request_that_keeps_the_rule_is_taken(name):
    """The kept example breaks no rule at all."""
    assert broken(KEPT_AND_BROKEN[name][0]) == []


@pytest.mark.parametrize("name", NAMES)
def test_a_request_that_breaks_the_rule_is_found(name):
    """The broken example is found under the rule's name, with its level, a path and one thing to do."""
    hits = [one for one in validate(KEPT_AND_BROKEN[name][1], "anthropic") if one.rule == name]
    assert hits
    assert all(one.level == LEVELS[name] and one.path.startswith("$") for one in hits)


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
def test_findings_name_the_place(body, rule, path):
    """A finding says where the request breaks the rule."""
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
    ],
)
def test_these_are_taken(body):
    """Merging, paused turns, calls made by a server tool, threads and unknown models are not held against a request."""
    assert broken(body) == []


def test_betas_of_the_headers_count():
    """Beta features asked for in the headers are as good as those in the body."""
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
def test_pixels_are_read_from_the_head(head, size):
    """Width and height come from the first bytes of each image format; what cannot be told is nothing."""
    assert pixels(base64.b64encode(head).decode()) == size
