"""Planning with memory is planning without it, and a request grows out of the one before (K1, K2)."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace
from planning_loop import drive, points, recorded, wires
from strategies import broken_histories, conversations

from holdfast import Branch, Policy, World, apply, plan
from holdfast.config import target
from holdfast.messages.message import Message
from holdfast.messages.parts import Seal, Text, Thinking, ToolCall, ToolResult
from holdfast.normalize.projection import send_slots
from holdfast.planning.pipeline import advance
from holdfast.state.entries import Frame

MODELS = [
    ("anthropic", "claude-sonnet-4-5"),
    ("anthropic", "claude-opus-5-0"),
    ("anthropic", "claude-opus-5-5"),
    ("anthropic", "somebody-else"),
    ("openai-chat", "gpt-5"),
]
POLICIES = [Policy.preset(name) for name in ("holdfast", "sliding", "opencode", "pi", "claude-code")]
SMALL = Policy().with_settings(room_min=0, spill_chars=600, preview_chars=200, preview_outline=100)
"""Our own policy with limits that short texts reach."""
WORLDS = [World(), World(), World("cold", idle=4_000), World()]

places = st.sampled_from(MODELS)
windows = st.sampled_from([7_000, 9_000, 100_000])
frames = st.sampled_from([Frame(), Frame("f", 500)])
long_talks = conversations(turns=4, steps=6, longest=3_000)
histories = long_talks | broken_histories(most=4)


def place(model, window, frame):
    return target(*model, window=window, frame=frame)


def same_plan(one, other):
    """Return whether two plans say the same to whoever carries them out."""
    names = ("record", "compaction", "repair", "options", "blobs", "before", "after", "notices")
    return all(getattr(one, name) == getattr(other, name) for name in names)


@given(histories, places, windows, frames, st.sampled_from([SMALL, *POLICIES]), st.booleans())
def test_memory_changes_no_plan(messages, model, window, frame, policy, usage):
    """Each plan of a loop equals the one made from its log alone, and the branches after it are equal."""
    where = place(model, window, frame)
    tell = (lambda made: made.after + 50) if usage else None
    for step in drive(messages, where, policy, usage=tell, worlds=WORLDS):
        forgetful = advance(Branch.build(step.entries), where, policy, step.world)
        assert same_plan(forgetful, step.plan)
        log = [*step.entries, *recorded(step.entries, step.plan, step.count, where.model)]
        again = Branch.build(log)
        for name in ("held", "keep", "edits", "seen", "asked", "basis", "anchor", "gauge", "frame"):
            assert getattr(again, name) == getattr(step.plan.branch, name)
        assert list(again.marks) == list(step.plan.branch.marks)
        assert list(again.born) == list(step.plan.branch.born)


@given(broken_histories(most=5), places, st.sampled_from([SMALL, Policy()]))
def test_memory_changes_no_plan_at_any_point(messages, model, policy):
    """The same when the loop asks after every single message, calls open or not."""
    where = place(model, 6_000, Frame())
    for step in drive(messages, where, policy, at=range(1, len(messages) + 1)):
        assert same_plan(advance(Branch.build(step.entries), where, policy), step.plan)


@given(histories, places, windows)
def test_planning_over_lists_is_planning_over_branches(messages, model, window):
    """``plan(messages[:k], branch=...)`` for all k sends what ``advance`` on the folded log sends."""
    where = place(model, window, Frame())
    held = None
    for step in drive(messages, where, SMALL):
        made = plan(messages[: step.count], where, SMALL, branch=held)
        assert same_plan(made, step.plan)
        assert apply(messages[: step.count], made) == [slot.message for slot in step.slots]
        held = made.branch


def extends(before, after):
    """Return whether nothing but what is new, an epoch break or a changed repair lies between two steps."""
    old = before.plan.repair
    return (
        after.plan.compaction is None
        and all(edit.span.start >= before.count for edit in after.plan.record)
        and after.plan.repair[: len(old)] == old
        and all(edit.span.start >= before.shown for edit in after.plan.repair[len(old) :])
    )


@given(histories, places, windows, st.sampled_from([SMALL, *POLICIES]))
def test_a_request_extends_the_one_before(messages, model, window, policy):
    """K1: without a decision about what was seen, a request starts with the bytes of the one before."""
    where = place(model, window, Frame())
    steps = drive(messages, where, policy)
    for before, after in itertools.pairwise(steps):
        if extends(before, after):
            sent = wires(where, before.slots)
            assert wires(where, after.slots)[: len(sent)] == sent


@given(long_talks, places, st.sampled_from([Policy(), SMALL]))
def test_in_a_sound_conversation_nothing_is_repaired(messages, model, policy):
    """K1: with enough room, for pictures too, a loop's requests only grow: no repair, no break, however long."""
    where = place(model, 200_000, Frame())
    roomy = policy.with_settings(media_most=100)
    steps = drive([one for one in messages if one.role != "system"], where, roomy)
    if model[0] == "openai-chat":
        steps = [replace(step, plan=replace(step.plan, repair=())) for step in steps]
    assert all(step.plan.repair == () for step in steps)
    for before, after in itertools.pairwise(steps):
        assert extends(before, after)


USER, RESULT = Message.of("user", "go"), Message("tool", (ToolResult("call_0", "read", (Text("file"),)),))
CALL = Message("assistant", (ToolCall("call_0", "read", "{}"),))


@given(broken_histories(most=4), long_talks, places)
@example([USER, RESULT], [USER, CALL, RESULT], MODELS[0])
def test_an_old_repair_stays_as_it_is(broken, messages, model):
    """K1: what was wrong long ago is repaired in the same way in every later request."""
    where = place(model, 200_000, Frame())
    start = [*broken, Message.of("user", "go on"), Message.of("assistant", "yes")]
    whole = [*start, *(one for one in messages if one.role != "system")]
    at = [count for count in points(whole) if count > len(start)]
    steps = drive(whole, where, at=at)
    for before, after in itertools.pairwise(steps):
        sent = wires(where, before.slots)
        assert wires(where, after.slots)[: len(sent)] == sent


@given(histories, places, windows, st.sampled_from([SMALL, *POLICIES]))
def test_a_restart_changes_no_byte(messages, model, window, policy):
    """K2: with the branch dumped and loaded before each request, the same bytes are sent; and twice over, too."""
    where = place(model, window, Frame("f", 300))
    first, again, restarted = (
        drive(messages, where, policy, worlds=WORLDS, again=how)
        for how in (lambda one: one, lambda one: one, lambda one: Branch.load(one.dump()))
    )
    sent = [wires(where, step.slots) for step in first]
    assert sent == [wires(where, step.slots) for step in again]
    assert sent == [wires(where, step.slots) for step in restarted]
    assert all(same_plan(one.plan, other.plan) for one, other in zip(first, restarted, strict=True))


@given(long_talks, places, st.sampled_from([SMALL, *POLICIES]))
def test_planning_again_is_the_same_request(messages, model, policy):
    """A retry, planned from the branch of the plan before without a new word, sends the same bytes."""
    where = place(model, 8_000, Frame())
    for step in drive(messages, where, policy):
        if any(notice.rule in {"not-smaller", "nothing-to-compact"} for notice in step.plan.notices):
            continue
        retry = advance(step.plan.branch, where, policy)
        assert retry.record == ()
        assert retry.compaction is None or policy.name != "holdfast"
        if retry.compaction is None:
            assert wires(where, send_slots(retry)) == wires(where, step.slots)


def talk(*said):
    return [Message.of("user" if index % 2 == 0 else "assistant", text) for index, text in enumerate(said)]


@pytest.mark.parametrize("change", ["shorter", "other end", "other middle", "longer"])
def test_an_edited_past_is_planned_as_if_it_were_new(change):
    """A list that parts from the branch is a fork: what is sent is the new list, and the old branch stays."""
    old = talk("a", "b", "c", "d", "e")
    new = {
        "shorter": old[:3],
        "other end": [*old[:4], Message.of("user", "x")],
        "other middle": [*old[:2], Message.of("user", "x"), *old[3:]],
        "longer": [*old, Message.of("assistant", "f"), Message.of("user", "g")],
    }[change]
    where = place(MODELS[0], 100_000, Frame())
    first = plan(old, where)
    made = plan(new, where, branch=first.branch)
    assert apply(new, made) == new
    assert apply(old, plan(old, where, branch=first.branch)) == old


@given(long_talks, places)
def test_another_frame_or_model_is_planned_as_from_the_log(messages, model):
    """Where tools, system prompt or model change on the way, a plan with memory is still the plan without."""
    where = place(model, 100_000, Frame("f", 100))
    others = [place(model, 100_000, Frame("g", 100)), place(MODELS[2], 100_000, Frame("f", 100))]
    for step in drive(messages, where)[1:]:
        for other in others:
            made = advance(step.branch, other)
            again = advance(Branch.build(step.entries), other)
            assert same_plan(made, again)


def test_thinking_is_bound_to_its_frame():
    """On a model that binds thinking, none is sent that was signed under another frame, seen or settled."""
    said = Message("assistant", (Thinking("hm", Seal("anthropic", "", "s")), Text("yes")))
    talked = [*talk("a"), said, *talk("b"), said, *talk("c")]
    where = place(MODELS[2], 100_000, Frame("f", 100))
    last = drive(talked, where)[-1]
    assert sum(type(part) is Thinking for slot in last.slots for part in slot.message.parts) == 2
    changed = advance(last.plan.branch, place(MODELS[2], 100_000, Frame("g", 100)))
    assert not [part for slot in send_slots(changed) for part in slot.message.parts if type(part) is Thinking]


def test_thinking_outlives_what_did_not_touch_it():
    """A fork keeps the thinking behind recorded decisions: what stood before it is what it was signed over."""
    result = ToolResult("t", "read", (Text("line\n" * 4_000),))
    said = Message("assistant", (Thinking("hm", Seal("anthropic", "", "s")), Text("yes")))
    call = Message("assistant", (ToolCall("t", "read"),))
    talked = [*talk("a"), call, Message("tool", (result,)), said, *talk("b")]
    where = place(MODELS[2], 20_000, Frame())
    last = drive(talked, where)[-1]
    sent = wires(where, last.slots)
    assert any(edit.rule == "spill" for edits in last.plan.branch.edits.values() for edit in edits)
    other = [*talked[:-1], Message.of("user", "c")]
    made = plan(other, where, branch=last.plan.branch)
    assert wires(where, send_slots(made))[:-1] == sent[:-1]
