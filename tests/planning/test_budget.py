"""The window in force: where it comes from, what caps it, and when it is rejected."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast import Policy, plan
from holdfast.config import get_target
from holdfast.errors import WindowTooSmall
from holdfast.messages.message import Message
from holdfast.messages.size.tokens import build_sized_message
from holdfast.planning.budget import (
    DEFAULT_WINDOW,
    LEARNED_ORIGIN,
    MIN_REPORTED_BUDGET,
    apply_window_cap,
    check_budget,
    choose_window,
    compute_budget,
    compute_effective_target,
)
from holdfast.planning.presets.openclaw.rules import OPENCLAW_2026_9
from holdfast.planning.presets.registry import PRESETS
from holdfast.planning.settings import Settings, WindowSettings
from holdfast.state.conversation_state import ConversationState
from holdfast.state.entries import AnswerEntry, CompactionEntry, Entry, MessageEntry, RequestEntry, RequestSetup, Usage
from holdfast.state.fold.fold_entries import apply_entries
from holdfast.state.target import ModelLimits, Target
from holdfast.state.view import compute_prefix_digest, get_valid_measured_request

OPENCLAW = Policy.preset("openclaw")
OPENCLAW_NEW = OPENCLAW.with_settings(**OPENCLAW_2026_9)
MESSAGES = [Message.from_text("user", "a")]
NUMBERS = st.one_of(st.none(), st.floats(), st.integers(-10, 10**7))


def choose_capped_window(settings, configured=None, model_window=None, default=DEFAULT_WINDOW):
    """Return the limits after the catalogue chose the window and the guard capped it, as in production."""
    origin, tokens = choose_window(("config", configured), ("model", model_window), ("default", default))
    return apply_window_cap(Target(limits=ModelLimits(tokens, window_source=origin)), settings).limits


def check_window_text(policy, window, cap=0):
    """Return a policy's verdict on a window: an empty text, a warning, or the error."""
    limits = ModelLimits(window)
    capped = apply_window_cap(Target(limits=limits), policy.with_settings(window={"cap": cap}).settings).limits
    try:
        return "".join(notice.why for notice in policy.rules.check_window(limits, capped))
    except WindowTooSmall as error:
        return str(error)


@pytest.mark.parametrize(
    ("configured", "model_window", "default", "tokens", "origin"),
    [
        (50_000, 90_000, 70_000, 50_000, "config"),
        (None, 90_000, 70_000, 90_000, "model"),
        (None, None, 70_000, 70_000, "default"),
        (0, 0.9, 70_000, 70_000, "default"),
        (math.nan, math.inf, -1, DEFAULT_WINDOW, "default"),
        (50_000.9, None, 70_000, 50_000, "config"),
    ],
)
def test_choose_window_prefers_config_then_model_then_default(configured, model_window, default, tokens, origin):
    """The configured window wins, then the model's, then the default; a value that is no size is skipped."""
    found = choose_capped_window(Settings(), configured, model_window, default)
    assert (found.window, found.window_source) == (tokens, origin)


@pytest.mark.parametrize(("cap", "tokens"), [(40_000, 40_000), (50_000, 50_000), (60_000, 50_000), (0, 50_000)])
def test_apply_window_cap_only_lowers(cap, tokens):
    """A cap applies when it is lower than the window, and is then named as the source."""
    found = choose_capped_window(Policy().with_settings(window={"cap": cap}).settings, 50_000)
    assert (found.window, found.window_source) == (tokens, "cap" if tokens < 50_000 else "config")


@given(NUMBERS, NUMBERS, NUMBERS, NUMBERS)
def test_choose_window_always_finds_a_window(configured, model_window, default, cap):
    """Whatever the values, the window is a whole number over 0, and a cap never raises it."""
    found = choose_capped_window(Settings(), configured, model_window, default or 0)
    assert found.window >= 1
    assert isinstance(found.window, int)
    capped = Settings(window=WindowSettings(cap=cap))
    assert choose_capped_window(capped, configured, model_window, default or 0).window <= found.window


@pytest.mark.parametrize(
    ("window", "expected"),
    [(15_999, "Minimum is 16000"), (16_000, "is under 32,000"), (31_999, "is under 32,000"), (32_000, "")],
)
def test_check_window_limits_are_strict(window, expected):
    """[O] A window under 16,000 is rejected and one under 32,000 gives a warning; the limits themselves give
    neither.
    """
    assert expected in check_window_text(OPENCLAW, window)
    assert bool(check_window_text(OPENCLAW, window)) is bool(expected)


@pytest.mark.parametrize(
    ("window", "cap", "expected"),
    [
        (30_000, 3_999, "Minimum is 4000"),
        (30_000, 7_999, "is under 8,000"),
        (30_000, 8_000, ""),
        (200_000, 19_999, "Minimum is 20000"),
        (200_000, 39_999, "is under 40,000"),
        (200_000, 40_000, ""),
    ],
)
def test_check_window_limits_grow_with_the_window_since_2026_9(window, cap, expected):
    """[O] 2026.9: 4,000 and 8,000, or a tenth and a fifth of the window before the cap."""
    assert expected in check_window_text(OPENCLAW_NEW, window, cap)
    assert bool(check_window_text(OPENCLAW_NEW, window, cap)) is bool(expected)


@pytest.mark.parametrize(("origin", "minimum"), [("config", 4_000), (LEARNED_ORIGIN, MIN_REPORTED_BUDGET)])
def test_check_budget_accepts_a_smaller_learned_window(origin, minimum):
    """A wrong configured window is rejected before any request; a learned one appears mid-session and is used if
    possible.
    """
    window = Settings().reserve.min + minimum
    budget, _ = check_budget(Target(limits=ModelLimits(window, window_source=origin, requested_output=1)), Settings())
    assert budget.message_tokens == minimum
    with pytest.raises(WindowTooSmall, match=f"leaves {minimum - 1} tokens; {minimum} are needed"):
        check_budget(Target(limits=ModelLimits(window - 1, window_source=origin, requested_output=1)), Settings())


def test_plan_uses_the_capped_window_everywhere():
    """The cap is the window of trigger, budget and guard, and the guard's error names its source."""
    target = get_target("anthropic", "claude-sonnet-4-5", window=100_000)
    capped = apply_window_cap(target, Policy().with_settings(window={"cap": 20_000}).settings)
    assert (capped.limits.window, capped.limits.window_source) == (20_000, "cap")
    assert apply_window_cap(target, Settings()) is target
    with pytest.raises(WindowTooSmall, match=r"\(9000 tokens\)\. Minimum is 16000\..*came from: cap"):
        plan(MESSAGES, target, Policy.preset("openclaw").with_settings(window={"cap": 9_000}))


@pytest.mark.parametrize("name", ["openclaw", "holdfast"])
@pytest.mark.parametrize("window", [0, -5])
def test_plan_rejects_a_window_of_zero_or_less(name, window):
    """A window of zero or less does not switch the guard off: it is rejected."""
    with pytest.raises(WindowTooSmall, match=str(window)):
        plan(MESSAGES, Target(limits=ModelLimits(window=window)), Policy.preset(name))


# -- the request setup -------------------------------------------------------------------------------------------------

TARGET = Target(model="m", prior_ratio=1.65, limits=ModelLimits(40_000), setup=RequestSetup("tools", 16_000))


def build_answered_state(turns, tokens):
    """Return the state after ``turns`` turns whose usage counts ``tokens`` for each estimated token of setup
    and messages.
    """
    state = ConversationState.from_entries([Entry("f", None, TARGET.setup)])
    for number in range(turns):
        for role in ("user", "assistant"):
            sized = build_sized_message(Message.from_text(role, f"{number} kelp on the rock. " * 60))
            state = apply_entries(state, [Entry("", None, MessageEntry(sized))])
            if role == "user":
                request = RequestEntry(compute_prefix_digest(state), len(state.history.sized_messages), "m", 40_000)
                usage = Usage(round(tokens * (TARGET.setup.tokens + state.view.shown_tokens)))
                state = apply_entries(
                    state, [Entry("", None, request), Entry("", None, AnswerEntry(request.prefix_digest, usage))]
                )
    return state


def compute_setup_tokens(state, target=TARGET):
    """Return the tokens that the guard counts for system prompt and tools."""
    return compute_budget(compute_effective_target(target, state, Settings()), Settings()).setup_tokens


@pytest.mark.parametrize("tokens", [0.9, 1.0, 1.4, 1.65])
def test_compute_effective_target_sizes_the_setup_by_usage(tokens):
    """Before any answer the setup is estimated by the model's prior ratio, afterwards by reported usage."""
    assert compute_setup_tokens(ConversationState()) == 26_400
    assert compute_setup_tokens(build_answered_state(1, tokens)) == pytest.approx(16_000 * tokens, rel=0.03)
    assert compute_setup_tokens(build_answered_state(12, tokens)) == pytest.approx(16_000 * tokens, rel=0.15)


@pytest.mark.parametrize("tokens", [0.9, 1.0, 1.4, 1.65])
def test_compute_effective_target_keeps_the_setup_size_after_a_compaction(tokens):
    """The setup size comes from the last usage beside its messages, so a compaction does not change it."""
    state = build_answered_state(30, tokens)
    compacted = apply_entries(
        state,
        [Entry("", None, CompactionEntry(len(state.history.sized_messages), Message.from_text("user", "kelp"), 5))],
    )
    assert get_valid_measured_request(compacted) is None
    assert compute_setup_tokens(compacted) == compute_setup_tokens(state)


def test_compute_effective_target_learns_per_model_and_setup():
    """Another model keeps its prior, another setup is scaled by the ratio, and an exact size stays exact."""
    state = build_answered_state(30, 1.0)
    assert compute_setup_tokens(state, replace(TARGET, model="other")) == 26_400
    assert 32_000 <= compute_setup_tokens(state, replace(TARGET, setup=RequestSetup("more tools", 32_000))) < 40_000
    assert compute_setup_tokens(state, replace(TARGET, setup=RequestSetup("exact", 500, is_exact=True))) == 500


@pytest.mark.parametrize(("window", "reserve"), [(200_000, 20_000), (32_000, 8_000), (8_000, 2_000)])
def test_check_budget_raises_a_reserve_under_the_floor(window, reserve):
    """A reserve is raised to the floor, but never over a quarter of the window: a small window stays usable."""
    low = Policy().with_settings(reserve={"max": 3_000 if window > 8_000 else 1_500}).settings
    target = replace(get_target("anthropic", "claude-sonnet-4-5", window=window), prior_ratio=1.0)
    target = replace(target, limits=replace(target.limits, requested_output=None))
    assert check_budget(target, low)[0].reserve == reserve
    assert (
        check_budget(target, Policy(settings=low).with_settings(reserve={"floor": 0}).settings)[0].reserve
        == low.reserve.max
    )


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_presets_have_reserves_above_the_floor(name):
    """The presets keep their own numbers: no reserve of theirs is below the floor."""
    assert PRESETS[name].settings.reserve.max >= PRESETS[name].settings.reserve.floor
