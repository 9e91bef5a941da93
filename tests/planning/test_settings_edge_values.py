"""Settings at their edges: 0, other orders, capitals, and numbers larger than any text."""

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

TARGET = get_target("anthropic", "claude-sonnet-4-5", window=200_000)


def build_conversation(text):
    return [
        Message.from_text("user", "look"),
        Message("assistant", (ToolCall("c1", "bash"),)),
        Message("tool", (ToolResult("c1", "bash", (Text(text),)),)),
    ]


@pytest.mark.parametrize("prune", [False, True])
def test_image_keep_turns_applies_with_and_without_pruning(prune):
    """``image_keep_turns`` limits how long images stay, whether or not old results are pruned."""
    policy = Policy.preset("openclaw").with_settings(preset={"image_keep_turns": 0, "prune": prune})
    image = Media("image", "image/png", source="data:image/png;base64,aGk=")
    messages = [Message("user", (Text("see"), image)), Message.from_text("assistant", "seen")]
    sent = apply(
        [*messages, Message.from_text("user", "go")], plan([*messages, Message.from_text("user", "go")], TARGET, policy)
    )
    assert not any(isinstance(part, Media) for message in sent for part in message.parts)


@pytest.mark.parametrize("summary_settings", [{"model_max_tokens": 0}, {"model_max_share": 0.0}])
def test_plan_requests_no_summary_of_zero_tokens(summary_settings):
    """When a model may write nothing, it is not asked, and the extract is used at once."""
    messages = [
        message
        for turn in range(40)
        for message in (Message.from_text("user", f"{turn} " * 900), Message.from_text("assistant", "ok"))
    ]
    new_plan = plan(
        messages,
        TARGET,
        Policy().with_settings(summary=summary_settings),
        inputs=PlanInputs(force_compaction=True, can_summarize=True),
    )
    assert new_plan.summary_request is None
    assert new_plan.compaction is not None


def get_result_limit(window, **settings):
    """Return the weighted characters that OpenClaw keeps of a result under pressure."""
    return Policy.preset("openclaw").with_settings(preset=settings).rules.get_result_limits(window).per_result


def test_truncate_window_steps_work_in_any_order():
    """The step of the largest window reached counts, wherever it is in the list."""
    steps = ((0, 16_000), (100_000, 32_000), (200_000, 64_000))
    for window in (50_000, 100_000, 400_000):
        forwards, backwards = (
            get_result_limit(window, truncate_window_steps=step_order) for step_order in (steps, steps[::-1])
        )
        assert forwards == backwards


def test_truncate_max_chars_of_zero_is_no_limit():
    """``truncate_max_chars = 0`` leaves the share of the window as the only limit of a result."""
    assert get_result_limit(200_000, truncate_max_chars=0) == get_result_limit(200_000, truncate_max_chars=10**9) > 0


@pytest.mark.parametrize(("chars", "preview_chars"), [(60_000, 55_000), (9_000, 8_000)])
def test_preview_longer_than_its_text_is_shortened(chars, preview_chars):
    """A preview that would save nothing is made shorter instead of left out."""
    policy = Policy().with_settings(results={"spill_chars": 8_500, "preview_chars": preview_chars})
    messages = build_conversation("a row of alpha and beta\n" * 4_000)
    messages = build_conversation(get_result_text(messages[-1].results[0])[:chars])
    (shown,) = [
        get_result_text(result)
        for message in apply(messages, plan(messages, TARGET, policy))
        for result in message.results
    ]
    assert 0.5 * chars < len(shown) < chars


def test_check_settings_ignores_rules_that_are_off():
    """A contradiction is reported only if the rule that reads the setting is on."""

    def list_problems(name, **changes):
        rules = replace(PRESETS[name].rules, **changes)
        return check_settings(PRESETS[name].settings, rules)

    assert list_problems("opencode", tail_tokens=1_500)
    assert not list_problems("opencode", tail_tokens=1_500, tail_usable_share=0.0)
    assert list_problems("openclaw", prune_trim_share=0.6)
    assert not list_problems("openclaw", prune_trim_share=0.6, prune=False)
    bare_goal = replace(PRESETS["pi"].settings, compaction=CompactionSettings(trigger_share=0.1, tail_share=0.9))
    assert not check_settings(bare_goal, PRESETS["pi"].rules)
    assert check_settings(bare_goal)


def test_get_history_limit_ignores_the_case_of_a_channel():
    """Neither a key nor the table distinguishes capitals in a channel name."""
    assert get_history_limit("Slack:channel:x", {"sLACK": ChannelLimits(3)}) == 3
    assert get_history_limit("", {"slack": ChannelLimits(3)}) is None


def test_breaker_failures_of_zero_switches_the_breaker_off():
    """``breaker_failures = 0`` switches the breaker off."""
    assert is_breaker_tripped(3, Settings())
    assert not is_breaker_tripped(1_000, Policy().with_settings(compaction={"breaker_failures": 0}).settings)
    messages = [
        message
        for turn in range(80)
        for message in (Message.from_text("user", f"{turn} " * 900), Message.from_text("assistant", "ok"))
    ]
    new_plan = plan(
        messages,
        replace(TARGET, limits=replace(TARGET.limits, window=64_000)),
        Policy().with_settings(compaction={"breaker_failures": 0}),
        state=ConversationState(),
    )
    assert new_plan.compaction is not None
