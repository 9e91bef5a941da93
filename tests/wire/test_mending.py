"""A request made valid as it stands on the wire: what is around the history, and bytes that are not touched."""

from __future__ import annotations

import json

import pytest

from holdfast.errors import FormatError
from holdfast.model.parts import Opaque, Seal, ToolCall
from holdfast.wire import anthropic
from holdfast.wire.mending import mend

MODELS = {"anthropic": "claude-sonnet-4-5", "openai-chat": "gpt-5", "openai-responses": "gpt-5.5", "gemini": "g"}


def mended(api, **fields):
    """Return a body as it comes back, the rules of its edits, and whether it is valid now."""
    made = mend(json.dumps({"model": MODELS[api], **fields}).encode(), api)
    return json.loads(made.body), [edit.rule for edit in made.edits], made.is_valid


def text(words, **more):
    return {"type": "text", "text": words, **more}


MARK = {"cache_control": {"type": "ephemeral"}}


def test_too_many_breakpoints():
    """Of more than four cache breakpoints so many go that four are left; no word goes with them."""
    content = [text(str(number), **MARK) for number in range(6)]
    body, rules, valid = mended("anthropic", messages=[{"role": "user", "content": content}])
    assert valid
    assert rules == ["anthropic.cache-count"] * 2
    sent = body["messages"][0]["content"]
    assert [block["text"] for block in sent] == [block["text"] for block in content]
    assert sum("cache_control" in block for block in sent) == 4


def test_what_is_mended_leaves_the_rest_its_bytes():
    """A message that is written anew leaves all others, and all other fields, byte for byte."""
    first = b'{ "role":"user" , "content": "\\u4f60" }'
    raw = b'{"model":"claude-sonnet-4-5", "messages":[%s,{"role":"assistant","content":"a","name":"x"},%s]}'
    made = mend(raw % (first, first), "anthropic")
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
            mend(data, "anthropic")


def test_blocks_of_a_servers_tool_carry_their_id():
    """Anthropic: a server's call and result are sealed with its id, a client's call with the id of its caller."""
    use = {"type": "server_tool_use", "id": "s1", "name": "code_execution", "input": {}}
    call = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
    call["caller"] = {"type": "code_execution_20250825", "tool_id": "s1"}
    given = {"type": "code_execution_tool_result", "tool_use_id": "s1", "content": {}}
    parts = anthropic.messages([{"role": "assistant", "content": [use, call, given]}])[0].parts
    assert [type(part) for part in parts] == [Opaque, ToolCall, Opaque]
    assert {part.seal for part in parts} == {Seal("anthropic", "", "s1")}
