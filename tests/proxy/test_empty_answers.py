"""An empty success for an oversized request never reaches the client: the request is made smaller first."""

from __future__ import annotations

import json

import anyio
import pytest
from simulated_gateways import EmptyAnswerGateway

from holdfast.testing.provider import Provider
from holdfast.testing.provider import ProviderSettings as Strict
from holdfast.testing.provider.client import STRICTEST_MODELS

WORDS = "kelp on the rock, and the tide comes in. " * 200


@pytest.mark.parametrize("api", STRICTEST_MODELS)
def test_proxy_retries_an_empty_answer_to_an_oversized_request(api, open_client, make_upstream, make_chat):
    """A server that answers an oversized request with an empty success is asked again with less, so every answer has
    words.
    """
    gateway, chat = EmptyAnswerGateway(Provider(Strict(window=16_000))), make_chat(api)

    async def scenario():
        async with open_client(make_upstream(gateway)) as client:
            return [await chat.send_turn(client, f"Note {number}: {WORDS}") for number in range(12)]

    replies = anyio.run(scenario)
    assert all(b"ok " in reply.content for reply in replies)
    assert gateway.empty_count == 1


def test_proxy_retries_an_empty_stream_before_passing_it_on(open_client, make_upstream, make_chat):
    """No event of a stream is passed on before the stream is known not to be empty."""
    gateway, chat = EmptyAnswerGateway(Provider(Strict(window=16_000))), make_chat("openai-chat", stream=True)

    async def scenario():
        async with open_client(make_upstream(gateway)) as client:
            for number in range(12):
                chat.add_user_text(f"Note {number}: {WORDS}")
                reply = await client.post(chat.path, chat.body() | {"stream_options": {"include_usage": True}})
                lines = [line[6:] for line in reply.text.splitlines() if line.startswith("data: {")]
                deltas = [choice["delta"] for line in lines for choice in json.loads(line)["choices"]]
                words = "".join(delta.get("content") or "" for delta in deltas)
                assert words
                chat.messages.append({"role": "assistant", "content": words})

    anyio.run(scenario)
    assert gateway.empty_count == 1
