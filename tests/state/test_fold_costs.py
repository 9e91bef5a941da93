"""The fold costs what is new, and an undo what is shown: neither costs what gave way long ago."""

from __future__ import annotations

import sys
from collections import Counter

import pytest

from holdfast import Branch
from holdfast.messages.message import Message
from holdfast.messages.parts import Media, Text
from holdfast.messages.size.tokens import measure
from holdfast.planning.pipeline import advance
from holdfast.state.branch.branch import extend
from holdfast.state.edit_map import Edits
from holdfast.state.edits import Edit, Span
from holdfast.state.entries import DELIVERED, QUEUED, Compaction, Decision, Entry, Note, Request, Revoke, Said
from holdfast.state.target import Target

SAID = [Said(measure(Message.of(role, "kelp on the rock"))) for role in ("user", "assistant")]
SUMMARY = Message.of("user", "so far")


def cut(slot):
    """Return the decision that cuts the words of ``slot`` short."""
    return Decision((Edit(Span(slot, slot + 1, 0), (Text("[cut]"),), "test", "", 1),))


def log(*bodies):
    return [Entry(f"e{number}", None, body, number) for number, body in enumerate(bodies)]


def worked(compactions, messages=40):
    """Return a log that was compacted so often, each time after so many messages, with a decision about the newest."""
    bodies = []
    for _ in range(compactions):
        bodies += SAID * (messages // 2)
        count = sum(isinstance(body, Said) for body in bodies)
        bodies += [cut(count - 1), Compaction(count - 4, SUMMARY, 10)]
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
        branch = Branch.build(worked(compactions))
        id_ = branch.law[gone][0]
        costs.append(calls_of(lambda branch=branch, id_=id_: extend(branch, Entry("undo", None, Revoke(id_)))))
    assert costs[1] <= 1.5 * costs[0]


@pytest.mark.parametrize("gone", [-1, -2, -3, 0, 1, 2])
def test_an_undo_is_the_branch_that_never_decided(gone):
    """Whichever of many decisions and compactions is taken back, all that is shown is as if it had never been made."""
    entries = worked(5)
    id_ = Branch.build(entries).law[gone][0]
    undone = Branch.build([*entries, Entry("undo", None, Revoke(id_))])
    never = Branch.build([entry for entry in entries if entry.id != id_])
    for name in ("keep", "compaction", "edits", "held", "marks", "law", "media", "pictures"):
        assert getattr(undone, name) == getattr(never, name)


def test_a_decision_copies_none_before_it():
    """Edits share their storage: one more is put beside a thousand others, and a fork disturbs nobody."""
    branch = Branch.build(log(*SAID * 600))
    first = branch
    for slot in range(1_000):
        branch = extend(branch, Entry("", None, cut(slot)))
    one, other = (extend(branch, Entry("", None, cut(slot))) for slot in (1_000, 1_001))
    assert (len(first.edits), len(branch.edits), len(one.edits), len(other.edits)) == (0, 1_000, 1_001, 1_001)
    assert 1_001 not in one.edits
    assert 1_000 not in other.edits
    assert branch.edits.get(1_000) is None
    assert one.edits[999] is not None
    costs = [calls_of(lambda edits=edits: edits.add(cut(7).edits)) for edits in (Edits(), other.edits)]
    assert costs[0] == costs[1]


def test_edits_are_a_mapping_in_the_order_of_decisions():
    """They are equal to a plain mapping of their slots, and two for one slot stay in their order."""
    edits = [cut(slot).edits[0] for slot in (3, 1)] + [Edit(Span(3, 4, 1))]
    assert Edits(edits) == Edits().add(edits[:1]).add(edits[1:]) == {3: (edits[0], edits[2]), 1: (edits[1],)}
    assert [*Edits(edits)] == [3, 1]
    assert not Edits()
    with pytest.raises(KeyError):
        Edits(edits)[2]


def test_pictures_that_gave_way_count_no_more():
    """By a decision, or under a summary; an undo brings them back."""
    picture = Media("image", "image/png", 68, "", "iVBORw0KGgo=")
    shown = Said(measure(Message("user", (Text("look"), picture))))
    line = Edit(Span(0, 1, 1), (Text("[a picture]"),), "media", "", 1)
    entries = log(shown, *SAID, shown, Decision((line,)), Compaction(4, SUMMARY, 10))
    assert [Branch.build(entries[:count]).pictures for count in (1, 4, 5, 6)] == [(0,), (0, 3), (3,), ()]
    assert [Branch.build(entries[:count]).media_bytes for count in (1, 4, 5, 6)] == [68, 136, 68, 0]
    back = [*entries, Entry("u", None, Revoke("e5")), Entry("v", None, Revoke("e4"))]
    assert Branch.build(back).pictures == (0, 3)
    assert Branch.load(Branch.build(entries[:5]).dump()).pictures == (3,)


def test_what_waits_is_known_without_reading_the_log():
    """A queued message waits until a note says that it was said; a damaged note says nothing."""
    entries = log(
        Note(QUEUED, b"a"), *SAID, Note(QUEUED, b"b"), Note(DELIVERED), Note(DELIVERED, data={"notes": ["e0"]})
    )
    assert [id_ for id_, _ in Branch.build(entries[:5]).waiting] == ["e0", "e3"]
    assert Branch.build(entries).waiting == (("e3", b"b"),)


def test_edits_from_a_slot_are_those_of_the_mapping():
    """``find_from`` gives the edits of a walk over all, in order of their slots, also where a fork added others."""
    first = Edits(edit for slot in (5, 2, 9) for edit in cut(slot).edits)
    one, other = first.add(cut(7).edits), first.add(cut(3).edits)
    for edits in (first, one, other, one.add(cut(2).edits)):
        for start in (0, 3, 6, 10):
            assert [*edits.find_from(start)] == [(slot, edits[slot]) for slot in sorted(edits) if slot >= start]


def test_a_plan_costs_what_is_shown():
    """Behind ten times as many compactions the next request is planned with no more work.

    Edits that a compaction hid stay in the branch, for an undo; no stage walks over them.
    """
    costs = []
    for compactions in (4, 40):
        shown = [*(entry.body for entry in worked(compactions)), *SAID, cut(40 * compactions)]
        bodies = [*shown, Request("before", 40 * compactions + 2), SAID[0]]
        branch = Branch.build(log(*bodies))
        costs.append(calls_of(lambda branch=branch: advance(branch, Target())))
    assert costs[1] <= 1.1 * costs[0]
