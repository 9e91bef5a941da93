"""Old results, as the tools clear them."""

from __future__ import annotations

import pytest

from holdfast import PlanInputs, Policy, apply, plan
from holdfast.config import get_target
from holdfast.messages.message import Message, get_result_text
from holdfast.messages.parts import Text, ToolCall, ToolResult
from holdfast.messages.size.tokens import estimate_text_tokens
from holdfast.planning.stages.prune.prunable_results import CLEARED_RESULT_TEXT

WHERE = get_target("anthropic", "claude-sonnet-4-5", window=400_000)


def turns(sizes, tool="read", text="word "):
    """Return finished turns, each with one result of so many repetitions of ``text``."""
    out = []
    for number, size in enumerate(sizes):
        out += [
            Message.from_text("user", f"turn {number}"),
            Message("assistant", (ToolCall(f"c{number}", tool),)),
            Message("tool", (ToolResult(f"c{number}", tool, (Text(text * size),)),)),
            Message.from_text("assistant", "done"),
        ]
    return [*out, Message.from_text("user", "last")]


def shown(said, policy, world=PlanInputs()):
    """Return the texts of the results as sent."""
    sent = apply(said, plan(said, WHERE, policy, inputs=world))
    return [get_result_text(result) for one in sent for result in one.results]


OPENCODE = Policy.preset("opencode").with_settings(
    compaction={"enabled": False}, preset={"prune": True, "output_lines": 0, "output_bytes": 0}
)


def test_opencode_keeps_the_newest_forty_thousand():
    """[C] behind the newest 40,000 tokens of results, results are cleared, if more than 20,000 tokens go."""
    tokens = estimate_text_tokens("word " * 15_000)
    assert 13_400 < tokens < 19_000
    texts = shown(turns([15_000] * 7), OPENCODE)
    assert [text == CLEARED_RESULT_TEXT for text in texts] == [True] * 4 + [False] * 3
    assert CLEARED_RESULT_TEXT not in shown(turns([15_000] * 3 + [40_000]), OPENCODE)
    assert CLEARED_RESULT_TEXT not in shown(turns([15_000] * 4), OPENCODE)


def test_opencode_leaves_the_last_turn_alone():
    """[C] nothing behind the second user message from the end is counted or cleared."""
    assert CLEARED_RESULT_TEXT not in shown(turns([10_000, 10_000, 90_000]), OPENCODE)
    texts = shown(turns([90_000, 10_000, 90_000]), OPENCODE)
    assert [text == CLEARED_RESULT_TEXT for text in texts] == [True, False, False]


def test_opencode_never_clears_a_skill():
    """[C] results of the tool ``skill`` stay."""
    assert CLEARED_RESULT_TEXT not in shown(turns([15_000] * 8, tool="skill"), OPENCODE)


CLAUDE = Policy.preset("claude-code").with_settings(compaction={"enabled": False}, results={"spill_chars": 0})


@pytest.mark.parametrize(("idle", "cleared"), [(0, 0), (3_600, 0), (3_601, 3)])
def test_claude_code_keeps_five_after_an_hour(idle, cleared):
    """[K] over an hour after the last answer, all results but the newest five are cleared."""
    texts = shown(turns([100] * 8), CLAUDE, PlanInputs("cold", idle_seconds=idle))
    assert [text == CLEARED_RESULT_TEXT for text in texts] == [True] * cleared + [False] * (8 - cleared)


OPENCLAW = Policy.preset("openclaw").with_settings(compaction={"enabled": False})


def test_openclaw_trims_long_results_when_cold():
    """[O] from 0.3 of the window on, long results keep both ends; short ones and the newest three answers' stay."""
    said = turns([24_000, 24_000, 24_000, 24_000, 100, 24_000])
    assert all("trimmed" not in text for text in shown(said, OPENCLAW))
    texts = shown(said, OPENCLAW, PlanInputs("cold"))
    assert [("Tool result trimmed" in text) for text in texts] == [True, True, True, True, False, False]
    trimmed = texts[0]
    assert trimmed.startswith("word " * 300)
    assert "kept first 1500 chars and last 1500 chars of 120000 chars" in trimmed
    assert all("trimmed" not in text for text in shown(turns([2_000] * 6), OPENCLAW, PlanInputs("cold")))


def test_claude_code_spills_over_fifty_thousand():
    """[K] strictly over 50,000 characters a result is spilled and its first 2,000 are shown."""
    policy = Policy.preset("claude-code").with_settings(compaction={"enabled": False})
    assert shown(turns([10_000]), policy) == ["word " * 10_000]
    (text,) = shown(turns([50_001], text="x"), policy)
    assert "x" * 2_000 in text
    assert "x" * 2_001 not in text
    assert text.startswith("<persisted_tool_result")
    assert 'chars="50001"' in text


def test_claude_code_spills_the_largest_of_a_message():
    """[K] results of one message over 200,000 characters: the largest go until the rest is within it."""
    sizes = [45_000, 49_000, 30_000, 48_000, 46_000]
    said = [
        Message.from_text("user", "go"),
        Message("assistant", tuple(ToolCall(f"c{n}", "read") for n in range(len(sizes)))),
        Message("tool", tuple(ToolResult(f"c{n}", "read", (Text("x" * size),)) for n, size in enumerate(sizes))),
    ]
    policy = Policy.preset("claude-code").with_settings(compaction={"enabled": False})
    texts = shown(said, policy)
    assert [len(text) for text in texts if "persisted" not in text] == [45_000, 30_000, 48_000, 46_000]
    said[2] = Message("tool", said[2].parts[:4])
    said[1] = Message("assistant", said[1].parts[:4])
    assert all("persisted" not in text for text in shown(said, policy))


RULES = {
    "holdfast": Policy().with_settings(prune={"keep_tokens": 5_000, "min_tokens": 0}),
    "opencode": OPENCODE.with_settings(preset={"prune_keep_tokens": 5_000, "prune_min_tokens": 0}),
    "claude-code": CLAUDE.with_settings(prune={"tools": ()}, preset={"prune_keep_results": 1}),
    "openclaw": OPENCLAW.with_settings(
        preset={
            "prune_trim_share": 0.0,
            "prune_clear_share": 0.0,
            "prune_trim_min_chars": 10**9,
            "loop_share": 0.0,
            "truncate_share": 0.0,
        }
    ),
}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    ("named", "goes"),
    [
        ({}, {"bash", "Skill"}),
        ({"exempt_tools": ("skill",)}, {"bash"}),
        ({"exempt_tools": ("ba*",)}, {"Skill"}),
        ({"tools": ("BASH",)}, {"bash"}),
    ],
)
def test_tools_are_named_alike_for_every_rule(rule, named, goes):
    """Which tools' results are cleared is one question: patterns, upper and lower case alike, whatever the rule."""
    policy = RULES[rule].with_settings(
        prune={"exempt_tools": ()} | named, compaction={"enabled": False}, results={"spill_chars": 0}
    )
    said = [one for _ in range(4) for tool in ("bash", "Skill") for one in turns([9_000], tool)]
    said = [one if not one.calls and not one.results else _numbered(one, at) for at, one in enumerate(said)]
    before, world = plan(said[:-1], WHERE, policy), PlanInputs("cold", idle_seconds=9_000)
    made = plan(said, WHERE, policy, state=before.state, inputs=world)
    edits = [*before.record, *made.record]
    assert {said[edit.span.start].results[0].name for edit in edits if edit.rule == "prune"} == goes


def _numbered(message, at):
    """Return a call or a result with an id of its own, the same for both."""
    parts = tuple(
        ToolCall(f"c{at}", part.name)
        if isinstance(part, ToolCall)
        else ToolResult(f"c{at - 1}", part.name, part.content)
        for part in message.parts
    )
    return Message(message.role, parts)
