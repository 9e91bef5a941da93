"""Thinking that is bound to everything before it: what a first setup, a new setup, a restart and a fork change."""

from __future__ import annotations

import pytest

from holdfast import ConversationState
from holdfast.config import get_target
from holdfast.engine.log.journal import Journal
from holdfast.messages.message import Message
from holdfast.messages.parts import ProviderSignature, Text, Thinking, ToolCall, ToolResult
from holdfast.messages.size.tokens import build_sized_message
from holdfast.normalize.projection import build_messages_to_send
from holdfast.planning.pipeline import plan_request
from holdfast.state.entries import CompactionEntry, Entry, MessageEntry, RequestEntry, RequestSetup
from holdfast.state.fold.fold_entries import apply_entries
from holdfast.state.fold.rewind import rewind_state
from holdfast.store.memory import MemoryStore

BINDING_MODEL = "claude-opus-5-5"
FIRST_SETUP, OTHER_SETUP = RequestSetup("one", 100), RequestSetup("other", 100)
QUESTION = Message.from_text("user", "How high is the tide?")
ANSWER = Message("assistant", (Thinking("hm", ProviderSignature("anthropic", BINDING_MODEL, "s")), Text("High.")))
CONVERSATION = [QUESTION, ANSWER] * 3 + [QUESTION]
"""A conversation with three answers and an open question."""


def build_target(setup):
    return get_target("anthropic", BINDING_MODEL, window=200_000, setup=setup)


def build_state(messages, *bodies):
    """Return the state of a log of ``messages`` followed by ``bodies``."""
    return apply_entries(
        ConversationState(),
        [Entry(str(index), None, body) for index, body in enumerate([*map(make_entry, messages), *bodies])],
    )


def make_entry(message):
    return MessageEntry(build_sized_message(message))


def count_thinking(planned):
    """Return how many answers in a plan's request have their thinking."""
    return sum(isinstance(part, Thinking) for sized in build_messages_to_send(planned) for part in sized.message.parts)


def append_answer_and_question(planned):
    """Return the state of a plan after its request was answered and the user wrote again."""
    return apply_entries(planned.state, [Entry("", None, make_entry(message)) for message in (ANSWER, QUESTION)])


@pytest.mark.parametrize("setup", [RequestSetup(), FIRST_SETUP], ids=["none", "one"])
def test_thinking_stays_when_the_first_setup_arrives(setup):
    """Thinking from before there was a setup was signed elsewhere, under the setup it has now, so all of it stays."""
    plan = plan_request(build_state(CONVERSATION), build_target(setup))
    assert (count_thinking(plan), plan.normalization, plan.state.setup_changed_at) == (3, (), 0)
    second_plan = plan_request(append_answer_and_question(plan), build_target(setup))
    assert (count_thinking(second_plan), second_plan.normalization) == (4, ())


@pytest.mark.parametrize(
    ("old", "new"), [(FIRST_SETUP, OTHER_SETUP), (FIRST_SETUP, RequestSetup()), (RequestSetup(), FIRST_SETUP)]
)
def test_thinking_before_a_setup_change_is_dropped(old, new):
    """This holds also if either setup is empty; thinking after the change stays."""
    first = plan_request(build_state(CONVERSATION), build_target(old))
    plan = plan_request(append_answer_and_question(first), build_target(new))
    assert count_thinking(first) == 3
    assert count_thinking(plan) == 0
    assert plan.state.setup_changed_at == len(plan.state.history.sized_messages)
    assert count_thinking(plan_request(append_answer_and_question(plan), build_target(new))) == 1
    assert count_thinking(plan_request(append_answer_and_question(plan), build_target(old))) == 0


def test_thinking_before_a_logged_setup_change_is_dropped():
    """A log may contain setups and no request; thinking before the last change stays dropped."""
    for setups in (
        [FIRST_SETUP, OTHER_SETUP],
        [FIRST_SETUP, RequestSetup()],
        [FIRST_SETUP, RequestSetup(), OTHER_SETUP],
    ):
        assert count_thinking(plan_request(build_state(CONVERSATION, *setups), build_target(setups[-1]))) == 0
    without_setup = build_state(CONVERSATION, FIRST_SETUP, RequestSetup())
    assert (
        count_thinking(
            plan_request(apply_entries(without_setup, [Entry("", None, make_entry(ANSWER))]), build_target(FIRST_SETUP))
        )
        == 1
    )


@pytest.mark.parametrize(
    "setups",
    [[FIRST_SETUP], [FIRST_SETUP, OTHER_SETUP], [RequestSetup(), FIRST_SETUP]],
    ids=["first", "another", "after none"],
)
def test_thinking_is_dropped_the_same_after_load_fork_and_reopen(setups):
    """Loaded from a dump, rebuilt, opened from the log or forked, the same setup is in force."""
    store = MemoryStore()
    journal = Journal.open(store, "k")
    journal.append(*CONVERSATION)
    for setup in setups:
        journal.prepare_request(build_target(setup))
        journal.record_answer(ANSWER)
        journal.append(QUESTION)
    goal, state = build_target(setups[-1]), journal.state
    expected = [sized.message for sized in build_messages_to_send(plan_request(state, goal))]
    states = [
        ConversationState.load(state.dump()),
        ConversationState.from_entries(store.read_path("k")),
        Journal.open(store, "k").state,
        journal.fork_at(journal.leaf).state,
    ]
    for other in states:
        assert (other.setup, other.setup_changed_at) == (state.setup, state.setup_changed_at)
        assert [sized.message for sized in build_messages_to_send(plan_request(other, goal))] == expected
    assert count_thinking(plan_request(state, goal)) == (4 if setups == [FIRST_SETUP] else 1)


def test_rewind_state_keeps_the_setup():
    """Rewound to before a setup change, all thinking is dropped; if the setup was the first, none is."""
    first = plan_request(build_state(CONVERSATION), build_target(FIRST_SETUP)).state
    assert count_thinking(plan_request(rewind_state(first, 5), build_target(FIRST_SETUP))) == 2
    assert (
        count_thinking(
            plan_request(
                rewind_state(plan_request(first, build_target(OTHER_SETUP)).state, 5), build_target(OTHER_SETUP)
            )
        )
        == 0
    )
    assert count_thinking(plan_request(rewind_state(first, 5), build_target(OTHER_SETUP))) == 0


def test_thinking_after_a_compaction_is_dropped_under_any_setup():
    """A summary in place of turns is another prefix: thinking after it was not signed over the summary."""
    compacted = build_state(
        CONVERSATION,
        FIRST_SETUP,
        RequestEntry("b", 7, BINDING_MODEL),
        CompactionEntry(2, Message.from_text("user", "Earlier: the tide."), 9),
    )
    assert count_thinking(plan_request(compacted, build_target(FIRST_SETUP))) == 0


@pytest.mark.parametrize("turns", [1, 2, 4])
@pytest.mark.parametrize("is_planned_before", [False, True], ids=["at once", "step by step"])
def test_thinking_before_a_late_result_is_dropped(turns, is_planned_before):
    """A late result is placed after its call: thinking over the stand-in is dropped, thinking after the result
    stays.
    """
    call, late_result = ToolCall("c", "read", "{}"), ToolResult("c", "read", (Text("late"),))
    before = [QUESTION, Message("assistant", (call,)), *[QUESTION, ANSWER] * turns]
    after = [Message("tool", (late_result,)), QUESTION, ANSWER, QUESTION]
    state = (
        plan_request(build_state(before), build_target(FIRST_SETUP)).state if is_planned_before else ConversationState()
    )
    messages = after if is_planned_before else before + after
    plan = plan_request(
        apply_entries(state, [Entry("", None, make_entry(message)) for message in messages]), build_target(FIRST_SETUP)
    )
    assert count_thinking(plan) == 1
    shown = [sized.message for sized in build_messages_to_send(plan)]
    assert [result for message in shown for result in message.results] == [late_result]
    assert plan_request(append_answer_and_question(plan), build_target(FIRST_SETUP)).normalization
    assert count_thinking(plan_request(append_answer_and_question(plan), build_target(FIRST_SETUP))) == 2


def test_thinking_of_consecutive_answers_with_open_calls_stays():
    """Two answers in a row are one to the API, and no stand-in result was shown to the second."""
    calls = [Message("assistant", (*ANSWER.parts[:1], ToolCall(id_, "read", "{}"))) for id_ in "ab"]
    results = Message("tool", tuple(ToolResult(id_, "read", (Text("ok"),)) for id_ in "ab"))
    assert count_thinking(plan_request(build_state([QUESTION, *calls, results]), build_target(FIRST_SETUP))) == 2
