"""What leaves Holdfast for a server is taken by the strict provider in its role, whose rows share no code with it.

``provider_fuzzer.py`` makes the requests, and tries as many as one likes from the command line.
"""

from __future__ import annotations

from random import Random

import example_counts
import pytest
from history_fuzzer import mangle_conversation
from provider_fuzzer import PROVIDER_MODELS, find_refusals, get_strict_provider, mutate_reasoning

from holdfast.messages.sized_message import SizedMessage
from holdfast.providers.requests.request_body import build_request_body
from holdfast.testing.provider import RefusalReply

COUNT = example_counts.choose(quick=15, ci=60, thorough=1_000)
"""Requests for each server."""


@pytest.mark.counts
@pytest.mark.parametrize("server", PROVIDER_MODELS)
def test_strict_server_takes_normalized_requests(server):
    """valid-request: mangled histories, reasoning of any server and options of any client are not refused."""
    assert list(find_refusals(server, 0, COUNT)) == []


@pytest.mark.parametrize("server", PROVIDER_MODELS)
def test_strict_server_refuses_mangled_requests(server):
    """Without normalization some of them are refused; otherwise the test above would prove nothing."""
    strict = get_strict_provider(server)
    api, model = PROVIDER_MODELS[server][0]
    replies = []
    for seed in range(30):
        rng = Random(seed)
        messages = [SizedMessage(message) for message in mutate_reasoning(mangle_conversation(rng, api), rng)]
        body = build_request_body(api, model, messages, setup_fields={"max_tokens": 400} if api == "anthropic" else {})
        replies.append(strict.answer_body(api, body, model=model))
        strict.requests.clear()
    assert any(isinstance(reply, RefusalReply) for reply in replies)
