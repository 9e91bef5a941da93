"""Requests with one malformed thing: everything beside it stays, and the fixes report what was done."""

from __future__ import annotations

import json

import pytest

from holdfast.errors import FormatError
from holdfast.normalize.result_matching import SYNTHETIC_RESULT_TEXT
from holdfast.providers.fix.fix_request import fix_request
from holdfast.providers.registry import API_SPECS

MODELS = {"anthropic": "claude-sonnet-4-5", "openai-chat": "gpt-5", "openai-responses": "gpt-5.5", "gemini": "g"}
HI = {"role": "user", "content": "hi"}


def fix_fields(api, **fields):
    """Return the fixed body and the reported fixes; assert that fixing it again changes nothing."""
    raw = {"model": MODELS[api], **({"max_tokens": 9} if api == "anthropic" else {}), **fields}
    result = fix_request(json.dumps(raw).encode(), api)
    assert result.is_valid
    assert fix_request(result.body, api).fixes == ()
    return json.loads(result.body), [(edit.rule, edit.why, edit.path) for edit in result.fixes]


def build_answer(*blocks):
    return {"role": "assistant", "content": list(blocks)}


def build_call(id_):
    return {"type": "tool_use", "id": id_, "name": "ls", "input": {}}


def build_result(id_, words="ok"):
    return {"type": "tool_result", "tool_use_id": id_, "content": words}


@pytest.mark.parametrize("neighbours", [[], [{"type": "text", "text": "I see"}]])
def test_fix_request_turns_an_orphan_in_an_answer_into_user_text(neighbours):
    """An orphan result in an answer becomes user text, like one in a user message; its neighbours stay."""
    body, _ = fix_fields("anthropic", messages=[HI, build_answer(*neighbours, build_result("t1", "REAL")), HI])
    label = {"type": "text", "text": "[Result of a tool call that is not here]"}
    messages = [message for message in body["messages"] if message != HI]
    assert messages == [
        *([build_answer(*neighbours)] if neighbours else []),
        {"role": "user", "content": [label, build_text_block("REAL")]},
    ]


def build_text_block(words):
    return {"type": "text", "text": words}


@pytest.mark.parametrize("key", ["thoughtSignature", "thought_signature"])
@pytest.mark.parametrize("signature", [5, {"a": 1}, ["x"]])
def test_fix_request_removes_only_a_malformed_signature(key, signature):
    """Gemini: the text of a part stays if its signature is malformed."""
    contents = [
        {"role": "user", "parts": [{"text": "a"}]},
        {"role": "model", "parts": [{"text": "KEEP", key: signature}]},
    ]
    body, _ = fix_fields("gemini", contents=[*contents, contents[0]])
    assert body["contents"] == [contents[0], {"role": "model", "parts": [{"text": "KEEP"}]}, contents[0]]


@pytest.mark.parametrize("call", [{}, {"call_id": None}, {"call_id": ""}, {"id": "fc_1"}])
@pytest.mark.parametrize("output", [{}, {"call_id": None}])
def test_fix_request_pairs_adjacent_items_without_call_ids(call, output):
    """Responses: a call without an id keeps its arguments and the output after it; both get one id."""
    call_item = {"type": "function_call", "name": "sh", "arguments": '{"cmd":"make"}', **call}
    body, _ = fix_fields(
        "openai-responses", input=[HI, call_item, {"type": "function_call_output", "output": "done", **output}]
    )
    _, first, second = body["input"]
    assert (first["arguments"], second["output"]) == ('{"cmd":"make"}', "done")
    assert first["call_id"] == second["call_id"]
    assert first["call_id"]


def test_fix_request_reports_only_results_that_moved():
    """A result in its right place is not reported as moved, nor its message as an orphan."""
    body, reported = fix_fields(
        "anthropic",
        messages=[HI, build_answer(build_call("a"), build_call("b")), {"role": "user", "content": [build_result("a")]}],
    )
    assert body["messages"][2]["content"] == [
        build_result("a"),
        {**build_result("b", SYNTHETIC_RESULT_TEXT), "is_error": True},
    ]
    assert reported == [("pairing", "1 result(s) added for calls that had none", "$.messages[2]")]
    late = {"role": "user", "content": [build_result("a")]}
    _, reported = fix_fields("anthropic", messages=[HI, build_answer(build_call("a")), HI, late, HI])
    assert reported == [("pairing", "1 result(s) moved after their calls", "$.messages[2]")]


def test_fix_request_reports_a_removed_message_and_a_merge():
    """An empty answer between two user messages is removed; the fix reports that and the merge of its neighbours."""
    raw = json.dumps({"messages": [HI, {"role": "assistant", "content": ""}, HI]}).encode()
    result = fix_request(raw, "anthropic")
    assert [(edit.rule, edit.why) for edit in result.fixes] == [
        ("empty, merge", "it has no content that this API accepts; adjacent messages of the same role are merged")
    ]


def test_fix_request_removes_a_tool_change_for_an_unknown_tool():
    """A removal of a tool that is not offered is dropped as a whole."""
    removal = {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "rm"}}
    tools = [{"name": "ls", "input_schema": {"type": "object"}}]
    body, _ = fix_fields(
        "anthropic", model="claude-opus-5", messages=[HI, {"role": "system", "content": [removal]}], tools=tools
    )
    assert "tool_removal" not in json.dumps(body)


def test_fix_request_treats_a_developer_message_as_system():
    """Anthropic: a developer message between two user messages is written like a system message, not like user text."""
    sent = [
        fix_fields("anthropic", messages=[HI, {"role": role, "content": "never touch prod"}, HI])[0]["messages"]
        for role in ("developer", "system", "System")
    ]
    assert sent[0] == sent[1] == sent[2]
    assert "[System message]" in json.dumps(sent[0])


# -- what cannot be read -----------------------------------------------------------------------------------------------

ORPHANS = {
    "anthropic": {"role": "user", "content": [build_result("x", "REAL")]},
    "openai-chat": {"role": "tool", "tool_call_id": "x", "content": "REAL"},
    "openai-responses": {"type": "function_call_output", "call_id": "x", "output": "REAL"},
    "gemini": {"role": "user", "parts": [{"functionResponse": {"name": "f", "response": {"output": "REAL"}}}]},
}
"""A result without its call in the form of each API."""
GREETINGS = {**dict.fromkeys(ORPHANS, HI), "gemini": {"role": "user", "parts": [{"text": "hi"}]}}
JUNK = [7, None, True, "w", [1], {"x": 1}, {"type": 7}]
KEYS = ["role", "name", "tool_calls", "tool_call_id", "function_call", "refusal", "id", "status", "parts"]


def list_malformed_messages(api):
    """Yield messages and items with a field of a wrong type."""
    key = "parts" if api == "gemini" else "content"
    words = {"text": "a"} if api == "gemini" else build_text_block("a")
    for junk in JUNK:
        yield junk
        yield from ({"role": role, key: junk} for role in ("user", "assistant", "tool", "system"))
        for name in KEYS:
            yield {"role": "user", key: [words], name: junk}
            yield {"role": "assistant", key: [words], name: junk}
            yield {**ORPHANS[api], name: junk}
        for inner in ("text", "type", "source", "is_error", "tool_use_id", "functionResponse", "functionCall", "id"):
            yield {"role": "user", key: [{**words, inner: junk}]}
            if isinstance(ORPHANS[api].get(key), list):
                yield {"role": "user", key: [*ORPHANS[api][key], {**words, inner: junk}]}
                yield {"role": "user", key: [{**ORPHANS[api][key][0], inner: junk}]}


@pytest.mark.long
@pytest.mark.parametrize("api", ORPHANS)
def test_fix_request_keeps_orphan_text_beside_malformed_messages(api):
    """Whatever is wrong with its own message or the one beside it, the output of a tool stays in the request."""
    field = API_SPECS[api].messages_field
    for malformed in list_malformed_messages(api):
        for listed in (
            [GREETINGS[api], ORPHANS[api], malformed],
            [GREETINGS[api], malformed, ORPHANS[api]],
            [GREETINGS[api], malformed],
        ):
            result = fix_request(json.dumps({"model": MODELS[api], field: listed}).encode(), api)
            assert (b"REAL" in result.body) is ("REAL" in json.dumps(listed)), listed


def test_fix_request_reports_a_removed_malformed_field():
    """Chat: a result whose name is no string is written as text without the name, and the fix says so."""
    malformed = {"role": "tool", "tool_call_id": "x", "content": "REAL", "name": 7}
    with pytest.raises(FormatError):
        API_SPECS["openai-chat"].decode_message(json.dumps(malformed).encode())
    body, edits = fix_fields("openai-chat", messages=[HI, malformed])
    orphan = {"type": "text", "text": "[Result of a tool call that is not here]"}
    assert body["messages"] == [HI, {"role": "user", "content": [orphan, build_text_block("REAL")]}]
    assert ("form", "name cannot be read: left out", "$.messages[1]") in edits


OTHER_TEXT_FORMS = [
    {"content": "KEEP"},
    {"value": "KEEP"},
    {"text": {"value": "KEEP"}},
    {"content": [build_text_block("KEEP")]},
]


@pytest.mark.parametrize("text_form", OTHER_TEXT_FORMS, ids=str)
@pytest.mark.parametrize("kind", ["text", "input_text"])
@pytest.mark.parametrize("api", ORPHANS)
def test_fix_request_reads_text_under_keys_of_other_libraries(api, kind, text_form):
    """A text block as another library or the Assistants API writes it becomes a text block of this API."""
    key = "parts" if api == "gemini" else "content"
    body, edits = fix_fields(
        api, **{API_SPECS[api].messages_field: [{"role": "user", key: [{"type": kind, **text_form}]}]}
    )
    right = {"text": "KEEP"} if api == "gemini" else build_text_block("KEEP")
    sent = body[API_SPECS[api].messages_field][0][key]
    assert sent == [right | ({"type": "input_text"} if api == "openai-responses" else {})]
    assert edits[0][1].endswith(f"rewritten in the form of {API_SPECS[api].display_name}")
