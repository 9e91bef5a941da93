"""The proxy plans a request for the window that its client negotiated."""

from __future__ import annotations

import json

import anyio
import pytest

from holdfast.testing.provider import Provider, ProviderSettings

BETA = "context-1m-2025-08-07"


@pytest.mark.parametrize(("headers", "is_whole"), [({"anthropic-beta": BETA}, True), ({}, False)])
def test_proxy_sends_a_long_conversation_whole_if_its_client_negotiated_the_window(
    headers, is_whole, open_client, make_upstream
):
    """The same conversation of some 200,000 tokens goes up whole with the beta in the header, else reduced."""
    upstream = make_upstream(Provider(ProviderSettings(window=1_000_000, tokenizer="words")))
    words = " ".join(f"word{number}" for number in range(1_500))
    messages = []
    for turn in range(60):
        messages += [{"role": "user", "content": f"{turn} {words}"}, {"role": "assistant", "content": f"ok {turn}"}]
    messages.append({"role": "user", "content": "and now?"})
    body = json.dumps({"model": "claude-next-9", "max_tokens": 100, "messages": messages}).encode()

    async def scenario():
        async with open_client(upstream) as client:
            return await client.post("/v1/messages", body, headers)

    reply = anyio.run(scenario)
    assert reply.status_code == 200
    assert (upstream.bodies == [body]) is is_whole
