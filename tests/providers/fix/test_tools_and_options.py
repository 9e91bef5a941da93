"""What stands around the history, and what is told of its mending: nothing goes that somebody meant."""

from __future__ import annotations

import base64
import json
import struct

import pytest

from holdfast.providers.common.json.surrogates import find_lone_surrogate_path
from holdfast.providers.fix.fix_request import fix_request
from holdfast.providers.rules.validate import validate_request

MODELS = {"anthropic": "claude-opus-5-5", "openai-chat": "gpt-5", "openai-responses": "gpt-5.5", "gemini": "g"}
HI = {"role": "user", "content": "hi"}


def mended(api, **fields):
    """Return a body as it comes back, which mends to itself, what is told of it, and whether it is valid now."""
    made = fix_request(json.dumps({"model": MODELS[api], **fields}).encode(), api)
    assert fix_request(made.body, api).fixes == ()
    return json.loads(made.body), [(edit.rule, edit.why, edit.path) for edit in made.fixes], made.is_valid


def summary(words):
    return {"type": "compaction", "signature": "s", "content": words}


def answer(*blocks):
    return {"role": "assistant", "content": list(blocks)}


# -- a summary that the server made ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("history", "sent"),
    [
        ([HI, answer(summary("NEW")), HI], [answer(summary("NEW")), HI, HI]),
        (
            [answer(summary("OLD")), HI, answer(summary("NEW")), HI],
            [answer(summary("NEW")), HI, HI],
        ),
        (
            [HI, answer({"type": "text", "text": "a"}, summary("NEW")), HI],
            [answer(summary("NEW")), HI, answer({"type": "text", "text": "a"}), HI],
        ),
        ([answer(summary("OLD"), summary("NEW")), HI], [answer(summary("NEW")), HI]),
    ],
    ids=["behind a user", "two", "beside words", "two in one"],
)
def test_fix_request_moves_the_newest_compaction_block_to_the_front(history, sent):
    """Of several compaction blocks the newest becomes the first block, and no user text is lost with the others."""
    body, told, valid = mended("anthropic", max_tokens=9, messages=history, betas=["compact-2026-09-04"])
    assert valid
    assert body["messages"] == sent
    assert all("drop" not in why and "keep" not in why for _, why, _ in told)


def test_fix_request_keeps_the_compaction_block_over_the_edit():
    """Of two ways to compact, the one that has a summary to show stays."""
    edits = [{"type": "compact_20260112"}]
    body, _, valid = mended(
        "anthropic", max_tokens=9, messages=[answer(summary("S")), HI], context_management={"edits": edits}
    )
    assert valid
    assert body["messages"] == [answer(summary("S")), HI]
    assert "context_management" not in body


# -- names of tools ----------------------------------------------------------------------------------------------------


def tools_of(api, *names):
    """Return tools, the names in them, and the choice of the first of them."""
    if api == "gemini":
        return [{"functionDeclarations": [{"name": name} for name in names]}]
    if api == "anthropic":
        return [{"name": name, "input_schema": {"type": "object"}} for name in names]
    functions = [{"name": name, "parameters": {"type": "object"}} for name in names]
    if api == "openai-chat":
        return [{"type": "function", "function": one} for one in functions]
    return [{"type": "function", "strict": False, **one} for one in functions]


CALLS = {
    "anthropic": (
        "messages",
        [
            HI,
            answer({"type": "tool_use", "id": "t", "name": "fs.read", "input": {}}),
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
    odd = "fs/read" if api == "gemini" else "fs.read"  # Gemini takes dots
    field, history, more = CALLS[api]
    raw = {field: history, "tools": tools_of(api, "fs.read", "ls"), **more}
    body, told, valid = mended(api, **json.loads(json.dumps(raw).replace("fs.read", odd)))
    said = json.dumps(body)
    assert valid
    assert f'"{odd}"' not in said
    assert body["tools"] == tools_of(api, "fs_read", "ls")
    assert said.count('"fs_read"') == 3 + (api == "gemini")
    assert [why for _, why, _ in told if "rename" in why] == []


def test_fix_request_never_renames_a_tool_to_a_taken_name():
    """A tool whose new name is taken keeps its own and remains a finding."""
    tools = tools_of("openai-responses", "fs.read", "fs_read")
    body, _, valid = mended("openai-responses", input=[HI], tools=tools)
    assert not valid
    assert body["tools"] == tools
    body, _, valid = mended("openai-responses", input=[HI], tools=tools_of("openai-responses", "fs.read", "fs/read"))
    assert not valid
    assert body["tools"] == tools_of("openai-responses", "fs_read", "fs/read")


# -- arguments ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("said", ['{"path": "a.py"}', '{ "path":"a.py" }'])
def test_fix_request_parses_tool_input_that_is_a_string(said):
    """Joined stream fragments are a string, not an object; the object that the string holds is sent."""
    use = {"type": "tool_use", "id": "t", "name": "read", "input": said}
    given = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "ok"}]}
    body, _, valid = mended("anthropic", max_tokens=9, messages=[HI, answer(use), given])
    assert valid
    assert body["messages"][1]["content"] == [{**use, "input": {"path": "a.py"}}]
    body, _, valid = mended("anthropic", max_tokens=9, messages=[HI, answer({**use, "input": None}), given])
    assert valid
    assert body["messages"][1]["content"] == [{**use, "input": {}}]


# -- what is told ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "most", "sent"), [(500, 64_000, 1_024), (1_023, 4_000, 1_024), (20_000, 16_000, 14_976)]
)
def test_fix_request_moves_a_thinking_budget_as_little_as_possible(asked, most, sent):
    """A budget below the minimum becomes the minimum, one above ``max_tokens`` leaves 1,024; the new number is
    reported.
    """
    body, told, valid = mended(
        "anthropic",
        model="claude-sonnet-4-5",
        max_tokens=most,
        thinking={"type": "enabled", "budget_tokens": asked},
        messages=[HI],
    )
    assert valid
    assert body["thinking"]["budget_tokens"] == sent
    assert [(rule, path) for rule, _, path in told] == [("anthropic.thinking-budget", "$.thinking.budget_tokens")]
    assert told[0][1].endswith(f": it is {sent} now")


def test_fix_request_reports_what_was_wrong_and_what_was_done():
    """A fix names what broke the rule and the change, at the place that changed, without advice."""
    mark = {"cache_control": {"type": "ephemeral"}}
    content = [{"type": "text", "text": str(at), **mark} for at in range(5)]
    _, told, _ = mended("anthropic", max_tokens=9, messages=[{"role": "user", "content": content}])
    assert told == [
        (
            "anthropic.cache-count",
            "5 cache breakpoints, 4 are allowed: left out",
            "$.messages[0].content[0].cache_control",
        )
    ]
    _, told, _ = mended("openai-chat", messages=[HI, {"role": "assistant", "content": "a", "tool_calls": []}, HI])
    assert told == [("openai-chat.tool-calls", "tool_calls is an empty list: left out", "$.messages[1].tool_calls")]


# -- halves of characters ----------------------------------------------------------------------------------------------


CUT = [(rb"\ud83d", rb"\ufffd"), (b"\xed\xa0\xbd", b"\xef\xbf\xbd")]


@pytest.mark.parametrize(("half", "sign"), CUT)
def test_fix_request_replaces_lone_surrogates(half, sign):
    """Half an emoji makes a body unreadable; its path is reported and it becomes U+FFFD."""
    raw = b'{"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "a %s \\ud83d\\ude00"}]}'
    body = raw % half
    found = validate_request(body, "anthropic")
    assert [(one.rule, one.path) for one in found] == [("json", "$")]
    assert "$.messages[0].content" in found[0].message
    made = fix_request(body, "anthropic")
    assert (made.body, made.is_valid) == (raw % sign, True)
    assert [(edit.rule, edit.path) for edit in made.fixes] == [("characters", "$.messages[0].content")]


def test_find_lone_surrogate_path_names_the_object_of_a_key():
    """The path of a lone surrogate in a key is that of the object with the key."""
    assert find_lone_surrogate_path(rb'{"a": [1, {"b": {"\ud83d": 2}}]}') == "$.a[1].b"
    assert find_lone_surrogate_path(rb'{"a": "\ud83d\ude00"}') == ""
    assert find_lone_surrogate_path(rb'{"a": "\ud83d') == ""


# -- no more than must -------------------------------------------------------------------------------------------------


def image(pixels):
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
    body["messages"] = [{"role": "user", "content": [image(pixels) for pixels in shown]}]
    made = fix_request(json.dumps(body).encode(), "anthropic")
    assert made.is_valid
    assert [edit.path for edit in made.fixes] == [f"$.messages[0].content[{at}]" for at in gone]
    kinds = [block["type"] for block in json.loads(made.body)["messages"][0]["content"]]
    assert [at for at, kind in enumerate(kinds) if kind == "text"] == gone
