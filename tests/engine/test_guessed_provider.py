"""At an address that is not known, the engine holds a provider's rules about options against nobody."""

from __future__ import annotations

import json

import anyio
import pytest

from holdfast.config import get_target
from holdfast.engine.engine import Engine
from holdfast.errors import InvalidRequest
from holdfast.store.memory import MemoryStore
from holdfast.testing.upstream import ScriptedUpstream

MODEL, OPTIONS = "devstral-small-2507", {"seed": 7, "top_k": 5}
UNKNOWN, MISTRAL = "http://127.0.0.1:8000/v1", "https://api.mistral.ai/v1"
BY_NAME = {"api": "openai-chat", "model": MODEL}
BY_TARGET = {"target": get_target("openai-chat", MODEL)}
BY_NAMED_TARGET = {"target": get_target("openai-chat", MODEL, provider="mistral")}


def ask_with_options(address, chosen):
    """Return the body that an engine sends to ``address`` with options that Mistral does not know."""
    upstream = ScriptedUpstream(["yes"])
    upstream.base_url = address

    async def scenario():
        async with Engine.open(MemoryStore(), upstream=upstream, fields=OPTIONS, **chosen) as engine:
            session = await engine.session("s")
            await session.ask("Go.")

    anyio.run(scenario)
    return json.loads(upstream.sent[0].body)


@pytest.mark.parametrize("chosen", [BY_NAME, BY_TARGET])
def test_engine_sends_options_to_an_unknown_server_as_they_are(chosen):
    """A server of open weights takes ``seed`` and ``top_k``, and an answer comes as a stream with its usage."""
    body = ask_with_options(UNKNOWN, chosen)
    assert OPTIONS.items() <= body.items()
    assert body["stream_options"] == {"include_usage": True}


@pytest.mark.parametrize(
    ("address", "chosen"), [(MISTRAL, BY_NAME), (MISTRAL, BY_TARGET), ("", BY_TARGET), (UNKNOWN, BY_NAMED_TARGET)]
)
def test_engine_refuses_options_where_the_provider_is_known(address, chosen):
    """A known address, and a target for which somebody named the provider, are no guesses; nor is a name alone."""
    with pytest.raises(InvalidRequest, match=r"mistral\.unknown-field"):
        ask_with_options(address, chosen)
