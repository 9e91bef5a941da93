"""What the repair sends is answered by the strict provider, which nobody in the repair asks or knows."""

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
"""The histories hold signatures that other providers made, over what stood there before."""
PATHS = {
    "anthropic": "/v1/messages",
    "openai-chat": "/v1/chat/completions",
    "openai-responses": "/v1/responses",
    "gemini": "/v1beta/models/{}:generateContent",
}


def beside(api, model):
    """Return the fields beside the messages: those that are required, and thinking as the model takes it."""
    if api != "anthropic":
        return {}
    known = get_claude_traits(model)
    manual = known is not None and known.manual_thinking and not known.adaptive_thinking
    thinking = {"type": "enabled", "budget_tokens": 1_024} if manual else {"type": "adaptive"}
    return {"max_tokens": 4_096, "thinking": thinking}


def sent(seed, api, model):
    """Return the request that history ``seed`` becomes; nothing when nobody said anything in it."""
    messages = mangle_conversation(Random(seed), api)
    if not any(map(has_nonblank_content, messages)):
        return None
    slots = [SizedMessage(message) for message in messages]
    edits = normalize_history(messages, get_target(api, model, window=1_000_000).dialect)
    return build_request_body(api, model, apply_normalization(slots, edits), setup_fields=beside(api, model))


def wants_thinking_first(reply):
    """Return whether a request was refused for asking old models for thinking that the history began without.

    That is an option of the request, which no repair of a history sees; ``holdfast fix`` does.
    """
    return isinstance(reply, RefusalReply) and "Expected `thinking`" in reply.message


@pytest.mark.counts
@pytest.mark.parametrize(("api", "model"), FAMILIES)
def test_the_provider_answers_what_was_repaired(api, model):
    """valid-request: whatever was mangled, the strict provider answers."""
    provider = Provider(LENIENT)
    for seed in range(COUNT):
        request = sent(seed, api, model)
        if request is not None:
            reply = provider.answer_body(api, request, model=model)
            assert not isinstance(reply, RefusalReply) or wants_thinking_first(reply), (seed, reply)


@pytest.mark.parametrize(("api", "model"), FAMILIES)
def test_mangled_histories_are_refused(api, model):
    """Without the repair some of these histories are refused, or the test above would prove nothing."""
    provider = Provider(LENIENT)
    replies = [
        provider.answer_body(
            api,
            build_request_body(
                api,
                model,
                [SizedMessage(one) for one in mangle_conversation(Random(seed), api)],
                setup_fields=beside(api, model),
            ),
            model=model,
        )
        for seed in range(30)
    ]
    assert any(isinstance(reply, RefusalReply) for reply in replies)


@pytest.mark.counts
def test_some_of_them_go_over_http():
    """valid-request: one history in a hundred goes to the provider as a client would send it, and
    comes back with 200.
    """
    with serve_provider(Provider(LENIENT)) as url, httpx2.Client(base_url=url) as client:
        for number, (api, model) in enumerate(FAMILIES):
            for seed in range(number, COUNT, 100):
                request = sent(seed, api, model)
                if request is None:
                    continue
                headers = {"content-type": "application/json", "x-api-key": "k", "authorization": "Bearer k"}
                answer = client.post(PATHS[api].format(model), content=request, headers=headers)
                is_fine = answer.status_code == 200 or "Expected `thinking`" in answer.text
                assert is_fine, (api, model, seed, answer.text)
