"""Tools, options, images and compaction blocks are fixed without losing anything, and the fixes are reported."""

from __future__ import annotations

import base64
import json
import struct

import pytest

from holdfast.providers.common.json.surrogates import find_lone_surrogate_path
from holdfast.providers.fix.fix_request import fix_request
from holdfast.providers.rules.validate import validate_request

MODELS = {"anthropic": "claude-opus-5", "openai-chat": "gpt-5", "openai-responses": "gpt-5.5", "gemini": "g"}
HI = {"role": "user", "content": "hi"}


def fix_fields(api, **fields):
    """Return the fixed body, the reported fixes and whether it is valid; assert that fixing again changes nothing."""
    result = fix_request(json.dumps({"model": MODELS[api], **fields}).encode(), api)
    assert fix_request(result.body, api).fixes == ()
    return json.loads(result.body), [(edit.rule, edit.why, edit.path) for edit in result.fixes], result.is_valid


def build_compaction_block(words):
    return {"type": "compaction", "signature": "s", "content": words}


def build_answer(*blocks):
    return {"role": "assistant", "content": list(blocks)}


# -- a summary that the server made ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("history", "sent"),
    [
        ([HI, build_answer(build_compaction_block("NEW")), HI], [build_answer(build_compaction_block("NEW")), HI, HI]),
        (
            [build_answer(build_compaction_block("OLD")), HI, build_answer(build_compaction_block("NEW")), HI],
            [build_answer(build_compaction_block("NEW")), HI, HI],
        ),
        (
            [HI, build_answer({"type": "text", "text": "a"}, build_compaction_block("NEW")), HI],
            [build_answer(build_compaction_block("NEW")), HI, build_answer({"type": "text", "text": "a"}), HI],
        ),
        (
            [build_answer(build_compaction_block("OLD"), build_compaction_block("NEW")), HI],
            [build_answer(build_compaction_block("NEW")), HI],
        ),
    ],
    ids=["behind a user", "two", "beside words", "two in one"],
)
def test_fix_request_moves_the_newest_compaction_block_to_the_front(history, sent):
    """Of several compaction blocks the newest becomes the first block, and no user text is lost with the others."""
    body, reported, valid = fix_fields("anthropic", max_tokens=9, messages=history, betas=["compact-2026-09-04"])
    assert valid
    assert body["messages"] == sent
    assert all("drop" not in why and "keep" not in why for _, why, _ in reported)


def test_fix_request_keeps_the_compaction_block_over_the_edit():
    """Of two ways to compact, the one that has a summary to show stays."""
    edits = [{"type": "compact_20260112"}]
    body, _, valid = fix_fields(
        "anthropic",
        max_tokens=9,
        messages=[build_answer(build_compaction_block("S")), HI],
        context_management={"edits": edits},
    )
    assert valid
    assert body["messages"] == [build_answer(build_compaction_block("S")), HI]
    assert "context_management" not in body


# -- names of tools ----------------------------------------------------------------------------------------------------


def build_tools(api, *names):
    """Return tools with these names in the form of the API."""
    if api == "gemini":
        return [{"functionDeclarations": [{"name": name} for name in names]}]
    if api == "anthropic":
        return [{"name": name, "input_schema": {"type": "object"}} for name in names]
    functions = [{"name": name, "parameters": {"type": "object", "properties": {}}} for name in names]
    if api == "openai-chat":
        return [{"type": "function", "function": function} for function in functions]
    return [{"type": "function", "strict": False, **function} for function in functions]


CALLS = {
    "anthropic": (
        "messages",
        [
            HI,
            build_answer({"type": "tool_use", "id": "t", "name": "fs.read", "input": {}}),
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "ok"}]},
        ],
        {"tool_choice": {"type": "tool", "name": "fs.read"}, "max_tokens": 9},
    ),
    "openai-chat": (
        "messages",
        [
            HI,
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "t", "type": "function", "function": {"name": "fs.read", "arguments": "{}"}}],
            },
            {"role": "tool", "tool_call_id": "t", "content": "ok"},
        ],
        {"tool_choice": {"type": "function", "function": {"name": "fs.read"}}},
    ),
    "openai-responses": (
        "input",
        [
            HI,
            {"type": "function_call", "call_id": "t", "name": "fs.read", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "t", "output": "ok"},
        ],
        {"tool_choice": {"type": "function", "name": "fs.read"}},
    ),
    "gemini": (
        "contents",
        [
            {"role": "user", "parts": [{"text": "hi"}]},
            {"role": "model", "parts": [{"functionCall": {"name": "fs.read", "args": {}}}]},
            {"role": "user", "parts": [{"functionResponse": {"name": "fs.read", "response": {"output": "ok"}}}]},
        ],
        {"toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["fs.read", "ls"]}}},
    ),
}


@pytest.mark.parametrize("api", list(CALLS))
def test_fix_request_renames_a_tool_everywhere_alike(api):
    """A name that the API refuses is replaced by the same one in tools, calls, results and the choice; no tool is
    lost.
    """
    invalid_name = "fs/read" if api == "gemini" else "fs.read"  # Gemini takes dots
    field, history, more = CALLS[api]
    raw = {field: history, "tools": build_tools(api, "fs.read", "ls"), **more}
    body, reported, valid = fix_fields(api, **json.loads(json.dumps(raw).replace("fs.read", invalid_name)))
    sent = json.dumps(body)
    assert valid
    assert f'"{invalid_name}"' not in sent
    assert body["tools"] == build_tools(api, "fs_read", "ls")
    assert sent.count('"fs_read"') == 3 + (api == "gemini")
    assert [why for _, why, _ in reported if "rename" in why] == []


def test_fix_request_never_renames_a_tool_to_a_taken_name():
    """A tool whose new name is taken keeps its own and remains a finding."""
    tools = build_tools("openai-responses", "fs.read", "fs_read")
    body, _, valid = fix_fields("openai-responses", input=[HI], tools=tools)
    assert not valid
    assert body["tools"] == tools
    body, _, valid = fix_fields(
        "openai-responses", input=[HI], tools=build_tools("openai-responses", "fs.read", "fs/read")
    )
    assert not valid
    assert body["tools"] == build_tools("openai-responses", "fs_read", "fs/read")


# -- arguments ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ['{"path": "a.py"}', '{ "path":"a.py" }'])
def test_fix_request_parses_tool_input_that_is_a_string(text):
    """Joined stream fragments are a string, not an object; the object that the string holds is sent."""
    use = {"type": "tool_use", "id": "t", "name": "read", "input": text}
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "ok"}]}
    body, _, valid = fix_fields("anthropic", max_tokens=9, messages=[HI, build_answer(use), result])
    assert valid
    assert body["messages"][1]["content"] == [{**use, "input": {"path": "a.py"}}]
    body, _, valid = fix_fields("anthropic", max_tokens=9, messages=[HI, build_answer({**use, "input": None}), result])
    assert valid
    assert body["messages"][1]["content"] == [{**use, "input": {}}]


# -- what is reported --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("budget", "limit", "sent"), [(500, 64_000, 1_024), (1_023, 4_000, 1_024), (20_000, 16_000, 14_976)]
)
def test_fix_request_moves_a_thinking_budget_as_little_as_possible(budget, limit, sent):
    """A budget below the minimum becomes the minimum, one above ``max_tokens`` leaves 1,024; the new number is
    reported.
    """
    body, reported, valid = fix_fields(
        "anthropic",
        model="claude-sonnet-4-5",
        max_tokens=limit,
        thinking={"type": "enabled", "budget_tokens": budget},
        messages=[HI],
    )
    assert valid
    assert body["thinking"]["budget_tokens"] == sent
    assert [(rule, path) for rule, _, path in reported] == [("anthropic.thinking-budget", "$.thinking.budget_tokens")]
    assert reported[0][1].endswith(f": set to {sent}")


def test_fix_request_reports_what_was_wrong_and_what_was_done():
    """A fix names what broke the rule and the change, at the place that changed, without advice."""
    mark = {"cache_control": {"type": "ephemeral"}}
    content = [{"type": "text", "text": str(at), **mark} for at in range(5)]
    _, reported, _ = fix_fields("anthropic", max_tokens=9, messages=[{"role": "user", "content": content}])
    assert reported == [
        (
            "anthropic.cache-count",
            "5 cache breakpoints, but 4 are allowed: left out",
            "$.messages[0].content[0].cache_control",
        )
    ]
    _, reported, _ = fix_fields(
        "openai-chat", messages=[HI, {"role": "assistant", "content": "a", "tool_calls": []}, HI]
    )
    assert reported == [("openai-chat.tool-calls", "tool_calls is an empty list: left out", "$.messages[1].tool_calls")]


# -- halves of characters ----------------------------------------------------------------------------------------------


LONE_SURROGATES = [(rb"\ud83d", rb"\ufffd"), (b"\xed\xa0\xbd", b"\xef\xbf\xbd")]


@pytest.mark.parametrize(("half", "sign"), LONE_SURROGATES)
def test_fix_request_replaces_lone_surrogates(half, sign):
    """Half an emoji makes a body unreadable; its path is reported and it becomes U+FFFD."""
    raw = b'{"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "a %s \\ud83d\\ude00"}]}'
    body = raw % half
    found = validate_request(body, "anthropic")
    assert [(finding.rule, finding.path) for finding in found] == [("json", "$")]
    assert "$.messages[0].content" in found[0].message
    result = fix_request(body, "anthropic")
    assert (result.body, result.is_valid) == (raw % sign, True)
    assert [(edit.rule, edit.path) for edit in result.fixes] == [("characters", "$.messages[0].content")]


def test_find_lone_surrogate_path_names_the_object_of_a_key():
    """The path of a lone surrogate in a key is that of the object with the key."""
    assert find_lone_surrogate_path(rb'{"a": [1, {"b": {"\ud83d": 2}}]}') == "$.a[1].b"
    assert find_lone_surrogate_path(rb'{"a": "\ud83d\ude00"}') == ""
    assert find_lone_surrogate_path(rb'{"a": "\ud83d') == ""


# -- no more than must -------------------------------------------------------------------------------------------------


def build_image(pixels):
    """Return an image that is ``pixels`` wide."""
    head = b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", pixels, 9) + bytes(8)
    source = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(head).decode()}
    return {"type": "image", "source": source}


@pytest.mark.parametrize(
    ("shown", "gone"),
    [
        ([3_000] * 20, []),
        ([3_000] * 21, [0]),
        ([100] * 19 + [3_000] * 2, [19]),
        ([100] * 22 + [3_000] * 2, [22, 23]),
        ([3_000] * 20 + [9_000], [20]),
        ([9_000] + [3_000] * 21, [0, 1]),
    ],
    ids=["few", "one too many", "beside small ones", "all the large ones", "one far too large", "both"],
)
def test_fix_request_replaces_as_few_large_images_as_possible(shown, gone):
    """Up to 20 images may be large: a line replaces the oldest surplus ones, and those too large for any request."""
    body = {"model": "claude-sonnet-4-5", "max_tokens": 9}
    body["messages"] = [{"role": "user", "content": [build_image(pixels) for pixels in shown]}]
    result = fix_request(json.dumps(body).encode(), "anthropic")
    assert result.is_valid
    assert [edit.path for edit in result.fixes] == [f"$.messages[0].content[{at}]" for at in gone]
    kinds = [block["type"] for block in json.loads(result.body)["messages"][0]["content"]]
    assert [at for at, kind in enumerate(kinds) if kind == "text"] == gone
