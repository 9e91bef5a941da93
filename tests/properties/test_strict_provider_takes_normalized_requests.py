"""The strict provider, which shares no code with the normalization, accepts normalized requests."""

from __future__ import annotations

from random import Random

import example_counts
import httpx2
import pytest
from history_fuzzer import MANGLE_MODELS, mangle_conversation

from holdfast.config import get_target
from holdfast.messages.sized_message import SizedMessage
from holdfast.normalize.normalize_history import normalize_history
from holdfast.normalize.parts import has_nonblank_content
from holdfast.providers.anthropic.models import get_claude_traits
from holdfast.providers.registry import API_NAMES
from holdfast.providers.requests.request_body import build_request_body
from holdfast.state.view import apply_normalization
from holdfast.testing.provider import Provider, ProviderSettings, RefusalReply
from holdfast.testing.provider.server.local_server import serve_provider

FAMILIES = [(api, model) for api in API_NAMES for model in MANGLE_MODELS[api]]
COUNT = example_counts.choose(quick=30, ci=100, thorough=500)
"""Histories for each model family."""
LENIENT = ProviderSettings(window=1_000_000, accepted_seals="any", binds_thinking="never")
"""The histories contain signatures of other providers, made over other prefixes."""
PATHS = {
    "anthropic": "/v1/messages",
    "openai-chat": "/v1/chat/completions",
    "openai-responses": "/v1/responses",
    "gemini": "/v1beta/models/{}:generateContent",
}


def build_setup_fields(api, model):
    """Return the fields beside the messages: the required ones, and thinking in the form that the model takes."""
    if api != "anthropic":
        return {}
    traits = get_claude_traits(model)
    is_manual = traits is not None and traits.manual_thinking and not traits.adaptive_thinking
    thinking = {"type": "enabled", "budget_tokens": 1_024} if is_manual else {"type": "adaptive"}
    return {"max_tokens": 4_096, "thinking": thinking}


def build_request(seed, api, model):
    """Return the normalized request of history ``seed``, or None if the history has no content."""
    messages = mangle_conversation(Random(seed), api)
    if not any(map(has_nonblank_content, messages)):
        return None
    sized_messages = [SizedMessage(message) for message in messages]
    edits = normalize_history(messages, get_target(api, model, window=1_000_000).dialect)
    return build_request_body(
        api, model, apply_normalization(sized_messages, edits), setup_fields=build_setup_fields(api, model)
    )


def is_missing_thinking_refusal(reply):
    """Return whether a request was refused because an old model expects thinking that the history lacks.

    Thinking is an option of the request, which the normalization does not see; ``holdfast fix`` does.
    """
    return isinstance(reply, RefusalReply) and "Expected `thinking`" in reply.message


@pytest.mark.counts
@pytest.mark.parametrize(("api", "model"), FAMILIES)
def test_strict_provider_accepts_normalized_histories(api, model):
    """valid-request: whatever was mangled, the strict provider answers."""
    provider = Provider(LENIENT)
    for seed in range(COUNT):
        request = build_request(seed, api, model)
        if request is not None:
            reply = provider.answer_body(api, request, model=model)
            assert not isinstance(reply, RefusalReply) or is_missing_thinking_refusal(reply), (seed, reply)


@pytest.mark.parametrize(("api", "model"), FAMILIES)
def test_strict_provider_refuses_mangled_histories(api, model):
    """Without normalization some of these histories are refused; otherwise the test above would prove nothing."""
    provider = Provider(LENIENT)
    replies = [
        provider.answer_body(
            api,
            build_request_body(
                api,
                model,
                [SizedMessage(message) for message in mangle_conversation(Random(seed), api)],
                setup_fields=build_setup_fields(api, model),
            ),
            model=model,
        )
        for seed in range(30)
    ]
    assert any(isinstance(reply, RefusalReply) for reply in replies)


@pytest.mark.counts
def test_strict_provider_accepts_normalized_histories_over_http():
    """valid-request: one history in a hundred is sent over HTTP as a client would send it and is answered with 200."""
    with serve_provider(Provider(LENIENT)) as url, httpx2.Client(base_url=url) as client:
        for number, (api, model) in enumerate(FAMILIES):
            for seed in range(number, COUNT, 100):
                request = build_request(seed, api, model)
                if request is None:
                    continue
                headers = {"content-type": "application/json", "x-api-key": "k", "authorization": "Bearer k"}
                answer = client.post(PATHS[api].format(model), content=request, headers=headers)
                is_fine = answer.status_code == 200 or "Expected `thinking`" in answer.text
                assert is_fine, (api, model, seed, answer.text)
