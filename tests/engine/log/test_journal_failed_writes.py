"""A store that fails at some write: the journal goes on from what the log has, as if nothing had been tried."""

from __future__ import annotations

from itertools import count

import example_counts
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_entries import SAMPLE_KEY, is_same_request

from holdfast.config import get_target
from holdfast.engine.log.journal import Journal
from holdfast.errors import StoreLocked
from holdfast.hosts.given_conversation import GivenConversation, plan_given_conversation
from holdfast.messages.message import Message
from holdfast.messages.parts import Text, ToolCall, ToolResult
from holdfast.messages.size.tokens import build_sized_message
from holdfast.state.conversation_state import ConversationState
from holdfast.state.entries import AnswerEntry, MessageEntry, RequestEntry, Usage
from holdfast.state.target import PlanInputs
from holdfast.store.memory import MemoryStore

TARGET = get_target("anthropic", "claude-opus-5-5", window=30_000)


class StoreFailingOnce(MemoryStore):
    """A store whose write number ``failing_write`` raises ``error``, before or after it has written."""

    def __init__(self, failing_write: int, error: BaseException, *, has_written: bool = False) -> None:
        super().__init__(clock=lambda: 1_000)
        self.writes_left = failing_write
        self.error = error
        self.has_written = has_written

    def fail_if_due(self):
        """Count a write, and raise if it is the one."""
        self.writes_left -= 1
        if self.writes_left == 0:
            raise self.error

    def append_entries(self, key, entries, **more):
        """Append, and fail if it is time to."""
        if not self.has_written:
            self.fail_if_due()
        result = super().append_entries(key, entries, **more)
        if self.has_written and (result.is_leaf_moved or not more.get("onward")):
            self.fail_if_due()
        return result


def make_steps(words):
    """Return a conversation with a task and a call and its long result for each word."""
    messages = [Message.from_text("user", "Find out why it is slow.")]
    for index, word in enumerate(words):
        lines = "\n".join(f"{word} {line}: {line * 7919 % 1009} ms" for line in range(150))
        messages.append(Message("assistant", (Text("I look."), ToolCall(f"c{index}", "read", "{}"))))
        messages.append(Message("tool", (ToolResult(f"c{index}", "read", (Text(lines),)),)))
    return tuple(build_sized_message(message) for message in messages)


def follow_only(words):
    """Return an operation that follows a client's conversation."""
    return lambda journal: journal.follow_conversation(make_steps(words))


def plan_steps(words):
    """Return an operation that plans what a framework's conversation shows, the way the adapters do."""

    def operate(journal):
        messages = make_steps(words)
        usages = [Usage(100, 10) if message.message.role == "assistant" else None for message in messages]
        plan_given_conversation(journal, GivenConversation(messages, tuple(usages), 1_000), TARGET)

    return operate


def undo_newest(journal):
    """Undo the newest decision, if there is one."""
    if journal.state.view.active_decisions:
        journal.undo()


def prepare_smaller(journal):
    """Prepare a request with a compaction, if there is a message to send."""
    if len(journal.state.history.sized_messages):
        journal.prepare_request(TARGET, PlanInputs(force_compaction=True))


conversations = st.text("abc", min_size=1, max_size=12)
whole_conversations = st.one_of(conversations.map(follow_only), conversations.map(plan_steps))
operations = st.one_of(
    whole_conversations,
    st.just(lambda journal: journal.append(Message.from_text("user", "and?"))),
    st.just(prepare_smaller),
    st.just(lambda journal: journal.record_answer(Message.from_text("assistant", "yes"), Usage(500, 5))),
    st.just(lambda journal: journal.queue_messages(Message.from_text("user", "later"))),
    st.just(lambda journal: journal.deliver_queued()),
    st.just(lambda journal: journal.record_overflow("too long", 20_000)),
    st.just(undo_newest),
)


def open_journal(store):
    """Open a journal with predictable ids and times."""
    numbers = count()
    return Journal.open(
        store, SAMPLE_KEY, clock=lambda: 1_000, ids=lambda many: [f"entry-{next(numbers):04}" for _ in range(many)]
    )


def describe_branch(journal):
    """Return what the branch of ``journal`` says, without ids, and without how often a request was repeated."""
    path = journal.store.read_path(SAMPLE_KEY, journal.leaf)
    kinds = [type(entry.body).__name__ for entry in path if not isinstance(entry.body, RequestEntry)]
    said = [sized.message for sized in ConversationState.from_entries(path).history.sized_messages]
    shown = [sized.message for sized in journal.prepare_request(TARGET).messages]
    return kinds, said, shown


@pytest.mark.counts
@settings(max_examples=example_counts.choose(quick=60, ci=150, thorough=600))
@given(steps=st.lists(operations, min_size=1, max_size=7), failing_write=st.integers(1, 14))
def test_failed_write_changes_neither_log_nor_state(steps, failing_write):
    """Whichever write fails, log and journal are as before the call; and called again, it does the same as if nothing
    had failed.
    """
    failing_store = StoreFailingOnce(failing_write, StoreLocked("held"))
    journal, sound_journal = open_journal(failing_store), open_journal(MemoryStore(clock=lambda: 1_000))
    for operate in steps:
        entries, position = failing_store.read_entries(SAMPLE_KEY), (journal.state, journal.leaf, journal.moves_leaf)
        try:
            operate(journal)
        except StoreLocked:
            assert failing_store.read_entries(SAMPLE_KEY) == entries
            assert is_same_request(journal.state, position[0])
            assert (journal.leaf, journal.moves_leaf) == position[1:]
            operate(journal)
        operate(sound_journal)
        assert is_same_request(
            journal.state, ConversationState.from_entries(failing_store.read_path(SAMPLE_KEY, journal.leaf))
        )
    failing_store.writes_left = 0
    assert journal.moves_leaf == sound_journal.moves_leaf
    assert describe_branch(journal) == describe_branch(sound_journal)


@pytest.mark.counts
@settings(max_examples=example_counts.choose(quick=40, ci=100, thorough=400))
@given(steps=st.lists(whole_conversations, min_size=1, max_size=7), failing_write=st.integers(1, 12))
def test_interrupt_after_a_write_makes_no_second_branch(steps, failing_write):
    """A write that reached the log before it was broken off counts as made: the conversation goes on after it, where
    the session does, and nothing is there twice.
    """
    failing_store = StoreFailingOnce(failing_write, KeyboardInterrupt(), has_written=True)
    journal, sound_journal = open_journal(failing_store), open_journal(MemoryStore(clock=lambda: 1_000))
    for operate in steps:
        try:
            operate(journal)
        except KeyboardInterrupt:
            assert is_same_request(
                journal.state, ConversationState.from_entries(failing_store.read_path(SAMPLE_KEY, journal.leaf))
            )
            operate(journal)
        operate(sound_journal)
    failing_store.writes_left = 0
    assert journal.moves_leaf == sound_journal.moves_leaf
    assert describe_branch(journal) == describe_branch(sound_journal)
    if journal.moves_leaf:
        assert failing_store.get_session(SAMPLE_KEY).leaf_id == journal.leaf


def test_answer_is_recorded_once_when_the_queued_messages_are_refused():
    """The answer and the messages that waited for it are written together, so a second try adds no second answer."""
    store = StoreFailingOnce(0, StoreLocked("held"))
    journal = open_journal(store)
    journal.append(Message.from_text("user", "hello"))
    journal.prepare_request(TARGET)
    journal.queue_messages(Message.from_text("user", "later"))
    store.writes_left = 1
    with pytest.raises(StoreLocked):
        journal.record_answer(Message.from_text("assistant", "yes"), Usage(500, 5))
    journal.record_answer(Message.from_text("assistant", "yes"), Usage(500, 5))
    path = store.read_path(SAMPLE_KEY)
    texts = [entry.body.sized_message.message.text for entry in path if isinstance(entry.body, MessageEntry)]
    assert texts == ["hello", "yes", "later"]
    assert sum(isinstance(entry.body, AnswerEntry) for entry in path) == 1
