"""The window in force: who says it, what caps it, and when it is refused."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast import Policy, plan
from holdfast.config import target
from holdfast.errors import WindowTooSmall
from holdfast.messages.message import Message
from holdfast.messages.size.tokens import measure
from holdfast.planning.budget import (
    DEFAULT_WINDOW,
    LEARNED,
    LEAST_TOLD,
    guard,
    in_force,
    in_window,
    measure_room,
    told_window,
    window_of,
)
from holdfast.planning.presets.presets import OPENCLAW_2026_9, PRESETS
from holdfast.planning.settings import Settings
from holdfast.state.branch.branch import Branch, extended
from holdfast.state.branch.view import prefix_basis
from holdfast.state.entries import Answer, Compaction, Entry, Frame, Request, Said, Usage
from holdfast.state.target import Limits, Target

OLD = PRESETS["openclaw"]
NEW = Policy.preset("openclaw").with_settings(**OPENCLAW_2026_9).settings
SAID = [Message.of("user", "a")]
NUMBERS = st.one_of(st.none(), st.floats(), st.integers(-10, 10**7))


def found_window(settings, configured=None, known=None, default=DEFAULT_WINDOW, cap=None):
    """Return the window in force, told and capped as production does it: first the catalogue, then the guard."""
    origin, tokens = told_window(("config", configured), ("model", known), ("default", default))
    capped = settings if cap is None else replace(settings, window_cap=cap)
    return window_of(Target(limits=Limits(tokens, origin=origin)), capped)


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
    assert (found.tokens, found.origin) == (tokens, origin)


@pytest.mark.parametrize(("cap", "tokens"), [(40_000, 40_000), (50_000, 50_000), (60_000, 50_000), (0, 50_000)])
def test_a_cap_only_lowers(cap, tokens):
    """A cap counts where it is lower than the window, and says that it was it."""
    found = found_window(Settings(window_cap=cap), 50_000)
    assert (found.tokens, found.origin) == (tokens, "cap" if tokens < 50_000 else "config")


@given(NUMBERS, NUMBERS, NUMBERS, NUMBERS)
def test_there_is_always_a_window(configured, known, default, cap):
    """Whatever is told, the window is a whole number over 0, and no cap made it larger."""
    found = found_window(Settings(), configured, known, default or 0)
    assert found.tokens >= 1
    assert isinstance(found.tokens, int)
    assert found_window(Settings(), configured, known, default or 0, cap).tokens <= found.tokens


@pytest.mark.parametrize(
    ("window", "refused", "small"), [(15_999, True, True), (16_000, False, True), (32_000, False, False)]
)
def test_the_floors_are_strict(window, refused, small):
    """[O] under 16,000 nothing is sent, under 32,000 the caller is warned; at the numbers themselves neither."""
    found = found_window(OLD, window)
    assert (found.is_refused, found.is_small) == (refused, small)


@pytest.mark.parametrize(
    ("window", "cap", "refuse", "warn"),
    [(30_000, 0, 4_000, 8_000), (200_000, 0, 20_000, 40_000), (200_000, 19_999, 20_000, 40_000)],
)
def test_the_newer_floors_grow_with_the_window(window, cap, refuse, warn):
    """[O] 2026.9: 4,000 and 8,000, or a tenth and a fifth of the window as it was before the cap."""
    found = found_window(NEW, window, cap=cap)
    assert (found.refuse_below, found.warn_below) == (refuse, warn)
    assert found.is_refused is bool(cap)


@pytest.mark.parametrize(("origin", "least"), [("config", 4_000), (LEARNED, LEAST_TOLD)])
def test_what_a_provider_told_is_tried_where_what_somebody_configured_is_refused(origin, least):
    """Nothing was sent yet where a window is configured wrong; who learns of one is under way, and cannot choose."""
    window = Settings().reserve_min + least
    room, _ = guard(Target(limits=Limits(window, origin=origin, asked_output=1)), Settings())
    assert room.size == least
    with pytest.raises(WindowTooSmall, match=f"leaves {least - 1} tokens; {least} are needed"):
        guard(Target(limits=Limits(window - 1, origin=origin, asked_output=1)), Settings())


def test_a_capped_window_is_the_one_all_is_measured_by():
    """The cap is the window of trigger, room and guard, and a guard that refuses says whose number it was."""
    place = target("anthropic", "claude-sonnet-4-5", window=100_000)
    capped = in_window(place, Settings(window_cap=20_000))
    assert (capped.limits.window, capped.limits.origin) == (20_000, "cap")
    assert in_window(place, Settings()) is place
    with pytest.raises(WindowTooSmall, match=r"\(9000 tokens\)\. Minimum is 16000\..*came from: cap"):
        plan(SAID, place, Policy.preset("openclaw").with_settings(window_cap=9_000))


@pytest.mark.parametrize("name", ["openclaw", "holdfast"])
@pytest.mark.parametrize("window", [0, -5])
def test_a_window_of_nothing_is_refused(name, window):
    """Limits that somebody set to nothing do not turn the guard off: they hold nothing."""
    with pytest.raises(WindowTooSmall, match=str(window)):
        plan(SAID, Target(limits=Limits(window=window)), Policy.preset(name))


# -- the frame ---------------------------------------------------------------------------------------------------------

FRAMED = Target(model="m", prior=1.65, limits=Limits(40_000), frame=Frame("tools", 16_000))


def answered(turns, tokens):
    """Return the branch of ``turns`` with ``tokens`` of the model for one of ours, of the frame as of the messages."""
    branch = Branch.build([Entry("f", None, FRAMED.frame)])
    for number in range(turns):
        for role in ("user", "assistant"):
            slot = measure(Message.of(role, f"{number} kelp on the rock. " * 60))
            branch = extended(branch, [Entry("", None, Said(slot))])
            if role == "user":
                asked = Request(prefix_basis(branch), len(branch.slots), "m", 40_000)
                usage = Usage(round(tokens * (FRAMED.frame.tokens + branch.held)))
                branch = extended(branch, [Entry("", None, asked), Entry("", None, Answer(asked.basis, usage))])
    return branch


def frame_in(branch, target=FRAMED):
    """Return the tokens that the guard takes for system and tools."""
    return measure_room(in_force(target, branch, Settings()), Settings()).frame


@pytest.mark.parametrize("tokens", [0.9, 1.0, 1.4, 1.65])
def test_a_frame_is_as_large_as_usage_told(tokens):
    """Before any answer it is a guess by the model's prior; then what was reported is more than that."""
    assert frame_in(Branch()) == 26_400
    assert frame_in(answered(1, tokens)) == pytest.approx(16_000 * tokens, rel=0.03)
    assert frame_in(answered(12, tokens)) == pytest.approx(16_000 * tokens, rel=0.15)


@pytest.mark.parametrize("tokens", [0.9, 1.0, 1.4, 1.65])
def test_what_usage_told_of_a_frame_outlasts_a_compaction(tokens):
    """It is what the last count had beside its messages, whatever became of them: before and behind it is the same."""
    branch = answered(30, tokens)
    shorter = extended(branch, [Entry("", None, Compaction(len(branch.slots), Message.of("user", "kelp"), 5))])
    assert shorter.anchor is None
    assert frame_in(shorter) == frame_in(branch)


def test_what_usage_told_is_of_that_model_and_that_frame():
    """Another model's guess stands as it is; another frame is measured by the ratio, and an exact one is exact."""
    branch = answered(30, 1.0)
    assert frame_in(branch, replace(FRAMED, model="other")) == 26_400
    assert 32_000 <= frame_in(branch, replace(FRAMED, frame=Frame("more tools", 32_000))) < 40_000
    assert frame_in(branch, replace(FRAMED, frame=Frame("told", 500, exact=True))) == 500


@pytest.mark.parametrize(("window", "reserve"), [(200_000, 20_000), (32_000, 8_000), (8_000, 2_000)])
def test_a_reserve_under_the_floor_is_raised(window, reserve):
    """To the floor, but never over a quarter of the window: a small one stays usable."""
    low = Settings(reserve_max=3_000 if window > 8_000 else 1_500)
    place = replace(target("anthropic", "claude-sonnet-4-5", window=window), prior=1.0)
    place = replace(place, limits=replace(place.limits, asked_output=None))
    assert guard(place, low)[0].reserve == reserve
    assert guard(place, replace(low, reserve_floor=0))[0].reserve == low.reserve_max


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_no_preset_is_told_of_a_reserve(name):
    """Presets keep their own numbers: none of them is under the floor that is looked at."""
    assert PRESETS[name].reserve_max >= PRESETS[name].reserve_floor
