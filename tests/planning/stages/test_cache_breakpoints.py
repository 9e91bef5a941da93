"""Cache breakpoints: few, where something stands, and always on the newest part of what was said."""

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
from holdfast.normalize.pairing import SYNTHETIC_RESULT_TEXT
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
EARLY = damage_history(
    build_conversation([(0, 1, [(1, 0, 1, 0)], False), (0, 1, [], False)]), [("misplaced result", 0, 0)]
)
"""A result that stands before its call."""


def made_up(message):
    """Return whether a message is there only because the API wants one."""
    results = all(result.content == (Text(SYNTHETIC_RESULT_TEXT),) for result in message.results)
    return results if message.results else message == Message.from_text("user", "Continue.")


@given(
    conversation_strategy(longest=3_000) | broken_history_strategy(max_wounds=4, longest=3_000, system=False),
    st.sampled_from(MODELS),
    st.sampled_from([7_000, 100_000]),
    st.sampled_from(POLICIES),
    st.integers(1, 4),
)
@example(messages=EARLY, model=MODELS[0], window=7_000, policy=POLICIES[0], most=1)
def test_markers_stand_on_messages_that_are_sent(messages, model, window, policy, most):
    """There are no more than the API takes, apart, on positions that exist, the tail's before all others.

    Behind the tail's stands only what a repair put there: made up, or a result that came before its call.
    """
    window = max(window, 16_000) if policy.name == "openclaw" else window
    where = get_target(*model, window=window)
    where = replace(where, dialect=replace(where.dialect, max_cache_breakpoints=most))
    for step in drive_agent_loop(messages, where, policy):
        options, sent = step.plan.options, [slot.message for slot in step.slots]
        assert len(options.cache_breakpoints) + options.setup_breakpoint <= most
        assert len(set(options.cache_breakpoints)) == len(options.cache_breakpoints)
        if sent:
            assert all(0 <= place < len(sent) for place in options.cache_breakpoints)
            moved = [one for edit in step.plan.normalization for one in edit.replacement if one.results]
            assert all(made_up(one) or one in moved for one in sent[options.cache_breakpoints[0] + 1 :])


@given(conversation_strategy(), st.sampled_from([Policy(), Policy.preset("append-only")]))
def test_no_markers_where_the_api_has_none(messages, policy):
    """An API without explicit breakpoints gets none."""
    where = get_target("openai-chat", "gpt-5", window=100_000)
    options = plan(messages, where, policy).options
    assert (options.cache_breakpoints, options.setup_breakpoint) == ((), False)


@given(conversation_strategy(longest=2_000), st.sampled_from(MODELS))
def test_the_tail_of_the_request_before_is_marked(messages, model):
    """Ours: in a growing conversation the old tail is marked beside the new one, so that the cache is hit."""
    said = [one for one in messages if one.role != "system"]
    last = None
    for step in drive_agent_loop(said, get_target(*model, window=200_000)):
        if last is not None:
            assert last in step.plan.options.cache_breakpoints
        last = step.plan.options.cache_breakpoints[0]


@given(conversation_strategy(longest=4_000), st.booleans())
def test_the_body_carries_the_markers(messages, forced):
    """Each position of the options is a breakpoint of the body, behind the last part of its message."""
    where = get_target("anthropic", "claude-sonnet-4-5", window=60_000)
    said = [one for one in messages if one.role != "system"]
    step = drive_agent_loop(said, where, worlds=[PlanInputs(force_compaction=forced)])[-1]
    sent = json.loads(build_request_body(where.api, where.model, step.slots, options=step.plan.options))["messages"]
    marked = [
        place
        for place, one in enumerate(sent)
        if isinstance(one["content"], list) and "cache_control" in one["content"][-1]
    ]
    assert marked == sorted(step.plan.options.cache_breakpoints)


@pytest.mark.parametrize("said", [[], [Message("user")], [Message.from_text("user", " ")]])
def test_nothing_is_marked_where_nothing_is(said):
    """A request without messages has no marker on one."""
    options = plan(said, get_target("anthropic", "claude-sonnet-4-5", window=60_000)).options
    assert options.cache_breakpoints == ()


def metered(step, where, cache):
    """Return the hit of a step's request, and the blocks it sent."""
    sent, ends = [], []
    for slot in step.slots:
        sent += make_cache_blocks(slot.message, len)
        ends.append(len(sent) - 1)
    marks = [ends[place] for place in step.plan.options.cache_breakpoints]
    return cache.send_request(
        sent, (b"frame", 5_000), [SETUP_BREAKPOINT, *marks] if step.plan.options.setup_breakpoint else marks, 0
    ), sent


def wide(calls, steps):
    """Return a conversation in which each answer makes so many calls at once."""
    said = [Message.from_text("user", "go " * 2_000)]
    for number in range(steps):
        ids = [f"c{number}x{call}" for call in range(calls)]
        said.append(Message("assistant", tuple(ToolCall(id_, "read") for id_ in ids)))
        said.append(Message("tool", tuple(ToolResult(id_, "read", (Text(f"word {id_} " * 60),)) for id_ in ids)))
    return said


@pytest.mark.parametrize("calls", [1, 8, 11, 30, 200])
def test_a_tail_that_grew_by_many_blocks_still_hits(calls):
    """However many blocks were added, all that the request before had sent is read from the cache."""
    where = get_target("anthropic", "claude-sonnet-4-5", window=1_000_000)
    cache, before = SimulatedCache(where.cache_rules), 0
    for step in drive_agent_loop(wide(calls, 5), where):
        hit, sent = metered(step, where, cache)
        assert hit.read == before
        before = 5_000 + sum(tokens for _, tokens in sent)


def test_a_tail_marker_alone_misses():
    """The same with a marker on the tail alone reads nothing but what little looks back: the test above can fail."""
    where = get_target("anthropic", "claude-sonnet-4-5", window=1_000_000)
    cache = SimulatedCache(where.cache_rules)
    steps = drive_agent_loop(wide(30, 3), where, Policy.preset("append-only"))
    assert [metered(step, where, cache)[0].read for step in steps] == [0] * 4


def test_what_is_new_is_marked_every_fifteen_blocks():
    """In a long stretch that is new, places that are left are marked, so that a fork from there looks back to one."""
    where = get_target("anthropic", "claude-sonnet-4-5", window=1_000_000)
    said = wide(4, 20)  # 161 blocks in 41 messages
    (step,) = drive_agent_loop(said, where, request_points=[len(said)])
    assert step.plan.options.cache_breakpoints == (40, 36, 32)
    assert step.plan.options.setup_breakpoint
    for every, markers in ((0, (40,)), (16, (40, 36, 32)), (17, (40, 35, 30))):
        policy = Policy().with_settings(cache={"breakpoint_interval_blocks": every})
        assert (
            drive_agent_loop(said, where, policy, request_points=[len(said)])[0].plan.options.cache_breakpoints
            == markers
        )
    grown = [*said, *wide(4, 6)[1:]]
    last = drive_agent_loop(grown, where, request_points=[len(said), len(grown)])[-1]
    assert last.plan.options.cache_breakpoints == (52, 40, 48)


@pytest.mark.parametrize("markers", ["frontier", "tail"])
def test_the_next_prune_reads_up_to_the_frontier(markers):
    """Behind the last old result that gave way a marker stands: when more go, what lies before them is read again."""
    where = get_target("anthropic", "claude-sonnet-4-5", window=1_000_000)
    policy = Policy().with_settings(prune={"keep_tokens": 3_000, "min_tokens": 100}, cache={"breakpoints": markers})
    worlds = [PlanInputs()] * 5 + [PlanInputs("cold")]
    cache, steps = (
        SimulatedCache(where.cache_rules),
        drive_agent_loop(wide(8, 12), where, policy, request_points=range(3, 26, 2), worlds=worlds),
    )
    first, second = ({edit.span.start for edit in steps[place].plan.record} for place in (5, 11))
    assert max(first) < min(second)
    hit, sent = [metered(step, where, cache) for step in steps][-1]
    stays = 5_000 + sum(tokens for _, tokens in sent[: 1 + (8 + 8) * max(first) // 2])
    assert hit.read == (stays if markers == "frontier" else 0)


def test_the_summary_is_marked():
    """Behind a summary a marker stands, where nothing in the kept tail was replaced later."""
    where = get_target("anthropic", "claude-sonnet-4-5", window=40_000)
    said = [*wide(4, 12), Message.from_text("assistant", "so"), Message.from_text("user", "go on")]
    step = drive_agent_loop(said, where, worlds=[PlanInputs(force_compaction=True)])[-1]
    assert step.plan.state.view.compaction is not None
    assert 0 in step.plan.options.cache_breakpoints


def test_slots_that_are_gone_are_counted_out():
    """Where a recorded edit took whole slots, markers stand on what is shown: the tail, and the tail before."""
    said = [Message.from_text("user" if place % 2 == 0 else "assistant", f"word {place}") for place in range(9)]
    entries = [Entry(str(place), None, MessageEntry(build_sized_message(one)), place) for place, one in enumerate(said)]
    gone = DecisionEntry(
        (Edit(Span(1, 3)), Edit(Span(5, 6), (Message.from_text("assistant", "x"), Message.from_text("user", "y"))))
    )
    branch = ConversationState.from_entries([*entries, Entry("d", None, gone), Entry("r", None, RequestEntry("b", 7))])
    where = get_target("anthropic", "claude-sonnet-4-5", window=100_000)
    options = choose_cache_breakpoints(branch, (), where, Policy().settings)
    assert options.cache_breakpoints == (7, 5, 4)
    assert [slot.message.text for slot in build_projection(branch)][4:6] == ["y", "word 6"]


@pytest.mark.parametrize("said", ["<persisted_tool_result>", "word\n" * 4_000])
def test_what_was_edited_before_it_was_shown_holds_no_marker(said):
    """A look-alike that was escaped, or a result that was cut where it arrived, stands as it was first shown."""
    where = get_target("anthropic", "claude-sonnet-4-5", window=1_000_000)
    opencode = Policy.preset("opencode")
    call = Message("assistant", (ToolCall("c", "read"),))
    start = [Message.from_text("user", "go"), call, Message("tool", (ToolResult("c", "read", (Text(said),)),))]
    for step in drive_agent_loop([*start, *wide(1, 4)[1:]], where, opencode, request_points=range(3, 12, 2)):
        assert len(step.plan.state.view.edits) == 1
        assert 2 not in step.plan.options.cache_breakpoints[:1] or step.count == 3
    assert 2 not in step.plan.options.cache_breakpoints
