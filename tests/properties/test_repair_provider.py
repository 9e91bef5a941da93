"""What the repair sends is answered by the strict provider, which nobody in the repair asks or knows."""

from __future__ import annotations

from random import Random

import counts
import httpx2
import pytest
from mangle import MODELS, mangled

from holdfast.config import target
from holdfast.messages.sized_message import Slot
from holdfast.normalize import repairs
from holdfast.normalize.parts import tells
from holdfast.providers.models import traits
from holdfast.providers.registry import APIS
from holdfast.providers.request_body import body
from holdfast.state.branch.view import patched
from holdfast.testing.provider import Provider, Refusal, Settings
from holdfast.testing.provider.server.serving import serving

FAMILIES = [(api, model) for api in APIS for model in MODELS[api]]
COUNT = counts.choose(quick=30, ci=100, thorough=500)
"""Histories for each model family."""
LENIENT = Settings(window=1_000_000, seals="any", binds="never")
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
    known = traits(model)
    manual = known is not None and known.manual and not known.adaptive
    thinking = {"type": "enabled", "budget_tokens": 1_024} if manual else {"type": "adaptive"}
    return {"max_tokens": 4_096, "thinking": thinking}


def sent(seed, api, model):
    """Return the request that history ``seed`` becomes; nothing when nobody said anything in it."""
    messages = mangled(Random(seed), api)
    if not any(map(tells, messages)):
        return None
    slots = [Slot(message) for message in messages]
    edits = repairs(messages, target(api, model, window=1_000_000).dialect)
    return body(api, model, patched(slots, edits), frame_fields=beside(api, model))


def wants_thinking_first(reply):
    """Return whether a request was refused for asking old models for thinking that the history began without.

    That is an option of the request, which no repair of a history sees; ``holdfast fix`` does.
    """
    return isinstance(reply, Refusal) and "Expected `thinking`" in reply.message


@pytest.mark.counts
@pytest.mark.parametrize(("api", "model"), FAMILIES)
def test_the_provider_answers_what_was_repaired(api, model):
    """W1: whatever was mangled, the strict provider answers."""
    provider = Provider(LENIENT)
    for seed in range(COUNT):
        request = sent(seed, api, model)
        if request is not None:
            reply = provider.ask(api, request, model=model)
            assert not isinstance(reply, Refusal) or wants_thinking_first(reply), (seed, reply)


@pytest.mark.parametrize(("api", "model"), FAMILIES)
def test_mangled_histories_are_refused(api, model):
    """Without the repair some of these histories are refused, or the test above would prove nothing."""
    provider = Provider(LENIENT)
    replies = [
        provider.ask(api, body(api, model, [Slot(one) for one in mangled(Random(seed), api)],
                               frame_fields=beside(api, model)), model=model)
        for seed in range(30)
    ]  # fmt: skip
    assert any(isinstance(reply, Refusal) for reply in replies)


@pytest.mark.counts
def test_some_of_them_go_over_http():
    """W1: one history in a hundred goes to the provider as a client would send it, and comes back with 200."""
    with serving(Provider(LENIENT)) as url, httpx2.Client(base_url=url) as client:
        for number, (api, model) in enumerate(FAMILIES):
            for seed in range(number, COUNT, 100):
                request = sent(seed, api, model)
                if request is None:
                    continue
                headers = {"content-type": "application/json", "x-api-key": "k", "authorization": "Bearer k"}
                answer = client.post(PATHS[api].format(model), content=request, headers=headers)
                is_fine = answer.status_code == 200 or "Expected `thinking`" in answer.text
                assert is_fine, (api, model, seed, answer.text)
