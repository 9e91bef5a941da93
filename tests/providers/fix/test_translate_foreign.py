"""Content in another API's form is translated by ``fix`` and explained by ``lint``."""

from __future__ import annotations

import json
from itertools import permutations
from random import Random

import pytest
from hypothesis import given as drawn
from hypothesis import strategies as st
from hypothesis_strategies import conversation_strategy

from holdfast.messages.message import collect_media_in_messages, get_result_text
from holdfast.messages.sized_message import SizedMessage
from holdfast.providers.fix.fix_request import fix_request
from holdfast.providers.fix.lost_text import count_user_texts
from holdfast.providers.registry import API_NAMES, API_SPECS
from holdfast.providers.requests.parsed_request import parse_request
from holdfast.providers.requests.request_body import encode_sized_messages
from holdfast.providers.rules.validate import validate_request

MODELS = {"anthropic": "claude-sonnet-4-5", "openai-chat": "gpt-5", "openai-responses": "gpt-5.5", "gemini": "g"}
PAIRS = list(permutations(API_NAMES, 2))
NAMES = [f"{of} in {to}" for of, to in PAIRS]
DATA = "iVBORw0KGgo="
PICTURES = {
    "anthropic": {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": DATA}},
    "openai-chat": {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{DATA}"}},
    "openai-responses": {"type": "input_image", "image_url": f"data:image/png;base64,{DATA}"},
    "gemini": {"inlineData": {"mimeType": "image/png", "data": DATA}},
}
CALL = {"id": "c1", "type": "function", "function": {"name": "sh", "arguments": '{"a":1}'}}
LISTS = {
    "anthropic": [
        {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "sh", "input": {"a": 1}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "ok"}]},
    ],
    "openai-chat": [
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "ok"},
    ],
    "openai-responses": [
        {"type": "function_call", "call_id": "c1", "name": "sh", "arguments": '{"a":1}'},
        {"type": "function_call_output", "call_id": "c1", "output": "ok"},
    ],
    "gemini": [
        {"role": "model", "parts": [{"functionCall": {"name": "sh", "args": {"a": 1}}}]},
        {"role": "user", "parts": [{"functionResponse": {"name": "sh", "response": {"output": "ok"}}}]},
    ],
}


HI = {"role": "user", "content": "hi"}
THOUGHTS = [
    {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "s"}]},
    {"type": "reasoning", "id": "rs_1", "summary": []},
]
FUNCTION_CALL = {"role": "assistant", "content": None, "function_call": {"name": "g", "arguments": "{}"}}
STRAYS = [
    {"role": "function", "content": "r"},
    {"role": "tool", "tool_call_id": None, "content": [{"x": 1}, "y"]},
    {"type": "custom_tool_call", "call_id": "k", "name": "c", "input": "free"},
    {"role": "user", "content": [{"type": "tool_use", "name": "f"}, {"type": "file", "file": {}}, {"type": "image"}]},
]


def build_request(api, listed):
    return json.dumps({"model": MODELS[api], API_SPECS[api].messages_field: listed}).encode()


def get_content_key(api):
    return "parts" if api == "gemini" else "content"


def parse_messages(api, body):
    return [sized_message.message for sized_message in parse_request(body, api).messages]


def list_exchanges(messages):
    """Return name, arguments and result of each call."""
    results = {result.call_id: get_result_text(result) for message in messages for result in message.results}
    calls = [call for message in messages for call in message.calls]
    return [(call.name, json.loads(call.arguments), results.get(call.id)) for call in calls]


def fix_messages(api, *listed):
    """Return the fixed message list, and the reason of each fix."""
    result = fix_request(build_request(api, list(listed)), api)
    assert result.is_valid
    assert fix_request(result.body, api).body is result.body
    return json.loads(result.body)[API_SPECS[api].messages_field], [edit.why for edit in result.fixes]


# -- laws --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("of", "to"), PAIRS, ids=NAMES)
@drawn(data=st.data())
def test_fix_request_translates_a_foreign_conversation(of, to, data):
    """For messages written by another API, all or some, every picture, call and result text is kept."""
    messages = data.draw(conversation_strategy(turns=3, api=of, thinking=False, system=False))
    apis = [data.draw(st.sampled_from([of, of, to])) for _ in messages]
    written = {
        api: encode_sized_messages(API_SPECS[api], [SizedMessage(message) for message in messages]) for api in (of, to)
    }
    listed = [json.loads(element) for at, api in enumerate(apis) for element in written[api][at]]
    before = [API_SPECS[api].decode_message(element) for at, api in enumerate(apis) for element in written[api][at]]
    result = fix_request(build_request(to, listed), to)
    assert result.is_valid
    after = parse_messages(to, result.body)
    assert sorted(part.source for part in collect_media_in_messages(*after)) == sorted(
        part.source for part in collect_media_in_messages(*before)
    )
    for (name, arguments, output), (name_, arguments_, output_) in zip(
        list_exchanges(before), list_exchanges(after), strict=True
    ):
        assert (name, arguments) == (name_, arguments_)
        assert all(line in output_ for line in output.splitlines())
    assert fix_request(result.body, to).body is result.body


@pytest.mark.parametrize(("of", "to"), PAIRS, ids=NAMES)
def test_fix_request_translates_a_foreign_picture(of, to):
    """A picture in another API's form becomes one in this API's form, beside its text, and that is reported."""
    word = {"text": "see"} if to == "gemini" else {"type": "input_text" if "resp" in to else "text", "text": "see"}
    sent, why = fix_messages(to, {"role": "user", get_content_key(to): [word, PICTURES[of]]})
    assert sent[0][get_content_key(to)] == [word, PICTURES[to]]
    assert len(why) == 1
    assert why[0].startswith("1 × a picture in the form of ")


@pytest.mark.parametrize(("of", "to"), PAIRS, ids=NAMES)
def test_fix_request_translates_foreign_calls_and_results(of, to):
    """A call and its result in another API's form become those of this API and still belong together."""
    go = {"role": "user", get_content_key(to): [{"text": "go"}] if to == "gemini" else "go"}
    sent, why = fix_messages(to, go, *LISTS[of])
    assert sent[0] == go
    assert list_exchanges(parse_messages(to, build_request(to, sent))) == [("sh", {"a": 1}, "ok")]
    assert [reason.partition(" in the form of ")[0] for reason in why[:2]] == [
        "1 × a call of a tool",
        "1 × a result of a tool",
    ]


@pytest.mark.parametrize(("of", "to"), PAIRS, ids=NAMES)
def test_validate_request_names_the_api_of_a_foreign_block(of, to):
    """The finding says what the block is, whose form it has, and what to write instead."""
    shown = validate_request(build_request(to, [{"role": "user", get_content_key(to): [PICTURES[of]]}]), to)
    place = f"$.{API_SPECS[to].messages_field}[0].{get_content_key(to)}[0]"
    assert shown
    for finding in shown:
        assert finding.path.startswith(place)
        assert finding.message.startswith(f"this is a picture in the form of {API_SPECS[of].display_name}; write a")
    go = {"role": "user", get_content_key(to): [{"text": "go"}] if to == "gemini" else "go"}
    found = [finding.message for finding in validate_request(build_request(to, [go, *LISTS[of]]), to)]
    assert (
        any(f"a result of a tool in the form of {API_SPECS[of].display_name}" in message for message in found)
        or of == "gemini"
    )
    assert not any("is null" in message for message in found)


def test_fix_request_takes_linear_time_for_foreign_messages(assert_subquadratic):
    """A long history in another API's form is translated in time proportional to its length."""

    def prepare_fix(count):
        raw = build_request("openai-chat", [HI, *LISTS["anthropic"] * count])
        return lambda: fix_request(raw, "openai-chat").is_valid or pytest.fail("the request is still invalid")

    assert_subquadratic(prepare_fix, 30)


def test_fix_request_takes_linear_time_for_foreign_pictures(assert_subquadratic):
    """Two thousand foreign pictures in one message are reported and translated in proportional time."""

    def prepare_fix(count):
        raw = build_request("gemini", [{"role": "user", "parts": [PICTURES["openai-chat"]] * count}])
        return lambda: fix_request(raw, "gemini").is_valid or pytest.fail("the request is still invalid")

    assert_subquadratic(prepare_fix, 250)


def build_mixture(rng):
    """Return a random sequence of messages, items and bare blocks of all APIs."""
    roles, keys = ["user", "assistant", "tool", "model", "system", "function"], ["content", "parts"]
    shown = [{"role": rng.choice(roles), rng.choice(keys): [picture]} for picture in PICTURES.values()]
    lists = [case for listed in LISTS.values() for case in listed]
    pool = [HI, FUNCTION_CALL, *PICTURES.values(), *shown, *lists, *THOUGHTS, *STRAYS]
    return [rng.choice(pool) for _ in range(rng.randint(1, 8))]


@pytest.mark.parametrize("api", API_NAMES)
def test_fix_request_makes_any_mixture_of_apis_valid(api):
    """Elements of any API in any order are fixed once for all, and no user text is lost."""
    for seed in range(400):
        raw = build_request(api, build_mixture(Random(seed)))
        result = fix_request(raw, api)
        assert result.is_valid, seed
        assert fix_request(result.body, api).body is result.body, seed
        after = "\n".join(count_user_texts(result.body, API_SPECS[api]))
        assert [words for words in count_user_texts(raw, API_SPECS[api]) if words not in after] == [], seed


# -- one thing at a time -----------------------------------------------------------------------------------------------


USE = LISTS["anthropic"][0]


def build_result_message(*content, **more):
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": [*content], **more}]}


def test_fix_request_translates_a_picture_in_a_result():
    """Anthropic: a Chat picture in a result is shown in it, and the result keeps its breakpoint."""
    words, mark = {"type": "text", "text": "w"}, {"cache_control": {"type": "ephemeral"}}
    sent, why = fix_messages("anthropic", HI, USE, build_result_message(words, PICTURES["openai-chat"], **mark), HI)
    assert sent == [HI, USE, build_result_message(words, PICTURES["anthropic"], **mark), HI]
    assert len(why) == 1


def test_fix_request_moves_pictures_of_tool_messages_to_the_user():
    """Chat: results cannot show pictures, so a user message after them does, and a line names each picture."""
    for picture in PICTURES.values():
        call, result = LISTS["openai-chat"]
        sent, why = fix_messages("openai-chat", HI, call, result | {"content": [picture]})
        assert sent[2] == result | {"content": "[Attached image/png]"}
        behind = {"type": "text", "text": "(from the result of sh)"}
        assert sent[3:] == [{"role": "user", "content": [behind, PICTURES["openai-chat"]]}]
        assert "1 × media in a tool result: moved into a user message after it" in why


SOUND = {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}}


@pytest.mark.parametrize(
    ("api", "part", "line"),
    [
        ("anthropic", SOUND, "[Attached audio/wav]"),
        ("anthropic", {"type": "file", "file": {"file_id": "f"}}, "[Attached document]"),
        ("openai-chat", {"type": "image", "source": {"type": "file", "file_id": "f"}}, "[Attached image]"),
    ],
)
def test_fix_request_replaces_what_has_no_form_by_a_line(api, part, line):
    """A line names what this API cannot show, and the fix reports what and why."""
    sent, why = fix_messages(api, {"role": "user", "content": [part]})
    assert line in json.dumps(sent)
    assert f"replaced by '{line}': {API_SPECS[api].display_name} has no other form for it" in why[-1]


def test_fix_request_translates_an_image_url_that_is_a_string():
    """Some libraries write Chat's ``image_url`` as a string; it is a picture all the same."""
    bare = {"type": "image_url", "image_url": PICTURES["openai-chat"]["image_url"]["url"]}
    assert fix_messages("anthropic", {"role": "user", "content": [bare]})[0][0]["content"] == [PICTURES["anthropic"]]


def test_fix_request_keeps_document_text_and_drops_foreign_thinking():
    """A text document becomes its text; another API's thinking is dropped, and that is reported."""
    source = {"type": "text", "media_type": "text/plain", "data": "KEEP"}
    sent, _ = fix_messages("openai-chat", {"role": "user", "content": [{"type": "document", "source": source}]})
    assert sent == [{"role": "user", "content": "KEEP"}]
    sent, why = fix_messages("openai-chat", HI, THOUGHTS[0] | {"tool_calls": [CALL]}, LISTS["openai-chat"][1])
    assert sent == [HI, *LISTS["openai-chat"]]
    assert why == ["1 × thinking: left out, signed by another API: OpenAI Chat Completions has no other form for it"]


def test_fix_request_keeps_signed_thinking_beside_chat_calls():
    """Signed thinking stays if a router put Chat's calls beside it."""
    sent, _ = fix_messages("anthropic", HI, THOUGHTS[0] | {"tool_calls": [CALL]}, LISTS["openai-chat"][1])
    answered = {"role": "assistant", "content": [*THOUGHTS[0]["content"], *USE["content"]]}
    assert sent == [HI, answered, LISTS["anthropic"][1]]


def test_fix_request_pairs_gemini_calls_of_one_name_in_order():
    """Gemini's calls without ids, adjacent or with text in between, are answered in their order."""
    calls = [{"functionCall": {"name": "sh", "args": {"a": number}}} for number in (1, 2)]
    results = [{"functionResponse": {"name": "sh", "response": {"output": word}}} for word in ("one", "two")]
    model_content = {"role": "model", "parts": [calls[0], {"text": "and"}, calls[1]]}
    for api in ("anthropic", "openai-chat", "openai-responses"):
        sent, _ = fix_messages(api, HI, model_content, {"role": "user", "parts": results})
        assert list_exchanges(parse_messages(api, build_request(api, sent))) == [
            ("sh", {"a": 1}, "one"),
            ("sh", {"a": 2}, "two"),
        ]


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
TOOLS = {
    "anthropic": {"name": "sh", "description": "d", "input_schema": SCHEMA},
    "openai-chat": {"type": "function", "function": {"name": "sh", "description": "d", "parameters": SCHEMA}},
    "openai-responses": {"type": "function", "name": "sh", "description": "d", "parameters": SCHEMA, "strict": False},
    "gemini": {"functionDeclarations": [{"name": "sh", "description": "d", "parametersJsonSchema": SCHEMA}]},
}


CHOICES = {
    "anthropic": {"tool_choice": {"type": "tool", "name": "sh"}},
    "openai-chat": {"tool_choice": {"type": "function", "function": {"name": "sh"}}},
    "openai-responses": {"tool_choice": {"type": "function", "name": "sh"}},
    "gemini": {"toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["sh"]}}},
}


@pytest.mark.parametrize("alone", [True, False], ids=["alone", "with a history"])
@pytest.mark.parametrize(("of", "to"), PAIRS, ids=NAMES)
def test_fix_request_translates_foreign_tools(of, to, alone):
    """Tools in another API's form become those of this API, with a foreign history or with messages of this API."""
    go = {"role": "user", get_content_key(to): [{"text": "go"}] if to == "gemini" else "go"}
    body = {**json.loads(build_request(to, [go, *([] if alone else LISTS[of])])), "tools": [TOOLS[of]]}
    result = fix_request(json.dumps(body).encode(), to)
    assert result.is_valid
    assert json.loads(result.body)["tools"] == [TOOLS[to]]
    assert (
        f"1 × a tool in the form of {API_SPECS[of].display_name}: rewritten in the form of {API_SPECS[to].display_name}"
        in [edit.why for edit in result.fixes]
    )
    assert fix_request(result.body, to).body is result.body


@pytest.mark.parametrize(("of", "to"), PAIRS, ids=NAMES)
def test_validate_request_names_the_api_of_a_foreign_tool(of, to):
    """No API accepts a tool in another's form: the finding is at the tool and says whose form it has and what to
    write.
    """
    go = {"role": "user", get_content_key(to): [{"text": "go"}] if to == "gemini" else "go"}
    body = {**json.loads(build_request(to, [go])), "tools": [TOOLS[to], TOOLS[of]]}
    found = validate_request(json.dumps(body).encode(), to)
    assert found
    for finding in found:
        assert finding.level == "error"
        assert finding.path.startswith("$.tools[1]")
        assert finding.message.startswith(f"this is a tool in the form of {API_SPECS[of].display_name}; write an ")


@pytest.mark.parametrize(("of", "to"), PAIRS, ids=NAMES)
def test_fix_request_translates_the_tool_choice_of_foreign_tools(of, to):
    """A foreign choice of one tool beside foreign tools is translated too."""
    go = {"role": "user", get_content_key(to): [{"text": "go"}] if to == "gemini" else "go"}
    result = fix_request(
        json.dumps({**json.loads(build_request(to, [go])), "tools": [TOOLS[of]], **CHOICES[of]}).encode(), to
    )
    assert result.is_valid
    sent = json.loads(result.body)
    assert {name: sent.get(name) for name in CHOICES[to]} == CHOICES[to]
    assert sent.keys() == {*json.loads(build_request(to, [go])), "tools", *CHOICES[to]}


def test_fix_request_reports_tools_only_another_api_has():
    """Gemini's search has no form elsewhere: the functions beside it are translated, and its loss is reported."""
    tool = {**TOOLS["gemini"], "googleSearch": {}}
    result = fix_request(
        json.dumps({**json.loads(build_request("anthropic", [HI])), "tools": [tool]}).encode(), "anthropic"
    )
    assert result.is_valid
    assert result.fixes[-1].why == "the tool googleSearch: left out, only functions of the client can be converted"


# -- results of odd forms ----------------------------------------------------------------------------------------------


def test_fix_request_names_a_function_result_after_the_open_call():
    """Chat: a function result without a name gets that of the one call before it."""
    result = {"role": "function", "content": "REAL"}
    assert fix_messages("openai-chat", HI, FUNCTION_CALL, result)[0] == [HI, FUNCTION_CALL, {**result, "name": "g"}]
    assert fix_messages("openai-chat", HI, FUNCTION_CALL, {**result, "name": ""})[0] == [
        HI,
        FUNCTION_CALL,
        {**result, "name": "g"},
    ]
    sent, _ = fix_messages("openai-chat", HI, LISTS["openai-chat"][0], result)
    assert sent[2] == {"role": "tool", "tool_call_id": "c1", "content": "REAL"}


@pytest.mark.parametrize("before", [[], [FUNCTION_CALL, {"role": "function", "name": "g", "content": "r"}]])
def test_fix_request_turns_an_unmatched_function_result_into_text(before):
    """Chat: without an open call the output of a function becomes user text."""
    sent, _ = fix_messages("openai-chat", HI, *before, {"role": "function", "content": "REAL"})
    assert sent[:-1] == [HI, *before]
    assert sent[-1]["role"] == "user"
    assert "REAL" in json.dumps(sent[-1])


def test_fix_request_keeps_the_words_of_a_function_result_in_parts():
    """The old form has only a string, so parts become one text; a line stands for the bytes of an image."""
    pictures = [
        {"type": "image_url", "image_url": {"url": url}} for url in ("https://x.test/p", "data:;base64," + "A" * 600)
    ]
    parts = [{"type": "text", "text": "a.txt"}, *pictures]
    call = {"role": "assistant", "content": None, "function_call": {"name": "ls", "arguments": "{}"}}
    result = {"role": "function", "name": "ls", "content": parts}
    messages = [{"role": "user", "content": "go"}, call, result, {"role": "user", "content": "on"}]
    fixed = fix_request(json.dumps({"model": "gpt-4.1", "messages": messages}).encode(), "openai-chat")
    assert not fixed.findings
    content = json.loads(fixed.body)["messages"][2]["content"]
    text, address, line = content.split("\n")
    assert (text, json.loads(address)) == ("a.txt", pictures[0])
    assert line == "[image_url left out: a result of the role function has text alone]"
    assert fix_request(fixed.body, "openai-chat").body == fixed.body


def test_fix_request_translates_the_old_function_form_of_chat():
    """Chat's old calls and results without ids become a call and its result in any other API."""
    for api in ("anthropic", "openai-responses", "gemini"):
        sent, _ = fix_messages(api, HI, FUNCTION_CALL, {"role": "function", "name": "g", "content": "REAL"})
        assert list_exchanges(parse_messages(api, build_request(api, sent))) == [("g", {}, "REAL")]


OUTPUTS = [5, True, {"R": 1}, ["a", {"R": 1}], ["a", {"type": "json", "json": 1}], [{"type": "text", "text": 5}]]


@pytest.mark.parametrize("value", OUTPUTS, ids=json.dumps)
@pytest.mark.parametrize("api", ["anthropic", "openai-chat", "openai-responses"])
@pytest.mark.parametrize("of", ["anthropic", "openai-chat", "openai-responses"])
def test_fix_request_keeps_tool_output_of_any_form(of, api, value):
    """A number, an object or a list of anything returned by a tool is kept as JSON text."""
    call, result = json.loads(json.dumps(LISTS[of]))
    holder = result["content"][0] if of == "anthropic" else result
    holder["output" if of == "openai-responses" else "content"] = value
    sent, _ = fix_messages(api, HI, call, result)
    [(_, _, output)] = list_exchanges(parse_messages(api, build_request(api, sent)))
    for element in value if isinstance(value, list) else [value]:
        assert (element if isinstance(element, str) else json.dumps(element)) in output


@pytest.mark.parametrize("to", API_NAMES)
def test_fix_request_moves_a_foreign_result_out_of_an_answer(to):
    """A result inside the answer that called the tool is moved after it, as the tool's."""
    blocks = [
        {"type": "tool_use", "id": "c1", "name": "f", "input": {}},
        {"type": "tool_result", "tool_use_id": "c1", "content": "It is 42."},
    ]
    words = {"text": "go"} if to == "gemini" else None
    go = {"role": "user", get_content_key(to): [words] if words else "go"}
    result = fix_request(build_request(to, [go, {"role": "assistant", "content": blocks}, go]), to)
    assert result.is_valid
    assert [output for _, _, output in list_exchanges(parse_messages(to, result.body))] == ["It is 42."]


@pytest.mark.parametrize("blanks", [(",", ":"), (", ", ": ")])
def test_fix_request_keeps_signed_thinking_byte_for_byte(blanks):
    """A signature covers the exact bytes, however the body is spaced."""
    thought = {"type": "thinking", "thinking": "hm", "signature": "c2ln"}
    answer = {"role": "assistant", "content": [thought, {"functionCall": {"name": "f", "args": {}}}]}
    result_message = {"role": "user", "parts": [{"functionResponse": {"name": "f", "response": {"output": "42"}}}]}
    body = {"model": "claude-sonnet-4-5", "max_tokens": 4_000, "thinking": {"type": "enabled", "budget_tokens": 2_000}}
    listed = [{"role": "user", "content": "go"}, answer, result_message]
    result = fix_request(json.dumps(body | {"messages": listed}, separators=blanks).encode(), "anthropic")
    assert result.is_valid
    sent = json.loads(result.body)
    assert sent["thinking"] == body["thinking"]
    assert sent["messages"][1]["content"][0] == thought
    assert json.dumps(thought, separators=blanks).encode() in result.body
