"""The window in force: who says it, what caps it, and when it is refused."""

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

OLD = Policy.preset("openclaw")
NEW = OLD.with_settings(**OPENCLAW_2026_9)
SAID = [Message.from_text("user", "a")]
NUMBERS = st.one_of(st.none(), st.floats(), st.integers(-10, 10**7))


def found_window(settings, configured=None, known=None, default=DEFAULT_WINDOW):
    """Return the limits in force, told and capped as production does it: first the catalogue, then the guard."""
    origin, tokens = choose_window(("config", configured), ("model", known), ("default", default))
    return apply_window_cap(Target(limits=ModelLimits(tokens, window_source=origin)), settings).limits


def told_of_window(policy, window, cap=0):
    """Return what a policy says of a window: nothing, that it is small, or why it is refused."""
    limits = ModelLimits(window)
    capped = apply_window_cap(Target(limits=limits), policy.with_settings(window={"cap": cap}).settings).limits
    try:
        return "".join(notice.why for notice in policy.rules.check_window(limits, capped))
    except WindowTooSmall as error:
        return str(error)


@pytest.mark.parametrize(
    ("configured", "known", "default", "tokens", "origin"),
    [
        (50_000, 90_000, 70_000, 50_000, "config"),
        (None, 90_000, 70_000, 90_000, "model"),
        (None, None, 70_000, 70_000, "default"),
        (0, 0.9, 70_000, 70_000, "default"),
        (math.nan, math.inf, -1, DEFAULT_WINDOW, "default"),
        (50_000.9, None, 70_000, 50_000, "config"),
    ],
)
def test_who_says_the_window(configured, known, default, tokens, origin):
    """The user's entry comes first, then what is known of the model, then the default; what is no size is not there."""
    found = found_window(Settings(), configured, known, default)
    assert (found.window, found.window_source) == (tokens, origin)


@pytest.mark.parametrize(("cap", "tokens"), [(40_000, 40_000), (50_000, 50_000), (60_000, 50_000), (0, 50_000)])
def test_a_cap_only_lowers(cap, tokens):
    """A cap counts where it is lower than the window, and says that it was it."""
    found = found_window(Policy().with_settings(window={"cap": cap}).settings, 50_000)
    assert (found.window, found.window_source) == (tokens, "cap" if tokens < 50_000 else "config")


@given(NUMBERS, NUMBERS, NUMBERS, NUMBERS)
def test_there_is_always_a_window(configured, known, default, cap):
    """Whatever is told, the window is a whole number over 0, and no cap made it larger."""
    found = found_window(Settings(), configured, known, default or 0)
    assert found.window >= 1
    assert isinstance(found.window, int)
    capped = Settings(window=WindowSettings(cap=cap))
    assert found_window(capped, configured, known, default or 0).window <= found.window


@pytest.mark.parametrize(
    ("window", "told"),
    [(15_999, "Minimum is 16000"), (16_000, "is under 32,000"), (31_999, "is under 32,000"), (32_000, "")],
)
def test_the_floors_are_strict(window, told):
    """[O] under 16,000 nothing is sent, under 32,000 the caller is warned; at the numbers themselves neither."""
    assert told in told_of_window(OLD, window)
    assert bool(told_of_window(OLD, window)) is bool(told)


@pytest.mark.parametrize(
    ("window", "cap", "told"),
    [
        (30_000, 3_999, "Minimum is 4000"),
        (30_000, 7_999, "is under 8,000"),
        (30_000, 8_000, ""),
        (200_000, 19_999, "Minimum is 20000"),
        (200_000, 39_999, "is under 40,000"),
        (200_000, 40_000, ""),
    ],
)
def test_the_newer_floors_grow_with_the_window(window, cap, told):
    """[O] 2026.9: 4,000 and 8,000, or a tenth and a fifth of the window as it was before the cap."""
    assert told in told_of_window(NEW, window, cap)
    assert bool(told_of_window(NEW, window, cap)) is bool(told)


@pytest.mark.parametrize(("origin", "least"), [("config", 4_000), (LEARNED_ORIGIN, MIN_REPORTED_BUDGET)])
def test_what_a_provider_told_is_tried_where_what_somebody_configured_is_refused(origin, least):
    """Nothing was sent yet where a window is configured wrong; who learns of one is under way, and cannot choose."""
    window = Settings().reserve.min + least
    room, _ = check_budget(Target(limits=ModelLimits(window, window_source=origin, requested_output=1)), Settings())
    assert room.message_tokens == least
    with pytest.raises(WindowTooSmall, match=f"leaves {least - 1} tokens; {least} are needed"):
        check_budget(Target(limits=ModelLimits(window - 1, window_source=origin, requested_output=1)), Settings())


def test_a_capped_window_is_the_one_all_is_measured_by():
    """The cap is the window of trigger, room and guard, and a guard that refuses says whose number it was."""
    place = get_target("anthropic", "claude-sonnet-4-5", window=100_000)
    capped = apply_window_cap(place, Policy().with_settings(window={"cap": 20_000}).settings)
    assert (capped.limits.window, capped.limits.window_source) == (20_000, "cap")
    assert apply_window_cap(place, Settings()) is place
    with pytest.raises(WindowTooSmall, match=r"\(9000 tokens\)\. Minimum is 16000\..*came from: cap"):
        plan(SAID, place, Policy.preset("openclaw").with_settings(window={"cap": 9_000}))


@pytest.mark.parametrize("name", ["openclaw", "holdfast"])
@pytest.mark.parametrize("window", [0, -5])
def test_a_window_of_nothing_is_refused(name, window):
    """Limits that somebody set to nothing do not turn the guard off: they hold nothing."""
    with pytest.raises(WindowTooSmall, match=str(window)):
        plan(SAID, Target(limits=ModelLimits(window=window)), Policy.preset(name))


# -- the frame ---------------------------------------------------------------------------------------------------------

FRAMED = Target(model="m", prior_ratio=1.65, limits=ModelLimits(40_000), setup=RequestSetup("tools", 16_000))


def answered(turns, tokens):
    """Return the branch of ``turns`` with ``tokens`` of the model for one of ours, of the frame as of the messages."""
    branch = ConversationState.from_entries([Entry("f", None, FRAMED.setup)])
    for number in range(turns):
        for role in ("user", "assistant"):
            slot = build_sized_message(Message.from_text(role, f"{number} kelp on the rock. " * 60))
            branch = apply_entries(branch, [Entry("", None, MessageEntry(slot))])
            if role == "user":
                asked = RequestEntry(compute_prefix_digest(branch), len(branch.history.sized_messages), "m", 40_000)
                usage = Usage(round(tokens * (FRAMED.setup.tokens + branch.view.shown_tokens)))
                branch = apply_entries(
                    branch, [Entry("", None, asked), Entry("", None, AnswerEntry(asked.prefix_digest, usage))]
                )
    return branch


def frame_in(branch, target=FRAMED):
    """Return the tokens that the guard takes for system and tools."""
    return compute_budget(compute_effective_target(target, branch, Settings()), Settings()).setup_tokens


@pytest.mark.parametrize("tokens", [0.9, 1.0, 1.4, 1.65])
def test_a_frame_is_as_large_as_usage_told(tokens):
    """Before any answer it is a guess by the model's prior; then what was reported is more than that."""
    assert frame_in(ConversationState()) == 26_400
    assert frame_in(answered(1, tokens)) == pytest.approx(16_000 * tokens, rel=0.03)
    assert frame_in(answered(12, tokens)) == pytest.approx(16_000 * tokens, rel=0.15)


@pytest.mark.parametrize("tokens", [0.9, 1.0, 1.4, 1.65])
def test_what_usage_told_of_a_frame_outlasts_a_compaction(tokens):
    """It is what the last count had beside its messages, whatever became of them: before and behind it is the same."""
    branch = answered(30, tokens)
    shorter = apply_entries(
        branch,
        [Entry("", None, CompactionEntry(len(branch.history.sized_messages), Message.from_text("user", "kelp"), 5))],
    )
    assert get_valid_measured_request(shorter) is None
    assert frame_in(shorter) == frame_in(branch)


def test_what_usage_told_is_of_that_model_and_that_frame():
    """Another model's guess stands as it is; another frame is measured by the ratio, and an exact one is exact."""
    branch = answered(30, 1.0)
    assert frame_in(branch, replace(FRAMED, model="other")) == 26_400
    assert 32_000 <= frame_in(branch, replace(FRAMED, setup=RequestSetup("more tools", 32_000))) < 40_000
    assert frame_in(branch, replace(FRAMED, setup=RequestSetup("told", 500, is_exact=True))) == 500


@pytest.mark.parametrize(("window", "reserve"), [(200_000, 20_000), (32_000, 8_000), (8_000, 2_000)])
def test_a_reserve_under_the_floor_is_raised(window, reserve):
    """To the floor, but never over a quarter of the window: a small one stays usable."""
    low = Policy().with_settings(reserve={"max": 3_000 if window > 8_000 else 1_500}).settings
    place = replace(get_target("anthropic", "claude-sonnet-4-5", window=window), prior_ratio=1.0)
    place = replace(place, limits=replace(place.limits, requested_output=None))
    assert check_budget(place, low)[0].reserve == reserve
    assert (
        check_budget(place, Policy(settings=low).with_settings(reserve={"floor": 0}).settings)[0].reserve
        == low.reserve.max
    )


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_no_preset_is_told_of_a_reserve(name):
    """Presets keep their own numbers: none of them is under the floor that is looked at."""
    assert PRESETS[name].settings.reserve.max >= PRESETS[name].settings.reserve.floor
