"""Planning with memory is planning without it, and a request grows out of the one before (prefix-only-grows,
same-after-restart).
"""

from __future__ import annotations

import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis_strategies import broken_history_strategy, conversation_strategy
from msgspec.structs import replace
from planning_loop import drive_agent_loop, find_request_points, get_wire_messages, make_plan_entries

from holdfast import ConversationState, PlanInputs, Policy, apply, plan
from holdfast.config import get_target
from holdfast.messages.message import Message
from holdfast.messages.parts import ProviderSignature, Text, Thinking, ToolCall, ToolResult
from holdfast.normalize.projection import build_messages_to_send
from holdfast.planning.pipeline import plan_request
from holdfast.state.conversation_state import flatten_state
from holdfast.state.entries import RequestSetup
from holdfast.state.view import get_valid_measured_request

MODELS = [
    ("anthropic", "claude-sonnet-4-5"),
    ("anthropic", "claude-opus-5-0"),
    ("anthropic", "claude-opus-5-5"),
    ("anthropic", "somebody-else"),
    ("openai-chat", "gpt-5"),
]
POLICIES = [Policy.preset(name) for name in ("holdfast", "sliding", "opencode", "pi", "claude-code")]
SMALL = Policy().with_settings(
    window={"min_budget": 0}, results={"spill_chars": 600, "preview_chars": 200, "outline_chars": 100}
)
"""Our own policy with limits that short texts reach."""
WORLDS = [PlanInputs(), PlanInputs(), PlanInputs("cold", idle_seconds=4_000), PlanInputs()]

places = st.sampled_from(MODELS)
windows = st.sampled_from([7_000, 9_000, 100_000])
frames = st.sampled_from([RequestSetup(), RequestSetup("f", 500)])
long_talks = conversation_strategy(turns=4, steps=6, longest=3_000)
histories = long_talks | broken_history_strategy(max_wounds=4)


def place(model, window, frame):
    return get_target(*model, window=window, setup=frame)


def same_plan(one, other):
    """Return whether two plans say the same to whoever carries them out."""
    names = ("record", "compaction", "normalization", "options", "blobs", "before", "after", "notices")
    return all(getattr(one, name) == getattr(other, name) for name in names)


@given(histories, places, windows, frames, st.sampled_from([SMALL, *POLICIES]), st.booleans())
def test_memory_changes_no_plan(messages, model, window, frame, policy, usage):
    """Each plan of a loop equals the one made from its log alone, and the branches after it are equal."""
    where = place(model, window, frame)
    tell = (lambda made: made.after + 50) if usage else None
    for step in drive_agent_loop(messages, where, policy, usage=tell, worlds=WORLDS):
        forgetful = plan_request(ConversationState.from_entries(step.entries), where, policy, step.world)
        assert same_plan(forgetful, step.plan)
        log = [*step.entries, *make_plan_entries(step.entries, step.plan, step.count, where.model)]
        again = ConversationState.from_entries(log)
        for name in (
            "view.shown_tokens",
            "view.first_kept",
            "view.edits",
            "last_request.seen_count",
            "last_request.tokens",
            "last_request.prefix_digest",
            "usage.calibration",
            "setup",
        ):
            assert flatten_state(again)[name] == flatten_state(step.plan.state)[name]
        assert get_valid_measured_request(again) == get_valid_measured_request(step.plan.state)
        assert list(again.history.projection_digests) == list(step.plan.state.history.projection_digests)
        assert list(again.history.digests_before) == list(step.plan.state.history.digests_before)


@given(broken_history_strategy(max_wounds=5), places, st.sampled_from([SMALL, Policy()]))
def test_memory_changes_no_plan_at_any_point(messages, model, policy):
    """The same when the loop asks after every single message, calls open or not."""
    where = place(model, 6_000, RequestSetup())
    for step in drive_agent_loop(messages, where, policy, request_points=range(1, len(messages) + 1)):
        assert same_plan(plan_request(ConversationState.from_entries(step.entries), where, policy), step.plan)


@given(histories, places, windows)
def test_planning_over_lists_is_planning_over_branches(messages, model, window):
    """``plan(messages[:k], state=...)`` for all k sends what ``plan_request`` on the folded log sends."""
    where = place(model, window, RequestSetup())
    held = None
    for step in drive_agent_loop(messages, where, SMALL):
        made = plan(messages[: step.count], where, SMALL, state=held)
        assert same_plan(made, step.plan)
        assert apply(messages[: step.count], made) == [slot.message for slot in step.slots]
        held = made.state


def extends(before, after):
    """Return whether nothing but what is new, an epoch break or a changed repair lies between two steps."""
    old = before.plan.normalization
    return (
        after.plan.compaction is None
        and all(edit.span.start >= before.count for edit in after.plan.record)
        and after.plan.normalization[: len(old)] == old
        and all(edit.span.start >= before.shown_count for edit in after.plan.normalization[len(old) :])
    )


@given(histories, places, windows, st.sampled_from([SMALL, *POLICIES]))
def test_a_request_extends_the_one_before(messages, model, window, policy):
    """prefix-only-grows: without a decision about what was seen, a request starts with the bytes of the one before."""
    where = place(model, window, RequestSetup())
    steps = drive_agent_loop(messages, where, policy)
    for before, after in itertools.pairwise(steps):
        if extends(before, after):
            sent = get_wire_messages(where, before.slots)
            assert get_wire_messages(where, after.slots)[: len(sent)] == sent


@given(long_talks, places, st.sampled_from([Policy(), SMALL]))
def test_in_a_sound_conversation_nothing_is_repaired(messages, model, policy):
    """prefix-only-grows: with enough room, for pictures too, a loop's requests only grow: no repair, no break, however
    long.
    """
    where = place(model, 200_000, RequestSetup())
    roomy = policy.with_settings(media={"max_count": 100})
    steps = drive_agent_loop([one for one in messages if one.role != "system"], where, roomy)
    if model[0] == "openai-chat":
        steps = [replace(step, plan=replace(step.plan, normalization=())) for step in steps]
    assert all(step.plan.normalization == () for step in steps)
    for before, after in itertools.pairwise(steps):
        assert extends(before, after)


USER, RESULT = Message.from_text("user", "go"), Message("tool", (ToolResult("call_0", "read", (Text("file"),)),))
CALL = Message("assistant", (ToolCall("call_0", "read", "{}"),))


@given(broken_history_strategy(max_wounds=4), long_talks, places)
@example([USER, RESULT], [USER, CALL, RESULT], MODELS[0])
def test_an_old_repair_stays_as_it_is(broken, messages, model):
    """prefix-only-grows: what was wrong long ago is repaired in the same way in every later request."""
    where = place(model, 200_000, RequestSetup())
    start = [*broken, Message.from_text("user", "go on"), Message.from_text("assistant", "yes")]
    whole = [*start, *(one for one in messages if one.role != "system")]
    at = [count for count in find_request_points(whole) if count > len(start)]
    steps = drive_agent_loop(whole, where, request_points=at)
    for before, after in itertools.pairwise(steps):
        sent = get_wire_messages(where, before.slots)
        assert get_wire_messages(where, after.slots)[: len(sent)] == sent


@given(histories, places, windows, st.sampled_from([SMALL, *POLICIES]))
def test_a_restart_changes_no_byte(messages, model, window, policy):
    """same-after-restart: with the branch dumped and loaded before each request, the same bytes are sent; and twice
    over, too.
    """
    where = place(model, window, RequestSetup("f", 300))
    first, again, restarted = (
        drive_agent_loop(messages, where, policy, worlds=WORLDS, before_request=how)
        for how in (lambda one: one, lambda one: one, lambda one: ConversationState.load(one.dump()))
    )
    sent = [get_wire_messages(where, step.slots) for step in first]
    assert sent == [get_wire_messages(where, step.slots) for step in again]
    assert sent == [get_wire_messages(where, step.slots) for step in restarted]
    assert all(same_plan(one.plan, other.plan) for one, other in zip(first, restarted, strict=True))


@given(long_talks, places, st.sampled_from([SMALL, *POLICIES]))
def test_planning_again_is_the_same_request(messages, model, policy):
    """A retry, planned from the branch of the plan before without a new word, sends the same bytes."""
    where = place(model, 8_000, RequestSetup())
    for step in drive_agent_loop(messages, where, policy):
        if any(notice.rule in {"not-smaller", "nothing-to-compact"} for notice in step.plan.notices):
            continue
        retry = plan_request(step.plan.state, where, policy)
        assert retry.record == ()
        assert retry.compaction is None or policy.name != "holdfast"
        if retry.compaction is None:
            assert get_wire_messages(where, build_messages_to_send(retry)) == get_wire_messages(where, step.slots)


def talk(*said):
    return [Message.from_text("user" if index % 2 == 0 else "assistant", text) for index, text in enumerate(said)]


@pytest.mark.parametrize("change", ["shorter", "other end", "other middle", "longer"])
def test_an_edited_past_is_planned_as_if_it_were_new(change):
    """A list that parts from the branch is a fork: what is sent is the new list, and the old branch stays."""
    old = talk("a", "b", "c", "d", "e")
    new = {
        "shorter": old[:3],
        "other end": [*old[:4], Message.from_text("user", "x")],
        "other middle": [*old[:2], Message.from_text("user", "x"), *old[3:]],
        "longer": [*old, Message.from_text("assistant", "f"), Message.from_text("user", "g")],
    }[change]
    where = place(MODELS[0], 100_000, RequestSetup())
    first = plan(old, where)
    made = plan(new, where, state=first.state)
    assert apply(new, made) == new
    assert apply(old, plan(old, where, state=first.state)) == old


@given(long_talks, places)
def test_another_frame_or_model_is_planned_as_from_the_log(messages, model):
    """Where tools, system prompt or model change on the way, a plan with memory is still the plan without."""
    where = place(model, 100_000, RequestSetup("f", 100))
    others = [place(model, 100_000, RequestSetup("g", 100)), place(MODELS[2], 100_000, RequestSetup("f", 100))]
    for step in drive_agent_loop(messages, where)[1:]:
        for other in others:
            made = plan_request(step.branch, other)
            again = plan_request(ConversationState.from_entries(step.entries), other)
            assert same_plan(made, again)


def test_thinking_is_bound_to_its_frame():
    """On a model that binds thinking, none is sent that was signed under another frame, seen or settled."""
    said = Message("assistant", (Thinking("hm", ProviderSignature("anthropic", "", "s")), Text("yes")))
    talked = [*talk("a"), said, *talk("b"), said, *talk("c")]
    where = place(MODELS[2], 100_000, RequestSetup("f", 100))
    last = drive_agent_loop(talked, where)[-1]
    assert sum(type(part) is Thinking for slot in last.slots for part in slot.message.parts) == 2
    changed = plan_request(last.plan.state, place(MODELS[2], 100_000, RequestSetup("g", 100)))
    assert not [
        part for slot in build_messages_to_send(changed) for part in slot.message.parts if type(part) is Thinking
    ]


def test_thinking_outlives_what_did_not_touch_it():
    """A fork keeps the thinking behind recorded decisions: what stood before it is what it was signed over."""
    result = ToolResult("t", "read", (Text("line\n" * 4_000),))
    said = Message("assistant", (Thinking("hm", ProviderSignature("anthropic", "", "s")), Text("yes")))
    call = Message("assistant", (ToolCall("t", "read"),))
    talked = [*talk("a"), call, Message("tool", (result,)), said, *talk("b")]
    where = place(MODELS[2], 20_000, RequestSetup())
    last = drive_agent_loop(talked, where)[-1]
    sent = get_wire_messages(where, last.slots)
    assert any(edit.rule == "spill" for edits in last.plan.state.view.edits.values() for edit in edits)
    other = [*talked[:-1], Message.from_text("user", "c")]
    made = plan(other, where, state=last.plan.state)
    assert get_wire_messages(where, build_messages_to_send(made))[:-1] == sent[:-1]
