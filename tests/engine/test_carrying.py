"""What is decided and what is undone stands wherever a conversation goes on beside its log."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given
from msgspec.structs import replace
from samples import KEY
from strategies import logs

from holdfast.engine.log.fork import NEARLY, carried, told_there
from holdfast.engine.log.journal import Journal
from holdfast.messages.message import Message
from holdfast.messages.parts import Media, Text, ToolCall, ToolResult
from holdfast.messages.size.tokens import measure
from holdfast.planning.budget import in_force
from holdfast.planning.pipeline import Policy
from holdfast.state.branch.branch import Branch
from holdfast.state.branch.fork import cut_back, within
from holdfast.state.branch.view import project
from holdfast.state.calibration.model_stats import Known, all_known, known_of
from holdfast.state.calibration.token_estimate import ratio
from holdfast.state.edits import Edit, Span
from holdfast.state.entries import (
    HISTORY,
    KNOWN,
    Compaction,
    Decision,
    Entry,
    Frame,
    Note,
    Request,
    Revoke,
    Said,
    Usage,
)
from holdfast.store.memory import MemoryStore

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


# -- what was learned --------------------------------------------------------------------------------------------------

WORDS = "the tide takes the harbour wall twice a day and nobody minds it " * 50


def talked(store, *places, turns=4):
    """Return a journal whose models, asked in turn, count far more than is estimated, and what was said there."""
    journal, said = Journal.open(store, KEY), []
    for number in range(turns):
        prepared = journal.prepare(places[number % len(places)]) if said else None
        if prepared is not None:
            said.append(Message.of("assistant", f"{number} {WORDS}"))
            journal.record(said[-1], Usage(2 * prepared.plan.branch.asked, 100))
        said.append(Message.of("user", f"{number} {WORDS}"))
        journal.append(said[-1])
    journal.prepare(places[turns % len(places)])
    return journal, said


def parting(journal, said, count, word="other"):
    """Let ``journal`` go on with another message behind the first ``count`` that were ``said``."""
    journal.follow([measure(one) for one in [*said[:count], Message.of("user", word)]])


def notes(store, journal):
    return [
        one.body for one in store.path(KEY, journal.leaf) if isinstance(one.body, Note) and one.body.reason == KNOWN
    ]


@pytest.mark.parametrize("told", [{}, {"limit": 30_000}, {"requested": 45_000}, {"limit": 30_000, "requested": 45_000}])
@pytest.mark.parametrize("count", range(7))
def test_what_was_learned_of_a_model_counts_wherever_a_conversation_parts(count, told, store, anthropic):
    """Its window and how it counts are those of before from the first request on, also after a restart."""
    wide = replace(anthropic, limits=replace(anthropic.limits, window=200_000))
    journal, said = talked(store, wide)
    journal.learn("too large", **told)
    window = in_force(wide, journal.branch, journal.policy.settings).limits.window
    before = known_of(journal.branch, wide.model)
    parting(journal, said, count)
    again = Journal.open(store, KEY, leaf=journal.leaf)
    for one in (journal, again):
        known = known_of(one.branch, wide.model)
        assert replace(known.learned, overflows=0) == replace(before.learned, overflows=0)
        assert ratio(one.branch, wide) == pytest.approx(
            ratio(replace(one.branch, gauge=before.gauge), wide), abs=NEARLY
        )
        assert in_force(wide, one.branch, one.policy.settings).limits.window == pytest.approx(window, rel=0.1)
        assert all_known(one.prepare(wide).plan.branch) == (replace(known, model=wide.model, window=200_000),)


def test_what_was_learned_of_each_model_is_told_once_where_a_conversation_parts(store, anthropic):
    """Branch after branch from one place, and one in its midst, tell no more than what is new."""
    anthropic = replace(anthropic, frame=Frame("f", 1_000, exact=True))
    other = replace(anthropic, model="claude-opus-4-5")
    journal, said = talked(store, anthropic, other)
    before = all_known(journal.branch)
    assert [known.model for known in before] == [other.model, anthropic.model]
    for number in range(3):
        parting(journal, said, 0, f"another {number}")
        assert all_known(journal.branch) == before
    assert len(notes(store, journal)) == 1
    journal.prepare(other)
    journal.learn("too large", 20_000)
    parting(journal, said, 0, "the last")
    assert known_of(journal.branch, other.model).learned.limit == 20_000
    assert known_of(journal.branch, anthropic.model) == known_of(Branch(aside=before), anthropic.model)


def test_a_window_that_was_forgotten_stays_so_where_a_conversation_parts(store, anthropic):
    """What taught it before is not known there, also where that was told before the parting; what taught since is."""
    journal, said = talked(store, anthropic)
    journal.learn("too large", 30_000)
    said += [Message.of("assistant", "hm"), Message.of("user", "on")]
    journal.append(*said[-2:])
    count = len(said) - 1
    journal.forget()
    parting(journal, said, count)
    assert known_of(journal.branch, anthropic.model).learned.limit == 0
    assert Journal.open(store, KEY, leaf=journal.leaf).branch.learned.limit == 0
    journal.prepare(anthropic)
    journal.learn("too large", 40_000)
    parting(journal, said, count, "another")
    assert known_of(journal.branch, anthropic.model).learned.limit == 40_000


def test_who_learned_nothing_tells_nothing(store, anthropic):
    """A conversation that parts from one without an answer is told no note."""
    journal, said = talked(store, anthropic, turns=1)
    parting(journal, said, 0)
    assert notes(store, journal) == []
    assert known_of(journal.branch, anthropic.model) == Known("")
