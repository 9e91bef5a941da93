"""Reserve for answers that are mostly thinking: kept free before each request, without a refusal first."""

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
from holdfast.testing.provider import Provider, ProviderSettings
from holdfast.testing.upstream import ProviderUpstream

MODEL = "claude-sonnet-4-5"
"""A model that refuses where the output asked for does not fit beside the input."""


def build_thinking_fields(max_tokens, budget):
    """Return request fields with ``max_tokens``, of which ``budget`` tokens may be thinking."""
    return {"max_tokens": max_tokens, "thinking": {"type": "enabled", "budget_tokens": budget}}


@pytest.mark.parametrize("max_tokens", [6_000, 9_000, 16_000, 20_000, 26_000])
def test_request_with_a_thinking_budget_is_never_refused(max_tokens):
    """budget-sees-exact-request: the output is never limited to less than the thinking budget and a token."""
    seen_events = []

    async def run_scenario():
        upstream, target = (
            ProviderUpstream(Provider(ProviderSettings(window=32_000))),
            get_target("anthropic", MODEL, window=32_000),
        )
        opening = Engine.open(
            MemoryStore(),
            upstream=upstream,
            target=target,
            fields=build_thinking_fields(max_tokens, max_tokens - 1),
            listen=seen_events.append,
        )
        async with opening as engine:
            session = await engine.session(SAMPLE_KEY)
            for number in range(40):
                await session.ask(f"{number} " + "kelp on the rock " * 150)

    run_on_fake_clock(run_scenario)
    assert [event for event in seen_events if isinstance(event, events.RequestRefused)] == []
    assert [event for event in seen_events if isinstance(event, events.CompactionEnded)]


@pytest.mark.parametrize("window", [6_000, 9_000, 16_000, 32_000, 200_000])
@pytest.mark.parametrize("budget", [1_024, 5_000, 31_000, 150_000])
def test_compute_budget_reserves_the_thinking_budget_above_the_minimum(window, budget):
    """The thinking budget is reserved, except for the minimum that a conversation needs."""
    target = add_setup_to_target(
        get_target("anthropic", MODEL, window=window), build_thinking_fields(budget + 1, budget)
    )
    target_without_thinking, settings = replace(target, limits=replace(target.limits, min_output=0)), Settings()
    budget_with_thinking, budget_without_thinking = (
        compute_budget(target, settings),
        compute_budget(target_without_thinking, settings),
    )
    assert budget_with_thinking.message_tokens >= min(
        budget_without_thinking.message_tokens, settings.window.min_budget
    )
    available = window - budget_with_thinking.setup_tokens - max(MIN_GUESSED_BUDGET, settings.window.min_budget)
    assert budget_with_thinking.reserve == max(budget_without_thinking.reserve, min(budget + 1, available))
