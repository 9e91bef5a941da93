"""A plain text document counts as its text and is spilled and recalled like it; until then it keeps its bytes."""

from __future__ import annotations

import json
import re
from base64 import b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw
from msgspec.structs import replace

from holdfast.config import get_target
from holdfast.engine.log.journal import Journal
from holdfast.engine.recall import answer_recall, iter_recall_pages
from holdfast.messages.message import get_part_text
from holdfast.messages.parts import Media, Opaque, Text
from holdfast.messages.size.tokens import DOCUMENT_TOKENS, estimate_media_tokens, estimate_text_tokens
from holdfast.providers.anthropic import messages as anthropic
from holdfast.providers.common.media import decode_text_document
from holdfast.providers.gemini import messages as gemini
from holdfast.providers.openai_chat import messages as openai_chat
from holdfast.providers.openai_responses import messages as openai_responses
from holdfast.providers.registry import API_SPECS, get_api_spec
from holdfast.providers.requests.message_dicts import decode_messages, encode_messages
from holdfast.providers.requests.parsed_request import measure_parsed_request, parse_request
from holdfast.providers.requests.request_body import render_request
from holdfast.providers.rules.validate import validate_request
from holdfast.store.memory import MemoryStore
from holdfast.testing.provider.client import STRICTEST_MODELS

WIRE = {
    "anthropic": anthropic,
    "openai-chat": openai_chat,
    "openai-responses": openai_responses,
    "gemini": gemini,
}
LOG = "\n".join(f"{n:05} step {n} {'FAILED' if n % 500 == 0 else 'ok'}" for n in range(12_000))
"""A text too long for a request."""
TEXT_STRATEGY = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=80).filter(
    str.strip
)


def encode_base64(words):
    data = words if isinstance(words, bytes) else words.encode()
    return b64encode(data).decode()


def build_text_block(words):
    return {"type": "text", "text": words}


DOCUMENTS = {
    "anthropic": {
        "text": lambda words: {"type": "document", "source": build_source("text", data=words, media_type="text/plain")},
        "string": lambda words: {"type": "document", "source": build_source("content", content=words)},
        "blocks": lambda words: {
            "type": "document",
            "source": build_source("content", content=[build_text_block(words)]),
        },
        "found": lambda words: {
            "type": "search_result",
            "source": "",
            "title": "",
            "content": [build_text_block(words)],
        },
    },
    "openai-chat": {
        "file": lambda words: {
            "type": "file",
            "file": {"file_data": f"data:text/x-python;base64,{encode_base64(words)}"},
        },
    },
    "openai-responses": {
        "file": lambda words: {
            "type": "input_file",
            "file_data": f"data:application/json;base64,{encode_base64(words)}",
        },
    },
    "gemini": {
        "inlineData": lambda words: {
            "inlineData": {"mimeType": "text/csv; charset=utf-8", "data": encode_base64(words)}
        },
        "inline_data": lambda words: {
            "inline_data": {"mime_type": "application/ld+json", "data": encode_base64(words)}
        },
    },
}
"""Every form of a plain text document."""
TEXTS = {
    "anthropic": build_text_block,
    "openai-chat": build_text_block,
    "openai-responses": lambda words: {"type": "input_text", "text": words},
    "gemini": lambda words: {"text": words},
}


def build_source(type_, **fields):
    return {"type": type_, **fields}


def build_user_request(api, part):
    """Build a request with ``part`` in a user message."""
    return build_request(api, {"role": "user", "parts" if api == "gemini" else "content": [part]})


def build_result_request(api, part):
    """Build a request with ``part`` in a tool result."""
    match api:
        case "anthropic":
            call = {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "ls", "input": {}}]}
            result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": [part]}]}
        case "openai-responses":
            call = {"type": "function_call", "call_id": "t1", "name": "ls", "arguments": "{}"}
            result = {"type": "function_call_output", "call_id": "t1", "output": [part]}
        case _:
            identity = {"id": "t1", "name": "ls"}
            call = {
                "role": "model",
                "parts": [{"functionCall": {**identity, "args": {}}, "thoughtSignature": "c2ln"}],
            }
            answer = {**identity, "response": {"output": part["text"]} if "text" in part else {}}
            answer |= {} if "text" in part else {"parts": [part]}
            result = {"role": "user", "parts": [{"functionResponse": answer}]}
    go = {"role": "user", "parts": [{"text": "go"}]} if api == "gemini" else {"role": "user", "content": "go"}
    return build_request(api, go, call, result)


def build_request(api, *messages):
    model_field = {} if api == "gemini" else {"model": STRICTEST_MODELS[api]}
    limit = {"max_tokens": 900} if api == "anthropic" else {}
    return json.dumps(model_field | limit | {get_api_spec(api).messages_field: messages}).encode()


CASES = [
    (api, form, place)
    for api, forms in DOCUMENTS.items()
    for form in forms
    for place in (build_user_request, *([] if api == "openai-chat" else [build_result_request]))
]
"""Every form in a user message and in a tool result, except Chat, whose results hold no files."""
NAMES = [f"{api} {form} {place.__name__}" for api, form, place in CASES]
every_form = pytest.mark.parametrize(("api", "form", "place"), CASES, ids=NAMES)


def prepare_request(store, api, body):
    """Plan a request; return the plan, and the body that is sent, without cache breakpoints."""
    parsed_request = measure_parsed_request(parse_request(body, api))
    journal = Journal.open(store, "s")
    journal.append(*parsed_request.messages)
    prepared = journal.prepare_request(get_target(api, STRICTEST_MODELS[api], window=64_000))
    return prepared.plan, render_request(parsed_request, prepared.messages)


def get_last_part(api, body):
    """Return the last part of a body, or the last part of its last tool result."""
    part = parse_request(body, api).messages[-1].message.parts[-1]
    return part.content[-1] if hasattr(part, "content") else part


@every_form
@given(words=TEXT_STRATEGY)
def test_render_request_keeps_a_text_document_byte_for_byte(api, form, place, words):
    """Without a decision a document keeps its bytes, and counts as many tokens as the same text."""
    body, plain = (place(api, make(words)) for make in (DOCUMENTS[api][form], TEXTS[api]))
    with MemoryStore() as store:
        plan, out = prepare_request(store, api, body)
    assert (plan.record, plan.normalization) == ((), ())
    assert out == body
    assert get_last_part(api, body).text.split() == words.split()
    sizes = [measure_parsed_request(parse_request(raw, api)).messages[-1].tokens for raw in (body, plain)]
    assert sizes[0] == pytest.approx(sizes[1], rel=0.05, abs=1)


@pytest.mark.parametrize(
    ("api", "form", "place"),
    [pytest.param(*case, marks=[pytest.mark.long] if at % 3 else []) for at, case in enumerate(CASES)],
    ids=NAMES,
)
def test_plan_spills_a_large_text_document(api, form, place):
    """newest-user-message, recall: a preview text replaces what does not fit; the document can be read back and
    searched.
    """
    with MemoryStore() as store:
        plan, out = prepare_request(store, api, place(api, DOCUMENTS[api][form](LOG)))
        assert [edit.rule for edit in plan.record] == ["spill"]
        assert validate_request(out, api) == ()
        preview = get_part_text(plan.record[0].replacement[0])
        assert json.dumps(preview)[1:-1] in json.dumps(json.loads(out))
        handle = re.search(r'<persisted_tool_result id="(\w+)"', preview)[1]
        assert "".join(page.text for page in iter_recall_pages(store, "s", handle)) == LOG
        assert "11500 step 11500 FAILED" in answer_recall(store, "s", {"id": handle, "search": "11500"}).text
        assert "11500" in answer_recall(store, "s", {"search": "11500"}).text
        assert len(out) < 50_000


@every_form
def test_encode_messages_writes_a_text_document_as_text(api, form, place):
    """A text document decoded by one API is encoded as a text by another, and is valid."""
    body = json.loads(place(api, DOCUMENTS[api][form]("words")))
    for to, writer in WIRE.items():
        if to != api:
            messages = encode_messages(writer.API_NAME, decode_messages(api, body[get_api_spec(api).messages_field]))
            out = build_request(to, *messages)
            assert (validate_request(out, to), get_last_part(to, out).text) == ((), "words")


def test_decode_message_puts_the_title_above_the_text():
    """The model sees the title and context of a document, so they are counted and kept with its text."""
    paper = DOCUMENTS["anthropic"]["text"]("words") | {"title": "notes", "context": "of May"}
    assert get_last_part("anthropic", build_user_request("anthropic", paper)).text == "[notes]\nof May\nwords"
    file = {
        "type": "input_file",
        "filename": "a.md",
        "file_data": f"data:text/markdown;base64,{encode_base64('words')}",
    }
    assert get_last_part("openai-responses", build_user_request("openai-responses", file)).text == "[a.md]\nwords"


def test_plan_replaces_a_text_document_by_a_plain_text():
    """Document fields are dropped with the document; the cache breakpoint stays in its place."""
    more = {"title": "t", "context": "c", "citations": {"enabled": True}, "cache_control": {"type": "ephemeral"}}
    body = build_user_request("anthropic", DOCUMENTS["anthropic"]["text"](LOG) | more | {"field_of_tomorrow": 1})
    with MemoryStore() as store:
        _, out = prepare_request(store, "anthropic", body)
    [block] = json.loads(out)["messages"][0]["content"]
    assert block.keys() == {"type", "text", "cache_control"}


def test_encode_message_keeps_a_file_beside_response_text():
    """Gemini: if the text of a response changes, the file beside it is neither repeated nor changed."""
    file = DOCUMENTS["gemini"]["inlineData"]("in the file")
    answer = {"name": "ls", "response": {"output": "said"}, "parts": [file]}
    base = Raw(json.dumps({"role": "user", "parts": [{"functionResponse": answer}]}).encode())
    [result] = gemini.decode_message(base).results
    for words, kept in ((Text("new"), [file]), (Text("said"), [file])):
        changed = replace(result, content=(words, *result.content[1:]), raw=None)
        [wire] = gemini.encode_message(replace(gemini.decode_message(base), parts=(changed,)), base)
        [part] = json.loads(wire)["parts"]
        assert part["functionResponse"] == {"name": "ls", "response": {"output": words.text}, "parts": kept}


@pytest.mark.parametrize(
    ("mime", "is_words"),
    [
        ("text/markdown", True),
        ("TEXT/HTML; charset=utf-8", True),
        ("application/json", True),
        ("application/x-ndjson", True),
        ("application/vnd.api+json", True),
        ("application/x-yaml", True),
        ("application/javascript", True),
        ("application/pdf", False),
        ("application/octet-stream", False),
        ("application/vnd.openxmlformats-officedocument.wordprocessingml.document", False),
        ("image/svg+xml", False),
        ("", False),
    ],
)
def test_decode_text_document_decides_by_media_type(mime, is_words):
    """Text, code, JSON, XML and YAML are text; other types are not."""
    assert decode_text_document(Media("document", mime, 5, "", encode_base64("words"), form="base64")) == (
        "words" if is_words else None
    )


PDF = {
    "type": "document",
    "source": {"type": "base64", "media_type": "application/pdf", "data": encode_base64(b"%PDF")},
}
MIXED = {
    "type": "document",
    "source": build_source("content", content=[build_text_block("a"), {"type": "image", "source": {}}]),
}


def build_file(words, mime="text/plain"):
    return {"type": "file", "file": {"filename": "a", "file_data": f"data:{mime};base64,{encode_base64(words)}"}}


@pytest.mark.parametrize(
    ("api", "part"),
    [
        ("anthropic", PDF),
        ("anthropic", MIXED),
        ("anthropic", DOCUMENTS["anthropic"]["text"](" \n")),
        ("openai-chat", build_file("words".encode("latin-1") + b"\xe9")),
        ("openai-chat", build_file("words".encode("utf-16-le"))),
        ("openai-chat", build_file(b"%PDF-1.4", "application/pdf")),
        ("openai-chat", build_file(b"", "text/plain")),
    ],
)
def test_decode_message_keeps_other_documents_as_media(api, part):
    """Bytes that are no UTF-8, PDF pages, pictures between text and blank text are no text document."""
    assert type(get_last_part(api, build_user_request(api, part))) is Media


@pytest.mark.parametrize("part", [DOCUMENTS["anthropic"]["text"]("words"), DOCUMENTS["anthropic"]["found"]("words")])
def test_decode_message_keeps_documents_where_only_text_is_allowed(part):
    """The Messages API accepts no document in an error result or from the assistant, so normalization must see it as
    one.
    """
    failed = {"type": "tool_result", "tool_use_id": "t", "is_error": True, "content": [part]}
    for message in ({"role": "assistant", "content": [part]}, {"role": "user", "content": [failed]}):
        [part] = API_SPECS["anthropic"].decode_message(json.dumps(message).encode()).parts
        assert type(part.content[0] if message["role"] == "user" else part) in (Media, Opaque)


def test_estimate_media_tokens_counts_long_text_in_documents():
    """A mixed document with much text counts as that text; one with little counts as any document."""
    sizes = [
        estimate_media_tokens(Media("document", "text/plain", len(words), "", words, form="text"))
        for words in ("a", LOG)
    ]
    assert sizes == [DOCUMENT_TOKENS, estimate_text_tokens(LOG)]
