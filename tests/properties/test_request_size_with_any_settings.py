"""Any allowed settings in `[policy]` keep a conversation that can be compacted within its window."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace
from planning_loop import drive_agent_loop
from sample_conversations import make_text

from holdfast import Policy
from holdfast.config import get_target
from holdfast.messages.message import Message
from holdfast.messages.parts import Text, ToolCall, ToolResult
from holdfast.planning.budget import compute_budget
from holdfast.planning.settings_check import change_settings, check_settings
from holdfast.state.entries import RequestSetup

POLICY = Policy()
WINDOW, SETUP_TOKENS = 40_000, 2_000
TARGET = get_target("anthropic", "claude-sonnet-4-5", window=WINDOW, setup=RequestSetup("f", SETUP_TOKENS))
TARGET = replace(TARGET, limits=replace(TARGET.limits, requested_output=4_000))

SHARES = [
    "compaction.trigger_share",
    "compaction.cold_trigger_share",
    "compaction.model_trigger_share",
    "compaction.goal_share",
    "compaction.min_gain_share",
    "compaction.tail_share",
    "summary.share",
    "summary.model_total_share",
    "summary.model_max_share",
    "summary.user_share",
    "restore.max_share",
    "window.estimate_margin_share",
]
NUMBERS = {
    "summary.max_tokens": (0, 1_000, 4_000, 10**12),
    "compaction.min_gain_tokens": (0, 10**12),
    "prune.when": ((), ("cold", "broken"), ("space",), ("price",)),
    "prune.keep_tokens": (0, 1, 10**12),
    "results.spill_chars": (0, 1, 10**12),
    "results.message_chars": (0, 1, 10**12),
}
changes = st.one_of(
    st.dictionaries(st.sampled_from(SHARES), st.sampled_from([0.0, 0.05, 0.3, 0.6, 0.85, 1.0]), max_size=2),
    st.dictionaries(st.sampled_from(sorted(NUMBERS)), st.integers(0, 4), max_size=3).map(
        lambda drawn: {name: NUMBERS[name][at % len(NUMBERS[name])] for name, at in drawn.items()}
    ),
)


@cache
def build_conversation() -> list[Message]:
    """Return a long conversation of small steps in which files are read and edited, with a few user messages."""
    messages = [Message.from_text("user", "Rename compute_total to total_price; never touch billing/legacy.py.")]
    for number in range(40):
        call = f"call_{number}"
        tool, key = ("read", "path") if number % 3 else ("edit", "file_path")
        messages.append(Message("assistant", (ToolCall(call, tool, f'{{"{key}":"src/part_{number % 7}.py"}}'),)))
        messages.append(Message("tool", (ToolResult(call, tool, (Text(make_text(number, 6_000)),)),)))
        if number % 10 == 9:
            messages.append(Message.from_text("assistant", f"Part {number} is done."))
            messages.append(Message.from_text("user", f"Go on with part {number + 1}."))
    return messages


@given(changes)
@example({"summary.max_tokens": 1_000})
@example({"summary.share": 0.05})
@example({"compaction.tail_share": 0.0})
def test_allowed_settings_keep_a_request_in_its_window(changes_made: dict[str, Any]):
    """No allowed share, tail or summary switches compaction off or undoes what it gained."""
    settings, _ = change_settings(POLICY.settings, POLICY.rules, changes_made)
    if check_settings(settings) or not settings.compaction.goal_share:
        return
    for step in drive_agent_loop(build_conversation(), TARGET, Policy(settings=settings)):
        assert step.plan.after <= compute_budget(TARGET, settings).window, step.plan.notices


@pytest.mark.parametrize(
    ("name", "changes_made"),
    [
        ("pi", {"trigger_reserve": 8_000}),
        ("pi", {"tail_tokens": 10**12}),
        ("openclaw", {"tail_tokens": 0}),
        ("opencode", {"tail_turns": 100, "tail_tokens": 10**12}),
        ("opencode", {"tail_turns": 0}),
        ("claude-code", {"restore_files": 50, "restore_file_tokens": 10**12}),
    ],
)
def test_preset_with_a_goal_keeps_a_request_in_its_window(name: str, changes_made: dict[str, Any]):
    """When a preset gets a goal like Holdfast's, its own tail, trigger and files do not undo what it gained."""
    compaction = {"goal_share": 0.9, "min_gain_share": 0.1, "min_gain_tokens": 2_000, "max_per_answer": 2}
    policy = Policy.preset(name).with_settings(
        preset=changes_made,
        compaction=compaction,
        window={"estimate_margin_share": 0.055},
        results={"spill_chars": 50_000},
    )
    for step in drive_agent_loop(build_conversation(), TARGET, policy, usage=lambda planned: planned.after):
        assert step.plan.after <= compute_budget(TARGET, policy.settings).window, step.plan.notices
