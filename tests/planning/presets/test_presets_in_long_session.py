"""pi, opencode and Claude Code over a long session, each with its own numbers."""

from __future__ import annotations

import pytest
from planning_loop import drive_agent_loop

from holdfast import Policy, apply, plan
from holdfast.config import get_target
from holdfast.messages.message import Message
from holdfast.messages.parts import Text, ToolCall, ToolResult
from holdfast.planning.presets.common.overflow_replay import CONTINUE_INSTRUCTION
from holdfast.planning.presets.common.request_measures import estimate_opencode_tokens, estimate_pi_tokens
from holdfast.state.entries import RequestSetup

TARGET = get_target("anthropic", "claude-sonnet-4-5", window=100_000, setup=RequestSetup("f", 3_000, is_exact=True))


def build_turns(turns, chars=12_000):
    """Return ``turns`` turns that each read a file of ``chars`` characters and comment on it."""
    messages = []
    for number in range(turns):
        call, text = (
            ToolCall(f"c{number}", "read", f'{{"path":"src/part_{number}.py"}}'),
            f"value_{number} = {number}\n",
        )
        messages += [
            Message.from_text("user", f"Look at part {number}"),
            Message("assistant", (Text("I read it."), call)),
            Message("tool", (ToolResult(call.id, "read", (Text((text * chars)[:chars]),)),)),
            Message.from_text("assistant", f"Part {number} is fine."),
        ]
    return messages


def list_compaction_steps(name, messages):
    """Return the steps before which the preset compacted; the provider reports what Holdfast estimates."""
    steps = drive_agent_loop(messages, TARGET, Policy.preset(name), usage=lambda new_plan: new_plan.after)
    return [step for step in steps if step.plan.compaction is not None]


def test_pi_compacts_late_and_keeps_twenty_thousand_tokens():
    """[P] Above the window less 16,384 about 20,000 tokens stay, with no message more than that takes."""
    messages = build_turns(60)
    steps = list_compaction_steps("pi", messages)
    assert len(steps) > 1
    for step in steps:
        keep, history = step.plan.compaction.first_kept, messages[: step.count]
        sizes = [estimate_pi_tokens(message) for message in history]
        assert sum(sizes[keep + 1 :]) < 20_000 <= sum(sizes[keep - 3 :])
        assert history[keep].role != "tool"


def test_opencode_keeps_two_turns_at_most():
    """[C] After a compaction the last two turns stay, or as much of them as fits in 8,000 tokens."""
    messages = build_turns(60)
    steps = list_compaction_steps("opencode", messages)
    assert len(steps) > 1
    for step in steps:
        tail = messages[step.plan.compaction.first_kept : step.count]
        assert sum(message.is_turn_start for message in tail) <= 2
        assert 0 < sum(estimate_opencode_tokens(message) for message in tail) <= 8_000


def test_claude_code_restores_the_files_read_last():
    """[K] After the summary the five files read last are shown again, newest first, and an instruction to continue the
    turn.
    """
    messages = build_turns(60)
    steps = list_compaction_steps("claude-code", messages)
    assert len(steps) > 1
    for step in steps:
        texts = [part.text for part in step.plan.compaction.summary.parts[1:]]
        is_cut = step.plan.compaction.first_kept == step.count
        assert texts[-1:] == [CONTINUE_INSTRUCTION] if is_cut else CONTINUE_INSTRUCTION not in texts
        files = [text.split(" ", 1)[0] for text in texts if text != CONTINUE_INSTRUCTION]
        last = [
            message.calls[0].arguments[9:-2] for message in messages[: step.plan.compaction.first_kept] if message.calls
        ]
        assert files == last[::-1][:5]


@pytest.mark.parametrize("name", ["pi", "opencode", "claude-code"])
def test_presets_leave_a_short_session_alone(name):
    """Well below its trigger no preset changes anything."""
    messages = [*build_turns(4), Message.from_text("user", "thanks")]
    policy = Policy.preset(name)
    new_plan = plan(messages, TARGET, policy)
    assert new_plan.is_empty
    assert apply(messages, new_plan) == messages
    assert new_plan.after < policy.rules.compute_limit(TARGET.limits, policy.settings)
