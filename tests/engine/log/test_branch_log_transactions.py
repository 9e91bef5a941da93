"""What is written at once: all of it in one transaction, the same as one by one, or nothing."""

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

GOAL = get_target("anthropic", "claude-opus-5-5")
HELLO = Message.from_text("user", "hello")


@pytest.fixture(params=["disk", "memory"])
def store(request, tmp_path):
    """An empty store of either kind."""
    with SqliteStore(tmp_path / "agent.db") if request.param == "disk" else MemoryStore() as made:
        yield made


def opened(store):
    """Return a journal whose ids and times can be foretold."""
    numbers = count()
    return Journal.open(
        store, SAMPLE_KEY, clock=lambda: 1_000, ids=lambda many: [f"entry-{next(numbers):04}" for _ in range(many)]
    )


def followed(journal, stand, new):
    """Say a whole conversation: what stood in the first ``stand`` places, and ``new`` words."""
    said = (
        journal.state.history.sized_messages.slice(0, stand)
        if stand <= len(journal.state.history.sized_messages)
        else []
    )
    journal.follow_conversation([*said, *[build_sized_message(Message.from_text("user", word)) for word in new]])


def asked(journal, goal, *said):
    """Return the request that says what waited and ``said``, all of it written at once."""
    with journal.batch_writes():
        journal.deliver_queued()
        journal.append(*said)
        return journal.prepare_request(goal)


words = st.lists(st.sampled_from("abc"), max_size=3)
verbs = st.one_of(
    words.map(lambda new: lambda journal: journal.append(*[Message.from_text("user", word) for word in new])),
    st.tuples(st.integers(0, 6), words).map(lambda told: lambda journal: followed(journal, *told)),
    st.just(lambda journal: journal.prepare_request(GOAL) if len(journal.state.history.sized_messages) else None),
    st.just(lambda journal: journal.record_answer(Message.from_text("assistant", "yes"))),
    st.just(lambda journal: journal.queue_messages(Message.from_text("user", "later"))),
    st.just(lambda journal: journal.deliver_queued()),
    st.just(lambda journal: journal.record_failure("no reason", "timed_out")),
)


@given(st.lists(verbs, max_size=5), st.lists(verbs, max_size=6), st.lists(verbs, max_size=3))
def test_at_once_is_as_one_by_one(before, inside, behind):
    """Log and branch are the same, whatever is done, and so is all that is done behind it."""
    with MemoryStore(clock=lambda: 1_000) as one, MemoryStore(clock=lambda: 1_000) as other:
        alone, gathered = opened(one), opened(other)
        for verb in before:
            verb(alone), verb(gathered)
        with gathered.batch_writes():
            for verb in inside:
                verb(alone), verb(gathered)
        for verb in behind:
            verb(alone), verb(gathered)
        assert one.read_entries(SAMPLE_KEY) == other.read_entries(SAMPLE_KEY)
        assert one.get_session(SAMPLE_KEY) == other.get_session(SAMPLE_KEY)
        assert (alone.leaf, alone.state, alone.moves_leaf) == (gathered.leaf, gathered.state, gathered.moves_leaf)
        assert is_same_request(
            gathered.state, ConversationState.from_entries(other.read_path(SAMPLE_KEY, gathered.leaf))
        )


def test_what_is_said_and_the_request_that_says_it_are_one_transaction(store, monkeypatch):
    """durable-as-promised: inside of the block nothing is in the log, behind it everything."""
    journal, counts, append = opened(store), [], store.append_entries
    monkeypatch.setattr(
        store, "append_entries", lambda key, new, **more: counts.append(len(new)) or append(key, new, **more)
    )
    with journal.batch_writes():
        journal.follow_conversation([build_sized_message(HELLO)])
        prepared = journal.prepare_request(GOAL)
        assert store.get_session(SAMPLE_KEY).entry_count == 1
    assert counts == [3 if prepared.target.setup != ConversationState().setup else 2]
    assert store.get_session(SAMPLE_KEY).leaf_id == journal.leaf == prepared.request_id
    assert journal.prepare_request(GOAL) is prepared


def test_a_log_that_takes_nothing_at_the_end_changes_nothing(store, monkeypatch):
    """refusal-ends-writing: where it cannot be written all is as before the block, also what waited, and works once the
    store does.
    """
    journal = opened(store)
    journal.append(HELLO)
    journal.queue_messages(Message.from_text("user", "later"))
    before, leaf = journal.state, journal.leaf

    def refuse(*_args, **_more):
        raise StoreReadOnly("no space left")

    with monkeypatch.context() as full:
        full.setattr(store, "append_entries", refuse)
        with pytest.raises(StoreReadOnly):
            asked(journal, GOAL)
    assert (journal.state, journal.leaf, store.get_session(SAMPLE_KEY).leaf_id) == (before, leaf, leaf)
    prepared = asked(journal, GOAL)
    assert [slot.message.text for slot in prepared.messages] == ["hello", "later"]
    assert store.get_session(SAMPLE_KEY).leaf_id == journal.leaf == prepared.request_id
    assert is_same_request(journal.state, ConversationState.from_entries(store.read_path(SAMPLE_KEY)))


def test_what_was_said_before_an_error_is_said(store):
    """A request that cannot be made takes nothing back of what it was to say."""
    journal, small = opened(store), replace(GOAL, limits=replace(GOAL.limits, window=1_000))
    with pytest.raises(WindowTooSmall):
        asked(journal, small, HELLO)
    assert store.get_session(SAMPLE_KEY).leaf_id == journal.leaf
    assert len(ConversationState.from_entries(store.read_path(SAMPLE_KEY)).history.sized_messages) == 1


def test_what_others_decided_before_counts(store):
    """What is written at once is behind all that was there when the block began."""
    journal = opened(store)
    journal.append(HELLO)
    store.append_entries(SAMPLE_KEY, [Entry("d", journal.leaf, DecisionEntry(()))])
    with journal.batch_writes():
        (said,) = journal.append(HELLO)
    assert store.get_entry(SAMPLE_KEY, said).parent == "d"
    assert [id_ for id_, _ in journal.state.view.active_decisions] == ["d"]


def test_who_is_told_is_told_of_what_is_there(store):
    """What was gathered is told when it is in the log, once, and never where it is not."""
    journal, told = opened(store), []
    journal.append_listener = lambda _, entries: told.append([entry.id for entry in entries])
    with journal.batch_writes():
        first = journal.append(HELLO)
        second = journal.append(HELLO)
        assert told == []
    assert told == [[*first, *second]]


def test_a_block_inside_another_is_part_of_it(store):
    """All is written at the end of the outermost block."""
    journal, told = opened(store), []
    journal.append_listener = lambda _, entries: told.append([entry.id for entry in entries])
    with journal.batch_writes():
        with journal.batch_writes():
            first = journal.append(HELLO)
        second = journal.append(HELLO)
        assert told == []
    assert told == [[*first, *second]]


@pytest.mark.parametrize("failing", [1, 2, 3])
def test_a_log_that_cannot_be_read_changes_nothing(failing, store, monkeypatch):
    """Where a conversation parts, branch and leaf are of one moment, whichever look at the log fails."""
    journal, looks, path = opened(store), count(1), store.read_path
    journal.append(HELLO, Message.from_text("assistant", "ok"), HELLO)

    def read(*asked):
        if next(looks) == failing:
            raise StoreReadOnly("the disk took nothing")
        return path(*asked)

    monkeypatch.setattr(store, "read_path", read)
    with suppress(StoreReadOnly):
        journal.follow_conversation(
            [build_sized_message(HELLO), build_sized_message(Message.from_text("user", "something else"))]
        )
    monkeypatch.undo()
    assert [slot.message for slot in journal.state.history.sized_messages] == [
        slot.message
        for slot in ConversationState.from_entries(store.read_path(SAMPLE_KEY, journal.leaf)).history.sized_messages
    ]


def test_who_made_the_messages_of_one_block_made_none_of_the_next(store):
    """Bytes stand for a message only where the reader of that very message made it of them."""
    journal, raw = opened(store), Raw(b'{"role":"user","content":"other words"}')
    read = replace(build_sized_message(decode_message(raw)), api="openai-chat", raw=raw)
    odd = replace(build_sized_message(HELLO), api="openai-chat", raw=raw)
    with journal.batch_writes():
        journal.follow_conversation([read], decode_message)
    with journal.batch_writes():
        journal.append(odd)
    again = ConversationState.from_entries(store.read_path(SAMPLE_KEY, journal.leaf))
    assert [slot.message for slot in again.history.sized_messages] == [read.message, HELLO]


def test_what_others_decided_before_they_spoke_counts_beside_them(store):
    """Where somebody said something meanwhile a branch parts before their first words, and behind what they decided.

    What they have waiting is theirs to say.
    """
    one = opened(store)
    one.append(HELLO, Message.from_text("assistant", "yes"), HELLO)
    other = Journal.open(store, SAMPLE_KEY)
    made = other.record_compaction(CompactionEntry(2, Message.from_text("user", "a summary"), 5))
    other.queue_messages(Message.from_text("user", "later"))
    other.append(Message.from_text("assistant", "theirs"))
    one.append(Message.from_text("assistant", "mine"))
    assert [id_ for id_, _ in one.state.view.active_decisions] == [made]
    assert [message.text for message in one.state.history.messages][-2:] == ["hello", "mine"]
    assert one.deliver_queued() == []
    assert not one.moves_leaf
    assert store.get_session(SAMPLE_KEY).leaf_id == other.leaf
    assert is_same_request(one.state, ConversationState.from_entries(store.read_path(SAMPLE_KEY, one.leaf)))


def as_a_client_sends(*texts):
    """Return a conversation with a mark for the cache on its newest message, and no other."""
    marked = {"cache_control": {"type": "ephemeral"}}
    told = [
        {"role": ("user", "assistant")[at % 2], "content": [{"type": "text", "text": text}]}
        for at, text in enumerate(texts)
    ]
    told[-1]["content"][0] |= marked
    return measure_parsed_request(
        parse_request(json.dumps({"model": "m", "messages": told}).encode(), "anthropic")
    ).messages


@pytest.mark.parametrize("decided", [NoteEntry("n"), CompactionEntry(2, Message.from_text("user", "a summary"), 5)])
def test_what_others_decide_leaves_the_words_of_a_client_as_it_said_them(store, decided):
    """Bytes that no decision touched leave as they came last, and not as they came when the log took them."""
    journal = opened(store)
    for texts in ("abc", "abcde", "abcdefg"):
        said = as_a_client_sends(*texts)
        journal.follow_conversation(said)
        store.append_entries(SAMPLE_KEY, [Entry(f"other-{texts}", journal.leaf, decided)])
        shown = journal.prepare_request(GOAL).messages[-(len(texts) - 2) :]
        assert [slot.raw for slot in shown] == [slot.raw for slot in said[2:]]
