"""The floor of the reserve: a lower configured reserve is raised, in small windows to a quarter of the window."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import Message, Policy, plan
from holdfast.config import get_target
from holdfast.planning.budget import compute_budget
from holdfast.planning.pipeline import RESERVE_FLOOR_RULE
from holdfast.planning.presets.registry import PRESETS
from holdfast.state.entries import RequestSetup
from holdfast.state.target import ModelLimits

MESSAGES = [Message.from_text("user", "Hello.")]


def _build_target(window=200_000, setup_tokens=0):
    return get_target(
        "anthropic",
        "claude-sonnet-4-5",
        window=window,
        setup=RequestSetup("f", setup_tokens) if setup_tokens else RequestSetup(),
    )


def _list_floor_notices(new_plan):
    return [notice.why for notice in new_plan.notices if notice.rule == RESERVE_FLOOR_RULE]


@given(st.integers(1, 300_000), st.integers(0, 40_000), st.integers(0, 40_000))
def test_compute_limit_reserves_the_floor_but_at_most_a_quarter(window, configured, floor):
    """The trigger reserves the larger of the configured reserve and the floor, which is at most a quarter of the
    window.
    """
    policy = Policy.preset("pi").with_settings(preset={"trigger_reserve": configured}, reserve={"floor": floor})
    reserve = window - policy.rules.compute_limit(_build_target(window).limits, policy.settings)
    assert reserve == max(configured, min(floor, window // 4))


@given(st.integers(10_000, 300_000), st.integers(1_024, 19_999))
def test_compute_budget_keeps_the_floor_for_the_answer(window, configured):
    """Holdfast's policy keeps as much for the answer as by default, however low its reserve is set."""
    low = Policy().with_settings(reserve={"max": configured}).settings
    assert (
        compute_budget(_build_target(window), low).reserve
        == compute_budget(_build_target(window), Policy().settings).reserve
    )


def test_compute_budget_floor_never_takes_the_minimum_budget():
    """The floor never takes the minimum budget that a conversation needs."""
    target, policy = _build_target(9_500, setup_tokens=3_000), Policy().with_settings(reserve={"max": 1_500})
    assert compute_budget(target, policy.settings).message_tokens >= policy.settings.window.min_budget
    plan(MESSAGES, target, policy)


@pytest.mark.parametrize(
    ("preset", "changes", "name"),
    [
        ("openclaw", {"preset": {"trigger_reserve": 5_000}}, "preset.trigger_reserve = 5,000"),
        ("holdfast", {"reserve": {"max": 5_000}}, "reserve.max = 5,000"),
    ],
)
def test_plan_reports_a_raised_reserve(preset, changes, name):
    """The notice names the setting, its value and the floor; with a floor as low there is no notice."""
    policy = Policy.preset(preset).with_settings(**changes)
    (why,) = _list_floor_notices(plan(MESSAGES, _build_target(), policy))
    assert name in why
    assert "reserve.floor = 20,000" in why
    assert _list_floor_notices(plan(MESSAGES, _build_target(), policy.with_settings(reserve={"floor": 5_000}))) == []
    assert _list_floor_notices(plan(MESSAGES, _build_target(18_000), policy)) == []


@pytest.mark.parametrize("preset", PRESETS)
def test_plan_reports_nothing_for_an_unchanged_preset(preset):
    """A preset's own reserve was not configured by the user, so nothing is reported."""
    assert _list_floor_notices(plan(MESSAGES, _build_target(), Policy.preset(preset))) == []


@pytest.mark.parametrize(("preset", "reserve"), [("openclaw", 20_000), ("pi", 16_384), ("claude-code", 33_000)])
def test_presets_keep_their_own_reserves(preset, reserve):
    """[O] raises pi's 16,384 to its floor and has 16,384 without it; the other tools have no floor."""
    policy = Policy.preset(preset)
    assert 200_000 - policy.rules.compute_limit(_build_target().limits, policy.settings) == reserve
    without_floor = policy.with_settings(reserve={"floor": 0})
    own_reserve = 16_384 if preset == "openclaw" else reserve
    assert 200_000 - without_floor.rules.compute_limit(_build_target().limits, without_floor.settings) == own_reserve


def test_compute_limit_of_openclaw_ignores_the_input_limit():
    """[O] has no input limit, so one below the window does not move the trigger."""
    limits = ModelLimits(400_000, max_input=272_000)
    openclaw = Policy.preset("openclaw")
    assert openclaw.rules.compute_limit(limits, openclaw.settings) == 380_000
    by_input = Policy.preset("opencode").with_settings(preset={"trigger_reserve": 5_000}, reserve={"floor": 20_000})
    assert by_input.rules.compute_limit(limits, by_input.settings) == 252_000


@pytest.mark.parametrize("preset", ["pi", "opencode", "claude-code"])
def test_compute_limit_takes_any_reserve_without_a_floor(preset):
    """[P][C][K] A reserve counts as it was set."""
    output_settings = {} if preset == "pi" else {"trigger_output": 0}
    policy = Policy.preset(preset).with_settings(preset={"trigger_reserve": 5_000} | output_settings)
    assert policy.rules.compute_limit(_build_target().limits, policy.settings) == 195_000
    assert _list_floor_notices(plan(MESSAGES, _build_target(), policy)) == []
