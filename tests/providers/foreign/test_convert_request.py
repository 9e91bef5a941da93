"""A request of one API is converted to a request of another."""

from __future__ import annotations

import json
from base64 import b64encode
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis_strategies import conversation_strategy

from holdfast.cli.commands.fix import FixOptions, fix_request_body
from holdfast.errors import FormatError, UnrecognizedContent
from holdfast.messages.message import get_result_text
from holdfast.messages.parts import Text
from holdfast.messages.sized_message import SizedMessage
from holdfast.normalize.parts import encode_wire_tool_name
from holdfast.providers.common.tool_names import map_invalid_tool_names
from holdfast.providers.foreign.convert_request import convert_request
from holdfast.providers.registry import API_NAMES, API_SPECS, get_api_dialect
from holdfast.providers.requests.parsed_request import parse_request
from holdfast.providers.requests.request_body import build_request_body
from holdfast.providers.rules.validate import validate_request

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
    "output_config": {"format": {"type": "json_schema", "schema": {**SCHEMA, "additionalProperties": False}}},
    "messages": [
        {"role": "user", "content": "look"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "ls", "input": {"p": "/"}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "a b"}]},
    ],
}


def summarize_messages(body, api):
    """Return role, text, calls and results of each message, without the system prompt."""
    out = []
    for sized_message in parse_request(json.dumps(body).encode(), api).messages:
        message = sized_message.message
        calls = [(call.name, json.loads(call.arguments)) for call in message.calls]
        results = [get_result_text(result) for result in message.results]
        out += [(message.role, message.text, calls, results)] if message.role != "system" else []
    return out


def convert(body, to, model="m", **options):
    raw, notes = convert_request(json.dumps(body).encode(), to, model, **options)
    return json.loads(raw), notes


@pytest.mark.parametrize(("first", "second"), list(product(API_NAMES, API_NAMES)))
def test_convert_request_keeps_everything_between_any_two_apis(first, second):
    """Text, calls, results, tools, choice, limit and sampling survive any two conversions and the way back."""
    body, _ = convert(convert(ANTHROPIC, first)[0], second)
    assert summarize_messages(body, second) == summarize_messages(ANTHROPIC, "anthropic")
    again, _ = convert(body, "anthropic")
    dropped = {"stop_sequences"} if "openai-responses" in (first, second) else set()
    dropped |= {"stream"} if "gemini" in (first, second) else set()
    assert {key: again.get(key) for key in ANTHROPIC.keys() - dropped} == {
        key: value for key, value in (ANTHROPIC | {"model": again["model"]}).items() if key not in dropped
    }


def test_convert_request_writes_tools_and_options_in_each_form():
    """Tools and options are where each API has them."""
    chat, _ = convert(ANTHROPIC, "openai-chat")
    assert chat["tools"] == [
        {"type": "function", "function": {"name": "ls", "description": "Lists.", "parameters": SCHEMA}}
    ]
    assert (chat["tool_choice"], chat["max_completion_tokens"], chat["stop"]) == ("required", 99, ["END"])
    assert chat["messages"][0] == {"role": "system", "content": "Be kind."}
    responses, notes = convert(ANTHROPIC, "openai-responses")
    assert responses["tools"][0] == {
        "type": "function",
        "name": "ls",
        "description": "Lists.",
        "parameters": SCHEMA,
        "strict": False,
    }
    assert responses["max_output_tokens"] == 99
    assert notes == ("stop_sequences: left out, the API has no such option",)
    gemini, notes = convert(ANTHROPIC, "gemini")
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
        "responseMimeType": "application/json",
        "responseJsonSchema": ANTHROPIC["output_config"]["format"]["schema"],
    }
    assert "model" not in gemini


@pytest.mark.parametrize("api", API_NAMES)
@pytest.mark.parametrize(
    "choice",
    [
        {"type": "none"},
        {"type": "auto"},
        {"type": "any"},
        {"type": "tool", "name": "ls"},
    ],
)
def test_convert_request_converts_the_tool_choice(api, choice):
    """The choice survives the conversion to each API and back."""
    there, _ = convert(ANTHROPIC | {"tool_choice": choice}, api)
    assert convert(there, "anthropic")[0]["tool_choice"] == choice


def test_convert_request_converts_parallel_calls():
    """One call at a time can be requested on three APIs; Gemini has no option for it."""
    body = ANTHROPIC | {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}
    assert convert(body, "openai-chat")[0]["parallel_tool_calls"] is False
    assert convert(convert(body, "openai-responses")[0], "anthropic")[0]["tool_choice"] == body["tool_choice"]
    assert "parallel_calls: left out, the API has no such option" in convert(body, "gemini")[1]


def test_convert_request_notes_everything_without_a_form():
    """Dropped thinking, parts, tools and fields are each named in a note, with their number."""
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
    out, notes = convert(body, "openai-chat")
    assert [tool["function"]["name"] for tool in out["tools"]] == ["ls"]
    assert notes == (
        "1 × thinking: left out, signed by another API",
        "1 × server_tool_use: kept as text",
        "1 × the error flag of a tool result: left out, the text is kept",
        "the tool web_search_20260209: left out, only functions of the client can be converted",
        "the field metadata: left out",
        "top_k: left out, the API has no such option",
    )


def test_convert_request_adds_the_limits_of_anthropic():
    """The Messages API gets a limit if none was set, and no temperature over 1."""
    out, notes = convert(
        {"model": "gpt", "temperature": 1.7, "messages": [{"role": "user", "content": "a"}]}, "anthropic"
    )
    assert (out["max_tokens"], out["temperature"]) == (4096, 1)
    assert len(notes) == 2


def test_convert_request_reads_both_spellings_of_gemini():
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
    out, notes = convert(body, "anthropic")
    assert out["tools"][0]["input_schema"] == {"type": "object", "properties": {"a": {"type": "string"}}}
    assert (out["max_tokens"], out["top_k"], out["system"]) == (5, 2, [{"type": "text", "text": "s"}])
    assert [note.split(":")[0] for note in notes] == ["the tool googleSearch", "the field generationConfig.seed"]


def test_convert_request_to_the_same_api_changes_only_the_model():
    """All other bytes stay."""
    raw = b'{"messages" : [{"role":"user","content":"\\u4f60"}], "model": "a" }'
    assert convert_request(raw, "openai-chat")[0] is raw
    assert convert_request(raw, "openai-chat", "b") == (raw.replace(b'"a"', b'"b"'), ())


@pytest.mark.parametrize("api", API_NAMES)
def test_convert_request_ignores_options_of_wrong_types(api):
    """Malformed options are skipped; an unknown API and malformed JSON raise typed errors."""
    malformed = {
        "tools": [5, {"function": 5}, {"functionDeclarations": [5]}],
        "tool_choice": 5,
        "temperature": "x",
        "stop": 5,
    }
    malformed |= {"system": [5], "toolConfig": [], "generationConfig": {"stopSequences": [5]}, "max_tokens": "9"}
    for to in API_NAMES:
        convert_request(json.dumps(malformed | {API_SPECS[api].messages_field: []}).encode(), to, api=api)
    with pytest.raises(UnrecognizedContent):
        convert_request(b"{}", "fax")
    with pytest.raises(FormatError):
        convert_request(b"{", api)


# -- media, names, results -------------------------------------------------------------------------------------------


MODELS = {
    "anthropic": "claude-opus-4-8",
    "openai-chat": "gpt-5",
    "openai-responses": "gpt-5.5",
    "gemini": "gemini-3-pro",
}
WORDS = "Hello, wörld!"
BASE64_WORDS = b64encode(WORDS.encode()).decode()


def build_request(api, *parts):
    """Return a request in which a user shows ``parts``."""
    if api == "gemini":
        return {"contents": [{"role": "user", "parts": [*parts]}]}
    field = "input" if api == "openai-responses" else "messages"
    return {"model": MODELS[api], field: [{"role": "user", "content": [*parts]}]}


def convert_parts(api, to, *parts):
    """Convert a user message with ``parts``; return its converted content, and the notes."""
    out, notes = convert(build_request(api, *parts), to, MODELS[to], api=api)
    user = out[API_SPECS[to].messages_field][0]
    return user["parts"] if to == "gemini" else user["content"], [note for note in notes if "max_tokens" not in note]


TEXT_DOCUMENT = {
    "type": "document",
    "source": {"type": "text", "media_type": "text/plain", "data": WORDS},
    "title": "notes",
}


@pytest.mark.parametrize(
    ("to", "expected"),
    [
        ("openai-chat", f"[notes]\n{WORDS}"),
        ("openai-responses", [{"type": "input_text", "text": f"[notes]\n{WORDS}"}]),
        ("gemini", [{"text": f"[notes]\n{WORDS}"}]),
    ],
)
def test_convert_request_turns_a_text_document_into_text(to, expected):
    """Plain text becomes a text under its title."""
    assert convert_parts("anthropic", to, TEXT_DOCUMENT) == (expected, [])


def test_convert_request_decodes_base64_text_documents():
    """Text in base64 becomes a text under its name; bytes that are no UTF-8 stay a file if the API has a form for
    it.
    """
    blob = {"inlineData": {"mimeType": "text/plain", "data": BASE64_WORDS}}
    assert convert_parts("gemini", "anthropic", blob) == (WORDS, [])
    packed = {"type": "file", "file": {"filename": "a.csv", "file_data": f"data:text/csv;base64,{BASE64_WORDS}"}}
    assert convert_parts("openai-chat", "anthropic", packed) == (f"[a.csv]\n{WORDS}", [])
    undecodable = {"type": "file", "file": {"filename": "a.csv", "file_data": "data:text/csv;base64,/w=="}}
    assert convert_parts("openai-chat", "gemini", undecodable) == (
        [{"inlineData": {"mimeType": "text/csv", "data": "/w=="}}],
        [],
    )


def test_convert_request_encodes_plain_data_urls():
    """The plain data of a data URL are encoded, not mistaken for base64."""
    picture = {"type": "image_url", "image_url": {"url": "data:image/png,%89PNG"}}
    source = {"type": "base64", "media_type": "image/png", "data": b64encode(b"\x89PNG").decode()}
    assert convert_parts("openai-chat", "anthropic", picture)[0] == [{"type": "image", "source": source}]


def test_convert_request_keeps_text_of_documents_and_search_results():
    """A document of text and pictures, and a search result, keep their text."""
    inner = [{"type": "text", "text": "inner"}, {"type": "image", "source": {}}]
    document = {"type": "document", "source": {"type": "content", "content": inner}}
    found = {"type": "search_result", "source": "s", "title": "t", "content": [{"type": "text", "text": "found"}]}
    parts, notes = convert_parts("anthropic", "openai-chat", document, found)
    assert [part["text"] for part in parts] == ["inner\n[Attached image]", "t\ns\nfound"]
    assert notes == []


def test_convert_request_keeps_the_text_of_a_compaction_block():
    """Anthropic's compaction block becomes text in other APIs, and a note says so."""
    summary = {"role": "assistant", "content": [{"type": "compaction", "content": "said"}]}
    out, notes = convert(ANTHROPIC | {"messages": [summary, {"role": "user", "content": "go on"}]}, "openai-chat")
    assert "said" in json.dumps(out["messages"])
    assert "1 × compaction: kept as text" in notes


STORED_FILES = [
    ("anthropic", {"type": "document", "source": {"type": "file", "file_id": "file_a"}}),
    ("anthropic", {"type": "image", "source": {"type": "file", "file_id": "file_a"}}),
    ("openai-chat", {"type": "file", "file": {"file_id": "file-a"}}),
    ("openai-responses", {"type": "input_image", "file_id": "file-a"}),
    ("openai-responses", {"type": "input_file", "file_id": "file-a"}),
    ("gemini", {"fileData": {"fileUri": "gs://b/file_a.pdf", "mimeType": "application/pdf"}}),
    (
        "gemini",
        {
            "fileData": {
                "fileUri": "https://generativelanguage.googleapis.com/v1beta/files/file_a",
                "mimeType": "video/mp4",
            }
        },
    ),
]


@pytest.mark.parametrize(("api", "part"), STORED_FILES)
def test_convert_request_replaces_file_ids_of_other_providers(api, part):
    """A file at one provider becomes a line at another, with a note; OpenAI's two APIs share their files."""
    house = {"openai-chat": "openai", "openai-responses": "openai"}
    for to in API_NAMES:
        if house.get(to, to) != house.get(api, api):
            parts, notes = convert_parts(api, to, part)
            assert "file_a" not in json.dumps(parts).replace("-", "_")
            assert "[Attached" in json.dumps(parts)
            assert [": replaced by " in note for note in notes] == [True]
    both = convert_parts("openai-chat", "openai-responses", {"type": "file", "file": {"file_id": "file-a"}})
    assert both == ([{"type": "input_file", "file_id": "file-a"}], [])


def test_convert_request_replaces_media_without_a_form_by_a_line():
    """A document URL on Chat and a video on the Messages API become a line, with a note."""
    paper = {"type": "document", "source": {"type": "url", "url": "https://x/a.pdf"}}
    parts, notes = convert_parts("anthropic", "openai-chat", paper, {"type": "text", "text": "a"})
    assert parts[0] == {"type": "text", "text": "[Attached document]"}
    assert notes == ["1 × document: replaced by '[Attached document]'"]
    video = {"fileData": {"fileUri": "https://x/a.mp4", "mimeType": "video/mp4"}}
    parts, notes = convert_parts("gemini", "anthropic", video, {"text": "a"})
    assert parts[0]["type"] == "text"
    assert notes == ["1 × video: replaced by '[Attached video/mp4]'"]


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}


def build_body_with_results(*results):
    calls = [{"type": "tool_use", "id": f"t{place}", "name": "look", "input": {}} for place in range(len(results))]
    blocks = [
        {"type": "tool_result", "tool_use_id": f"t{place}", "content": content} for place, content in enumerate(results)
    ]
    return ANTHROPIC | {
        "messages": [
            {"role": "user", "content": "look"},
            {"role": "assistant", "content": calls},
            {"role": "user", "content": [*blocks, {"type": "text", "text": "and?"}]},
        ]
    }


def test_convert_request_moves_result_images_to_a_user_message():
    """Chat's results are text: their images follow in a user message after the whole batch, with a note."""
    out, notes = convert(
        build_body_with_results([{"type": "text", "text": "one"}, IMAGE], "two"), "openai-chat", "gpt-5"
    )
    roles = [message["role"] for message in out["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "tool", "user"]
    assert [block["text"] for block in out["messages"][3]["content"]] == ["one", "[Attached image/png]"]
    assert [block["type"] for block in out["messages"][5]["content"]] == ["text", "image_url", "text"]
    assert "1 × media in a tool result: moved into a user message after it" in notes
    assert validate_request(json.dumps(out).encode(), "openai-chat") == ()


def test_convert_request_keeps_separate_results_adjacent():
    """Each result may be a message of its own; nothing is put between them."""
    apart, _ = convert(build_body_with_results([IMAGE], [IMAGE]), "openai-responses", "gpt-5.5")
    out, _ = convert(apart, "openai-chat", "gpt-5")
    assert [message["role"] for message in out["messages"]][2:] == ["assistant", "tool", "tool", "user", "user"]


def test_convert_request_maps_tool_names_everywhere_alike():
    """Two tools stay two, and calls, results, tools and the choice use the same new name."""
    call = [{"functionCall": {"name": name, "args": {}}} for name in ("a.b", "a_b")]
    back = [{"functionResponse": {"name": name, "response": {"output": name}}} for name in ("a.b", "a_b")]
    body = {
        "contents": [
            {"role": "user", "parts": [{"text": "go"}]},
            {"role": "model", "parts": call},
            {"role": "user", "parts": back},
        ],
        "tools": [{"functionDeclarations": [{"name": "a.b"}, {"name": "a_b"}]}],
        "toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["a.b"]}},
    }
    out, notes = convert(body, "anthropic", "claude-opus-4-8")
    new = out["tools"][0]["name"]
    assert (new != "a_b", out["tools"][1]["name"], out["tool_choice"]) == (True, "a_b", {"type": "tool", "name": new})
    assert [block["name"] for block in out["messages"][1]["content"]] == [new, "a_b"]
    assert f"the tool 'a.b' is renamed to {new!r}" in notes


@given(st.lists(st.text(max_size=140), max_size=8))
def test_map_invalid_tool_names_keeps_names_distinct_and_valid(names):
    """Whatever tools are called, every API gets valid and distinct names, and valid ones stay."""
    for api in API_NAMES:
        rules = get_api_dialect(api, "")
        new = map_invalid_tool_names(names, rules)
        mapped = [new.get(name, name) for name in dict.fromkeys(names) if name]
        assert len(set(mapped)) == len(mapped)
        assert all(encode_wire_tool_name(name, rules) == name for name in mapped)
        assert map_invalid_tool_names(mapped, rules) == {}


# -- what is asked for ---------------------------------------------------------------------------------------------


CHAT_OPTIONS = {
    "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}},
    "reasoning_effort": "high",
    "verbosity": "low",
    "metadata": {"a": "b"},
    "store": False,
    "service_tier": "flex",
    "prompt_cache_key": "k",
    "user": "u",
    "safety_identifier": "s",
    "logprobs": True,
    "top_logprobs": 2,
}
SAME = ("metadata", "store", "service_tier", "prompt_cache_key", "user", "safety_identifier", "top_logprobs")


def test_convert_request_converts_options_between_openai_apis():
    """Options that both APIs of OpenAI have survive the way there and back, each in its form, without a note."""
    body = {"model": "gpt-x", "messages": [{"role": "user", "content": "x"}]} | CHAT_OPTIONS
    out, notes = convert(body, "openai-responses", "gpt-x")
    assert notes == ()
    assert out["text"] == {
        "verbosity": "low",
        "format": {"type": "json_schema", "name": "a", "schema": {"type": "object"}},
    }
    assert (out["reasoning"], out["include"]) == ({"effort": "high"}, ["message.output_text.logprobs"])
    assert {key: out[key] for key in SAME} == {key: CHAT_OPTIONS[key] for key in SAME}
    back, notes = convert(out, "openai-chat", "gpt-x")
    assert ({key: back.get(key) for key in CHAT_OPTIONS}, notes) == (CHAT_OPTIONS, ())


def test_convert_request_converts_options_between_gemini_and_chat():
    """Seed, penalties, probabilities and the answer format survive the way there and back."""
    config = {"seed": 1, "frequencyPenalty": 0.5, "presencePenalty": 0.25, "responseLogprobs": True, "logprobs": 2}
    config |= {"responseMimeType": "application/json", "responseSchema": {"type": "OBJECT"}}
    body = {"contents": [{"parts": [{"text": "json"}]}], "generationConfig": config | {"candidateCount": 1}}
    out, notes = convert(body, "openai-chat", "gpt-x")
    assert notes == ("the field generationConfig.candidateCount: left out",)
    assert out["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "answer", "schema": {"type": "object"}},
    }
    assert (out["seed"], out["frequency_penalty"], out["presence_penalty"], out["logprobs"]) == (1, 0.5, 0.25, True)
    back, notes = convert(out, "gemini")
    config["responseJsonSchema"] = {"type": "object"}
    del config["responseSchema"]
    assert (back["generationConfig"], notes) == (config, ())
    assert "the field generationConfig.seed: left out" in convert(body, "openai-responses")[1]


CLOSED = {"type": "object", "properties": {"type": {"type": "array", "items": {"type": "object"}}}}
ANSWERS = [
    ("openai-chat", {"response_format": {"type": "text"}}, None, ()),
    (
        "openai-chat",
        {"response_format": {"type": "json_object"}},
        None,
        ("the field response_format: left out",),
    ),
    (
        "openai-responses",
        {"text": {"format": {"type": "json_schema", "name": "a", "strict": True, "schema": {"type": "string"}}}},
        {"type": "string"},
        (),
    ),
    (
        "gemini",
        {"generationConfig": {"responseMimeType": "application/json", "responseJsonSchema": CLOSED}},
        {
            "type": "object",
            "additionalProperties": False,
            "properties": {"type": {"type": "array", "items": {"type": "object", "additionalProperties": False}}},
        },
        (),
    ),
]


@pytest.mark.parametrize(("api", "fields", "schema", "dropped"), ANSWERS)
def test_convert_request_converts_the_answer_schema_for_anthropic(api, fields, schema, dropped):
    """A schema is converted with its objects closed, as required there; free JSON has no form, and text needs none."""
    messages = (
        {"contents": [{"parts": [{"text": "x"}]}]}
        if api == "gemini"
        else {"messages": [{"role": "user", "content": "x"}]}
    )
    messages = {"input": "x"} if api == "openai-responses" else messages
    out, notes = convert({"model": "gpt-5"} | messages | fields, "anthropic", "claude-opus-4-8", api=api)
    assert out.get("output_config") == (schema and {"format": {"type": "json_schema", "schema": schema}})
    assert notes[1:] == dropped
    assert not validate_request(json.dumps(out).encode(), "anthropic", model="claude-opus-4-8")


def test_convert_request_converts_only_the_format_of_output_config():
    """Anthropic's effort is another scale; a note names what is dropped."""
    body = ANTHROPIC | {"output_config": {"effort": "max", "format": ANTHROPIC["output_config"]["format"]}}
    out, notes = convert(body, "openai-responses", "gpt-5")
    assert out["text"]["format"] == {
        "type": "json_schema",
        "name": "answer",
        "schema": ANTHROPIC["output_config"]["format"]["schema"],
    }
    assert "the field output_config.effort: left out" in notes
    assert not any("format" in note for note in notes)


def test_convert_request_notes_nested_fields_by_path():
    """The unread rest of a partly converted field is named by its path."""
    body = {"model": "gpt-5", "input": "x", "reasoning": {"effort": "low", "summary": "auto"}, "include": ["x"]}
    assert convert(body, "openai-chat")[1] == ("the field include: left out", "the field reasoning.summary: left out")


def test_convert_request_notes_a_choice_among_some_tools():
    """A restriction to some tools has no form elsewhere, so a note says so before a surprising call happens."""
    body = {
        "contents": [{"parts": [{"text": "x"}]}],
        "tools": [{"functionDeclarations": [{"name": name} for name in "fgh"]}],
        "toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["f", "g"]}},
    }
    out, notes = convert(body, "openai-chat")
    assert (out["tool_choice"], notes) == (
        "required",
        ("the choice among only 'f', 'g': left out, the API has no such option",),
    )
    some = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "f"}]}
    tools = [{"type": "function", "name": "f", "parameters": {}}]
    out, notes = convert({"model": "m", "input": "x", "tools": tools, "tool_choice": some}, "openai-chat")
    assert (out["tool_choice"], len(notes)) == ("required", 1)


# -- what cannot be converted ----------------------------------------------------------------------------------------


RESULT = {"type": "function_call_output", "call_id": "c", "output": "real"}


@pytest.mark.parametrize(
    ("body", "where"),
    [
        ({"model": "gpt-5", "previous_response_id": "resp_1", "input": [RESULT]}, "previous_response_id"),
        ({"model": "gpt-5", "conversation": "conv_1", "input": "x"}, "conversation"),
        ({"model": "gpt-5", "input": [{"type": "item_reference", "id": "fc_1"}, RESULT]}, "item_reference"),
        ({"model": "gpt-5", "prompt": {"id": "pmpt_1"}, "tools": []}, "prompt"),
        ({"contents": [{"parts": [{"text": "x"}]}], "cachedContent": "cachedContents/1"}, "cachedContent"),
    ],
)
def test_convert_request_rejects_a_history_stored_by_the_provider(body, where):
    """A request that only refers to earlier messages cannot be converted: the error says so, and nothing is made up."""
    with pytest.raises(FormatError, match=f"{where}.* the provider stores.*put the messages"):
        convert(body, "anthropic", api="gemini" if "contents" in body else "openai-responses")


@pytest.mark.parametrize("to", API_NAMES)
def test_convert_request_keeps_a_lone_system_prompt_valid(to):
    """A request with only a system prompt is valid on Chat, so its conversion is valid too."""
    body = {"model": "gpt-5", "messages": [{"role": "system", "content": "Be kind."}]}
    out, _ = convert(body, to, MODELS[to])
    raw = json.dumps(out).encode()
    assert [finding for finding in validate_request(raw, to, model=MODELS[to]) if finding.level == "error"] == []
    assert b"Be kind." in raw


@given(conversation_strategy(turns=3, steps=3, longest=80), st.sampled_from(list(product(API_NAMES, API_NAMES))))
def test_convert_request_keeps_valid_conversations_valid(messages, way):
    """valid-request: what is valid on one API is valid on any other, converted and fixed, and no user text is
    missing.
    """
    first, second = way
    document = fix_request_body(
        build_request_body(first, MODELS[first], [SizedMessage(message) for message in messages]), FixOptions(first)
    )
    there = fix_request_body(document.body, FixOptions(first, second, MODELS[second]))
    assert [finding for finding in there.findings if finding.level == "error"] == []
    again = "\n".join(
        sized_message.message.text
        for sized_message in parse_request(there.body, second).messages
        if sized_message.message.role == "user"
    )
    assert all(
        part.text in again
        for message in messages
        if message.is_turn_start
        for part in message.parts
        if type(part) is Text
    )
