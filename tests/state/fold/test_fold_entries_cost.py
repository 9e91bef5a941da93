"""The fold costs what is new and an undo what is shown; neither costs what was compacted long ago."""

from __future__ import annotations

import sys
from collections import Counter

import pytest

from holdfast import ConversationState
from holdfast.messages.message import Message
from holdfast.messages.parts import Media, Text
from holdfast.messages.size.tokens import build_sized_message
from holdfast.planning.pipeline import plan_request
from holdfast.state.edit_map import EditMap
from holdfast.state.edits import Edit, Span
from holdfast.state.entries import (
    NOTE_DELIVERED,
    NOTE_QUEUED,
    CompactionEntry,
    DecisionEntry,
    Entry,
    MessageEntry,
    NoteEntry,
    RequestEntry,
    RevokeEntry,
)
from holdfast.state.fold.fold_entries import apply_entry
from holdfast.state.target import Target

TURN = [
    MessageEntry(build_sized_message(Message.from_text(role, "kelp on the rock"))) for role in ("user", "assistant")
]
SUMMARY = Message.from_text("user", "so far")


def truncate_message(index):
    """Build the decision that replaces the text of message ``index``."""
    return DecisionEntry((Edit(Span(index, index + 1, 0), (Text("[cut]"),), "test", "", 1),))


def build_log(*bodies):
    return [Entry(f"e{number}", None, body, number) for number, body in enumerate(bodies)]


def build_compacted_log(compactions, messages=40):
    """Build a log with this many compactions, each after ``messages`` messages and a decision about the newest one."""
    bodies = []
    for _ in range(compactions):
        bodies += TURN * (messages // 2)
        count = sum(isinstance(body, MessageEntry) for body in bodies)
        bodies += [truncate_message(count - 1), CompactionEntry(count - 4, SUMMARY, 10)]
    return build_log(*bodies)


def count_calls(work):
    """Return how many functions ``work`` calls."""
    looked = Counter()
    sys.setprofile(lambda _frame, event, _what: looked.update([event]))
    try:
        work()
    finally:
        sys.setprofile(None)
    return looked["call"]


@pytest.mark.parametrize("revoked", [-1, -2, 0, 1])
def test_revoke_costs_no_more_after_more_compactions(revoked):
    """An undo after ten times as many compactions folds no more: the newest compaction determines what is shown."""
    costs = []
    for compactions in (4, 40):
        state = ConversationState.from_entries(build_compacted_log(compactions))
        id_ = state.view.active_decisions[revoked][0]
        costs.append(
            count_calls(lambda state=state, id_=id_: apply_entry(state, Entry("undo", None, RevokeEntry(id_))))
        )
    assert costs[1] <= 1.5 * costs[0]


@pytest.mark.parametrize("revoked", [-1, -2, -3, 0, 1, 2])
def test_revoke_equals_never_having_decided(revoked):
    """Whichever decision or compaction is revoked, the view is as if it had never been made."""
    entries = build_compacted_log(5)
    id_ = ConversationState.from_entries(entries).view.active_decisions[revoked][0]
    undone = ConversationState.from_entries([*entries, Entry("undo", None, RevokeEntry(id_))])
    never = ConversationState.from_entries([entry for entry in entries if entry.id != id_])
    assert undone.history.projection_digests == never.history.projection_digests
    for name in (
        "first_kept",
        "compaction",
        "edits",
        "shown_tokens",
        "active_decisions",
        "media_count",
        "media_indexes",
    ):
        assert getattr(undone.view, name) == getattr(never.view, name)


def test_edit_map_add_shares_storage_without_affecting_forks():
    """Adding an edit costs the same beside a thousand others as beside none, and one fork does not change another."""
    state = ConversationState.from_entries(build_log(*TURN * 600))
    first = state
    for index in range(1_000):
        state = apply_entry(state, Entry("", None, truncate_message(index)))
    left, right = (apply_entry(state, Entry("", None, truncate_message(index))) for index in (1_000, 1_001))
    assert (len(first.view.edits), len(state.view.edits), len(left.view.edits), len(right.view.edits)) == (
        0,
        1_000,
        1_001,
        1_001,
    )
    assert 1_001 not in left.view.edits
    assert 1_000 not in right.view.edits
    assert state.view.edits.get(1_000) is None
    assert left.view.edits[999] is not None
    costs = [
        count_calls(lambda edits=edits: edits.add(truncate_message(7).edits)) for edits in (EditMap(), right.view.edits)
    ]
    assert costs[0] == costs[1]


def test_edit_map_is_a_mapping_in_the_order_of_decisions():
    """It equals a plain mapping by message index, and two edits of one message stay in their order."""
    edits = [truncate_message(index).edits[0] for index in (3, 1)] + [Edit(Span(3, 4, 1))]
    assert EditMap(edits) == EditMap().add(edits[:1]).add(edits[1:]) == {3: (edits[0], edits[2]), 1: (edits[1],)}
    assert [*EditMap(edits)] == [3, 1]
    assert not EditMap()
    with pytest.raises(KeyError):
        EditMap(edits)[2]


def test_media_counts_exclude_hidden_media_until_an_undo():
    """Media hidden by a decision or under a summary do not count; an undo brings them back."""
    picture = Media("image", "image/png", 68, "", "iVBORw0KGgo=")
    shown = MessageEntry(build_sized_message(Message("user", (Text("look"), picture))))
    line = Edit(Span(0, 1, 1), (Text("[a picture]"),), "media", "", 1)
    entries = build_log(shown, *TURN, shown, DecisionEntry((line,)), CompactionEntry(4, SUMMARY, 10))
    assert [ConversationState.from_entries(entries[:count]).view.media_indexes for count in (1, 4, 5, 6)] == [
        (0,),
        (0, 3),
        (3,),
        (),
    ]
    assert [ConversationState.from_entries(entries[:count]).view.media_bytes for count in (1, 4, 5, 6)] == [
        68,
        136,
        68,
        0,
    ]
    back = [*entries, Entry("u", None, RevokeEntry("e5")), Entry("v", None, RevokeEntry("e4"))]
    assert ConversationState.from_entries(back).view.media_indexes == (0, 3)
    assert ConversationState.load(ConversationState.from_entries(entries[:5]).dump()).view.media_indexes == (3,)


def test_queued_messages_wait_until_a_note_says_they_were_delivered():
    """A queued message waits until a note names it as delivered; a damaged note changes nothing."""
    entries = build_log(
        NoteEntry(NOTE_QUEUED, b"a"),
        *TURN,
        NoteEntry(NOTE_QUEUED, b"b"),
        NoteEntry(NOTE_DELIVERED),
        NoteEntry(NOTE_DELIVERED, data={"notes": ["e0"]}),
    )
    assert [id_ for id_, _ in ConversationState.from_entries(entries[:5]).history.queued_messages] == ["e0", "e3"]
    assert ConversationState.from_entries(entries).history.queued_messages == (("e3", b"b"),)


def test_edit_map_iter_from_equals_a_walk_over_the_mapping():
    """``iter_from`` yields the edits of a walk over all, in order of their messages, also if a fork added others."""
    first = EditMap(edit for index in (5, 2, 9) for edit in truncate_message(index).edits)
    left, right = first.add(truncate_message(7).edits), first.add(truncate_message(3).edits)
    for edits in (first, left, right, left.add(truncate_message(2).edits)):
        for start in (0, 3, 6, 10):
            assert [*edits.iter_from(start)] == [(index, edits[index]) for index in sorted(edits) if index >= start]


def test_plan_costs_no_more_after_more_compactions():
    """Edits that a compaction hid stay in the state for an undo; no stage walks over them, even after ten times as
    many.
    """
    costs = []
    for compactions in (4, 40):
        shown = [*(entry.body for entry in build_compacted_log(compactions)), *TURN, truncate_message(40 * compactions)]
        bodies = [*shown, RequestEntry("before", 40 * compactions + 2), TURN[0]]
        state = ConversationState.from_entries(build_log(*bodies))
        costs.append(count_calls(lambda state=state: plan_request(state, Target())))
    assert costs[1] <= 1.1 * costs[0]
