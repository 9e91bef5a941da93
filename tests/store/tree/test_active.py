"""A state that is opened from a checkpoint equals the one folded from the root of the log."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis_strategies import log_strategy
from sample_entries import is_same_request

from holdfast.messages.message import Message
from holdfast.messages.size.tokens import build_sized_message
from holdfast.state.conversation_state import ConversationState, flatten_state
from holdfast.state.entries import CompactionEntry, Entry, RevokeEntry
from holdfast.state.persistent_sequence import PersistentSequence
from holdfast.store.base import ActiveEntries
from holdfast.store.tree.active import (
    CHECKPOINT_FIELDS,
    FOLD_VERSION,
    GappedSequence,
    decode_checkpoint,
    encode_checkpoint,
    resume_state,
    select_message_entries,
)


@st.composite
def compacted_log_strategy(draw):
    """A log with a compaction in it, the index of that entry, and where to stop reading.

    No other compaction and no undo comes between the two: a store opens a branch from its newest compaction, and not
    from one that may have been taken back.
    """
    entries = draw(log_strategy(max_messages=10))
    index = draw(st.integers(0, len(entries)))
    state = ConversationState.from_entries(entries[:index])
    first_kept = draw(st.integers(state.view.pinned_count, len(state.history.sized_messages)))
    summary = Message.from_text("user", "the summary")
    compaction = CompactionEntry(first_kept, summary, build_sized_message(summary).tokens, author="model")
    entries = [*entries[:index], Entry("compaction", None, compaction), *entries[index:]]
    stop = index + 1
    while stop < len(entries) and not isinstance(entries[stop].body, CompactionEntry | RevokeEntry):
        stop += 1
    return entries, index, draw(st.integers(index + 1, stop))


def split_at_compaction(entries, index, stop):
    """Return what a store reads to open the branch ``entries[:stop]`` from the checkpoint of ``entries[index]``.

    That is the pinned messages, the kept messages, the compaction and everything after it.
    """
    before, compaction = entries[:index], entries[index].body
    state = ConversationState.from_entries(before)
    message_entries = select_message_entries(before)
    head = message_entries[: state.view.pinned_count]
    checkpoint = encode_checkpoint(state, [entry.id for entry in head], compaction)
    assert checkpoint is not None
    return ActiveEntries(
        tuple(entries[index:stop]), tuple(head), tuple(message_entries[compaction.first_kept :]), checkpoint
    )


@given(compacted_log_strategy())
def test_resume_state_equals_the_fold_from_the_root(log):
    """opening-costs-one-branch: without the hidden messages every field of the state and the request are the same."""
    entries, index, stop = log
    resumed = resume_state(split_at_compaction(entries, index, stop))
    folded = ConversationState.from_entries(entries[:stop])
    resumed_fields, folded_fields = flatten_state(resumed), flatten_state(folded)
    assert {name: resumed_fields[name] for name in CHECKPOINT_FIELDS} == {
        name: folded_fields[name] for name in CHECKPOINT_FIELDS
    }
    assert is_same_request(resumed, folded)


@given(compacted_log_strategy())
def test_resume_state_refuses_access_to_hidden_messages(log):
    """nothing-lost: a hidden message is an error that says how to read it, never another message."""
    entries, index, stop = log
    active = split_at_compaction(entries, index, stop)
    messages = resume_state(active).history.sized_messages
    assert isinstance(messages, GappedSequence)
    expected = [entry.body.sized_message for entry in select_message_entries(entries[:stop])]
    assert len(messages) == len(expected)
    for position, message in enumerate(expected):
        if len(active.head) <= position < entries[index].body.first_kept:
            with pytest.raises(LookupError, match="open the whole path"):
                messages[position]
        else:
            assert messages[position] == message


@given(log_strategy())
def test_resume_state_without_checkpoint_folds_all_entries(entries):
    """If there is no checkpoint, the branch is read from the root."""
    assert resume_state(ActiveEntries(tuple(entries))) == ConversationState.from_entries(entries)


@given(compacted_log_strategy(), st.integers(0, 2**16))
def test_decode_checkpoint_rejects_flipped_bits(log, position):
    """damage-is-an-error: a damaged checkpoint is ignored; it never gives another state."""
    data = split_at_compaction(*log).checkpoint
    bit = position % (8 * len(data))
    flipped = bytearray(data)
    flipped[bit // 8] ^= 1 << bit % 8
    assert decode_checkpoint(bytes(flipped)) in (None, decode_checkpoint(data))


@given(compacted_log_strategy())
def test_decode_checkpoint_rejects_another_fold_version(log):
    """Another version of the fold computes other numbers, so its checkpoints are not used."""
    data = split_at_compaction(*log).checkpoint
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("holdfast.store.tree.active.FOLD_VERSION", FOLD_VERSION + 1)
        assert decode_checkpoint(data) is None
    assert decode_checkpoint(data) is not None
    assert decode_checkpoint(None) is None


def test_encode_checkpoint_returns_none_for_messages_that_do_not_exist():
    """A compaction that keeps fewer messages than are pinned, or starts behind the last one, has no checkpoint."""
    state = ConversationState()
    assert encode_checkpoint(state, [], CompactionEntry(0)) is not None
    assert encode_checkpoint(state, [], CompactionEntry(1)) is None


@given(st.lists(st.integers(), max_size=4), st.integers(0, 4), st.lists(st.integers(), max_size=6), st.data())
def test_gapped_sequence_equals_a_whole_one_outside_its_gap(head, gap, tail, data):
    """Length, items, slices and sums are those of the whole sequence, or a ``LookupError`` if they need the gap."""
    split = data.draw(st.integers(0, len(tail)))
    gapped = GappedSequence(head, gap, tail[:split]).add(*tail[split:])
    whole = PersistentSequence([*head, *[0] * gap, *tail])
    start = data.draw(st.integers(0, len(whole)))
    stop = data.draw(st.integers(start, len(whole)))
    assert len(gapped) == len(whole)
    if start < stop and range(max(start, len(head)), min(stop, len(head) + gap)):
        with pytest.raises(LookupError):
            gapped.slice(start, stop)
    else:
        assert gapped.slice(start, stop) == whole.slice(start, stop)
    if gap and start < len(head) + gap:
        with pytest.raises(LookupError):
            gapped.sum_from(int, start)
    else:
        assert gapped.sum_from(int, start) == whole.sum_from(int, start)
