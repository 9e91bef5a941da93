"""Results in the wrong place or under the wrong name: the fix loses no real result."""

from __future__ import annotations

import json

import msgspec
import pytest

from holdfast.normalize.result_matching import SYNTHETIC_RESULT_TEXT
from holdfast.providers.fix.fix_request import fix_request
from holdfast.providers.rules.validate import validate_request

FIELDS = {"anthropic": "messages", "openai-chat": "messages", "openai-responses": "input", "gemini": "contents"}
MODELS = {"anthropic": "claude-sonnet-4-5", "openai-chat": "gpt-5", "openai-responses": "gpt-5", "gemini": ""}


def fix_history(api, *history, **more):
    """Return the fixed history; assert that it is valid and that fixing it again changes nothing."""
    body = msgspec.json.encode({"model": MODELS[api], FIELDS[api]: list(history), **more})
    found = fix_request(body, api, model="gemini-2.5-pro" if api == "gemini" else "")
    assert found.is_valid
    again = fix_request(found.body, api, model="gemini-2.5-pro" if api == "gemini" else "")
    assert again.body == found.body
    return json.loads(found.body)[FIELDS[api]]


# -- results in the answer that made the call --------------------------------------------------------------------------


USE = {"type": "tool_use", "id": "t1", "name": "f", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "t1", "content": "REAL"}
SYNTHETIC_RESULT = {"type": "tool_result", "tool_use_id": "t1", "content": SYNTHETIC_RESULT_TEXT, "is_error": True}
TEXT = {"type": "text", "text": "w"}
QUESTION = {"role": "user", "content": "q"}


def build_answer(*blocks):
    return {"role": "assistant", "content": list(blocks)}


def build_user_message(*blocks):
    return {"role": "user", "content": list(blocks)}


@pytest.mark.parametrize(
    ("history", "sent"),
    [
        ([build_answer(USE, RESULT)], [build_answer(USE), build_user_message(RESULT)]),
        ([build_answer(USE, RESULT), QUESTION], [build_answer(USE), build_user_message(RESULT), QUESTION]),
        (
            [build_answer(USE, RESULT, TEXT), QUESTION],
            [build_answer(USE), build_user_message(RESULT), build_answer(TEXT), QUESTION],
        ),
        (
            [build_answer(TEXT, RESULT, USE), QUESTION],
            [build_answer(TEXT), build_answer(USE), build_user_message(RESULT), QUESTION],
        ),
        (
            [build_answer(USE, RESULT), build_user_message(SYNTHETIC_RESULT, TEXT)],
            [build_answer(USE), build_user_message(RESULT), build_user_message(TEXT)],
        ),
    ],
)
def test_fix_request_moves_a_result_out_of_an_answer(history, sent):
    """The real result of a call is sent, although it was in the assistant's message."""
    assert fix_history("anthropic", QUESTION, *history) == [QUESTION, *sent]


def test_fix_request_moves_a_gemini_response_to_a_user_content():
    """Gemini: a response in a content of the model moves to a user content after it."""
    call, response = {"functionCall": {"name": "f", "args": {}}}, {"functionResponse": {"name": "f", "response": {}}}
    question = {"role": "user", "parts": [{"text": "q"}]}
    sent = fix_history("gemini", question, {"role": "model", "parts": [call, response]})
    assert sent == [question, {"role": "model", "parts": [call]}, {"role": "user", "parts": [response]}]


# -- results that name no call -----------------------------------------------------------------------------------------


def build_content(name, *, response=None):
    """Return a content with a call, or with a response if one is given."""
    if response is None:
        return {"role": "model", "parts": [{"functionCall": {"name": name, "args": {}}}]}
    named = {"name": name} if name else {}
    return {"role": "user", "parts": [{"functionResponse": {**named, "response": {"output": response}}}]}


@pytest.mark.parametrize("name", ["", "other", "f.x"])
def test_fix_request_names_the_one_response_after_the_one_call(name):
    """Gemini: a response with a missing or wrong name is the answer if there is one call and one response."""
    question = {"role": "user", "parts": [{"text": "q"}]}
    sent = fix_history("gemini", question, build_content("f"), build_content(name, response="REAL"))
    assert sent == [question, build_content("f"), build_content("f", response="REAL")]


def test_fix_request_does_not_guess_among_several_calls():
    """Gemini: with two calls and one response that names neither, both calls get an error result."""
    question = {"role": "user", "parts": [{"text": "q"}]}
    calls = {"role": "model", "parts": [*build_content("f")["parts"], *build_content("g")["parts"]]}
    sent = fix_history("gemini", question, calls, build_content("other", response="REAL"))
    assert [SYNTHETIC_RESULT_TEXT in json.dumps(part) for part in sent[2]["parts"]] == [True, True]


def build_chat_calls(*ids):
    calls = [{"id": id_, "type": "function", "function": {"name": "f", "arguments": "{}"}} for id_ in ids]
    return {"role": "assistant", "tool_calls": calls}


@pytest.mark.parametrize("named", [{}, {"tool_call_id": ""}])
def test_fix_request_gives_a_nameless_tool_message_the_open_call(named):
    """Chat: right after an answer with one unanswered call, a result without an id belongs to that call."""
    other = {"role": "tool", "tool_call_id": "c2", "content": "REAL2"}
    sent = fix_history(
        "openai-chat", QUESTION, build_chat_calls("c1", "c2"), other, {"role": "tool", "content": "REAL1", **named}
    )
    assert sent == [
        QUESTION,
        build_chat_calls("c1", "c2"),
        other,
        {"role": "tool", "tool_call_id": "c1", "content": "REAL1"},
    ]


def test_fix_request_does_not_match_a_tool_message_after_text():
    """Chat: a result without an id may only answer the answer right before it."""
    words = {"role": "assistant", "content": "w"}
    sent = fix_history(
        "openai-chat", QUESTION, build_chat_calls("c1"), words, {"role": "tool", "content": "REAL"}, QUESTION
    )
    assert sent[2] == {"role": "tool", "tool_call_id": "c1", "content": SYNTHETIC_RESULT_TEXT}


# -- calls that lie elsewhere ------------------------------------------------------------------------------------------


def test_fix_request_keeps_a_response_to_a_cached_call():
    """Gemini: with cachedContent the first content may answer a cached call, whether it is called again later or
    not.
    """
    first = build_content("f", response="CACHED")
    empty = {"role": "user", "parts": []}
    again = [build_content("f"), build_content("f", response="REAL"), {"role": "model", "parts": [{"text": "w"}]}]
    question = {"role": "user", "parts": [{"text": "q"}]}
    assert fix_history("gemini", first, *again, empty, question, cachedContent="cachedContents/x") == [
        first,
        *again,
        question,
    ]
    sent = fix_history("gemini", first, build_content("f"), cachedContent="cachedContents/x")
    assert sent[0] == first
    assert SYNTHETIC_RESULT_TEXT in json.dumps(sent[2])


# -- shells and screens ------------------------------------------------------------------------------------------------


SHELL_CALL = {
    "type": "local_shell_call",
    "id": "lsh_1",
    "call_id": "c1",
    "status": "completed",
    "action": {"type": "exec", "command": ["ls"], "env": {}},
}
OPEN_CALL = {"type": "function_call", "call_id": "z", "name": "f", "arguments": "{}"}


@pytest.mark.parametrize("named", [{"id": "lsh_1"}, {"id": "c1"}, {"id": "lsh_1", "call_id": "c1"}])
def test_fix_request_accepts_either_id_of_a_local_shell_call(named):
    """Responses: both ids are accepted, and a fix elsewhere leaves the real output in place."""
    output = {"type": "local_shell_call_output", "output": "REAL", **named}
    body = {"model": "gpt-5", "input": [QUESTION, SHELL_CALL, output]}
    assert validate_request(body, "openai-responses") == ()
    assert fix_history("openai-responses", QUESTION, SHELL_CALL, output, OPEN_CALL)[:4] == [
        QUESTION,
        SHELL_CALL,
        output,
        OPEN_CALL,
    ]


def test_fix_request_ends_a_made_up_shell_output_with_an_error():
    """Responses: the made-up output of a shell call has exit code 1."""
    call = {"type": "shell_call", "id": "sh_1", "call_id": "c", "action": {"commands": ["ls"]}}
    chunk = fix_history("openai-responses", QUESTION, call)[2]["output"][0]
    assert (chunk["stdout"], chunk["outcome"]) == (SYNTHETIC_RESULT_TEXT, {"type": "exit", "exit_code": 1})


SCREEN = {
    "type": "computer_call",
    "id": "cu_1",
    "call_id": "c",
    "status": "completed",
    "action": {"type": "screenshot"},
    "pending_safety_checks": [],
}
SHOT = {"type": "computer_call_output", "call_id": "c", "output": {"type": "computer_screenshot", "image_url": "u"}}
THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": []}


def test_fix_request_drops_a_computer_call_without_a_screenshot():
    """Responses: no screenshot can be made up, so the call is dropped with the reasoning that belongs only to it."""
    assert fix_history("openai-responses", QUESTION, THOUGHT, SCREEN) == [QUESTION]
    assert fix_history("openai-responses", QUESTION, THOUGHT, SCREEN, QUESTION) == [QUESTION, QUESTION]
    assert fix_history("openai-responses", SHOT, QUESTION, THOUGHT, SCREEN) == [QUESTION]
    assert [item["role"] for item in fix_history("openai-responses", SCREEN)] == ["user"]
    assert fix_history("openai-responses", QUESTION, THOUGHT, SCREEN, SHOT, OPEN_CALL)[:4] == [
        QUESTION,
        THOUGHT,
        SCREEN,
        SHOT,
    ]


# -- calls of a server that wait for the client ------------------------------------------------------------------------


FETCH = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_fetch", "input": {"url": "https://x"}}
FETCHED = {
    "type": "web_fetch_tool_result",
    "tool_use_id": "srvtoolu_1",
    "content": {"type": "web_fetch_tool_result_error", "error_code": "unavailable"},
}


@pytest.mark.parametrize("more", [[], [build_answer(FETCHED, TEXT)]])
def test_fix_request_keeps_a_deferred_server_call(more):
    """Anthropic: a server call that runs after the client has answered stays, whatever else is fixed."""
    history = [QUESTION, build_answer(FETCH, USE), build_user_message(RESULT), *more]
    assert fix_history("anthropic", *history, build_user_message({"type": "text", "text": ""})) == history


def test_fix_request_drops_a_server_call_that_waits_in_vain():
    """Anthropic: text after the results, or an answer without the awaited result, ends the wait."""
    sent = [QUESTION, build_answer(USE), build_user_message(RESULT, TEXT)]
    assert fix_history("anthropic", QUESTION, build_answer(FETCH, USE), build_user_message(RESULT, TEXT)) == sent
    sent = [QUESTION, build_answer(USE), build_user_message(RESULT), build_answer(TEXT), QUESTION]
    assert (
        fix_history(
            "anthropic", QUESTION, build_answer(FETCH, USE), build_user_message(RESULT), build_answer(TEXT), QUESTION
        )
        == sent
    )


def test_fix_request_renames_a_client_call_with_a_server_id():
    """Anthropic: of two calls with one id in a message, the client's call gets another id."""
    client_call = USE | {"id": "srvtoolu_1"}
    sent = fix_history(
        "anthropic",
        QUESTION,
        build_answer(FETCH, FETCHED, client_call),
        build_user_message(RESULT | {"tool_use_id": "srvtoolu_1"}),
    )
    assert sent[1]["content"][:2] == [FETCH, FETCHED]
    assert sent[2]["content"][0] == RESULT | {"tool_use_id": sent[1]["content"][2]["id"]}


ORPHANS = {
    "anthropic": lambda number: build_user_message(RESULT | {"tool_use_id": f"t{number}"}),
    "openai-chat": lambda number: {"role": "tool", "tool_call_id": f"t{number}", "content": "REAL"},
    "openai-responses": lambda number: {"type": "function_call_output", "call_id": f"t{number}", "output": "REAL"},
    "gemini": lambda _: {"role": "user", "parts": [{"functionResponse": {"name": "f", "response": {}}}]},
}


@pytest.mark.parametrize("api", ORPHANS)
def test_fix_request_takes_linear_time_for_orphan_results(api, assert_subquadratic):
    """Results whose calls a client cut away are fixed in time proportional to their number."""

    def prepare_fix(count):
        body = {"model": MODELS[api], FIELDS[api]: [ORPHANS[api](number) for number in range(count)]}
        raw = msgspec.json.encode(body)
        model = "gemini-2.5-pro" if api == "gemini" else ""
        return lambda: fix_request(raw, api, model=model).is_valid or pytest.fail("the request is still invalid")

    assert_subquadratic(prepare_fix, 250)
