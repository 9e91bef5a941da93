"""A request of one API as a request of another."""

from __future__ import annotations

import json
from itertools import product

import pytest

from holdfast.errors import FormatError, Unrecognised
from holdfast.model.messages import result_text
from holdfast.wire.apis import APIS, FORMS
from holdfast.wire.convert import convert
from holdfast.wire.lens import open_body

SCHEMA = {"type": "object", "properties": {"p": {"type": "string"}}, "required": ["p"]}
ANTHROPIC = {
    "model": "claude-opus-4-8",
    "system": [{"type": "text", "text": "Be kind."}],
    "max_tokens": 99,
    "stop_sequences": ["END"],
    "temperature": 0.5,
    "top_p": 0.9,
    "stream": True,
    "tools": [{"name": "ls", "description": "Lists.", "input_schema": SCHEMA}],
    "tool_choice": {"type": "any"},
    "messages": [
        {"role": "user", "content": "look"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "ls", "input": {"p": "/"}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "a b"}]},
    ],
}


def said(body, api):
    """Return what a request says: role, words, calls and results of each message; a system prompt is left aside."""
    out = []
    for slot in open_body(json.dumps(body).encode(), api).slots:
        message = slot.message
        calls = [(call.name, json.loads(call.arguments)) for call in message.calls]
        results = [result_text(result) for result in message.results]
        out += [(message.role, message.text, calls, results)] if message.role != "system" else []
    return out


def turned(body, to, model="m", **options):
    raw, notes = convert(json.dumps(body).encode(), to, model, **options)
    return json.loads(raw), notes


@pytest.mark.parametrize(("first", "second"), list(product(APIS, APIS)))
def test_from_any_api_to_any(first, second):
    """Words, calls, results, tools, choice, limit and sampling arrive over any two APIs, and come back to the first."""
    body, _ = turned(turned(ANTHROPIC, first)[0], second)
    assert said(body, second) == said(ANTHROPIC, "anthropic")
    again, _ = turned(body, "anthropic")
    lost = {"stop_sequences"} if "openai-responses" in (first, second) else set()
    lost |= {"stream"} if "gemini" in (first, second) else set()
    assert {key: again.get(key) for key in ANTHROPIC.keys() - lost} == {
        key: value for key, value in (ANTHROPIC | {"model": again["model"]}).items() if key not in lost
    }


def test_the_forms_of_each_api():
    """Tools and options stand in each API where it has them."""
    chat, _ = turned(ANTHROPIC, "openai-chat")
    assert chat["tools"] == [
        {"type": "function", "function": {"name": "ls", "description": "Lists.", "parameters": SCHEMA}}
    ]
    assert (chat["tool_choice"], chat["max_completion_tokens"], chat["stop"]) == ("required", 99, ["END"])
    assert chat["messages"][0] == {"role": "system", "content": "Be kind."}
    responses, notes = turned(ANTHROPIC, "openai-responses")
    assert responses["tools"][0] == {
        "type": "function",
        "name": "ls",
        "description": "Lists.",
        "parameters": SCHEMA,
        "strict": False,
    }
    assert responses["max_output_tokens"] == 99
    assert notes == ("stop has no form there",)
    gemini, notes = turned(ANTHROPIC, "gemini")
    assert gemini["systemInstruction"] == {"parts": [{"text": "Be kind."}]}
    assert gemini["tools"] == [
        {"functionDeclarations": [{"name": "ls", "description": "Lists.", "parametersJsonSchema": SCHEMA}]}
    ]
    assert gemini["toolConfig"] == {"functionCallingConfig": {"mode": "ANY"}}
    assert gemini["generationConfig"] == {
        "maxOutputTokens": 99,
        "stopSequences": ["END"],
        "temperature": 0.5,
        "topP": 0.9,
    }
    assert "model" not in gemini


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize(
    "choice",
    [
        {"type": "none"},
        {"type": "auto"},
        {"type": "any"},
        {"type": "tool", "name": "ls"},
    ],
)
def test_the_choice_of_tools(api, choice):
    """Which tool may be called is asked for in each API's words."""
    there, _ = turned(ANTHROPIC | {"tool_choice": choice}, api)
    assert turned(there, "anthropic")[0]["tool_choice"] == choice


def test_parallel_calls():
    """One call at a time is asked for on three APIs; Gemini has no word for it."""
    body = ANTHROPIC | {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}
    assert turned(body, "openai-chat")[0]["parallel_tool_calls"] is False
    assert turned(turned(body, "openai-responses")[0], "anthropic")[0]["tool_choice"] == body["tool_choice"]
    assert "parallel has no form there" in turned(body, "gemini")[1]


def test_what_has_no_form_is_told():
    """Thinking, parts, tools and fields that stay behind are each named, and how many."""
    body = ANTHROPIC | {
        "metadata": {},
        "top_k": 3,
        "tools": [*ANTHROPIC["tools"], {"type": "web_search_20260209", "name": "web_search"}],
        "messages": [
            {"role": "user", "content": "look"},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "s"},
                    {"type": "server_tool_use", "id": "srv", "name": "web_search", "input": {}},
                ],
            },
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "x", "is_error": True, "content": "no"}],
            },
        ],
    }
    out, notes = turned(body, "openai-chat")
    assert [one["name"] for one in (tool["function"] for tool in out["tools"])] == ["ls"]
    assert notes == (
        "1 × thinking: sealed by another API",
        "1 × server_tool_use: '[Attached server_tool_use]' stands there",
        "1 × the mark that a tool failed: its words stay",
        "the tool web_search_20260209: only functions of the client's have a form there",
        "the field metadata: left out",
        "top_k has no form there",
    )


def test_limits_of_the_messages_api():
    """The Messages API is told a limit where none was asked for, and no temperature over 1."""
    out, notes = turned(
        {"model": "gpt", "temperature": 1.7, "messages": [{"role": "user", "content": "a"}]}, "anthropic"
    )
    assert (out["max_tokens"], out["temperature"]) == (4096, 1)
    assert len(notes) == 2


def test_geminis_own_spellings_are_read():
    """Both spellings of Gemini's fields are read, and its types become those of JSON Schema."""
    tool = {
        "function_declarations": [
            {"name": "f", "parameters": {"type": "OBJECT", "properties": {"a": {"type": "STRING"}}}}
        ]
    }
    body = {
        "contents": [{"parts": [{"text": "a"}]}],
        "system_instruction": {"parts": [{"text": "s"}]},
        "tools": [tool, {"google_search": {}}],
        "generation_config": {"max_output_tokens": 5, "top_k": 2, "seed": 1},
    }
    out, notes = turned(body, "anthropic")
    assert out["tools"][0]["input_schema"] == {"type": "object", "properties": {"a": {"type": "string"}}}
    assert (out["max_tokens"], out["top_k"], out["system"]) == (5, 2, [{"type": "text", "text": "s"}])
    assert [note.split(":")[0] for note in notes] == ["the tool googleSearch", "the field generationConfig.seed"]


def test_the_same_api_keeps_the_bytes():
    """A request that speaks the API already changes its model and nothing else."""
    raw = b'{"messages" : [{"role":"user","content":"\\u4f60"}], "model": "a" }'
    assert convert(raw, "openai-chat")[0] is raw
    assert convert(raw, "openai-chat", "b") == (raw.replace(b'"a"', b'"b"'), ())


@pytest.mark.parametrize("api", APIS)
def test_odd_fields_raise_nothing_but_our_errors(api):
    """Options of wrong types are passed over."""
    odd = {
        "tools": [5, {"function": 5}, {"functionDeclarations": [5]}],
        "tool_choice": 5,
        "temperature": "x",
        "stop": 5,
    }
    odd |= {"system": [5], "toolConfig": [], "generationConfig": {"stopSequences": [5]}, "max_tokens": "9"}
    for to in APIS:
        convert(json.dumps(odd | {FORMS[api].field: []}).encode(), to, api=api)
    with pytest.raises(Unrecognised):
        convert(b"{}", "fax")
    with pytest.raises(FormatError):
        convert(b"{", api)
