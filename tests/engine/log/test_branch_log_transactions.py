"""Batched writes: one transaction with the same result as single writes, or nothing."""

from __future__ import annotations

import json
from contextlib import suppress
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw
from msgspec.structs import replace
from sample_entries import SAMPLE_KEY, is_same_request

from holdfast.config import get_target
from holdfast.engine.log.journal import Journal
from holdfast.errors import StoreReadOnly, WindowTooSmall
from holdfast.messages.message import Message
from holdfast.messages.size.tokens import build_sized_message
from holdfast.providers.openai_chat.messages import decode_message
from holdfast.providers.requests.parsed_request import measure_parsed_request, parse_request
from holdfast.state.conversation_state import ConversationState
from holdfast.state.entries import CompactionEntry, DecisionEntry, Entry, NoteEntry
from holdfast.store.memory import MemoryStore
from holdfast.store.sqlite import SqliteStore

TARGET = get_target("anthropic", "claude-opus-5-5")
HELLO = Message.from_text("user", "hello")


@pytest.fixture(params=["disk", "memory"])
def store(request, tmp_path):
    """An empty store of either kind."""
    with SqliteStore(tmp_path / "agent.db") if request.param == "disk" else MemoryStore() as new_store:
        yield new_store


def open_journal(store):
    """Open a journal with predictable ids and times."""
    numbers = count()
    return Journal.open(
        store, SAMPLE_KEY, clock=lambda: 1_000, ids=lambda many: [f"entry-{next(numbers):04}" for _ in range(many)]
    )


def follow_words(journal, known_count, words):
    """Follow a conversation of the first ``known_count`` messages and new ones with these words."""
    known_messages = (
        journal.state.history.sized_messages.slice(0, known_count)
        if known_count <= len(journal.state.history.sized_messages)
        else []
    )
    journal.follow_conversation(
        [*known_messages, *[build_sized_message(Message.from_text("user", word)) for word in words]]
    )


def prepare_in_one_batch(journal, target, *messages):
    """Deliver queued messages, append ``messages`` and prepare a request in one batch."""
    with journal.batch_writes():
        journal.deliver_queued()
        journal.append(*messages)
        return journal.prepare_request(target)


words = st.lists(st.sampled_from("abc"), max_size=3)
writes = st.one_of(
    words.map(lambda new: lambda journal: journal.append(*[Message.from_text("user", word) for word in new])),
    st.tuples(st.integers(0, 6), words).map(lambda arguments: lambda journal: follow_words(journal, *arguments)),
    st.just(lambda journal: journal.prepare_request(TARGET) if len(journal.state.history.sized_messages) else None),
    st.just(lambda journal: journal.record_answer(Message.from_text("assistant", "yes"))),
    st.just(lambda journal: journal.queue_messages(Message.from_text("user", "later"))),
    st.just(lambda journal: journal.deliver_queued()),
    st.just(lambda journal: journal.record_failure("no reason", "timed_out")),
)


@given(st.lists(writes, max_size=5), st.lists(writes, max_size=6), st.lists(writes, max_size=3))
def test_batch_writes_equals_single_writes(before, inside, behind):
    """Log and state are the same whether writes are batched or not, and so is everything written later."""
    with MemoryStore(clock=lambda: 1_000) as single_store, MemoryStore(clock=lambda: 1_000) as batch_store:
        single_journal, batch_journal = open_journal(single_store), open_journal(batch_store)
        for write in before:
            write(single_journal), write(batch_journal)
        with batch_journal.batch_writes():
            for write in inside:
                write(single_journal), write(batch_journal)
        for write in behind:
            write(single_journal), write(batch_journal)
        assert single_store.read_entries(SAMPLE_KEY) == batch_store.read_entries(SAMPLE_KEY)
        assert single_store.get_session(SAMPLE_KEY) == batch_store.get_session(SAMPLE_KEY)
        assert (single_journal.leaf, single_journal.state, single_journal.moves_leaf) == (
            batch_journal.leaf,
            batch_journal.state,
            batch_journal.moves_leaf,
        )
        assert is_same_request(
            batch_journal.state, ConversationState.from_entries(batch_store.read_path(SAMPLE_KEY, batch_journal.leaf))
        )


def test_batch_writes_appends_messages_and_request_in_one_transaction(store, monkeypatch):
    """durable-as-promised: inside the block nothing is in the log, after it everything."""
    journal, counts, append = open_journal(store), [], store.append_entries
    monkeypatch.setattr(
        store, "append_entries", lambda key, new, **more: counts.append(len(new)) or append(key, new, **more)
    )
    with journal.batch_writes():
        journal.follow_conversation([build_sized_message(HELLO)])
        prepared = journal.prepare_request(TARGET)
        assert store.get_session(SAMPLE_KEY).entry_count == 1
    assert counts == [3 if prepared.target.setup != ConversationState().setup else 2]
    assert store.get_session(SAMPLE_KEY).leaf_id == journal.leaf == prepared.request_id
    assert journal.prepare_request(TARGET) is prepared


def test_batch_writes_that_fail_leave_the_journal_unchanged(store, monkeypatch):
    """refusal-ends-writing: after a failed write all is as before the block, and the next try works."""
    journal = open_journal(store)
    journal.append(HELLO)
    journal.queue_messages(Message.from_text("user", "later"))
    before, leaf = journal.state, journal.leaf

    def refuse(*_args, **_more):
        raise StoreReadOnly("no space left")

    with monkeypatch.context() as patched:
        patched.setattr(store, "append_entries", refuse)
        with pytest.raises(StoreReadOnly):
            prepare_in_one_batch(journal, TARGET)
    assert (journal.state, journal.leaf, store.get_session(SAMPLE_KEY).leaf_id) == (before, leaf, leaf)
    prepared = prepare_in_one_batch(journal, TARGET)
    assert [slot.message.text for slot in prepared.messages] == ["hello", "later"]
    assert store.get_session(SAMPLE_KEY).leaf_id == journal.leaf == prepared.request_id
    assert is_same_request(journal.state, ConversationState.from_entries(store.read_path(SAMPLE_KEY)))


def test_batch_writes_keeps_the_messages_before_an_error(store):
    """A request that cannot be made does not take back the messages of its batch."""
    journal, small = open_journal(store), replace(TARGET, limits=replace(TARGET.limits, window=1_000))
    with pytest.raises(WindowTooSmall):
        prepare_in_one_batch(journal, small, HELLO)
    assert store.get_session(SAMPLE_KEY).leaf_id == journal.leaf
    assert len(ConversationState.from_entries(store.read_path(SAMPLE_KEY)).history.sized_messages) == 1


def test_batch_writes_follows_decisions_made_before_the_block(store):
    """The batch is appended behind all entries that were there when the block began."""
    journal = open_journal(store)
    journal.append(HELLO)
    store.append_entries(SAMPLE_KEY, [Entry("d", journal.leaf, DecisionEntry(()))])
    with journal.batch_writes():
        (entry_id,) = journal.append(HELLO)
    assert store.get_entry(SAMPLE_KEY, entry_id).parent == "d"
    assert [id_ for id_, _ in journal.state.view.active_decisions] == ["d"]


def test_append_listener_is_called_once_after_the_batch_is_written(store):
    """The listener hears of entries once, when they are in the log."""
    journal, calls = open_journal(store), []
    journal.append_listener = lambda _, entries: calls.append([entry.id for entry in entries])
    with journal.batch_writes():
        first = journal.append(HELLO)
        second = journal.append(HELLO)
        assert calls == []
    assert calls == [[*first, *second]]


def test_batch_writes_nested_writes_at_the_end_of_the_outermost_block(store):
    """A nested block is part of the outer batch."""
    journal, calls = open_journal(store), []
    journal.append_listener = lambda _, entries: calls.append([entry.id for entry in entries])
    with journal.batch_writes():
        with journal.batch_writes():
            first = journal.append(HELLO)
        second = journal.append(HELLO)
        assert calls == []
    assert calls == [[*first, *second]]


@pytest.mark.parametrize("failing_read", [1, 2, 3])
def test_follow_conversation_stays_consistent_when_a_read_fails(failing_read, store, monkeypatch):
    """Whichever read fails while a branch is made, state and leaf belong together."""
    journal, read_numbers, original_read = open_journal(store), count(1), store.read_path
    journal.append(HELLO, Message.from_text("assistant", "ok"), HELLO)

    def read_or_fail(*args):
        if next(read_numbers) == failing_read:
            raise StoreReadOnly("the disk took nothing")
        return original_read(*args)

    monkeypatch.setattr(store, "read_path", read_or_fail)
    with suppress(StoreReadOnly):
        journal.follow_conversation(
            [build_sized_message(HELLO), build_sized_message(Message.from_text("user", "something else"))]
        )
    monkeypatch.undo()
    assert [slot.message for slot in journal.state.history.sized_messages] == [
        slot.message
        for slot in ConversationState.from_entries(store.read_path(SAMPLE_KEY, journal.leaf)).history.sized_messages
    ]


def test_follow_conversation_decoder_applies_to_its_own_batch_only(store):
    """Raw bytes stand for a message only when the decoder of that batch made the message from them."""
    journal, raw = open_journal(store), Raw(b'{"role":"user","content":"other words"}')
    decoded = replace(build_sized_message(decode_message(raw)), api="openai-chat", raw=raw)
    mismatched = replace(build_sized_message(HELLO), api="openai-chat", raw=raw)
    with journal.batch_writes():
        journal.follow_conversation([decoded], decode_message)
    with journal.batch_writes():
        journal.append(mismatched)
    reopened = ConversationState.from_entries(store.read_path(SAMPLE_KEY, journal.leaf))
    assert [slot.message for slot in reopened.history.sized_messages] == [decoded.message, HELLO]


def test_append_branches_before_the_messages_of_another_journal(store):
    """The branch leaves before the other journal's first message and behind its decisions.

    Messages that the other journal queued stay queued for it.
    """
    journal = open_journal(store)
    journal.append(HELLO, Message.from_text("assistant", "yes"), HELLO)
    other = Journal.open(store, SAMPLE_KEY)
    compaction_id = other.record_compaction(CompactionEntry(2, Message.from_text("user", "a summary"), 5))
    other.queue_messages(Message.from_text("user", "later"))
    other.append(Message.from_text("assistant", "theirs"))
    journal.append(Message.from_text("assistant", "mine"))
    assert [id_ for id_, _ in journal.state.view.active_decisions] == [compaction_id]
    assert [message.text for message in journal.state.history.messages][-2:] == ["hello", "mine"]
    assert journal.deliver_queued() == []
    assert not journal.moves_leaf
    assert store.get_session(SAMPLE_KEY).leaf_id == other.leaf
    assert is_same_request(journal.state, ConversationState.from_entries(store.read_path(SAMPLE_KEY, journal.leaf)))


def parse_client_conversation(*texts):
    """Return a parsed conversation with a cache breakpoint on its newest message only."""
    cache_mark = {"cache_control": {"type": "ephemeral"}}
    messages = [
        {"role": ("user", "assistant")[index % 2], "content": [{"type": "text", "text": text}]}
        for index, text in enumerate(texts)
    ]
    messages[-1]["content"][0] |= cache_mark
    return measure_parsed_request(
        parse_request(json.dumps({"model": "m", "messages": messages}).encode(), "anthropic")
    ).messages


@pytest.mark.parametrize("other_body", [NoteEntry("n"), CompactionEntry(2, Message.from_text("user", "a summary"), 5)])
def test_prepare_request_keeps_the_newest_client_bytes_after_entries_of_others(store, other_body):
    """Messages that no decision touched are sent with the bytes that came last, not with the stored ones."""
    journal = open_journal(store)
    for texts in ("abc", "abcde", "abcdefg"):
        conversation = parse_client_conversation(*texts)
        journal.follow_conversation(conversation)
        store.append_entries(SAMPLE_KEY, [Entry(f"other-{texts}", journal.leaf, other_body)])
        shown = journal.prepare_request(TARGET).messages[-(len(texts) - 2) :]
        assert [slot.raw for slot in shown] == [slot.raw for slot in conversation[2:]]
