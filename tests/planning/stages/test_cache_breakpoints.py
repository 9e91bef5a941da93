"""Cache breakpoints: few, on stable positions, and always on the newest message."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis_strategies import broken_history_strategy, conversation_strategy
from msgspec.structs import replace
from planning_loop import drive_agent_loop
from sample_conversations import build_conversation, damage_history

from holdfast import PlanInputs, Policy, plan
from holdfast.config import get_target
from holdfast.messages.message import Message
from holdfast.messages.parts import Text, ToolCall, ToolResult
from holdfast.messages.size.tokens import build_sized_message
from holdfast.normalize.result_matching import SYNTHETIC_RESULT_TEXT
from holdfast.planning.presets.registry import PRESETS
from holdfast.planning.stages.cache_breakpoints import choose_cache_breakpoints
from holdfast.providers.requests.request_body import build_request_body
from holdfast.replay.cache import SETUP_BREAKPOINT, SimulatedCache, make_cache_blocks
from holdfast.state.conversation_state import ConversationState
from holdfast.state.edits import Edit, Span
from holdfast.state.entries import DecisionEntry, Entry, MessageEntry, RequestEntry
from holdfast.state.view import build_projection

MODELS = [("anthropic", "claude-sonnet-4-5"), ("anthropic", "claude-opus-5-5"), ("anthropic", "somebody-else")]
POLICIES = [Policy.preset(name) for name in PRESETS]
EARLY_RESULT = damage_history(
    build_conversation([(0, 1, [(1, 0, 1, 0)], False), (0, 1, [], False)]), [("misplaced result", 0, 0)]
)
"""A history in which a result comes before its call."""


def is_synthetic(message):
    """Return whether normalization added the message because the API requires one."""
    results = all(result.content == (Text(SYNTHETIC_RESULT_TEXT),) for result in message.results)
    return results if message.results else message == Message.from_text("user", "Continue.")


@given(
    conversation_strategy(longest=3_000) | broken_history_strategy(max_damages=4, longest=3_000, system=False),
    st.sampled_from(MODELS),
    st.sampled_from([7_000, 100_000]),
    st.sampled_from(POLICIES),
    st.integers(1, 4),
)
@example(messages=EARLY_RESULT, model=MODELS[0], window=7_000, policy=POLICIES[0], max_breakpoints=1)
def test_cache_breakpoints_are_on_sent_messages(messages, model, window, policy, max_breakpoints):
    """There are no more than the API allows, on distinct existing positions, the tail first. Only what normalization
    added follows the tail's breakpoint: synthetic messages, or a result that came before its call.
    """
    window = max(window, 16_000) if policy.name == "openclaw" else window
    target = get_target(*model, window=window)
    target = replace(target, dialect=replace(target.dialect, max_cache_breakpoints=max_breakpoints))
    for step in drive_agent_loop(messages, target, policy):
        options, sent = step.plan.options, [sized.message for sized in step.sent_messages]
        assert len(options.cache_breakpoints) + options.setup_breakpoint <= max_breakpoints
        assert len(set(options.cache_breakpoints)) == len(options.cache_breakpoints)
        if sent:
            assert all(0 <= position < len(sent) for position in options.cache_breakpoints)
            moved_results = [one for edit in step.plan.normalization for one in edit.replacement if one.results]
            assert all(
                is_synthetic(message) or message in moved_results
                for message in sent[options.cache_breakpoints[0] + 1 :]
            )


@given(conversation_strategy(), st.sampled_from([Policy(), Policy.preset("append-only")]))
def test_cache_breakpoints_are_absent_where_the_api_has_none(messages, policy):
    """An API without explicit breakpoints gets none."""
    target = get_target("openai-chat", "gpt-5", window=100_000)
    options = plan(messages, target, policy).options
    assert (options.cache_breakpoints, options.setup_breakpoint) == ((), False)


@given(conversation_strategy(longest=2_000), st.sampled_from(MODELS))
def test_cache_breakpoints_mark_the_previous_tail(messages, model):
    """In a growing conversation the old tail is marked beside the new one, so that the cache is hit."""
    history = [message for message in messages if message.role != "system"]
    last = None
    for step in drive_agent_loop(history, get_target(*model, window=200_000)):
        if last is not None:
            assert last in step.plan.options.cache_breakpoints
        last = step.plan.options.cache_breakpoints[0]


@given(conversation_strategy(longest=4_000), st.booleans())
def test_build_request_body_carries_the_breakpoints(messages, forced):
    """Each position of the options is a breakpoint in the body, on the last part of its message."""
    target = get_target("anthropic", "claude-sonnet-4-5", window=60_000)
    history = [message for message in messages if message.role != "system"]
    step = drive_agent_loop(history, target, plan_inputs=[PlanInputs(force_compaction=forced)])[-1]
    sent = json.loads(build_request_body(target.api, target.model, step.sent_messages, options=step.plan.options))[
        "messages"
    ]
    marked = [
        position
        for position, one in enumerate(sent)
        if isinstance(one["content"], list) and "cache_control" in one["content"][-1]
    ]
    assert marked == sorted(step.plan.options.cache_breakpoints)


@pytest.mark.parametrize("messages", [[], [Message("user")], [Message.from_text("user", " ")]])
def test_cache_breakpoints_are_absent_without_messages(messages):
    """A request without messages has no breakpoint on one."""
    options = plan(messages, get_target("anthropic", "claude-sonnet-4-5", window=60_000)).options
    assert options.cache_breakpoints == ()


def send_step(step, target, cache):
    """Return the cache hit of a step's request and the blocks that it sent."""
    blocks, ends = [], []
    for sized in step.sent_messages:
        blocks += make_cache_blocks(sized.message, len)
        ends.append(len(blocks) - 1)
    breakpoints = [ends[position] for position in step.plan.options.cache_breakpoints]
    return cache.send_request(
        blocks,
        (b"frame", 5_000),
        [SETUP_BREAKPOINT, *breakpoints] if step.plan.options.setup_breakpoint else breakpoints,
        0,
    ), blocks


def build_parallel_steps(calls, steps):
    """Return a conversation of ``steps`` answers that each make ``calls`` calls at once."""
    messages = [Message.from_text("user", "go " * 2_000)]
    for number in range(steps):
        ids = [f"c{number}x{call}" for call in range(calls)]
        messages.append(Message("assistant", tuple(ToolCall(id_, "read") for id_ in ids)))
        messages.append(Message("tool", tuple(ToolResult(id_, "read", (Text(f"word {id_} " * 60),)) for id_ in ids)))
    return messages


@pytest.mark.parametrize("calls", [1, 8, 11, 30, 200])
def test_cache_breakpoints_hit_after_a_tail_of_many_blocks(calls):
    """However many blocks were added, everything that the previous request sent is read from the cache."""
    target = get_target("anthropic", "claude-sonnet-4-5", window=1_000_000)
    cache, before = SimulatedCache(target.cache_rules), 0
    for step in drive_agent_loop(build_parallel_steps(calls, 5), target):
        hit, sent = send_step(step, target, cache)
        assert hit.read == before
        before = 5_000 + sum(tokens for _, tokens in sent)


def test_cache_breakpoint_on_the_tail_alone_misses():
    """With a breakpoint on the tail alone nothing is read from the cache, so the test above can fail."""
    target = get_target("anthropic", "claude-sonnet-4-5", window=1_000_000)
    cache = SimulatedCache(target.cache_rules)
    steps = drive_agent_loop(build_parallel_steps(30, 3), target, Policy.preset("append-only"))
    assert [send_step(step, target, cache)[0].read for step in steps] == [0] * 4


def test_cache_breakpoints_mark_every_fifteen_new_blocks():
    """In a long new stretch the remaining breakpoints are spread, so that a fork finds one within its look-back."""
    target = get_target("anthropic", "claude-sonnet-4-5", window=1_000_000)
    messages = build_parallel_steps(4, 20)  # 161 blocks in 41 messages
    (step,) = drive_agent_loop(messages, target, request_points=[len(messages)])
    assert step.plan.options.cache_breakpoints == (40, 36, 32)
    assert step.plan.options.setup_breakpoint
    for interval, markers in ((0, (40,)), (16, (40, 36, 32)), (17, (40, 35, 30))):
        policy = Policy().with_settings(cache={"breakpoint_interval_blocks": interval})
        assert (
            drive_agent_loop(messages, target, policy, request_points=[len(messages)])[0].plan.options.cache_breakpoints
            == markers
        )
    longer = [*messages, *build_parallel_steps(4, 6)[1:]]
    last = drive_agent_loop(longer, target, request_points=[len(messages), len(longer)])[-1]
    assert last.plan.options.cache_breakpoints == (52, 40, 48)


@pytest.mark.parametrize("markers", ["frontier", "tail"])
def test_cache_breakpoints_let_the_next_prune_read_up_to_the_frontier(markers):
    """A breakpoint follows the last pruned result: when more are pruned, everything before them is read again."""
    target = get_target("anthropic", "claude-sonnet-4-5", window=1_000_000)
    policy = Policy().with_settings(prune={"keep_tokens": 3_000, "min_tokens": 100}, cache={"breakpoints": markers})
    inputs = [PlanInputs()] * 5 + [PlanInputs("cold")]
    cache, steps = (
        SimulatedCache(target.cache_rules),
        drive_agent_loop(
            build_parallel_steps(8, 12), target, policy, request_points=range(3, 26, 2), plan_inputs=inputs
        ),
    )
    first, second = ({edit.span.start for edit in steps[index].plan.record} for index in (5, 11))
    assert max(first) < min(second)
    hit, sent = [send_step(step, target, cache) for step in steps][-1]
    kept_tokens = 5_000 + sum(tokens for _, tokens in sent[: 1 + (8 + 8) * max(first) // 2])
    assert hit.read == (kept_tokens if markers == "frontier" else 0)


def test_cache_breakpoints_mark_the_summary():
    """A breakpoint follows the summary when nothing in the kept tail was replaced later."""
    target = get_target("anthropic", "claude-sonnet-4-5", window=40_000)
    messages = [*build_parallel_steps(4, 12), Message.from_text("assistant", "so"), Message.from_text("user", "go on")]
    step = drive_agent_loop(messages, target, plan_inputs=[PlanInputs(force_compaction=True)])[-1]
    assert step.plan.state.view.compaction is not None
    assert 0 in step.plan.options.cache_breakpoints


def test_choose_cache_breakpoints_counts_only_shown_messages():
    """When an edit replaced whole messages, breakpoints are on shown messages: the tail and the previous tail."""
    messages = [Message.from_text("user" if index % 2 == 0 else "assistant", f"word {index}") for index in range(9)]
    entries = [
        Entry(str(index), None, MessageEntry(build_sized_message(message)), index)
        for index, message in enumerate(messages)
    ]
    edits = DecisionEntry(
        (Edit(Span(1, 3)), Edit(Span(5, 6), (Message.from_text("assistant", "x"), Message.from_text("user", "y"))))
    )
    state = ConversationState.from_entries([*entries, Entry("d", None, edits), Entry("r", None, RequestEntry("b", 7))])
    target = get_target("anthropic", "claude-sonnet-4-5", window=100_000)
    options = choose_cache_breakpoints(state, (), target, Policy().settings)
    assert options.cache_breakpoints == (7, 5, 4)
    assert [sized.message.text for sized in build_projection(state)][4:6] == ["y", "word 6"]


@pytest.mark.parametrize("text", ["<persisted_tool_result>", "word\n" * 4_000])
def test_cache_breakpoints_skip_messages_edited_before_they_were_shown(text):
    """An escaped look-alike tag or a result truncated on arrival holds no breakpoint, as it never changes later."""
    target = get_target("anthropic", "claude-sonnet-4-5", window=1_000_000)
    opencode = Policy.preset("opencode")
    call = Message("assistant", (ToolCall("c", "read"),))
    start = [Message.from_text("user", "go"), call, Message("tool", (ToolResult("c", "read", (Text(text),)),))]
    for step in drive_agent_loop(
        [*start, *build_parallel_steps(1, 4)[1:]], target, opencode, request_points=range(3, 12, 2)
    ):
        assert len(step.plan.state.view.edits) == 1
        assert 2 not in step.plan.options.cache_breakpoints[:1] or step.count == 3
    assert 2 not in step.plan.options.cache_breakpoints
