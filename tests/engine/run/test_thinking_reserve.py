"""Room for an answer whose model thinks in most of it: kept free before each request, not asked for by a refusal."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from sample_entries import SAMPLE_KEY

from holdfast import events
from holdfast.config import get_target
from holdfast.engine.engine import Engine
from holdfast.engine.request_template import add_setup_to_target
from holdfast.planning.budget import MIN_GUESSED_BUDGET, compute_budget
from holdfast.planning.settings import Settings
from holdfast.store.memory import MemoryStore
from holdfast.testing.clock import run_on_fake_clock
from holdfast.testing.provider import Provider
from holdfast.testing.provider import ProviderSettings as Strict
from holdfast.testing.upstream import ProviderUpstream

MODEL = "claude-sonnet-4-5"
"""A model that refuses where the output asked for does not fit beside the input."""


def thinking(most, budget):
    """Return the fields of a request that asks for ``most`` tokens, of which ``budget`` may be thought."""
    return {"max_tokens": most, "thinking": {"type": "enabled", "budget_tokens": budget}}


@pytest.mark.parametrize("most", [6_000, 9_000, 16_000, 20_000, 26_000])
def test_no_request_is_refused_for_what_its_model_may_think_in(most):
    """budget-sees-exact-request: the guard knows what goes out: its answer is never limited to less than the thinking
    and a token.
    """
    heard = []

    async def talk():
        upstream, goal = (
            ProviderUpstream(Provider(Strict(window=32_000))),
            get_target("anthropic", MODEL, window=32_000),
        )
        opened = Engine.open(
            MemoryStore(), upstream=upstream, target=goal, fields=thinking(most, most - 1), listen=heard.append
        )
        async with opened as engine:
            session = await engine.session(SAMPLE_KEY)
            for number in range(40):
                await session.ask(f"{number} " + "kelp on the rock " * 150)

    run_on_fake_clock(talk)
    assert [event for event in heard if isinstance(event, events.RequestRefused)] == []
    assert [event for event in heard if isinstance(event, events.CompactionEnded)]


@pytest.mark.parametrize("window", [6_000, 9_000, 16_000, 32_000, 200_000])
@pytest.mark.parametrize("budget", [1_024, 5_000, 31_000, 150_000])
def test_room_for_thinking_takes_none_that_a_conversation_needs(window, budget):
    """All that the model may think in is kept free, but for the least room; no session ends that had room before."""
    place = add_setup_to_target(get_target("anthropic", MODEL, window=window), thinking(budget + 1, budget))
    bare, settings = replace(place, limits=replace(place.limits, min_output=0)), Settings()
    room, before = compute_budget(place, settings), compute_budget(bare, settings)
    assert room.message_tokens >= min(before.message_tokens, settings.window.min_budget)
    most = window - room.setup_tokens - max(MIN_GUESSED_BUDGET, settings.window.min_budget)
    assert room.reserve == max(before.reserve, min(budget + 1, most))
