"""Requests in which one thing is odd: what stands beside it stays, and what was done is what is told."""

from __future__ import annotations

import json

import pytest

from holdfast.errors import FormatError
from holdfast.normalize.pairing import SYNTHETIC_RESULT_TEXT
from holdfast.providers.fix.fix_request import fix_request
from holdfast.providers.registry import API_SPECS

MODELS = {"anthropic": "claude-sonnet-4-5", "openai-chat": "gpt-5", "openai-responses": "gpt-5.5", "gemini": "g"}
HI = {"role": "user", "content": "hi"}


def mended(api, **fields):
    """Return a body as it comes back, which mends to itself, and what is told of it."""
    raw = {"model": MODELS[api], **({"max_tokens": 9} if api == "anthropic" else {}), **fields}
    made = fix_request(json.dumps(raw).encode(), api)
    assert made.is_valid
    assert fix_request(made.body, api).fixes == ()
    return json.loads(made.body), [(edit.rule, edit.why, edit.path) for edit in made.fixes]


def answer(*blocks):
    return {"role": "assistant", "content": list(blocks)}


def use(id_):
    return {"type": "tool_use", "id": id_, "name": "ls", "input": {}}


def given(id_, words="ok"):
    return {"type": "tool_result", "tool_use_id": id_, "content": words}


@pytest.mark.parametrize("beside", [[], [{"type": "text", "text": "I see"}]])
def test_a_result_in_an_answer_that_answers_nothing_keeps_its_words(beside):
    """A user tells it, as one that stands in a user's message without its call; what stood beside it stays."""
    body, _ = mended("anthropic", messages=[HI, answer(*beside, given("t1", "REAL")), HI])
    told = {"type": "text", "text": "[Result of a tool call that is not here]"}
    messages = [one for one in body["messages"] if one != HI]
    assert messages == [*([answer(*beside)] if beside else []), {"role": "user", "content": [told, text("REAL")]}]


def text(words):
    return {"type": "text", "text": words}


@pytest.mark.parametrize("key", ["thoughtSignature", "thought_signature"])
@pytest.mark.parametrize("signature", [5, {"a": 1}, ["x"]])
def test_a_signature_that_is_no_text_goes_alone(key, signature):
    """Gemini: the words of a part stay where its signature is none."""
    said = [{"role": "user", "parts": [{"text": "a"}]}, {"role": "model", "parts": [{"text": "KEEP", key: signature}]}]
    body, _ = mended("gemini", contents=[*said, said[0]])
    assert body["contents"] == [said[0], {"role": "model", "parts": [{"text": "KEEP"}]}, said[0]]


@pytest.mark.parametrize("call", [{}, {"call_id": None}, {"call_id": ""}, {"id": "fc_1"}])
@pytest.mark.parametrize("output", [{}, {"call_id": None}])
def test_an_item_of_a_call_without_an_id_is_answered_by_the_one_behind_it(call, output):
    """Responses, as on Chat: a call keeps its arguments and its output, under an id that both have now."""
    asked = {"type": "function_call", "name": "sh", "arguments": '{"cmd":"make"}', **call}
    body, _ = mended(
        "openai-responses", input=[HI, asked, {"type": "function_call_output", "output": "done", **output}]
    )
    _, first, second = body["input"]
    assert (first["arguments"], second["output"]) == ('{"cmd":"make"}', "done")
    assert first["call_id"] == second["call_id"]
    assert first["call_id"]


def test_what_is_told_of_results_is_what_moved():
    """A result that stands where it should is not told as moved, nor its message as one that answers nothing."""
    body, told = mended(
        "anthropic", messages=[HI, answer(use("a"), use("b")), {"role": "user", "content": [given("a")]}]
    )
    assert body["messages"][2]["content"] == [given("a"), {**given("b", SYNTHETIC_RESULT_TEXT), "is_error": True}]
    assert told == [("pairing", "1 result(s) added for calls that had none", "$.messages[2]")]
    late = {"role": "user", "content": [given("a")]}
    _, told = mended("anthropic", messages=[HI, answer(use("a")), HI, late, HI])
    assert told == [("pairing", "1 result(s) moved after their calls", "$.messages[2]")]


def test_a_message_that_goes_is_told_where_its_neighbours_become_one():
    """An empty answer between two users goes: that is told, and that they are one now."""
    raw = json.dumps({"messages": [HI, {"role": "assistant", "content": ""}, HI]}).encode()
    made = fix_request(raw, "anthropic")
    assert [(edit.rule, edit.why) for edit in made.fixes] == [
        ("empty, merge", "it has no content that this API accepts; adjacent messages of the same role are merged")
    ]


def test_a_change_of_tools_goes_with_its_tool():
    """What removes a tool that is not offered goes whole."""
    gone = {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "rm"}}
    tools = [{"name": "ls", "input_schema": {"type": "object"}}]
    body, _ = mended(
        "anthropic", model="claude-opus-5", messages=[HI, {"role": "system", "content": [gone]}], tools=tools
    )
    assert "tool_removal" not in json.dumps(body)


def test_a_developer_is_the_system():
    """Anthropic: what a developer says between two users is told as a system message is, not as the user's words."""
    sent = [
        mended("anthropic", messages=[HI, {"role": role, "content": "never touch prod"}, HI])[0]["messages"]
        for role in ("developer", "system", "System")
    ]
    assert sent[0] == sent[1] == sent[2]
    assert "[System message]" in json.dumps(sent[0])


# -- what cannot be read -----------------------------------------------------------------------------------------------

TOLD = {
    "anthropic": {"role": "user", "content": [given("x", "REAL")]},
    "openai-chat": {"role": "tool", "tool_call_id": "x", "content": "REAL"},
    "openai-responses": {"type": "function_call_output", "call_id": "x", "output": "REAL"},
    "gemini": {"role": "user", "parts": [{"functionResponse": {"name": "f", "response": {"output": "REAL"}}}]},
}
"""A result without its call, as each API has it."""
SPEAKS = {**dict.fromkeys(TOLD, HI), "gemini": {"role": "user", "parts": [{"text": "hi"}]}}
JUNK = [7, None, True, "w", [1], {"x": 1}, {"type": 7}]
KEYS = ["role", "name", "tool_calls", "tool_call_id", "function_call", "refusal", "id", "status", "parts"]


def spoilt(api):
    """Return messages and items of which some field is of a type that it never has."""
    key = "parts" if api == "gemini" else "content"
    words = {"text": "a"} if api == "gemini" else text("a")
    for junk in JUNK:
        yield junk
        yield from ({"role": role, key: junk} for role in ("user", "assistant", "tool", "system"))
        for name in KEYS:
            yield {"role": "user", key: [words], name: junk}
            yield {"role": "assistant", key: [words], name: junk}
            yield {**TOLD[api], name: junk}
        for inner in ("text", "type", "source", "is_error", "tool_use_id", "functionResponse", "functionCall", "id"):
            yield {"role": "user", key: [{**words, inner: junk}]}
            if isinstance(TOLD[api].get(key), list):
                yield {"role": "user", key: [*TOLD[api][key], {**words, inner: junk}]}
                yield {"role": "user", key: [{**TOLD[api][key][0], inner: junk}]}


@pytest.mark.long
@pytest.mark.parametrize("api", TOLD)
def test_an_orphan_beside_what_cannot_be_read_keeps_its_words(api):
    """Whatever is wrong with the message beside it, or in its own, what a tool gave back is still said."""
    field = API_SPECS[api].messages_field
    for odd in spoilt(api):
        for listed in ([SPEAKS[api], TOLD[api], odd], [SPEAKS[api], odd, TOLD[api]], [SPEAKS[api], odd]):
            made = fix_request(json.dumps({"model": MODELS[api], field: listed}).encode(), api)
            assert (b"REAL" in made.body) is ("REAL" in json.dumps(listed)), listed


def test_a_field_that_cannot_be_read_is_told():
    """Chat: a result whose name is no text is told in words, without the name, and that is what is told of it."""
    odd = {"role": "tool", "tool_call_id": "x", "content": "REAL", "name": 7}
    with pytest.raises(FormatError):
        API_SPECS["openai-chat"].decode_message(json.dumps(odd).encode())
    body, edits = mended("openai-chat", messages=[HI, odd])
    orphan = {"type": "text", "text": "[Result of a tool call that is not here]"}
    assert body["messages"] == [HI, {"role": "user", "content": [orphan, text("REAL")]}]
    assert ("form", "name cannot be read: left out", "$.messages[1]") in edits


WORDED = [{"content": "KEEP"}, {"value": "KEEP"}, {"text": {"value": "KEEP"}}, {"content": [text("KEEP")]}]


@pytest.mark.parametrize("worded", WORDED, ids=str)
@pytest.mark.parametrize("kind", ["text", "input_text"])
@pytest.mark.parametrize("api", TOLD)
def test_words_under_another_key_are_words(api, kind, worded):
    """A block of words that has them where another library, or the API of assistants, has them says them here."""
    key = "parts" if api == "gemini" else "content"
    body, edits = mended(api, **{API_SPECS[api].messages_field: [{"role": "user", key: [{"type": kind, **worded}]}]})
    right = {"text": "KEEP"} if api == "gemini" else text("KEEP")
    sent = body[API_SPECS[api].messages_field][0][key]
    assert sent == [right | ({"type": "input_text"} if api == "openai-responses" else {})]
    assert edits[0][1].endswith(f"rewritten in the form of {API_SPECS[api].display_name}")
