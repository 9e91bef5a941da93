"""Thinking that is bound to what stands before it: what a first frame, another one, a restart and a fork do to it."""

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

BINDING = "claude-opus-5-5"
ONE, OTHER = RequestSetup("one", 100), RequestSetup("other", 100)
ASKED = Message.from_text("user", "How high is the tide?")
THOUGHT = Message("assistant", (Thinking("hm", ProviderSignature("anthropic", BINDING, "s")), Text("High.")))
LATER = [ASKED, THOUGHT] * 3 + [ASKED]
"""A conversation that has gone on for three answers."""


def where(frame):
    return get_target("anthropic", BINDING, window=200_000, setup=frame)


def of(said, *bodies):
    """Return the branch of a log: messages, then the rest."""
    return apply_entries(
        ConversationState(), [Entry(str(at), None, body) for at, body in enumerate([*map(spoken, said), *bodies])]
    )


def spoken(message):
    return MessageEntry(build_sized_message(message))


def kept(plan):
    """Return how many of the answers that a plan shows have their thinking."""
    return sum(isinstance(part, Thinking) for slot in build_messages_to_send(plan) for part in slot.message.parts)


def went_on(plan):
    """Return the branch of a plan, once its request was answered and the user spoke again."""
    return apply_entries(plan.state, [Entry("", None, spoken(one)) for one in (THOUGHT, ASKED)])


@pytest.mark.parametrize("frame", [RequestSetup(), ONE], ids=["none", "one"])
def test_a_first_frame_makes_nothing_loose(frame):
    """What was said before there was a frame was signed elsewhere, over the one it has now: it all stays."""
    plan = plan_request(of(LATER), where(frame))
    assert (kept(plan), plan.normalization, plan.state.setup_changed_at) == (3, (), 0)
    again = plan_request(went_on(plan), where(frame))
    assert (kept(again), again.normalization) == (4, ())


@pytest.mark.parametrize(("old", "new"), [(ONE, OTHER), (ONE, RequestSetup()), (RequestSetup(), ONE)])
def test_another_frame_makes_loose_what_stood_before_it(old, new):
    """Also where one of them is empty; what is said behind it stays."""
    first = plan_request(of(LATER), where(old))
    plan = plan_request(went_on(first), where(new))
    assert kept(first) == 3
    assert kept(plan) == 0
    assert plan.state.setup_changed_at == len(plan.state.history.sized_messages)
    assert kept(plan_request(went_on(plan), where(new))) == 1
    assert kept(plan_request(went_on(plan), where(old))) == 0


def test_a_frame_that_was_told_gives_way_before_anything_was_asked():
    """A log may tell of frames and hold no request; what stood before the last change stays loose ever after."""
    for frames in ([ONE, OTHER], [ONE, RequestSetup()], [ONE, RequestSetup(), OTHER]):
        assert kept(plan_request(of(LATER, *frames), where(frames[-1]))) == 0
    emptied = of(LATER, ONE, RequestSetup())
    assert kept(plan_request(apply_entries(emptied, [Entry("", None, spoken(THOUGHT))]), where(ONE))) == 1


@pytest.mark.parametrize("frames", [[ONE], [ONE, OTHER], [RequestSetup(), ONE]], ids=["first", "another", "after none"])
def test_whoever_comes_next_knows_the_same(frames):
    """Loaded from its own bytes, built at once, opened from the log or at an entry of it: the same frame counts."""
    store = MemoryStore()
    journal = Journal.open(store, "k")
    journal.append(*LATER)
    for frame in frames:
        journal.prepare_request(where(frame))
        journal.record_answer(THOUGHT)
        journal.append(ASKED)
    goal, branch = where(frames[-1]), journal.state
    wanted = [slot.message for slot in build_messages_to_send(plan_request(branch, goal))]
    others = [
        ConversationState.load(branch.dump()),
        ConversationState.from_entries(store.read_path("k")),
        Journal.open(store, "k").state,
        journal.fork_at(journal.leaf).state,
    ]
    for other in others:
        assert (other.setup, other.setup_changed_at) == (branch.setup, branch.setup_changed_at)
        assert [slot.message for slot in build_messages_to_send(plan_request(other, goal))] == wanted
    assert kept(plan_request(branch, goal)) == (4 if frames == [ONE] else 1)


def test_a_shorter_branch_knows_its_frame():
    """Cut back to before its frame changed, all of it is loose; one whose frame was its first loses nothing."""
    first = plan_request(of(LATER), where(ONE)).state
    assert kept(plan_request(rewind_state(first, 5), where(ONE))) == 2
    assert kept(plan_request(rewind_state(plan_request(first, where(OTHER)).state, 5), where(OTHER))) == 0
    assert kept(plan_request(rewind_state(first, 5), where(OTHER))) == 0


def test_what_stands_before_counts_whatever_the_frame():
    """A summary where turns were is another prefix: thinking behind it was not signed over that."""
    summed = of(
        LATER,
        ONE,
        RequestEntry("b", 7, BINDING),
        CompactionEntry(2, Message.from_text("user", "Earlier: the tide."), 9),
    )
    assert kept(plan_request(summed, where(ONE))) == 0


@pytest.mark.parametrize("turns", [1, 2, 4])
@pytest.mark.parametrize("known", [False, True], ids=["at once", "step by step"])
def test_a_late_result_makes_loose_what_was_thought_before_it(turns, known):
    """A result takes its place behind its call: what was thought over the stand-in is loose, what follows is not."""
    call, told = ToolCall("c", "read", "{}"), ToolResult("c", "read", (Text("late"),))
    before = [ASKED, Message("assistant", (call,)), *[ASKED, THOUGHT] * turns]
    after = [Message("tool", (told,)), ASKED, THOUGHT, ASKED]
    branch = plan_request(of(before), where(ONE)).state if known else ConversationState()
    said = after if known else before + after
    plan = plan_request(apply_entries(branch, [Entry("", None, spoken(one)) for one in said]), where(ONE))
    assert kept(plan) == 1
    shown = [slot.message for slot in build_messages_to_send(plan)]
    assert [result for message in shown for result in message.results] == [told]
    assert plan_request(went_on(plan), where(ONE)).normalization
    assert kept(plan_request(went_on(plan), where(ONE))) == 2


def test_answers_in_a_row_wait_for_their_results_together():
    """Two answers that follow each other are one to the API: what the second thought, no stand-in was shown to."""
    calls = [Message("assistant", (*THOUGHT.parts[:1], ToolCall(id_, "read", "{}"))) for id_ in "ab"]
    told = Message("tool", tuple(ToolResult(id_, "read", (Text("ok"),)) for id_ in "ab"))
    assert kept(plan_request(of([ASKED, *calls, told]), where(ONE))) == 2
