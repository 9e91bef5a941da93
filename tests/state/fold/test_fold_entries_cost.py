"""The fold costs what is new, and an undo what is shown: neither costs what gave way long ago."""

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

SAID = [
    MessageEntry(build_sized_message(Message.from_text(role, "kelp on the rock"))) for role in ("user", "assistant")
]
SUMMARY = Message.from_text("user", "so far")


def cut(slot):
    """Return the decision that cuts the words of ``slot`` short."""
    return DecisionEntry((Edit(Span(slot, slot + 1, 0), (Text("[cut]"),), "test", "", 1),))


def log(*bodies):
    return [Entry(f"e{number}", None, body, number) for number, body in enumerate(bodies)]


def worked(compactions, messages=40):
    """Return a log that was compacted so often, each time after so many messages, with a decision about the newest."""
    bodies = []
    for _ in range(compactions):
        bodies += SAID * (messages // 2)
        count = sum(isinstance(body, MessageEntry) for body in bodies)
        bodies += [cut(count - 1), CompactionEntry(count - 4, SUMMARY, 10)]
    return log(*bodies)


def calls_of(work):
    """Return how many functions ``work`` calls."""
    looked = Counter()
    sys.setprofile(lambda _frame, event, _what: looked.update([event]))
    try:
        work()
    finally:
        sys.setprofile(None)
    return looked["call"]


@pytest.mark.parametrize("gone", [-1, -2, 0, 1])
def test_an_undo_costs_what_is_shown(gone):
    """Behind ten times as many compactions an undo folds no more: of a law the newest compaction says what stands."""
    costs = []
    for compactions in (4, 40):
        branch = ConversationState.from_entries(worked(compactions))
        id_ = branch.view.active_decisions[gone][0]
        costs.append(
            calls_of(lambda branch=branch, id_=id_: apply_entry(branch, Entry("undo", None, RevokeEntry(id_))))
        )
    assert costs[1] <= 1.5 * costs[0]


@pytest.mark.parametrize("gone", [-1, -2, -3, 0, 1, 2])
def test_an_undo_is_the_branch_that_never_decided(gone):
    """Whichever of many decisions and compactions is taken back, all that is shown is as if it had never been made."""
    entries = worked(5)
    id_ = ConversationState.from_entries(entries).view.active_decisions[gone][0]
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


def test_a_decision_copies_none_before_it():
    """Edits share their storage: one more is put beside a thousand others, and a fork disturbs nobody."""
    branch = ConversationState.from_entries(log(*SAID * 600))
    first = branch
    for slot in range(1_000):
        branch = apply_entry(branch, Entry("", None, cut(slot)))
    one, other = (apply_entry(branch, Entry("", None, cut(slot))) for slot in (1_000, 1_001))
    assert (len(first.view.edits), len(branch.view.edits), len(one.view.edits), len(other.view.edits)) == (
        0,
        1_000,
        1_001,
        1_001,
    )
    assert 1_001 not in one.view.edits
    assert 1_000 not in other.view.edits
    assert branch.view.edits.get(1_000) is None
    assert one.view.edits[999] is not None
    costs = [calls_of(lambda edits=edits: edits.add(cut(7).edits)) for edits in (EditMap(), other.view.edits)]
    assert costs[0] == costs[1]


def test_edits_are_a_mapping_in_the_order_of_decisions():
    """They are equal to a plain mapping of their slots, and two for one slot stay in their order."""
    edits = [cut(slot).edits[0] for slot in (3, 1)] + [Edit(Span(3, 4, 1))]
    assert EditMap(edits) == EditMap().add(edits[:1]).add(edits[1:]) == {3: (edits[0], edits[2]), 1: (edits[1],)}
    assert [*EditMap(edits)] == [3, 1]
    assert not EditMap()
    with pytest.raises(KeyError):
        EditMap(edits)[2]


def test_pictures_that_gave_way_count_no_more():
    """By a decision, or under a summary; an undo brings them back."""
    picture = Media("image", "image/png", 68, "", "iVBORw0KGgo=")
    shown = MessageEntry(build_sized_message(Message("user", (Text("look"), picture))))
    line = Edit(Span(0, 1, 1), (Text("[a picture]"),), "media", "", 1)
    entries = log(shown, *SAID, shown, DecisionEntry((line,)), CompactionEntry(4, SUMMARY, 10))
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


def test_what_waits_is_known_without_reading_the_log():
    """A queued message waits until a note says that it was said; a damaged note says nothing."""
    entries = log(
        NoteEntry(NOTE_QUEUED, b"a"),
        *SAID,
        NoteEntry(NOTE_QUEUED, b"b"),
        NoteEntry(NOTE_DELIVERED),
        NoteEntry(NOTE_DELIVERED, data={"notes": ["e0"]}),
    )
    assert [id_ for id_, _ in ConversationState.from_entries(entries[:5]).history.queued_messages] == ["e0", "e3"]
    assert ConversationState.from_entries(entries).history.queued_messages == (("e3", b"b"),)


def test_edits_from_a_slot_are_those_of_the_mapping():
    """``iter_from`` gives the edits of a walk over all, in order of their slots, also where a fork added others."""
    first = EditMap(edit for slot in (5, 2, 9) for edit in cut(slot).edits)
    one, other = first.add(cut(7).edits), first.add(cut(3).edits)
    for edits in (first, one, other, one.add(cut(2).edits)):
        for start in (0, 3, 6, 10):
            assert [*edits.iter_from(start)] == [(slot, edits[slot]) for slot in sorted(edits) if slot >= start]


def test_a_plan_costs_what_is_shown():
    """Behind ten times as many compactions the next request is planned with no more work.

    Edits that a compaction hid stay in the branch, for an undo; no stage walks over them.
    """
    costs = []
    for compactions in (4, 40):
        shown = [*(entry.body for entry in worked(compactions)), *SAID, cut(40 * compactions)]
        bodies = [*shown, RequestEntry("before", 40 * compactions + 2), SAID[0]]
        branch = ConversationState.from_entries(log(*bodies))
        costs.append(calls_of(lambda branch=branch: plan_request(branch, Target())))
    assert costs[1] <= 1.1 * costs[0]
