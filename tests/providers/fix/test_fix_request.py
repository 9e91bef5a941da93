"""Whole request bodies are fixed: the history, the fields around it, and the bytes that must not change."""

from __future__ import annotations

import gc
import json
import struct
from base64 import b64encode
from random import Random

import pytest
from msgspec import Raw

from holdfast.errors import FormatError, HoldfastError
from holdfast.messages.parts import Opaque, ProviderSignature, ToolCall
from holdfast.providers.common.json.json_path import JsonTree, replace_json_at_paths, set_body_model
from holdfast.providers.fix.fix_request import fix_request
from holdfast.providers.fix.lost_text import count_user_texts
from holdfast.providers.registry import API_NAMES, API_SPECS
from holdfast.providers.requests.message_dicts import decode_messages

MODELS = {"anthropic": "claude-sonnet-4-5", "openai-chat": "gpt-5", "openai-responses": "gpt-5.5", "gemini": "g"}


def fix_fields(api, **fields):
    """Return the fixed body, the rules of the fixes, and whether the body is valid now."""
    result = fix_request(json.dumps({"model": MODELS[api], **fields}).encode(), api)
    return json.loads(result.body), [edit.rule for edit in result.fixes], result.is_valid


def build_text_block(words, **more):
    return {"type": "text", "text": words, **more}


MARK = {"cache_control": {"type": "ephemeral"}}


def test_fix_request_removes_surplus_breakpoints():
    """Of more than four cache breakpoints four are left, and no text is lost."""
    content = [build_text_block(str(number), **MARK) for number in range(6)]
    body, rules, valid = fix_fields("anthropic", messages=[{"role": "user", "content": content}])
    assert valid
    assert rules == ["anthropic.cache-count"]
    sent = body["messages"][0]["content"]
    assert [block["text"] for block in sent] == [block["text"] for block in content]
    assert sum("cache_control" in block for block in sent) == 4


@pytest.mark.parametrize(("width", "number", "left"), [(2_560, 21, 20), (2_000, 21, 21), (9_000, 1, 0)])
def test_fix_request_replaces_surplus_images_by_a_line(width, number, left):
    """Of large images the newest 20 stay and none over 8,000 pixels; a line replaces each of the others."""
    head = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + struct.pack(">II", width, 10)
    source = {"type": "base64", "media_type": "image/png", "data": b64encode(head).decode()}
    shot = {"role": "user", "content": [{"type": "image", "source": source}]}
    body, _, valid = fix_fields(
        "anthropic", max_tokens=9, messages=[shot, {"role": "assistant", "content": "So."}] * number
    )
    kinds = [block["type"] for message in body["messages"][::2] for block in message["content"]]
    assert valid
    assert kinds == ["text"] * (number - left) + ["image"] * left


def test_fix_request_keeps_the_bytes_of_everything_else():
    """A rewritten message leaves all others, and all other fields, byte for byte."""
    first = b'{ "role":"user" , "content": "\\u4f60" }'
    raw = b'{"model":"claude-sonnet-4-5", "messages":[%s,{"role":"assistant","content":"a","name":"x"},%s]}'
    result = fix_request(raw % (first, first), "anthropic")
    assert result.is_valid
    assert result.body.count(first) == 2
    assert b'"name"' not in result.body


def test_fix_request_removes_the_id_of_a_repeated_item():
    """Responses: an item that occurs twice is sent twice, the second time without its id."""
    item = {"type": "message", "id": "msg_1", "role": "assistant", "content": [{"type": "output_text", "text": "a"}]}
    question = {"type": "message", "role": "user", "content": "go"}
    body, rules, valid = fix_fields("openai-responses", input=[question, item, question, item, question])
    assert valid
    assert rules == ["openai-responses.unique-ids"]
    assert body["input"][1] == item
    assert body["input"][3] == {key: value for key, value in item.items() if key != "id"}


def test_fix_request_keeps_outputs_for_calls_on_the_server():
    """Responses: with the history on the server an output needs no call here, also if something else is fixed."""
    output = {"type": "function_call_output", "call_id": "c", "output": "r"}
    body, _, valid = fix_fields("openai-responses", previous_response_id="resp_1", input=[output, {"role": "user"}])
    assert valid
    assert output in body["input"]


def test_fix_request_reorders_context_edits():
    """Context edits in the wrong order are reordered, the one right change for this rule."""
    edits = [{"type": "clear_tool_uses_20250919"}, {"type": "clear_thinking_20251015"}]
    body, rules, valid = fix_fields(
        "anthropic", messages=[{"role": "user", "content": "a"}], context_management={"edits": edits}
    )
    assert valid
    assert rules == ["anthropic.edit-order"]
    assert body["context_management"]["edits"] == edits[::-1]


@pytest.mark.parametrize("role", ["human", "ai", "model", "developer", "tool", 3])
def test_fix_request_maps_unknown_roles(role):
    """A role of another API becomes the one with the same meaning; any other becomes user."""
    messages = [{"role": "user", "content": "go"}, {"role": role, "content": "hello"}, {"role": "user", "content": "x"}]
    body, _, valid = fix_fields("anthropic", messages=messages)
    assert valid
    expected_role = "assistant" if role in ("ai", "model") else "user"
    assert [message["role"] for message in body["messages"] if "hello" in str(message)] == [expected_role]


def test_fix_request_rejects_bodies_that_are_no_request():
    """Bytes that are no JSON object of this shape raise ``FormatError`` with what to do."""
    for data in (b"", b"[", b"3", b'{"messages":[3],"messages":[]}'):
        with pytest.raises(FormatError):
            fix_request(data, "anthropic")


def test_decode_messages_signs_server_tool_blocks_with_their_id():
    """Anthropic: a server's call and result have its id as signature, and a client's call has that of its caller."""
    use = {"type": "server_tool_use", "id": "s1", "name": "code_execution", "input": {}}
    call = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
    call["caller"] = {"type": "code_execution_20250825", "tool_id": "s1"}
    server_result = {"type": "code_execution_tool_result", "tool_use_id": "s1", "content": {}}
    parts = decode_messages("anthropic", [{"role": "assistant", "content": [use, call, server_result]}])[0].parts
    assert [type(part) for part in parts] == [Opaque, ToolCall, Opaque]
    assert {part.signature for part in parts} == {ProviderSignature("anthropic", "", "s1")}


# -- words -------------------------------------------------------------------------------------------------------------


HI = {"role": "user", "content": "hi"}
BODIES_WITH_TEXT = [
    ("gemini", {"contents": [{"role": "user", "content": "KEEP"}]}),
    ("gemini", {"contents": [{"role": "user", "text": "KEEP"}, {"role": "user", "parts": [{"text": "b"}]}]}),
    ("gemini", {"contents": [{"role": "user", "parts": {"text": "KEEP"}}]}),
    ("gemini", {"contents": [{"role": "user", "parts": "KEEP"}]}),
    ("gemini", {"contents": "KEEP"}),
    ("gemini", {"contents": {"role": "user", "parts": [{"text": "KEEP"}]}}),
    ("gemini", {"contents": [{"role": "user", "parts": [{"text": "KEEP", "inlineData": {"data": "eA=="}}]}]}),
    ("openai-chat", {"messages": [{"role": "user", "text": "KEEP"}, HI]}),
    ("openai-chat", {"messages": [{"role": "user", "content": {"type": "text", "text": "KEEP"}}]}),
    ("openai-chat", {"messages": [{"content": "KEEP"}]}),
    ("openai-chat", {"messages": [{"role": "user", "content": None, "parts": [{"text": "KEEP"}]}]}),
    ("anthropic", {"messages": [{"role": "user", "parts": [{"text": "KEEP"}]}, HI]}),
    ("anthropic", {"messages": [{"role": "user", "content": {"type": "text", "text": "KEEP"}}]}),
    ("anthropic", {"messages": [[{"role": "user", "content": "KEEP"}], HI]}),
    ("anthropic", {"messages": [{"role": "user", "content": [["KEEP"]]}]}),
    ("anthropic", {"messages": "KEEP"}),
    ("anthropic", {"messages": [{"role": "user", "content": 5}, {"role": "user", "content": "KEEP"}]}),
    ("openai-responses", {"input": ["b", {"type": "message", "content": "KEEP"}]}),
    ("openai-responses", {"input": {"role": "user", "content": "KEEP"}}),
    ("openai-responses", {"input": [{"type": "text", "text": "KEEP"}]}),
    ("gemini", {"systemInstruction": "KEEP", "contents": [{"parts": [{"text": "b"}]}]}),
    ("gemini", {"system_instruction": {"text": "KEEP"}, "contents": [{"parts": [{"text": "b"}]}]}),
    ("gemini", {"system": "KEEP", "contents": [{"parts": [{"text": "b"}]}]}),
    ("anthropic", {"system": {"type": "text", "text": "KEEP"}, "messages": [HI]}),
    ("anthropic", {"system": ["S", {"type": "input_text", "text": "KEEP"}], "messages": [HI]}),
    ("anthropic", {"systemInstruction": {"parts": [{"text": "KEEP"}]}, "messages": [HI]}),
    ("openai-chat", {"system": "KEEP", "messages": [HI]}),
    ("openai-responses", {"system": "KEEP", "instructions": "S", "input": "hi"}),
]


@pytest.mark.parametrize(("api", "body"), BODIES_WITH_TEXT)
def test_fix_request_keeps_text_under_foreign_keys(api, body):
    """Text of a user or system prompt under another key, in another type or outside a list is rewritten, not lost."""
    fixed, _, valid = fix_fields(api, **body)
    assert valid
    assert "KEEP" in json.dumps(fixed)
    assert fix_request(json.dumps(fixed).encode(), api).fixes == ()


def test_fix_request_keeps_text_under_two_keys():
    """Text beside the content, under a key of another API, is appended; the same text is not repeated."""
    both, _, valid = fix_fields("anthropic", messages=[{"role": "user", "content": "a", "text": "b"}])
    assert valid
    assert both["messages"][0]["content"] == [build_text_block("a"), build_text_block("b")]
    once, _, _ = fix_fields("anthropic", messages=[{"role": "user", "content": "a", "text": "a"}])
    assert once["messages"] == [{"role": "user", "content": "a"}]


@pytest.mark.parametrize("role", ["system", "developer"])
def test_fix_request_moves_leading_system_messages_to_the_prompt(role):
    """Anthropic and Gemini have a field for it: the text is appended there with its breakpoint."""
    lead = [{"role": role, "content": [build_text_block("S", **MARK)]}, {"role": role, "content": "T"}]
    body, rules, valid = fix_fields("anthropic", messages=[*lead, HI])
    assert (valid, rules) == (True, ["system"])
    assert body["system"] == [build_text_block("S", **MARK), build_text_block("T")]
    assert body["messages"] == [HI]
    body, _, valid = fix_fields("anthropic", system="R", messages=[*lead[1:], HI])
    assert valid
    assert body["system"] == [build_text_block("R"), build_text_block("T")]
    contents = [{"role": role, "parts": [{"text": "S"}]}, {"role": "user", "parts": [{"text": "x"}]}]
    body, _, valid = fix_fields("gemini", contents=contents)
    assert valid
    assert body["systemInstruction"] == {"parts": [{"text": "S"}]}
    assert body["contents"] == contents[1:]


def test_fix_request_turns_a_lone_system_message_into_a_user_message():
    """A request needs a message, so a system message that is the only one is not moved."""
    body, _, valid = fix_fields("anthropic", messages=[{"role": "system", "content": "S"}])
    assert valid
    assert body["messages"][0]["role"] == "user"
    assert "S" in str(body["messages"])


# -- results -----------------------------------------------------------------------------------------------------------


NESTED = {"type": "tool_result", "tool_use_id": "x", "content": "R"}
OUTPUTS = [({"R": 1}, '{"R": 1}'), (12, "12"), (True, "true"), ({"type": "text", "text": "R"}, [build_text_block("R")])]


@pytest.mark.parametrize(("output", "expected"), OUTPUTS)
def test_fix_request_writes_a_non_text_result_as_json(output, expected):
    """A result that is neither text nor blocks is not lost: it is written as its JSON."""
    use = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": output}
    turns = [HI, {"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
    body, _, valid = fix_fields("anthropic", messages=turns)
    assert valid
    assert body["messages"][2]["content"] == [{**result, "content": expected}]
    call = {"id": "t", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    tool = {"role": "tool", "tool_call_id": "t", "content": output}
    body, _, valid = fix_fields("openai-chat", messages=[HI, {"role": "assistant", "tool_calls": [call]}, tool])
    assert valid
    assert body["messages"][2] == {**tool, "content": expected}


def test_fix_request_flattens_a_result_inside_a_result():
    """A result nested in another one becomes text there."""
    use = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": [NESTED]}
    turns = [HI, {"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
    body, _, valid = fix_fields("anthropic", messages=turns)
    assert valid
    assert body["messages"][2]["content"] == [{**result, "content": [build_text_block("R")]}]


def test_fix_request_writes_an_object_output_as_json():
    """Responses: the output of a call as an object is written as its JSON; a chat tool message becomes an output."""
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c", "output": {"x": "R"}}
    question = {"role": "user", "content": "go"}
    body, _, valid = fix_fields("openai-responses", input=[question, call, output])
    assert valid
    assert body["input"][2] == {**output, "output": '{"x": "R"}'}
    tool = {"role": "tool", "tool_call_id": "c", "content": "R"}
    body, _, valid = fix_fields("openai-responses", input=[question, call, tool])
    assert valid
    assert body["input"][2] == {**output, "output": "R"}


def test_fix_request_turns_numeric_ids_into_strings():
    """A numeric id of a call and its result becomes the same string in both."""
    use = {"type": "tool_use", "id": 7, "name": "f", "input": {}}
    result = {"type": "tool_result", "tool_use_id": 7, "content": "R"}
    turns = [HI, {"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
    body, _, valid = fix_fields("anthropic", messages=turns)
    assert valid
    assert body["messages"][1]["content"] == [{**use, "id": "7"}]
    assert body["messages"][2]["content"] == [{**result, "tool_use_id": "7"}]
    call = {"id": 7, "type": "function", "function": {"name": "f", "arguments": "{}"}}
    tool = {"role": "tool", "tool_call_id": 7, "content": "R"}
    body, _, valid = fix_fields("openai-chat", messages=[HI, {"role": "assistant", "tool_calls": [call]}, tool])
    assert valid
    assert body["messages"][2] == {**tool, "tool_call_id": "7"}


@pytest.mark.parametrize(("api", "field"), [("openai-chat", "messages"), ("openai-responses", "input")])
def test_fix_request_keeps_text_of_foreign_calls_and_results(api, field):
    """Anthropic's result or call in a user message is written as text, not as the name of an attachment."""
    result = {"type": "tool_result", "tool_use_id": "t", "content": [build_text_block("REAL1")]}
    use = {"type": "tool_use", "id": "t", "name": "search", "input": {"q": "REAL2"}}
    body, _, valid = fix_fields(api, **{field: [{"role": "user", "content": [result, use]}]})
    assert valid
    sent = json.dumps(body)
    assert "REAL1" in sent
    assert "search" in sent
    assert "REAL2" in sent


@pytest.mark.parametrize("field", ["cachedContent", "cached_content"])
def test_fix_request_keeps_responses_to_calls_in_cached_content(field):
    """Gemini: a response to a call in the cached content stays; a field that is null holds no call."""
    response = {"functionResponse": {"name": "f", "response": {"output": "REAL"}}}
    contents = [{"role": "user", "parts": [response]}, {"role": "user", "parts": [{"text": ""}, {"text": "x"}]}]
    assert "REAL" in str(fix_fields("gemini", contents=contents, **{field: "cachedContents/a"})[0])
    assert "functionResponse" not in str(fix_fields("gemini", contents=contents, **{field: None})[0])


# -- around the history ------------------------------------------------------------------------------------------------


def test_fix_request_removes_the_oldest_surplus_breakpoints_at_once():
    """The oldest breakpoints of messages are removed in one step; those on tools and system prompt stay."""
    turns = [{"role": ("user", "assistant")[at % 2], "content": [build_text_block(str(at), **MARK)]} for at in range(7)]
    body, rules, valid = fix_fields("anthropic", system=[build_text_block("S", **MARK)], messages=turns)
    assert (valid, rules) == (True, ["anthropic.cache-count"])
    marked = [at for at, message in enumerate(body["messages"]) if "cache_control" in message["content"][0]]
    assert marked == [4, 5, 6]
    assert "cache_control" in body["system"][0]
    body, _, valid = fix_fields("anthropic", messages=turns[:5], **MARK)
    assert valid
    assert str(body["messages"]).count("cache_control") == 3


def test_fix_request_removes_only_the_unknown_field_of_a_block():
    """Citations and breakpoints of a block stay when an unknown field is removed."""
    cited = {"type": "char_location", "cited_text": "c", "document_index": 0, "start_char_index": 0}
    block = build_text_block("T", citations=[cited], **MARK)
    body, rules, valid = fix_fields(
        "anthropic", messages=[HI, {"role": "assistant", "content": [{**block, "id": "x", "a.b": 1}]}, HI]
    )
    assert (valid, rules) == (True, ["anthropic.unknown-field"])
    assert body["messages"][1]["content"] == [block]


def test_json_tree_parse_path_finds_keys_with_dots():
    """A path whose key has dots or brackets in it leads to that key."""
    body, _, valid = fix_fields("anthropic", messages=[{**HI, "a.b": 1, "c[0].d": 2}])
    assert valid
    assert body["messages"] == [HI]
    tree = JsonTree(Raw(b'{"a": [{"b.c": {"d": 1}, "b": 2}]}'))
    assert tree.parse_path("$.a[0].b.c.d") == ("a", 0, "b.c", "d")
    assert tree.parse_path("$.a[0].b") == ("a", 0, "b")
    assert tree.parse_path("$.x[3].y") == ("x", 3, "y")
    assert tree.get_raw(("a", 0, "b.c", "d")) == Raw(b"1")
    assert tree.parse_path("$") == ()


def test_replace_json_at_paths_changes_many_places_at_once():
    """Places are set and removed together, missing ones stay missing, and the outer of two nested changes wins."""
    raw = Raw(b'{"a": [1, {"b": 2, "c": 3}], "d": 4}')
    new = replace_json_at_paths(raw, {("a", 0): None, ("a", 1, "b"): b"5", ("x",): b"6", ("a", 7): None})
    assert json.loads(new) == {"a": [{"b": 5, "c": 3}], "d": 4}
    assert json.loads(replace_json_at_paths(raw, {("a",): None, ("a", 0): b"9"})) == {"d": 4}
    assert json.loads(replace_json_at_paths(raw, {("d",): None})) == {"a": [1, {"b": 2, "c": 3}]}


def test_fix_request_removes_an_identical_duplicate_tool():
    """An identical second tool is removed; a different one of the same name stays, as only the caller knows which to
    keep.
    """
    tool = {"name": "f", "input_schema": {"type": "object"}}
    body, _, valid = fix_fields("anthropic", messages=[HI], tools=[tool, tool, {**tool, "name": "g"}, tool])
    assert valid
    assert [tool["name"] for tool in body["tools"]] == ["f", "g"]
    body, rules, valid = fix_fields("anthropic", messages=[HI], tools=[tool, {**tool, "description": "other"}])
    assert (valid, rules, len(body["tools"])) == (False, [], 2)
    declared = {"functionDeclarations": [{"name": "f"}, {"name": "f"}]}
    body, _, valid = fix_fields("gemini", contents=[{"parts": [{"text": "a"}]}], tools=[declared])
    assert valid
    assert body["tools"] == [{"functionDeclarations": [{"name": "f"}]}]


def test_fix_request_leaves_too_many_stop_sequences():
    """Nobody knows which stop sequences can be dropped: they stay, and are a finding."""
    config = {"stopSequences": list("abcdef")}
    body, rules, valid = fix_fields("gemini", contents=[{"parts": [{"text": "a"}]}], generationConfig=config)
    assert (body["generationConfig"], rules, valid) == (config, [], False)
    body, rules, valid = fix_fields("openai-chat", messages=[HI], stop=list("abcde"))
    assert (body["stop"], rules, valid) == (list("abcde"), [], False)


def test_fix_request_prefers_conversation_to_previous_response():
    """Responses: of both fields the conversation stays, because it contains the response too."""
    body, rules, valid = fix_fields("openai-responses", input="a", previous_response_id="resp_1", conversation="conv_1")
    assert (valid, rules) == (True, ["openai-responses.history"])
    assert "previous_response_id" not in body
    assert body["conversation"] == "conv_1"


def test_fix_request_uses_the_rules_of_the_given_model():
    """The rules are those of the given model, also if the body names another one."""
    prefill = json.dumps({"model": "claude-sonnet-4-5", "messages": [HI, {"role": "assistant", "content": "a"}]})
    raw = prefill.encode()
    assert fix_request(raw, "anthropic").body is raw
    result = fix_request(raw, "anthropic", model="claude-opus-4-6")
    assert result.is_valid
    assert json.loads(result.body)["model"] == "claude-sonnet-4-5"
    assert json.loads(result.body)["messages"][-1]["role"] == "user"
    assert set_body_model(raw, "claude-sonnet-4-5") is raw
    assert json.loads(set_body_model(raw, "m"))["model"] == "m"
    assert set_body_model(b'{"a": 1}', "m") == b'{"a": 1}'


# -- laws --------------------------------------------------------------------------------------------------------------


def test_fix_request_makes_no_change_that_does_not_help():
    """What stays refused keeps its bytes: nothing changes for a rule that would still be broken."""
    raw = b'{"model": "claude-sonnet-4-5", "max_tokens": "many", "messages": [{"role":"user", "content":"a"}, 3]}'
    result = fix_request(raw, "anthropic")
    assert [edit.rule for edit in result.fixes] == ["anthropic.shape"]
    assert b'"max_tokens": "many"' in result.body
    assert b'{"role":"user", "content":"a"}' in result.body
    alone = b'{"model": "claude-sonnet-4-5", "max_tokens": 3, "messages": [ 3 ]}'
    assert fix_request(alone, "anthropic").body is alone


@pytest.mark.parametrize("extra", [{"id": "x"}, {"cache_control": 3}], ids=["field", "value"])
def test_fix_request_takes_linear_time_for_many_findings(extra, assert_subquadratic):
    """Refused blocks are fixed in time proportional to their number."""

    def prepare_fix(count):
        blocks = [build_text_block("y" * 200, **extra) for _ in range(count)]
        raw = json.dumps({"model": "claude-sonnet-4-5", "messages": [{"role": "user", "content": blocks}]}).encode()
        gc.collect()
        return lambda: fix_request(raw, "anthropic").is_valid or pytest.fail("the request is still invalid")

    assert_subquadratic(prepare_fix, 300)


CALLS = {
    "anthropic": [
        HI,
        {
            "role": "assistant",
            "content": [build_text_block("a"), {"type": "tool_use", "id": "t", "name": "f", "input": {}}],
        },
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "t", "content": "r"}, build_text_block("KEEP")],
        },
    ],
    "openai-chat": [
        {"role": "system", "content": "S"},
        {"role": "user", "content": [build_text_block("KEEP")]},
        {
            "role": "assistant",
            "tool_calls": [{"id": "t", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "t", "content": "r"},
    ],
    "openai-responses": [
        {"role": "user", "content": [{"type": "input_text", "text": "KEEP"}]},
        {"type": "function_call", "call_id": "t", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "t", "output": "r"},
    ],
    "gemini": [
        {"role": "user", "parts": [{"text": "KEEP"}]},
        {"role": "model", "parts": [{"functionCall": {"name": "f", "args": {}}}]},
        {"role": "user", "parts": [{"functionResponse": {"name": "f", "response": {"output": "r"}}}]},
    ],
}


def deform(value, rng):
    """Return a JSON value with random changes of form: lists unwrapped or nested, keys and roles replaced."""
    if isinstance(value, list):
        value = [deform(element, rng) for element in value]
        return value[0] if len(value) == 1 and rng.random() < 0.2 else value
    if not isinstance(value, dict):
        return value
    out = {}
    for key, inner in value.items():
        name = rng.choice(["content", "parts", "text"]) if key in ("content", "parts") and rng.random() < 0.2 else key
        if key in ("role", "type") and rng.random() < 0.1:
            out[name] = rng.choice(["human", "ai", "System", "text", "input_text", "tool_result", 3, None])
        else:
            out[name] = [deform(inner, rng)] if rng.random() < 0.1 else deform(inner, rng)
        if rng.random() < 0.05:
            out["a.b"] = 1
    return out


@pytest.mark.parametrize("api", API_NAMES)
def test_fix_request_is_idempotent_and_keeps_text_of_any_form(api):
    """Whatever form a body has, it is fixed once for all or is a typed error, and no text of a user or system prompt
    is lost.
    """
    spec = API_SPECS[api]
    for seed in range(150):
        body = {"model": MODELS[api], "system": "S", spec.messages_field: CALLS[api]}
        raw = json.dumps(deform(body, Random(seed))).encode()
        try:
            result = fix_request(raw, api)
        except HoldfastError:
            continue
        assert fix_request(result.body, api).body is result.body, seed
        after = "\n".join(count_user_texts(result.body, spec))
        assert [words for words in count_user_texts(raw, spec) if words not in after] == [], seed


@pytest.mark.parametrize(("provider", "model"), [("mistral", "mistral-large-latest"), ("minimax", "MiniMax-M3")])
def test_fix_request_keeps_a_system_message_at_the_start(provider, model):
    """Where a system message may only stand first, the one that does stays the system's, whatever else is changed."""
    system = {"role": "system", "content": "Be brief."}
    call = {"id": "call_1", "type": "function", "function": {"name": "ls", "arguments": "[]"}}
    answer = {"role": "assistant", "content": None, "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": "call_1", "content": "a.py"}
    body = {"model": model, "messages": [system, {"role": "user", "content": "go"}, answer, result]}
    fixed = fix_request(json.dumps(body).encode(), "openai-chat", provider=provider)
    assert fixed.is_valid
    assert fixed.fixes
    assert json.loads(fixed.body)["messages"][0] == system
