"""An API is added with one spec: shared code asks the spec and knows no API by name."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from holdfast.config import get_target
from holdfast.engine.recall import make_recall_tool
from holdfast.engine.upstream.upstream import HttpUpstream, UpstreamRequest
from holdfast.messages.message import Message
from holdfast.planning.plan import apply, plan
from holdfast.providers.answers.answer_stream import parse_answer
from holdfast.providers.api_spec import ApiSpec
from holdfast.providers.errors.classify_error import classify_error
from holdfast.providers.errors.render import render_error_response
from holdfast.providers.errors.report import Verdict
from holdfast.providers.foreign.convert_request import convert_request
from holdfast.providers.openai_chat.models import build_dialect
from holdfast.providers.openai_chat.spec import OPENAI_CHAT_SPEC
from holdfast.providers.registry import API_SPECS
from holdfast.providers.requests.message_dicts import decode_messages, encode_messages
from holdfast.providers.requests.parsed_request import parse_request
from holdfast.providers.rules.validate import validate_request
from holdfast.state.dialect import Dialect

API = "dummy-chat"
DICTS = [
    {"role": "user", "content": "list the files"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "ls", "arguments": "{}"}}],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": "a.py " * 20_000},
    {"role": "assistant", "content": "There is one."},
    {"role": "user", "content": "thanks"},
]


def build_dummy_dialect(model: str, provider: str) -> Dialect:
    """Return the dialect of Chat under the name of the new API."""
    return replace(build_dialect(model, provider), api=API)


@pytest.fixture(autouse=True)
def dummy_spec() -> Iterator[ApiSpec]:
    """Register Chat Completions with its own message list, URL and name for the duration of a test."""
    spec = replace(
        OPENAI_CHAT_SPEC,
        api=API,
        display_name="Dummy Chat",
        messages_field="dialogue",
        build_dialect=build_dummy_dialect,
        endpoints=replace(OPENAI_CHAT_SPEC.endpoints, generate="/v1/dialogues"),
    )
    API_SPECS[API] = spec
    try:
        yield spec
    finally:
        del API_SPECS[API]


def test_new_api_messages_are_planned_and_encoded() -> None:
    """Messages are kept inside the API's own window and encoded by its rules."""
    history = decode_messages("openai-chat", DICTS)
    assert encode_messages(API, history) == DICTS
    target = get_target(API, "m-1", window=12_000)
    planned = plan(history, target)
    assert planned.before > planned.after
    sent = encode_messages(API, apply(history, planned))
    assert not validate_request({"model": "m-1", "messages": sent}, "openai-chat")


def test_new_api_body_is_recognized_and_converted() -> None:
    """The body is recognized by its message list and converted to another API and back."""
    body = json.dumps({"model": "m-1", "dialogue": DICTS}).encode()
    parsed = parse_request(body)
    assert parsed.api == API
    there, _ = convert_request(body, "anthropic", "claude-sonnet-4-5")
    back, _ = convert_request(there, API, "m-1")
    assert [message["role"] for message in json.loads(back)["dialogue"]] == [message["role"] for message in DICTS]


def test_new_api_uses_its_own_url_answers_errors_and_tools() -> None:
    """URL, answers, errors and the recall tool follow the spec of the new API."""
    upstream = HttpUpstream("http://127.0.0.1:1", API)
    assert upstream.build_url(UpstreamRequest(API, b"{}", "m-1")) == "http://127.0.0.1:1/v1/dialogues"
    answer = parse_answer(API, b'{"choices":[{"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}]}')
    assert answer.message == Message.from_text("assistant", "hi")
    response = render_error_response(API, Verdict("context_window", limit=1_000, requested=2_000))
    assert classify_error(response.body, response.status).limit == 1_000
    assert make_recall_tool(API)["type"] == "function"
