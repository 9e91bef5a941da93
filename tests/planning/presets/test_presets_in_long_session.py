"""The presets at work: pi, opencode and Claude Code over a long session, each by its own numbers."""

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

WHERE = get_target("anthropic", "claude-sonnet-4-5", window=100_000, setup=RequestSetup("f", 3_000, is_exact=True))


def work(turns, chars=12_000):
    """Return ``turns`` turns in which a file of ``chars`` characters is read and talked about."""
    out = []
    for number in range(turns):
        call, text = (
            ToolCall(f"c{number}", "read", f'{{"path":"src/part_{number}.py"}}'),
            f"value_{number} = {number}\n",
        )
        out += [
            Message.from_text("user", f"Look at part {number}"),
            Message("assistant", (Text("I read it."), call)),
            Message("tool", (ToolResult(call.id, "read", (Text((text * chars)[:chars]),)),)),
            Message.from_text("assistant", f"Part {number} is fine."),
        ]
    return out


def compactions(name, said):
    """Return the steps of the loop before which the preset compacted; the provider tells what we estimate."""
    steps = drive_agent_loop(said, WHERE, Policy.preset(name), usage=lambda made: made.after)
    return [step for step in steps if step.plan.compaction is not None]


def test_pi_compacts_late_and_keeps_twenty_thousand_tokens():
    """[P] over the window less 16,384, some 20,000 tokens stay: no message more than reaches them, none less."""
    said = work(60)
    steps = compactions("pi", said)
    assert len(steps) > 1
    for step in steps:
        keep, held = step.plan.compaction.first_kept, said[: step.count]
        sizes = [estimate_pi_tokens(one) for one in held]
        assert sum(sizes[keep + 1 :]) < 20_000 <= sum(sizes[keep - 3 :])
        assert held[keep].role != "tool"


def test_opencode_keeps_two_turns_at_most():
    """[C] after a compaction the last two turns stay, or as much of them as 8,000 tokens hold."""
    said = work(60)
    steps = compactions("opencode", said)
    assert len(steps) > 1
    for step in steps:
        tail = said[step.plan.compaction.first_kept : step.count]
        assert sum(one.is_turn_start for one in tail) <= 2
        assert 0 < sum(estimate_opencode_tokens(one) for one in tail) <= 8_000


def test_claude_code_restores_what_it_read_last():
    """[K] behind the summary the five files read last stand again, newest first, and a word to go on with the turn."""
    said = work(60)
    steps = compactions("claude-code", said)
    assert len(steps) > 1
    for step in steps:
        texts = [part.text for part in step.plan.compaction.summary.parts[1:]]
        is_cut = step.plan.compaction.first_kept == step.count
        assert texts[-1:] == [CONTINUE_INSTRUCTION] if is_cut else CONTINUE_INSTRUCTION not in texts
        files = [text.split(" ", 1)[0] for text in texts if text != CONTINUE_INSTRUCTION]
        last = [one.calls[0].arguments[9:-2] for one in said[: step.plan.compaction.first_kept] if one.calls]
        assert files == last[::-1][:5]


@pytest.mark.parametrize("name", ["pi", "opencode", "claude-code"])
def test_a_short_session_is_left_alone(name):
    """Well under its line no preset changes anything."""
    said = [*work(4), Message.from_text("user", "thanks")]
    policy = Policy.preset(name)
    made = plan(said, WHERE, policy)
    assert made.is_empty
    assert apply(said, made) == said
    assert made.after < policy.rules.compute_limit(WHERE.limits, policy.settings)
