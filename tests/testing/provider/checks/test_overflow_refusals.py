"""A request that is too large is refused as each provider does, with true numbers; or cut, where that is asked for."""

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


def over(api, **fields):
    """Return the refusal of a long request, and its tokens."""
    provider = Provider(msgspec.structs.replace(SMALL, **fields))
    reply = ProviderClient(provider, api).send_user_text(LONG)
    assert isinstance(reply, RefusalReply), reply
    return reply, provider.requests[-1].tokens


NATIVE = {
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


@pytest.mark.parametrize("api", NATIVE)
def test_each_api_says_it_in_its_own_words(api):
    """By default an overflow has the wording, the code and the numbers of the API's own provider."""
    reply, tokens = over(api)
    assert tokens > 400
    assert (reply.status, reply.message) == (400, NATIVE[api].format(tokens=tokens))
    if api.startswith("openai"):
        assert reply.code == "context_length_exceeded"


@pytest.mark.parametrize("name", OVERFLOW_WORDINGS)
def test_every_wording_is_an_overflow_to_the_classifier(name):
    """All variants are told apart from other errors by our own classifier, and no number is wrong."""
    reply, tokens = over("openai-chat", overflow=name)
    assert reply.status == OVERFLOW_WORDINGS[name].status
    said = reply.body.decode() or reply.message
    estimate = 300_000 if name == "anthropic-tier" else tokens
    found = classify_error(ErrorReport("", reply.status, reply.code, said, estimate=estimate, window=200))
    assert found.is_overflow, (name, said, found)
    assert found.limit in (None, 200)
    assert found.requested in (None, tokens)


def test_some_servers_have_their_own_error_bodies():
    """Servers that only resemble an API send their own object, or a page."""
    llama, tokens = over("openai-chat", overflow="llama.cpp")
    assert msgspec.json.decode(llama.body)["error"] | {"message": ""} == {
        "code": 400,
        "message": "",
        "type": "exceed_context_size_error",
        "n_prompt_tokens": tokens,
        "n_ctx": 200,
    }
    assert over("openai-chat", overflow="nginx")[0].body.startswith(b"<html>")
    assert over("openai-chat")[0].body == b""


def test_an_error_in_a_stream_needs_a_stream():
    """The variant that speaks after 200 does so where a stream was asked for, else as an error."""
    provider = Provider(msgspec.structs.replace(SMALL, overflow="stream"))
    body = msgspec.json.encode({"model": "gpt-5.5", "input": LONG})
    for stream in (True, False):
        reply = provider.answer(IncomingRequest("openai-responses", "generate", body, stream=stream))
        assert (reply.in_stream, reply.code) == (stream, "context_length_exceeded")


@pytest.mark.parametrize("api", NATIVE)
def test_an_error_in_a_stream_has_the_code_of_its_api(api):
    """An event that tells an overflow does not mix the codes of two APIs."""
    assert over(api, overflow="stream")[0].code == over(api)[0].code


@pytest.mark.parametrize("wrong", [{"factor": float("inf")}, {"factor": float("nan")}, {"factor": -1.0}, {"window": 0}])
def test_settings_of_no_provider_are_refused(wrong):
    """Numbers that nothing can be counted with are told when the settings are made."""
    with pytest.raises(ConfigError, match="give"):
        ProviderSettings(**wrong)


def test_truncation_is_silent():
    """Dropped from the front: the request is answered, with the window as its usage and no cache."""
    for fields, options in (({"overflow": "silent"}, {}), ({}, {"truncation": "auto"})):
        provider = Provider(msgspec.structs.replace(SMALL, cache_minimum=1, **fields))
        ProviderClient(provider, "openai-responses", **options).send_user_text(LONG)
        reply = ProviderClient(provider, "openai-responses", **options).send_user_text(LONG)
        assert isinstance(reply, ModelAnswer)
        assert (reply.usage.total_input, reply.usage.cache_read, reply.parts[0].text) == (200, 0, "ok 2")


def test_output_counts_where_the_model_counts_it():
    """Claude up to 4.5 and older chat models refuse what does not fit beside the output; newer ones do not."""
    for api, model, said in (
        ("anthropic", "claude-sonnet-4-5", "input length and `max_tokens` exceed context limit: {tokens} + 190 > 200"),
        ("openai-chat", "gpt-4o", "({tokens} in your prompt; 190 for the completion)"),
    ):
        for chosen, kind in ((model, RefusalReply), (STRICTEST_MODELS[api], ModelAnswer)):
            provider = Provider(SMALL)
            client = ProviderClient(provider, api, model=chosen, max_tokens=190)
            reply = client.send_user_text("lorem ipsum " * 10)
            assert isinstance(reply, kind)
            if isinstance(reply, RefusalReply):
                assert said.format(tokens=provider.requests[-1].tokens) in reply.message
    always = Provider(msgspec.structs.replace(SMALL, counts_output=True))
    assert isinstance(
        ProviderClient(always, "anthropic", max_tokens=190).send_user_text("lorem ipsum " * 10), RefusalReply
    )
    never = Provider(msgspec.structs.replace(SMALL, counts_output=False))
    assert isinstance(
        ProviderClient(never, "anthropic", model="claude-2.1", max_tokens=190).send_user_text("lorem ipsum " * 10),
        ModelAnswer,
    )


def test_an_answer_stops_at_the_end_of_the_window():
    """Newer Claude stops where the window ends, others because of their length."""
    for api, stop in (("anthropic", "window"), ("openai-chat", "length")):
        client = ProviderClient(Provider(SMALL, [ScriptedAnswer("word " * 500)]), api)
        reply = client.send_user_text("hello")
        assert reply.stop == stop
        assert reply.usage.total_input + reply.usage.output <= 200


@pytest.mark.parametrize("name", ["native", "anthropic", "openai"])
@pytest.mark.parametrize("api", ["anthropic", "openai-chat"])
def test_what_fits_but_for_its_output_is_not_told_as_too_long(api, name):
    """Also where the wording was chosen: no number that is below the limit is said to be above it."""
    provider = Provider(ProviderSettings(window=200, tokenizer="words", counts_output=True, overflow=name))
    client = ProviderClient(provider, api, max_tokens=199)
    reply = client.send_user_text("hello there, and how are you today?")
    assert isinstance(reply, RefusalReply)
    found = classify_error(ErrorReport("", reply.status, reply.code, reply.message, estimate=30, window=200))
    assert (found.is_overflow, found.limit) == (True, 200)
    assert "prompt is too long" not in reply.message
    assert "resulted in" not in reply.message


@pytest.mark.parametrize("name", sorted(OVERFLOW_WORDINGS))
def test_no_wording_names_a_size_below_the_limit_alone(name):
    """Where the output is what does not fit, a server that names one size means both together."""
    provider = Provider(ProviderSettings(window=2_000, tokenizer="words", counts_output=True, overflow=name))
    reply = ProviderClient(provider, "openai-chat", max_tokens=1_999).send_user_text(
        "hello there, and how are you today?"
    )
    assert isinstance(reply, RefusalReply)
    tokens = provider.requests[-1].tokens
    told = {int(number.replace(",", "")) for number in re.findall(r"\d[\d,]*", reply.message)}
    assert not told & {tokens, 4 * tokens} or 1_999 in told


def test_the_last_token_fits():
    """A request of exactly the window is taken, one token more is not."""
    body = {"model": "gpt-5.5", "messages": [{"role": "user", "content": LONG}]}
    size = Provider(ProviderSettings(tokenizer="words")).answer_body("openai-chat", body, endpoint="count").tokens
    assert isinstance(
        Provider(ProviderSettings(tokenizer="words", window=size)).answer_body("openai-chat", body), ModelAnswer
    )
    assert isinstance(
        Provider(ProviderSettings(tokenizer="words", window=size - 1)).answer_body("openai-chat", body), RefusalReply
    )


def test_too_many_bytes_are_refused_before_all_else():
    """A body over the limit is refused unread: 413, or 400 at Gemini."""
    for api, status in (("anthropic", 413), ("openai-chat", 413), ("gemini", 400)):
        provider = Provider(ProviderSettings(max_bytes=10))
        assert provider.answer_body(api, b"{" * 11, model="m").status == status
        assert "JSON" in provider.answer_body(api, b"{" * 10, model="m").message


def test_output_over_the_models_own_limit_is_refused():
    """max_tokens above what the model can say is an error of its own, no overflow."""
    for api in STRICTEST_MODELS:
        field = {"gemini": "generationConfig", "openai-responses": "max_output_tokens"}.get(api, "max_tokens")
        value = {"maxOutputTokens": 900} if api == "gemini" else 900
        reply = ProviderClient(
            Provider(ProviderSettings(max_output=100, tokenizer="words")), api, **{field: value}
        ).send_user_text("x")
        assert isinstance(reply, RefusalReply)
        assert "900" in reply.message
        assert reply.code != "context_length_exceeded"


def test_names_are_all_there():
    """What may be chosen is listed once."""
    assert len(set(OVERFLOW_NAMES)) == len(OVERFLOW_NAMES) == len(OVERFLOW_WORDINGS) + 2
