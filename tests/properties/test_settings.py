"""Settings: whatever is allowed to be said in `[policy]`, a conversation that can be compacted stays in its window."""

from __future__ import annotations

from functools import cache
from typing import Any

from histories import make_text
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace
from planning_loop import drive_agent_loop

from holdfast import Policy
from holdfast.config import get_target
from holdfast.messages.message import Message
from holdfast.messages.parts import Text, ToolCall, ToolResult
from holdfast.planning.budget import compute_budget
from holdfast.planning.settings import Settings
from holdfast.planning.settings_check import check_settings, is_share_setting
from holdfast.state.entries import RequestSetup

OURS = Policy()
WINDOW, FRAME = 40_000, 2_000
WHERE = get_target("anthropic", "claude-sonnet-4-5", window=WINDOW, setup=RequestSetup("f", FRAME))
WHERE = replace(WHERE, limits=replace(WHERE.limits, requested_output=4_000))

SHARES = [
    name
    for name in Settings.__struct_fields__
    if is_share_setting(name)
    and name.partition("_")[0] in {"trigger", "tail", "summary", "goal", "gain", "restore", "margin"}
]
NUMBERS = {
    "restore_files": (0, 5, 50),
    "restore_tokens": (0, 5_000, 10**12),
    "summary_tokens": (0, 1_000, 4_000, 10**12),
    "tail": ("share", "tokens", "turns", "none"),
    "tail_tokens": (0, 8_000, 20_000, 10**12),
    "tail_turns": (0, 2, 100),
    "trigger_reserve": (8_000, 20_000),
    "gain_tokens": (0, 10**12),
    "prune": ("off", "epoch", "opencode", "idle", "ttl"),
    "spill_chars": (0, 1, 10**12),
    "message_chars": (0, 1, 10**12),
}
changes = st.one_of(
    st.dictionaries(st.sampled_from(SHARES), st.sampled_from([0.0, 0.05, 0.3, 0.6, 0.85, 1.0]), max_size=2),
    st.dictionaries(st.sampled_from(sorted(NUMBERS)), st.integers(0, 4), max_size=3).map(
        lambda drawn: {name: NUMBERS[name][at % len(NUMBERS[name])] for name, at in drawn.items()}
    ),
)


@cache
def working() -> list[Message]:
    """Return a long conversation of small steps: files are read, changed and read again, now and then the user asks."""
    said = [Message.from_text("user", "Rename compute_total to total_price; never touch billing/legacy.py.")]
    for number in range(40):
        call = f"call_{number}"
        tool, key = ("read", "path") if number % 3 else ("edit", "file_path")
        said.append(Message("assistant", (ToolCall(call, tool, f'{{"{key}":"src/part_{number % 7}.py"}}'),)))
        said.append(Message("tool", (ToolResult(call, tool, (Text(make_text(number, 6_000)),)),)))
        if number % 10 == 9:
            said.append(Message.from_text("assistant", f"Part {number} is done."))
            said.append(Message.from_text("user", f"Go on with part {number + 1}."))
    return said


@given(changes)
@example({"trigger_share": 0.0, "trigger_reserve": 8_000})
@example({"summary_tokens": 1_000})
@example({"summary_share": 0.05})
@example({"tail": "tokens", "tail_tokens": 10**12})
@example({"restore_files": 50})
def test_allowed_settings_keep_a_request_in_its_window(changed: dict[str, Any]):
    """No share, tail, summary or restored file that is allowed switches compaction off or undoes what it gained."""
    settings = replace(OURS.settings, **changed)
    if check_settings(settings) or not settings.compaction.goal_share:
        return
    for step in drive_agent_loop(working(), WHERE, OURS.with_settings(**changed)):
        assert step.plan.after <= compute_budget(WHERE, settings).window, step.plan.notices
