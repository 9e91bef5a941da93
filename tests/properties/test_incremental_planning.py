"""Planning with a remembered state equals planning without it, and each request extends the one before
(prefix-only-grows, same-after-restart).
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
SMALL_LIMITS = Policy().with_settings(
    window={"min_budget": 0}, results={"spill_chars": 600, "preview_chars": 200, "outline_chars": 100}
)
"""Holdfast's policy with limits that short texts reach."""
INPUTS = [PlanInputs(), PlanInputs(), PlanInputs("cold", idle_seconds=4_000), PlanInputs()]

models = st.sampled_from(MODELS)
windows = st.sampled_from([7_000, 9_000, 100_000])
setups = st.sampled_from([RequestSetup(), RequestSetup("f", 500)])
long_conversations = conversation_strategy(turns=4, steps=6, longest=3_000)
histories = long_conversations | broken_history_strategy(max_damages=4)


def build_target(model, window, setup):
    return get_target(*model, window=window, setup=setup)


def is_same_plan(first, second):
    """Return whether two plans have the same decisions, edits, options and sizes."""
    names = ("record", "compaction", "normalization", "options", "blobs", "before", "after", "notices")
    return all(getattr(first, name) == getattr(second, name) for name in names)


@given(histories, models, windows, setups, st.sampled_from([SMALL_LIMITS, *POLICIES]), st.booleans())
def test_plan_request_with_state_equals_planning_from_the_log(messages, model, window, setup, policy, usage):
    """Each plan of a loop equals the one made from its log alone, and the states after it are equal."""
    target = build_target(model, window, setup)
    report_usage = (lambda planned: planned.after + 50) if usage else None
    for step in drive_agent_loop(messages, target, policy, usage=report_usage, plan_inputs=INPUTS):
        plan_from_log = plan_request(ConversationState.from_entries(step.entries), target, policy, step.inputs)
        assert is_same_plan(plan_from_log, step.plan)
        log = [*step.entries, *make_plan_entries(step.entries, step.plan, step.count, target.model)]
        state_from_log = ConversationState.from_entries(log)
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
            assert flatten_state(state_from_log)[name] == flatten_state(step.plan.state)[name]
        assert get_valid_measured_request(state_from_log) == get_valid_measured_request(step.plan.state)
        assert list(state_from_log.history.projection_digests) == list(step.plan.state.history.projection_digests)
        assert list(state_from_log.history.digests_before) == list(step.plan.state.history.digests_before)


@given(broken_history_strategy(max_damages=5), models, st.sampled_from([SMALL_LIMITS, Policy()]))
def test_plan_request_equals_planning_from_the_log_after_any_message(messages, model, policy):
    """The same holds when the loop plans after every single message, with calls open or not."""
    target = build_target(model, 6_000, RequestSetup())
    for step in drive_agent_loop(messages, target, policy, request_points=range(1, len(messages) + 1)):
        assert is_same_plan(plan_request(ConversationState.from_entries(step.entries), target, policy), step.plan)


@given(histories, models, windows)
def test_plan_over_lists_equals_plan_request_over_states(messages, model, window):
    """``plan(messages[:k], state=...)`` for all k sends what ``plan_request`` on the folded log sends."""
    target = build_target(model, window, RequestSetup())
    state = None
    for step in drive_agent_loop(messages, target, SMALL_LIMITS):
        new_plan = plan(messages[: step.count], target, SMALL_LIMITS, state=state)
        assert is_same_plan(new_plan, step.plan)
        assert apply(messages[: step.count], new_plan) == [sized.message for sized in step.sent_messages]
        state = new_plan.state


def is_extension(before, after):
    """Return whether a step only adds to the one before: no compaction and no edit of messages sent before."""
    old_edits = before.plan.normalization
    return (
        after.plan.compaction is None
        and all(edit.span.start >= before.count for edit in after.plan.record)
        and after.plan.normalization[: len(old_edits)] == old_edits
        and all(edit.span.start >= before.shown_count for edit in after.plan.normalization[len(old_edits) :])
    )


@given(histories, models, windows, st.sampled_from([SMALL_LIMITS, *POLICIES]))
def test_request_extends_the_previous_request(messages, model, window, policy):
    """prefix-only-grows: without a decision about seen messages a request starts with the bytes of the previous one."""
    target = build_target(model, window, RequestSetup())
    steps = drive_agent_loop(messages, target, policy)
    for before, after in itertools.pairwise(steps):
        if is_extension(before, after):
            sent = get_wire_messages(target, before.sent_messages)
            assert get_wire_messages(target, after.sent_messages)[: len(sent)] == sent


@given(long_conversations, models, st.sampled_from([Policy(), SMALL_LIMITS]))
def test_sound_conversation_needs_no_normalization(messages, model, policy):
    """prefix-only-grows: with enough room, for pictures too, the requests of a loop only grow: no edit and no break,
    however long.
    """
    target = build_target(model, 200_000, RequestSetup())
    roomy_policy = policy.with_settings(media={"max_count": 100})
    steps = drive_agent_loop([message for message in messages if message.role != "system"], target, roomy_policy)
    if model[0] == "openai-chat":
        steps = [replace(step, plan=replace(step.plan, normalization=())) for step in steps]
    assert all(step.plan.normalization == () for step in steps)
    for before, after in itertools.pairwise(steps):
        assert is_extension(before, after)


USER, RESULT = Message.from_text("user", "go"), Message("tool", (ToolResult("call_0", "read", (Text("file"),)),))
CALL = Message("assistant", (ToolCall("call_0", "read", "{}"),))


@given(broken_history_strategy(max_damages=4), long_conversations, models)
@example([USER, RESULT], [USER, CALL, RESULT], MODELS[0])
def test_normalization_of_old_messages_stays_the_same(broken, messages, model):
    """prefix-only-grows: damage from long ago is normalized the same way in every later request."""
    target = build_target(model, 200_000, RequestSetup())
    start = [*broken, Message.from_text("user", "go on"), Message.from_text("assistant", "yes")]
    history = [*start, *(message for message in messages if message.role != "system")]
    request_points = [count for count in find_request_points(history) if count > len(start)]
    steps = drive_agent_loop(history, target, request_points=request_points)
    for before, after in itertools.pairwise(steps):
        sent = get_wire_messages(target, before.sent_messages)
        assert get_wire_messages(target, after.sent_messages)[: len(sent)] == sent


@given(histories, models, windows, st.sampled_from([SMALL_LIMITS, *POLICIES]))
def test_restart_changes_no_byte(messages, model, window, policy):
    """same-after-restart: with the state dumped and loaded before each request the same bytes are sent, twice
    as well.
    """
    target = build_target(model, window, RequestSetup("f", 300))
    first, second, restarted = (
        drive_agent_loop(messages, target, policy, plan_inputs=INPUTS, before_request=change_state)
        for change_state in (
            lambda state: state,
            lambda state: state,
            lambda state: ConversationState.load(state.dump()),
        )
    )
    sent = [get_wire_messages(target, step.sent_messages) for step in first]
    assert sent == [get_wire_messages(target, step.sent_messages) for step in second]
    assert sent == [get_wire_messages(target, step.sent_messages) for step in restarted]
    assert all(is_same_plan(state.plan, other.plan) for state, other in zip(first, restarted, strict=True))


@given(long_conversations, models, st.sampled_from([SMALL_LIMITS, *POLICIES]))
def test_retry_sends_the_same_request(messages, model, policy):
    """A retry, planned from the state of the previous plan without a new message, sends the same bytes."""
    target = build_target(model, 8_000, RequestSetup())
    for step in drive_agent_loop(messages, target, policy):
        if any(notice.rule in {"not-smaller", "nothing-to-compact"} for notice in step.plan.notices):
            continue
        retry = plan_request(step.plan.state, target, policy)
        assert retry.record == ()
        assert retry.compaction is None or policy.name != "holdfast"
        if retry.compaction is None:
            assert get_wire_messages(target, build_messages_to_send(retry)) == get_wire_messages(
                target, step.sent_messages
            )


def build_conversation(*texts):
    return [Message.from_text("user" if index % 2 == 0 else "assistant", text) for index, text in enumerate(texts)]


@pytest.mark.parametrize("change", ["shorter", "other end", "other middle", "longer"])
def test_plan_of_an_edited_history_starts_anew(change):
    """A list that differs from the state is a fork: the new list is sent, and the old state stays usable."""
    old = build_conversation("a", "b", "c", "d", "e")
    new = {
        "shorter": old[:3],
        "other end": [*old[:4], Message.from_text("user", "x")],
        "other middle": [*old[:2], Message.from_text("user", "x"), *old[3:]],
        "longer": [*old, Message.from_text("assistant", "f"), Message.from_text("user", "g")],
    }[change]
    target = build_target(MODELS[0], 100_000, RequestSetup())
    first = plan(old, target)
    new_plan = plan(new, target, state=first.state)
    assert apply(new, new_plan) == new
    assert apply(old, plan(old, target, state=first.state)) == old


@given(long_conversations, models)
def test_plan_request_after_a_setup_or_model_change_equals_planning_from_the_log(messages, model):
    """When tools, system prompt or model change midway, planning with state still equals planning without."""
    target = build_target(model, 100_000, RequestSetup("f", 100))
    other_targets = [
        build_target(model, 100_000, RequestSetup("g", 100)),
        build_target(MODELS[2], 100_000, RequestSetup("f", 100)),
    ]
    for step in drive_agent_loop(messages, target)[1:]:
        for other_target in other_targets:
            new_plan = plan_request(step.state, other_target)
            plan_from_log = plan_request(ConversationState.from_entries(step.entries), other_target)
            assert is_same_plan(new_plan, plan_from_log)


def test_thinking_is_bound_to_its_setup():
    """On a model that binds thinking, none is sent that was signed under another setup."""
    answer = Message("assistant", (Thinking("hm", ProviderSignature("anthropic", "", "s")), Text("yes")))
    messages = [*build_conversation("a"), answer, *build_conversation("b"), answer, *build_conversation("c")]
    target = build_target(MODELS[2], 100_000, RequestSetup("f", 100))
    last = drive_agent_loop(messages, target)[-1]
    assert sum(type(part) is Thinking for sized in last.sent_messages for part in sized.message.parts) == 2
    changed = plan_request(last.plan.state, build_target(MODELS[2], 100_000, RequestSetup("g", 100)))
    assert not [
        part for sized in build_messages_to_send(changed) for part in sized.message.parts if type(part) is Thinking
    ]


def test_thinking_survives_decisions_that_do_not_touch_it():
    """A fork keeps thinking after recorded decisions: the messages before it are those it was signed over."""
    result = ToolResult("t", "read", (Text("line\n" * 4_000),))
    answer = Message("assistant", (Thinking("hm", ProviderSignature("anthropic", "", "s")), Text("yes")))
    call = Message("assistant", (ToolCall("t", "read"),))
    messages = [*build_conversation("a"), call, Message("tool", (result,)), answer, *build_conversation("b")]
    target = build_target(MODELS[2], 20_000, RequestSetup())
    last = drive_agent_loop(messages, target)[-1]
    sent = get_wire_messages(target, last.sent_messages)
    assert any(edit.rule == "spill" for edits in last.plan.state.view.edits.values() for edit in edits)
    fork = [*messages[:-1], Message.from_text("user", "c")]
    new_plan = plan(fork, target, state=last.plan.state)
    assert get_wire_messages(target, build_messages_to_send(new_plan))[:-1] == sent[:-1]
