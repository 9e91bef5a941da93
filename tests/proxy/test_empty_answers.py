"""An empty success for what was too large: a client never gets it, its request is made smaller first."""

from __future__ import annotations

import json

import anyio
import pytest
from simulated_gateways import Silent

from holdfast.testing.provider import Provider
from holdfast.testing.provider import ProviderSettings as Strict
from holdfast.testing.provider.client import STRICTEST_MODELS

WORDS = "kelp on the rock, and the tide comes in. " * 200


@pytest.mark.parametrize("api", STRICTEST_MODELS)
def test_a_client_is_not_given_the_silence_of_a_server_that_read_nothing(api, proxied):
    """Each of its answers has words, while what it sends grows on and on over what the server takes."""
    through, upstreams, talking = proxied
    gateway, talk = Silent(Provider(Strict(window=16_000))), talking(api)

    async def go():
        async with through(upstreams(gateway)) as client:
            return [await talk.turn(client, f"Note {number}: {WORDS}") for number in range(12)]

    replies = anyio.run(go)
    assert all(b"ok " in reply.content for reply in replies)
    assert gateway.silent == 1


def test_a_stream_s_client_is_not_given_it_either(proxied):
    """Nothing of it was passed on before it was judged."""
    through, upstreams, talking = proxied
    gateway, talk = Silent(Provider(Strict(window=16_000))), talking("openai-chat", stream=True)

    async def go():
        async with through(upstreams(gateway)) as client:
            for number in range(12):
                talk.say(f"Note {number}: {WORDS}")
                reply = await client.post(talk.path, talk.body() | {"stream_options": {"include_usage": True}})
                lines = [line[6:] for line in reply.text.splitlines() if line.startswith("data: {")]
                deltas = [choice["delta"] for line in lines for choice in json.loads(line)["choices"]]
                words = "".join(delta.get("content") or "" for delta in deltas)
                assert words
                talk.said.append({"role": "assistant", "content": words})

    anyio.run(go)
    assert gateway.silent == 1
