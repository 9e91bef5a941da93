"""Overflow refusals of the strict provider: the wording and the true numbers of each provider, or silent truncation."""

from __future__ import annotations

import re

import msgspec
import pytest

from holdfast.errors import ConfigError
from holdfast.providers.errors.classify_error import classify_error
from holdfast.providers.errors.report import ErrorReport
from holdfast.testing.provider.calls import IncomingRequest, ModelAnswer, RefusalReply, ScriptedAnswer
from holdfast.testing.provider.checks.overflow_wordings import OVERFLOW_NAMES, OVERFLOW_WORDINGS
from holdfast.testing.provider.client import STRICTEST_MODELS, ProviderClient
from holdfast.testing.provider.provider import Provider
from holdfast.testing.provider.settings import ProviderSettings

SMALL = ProviderSettings(window=200, tokenizer="words")
LONG = "lorem ipsum " * 200
LIMIT_FIELDS = {
    "anthropic": "max_tokens",
    "openai-chat": "max_completion_tokens",
    "openai-responses": "max_output_tokens",
    "gemini": "generationConfig",
}
"""The field with the output limit; OpenAI's reasoning models take no ``max_tokens`` in Chat."""


def refuse_long_request(api, **fields):
    """Send a long request; return its refusal and its tokens."""
    provider = Provider(msgspec.structs.replace(SMALL, **fields))
    reply = ProviderClient(provider, api).send_user_text(LONG)
    assert isinstance(reply, RefusalReply), reply
    return reply, provider.requests[-1].tokens


NATIVE_MESSAGES = {
    "anthropic": "prompt is too long: {tokens} tokens > 200 maximum",
    "openai-chat": (
        "This model's maximum context length is 200 tokens. However, your messages resulted in {tokens} tokens. Please"
        " reduce the length of the messages."
    ),
    "openai-responses": (
        "Your input exceeds the context window of this model. Please adjust your input and try again."
    ),
    "gemini": "The input token count ({tokens}) exceeds the maximum number of tokens allowed (200).",
}


@pytest.mark.parametrize("api", NATIVE_MESSAGES)
def test_overflow_refusal_has_the_wording_of_its_api(api):
    """By default an overflow has the text, the code and the numbers of the API's own provider."""
    reply, tokens = refuse_long_request(api)
    assert tokens > 400
    assert (reply.status, reply.message) == (400, NATIVE_MESSAGES[api].format(tokens=tokens))
    if api.startswith("openai"):
        assert reply.code == "context_length_exceeded"


@pytest.mark.parametrize("name", OVERFLOW_WORDINGS)
def test_every_overflow_wording_is_classified_as_an_overflow(name):
    """The classifier recognizes every variant as an overflow and reads no wrong number."""
    reply, tokens = refuse_long_request("openai-chat", overflow=name)
    assert reply.status == OVERFLOW_WORDINGS[name].status
    text = reply.body.decode() or reply.message
    estimate = 300_000 if name == "anthropic-tier" else tokens
    verdict = classify_error(ErrorReport("", reply.status, reply.code, text, estimate=estimate, window=200))
    assert verdict.is_overflow, (name, text, verdict)
    assert verdict.limit in (None, 200)
    assert verdict.requested in (None, tokens)


def test_overflow_refusal_of_compatible_servers_has_its_own_body():
    """Some compatible servers send an object of their own, or an HTML page."""
    llama, tokens = refuse_long_request("openai-chat", overflow="llama.cpp")
    assert msgspec.json.decode(llama.body)["error"] | {"message": ""} == {
        "code": 400,
        "message": "",
        "type": "exceed_context_size_error",
        "n_prompt_tokens": tokens,
        "n_ctx": 200,
    }
    assert refuse_long_request("openai-chat", overflow="nginx")[0].body.startswith(b"<html>")
    assert refuse_long_request("openai-chat")[0].body == b""


def test_stream_overflow_is_an_error_status_without_a_stream():
    """The variant that fails after status 200 does so only when a stream was requested."""
    provider = Provider(msgspec.structs.replace(SMALL, overflow="stream"))
    body = msgspec.json.encode({"model": "gpt-5.5", "input": LONG})
    for stream in (True, False):
        reply = provider.answer(IncomingRequest("openai-responses", "generate", body, stream=stream))
        assert (reply.in_stream, reply.code) == (stream, "context_length_exceeded")


@pytest.mark.parametrize("api", NATIVE_MESSAGES)
def test_stream_overflow_has_the_code_of_its_api(api):
    """The error event does not mix the codes of two APIs."""
    assert refuse_long_request(api, overflow="stream")[0].code == refuse_long_request(api)[0].code


@pytest.mark.parametrize(
    "settings", [{"factor": float("inf")}, {"factor": float("nan")}, {"factor": -1.0}, {"window": 0}]
)
def test_provider_settings_rejects_impossible_numbers(settings):
    """The error is raised when the settings are made."""
    with pytest.raises(ConfigError, match="give"):
        ProviderSettings(**settings)


def test_silent_overflow_answers_with_the_window_as_usage():
    """The front of the prompt is dropped, and nothing is read from the cache."""
    for fields, options in (({"overflow": "silent"}, {}), ({}, {"truncation": "auto"})):
        provider = Provider(msgspec.structs.replace(SMALL, cache_minimum=1, **fields))
        ProviderClient(provider, "openai-responses", **options).send_user_text(LONG)
        reply = ProviderClient(provider, "openai-responses", **options).send_user_text(LONG)
        assert isinstance(reply, ModelAnswer)
        assert (reply.usage.total_input, reply.usage.cache_read, reply.parts[0].text) == (200, 0, "ok 2")


def test_overflow_counts_the_output_where_the_model_does():
    """Claude up to 4.5 and older chat models refuse what does not fit beside the output; newer ones do not."""
    for api, model, message in (
        ("anthropic", "claude-sonnet-4-5", "input length and `max_tokens` exceed context limit: {tokens} + 190 > 200"),
        ("openai-chat", "gpt-4o", "({tokens} in your prompt; 190 for the completion)"),
    ):
        for chosen_model, kind in ((model, RefusalReply), (STRICTEST_MODELS[api], ModelAnswer)):
            provider = Provider(SMALL)
            client = ProviderClient(provider, api, model=chosen_model, **{LIMIT_FIELDS[api]: 190})
            reply = client.send_user_text("lorem ipsum " * 10)
            assert isinstance(reply, kind)
            if isinstance(reply, RefusalReply):
                assert message.format(tokens=provider.requests[-1].tokens) in reply.message
    always = Provider(msgspec.structs.replace(SMALL, counts_output=True))
    assert isinstance(
        ProviderClient(always, "anthropic", max_tokens=190).send_user_text("lorem ipsum " * 10), RefusalReply
    )
    never = Provider(msgspec.structs.replace(SMALL, counts_output=False))
    assert isinstance(
        ProviderClient(never, "anthropic", model="claude-2.1", max_tokens=190).send_user_text("lorem ipsum " * 10),
        ModelAnswer,
    )


def test_answer_stops_at_the_end_of_the_window():
    """Newer Claude models name the window as the reason, others the length."""
    for api, stop in (("anthropic", "window"), ("openai-chat", "length")):
        client = ProviderClient(Provider(SMALL, [ScriptedAnswer("word " * 500)]), api)
        reply = client.send_user_text("hello")
        assert reply.stop == stop
        assert reply.usage.total_input + reply.usage.output <= 200


@pytest.mark.parametrize("name", ["native", "anthropic", "openai"])
@pytest.mark.parametrize("api", ["anthropic", "openai-chat"])
def test_output_overflow_is_not_worded_as_a_too_long_prompt(api, name):
    """With any wording, no number below the limit is said to exceed it."""
    provider = Provider(ProviderSettings(window=200, tokenizer="words", counts_output=True, overflow=name))
    client = ProviderClient(provider, api, **{LIMIT_FIELDS[api]: 199})
    reply = client.send_user_text("hello there, and how are you today?")
    assert isinstance(reply, RefusalReply)
    verdict = classify_error(ErrorReport("", reply.status, reply.code, reply.message, estimate=30, window=200))
    assert (verdict.is_overflow, verdict.limit) == (True, 200)
    assert "prompt is too long" not in reply.message
    assert "resulted in" not in reply.message


@pytest.mark.parametrize("name", sorted(OVERFLOW_WORDINGS))
def test_output_overflow_wording_includes_the_output_in_its_size(name):
    """Where the output is what does not fit, a wording with a single size means input and output together."""
    provider = Provider(ProviderSettings(window=2_000, tokenizer="words", counts_output=True, overflow=name))
    reply = ProviderClient(provider, "openai-chat", max_completion_tokens=1_999).send_user_text(
        "hello there, and how are you today?"
    )
    assert isinstance(reply, RefusalReply)
    tokens = provider.requests[-1].tokens
    numbers = {int(number.replace(",", "")) for number in re.findall(r"\d[\d,]*", reply.message)}
    assert not numbers & {tokens, 4 * tokens} or 1_999 in numbers


def test_overflow_begins_one_token_above_the_window():
    """A request of exactly the window is accepted, and one token more is refused."""
    body = {"model": "gpt-5.5", "messages": [{"role": "user", "content": LONG}]}
    size = Provider(ProviderSettings(tokenizer="words")).answer_body("openai-chat", body, endpoint="count").tokens
    assert isinstance(
        Provider(ProviderSettings(tokenizer="words", window=size)).answer_body("openai-chat", body), ModelAnswer
    )
    assert isinstance(
        Provider(ProviderSettings(tokenizer="words", window=size - 1)).answer_body("openai-chat", body), RefusalReply
    )


def test_body_over_max_bytes_is_refused_unread():
    """The status is 413, or 400 for Gemini."""
    for api, status in (("anthropic", 413), ("openai-chat", 413), ("gemini", 400)):
        provider = Provider(ProviderSettings(max_bytes=10))
        assert provider.answer_body(api, b"{" * 11, model="m").status == status
        assert "JSON" in provider.answer_body(api, b"{" * 10, model="m").message


def test_max_tokens_above_the_model_limit_is_refused():
    """The refusal is an error of its own and no overflow."""
    for api in STRICTEST_MODELS:
        value = {"maxOutputTokens": 900} if api == "gemini" else 900
        reply = ProviderClient(
            Provider(ProviderSettings(max_output=100, tokenizer="words")), api, **{LIMIT_FIELDS[api]: value}
        ).send_user_text("x")
        assert isinstance(reply, RefusalReply)
        assert "900" in reply.message
        assert reply.code != "context_length_exceeded"


def test_overflow_names_are_unique_and_complete():
    """Each selectable name is listed once."""
    assert len(set(OVERFLOW_NAMES)) == len(OVERFLOW_NAMES) == len(OVERFLOW_WORDINGS) + 2
