"""A stage of one's own that puts one message in the place of several: what it took is shown no more, to anybody."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from planning_loop import drive

from holdfast import Policy, World
from holdfast.config import target
from holdfast.messages.message import Message
from holdfast.messages.parts import Media, Seal, Text, Thinking, ToolCall, ToolResult
from holdfast.messages.size.tokens import measure
from holdfast.normalize.projection import repair_projection, send_slots
from holdfast.planning.builder import Draft
from holdfast.planning.pipeline import Stage, advance
from holdfast.planning.presets.presets import OPENCLAW_2026_9, PRESETS
from holdfast.planning.stages.tail_selection import tail_size
from holdfast.state.branch.branch import Branch, extend
from holdfast.state.branch.view import leading, project, shown
from holdfast.state.edits import Edit, Span
from holdfast.state.entries import Entry, Frame, Said

FOLDED = Message.of("user", "What stood here was folded into this. " * 100)


def turn(number: int, words: str = "x", *more: Text | Media) -> list[Message]:
    """Return a turn of the user's with one call and its result."""
    call = ToolCall(f"c{number}", "Read", "{}")
    return [
        Message.of("user", f"Ask {number}."),
        Message("assistant", (call,)),
        Message("tool", (ToolResult(call.id, call.name, (Text(words), *more)),)),
        Message.of("assistant", f"Done {number}."),
    ]


def folding(start: int, stop: int, at: int) -> Stage:
    """Return a stage that folds these slots once there are ``at`` of them."""

    def fold(draft: Draft) -> Draft:
        branch = draft.branch
        is_folded = any(edit.span.part is None for edits in branch.edits.values() for edit in edits)
        if is_folded or not branch.keep <= start or len(branch.slots) < at:
            return draft
        size = sum(slot.size for index in range(start, stop) for slot in shown(branch, index))
        return draft.decide((Edit(Span(start, stop), (FOLDED,), "fold", "", size - measure(FOLDED).size),))

    return fold


WORLDS = {
    "warm": World(spill=True),
    "cold": World("cold", idle=10_000, spill=True),
    "forced": World(force=True, spill=True),
    **{rung: World(rung=rung, spill=True) for rung in ("truncate", "media", "fallback")},
    "unstored": World("cold", idle=10_000),
}
POLICIES = {name: Policy.preset(name) for name in PRESETS} | {
    "openclaw-2026.9": Policy.preset("openclaw").with_settings(**OPENCLAW_2026_9),
    "opencode-prunes": Policy.preset("opencode").with_settings(prune="opencode", prune_keep=0, prune_minimum=1),
    "relief": Policy().with_settings(compact="off", spill_chars=0, message_chars=0, prune="off"),
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
    policy = POLICIES[name].before(fold, "fold", folding(start, 8, len(said) + 1))
    place = target("anthropic", "claude-sonnet-4-5", window=24_000)
    branch = Branch.build(Entry(str(n), None, Said(measure(one))) for n, one in enumerate(said))
    made = advance(
        extend(branch, Entry("u", None, Said(measure(Message.of("user", "Go on."))))), place, policy, WORLDS[world]
    )
    folds = [at for at, edit in enumerate(made.record) if edit.rule == "fold"]
    assert folds or made.branch.keep > start
    assert [edit for at in folds for edit in made.record[at + 1 :] if edit.span.start in range(start, 8)] == []


ODD = {
    "fine": Message.of("user", "and now?"),
    "blank": Message("user", (Text("and now?"), Text(""))),
    "thought": Message("assistant", (Thinking("hm", Seal("anthropic", "", "sig")), Text("so"))),
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
    said = [*turn(1), *turn(2), *[ODD[kind] for kind in kinds], Message.of("user", "Go on.")]
    policy = Policy().before("history", "fold", folding(start, start + length, start + length + later))
    place = replace(target(*model, window=200_000), frame=Frame("f", 10))
    for step in drive(said, place, policy, at=range(1, len(said) + 1)):
        whole, _ = repair_projection(replace(step.plan.branch, settled=None), place.dialect)
        assert step.plan.repair == whole
        kept = project(step.plan.branch)[leading(step.plan.branch) :]
        assert tail_size(step.plan.branch, step.plan.branch.keep) == sum(slot.size for slot in kept)
        assert (
            repair_projection(
                Branch.build(Entry(str(n), None, Said(slot)) for n, slot in enumerate(send_slots(step.plan))),
                place.dialect,
            )[0]
            == ()
        )
