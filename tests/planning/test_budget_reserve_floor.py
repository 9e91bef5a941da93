"""The floor of the reserve: a configured reserve under it is raised, in small windows to a quarter of them."""

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

SAID = [Message.from_text("user", "Hello.")]


def _place(window=200_000, frame=0):
    return get_target(
        "anthropic", "claude-sonnet-4-5", window=window, setup=RequestSetup("f", frame) if frame else RequestSetup()
    )


def _raised(made):
    return [notice.why for notice in made.notices if notice.rule == RESERVE_FLOOR_RULE]


@given(st.integers(1, 300_000), st.integers(0, 40_000), st.integers(0, 40_000))
def test_at_least_the_floor_is_held_back_but_of_no_window_more_than_a_quarter(window, configured, floor):
    """What a trigger holds back is the larger of what is configured and the floor, which is a quarter at most."""
    policy = Policy.preset("pi").with_settings(preset={"trigger_reserve": configured}, reserve={"floor": floor})
    held_back = window - policy.rules.compute_limit(_place(window).limits, policy.settings)
    assert held_back == max(configured, min(floor, window // 4))


@given(st.integers(10_000, 300_000), st.integers(1_024, 19_999))
def test_the_answer_keeps_at_least_the_floor_where_the_reserve_is_configured_lower(window, configured):
    """Our own policy keeps as much for an answer as by default, however low its reserve is set."""
    low = Policy().with_settings(reserve={"max": configured}).settings
    assert compute_budget(_place(window), low).reserve == compute_budget(_place(window), Policy().settings).reserve


def test_a_small_window_that_a_small_reserve_made_usable_stays_so():
    """The floor never takes the least room that a conversation needs."""
    where, policy = _place(9_500, frame=3_000), Policy().with_settings(reserve={"max": 1_500})
    assert compute_budget(where, policy.settings).message_tokens >= policy.settings.window.min_budget
    plan(SAID, where, policy)


@pytest.mark.parametrize(
    ("preset", "changes", "name"),
    [
        ("openclaw", {"preset": {"trigger_reserve": 5_000}}, "preset.trigger_reserve = 5,000"),
        ("holdfast", {"reserve": {"max": 5_000}}, "reserve.max = 5,000"),
    ],
)
def test_what_is_raised_is_said(preset, changes, name):
    """The notice has the setting, its value and the floor; with a floor as low there is none."""
    policy = Policy.preset(preset).with_settings(**changes)
    (why,) = _raised(plan(SAID, _place(), policy))
    assert name in why
    assert "reserve.floor = 20,000" in why
    assert _raised(plan(SAID, _place(), policy.with_settings(reserve={"floor": 5_000}))) == []
    assert _raised(plan(SAID, _place(18_000), policy)) == []


@pytest.mark.parametrize("preset", PRESETS)
def test_a_policy_as_it_comes_says_nothing(preset):
    """Nobody configured what a preset itself holds back."""
    assert _raised(plan(SAID, _place(), Policy.preset(preset))) == []


@pytest.mark.parametrize(("preset", "reserve"), [("openclaw", 20_000), ("pi", 16_384), ("claude-code", 33_000)])
def test_presets_keep_their_own_reserves(preset, reserve):
    """[O] raises pi's 16,384 to its floor, without which it is 16,384; the other tools have no floor."""
    policy = Policy.preset(preset)
    assert 200_000 - policy.rules.compute_limit(_place().limits, policy.settings) == reserve
    free = policy.with_settings(reserve={"floor": 0})
    own_reserve = 16_384 if preset == "openclaw" else reserve
    assert 200_000 - free.rules.compute_limit(_place().limits, free.settings) == own_reserve


def test_openclaw_holds_its_floor_back_of_the_window_alone():
    """[O] knows no input limit: one under the window does not move the size at which it compacts."""
    limits = ModelLimits(400_000, max_input=272_000)
    openclaw = Policy.preset("openclaw")
    assert openclaw.rules.compute_limit(limits, openclaw.settings) == 380_000
    by_input = Policy.preset("opencode").with_settings(preset={"trigger_reserve": 5_000}, reserve={"floor": 20_000})
    assert by_input.rules.compute_limit(limits, by_input.settings) == 252_000


@pytest.mark.parametrize("preset", ["pi", "opencode", "claude-code"])
def test_a_tool_without_a_floor_takes_any_reserve(preset):
    """[P][C][K] a reserve counts as it was set."""
    outputs = {} if preset == "pi" else {"trigger_output": 0}
    policy = Policy.preset(preset).with_settings(preset={"trigger_reserve": 5_000} | outputs)
    assert policy.rules.compute_limit(_place().limits, policy.settings) == 195_000
    assert _raised(plan(SAID, _place(), policy)) == []
