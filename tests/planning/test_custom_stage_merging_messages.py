"""A custom stage that replaces several messages by one: no later stage or request sees the replaced messages."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace
from planning_loop import drive_agent_loop

from holdfast import PlanInputs, Policy
from holdfast.config import get_target
from holdfast.messages.message import Message
from holdfast.messages.parts import Media, ProviderSignature, Text, Thinking, ToolCall, ToolResult
from holdfast.messages.size.tokens import build_sized_message
from holdfast.normalize.projection import build_messages_to_send, normalize_projection
from holdfast.planning.builder import PlanBuilder
from holdfast.planning.pipeline import Stage, plan_request
from holdfast.planning.presets.openclaw.rules import OPENCLAW_2026_9
from holdfast.planning.presets.registry import PRESETS
from holdfast.planning.stages.tail_selection import measure_tail
from holdfast.state.conversation_state import ConversationState
from holdfast.state.edits import Edit, Span
from holdfast.state.entries import Entry, MessageEntry, RequestSetup
from holdfast.state.fold.fold_entries import apply_entry
from holdfast.state.view import build_projection, count_leading_messages, list_shown_sized_messages_at

REPLACEMENT = Message.from_text("user", "What stood here was folded into this. " * 100)


def build_turn(number: int, result_text: str = "x", *result_parts: Text | Media) -> list[Message]:
    """Return a turn with one call and its result."""
    call = ToolCall(f"c{number}", "Read", "{}")
    return [
        Message.from_text("user", f"Ask {number}."),
        Message("assistant", (call,)),
        Message("tool", (ToolResult(call.id, call.name, (Text(result_text), *result_parts)),)),
        Message.from_text("assistant", f"Done {number}."),
    ]


def build_fold_stage(start: int, stop: int, at: int) -> Stage:
    """Return a stage that replaces the messages from ``start`` to ``stop`` once the history has ``at`` messages."""

    def replace_messages(builder: PlanBuilder) -> PlanBuilder:
        state = builder.state
        is_folded = any(edit.span.part is None for edits in state.view.edits.values() for edit in edits)
        if is_folded or not state.view.first_kept <= start or len(state.history.sized_messages) < at:
            return builder
        size = sum(sized.tokens for index in range(start, stop) for sized in list_shown_sized_messages_at(state, index))
        return builder.add_edits(
            (Edit(Span(start, stop), (REPLACEMENT,), "fold", "", size - build_sized_message(REPLACEMENT).tokens),)
        )

    return replace_messages


INPUTS = {
    "warm": PlanInputs(can_spill=True),
    "cold": PlanInputs("cold", idle_seconds=10_000, can_spill=True),
    "forced": PlanInputs(force_compaction=True, can_spill=True),
    **{step: PlanInputs(overflow_step=step, can_spill=True) for step in ("truncate", "media", "fallback")},
    "unstored": PlanInputs("cold", idle_seconds=10_000),
}
POLICIES = {name: Policy.preset(name) for name in PRESETS} | {
    "openclaw-2026.9": Policy.preset("openclaw").with_settings(**OPENCLAW_2026_9),
    "opencode-prunes": Policy.preset("opencode").with_settings(
        preset={"prune": True, "prune_keep_tokens": 0, "prune_min_tokens": 1}
    ),
    "largest": Policy().with_settings(
        compaction={"enabled": False}, results={"spill_chars": 0, "message_chars": 0}, prune={"when": ()}
    ),
}


@pytest.mark.parametrize("inputs_name", INPUTS)
@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize(("fold", "start"), [("history", 5), ("prune", 4), ("compaction", 5)])
def test_plan_decides_nothing_about_replaced_messages(name, inputs_name, fold, start):
    """No stage after it selects a message that is no longer shown, however large the message was."""
    picture = Media("image", "image/png", 68, "", "iVBORw0KGgo=")
    messages = [
        message
        for number in range(1, 7)
        for message in build_turn(
            number, f"line {number} of <persisted_tool_result>\n" * (2_100 if number == 2 else 400), picture
        )
    ]
    policy = POLICIES[name].insert_stage_before(fold, "fold", build_fold_stage(start, 8, len(messages) + 1))
    target = get_target("anthropic", "claude-sonnet-4-5", window=24_000)
    state = ConversationState.from_entries(
        Entry(str(number), None, MessageEntry(build_sized_message(sent))) for number, sent in enumerate(messages)
    )
    new_plan = plan_request(
        apply_entry(state, Entry("u", None, MessageEntry(build_sized_message(Message.from_text("user", "Go on."))))),
        target,
        policy,
        INPUTS[inputs_name],
    )
    folds = [at for at, edit in enumerate(new_plan.record) if edit.rule == "fold"]
    assert folds or new_plan.state.view.first_kept > start
    assert [edit for at in folds for edit in new_plan.record[at + 1 :] if edit.span.start in range(start, 8)] == []


ODD_MESSAGES = {
    "fine": Message.from_text("user", "and now?"),
    "blank": Message("user", (Text("and now?"), Text(""))),
    "thought": Message("assistant", (Thinking("hm", ProviderSignature("anthropic", "", "sig")), Text("so"))),
    "unsigned": Message("assistant", (Thinking("hm"), Text("so"))),
    "call": Message("assistant", (ToolCall("late", "Read", "{}"),)),
    "result": Message("tool", (ToolResult("late", "Read", (Text(""), Text("x"))),)),
}


@given(
    st.lists(st.sampled_from(list(ODD_MESSAGES)), min_size=1, max_size=8),
    st.integers(0, 12),
    st.integers(2, 5),
    st.integers(0, 6),
    st.sampled_from([("anthropic", "claude-opus-5-5"), ("anthropic", "claude-sonnet-4-5"), ("openai-chat", "gpt-5")]),
)
@example(["fine", "fine", "result", "fine", "thought", "call"], 12, 2, 1, ("anthropic", "claude-opus-5-5"))
def test_normalization_is_the_same_step_by_step_after_a_replacement(kinds, start, length, later, model):
    """Planned step by step or at once, a history with a replacement has the same normalization and is valid."""
    messages = [
        *build_turn(1),
        *build_turn(2),
        *[ODD_MESSAGES[kind] for kind in kinds],
        Message.from_text("user", "Go on."),
    ]
    policy = Policy().insert_stage_before(
        "history", "fold", build_fold_stage(start, start + length, start + length + later)
    )
    target = replace(get_target(*model, window=200_000), setup=RequestSetup("f", 10))
    for step in drive_agent_loop(messages, target, policy, request_points=range(1, len(messages) + 1)):
        normalization, _ = normalize_projection(
            replace(step.plan.state, view=replace(step.plan.state.view, normalized_prefix=None)), target.dialect
        )
        assert step.plan.normalization == normalization
        shown = build_projection(step.plan.state)[count_leading_messages(step.plan.state) :]
        assert measure_tail(step.plan.state, step.plan.state.view.first_kept) == sum(sized.tokens for sized in shown)
        assert (
            normalize_projection(
                ConversationState.from_entries(
                    Entry(str(n), None, MessageEntry(sized))
                    for n, sized in enumerate(build_messages_to_send(step.plan))
                ),
                target.dialect,
            )[0]
            == ()
        )
