"""What is decided and what is undone stands wherever a conversation goes on beside its log."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given
from msgspec.structs import replace

from holdfast.model.branch import Branch
from holdfast.model.edits import Edit, Span
from holdfast.model.entries import HISTORY, Compaction, Decision, Entry, Request, Revoke, Said
from holdfast.model.forking import cut_back, within
from holdfast.model.messages import Message
from holdfast.model.parts import Media, Text, ToolCall, ToolResult
from holdfast.model.projected import project
from holdfast.policy.pipeline import Policy
from holdfast.runtime.carrying import carried, told_there
from holdfast.runtime.journal import Journal
from holdfast.store.memory import MemoryStore
from holdfast.testing.samples import KEY
from holdfast.testing.strategies import logs
from holdfast.view.tokens import measure

LONG = "\n".join(f"line {number} of a long output" for number in range(5_000))
GO, CALL = Message.of("user", "go"), Message("assistant", (ToolCall("c1", "bash", "{}"),))
RESULT = Message("tool", (ToolResult("c1", "bash", (Text(LONG),)),))
SEEN, MORE = Message.of("assistant", "seen"), Message.of("user", "tell me more")


def parted(path, count):
    """Return the entries of a branch that parts from ``path`` before message ``count`` was said."""
    start = [at for at, entry in enumerate(path) if isinstance(entry.body, Said)][count]
    beside, ids = list(path[:start]), {}
    for one in carried(Branch.build(path), path, start, count):
        ids[one.id] = f"{one.id}'"
        parent = beside[-1].id if beside else None
        beside.append(Entry(ids[one.id], parent, told_there(one.body, "b", ids)))
    return beside


def undone(path, count):
    """Return what was brought back of the first ``count`` slots, part by part, as ``path`` tells it."""
    found, law = defaultdict(set), {}
    for entry in path:
        if isinstance(entry.body, Decision | Compaction):
            law[entry.id] = entry.body
        elif isinstance(entry.body, Revoke) and entry.body.id in law:
            for edit in law.pop(entry.body.id).edits:
                if edit.span.stop <= count:
                    for slot in range(edit.span.start, edit.span.stop):
                        found[slot].add(edit.span.part)
    return found


def limiting(entries):
    """Return the log with limits of turns in place of compactions that nobody wrote a summary for."""
    bare = [isinstance(one.body, Compaction) and one.body.summary is None for one in entries]
    return [
        replace(one, body=replace(one.body, trigger=HISTORY)) if is_bare else one
        for one, is_bare in zip(entries, bare, strict=True)
    ]


@given(logs().map(limiting))
def test_whatever_was_decided_or_undone_stands_at_every_parting(path):
    """In force there is the part about what both say, and no more; brought back is what was; again on a second one."""
    before = Branch.build(path)
    for count in range(len(before.slots)):
        beside = parted(path, count)
        after = Branch.build(beside)
        law = [within(body, count) for _, body in before.law]
        assert [body for _, body in after.law] == [body for body in law if body is not None]
        assert {slot: {*parts} for slot, parts in after.spared.items()} == undone(path, count)
        assert after.counted == min(before.counted, count)
        more = [Entry("m", beside[-1].id if beside else None, Said(measure(MORE)))]
        again = Branch.build(parted([*beside, *more], count))
        assert (again.law, again.spared, again.counted) == (after.law, after.spared, after.counted)


@given(logs().map(limiting))
def test_a_branch_that_is_cut_back_has_the_same_law(path):
    """Who only looks at the first messages is shown what a branch would be that parts there."""
    before = Branch.build(path)
    for count in range(len(before.slots)):
        beside, looked = Branch.build(parted(path, count)), cut_back(before, count)
        assert [body for _, body in looked.law] == [body for _, body in beside.law]
        assert project(looked) == project(beside)


def test_a_summary_stands_whatever_was_decided_with_it_about_what_is_behind():
    """Of a compaction goes what is about messages that are no more; what it summed up does not come back."""
    said = [Said(measure(Message.of(role, role))) for role in ("user", "assistant", "user", "assistant")]
    made = Compaction(1, Message.of("user", "sum"), 3, BOTH.edits)
    path = [Entry(str(at), str(at - 1) if at else None, body) for at, body in enumerate([*said, made])]
    kept = replace(made, edits=CUT.edits)
    assert [body for _, body in Branch.build(parted(path, 3)).law] == [kept]
    assert [body for _, body in cut_back(Branch.build(path), 3).law] == [kept]


CUT = Decision((Edit(Span(1, 2, 0), (Text("-"),), "r", "w", 1),))
BOTH = Decision((*CUT.edits, Edit(Span(3, 4, 0), (Text("-"),), "r", "w", 1)))
GAVE_WAY = Compaction(3, Message.of("user", "sum"), 3, CUT.edits)
OF_TWO = {
    "before the parting": (["d", "|", "-d"], ["-d"], {1}),
    "behind it": (["|", "d", "-d"], [CUT, "-d"], {1}),
    "a part of it": (["|", "both", "-both"], [CUT, "-both"], {1}),
    "taken again": (["d", "|", "-d", "e"], ["-d", CUT], {1}),
    "taken again and undone": (["d", "|", "-d", "e", "-e"], ["-d", CUT, "-e"], {1}),
    "one of two": (["d", "e", "|", "-e"], ["-e"], {1}),
    "undone before it": (["d", "-d", "|"], [], {1}),
    "a compaction behind it": (["|", "sum", "-sum"], [CUT, "-sum"], {1}),
    "a request showed it again": (["d", "|", "asked", "-d", "asked"], [Request("", 2), "-d", Request("", 2)], {1}),
}
"""What is told around the parting behind two messages, what is carried along, and which slots were brought back."""
BODIES = {"d": CUT, "e": CUT, "both": BOTH, "sum": GAVE_WAY, "asked": Request("x", 4)}


@pytest.mark.parametrize("name", OF_TWO)
def test_an_undo_is_carried(name):
    """As the undo alone where what it undid stands before the parting, else with that."""
    told, expected, back = OF_TWO[name]
    said = [Said(measure(Message.of(role, role))) for role in ("user", "assistant", "user", "assistant")]
    path = [Entry("0", None, said[0]), Entry("1", "0", said[1])]
    for number, one in enumerate(told):
        bodies = {"|": said[2:]}.get(one) or [BODIES.get(one) or Revoke(one[1:])]
        path += [Entry(one if one in BODIES else f"{number}.{at}", path[-1].id, body) for at, body in enumerate(bodies)]
    start = next(at for at, entry in enumerate(path) if entry.body is said[2])
    found = [entry.body for entry in carried(Branch.build(path), path, start, 2)]
    assert found == [Revoke(one[1:]) if isinstance(one, str) else one for one in expected]
    assert {*Branch.build(parted(path, 2)).spared} == back


@pytest.mark.parametrize("said", [[MORE], [Message.of("user", "other")], []], ids=["again", "edited", "left out"])
def test_a_client_that_leaves_out_its_last_answer_keeps_what_it_undid(said, store, anthropic):
    """A text that an undo brought back stays whole where the client asks again, or says something else."""
    wide = replace(anthropic, limits=replace(anthropic.limits, window=200_000))
    journal, past = Journal.open(store, KEY), [GO, CALL, RESULT, SEEN]
    journal.append(*past[:3])
    assert journal.prepare(wide).plan.record
    journal.append(*past[3:], MORE)
    journal.record(Message.of("assistant", "more"))
    journal.undo()
    other = Journal.open(store, KEY)
    for one in (journal, other):
        one.follow([measure(message) for message in [*(past if said else past[:3]), *said]])
        prepared = one.prepare(wide)
        assert prepared.plan.record == ()
        assert RESULT in [slot.message for slot in prepared.slots]


def test_what_is_only_looked_at_keeps_what_was_undone(store, anthropic):
    """A client's own compaction, planned in a copy and forgotten, leaves out no picture that an undo brought back."""
    policy = Policy().with_settings(media_most=4)
    journal = Journal.open(store, KEY, policy)
    for number in range(5):
        picture = Media("image", "image/png", 300, "", "A" * (400 + 4 * number))
        journal.append(Message("user", (Text(f"look {number}"), picture)))
        assert bool(journal.prepare(anthropic).plan.record) == (number == 4)
        journal.record(SEEN)
    journal.undo()
    copy = MemoryStore()
    copy.put(KEY, store.path(KEY, journal.leaf))
    beside = Journal.open(copy, KEY, policy)
    beside.follow([*journal.branch.slots.slice(), measure(MORE)])
    assert beside.prepare(anthropic).plan.record == ()
