"""Settings at their edges: 0, other orders, capitals, and numbers that a text does not reach mean what they say."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from holdfast import PlanInputs, Policy, apply, plan
from holdfast.config import get_target
from holdfast.messages.message import Message, get_result_text
from holdfast.messages.parts import Media, Text, ToolCall, ToolResult
from holdfast.planning.circuit_breaker import is_breaker_tripped
from holdfast.planning.presets.registry import PRESETS
from holdfast.planning.settings import ChannelLimits, CompactionSettings, Settings
from holdfast.planning.settings_check import check_settings
from holdfast.planning.stages.history_limit import get_history_limit
from holdfast.state.conversation_state import ConversationState

WHERE = get_target("anthropic", "claude-sonnet-4-5", window=200_000)


def result(text):
    return [
        Message.from_text("user", "look"),
        Message("assistant", (ToolCall("c1", "bash"),)),
        Message("tool", (ToolResult("c1", "bash", (Text(text),)),)),
    ]


@pytest.mark.parametrize("prune", [False, True])
def test_answered_images_go_whether_or_not_results_are_cleared(prune):
    """``image_keep_turns`` says how long images stay, with the rule for old results and without."""
    ours = Policy.preset("openclaw").with_settings(preset={"image_keep_turns": 0, "prune": prune})
    seen = Media("image", "image/png", source="data:image/png;base64,aGk=")
    said = [Message("user", (Text("see"), seen)), Message.from_text("assistant", "seen")]
    sent = apply([*said, Message.from_text("user", "go")], plan([*said, Message.from_text("user", "go")], WHERE, ours))
    assert not any(isinstance(part, Media) for message in sent for part in message.parts)


@pytest.mark.parametrize("none", [{"model_max_tokens": 0}, {"model_max_share": 0.0}])
def test_nobody_is_asked_for_a_summary_without_words(none):
    """Where a model may write nothing, it is not asked: the extract stands at once."""
    said = [
        one
        for turn in range(40)
        for one in (Message.from_text("user", f"{turn} " * 900), Message.from_text("assistant", "ok"))
    ]
    made = plan(
        said, WHERE, Policy().with_settings(summary=none), inputs=PlanInputs(force_compaction=True, can_summarize=True)
    )
    assert made.summary_request is None
    assert made.compaction is not None


def result_limit(window, **settings):
    """Return the weighted characters that OpenClaw leaves of a result under pressure."""
    return Policy.preset("openclaw").with_settings(preset=settings).rules.get_result_limits(window).per_result


def test_steps_count_by_their_window_in_any_order():
    """The step of the largest window that is reached counts, wherever it stands in the list."""
    steps = ((0, 16_000), (100_000, 32_000), (200_000, 64_000))
    for window in (50_000, 100_000, 400_000):
        forwards, backwards = (result_limit(window, truncate_window_steps=each) for each in (steps, steps[::-1]))
        assert forwards == backwards


def test_no_number_of_characters_is_no_limit():
    """``truncate_max_chars = 0`` leaves the share of the window alone as the limit of a result."""
    assert result_limit(200_000, truncate_max_chars=0) == result_limit(200_000, truncate_max_chars=10**9) > 0


@pytest.mark.parametrize(("chars", "wanted"), [(60_000, 55_000), (9_000, 8_000)])
def test_a_preview_longer_than_its_text_shows_most_of_it(chars, wanted):
    """A preview that would save nothing is made shorter; it does not vanish."""
    policy = Policy().with_settings(results={"spill_chars": 8_500, "preview_chars": wanted})
    said = result("a row of alpha and beta\n" * 4_000)
    said = result(get_result_text(said[-1].results[0])[:chars])
    (shown,) = [get_result_text(one) for message in apply(said, plan(said, WHERE, policy)) for one in message.results]
    assert 0.5 * chars < len(shown) < chars


def test_what_no_rule_reads_contradicts_nothing():
    """Only where the tail is clamped must it be over its least, and only where results are trimmed is that before."""

    def problems(name, **changes):
        rules = replace(PRESETS[name].rules, **changes)
        return check_settings(PRESETS[name].settings, rules)

    assert problems("opencode", tail_tokens=1_500)
    assert not problems("opencode", tail_tokens=1_500, tail_usable_share=0.0)
    assert problems("openclaw", prune_trim_share=0.6)
    assert not problems("openclaw", prune_trim_share=0.6, prune=False)
    bare_goal = replace(PRESETS["pi"].settings, compaction=CompactionSettings(trigger_share=0.1, tail_share=0.9))
    assert not check_settings(bare_goal, PRESETS["pi"].rules)
    assert check_settings(bare_goal)


def test_a_channel_is_found_however_it_is_written():
    """A key names its channel without regard to capitals, and so does the table."""
    assert get_history_limit("Slack:channel:x", {"sLACK": ChannelLimits(3)}) == 3
    assert get_history_limit("", {"slack": ChannelLimits(3)}) is None


def test_without_a_breaker_failures_stop_nothing():
    """``breaker_failures = 0`` switches the breaker off."""
    assert is_breaker_tripped(3, Settings())
    assert not is_breaker_tripped(1_000, Policy().with_settings(compaction={"breaker_failures": 0}).settings)
    said = [
        one
        for turn in range(80)
        for one in (Message.from_text("user", f"{turn} " * 900), Message.from_text("assistant", "ok"))
    ]
    made = plan(
        said,
        replace(WHERE, limits=replace(WHERE.limits, window=64_000)),
        Policy().with_settings(compaction={"breaker_failures": 0}),
        state=ConversationState(),
    )
    assert made.compaction is not None
