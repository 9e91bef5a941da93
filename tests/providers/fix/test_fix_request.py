"""A request made valid as it stands on the wire: what is around the history, and bytes that are not touched."""

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


def mended(api, **fields):
    """Return a body as it comes back, the rules of its edits, and whether it is valid now."""
    made = fix_request(json.dumps({"model": MODELS[api], **fields}).encode(), api)
    return json.loads(made.body), [edit.rule for edit in made.fixes], made.is_valid


def text(words, **more):
    return {"type": "text", "text": words, **more}


MARK = {"cache_control": {"type": "ephemeral"}}


def test_too_many_breakpoints():
    """Of more than four cache breakpoints so many go that four are left; no word goes with them."""
    content = [text(str(number), **MARK) for number in range(6)]
    body, rules, valid = mended("anthropic", messages=[{"role": "user", "content": content}])
    assert valid
    assert rules == ["anthropic.cache-count"]
    sent = body["messages"][0]["content"]
    assert [block["text"] for block in sent] == [block["text"] for block in content]
    assert sum("cache_control" in block for block in sent) == 4


@pytest.mark.parametrize(("width", "number", "left"), [(2_560, 21, 20), (2_000, 21, 21), (9_000, 1, 0)])
def test_images_over_what_is_taken_give_way_to_a_line(width, number, left):
    """Beside a large image 20 go and the oldest do not; none that is over 8,000 pixels. A line stands for each."""
    head = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + struct.pack(">II", width, 10)
    source = {"type": "base64", "media_type": "image/png", "data": b64encode(head).decode()}
    shot = {"role": "user", "content": [{"type": "image", "source": source}]}
    body, _, valid = mended(
        "anthropic", max_tokens=9, messages=[shot, {"role": "assistant", "content": "So."}] * number
    )
    kinds = [block["type"] for message in body["messages"][::2] for block in message["content"]]
    assert valid
    assert kinds == ["text"] * (number - left) + ["image"] * left


def test_what_is_mended_leaves_the_rest_its_bytes():
    """A message that is written anew leaves all others, and all other fields, byte for byte."""
    first = b'{ "role":"user" , "content": "\\u4f60" }'
    raw = b'{"model":"claude-sonnet-4-5", "messages":[%s,{"role":"assistant","content":"a","name":"x"},%s]}'
    made = fix_request(raw % (first, first), "anthropic")
    assert made.is_valid
    assert made.body.count(first) == 2
    assert b'"name"' not in made.body


def test_an_item_that_came_twice_keeps_one_name():
    """Responses: an item that stands twice is sent twice, the second time without the id that names the first."""
    said = {"type": "message", "id": "msg_1", "role": "assistant", "content": [{"type": "output_text", "text": "a"}]}
    asked = {"type": "message", "role": "user", "content": "go"}
    body, rules, valid = mended("openai-responses", input=[asked, said, asked, said, asked])
    assert valid
    assert rules == ["openai-responses.unique-ids"]
    assert body["input"][1] == said
    assert body["input"][3] == {key: value for key, value in said.items() if key != "id"}


def test_a_result_for_a_call_that_the_server_holds():
    """With a history on the server an output needs no call here, also where something else is mended."""
    output = {"type": "function_call_output", "call_id": "c", "output": "r"}
    body, _, valid = mended("openai-responses", previous_response_id="resp_1", input=[output, {"role": "user"}])
    assert valid
    assert output in body["input"]


def test_options_that_have_one_right_mending():
    """A threshold under the least is the least, edits in the wrong order change places, forced tools go."""
    edits = [{"type": "clear_tool_uses_20250919"}, {"type": "clear_thinking_20251015"}]
    body, rules, valid = mended(
        "anthropic", messages=[{"role": "user", "content": "a"}], context_management={"edits": edits}
    )
    assert valid
    assert rules == ["anthropic.edit-order"]
    assert body["context_management"]["edits"] == edits[::-1]


@pytest.mark.parametrize("role", ["human", "ai", "model", "developer", "tool", 3])
def test_a_message_of_an_unknown_role_is_somebodys(role):
    """A role of another API is the one that means the same; one that means nothing is the user's."""
    messages = [{"role": "user", "content": "go"}, {"role": role, "content": "hello"}, {"role": "user", "content": "x"}]
    body, _, valid = mended("anthropic", messages=messages)
    assert valid
    mine = "assistant" if role in ("ai", "model") else "user"
    assert [one["role"] for one in body["messages"] if "hello" in str(one)] == [mine]


def test_what_is_no_request_is_a_typed_error():
    """Bytes that are no JSON object of this shape raise ``FormatError`` with what to do."""
    for data in (b"", b"[", b"3", b'{"messages":[3],"messages":[]}'):
        with pytest.raises(FormatError):
            fix_request(data, "anthropic")


def test_blocks_of_a_servers_tool_carry_their_id():
    """Anthropic: a server's call and result are sealed with its id, a client's call with the id of its caller."""
    use = {"type": "server_tool_use", "id": "s1", "name": "code_execution", "input": {}}
    call = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
    call["caller"] = {"type": "code_execution_20250825", "tool_id": "s1"}
    given = {"type": "code_execution_tool_result", "tool_use_id": "s1", "content": {}}
    parts = decode_messages("anthropic", [{"role": "assistant", "content": [use, call, given]}])[0].parts
    assert [type(part) for part in parts] == [Opaque, ToolCall, Opaque]
    assert {part.signature for part in parts} == {ProviderSignature("anthropic", "", "s1")}


# -- words -------------------------------------------------------------------------------------------------------------


HI = {"role": "user", "content": "hi"}
WORDS = [
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


@pytest.mark.parametrize(("api", "body"), WORDS)
def test_words_in_any_form_are_said_in_the_apis_own(api, body):
    """What a user or a system prompt says under another key, in another type or outside a list stays."""
    said, _, valid = mended(api, **body)
    assert valid
    assert "KEEP" in json.dumps(said)
    assert fix_request(json.dumps(said).encode(), api).fixes == ()


def test_two_words_under_two_keys_are_both_kept():
    """Words beside the content, under a key of another API, are put behind it; the same words are not said twice."""
    both, _, valid = mended("anthropic", messages=[{"role": "user", "content": "a", "text": "b"}])
    assert valid
    assert both["messages"][0]["content"] == [text("a"), text("b")]
    once, _, _ = mended("anthropic", messages=[{"role": "user", "content": "a", "text": "a"}])
    assert once["messages"] == [{"role": "user", "content": "a"}]


@pytest.mark.parametrize("role", ["system", "developer"])
def test_a_system_message_at_the_start_is_the_system_prompt(role):
    """Anthropic and Gemini have a field for it: there it goes, behind what stands there, its breakpoint with it."""
    lead = [{"role": role, "content": [text("S", **MARK)]}, {"role": role, "content": "T"}]
    body, rules, valid = mended("anthropic", messages=[*lead, HI])
    assert (valid, rules) == (True, ["system"])
    assert body["system"] == [text("S", **MARK), text("T")]
    assert body["messages"] == [HI]
    body, _, valid = mended("anthropic", system="R", messages=[*lead[1:], HI])
    assert valid
    assert body["system"] == [text("R"), text("T")]
    contents = [{"role": role, "parts": [{"text": "S"}]}, {"role": "user", "parts": [{"text": "x"}]}]
    body, _, valid = mended("gemini", contents=contents)
    assert valid
    assert body["systemInstruction"] == {"parts": [{"text": "S"}]}
    assert body["contents"] == contents[1:]


def test_a_system_message_alone_is_the_users():
    """Where nothing else is said, a system message is not moved: a request without a message is none."""
    body, _, valid = mended("anthropic", messages=[{"role": "system", "content": "S"}])
    assert valid
    assert body["messages"][0]["role"] == "user"
    assert "S" in str(body["messages"])


# -- results -----------------------------------------------------------------------------------------------------------


NESTED = {"type": "tool_result", "tool_use_id": "x", "content": "R"}
GIVEN = [({"R": 1}, '{"R": 1}'), (12, "12"), (True, "true"), ({"type": "text", "text": "R"}, [text("R")])]


@pytest.mark.parametrize(("given", "said"), GIVEN)
def test_what_a_tool_gave_back_is_told_as_json(given, said):
    """A result that is neither text nor blocks is no lost result: it is told as the JSON it is."""
    use = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": given}
    turns = [HI, {"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
    body, _, valid = mended("anthropic", messages=turns)
    assert valid
    assert body["messages"][2]["content"] == [{**result, "content": said}]
    call = {"id": "t", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    tool = {"role": "tool", "tool_call_id": "t", "content": given}
    body, _, valid = mended("openai-chat", messages=[HI, {"role": "assistant", "tool_calls": [call]}, tool])
    assert valid
    assert body["messages"][2] == {**tool, "content": said}


def test_a_result_inside_a_result_keeps_its_words():
    """A result that stands in another one is said in words there."""
    use = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": [NESTED]}
    turns = [HI, {"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
    body, _, valid = mended("anthropic", messages=turns)
    assert valid
    assert body["messages"][2]["content"] == [{**result, "content": [text("R")]}]


def test_an_output_that_is_an_object_is_told_as_json():
    """Responses: the output of a call as an object is its JSON; a chat's tool message is an output."""
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c", "output": {"x": "R"}}
    asked = {"role": "user", "content": "go"}
    body, _, valid = mended("openai-responses", input=[asked, call, output])
    assert valid
    assert body["input"][2] == {**output, "output": '{"x": "R"}'}
    tool = {"role": "tool", "tool_call_id": "c", "content": "R"}
    body, _, valid = mended("openai-responses", input=[asked, call, tool])
    assert valid
    assert body["input"][2] == {**output, "output": "R"}


def test_ids_that_are_numbers():
    """An id that is a number on both sides is the same string on both."""
    use = {"type": "tool_use", "id": 7, "name": "f", "input": {}}
    result = {"type": "tool_result", "tool_use_id": 7, "content": "R"}
    turns = [HI, {"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
    body, _, valid = mended("anthropic", messages=turns)
    assert valid
    assert body["messages"][1]["content"] == [{**use, "id": "7"}]
    assert body["messages"][2]["content"] == [{**result, "tool_use_id": "7"}]
    call = {"id": 7, "type": "function", "function": {"name": "f", "arguments": "{}"}}
    tool = {"role": "tool", "tool_call_id": 7, "content": "R"}
    body, _, valid = mended("openai-chat", messages=[HI, {"role": "assistant", "tool_calls": [call]}, tool])
    assert valid
    assert body["messages"][2] == {**tool, "tool_call_id": "7"}


@pytest.mark.parametrize(("api", "field"), [("openai-chat", "messages"), ("openai-responses", "input")])
def test_a_result_in_another_apis_form_keeps_its_text(api, field):
    """A result or a call of Anthropic's in a user's message is said in words, not named as an attachment."""
    result = {"type": "tool_result", "tool_use_id": "t", "content": [text("REAL1")]}
    use = {"type": "tool_use", "id": "t", "name": "search", "input": {"q": "REAL2"}}
    body, _, valid = mended(api, **{field: [{"role": "user", "content": [result, use]}]})
    assert valid
    said = json.dumps(body)
    assert "REAL1" in said
    assert "search" in said
    assert "REAL2" in said


@pytest.mark.parametrize("held", ["cachedContent", "cached_content"])
def test_a_cached_content_holds_the_calls_before(held):
    """Gemini: a response to a call that lies in the cached content stays; a field that is null holds nothing."""
    response = {"functionResponse": {"name": "f", "response": {"output": "REAL"}}}
    contents = [{"role": "user", "parts": [response]}, {"role": "user", "parts": [{"text": ""}, {"text": "x"}]}]
    assert "REAL" in str(mended("gemini", contents=contents, **{held: "cachedContents/a"})[0])
    assert "functionResponse" not in str(mended("gemini", contents=contents, **{held: None})[0])


# -- around the history ------------------------------------------------------------------------------------------------


def test_breakpoints_in_many_messages():
    """The surplus goes in one step, the oldest of the messages first; those on the tools and the system stay."""
    turns = [{"role": ("user", "assistant")[at % 2], "content": [text(str(at), **MARK)]} for at in range(7)]
    body, rules, valid = mended("anthropic", system=[text("S", **MARK)], messages=turns)
    assert (valid, rules) == (True, ["anthropic.cache-count"])
    marked = [at for at, message in enumerate(body["messages"]) if "cache_control" in message["content"][0]]
    assert marked == [4, 5, 6]
    assert "cache_control" in body["system"][0]
    body, _, valid = mended("anthropic", messages=turns[:5], **MARK)
    assert valid
    assert str(body["messages"]).count("cache_control") == 3


def test_of_a_block_only_the_unknown_field_goes():
    """Citations and breakpoints of a block stay when a field that no such block has goes."""
    cited = {"type": "char_location", "cited_text": "c", "document_index": 0, "start_char_index": 0}
    block = text("T", citations=[cited], **MARK)
    body, rules, valid = mended(
        "anthropic", messages=[HI, {"role": "assistant", "content": [{**block, "id": "x", "a.b": 1}]}, HI]
    )
    assert (valid, rules) == (True, ["anthropic.unknown-field"])
    assert body["messages"][1]["content"] == [block]


def test_a_key_with_dots_is_found():
    """A path whose key has dots or brackets in it leads to that key."""
    body, _, valid = mended("anthropic", messages=[{**HI, "a.b": 1, "c[0].d": 2}])
    assert valid
    assert body["messages"] == [HI]
    tree = JsonTree(Raw(b'{"a": [{"b.c": {"d": 1}, "b": 2}]}'))
    assert tree.parse_path("$.a[0].b.c.d") == ("a", 0, "b.c", "d")
    assert tree.parse_path("$.a[0].b") == ("a", 0, "b")
    assert tree.parse_path("$.x[3].y") == ("x", 3, "y")
    assert tree.get_raw(("a", 0, "b.c", "d")) == Raw(b"1")
    assert tree.parse_path("$") == ()


def test_many_places_at_once():
    """Places are filled and emptied together, what is not there stays so, and the outer of two changes is made."""
    raw = Raw(b'{"a": [1, {"b": 2, "c": 3}], "d": 4}')
    new = replace_json_at_paths(raw, {("a", 0): None, ("a", 1, "b"): b"5", ("x",): b"6", ("a", 7): None})
    assert json.loads(new) == {"a": [{"b": 5, "c": 3}], "d": 4}
    assert json.loads(replace_json_at_paths(raw, {("a",): None, ("a", 0): b"9"})) == {"d": 4}
    assert json.loads(replace_json_at_paths(raw, {("d",): None})) == {"a": [1, {"b": 2, "c": 3}]}


def test_a_tool_that_stands_twice():
    """The very same tool a second time goes; another one of the same name stays, for somebody to say which."""
    tool = {"name": "f", "input_schema": {"type": "object"}}
    body, _, valid = mended("anthropic", messages=[HI], tools=[tool, tool, {**tool, "name": "g"}, tool])
    assert valid
    assert [one["name"] for one in body["tools"]] == ["f", "g"]
    body, rules, valid = mended("anthropic", messages=[HI], tools=[tool, {**tool, "description": "other"}])
    assert (valid, rules, len(body["tools"])) == (False, [], 2)
    declared = {"functionDeclarations": [{"name": "f"}, {"name": "f"}]}
    body, _, valid = mended("gemini", contents=[{"parts": [{"text": "a"}]}], tools=[declared])
    assert valid
    assert body["tools"] == [{"functionDeclarations": [{"name": "f"}]}]


def test_too_many_stop_sequences_are_told():
    """Nobody knows which of too many stop sequences may go: they stay, and are a finding."""
    config = {"stopSequences": list("abcdef")}
    body, rules, valid = mended("gemini", contents=[{"parts": [{"text": "a"}]}], generationConfig=config)
    assert (body["generationConfig"], rules, valid) == (config, [], False)
    body, rules, valid = mended("openai-chat", messages=[HI], stop=list("abcde"))
    assert (body["stop"], rules, valid) == (list("abcde"), [], False)


def test_a_conversation_holds_what_was_said_before():
    """Responses: of a conversation and a previous response the conversation stays, which holds the response too."""
    body, rules, valid = mended("openai-responses", input="a", previous_response_id="resp_1", conversation="conv_1")
    assert (valid, rules) == (True, ["openai-responses.history"])
    assert "previous_response_id" not in body
    assert body["conversation"] == "conv_1"


def test_the_model_that_is_asked_for_wins():
    """The rules are those of the model that is asked for, also where the body names another one."""
    prefill = json.dumps({"model": "claude-sonnet-4-5", "messages": [HI, {"role": "assistant", "content": "a"}]})
    raw = prefill.encode()
    assert fix_request(raw, "anthropic").body is raw
    made = fix_request(raw, "anthropic", model="claude-opus-4-6")
    assert made.is_valid
    assert json.loads(made.body)["model"] == "claude-sonnet-4-5"
    assert json.loads(made.body)["messages"][-1]["role"] == "user"
    assert set_body_model(raw, "claude-sonnet-4-5") is raw
    assert json.loads(set_body_model(raw, "m"))["model"] == "m"
    assert set_body_model(b'{"a": 1}', "m") == b'{"a": 1}'


# -- laws --------------------------------------------------------------------------------------------------------------


def test_a_change_that_does_not_help_is_not_made():
    """What stays refused keeps its bytes: nothing is changed for a rule that is broken afterwards all the same."""
    raw = b'{"model": "claude-sonnet-4-5", "max_tokens": "many", "messages": [{"role":"user", "content":"a"}, 3]}'
    made = fix_request(raw, "anthropic")
    assert [edit.rule for edit in made.fixes] == ["anthropic.shape"]
    assert b'"max_tokens": "many"' in made.body
    assert b'{"role":"user", "content":"a"}' in made.body
    alone = b'{"model": "claude-sonnet-4-5", "max_tokens": 3, "messages": [ 3 ]}'
    assert fix_request(alone, "anthropic").body is alone


@pytest.mark.parametrize("extra", [{"id": "x"}, {"cache_control": 3}], ids=["field", "value"])
def test_many_findings_take_linear_time(extra, grows_slowly):
    """Blocks that are refused are mended in time that grows with their number."""

    def mending(count):
        blocks = [text("y" * 200, **extra) for _ in range(count)]
        raw = json.dumps({"model": "claude-sonnet-4-5", "messages": [{"role": "user", "content": blocks}]}).encode()
        gc.collect()
        return lambda: fix_request(raw, "anthropic").is_valid or pytest.fail("it is still wrong")

    grows_slowly(mending, 300)


CALLS = {
    "anthropic": [
        HI,
        {"role": "assistant", "content": [text("a"), {"type": "tool_use", "id": "t", "name": "f", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "r"}, text("KEEP")]},
    ],
    "openai-chat": [
        {"role": "system", "content": "S"},
        {"role": "user", "content": [text("KEEP")]},
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


def bent(value, rng):
    """Return a JSON value with some of it in another form: out of its list, in one more, under another key or role."""
    if isinstance(value, list):
        value = [bent(one, rng) for one in value]
        return value[0] if len(value) == 1 and rng.random() < 0.2 else value
    if not isinstance(value, dict):
        return value
    out = {}
    for key, one in value.items():
        name = rng.choice(["content", "parts", "text"]) if key in ("content", "parts") and rng.random() < 0.2 else key
        if key in ("role", "type") and rng.random() < 0.1:
            out[name] = rng.choice(["human", "ai", "System", "text", "input_text", "tool_result", 3, None])
        else:
            out[name] = [bent(one, rng)] if rng.random() < 0.1 else bent(one, rng)
        if rng.random() < 0.05:
            out["a.b"] = 1
    return out


@pytest.mark.parametrize("api", API_NAMES)
def test_any_form_keeps_the_laws(api):
    """Whatever form a body has: mended once for all or a typed error, and no word of a user or a system goes."""
    form = API_SPECS[api]
    for seed in range(150):
        body = {"model": MODELS[api], "system": "S", form.messages_field: CALLS[api]}
        raw = json.dumps(bent(body, Random(seed))).encode()
        try:
            made = fix_request(raw, api)
        except HoldfastError:
            continue
        assert fix_request(made.body, api).body is made.body, seed
        after = "\n".join(count_user_texts(made.body, form))
        assert [said for said in count_user_texts(raw, form) if said not in after] == [], seed
