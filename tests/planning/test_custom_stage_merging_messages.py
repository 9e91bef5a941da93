"""A stage of one's own that puts one message in the place of several: what it took is shown no more, to anybody."""

from __future__ import annotations

import pytest
from hypothesis import given
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

FOLDED = Message.from_text("user", "What stood here was folded into this. " * 100)


def turn(number: int, words: str = "x", *more: Text | Media) -> list[Message]:
    """Return a turn of the user's with one call and its result."""
    call = ToolCall(f"c{number}", "Read", "{}")
    return [
        Message.from_text("user", f"Ask {number}."),
        Message("assistant", (call,)),
        Message("tool", (ToolResult(call.id, call.name, (Text(words), *more)),)),
        Message.from_text("assistant", f"Done {number}."),
    ]


def folding(start: int, stop: int, at: int) -> Stage:
    """Return a stage that folds these slots once there are ``at`` of them."""

    def fold(draft: PlanBuilder) -> PlanBuilder:
        branch = draft.state
        is_folded = any(edit.span.part is None for edits in branch.view.edits.values() for edit in edits)
        if is_folded or not branch.view.first_kept <= start or len(branch.history.sized_messages) < at:
            return draft
        size = sum(slot.tokens for index in range(start, stop) for slot in list_shown_sized_messages_at(branch, index))
        return draft.add_edits(
            (Edit(Span(start, stop), (FOLDED,), "fold", "", size - build_sized_message(FOLDED).tokens),)
        )

    return fold


WORLDS = {
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


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize(("fold", "start"), [("history", 5), ("prune", 4), ("compaction", 5)])
def test_nothing_is_decided_about_what_was_folded(name, world, fold, start):
    """No stage behind it picks what is not shown any more, however large that was."""
    picture = Media("image", "image/png", 68, "", "iVBORw0KGgo=")
    said = [
        m
        for n in range(1, 7)
        for m in turn(n, f"line {n} of <persisted_tool_result>\n" * (2_100 if n == 2 else 400), picture)
    ]
    policy = POLICIES[name].insert_stage_before(fold, "fold", folding(start, 8, len(said) + 1))
    place = get_target("anthropic", "claude-sonnet-4-5", window=24_000)
    branch = ConversationState.from_entries(
        Entry(str(n), None, MessageEntry(build_sized_message(one))) for n, one in enumerate(said)
    )
    made = plan_request(
        apply_entry(branch, Entry("u", None, MessageEntry(build_sized_message(Message.from_text("user", "Go on."))))),
        place,
        policy,
        WORLDS[world],
    )
    folds = [at for at, edit in enumerate(made.record) if edit.rule == "fold"]
    assert folds or made.state.view.first_kept > start
    assert [edit for at in folds for edit in made.record[at + 1 :] if edit.span.start in range(start, 8)] == []


ODD = {
    "fine": Message.from_text("user", "and now?"),
    "blank": Message("user", (Text("and now?"), Text(""))),
    "thought": Message("assistant", (Thinking("hm", ProviderSignature("anthropic", "", "sig")), Text("so"))),
    "unsigned": Message("assistant", (Thinking("hm"), Text("so"))),
    "call": Message("assistant", (ToolCall("late", "Read", "{}"),)),
    "result": Message("tool", (ToolResult("late", "Read", (Text(""), Text("x"))),)),
}


@given(
    st.lists(st.sampled_from(list(ODD)), min_size=1, max_size=8),
    st.integers(0, 12),
    st.integers(2, 5),
    st.integers(0, 6),
    st.sampled_from([("anthropic", "claude-opus-5-5"), ("anthropic", "claude-sonnet-4-5"), ("openai-chat", "gpt-5")]),
)
def test_repairs_find_their_place_behind_a_fold(kinds, start, length, later, model):
    """Planned step by step or from nothing, a folded history has the same repairs, and they leave it valid."""
    said = [*turn(1), *turn(2), *[ODD[kind] for kind in kinds], Message.from_text("user", "Go on.")]
    policy = Policy().insert_stage_before("history", "fold", folding(start, start + length, start + length + later))
    place = replace(get_target(*model, window=200_000), setup=RequestSetup("f", 10))
    for step in drive_agent_loop(said, place, policy, request_points=range(1, len(said) + 1)):
        whole, _ = normalize_projection(
            replace(step.plan.state, view=replace(step.plan.state.view, normalized_prefix=None)), place.dialect
        )
        assert step.plan.normalization == whole
        kept = build_projection(step.plan.state)[count_leading_messages(step.plan.state) :]
        assert measure_tail(step.plan.state, step.plan.state.view.first_kept) == sum(slot.tokens for slot in kept)
        assert (
            normalize_projection(
                ConversationState.from_entries(
                    Entry(str(n), None, MessageEntry(slot)) for n, slot in enumerate(build_messages_to_send(step.plan))
                ),
                place.dialect,
            )[0]
            == ()
        )
