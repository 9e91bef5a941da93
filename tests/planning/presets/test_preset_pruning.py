"""Old results, as the presets clear them."""

from __future__ import annotations

import pytest

from holdfast import PlanInputs, Policy, apply, plan
from holdfast.config import get_target
from holdfast.messages.message import Message, get_result_text
from holdfast.messages.parts import Text, ToolCall, ToolResult
from holdfast.messages.size.tokens import estimate_text_tokens
from holdfast.planning.stages.prune.prunable_results import CLEARED_RESULT_TEXT

TARGET = get_target("anthropic", "claude-sonnet-4-5", window=400_000)


def build_turns(sizes, tool="read", text="word "):
    """Return finished turns, each with one result that repeats ``text`` by its size."""
    messages = []
    for number, size in enumerate(sizes):
        messages += [
            Message.from_text("user", f"turn {number}"),
            Message("assistant", (ToolCall(f"c{number}", tool),)),
            Message("tool", (ToolResult(f"c{number}", tool, (Text(text * size),)),)),
            Message.from_text("assistant", "done"),
        ]
    return [*messages, Message.from_text("user", "last")]


def list_sent_results(messages, policy, inputs=PlanInputs()):
    """Return the texts of the results in the request."""
    sent = apply(messages, plan(messages, TARGET, policy, inputs=inputs))
    return [get_result_text(result) for message in sent for result in message.results]


OPENCODE = Policy.preset("opencode").with_settings(
    compaction={"enabled": False}, preset={"prune": True, "output_lines": 0, "output_bytes": 0}
)


def test_plan_opencode_keeps_the_newest_forty_thousand_tokens():
    """[C] Results older than the newest 40,000 tokens of results are cleared if that frees more than 20,000 tokens."""
    tokens = estimate_text_tokens("word " * 15_000)
    assert 13_400 < tokens < 19_000
    texts = list_sent_results(build_turns([15_000] * 7), OPENCODE)
    assert [text == CLEARED_RESULT_TEXT for text in texts] == [True] * 4 + [False] * 3
    assert CLEARED_RESULT_TEXT not in list_sent_results(build_turns([15_000] * 3 + [40_000]), OPENCODE)
    assert CLEARED_RESULT_TEXT not in list_sent_results(build_turns([15_000] * 4), OPENCODE)


def test_plan_opencode_keeps_the_last_turn():
    """[C] Nothing after the second user message from the end is counted or cleared."""
    assert CLEARED_RESULT_TEXT not in list_sent_results(build_turns([10_000, 10_000, 90_000]), OPENCODE)
    texts = list_sent_results(build_turns([90_000, 10_000, 90_000]), OPENCODE)
    assert [text == CLEARED_RESULT_TEXT for text in texts] == [True, False, False]


def test_plan_opencode_never_clears_a_skill():
    """[C] Results of the tool ``skill`` stay."""
    assert CLEARED_RESULT_TEXT not in list_sent_results(build_turns([15_000] * 8, tool="skill"), OPENCODE)


CLAUDE = Policy.preset("claude-code").with_settings(compaction={"enabled": False}, results={"spill_chars": 0})


@pytest.mark.parametrize(("idle", "cleared"), [(0, 0), (3_600, 0), (3_601, 3)])
def test_plan_claude_code_keeps_five_results_after_an_hour(idle, cleared):
    """[K] More than an hour after the last answer all results but the newest five are cleared."""
    texts = list_sent_results(build_turns([100] * 8), CLAUDE, PlanInputs("cold", idle_seconds=idle))
    assert [text == CLEARED_RESULT_TEXT for text in texts] == [True] * cleared + [False] * (8 - cleared)


OPENCLAW = Policy.preset("openclaw").with_settings(compaction={"enabled": False})


def test_plan_openclaw_trims_long_results_when_the_cache_is_cold():
    """[O] From 0.3 of the window, long results keep both ends; short results and those of the newest three answers
    stay.
    """
    messages = build_turns([24_000, 24_000, 24_000, 24_000, 100, 24_000])
    assert all("trimmed" not in text for text in list_sent_results(messages, OPENCLAW))
    texts = list_sent_results(messages, OPENCLAW, PlanInputs("cold"))
    assert [("Tool result trimmed" in text) for text in texts] == [True, True, True, True, False, False]
    trimmed = texts[0]
    assert trimmed.startswith("word " * 300)
    assert "kept first 1500 chars and last 1500 chars of 120000 chars" in trimmed
    assert all(
        "trimmed" not in text for text in list_sent_results(build_turns([2_000] * 6), OPENCLAW, PlanInputs("cold"))
    )


def test_plan_claude_code_spills_over_fifty_thousand_characters():
    """[K] A result strictly over 50,000 characters is spilled and its first 2,000 are shown."""
    policy = Policy.preset("claude-code").with_settings(compaction={"enabled": False})
    assert list_sent_results(build_turns([10_000]), policy) == ["word " * 10_000]
    (text,) = list_sent_results(build_turns([50_001], text="x"), policy)
    assert "x" * 2_000 in text
    assert "x" * 2_001 not in text
    assert text.startswith("<persisted_tool_result")
    assert 'chars="50001"' in text


def test_plan_claude_code_spills_the_largest_results_of_a_message():
    """[K] When the results of one message exceed 200,000 characters, the largest are spilled until the rest is within
    it.
    """
    sizes = [45_000, 49_000, 30_000, 48_000, 46_000]
    messages = [
        Message.from_text("user", "go"),
        Message("assistant", tuple(ToolCall(f"c{n}", "read") for n in range(len(sizes)))),
        Message("tool", tuple(ToolResult(f"c{n}", "read", (Text("x" * size),)) for n, size in enumerate(sizes))),
    ]
    policy = Policy.preset("claude-code").with_settings(compaction={"enabled": False})
    texts = list_sent_results(messages, policy)
    assert [len(text) for text in texts if "persisted" not in text] == [45_000, 30_000, 48_000, 46_000]
    messages[2] = Message("tool", messages[2].parts[:4])
    messages[1] = Message("assistant", messages[1].parts[:4])
    assert all("persisted" not in text for text in list_sent_results(messages, policy))


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
    ("settings", "pruned_tools"),
    [
        ({}, {"bash", "Skill"}),
        ({"exempt_tools": ("skill",)}, {"bash"}),
        ({"exempt_tools": ("ba*",)}, {"Skill"}),
        ({"tools": ("BASH",)}, {"bash"}),
    ],
)
def test_prune_rules_match_tool_names_alike(rule, settings, pruned_tools):
    """Every pruning rule selects tools the same way: by pattern, ignoring case."""
    policy = RULES[rule].with_settings(
        prune={"exempt_tools": ()} | settings, compaction={"enabled": False}, results={"spill_chars": 0}
    )
    messages = [message for _ in range(4) for tool in ("bash", "Skill") for message in build_turns([9_000], tool)]
    messages = [
        message if not message.calls and not message.results else _with_own_ids(message, at)
        for at, message in enumerate(messages)
    ]
    before, inputs = plan(messages[:-1], TARGET, policy), PlanInputs("cold", idle_seconds=9_000)
    new_plan = plan(messages, TARGET, policy, state=before.state, inputs=inputs)
    edits = [*before.record, *new_plan.record]
    assert {messages[edit.span.start].results[0].name for edit in edits if edit.rule == "prune"} == pruned_tools


def _with_own_ids(message, at):
    """Return the message with its call or result under an id of its own, the same for a call and its result."""
    parts = tuple(
        ToolCall(f"c{at}", part.name)
        if isinstance(part, ToolCall)
        else ToolResult(f"c{at - 1}", part.name, part.content)
        for part in message.parts
    )
    return Message(message.role, parts)
