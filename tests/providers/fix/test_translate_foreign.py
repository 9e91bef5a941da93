"""What stands in another API's form, in the body of this one: carried over by ``fix``, told plainly by ``lint``."""

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
from holdfast.providers.requests.request_body import encode_sized_messages, parse_request
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
ASKS = {"role": "assistant", "content": None, "function_call": {"name": "g", "arguments": "{}"}}
STRAYS = [
    {"role": "function", "content": "r"},
    {"role": "tool", "tool_call_id": None, "content": [{"x": 1}, "y"]},
    {"type": "custom_tool_call", "call_id": "k", "name": "c", "input": "free"},
    {"role": "user", "content": [{"type": "tool_use", "name": "f"}, {"type": "file", "file": {}}, {"type": "image"}]},
]


def request(api, listed):
    return json.dumps({"model": MODELS[api], API_SPECS[api].messages_field: listed}).encode()


def key(api):
    return "parts" if api == "gemini" else "content"


def said(api, body):
    return [slot.message for slot in parse_request(body, api).messages]


def exchanges(messages):
    """Return name, arguments and result of each call, and the ids that no one shares."""
    results = {result.call_id: get_result_text(result) for message in messages for result in message.results}
    calls = [call for message in messages for call in message.calls]
    return [(call.name, json.loads(call.arguments), results.get(call.id)) for call in calls]


def mended(api, *listed):
    """Return the list as it is sent once mended, and why each change was made."""
    made = fix_request(request(api, list(listed)), api)
    assert made.is_valid
    assert fix_request(made.body, api).body is made.body
    return json.loads(made.body)[API_SPECS[api].messages_field], [edit.why for edit in made.fixes]


# -- laws --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("of", "to"), PAIRS, ids=NAMES)
@drawn(data=st.data())
def test_a_conversation_in_the_place_of_anothers(of, to, data):
    """Of messages that another API wrote, all or some, each picture's bytes, each call and its result's words stay."""
    messages = data.draw(conversation_strategy(turns=3, api=of, thinking=False, system=False))
    whose = [data.draw(st.sampled_from([of, of, to])) for _ in messages]
    written = {
        api: encode_sized_messages(API_SPECS[api], [SizedMessage(message) for message in messages]) for api in (of, to)
    }
    listed = [json.loads(one) for at, api in enumerate(whose) for one in written[api][at]]
    before = [API_SPECS[api].decode_message(one) for at, api in enumerate(whose) for one in written[api][at]]
    made = fix_request(request(to, listed), to)
    assert made.is_valid
    after = said(to, made.body)
    assert sorted(part.source for part in collect_media_in_messages(*after)) == sorted(
        part.source for part in collect_media_in_messages(*before)
    )
    for (name, arguments, told), (name_, arguments_, told_) in zip(exchanges(before), exchanges(after), strict=True):
        assert (name, arguments) == (name_, arguments_)
        assert all(line in told_ for line in told.splitlines())
    assert fix_request(made.body, to).body is made.body


@pytest.mark.parametrize(("of", "to"), PAIRS, ids=NAMES)
def test_a_picture_is_shown(of, to):
    """A picture in another API's form is one in this API's, beside the words as they stood; that is what is told."""
    word = {"text": "see"} if to == "gemini" else {"type": "input_text" if "resp" in to else "text", "text": "see"}
    sent, why = mended(to, {"role": "user", key(to): [word, PICTURES[of]]})
    assert sent[0][key(to)] == [word, PICTURES[to]]
    assert len(why) == 1
    assert why[0].startswith("1 × a picture in the form of ")


@pytest.mark.parametrize(("of", "to"), PAIRS, ids=NAMES)
def test_calls_and_results_are_carried_over(of, to):
    """A call and its result in another API's form are those of this API, and still answer each other."""
    go = {"role": "user", key(to): [{"text": "go"}] if to == "gemini" else "go"}
    sent, why = mended(to, go, *LISTS[of])
    assert sent[0] == go
    assert exchanges(said(to, request(to, sent))) == [("sh", {"a": 1}, "ok")]
    assert [one.partition(" in the form of ")[0] for one in why[:2]] == [
        "1 × a call of a tool",
        "1 × a result of a tool",
    ]


@pytest.mark.parametrize(("of", "to"), PAIRS, ids=NAMES)
def test_lint_names_whose_form_it_is(of, to):
    """The finding at a picture, a call and a result says what it is, in whose form, and what stands here for it."""
    shown = validate_request(request(to, [{"role": "user", key(to): [PICTURES[of]]}]), to)
    place = f"$.{API_SPECS[to].messages_field}[0].{key(to)}[0]"
    assert shown
    for finding in shown:
        assert finding.path.startswith(place)
        assert finding.message.startswith(f"this is a picture in the form of {API_SPECS[of].display_name}; write a")
    go = {"role": "user", key(to): [{"text": "go"}] if to == "gemini" else "go"}
    found = [finding.message for finding in validate_request(request(to, [go, *LISTS[of]]), to)]
    assert (
        any(f"a result of a tool in the form of {API_SPECS[of].display_name}" in one for one in found) or of == "gemini"
    )
    assert not any("is null" in one for one in found)


def test_many_foreign_messages_take_linear_time(grows_slowly):
    """A long history in another API's form is carried over in time that grows with its length."""

    def mending(count):
        raw = request("openai-chat", [HI, *LISTS["anthropic"] * count])
        return lambda: fix_request(raw, "openai-chat").is_valid or pytest.fail("it is still wrong")

    grows_slowly(mending, 30)


def test_many_foreign_pictures_take_linear_time(grows_slowly):
    """Two thousand pictures of another API's in one message are told and carried over in time that grows with them."""

    def mending(count):
        raw = request("gemini", [{"role": "user", "parts": [PICTURES["openai-chat"]] * count}])
        return lambda: fix_request(raw, "gemini").is_valid or pytest.fail("it is still wrong")

    grows_slowly(mending, 250)


def mixture(rng):
    """Return some messages, items and bare blocks of all APIs, one behind the other."""
    roles, keys = ["user", "assistant", "tool", "model", "system", "function"], ["content", "parts"]
    shown = [{"role": rng.choice(roles), rng.choice(keys): [picture]} for picture in PICTURES.values()]
    lists = [one for listed in LISTS.values() for one in listed]
    pool = [HI, ASKS, *PICTURES.values(), *shown, *lists, *THOUGHTS, *STRAYS]
    return [rng.choice(pool) for _ in range(rng.randint(1, 8))]


@pytest.mark.parametrize("api", API_NAMES)
def test_any_mixture_becomes_valid(api):
    """Whatever stands behind what, of whichever API: mended once for all, and no word of a user goes."""
    for seed in range(400):
        raw = request(api, mixture(Random(seed)))
        made = fix_request(raw, api)
        assert made.is_valid, seed
        assert fix_request(made.body, api).body is made.body, seed
        after = "\n".join(count_user_texts(made.body, API_SPECS[api]))
        assert [one for one in count_user_texts(raw, API_SPECS[api]) if one not in after] == [], seed


# -- one thing at a time -----------------------------------------------------------------------------------------------


USE = LISTS["anthropic"][0]


def answer(*content, **more):
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": [*content], **more}]}


def test_a_picture_in_a_result():
    """Anthropic: a picture of Chat's in a result is shown in it, and the result keeps its breakpoint."""
    words, mark = {"type": "text", "text": "w"}, {"cache_control": {"type": "ephemeral"}}
    sent, why = mended("anthropic", HI, USE, answer(words, PICTURES["openai-chat"], **mark), HI)
    assert sent == [HI, USE, answer(words, PICTURES["anthropic"], **mark), HI]
    assert len(why) == 1


def test_a_picture_in_a_tool_message():
    """Chat: no result shows a picture, of whichever API; a user shows it behind the results, and a line names it."""
    for picture in PICTURES.values():
        call, result = LISTS["openai-chat"]
        sent, why = mended("openai-chat", HI, call, result | {"content": [picture]})
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
def test_what_has_no_place_is_a_line_that_is_told(api, part, line):
    """Where this API shows no such thing a line names it, and the change says which and why."""
    sent, why = mended(api, {"role": "user", "content": [part]})
    assert line in json.dumps(sent)
    assert f"replaced by '{line}': {API_SPECS[api].display_name} has no other form for it" in why[-1]


def test_a_picture_by_its_bare_address():
    """Chat's picture whose address is no object, as some libraries write it, is a picture all the same."""
    bare = {"type": "image_url", "image_url": PICTURES["openai-chat"]["image_url"]["url"]}
    assert mended("anthropic", {"role": "user", "content": [bare]})[0][0]["content"] == [PICTURES["anthropic"]]


def test_documents_and_thinking():
    """A document of words stays its words; another API's thinking stays behind, and that is told."""
    source = {"type": "text", "media_type": "text/plain", "data": "KEEP"}
    sent, _ = mended("openai-chat", {"role": "user", "content": [{"type": "document", "source": source}]})
    assert sent == [{"role": "user", "content": "KEEP"}]
    sent, why = mended("openai-chat", HI, THOUGHTS[0] | {"tool_calls": [CALL]}, LISTS["openai-chat"][1])
    assert sent == [HI, *LISTS["openai-chat"]]
    assert why == ["1 × thinking: left out, signed by another API: OpenAI Chat Completions has no other form for it"]


def test_calls_beside_blocks():
    """A signed thought stays where a router put Chat's calls beside it."""
    sent, _ = mended("anthropic", HI, THOUGHTS[0] | {"tool_calls": [CALL]}, LISTS["openai-chat"][1])
    answered = {"role": "assistant", "content": [*THOUGHTS[0]["content"], *USE["content"]]}
    assert sent == [HI, answered, LISTS["anthropic"][1]]


def test_calls_of_the_same_name():
    """Gemini's calls without ids, one behind the other and across words, are answered in their order."""
    calls = [{"functionCall": {"name": "sh", "args": {"a": number}}} for number in (1, 2)]
    results = [{"functionResponse": {"name": "sh", "response": {"output": word}}} for word in ("one", "two")]
    asked = {"role": "model", "parts": [calls[0], {"text": "and"}, calls[1]]}
    for api in ("anthropic", "openai-chat", "openai-responses"):
        sent, _ = mended(api, HI, asked, {"role": "user", "parts": results})
        assert exchanges(said(api, request(api, sent))) == [("sh", {"a": 1}, "one"), ("sh", {"a": 2}, "two")]


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
def test_tools_are_offered_in_this_apis_form(of, to, alone):
    """Tools in another API's form, with its history or beside words of this one's, are offered as this one has them."""
    go = {"role": "user", key(to): [{"text": "go"}] if to == "gemini" else "go"}
    body = {**json.loads(request(to, [go, *([] if alone else LISTS[of])])), "tools": [TOOLS[of]]}
    made = fix_request(json.dumps(body).encode(), to)
    assert made.is_valid
    assert json.loads(made.body)["tools"] == [TOOLS[to]]
    assert (
        f"1 × a tool in the form of {API_SPECS[of].display_name}: rewritten in the form of {API_SPECS[to].display_name}"
        in [edit.why for edit in made.fixes]
    )
    assert fix_request(made.body, to).body is made.body


@pytest.mark.parametrize(("of", "to"), PAIRS, ids=NAMES)
def test_lint_names_whose_form_a_tool_is_offered_in(of, to):
    """No API takes a tool in another one's form: the finding stands at the tool and says whose it is, what to write."""
    go = {"role": "user", key(to): [{"text": "go"}] if to == "gemini" else "go"}
    body = {**json.loads(request(to, [go])), "tools": [TOOLS[to], TOOLS[of]]}
    found = validate_request(json.dumps(body).encode(), to)
    assert found
    for finding in found:
        assert finding.level == "error"
        assert finding.path.startswith("$.tools[1]")
        assert finding.message.startswith(f"this is a tool in the form of {API_SPECS[of].display_name}; write an ")


@pytest.mark.parametrize(("of", "to"), PAIRS, ids=NAMES)
def test_the_tool_that_must_be_called_stays_chosen(of, to):
    """Beside tools in another API's form stands its choice of one of them, which is said as this API says it."""
    go = {"role": "user", key(to): [{"text": "go"}] if to == "gemini" else "go"}
    made = fix_request(json.dumps({**json.loads(request(to, [go])), "tools": [TOOLS[of]], **CHOICES[of]}).encode(), to)
    assert made.is_valid
    sent = json.loads(made.body)
    assert {name: sent.get(name) for name in CHOICES[to]} == CHOICES[to]
    assert sent.keys() == {*json.loads(request(to, [go])), "tools", *CHOICES[to]}


def test_a_tool_that_only_another_api_has_is_told():
    """A search of Gemini's beside its functions has no form elsewhere: the functions are carried over, that is told."""
    tool = {**TOOLS["gemini"], "googleSearch": {}}
    made = fix_request(json.dumps({**json.loads(request("anthropic", [HI])), "tools": [tool]}).encode(), "anthropic")
    assert made.is_valid
    assert made.fixes[-1].why == "the tool googleSearch: left out, only functions of the client can be converted"


# -- results of odd forms ----------------------------------------------------------------------------------------------


def test_a_nameless_function_answers_the_open_call():
    """Chat: a result of a function that does not say its name has that of the one call before it."""
    result = {"role": "function", "content": "REAL"}
    assert mended("openai-chat", HI, ASKS, result)[0] == [HI, ASKS, {**result, "name": "g"}]
    assert mended("openai-chat", HI, ASKS, {**result, "name": ""})[0] == [HI, ASKS, {**result, "name": "g"}]
    sent, _ = mended("openai-chat", HI, LISTS["openai-chat"][0], result)
    assert sent[2] == {"role": "tool", "tool_call_id": "c1", "content": "REAL"}


@pytest.mark.parametrize("before", [[], [ASKS, {"role": "function", "name": "g", "content": "r"}]])
def test_a_nameless_function_without_a_call_is_told(before):
    """Chat: where no call waits for it, what a function gave back is told in words."""
    sent, _ = mended("openai-chat", HI, *before, {"role": "function", "content": "REAL"})
    assert sent[:-1] == [HI, *before]
    assert sent[-1]["role"] == "user"
    assert "REAL" in json.dumps(sent[-1])


def test_functions_of_old_elsewhere():
    """Chat's old calls and results, which have no ids, are a call and its result in any other API."""
    for api in ("anthropic", "openai-responses", "gemini"):
        sent, _ = mended(api, HI, ASKS, {"role": "function", "name": "g", "content": "REAL"})
        assert exchanges(said(api, request(api, sent))) == [("g", {}, "REAL")]


GIVEN = [5, True, {"R": 1}, ["a", {"R": 1}], ["a", {"type": "json", "json": 1}], [{"type": "text", "text": 5}]]


@pytest.mark.parametrize("given", GIVEN, ids=json.dumps)
@pytest.mark.parametrize("api", ["anthropic", "openai-chat", "openai-responses"])
@pytest.mark.parametrize("of", ["anthropic", "openai-chat", "openai-responses"])
def test_what_a_tool_gave_back_in_any_form(of, api, given):
    """A number, an object or a list of anything that a tool gave back is told in words, as JSON; nothing of it goes."""
    call, result = json.loads(json.dumps(LISTS[of]))
    holder = result["content"][0] if of == "anthropic" else result
    holder["output" if of == "openai-responses" else "content"] = given
    sent, _ = mended(api, HI, call, result)
    [(_, _, told)] = exchanges(said(api, request(api, sent)))
    for one in given if isinstance(given, list) else [given]:
        assert (one if isinstance(one, str) else json.dumps(one)) in told


@pytest.mark.parametrize("to", API_NAMES)
def test_a_result_that_stands_in_an_answer_keeps_its_words(to):
    """What a tool gave back may stand in the answer that called it: it goes behind that, as the tool's."""
    blocks = [
        {"type": "tool_use", "id": "c1", "name": "f", "input": {}},
        {"type": "tool_result", "tool_use_id": "c1", "content": "It is 42."},
    ]
    words = {"text": "go"} if to == "gemini" else None
    go = {"role": "user", key(to): [words] if words else "go"}
    made = fix_request(request(to, [go, {"role": "assistant", "content": blocks}, go]), to)
    assert made.is_valid
    assert [told for _, _, told in exchanges(said(to, made.body))] == ["It is 42."]


@pytest.mark.parametrize("blanks", [(",", ":"), (", ", ": ")])
def test_thinking_beside_something_foreign_keeps_its_bytes(blanks):
    """A signature is over the very bytes, however the body is spaced."""
    thought = {"type": "thinking", "thinking": "hm", "signature": "c2ln"}
    answer = {"role": "assistant", "content": [thought, {"functionCall": {"name": "f", "args": {}}}]}
    result = {"role": "user", "parts": [{"functionResponse": {"name": "f", "response": {"output": "42"}}}]}
    body = {"model": "claude-sonnet-4-5", "max_tokens": 4_000, "thinking": {"type": "enabled", "budget_tokens": 2_000}}
    listed = [{"role": "user", "content": "go"}, answer, result]
    made = fix_request(json.dumps(body | {"messages": listed}, separators=blanks).encode(), "anthropic")
    assert made.is_valid
    sent = json.loads(made.body)
    assert sent["thinking"] == body["thinking"]
    assert sent["messages"][1]["content"][0] == thought
    assert json.dumps(thought, separators=blanks).encode() in made.body
