"""Room for an answer whose model thinks in most of it: kept free before each request, not asked for by a refusal."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from samples import KEY

from holdfast import events
from holdfast.config import target
from holdfast.engine.engine import Engine
from holdfast.engine.requests import framed
from holdfast.planning.budget import LEAST_ROOM, measure_room
from holdfast.planning.settings import Settings
from holdfast.store.memory import MemoryStore
from holdfast.testing.clock import run
from holdfast.testing.provider import Provider
from holdfast.testing.provider import Settings as Strict
from holdfast.testing.upstream import ProviderUpstream

MODEL = "claude-sonnet-4-5"
"""A model that refuses where the output asked for does not fit beside the input."""


def thinking(most, budget):
    """Return the fields of a request that asks for ``most`` tokens, of which ``budget`` may be thought."""
    return {"max_tokens": most, "thinking": {"type": "enabled", "budget_tokens": budget}}


@pytest.mark.parametrize("most", [6_000, 9_000, 16_000, 20_000, 26_000])
def test_no_request_is_refused_for_what_its_model_may_think_in(most):
    """P0: the guard knows what goes out: its answer is never limited to less than the thinking and a token."""
    heard = []

    async def talk():
        upstream, goal = ProviderUpstream(Provider(Strict(window=32_000))), target("anthropic", MODEL, window=32_000)
        opened = Engine.open(
            MemoryStore(), upstream=upstream, target=goal, fields=thinking(most, most - 1), listen=heard.append
        )
        async with opened as engine:
            session = await engine.session(KEY)
            for number in range(40):
                await session.ask(f"{number} " + "kelp on the rock " * 150)

    run(talk)
    assert [event for event in heard if isinstance(event, events.Refused)] == []
    assert [event for event in heard if isinstance(event, events.Compacted)]


@pytest.mark.parametrize("window", [6_000, 9_000, 16_000, 32_000, 200_000])
@pytest.mark.parametrize("budget", [1_024, 5_000, 31_000, 150_000])
def test_room_for_thinking_takes_none_that_a_conversation_needs(window, budget):
    """All that the model may think in is kept free, but for the least room; no session ends that had room before."""
    place = framed(target("anthropic", MODEL, window=window), thinking(budget + 1, budget))
    bare, settings = replace(place, limits=replace(place.limits, least_output=0)), Settings()
    room, before = measure_room(place, settings), measure_room(bare, settings)
    assert room.size >= min(before.size, settings.room_min)
    most = window - room.frame - max(LEAST_ROOM, settings.room_min)
    assert room.reserve == max(before.reserve, min(budget + 1, most))
