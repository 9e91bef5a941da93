"""Errors are rendered in the form of the client's API, and the classifier reads them back."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import ResponseFailedEvent

from holdfast.providers.errors.classify_error import classify_error
from holdfast.providers.errors.render import map_to_client_error_kind, render_error_event, render_error_response
from holdfast.providers.errors.report import OVERFLOW_KINDS, VERDICT_KINDS, ErrorReport, Verdict

APIS = ("anthropic", "openai-chat", "openai-responses", "gemini")
api_strategy = st.sampled_from(APIS)
optional_tokens = st.none() | st.integers(1, 10**12)
possible_request = st.none() | st.integers(16, 10**12)
"""No whole request is smaller than this; the classifier does not believe such a count."""
SIZED = ("context_window", "input_plus_output")


def read_back(api, verdict, output, channel):
    if channel == "stream":
        return classify_error(ErrorReport(api, 200, body=render_error_event(api, verdict, output=output)))
    native = render_error_response(api, verdict, output=output)
    return classify_error(ErrorReport(api, native.status, body=native.body, headers=native.headers))


@given(
    api_strategy,
    st.sampled_from(SIZED),
    optional_tokens,
    possible_request,
    optional_tokens,
    st.sampled_from(["status", "stream"]),
)
def test_render_error_is_classified_back_the_same(api, kind, limit, requested, output, channel):
    """For each API and channel, a rendered error is classified with the same kind, limit and requested size."""
    assert read_back(api, Verdict(kind, limit, requested), output, channel) == Verdict(kind, limit, requested)


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("kind", VERDICT_KINDS)
@pytest.mark.parametrize("channel", ["status", "stream"])
def test_render_error_maps_every_kind_to_one_the_client_knows(api, kind, channel):
    """Each kind is classified back as the kind that it is mapped to; only overflows are rendered as overflows."""
    found = read_back(api, Verdict(kind), None, channel)
    assert found.kind == map_to_client_error_kind(kind)
    assert found.is_overflow is (kind in OVERFLOW_KINDS)


@pytest.mark.parametrize("api", APIS)
def test_render_error_response_sends_retry_after(api):
    """``retry_after`` is sent as a header and read back."""
    assert read_back(api, Verdict("overloaded", retry_after=1.5), None, "status") == Verdict(
        "overloaded", retry_after=1.5
    )


def test_render_error_response_has_both_numbers_for_claude_code():
    """Anthropic's overflow is a 400 ``invalid_request_error`` with the wording that clients parse the numbers from."""
    native = render_error_response("anthropic", Verdict("context_window", 200_000, 207_848))
    body = json.loads(native.body)
    assert native.status == 400
    assert body["type"] == "error"
    assert body["error"]["type"] == "invalid_request_error"
    assert body["error"]["message"] == "prompt is too long: 207848 tokens > 200000 maximum"


def test_render_error_event_has_the_code_for_codex():
    """In a Responses stream an overflow is ``response.failed`` with the code that Codex looks for."""
    verdict = Verdict("context_window", 400_000, 500_000)
    event, data = render_error_event("openai-responses", verdict, sequence_number=7).split(b"\n")[:2]
    body = json.loads(data.removeprefix(b"data: "))
    assert event == b"event: response.failed"
    assert (body["type"], body["sequence_number"], body["response"]["status"]) == ("response.failed", 7, "failed")
    assert body["response"]["error"]["code"] == "context_length_exceeded"


def test_render_error_response_uses_the_form_of_chat_and_gemini():
    """Chat has the error code, Gemini the status; both are 400."""
    chat = json.loads(render_error_response("openai-chat", Verdict("context_window", 10, 20)).body)["error"]
    gemini = json.loads(render_error_response("gemini", Verdict("context_window", 10, 20)).body)["error"]
    assert chat["code"] == "context_length_exceeded"
    assert (gemini["code"], gemini["status"]) == (400, "INVALID_ARGUMENT")
    assert "(20)" in gemini["message"]
    assert "(10)" in gemini["message"]


@pytest.mark.parametrize("api", APIS)
def test_render_error_response_uses_the_given_message(api):
    """A given message replaces the API's wording only if the error is no overflow."""
    other = json.loads(render_error_response(api, Verdict("invalid_request"), message="no 'messages' in it").body)[
        "error"
    ]
    large = json.loads(render_error_response(api, Verdict("context_window"), message="no 'messages' in it").body)[
        "error"
    ]
    assert other["message"] == "no 'messages' in it"
    assert large["message"] != other["message"]


def test_render_error_event_is_valid_for_the_sdk():
    """The event has every field that the official SDK's type requires; its list of codes lacks that of the overflow."""
    data = render_error_event("openai-responses", Verdict("server")).split(b"data: ")[1]
    event = ResponseFailedEvent.model_validate_json(data)
    assert event.response.error is not None
    assert event.response.error.code == "server_error"
