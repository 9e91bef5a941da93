"""The branch is a lawful fold: however it is made, the same log gives the same branch."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw
from msgspec.structs import asdict, replace
from strategies import logs, wild_histories

from holdfast import Branch
from holdfast.messages.message import Message, media_of
from holdfast.messages.parts import Text, Thinking, ToolResult
from holdfast.messages.size.tokens import measure
from holdfast.planning.budget import in_force
from holdfast.planning.presets.measures import usage_estimate
from holdfast.planning.settings import Settings
from holdfast.state.branch.branch import extend
from holdfast.state.branch.view import messages_at, origins, prefix_basis, project
from holdfast.state.calibration.token_estimate import estimate, frame_tokens, ratio
from holdfast.state.dialect import Dialect
from holdfast.state.edits import Edit, Settled, Span
from holdfast.state.entries import Answer, Compaction, Decision, Entry, Frame, Request, Revoke, Said, Usage
from holdfast.state.sequence import Seq
from holdfast.state.target import Target
from holdfast.store.memory import MemoryStore
from holdfast.store.tree.active import CARRIED

FORGOTTEN = {"settled", "callers"}
"""``settled`` is a memory of the planner's; ``callers`` may know more than one branch, and is compared apart."""


def state(branch):
    """Return all that a branch says of its own log."""
    known = {key: value for key, value in asdict(branch).items() if key not in FORGOTTEN}
    return known | {"callers": {key: index for key, index in branch.callers.items() if index < len(branch.slots)}}


def said(messages):
    """Return the entries of plain messages."""
    return [Entry(f"m{index}", None, Said(measure(message)), index) for index, message in enumerate(messages)]


@given(logs(), st.data())
def test_a_branch_that_a_store_resumes_goes_on_like_one_that_is_built(entries, data):
    """However often it is opened meanwhile: what gave way is not read, and nothing that stands differs."""
    store, done = MemoryStore(), 0
    store.create("k")
    while done < len(entries):
        count = data.draw(st.integers(1, 4))
        store.append("k", entries[done : done + count])
        done += count
        resumed, built = store.branch("k"), Branch.build(entries[:done])
        assert [name for name in CARRIED if getattr(resumed, name) != getattr(built, name)] == []
        assert (resumed.anchor, resumed.used, prefix_basis(resumed)) == (built.anchor, built.used, prefix_basis(built))
        assert [slot.digest for slot in project(resumed)] == [slot.digest for slot in project(built)]
        for name in ("marks", "born"):
            assert [*getattr(resumed, name)][built.keep :] == [*getattr(built, name)][built.keep :]


@pytest.mark.parametrize("stop", ["error", "aborted", ""])
def test_an_answer_without_a_word_behind_a_compaction_that_keeps_nothing(stop):
    """It says nothing of the message that gave way before it, and the session opens again."""
    talk = [Message.of(role, role) for role in ("user", "assistant")]
    bodies = [Compaction(2, Message.of("user", "s"), 1), Request("b", 2, "m"), Answer("b", Usage(9, 1), stop)]
    entries = [*said(talk), *[Entry(f"o{index}", None, body, index + 2) for index, body in enumerate(bodies)]]
    linked = [replace(entry, parent=before.id) for before, entry in itertools.pairwise(entries)]
    store = MemoryStore()
    store.create("k")
    store.append("k", [entries[0], *linked])
    assert store.branch("k").broken == Branch.build(entries).broken == ()


@given(logs(), st.integers(0, 60))
def test_building_at_once_is_extending_one_by_one(entries, cut):
    """Any two ways of folding the same log give equal branches."""
    half = Branch.build(entries[:cut])
    for entry in entries[cut:]:
        half = extend(half, entry)
    assert state(half) == state(Branch.build(entries))


@given(logs())
def test_a_dumped_branch_comes_back(entries):
    """``load(dump(branch))`` is the same branch, and it grows in the same way."""
    half = len(entries) // 2
    branch = Branch.build(entries[:half])
    settled = Settled(Dialect("anthropic"), 1, 1, (Edit(Span(0, 1), (Message.of("user", "x"),)),))
    branch = replace(branch, settled=settled)
    again = Branch.load(branch.dump())
    assert again == branch
    assert again.dump() == branch.dump()
    for entry in entries[half:]:
        again, branch = extend(again, entry), extend(branch, entry)
    assert again == branch


@given(wild_histories())
def test_any_message_survives_a_dump(messages):
    """NUL bytes, lone surrogates and wire bytes come back as they were."""
    branch = Branch.build(said(messages))
    slot = replace(measure(Message("user", (Text("a", None, Raw(b'{"type" : "text"}')),))), raw=Raw(b'{ "role":1}'))
    branch = extend(branch, Entry("raw", None, Said(slot)))
    assert Branch.load(branch.dump()) == branch


@pytest.mark.parametrize("cut", [0, 1, 10, -1])
def test_a_damaged_dump_is_a_value_error(cut):
    """Bytes that are no dump raise ``ValueError``, whatever they are."""
    dumped = Branch.build(said([Message.of("user", "a")])).dump()
    with pytest.raises(ValueError, match=r".+"):
        Branch.load(dumped[:cut])


@given(logs(), logs(), st.integers(0, 40))
def test_forks_do_not_disturb_each_other(one, other, cut):
    """Branches grown from a common one stay what they would be if each stood alone, and so does the common one."""
    stem = Branch.build(one[:cut])
    before = state(stem)
    left, right = stem, stem
    grown = [[], []]
    for pair in zip([*one[cut:], *other], [*other, *one[cut:]], strict=True):
        left, right = extend(left, pair[0]), extend(right, pair[1])
        grown[0].append(pair[0])
        grown[1].append(pair[1])
    assert state(stem) == before
    assert state(left) == state(Branch.build([*one[:cut], *grown[0]]))
    assert state(right) == state(Branch.build([*one[:cut], *grown[1]]))


@given(logs(), st.data())
def test_undo_restores_what_was_there(entries, data):
    """A revoked decision or compaction leaves the projection as if it had never been made."""
    made = [entry.id for entry in entries if isinstance(entry.body, Decision | Compaction)]
    gone = data.draw(st.sampled_from(made)) if made else "none"
    undone = Branch.build([*entries, Entry("undo", None, Revoke(gone))])
    never = Branch.build([entry for entry in entries if entry.id != gone])
    assert [slot.message for slot in project(undone)] == [slot.message for slot in project(never)]
    for name in ("keep", "compaction", "edits", "held", "marks", "law"):
        assert getattr(undone, name) == getattr(never, name)
    assert prefix_basis(undone) == prefix_basis(never)


@st.composite
def decisions(draw, entries):
    """Any decision about some words of ``entries``, or any compaction."""
    branch = Branch.build(entries)
    words = [at for at, message in enumerate(branch.messages) if message.parts and type(message.parts[0]) is Text]
    if words and draw(st.booleans()):
        at = draw(st.sampled_from(words))
        return Decision((Edit(Span(at, at + 1, 0), (Text("[cut]"),), "test", "", 1),))
    keep = draw(st.integers(branch.pinned, len(branch.slots)))
    return Compaction(keep, draw(st.sampled_from([None, Message.of("user", "so far")])), 9)


def counted(entries, tokens):
    """Return the branch of ``entries`` after one more request, which the provider counted at ``tokens``."""
    branch = Branch.build(entries)
    request = Request(prefix_basis(branch), len(branch.slots), "m")
    answer = Answer(request.basis, Usage(tokens, 10))
    return extend(extend(branch, Entry("asked", None, request)), Entry("told", None, answer))


@given(logs(), st.integers(0, 60_000), st.data())
def test_an_undone_decision_gives_the_figures_from_before(entries, tokens, data):
    """What was decided and taken back since a request was counted changes no size, by no measure."""
    before, decided = counted(entries, tokens), data.draw(decisions(entries))
    after = extend(extend(before, Entry("d", None, decided)), Entry("undo", None, Revoke("d")))
    assert (after.anchor, after.used) == (before.anchor, before.used)
    assert usage_estimate(after) == usage_estimate(before)
    for place in (Target(model="m"), Target(model="m", frame=before.frame), Target(model="n")):
        sizes = [estimate(branch, in_force(place, branch, Settings())) for branch in (before, after)]
        assert sizes[0] == sizes[1]


@given(logs(), st.integers(0, 60_000), st.data())
def test_a_frame_that_nobody_told_does_not_vanish(entries, tokens, data):
    """What a counted request had beside its messages is in the next one too, whatever is decided about those."""
    entries = [entry for entry in entries if not isinstance(entry.body, Frame)]
    before, decided = counted(entries, tokens), data.draw(decisions(entries))
    after = extend(before, Entry("d", None, decided))
    places = [in_force(Target(model="m"), branch, Settings()) for branch in (before, after)]
    frame, same = map(frame_tokens, places)
    assert frame == same
    told = before.anchor
    if told is not None and not before.media:
        assert frame >= min(told.tokens - round(ratio(before, places[0]) * told.held), 100_000)


@given(logs())
def test_undoing_everything_shows_everything(entries):
    """With every decision revoked, the projection is what was said, at the size it was said."""
    branch = Branch.build(entries)
    for id_, _ in branch.law:
        branch = extend(branch, Entry("undo", None, Revoke(id_)))
    assert [slot.message for slot in project(branch)] == list(branch.messages)
    assert branch.held == sum(slot.size for slot in branch.slots)
    assert branch.law == ()


@given(logs())
def test_the_projection_is_measured(entries):
    """``held`` is the sum of the slots shown, and each slot shown says where it came from."""
    branch = Branch.build(entries)
    shown = project(branch)
    assert branch.held == sum(slot.size for slot in shown)
    places = origins(branch)
    assert len(places) == len(shown)
    assert places == sorted(places, key=lambda place: branch.pinned - 0.5 if place < 0 else place)
    assert all(place < branch.pinned or place >= branch.keep for place in places)
    assert len(branch.marks) == len(branch.born) == len(branch.sums) == len(branch.messages) == len(branch.slots)


@given(logs())
def test_media_are_counted_where_they_are_shown(entries):
    """``media``, ``media_bytes`` and ``pictures`` are those of the projection: what gave way counts no more."""
    branch = Branch.build(entries)
    shown = [one for slot in project(branch) for one in media_of(slot.message)]
    assert (branch.media, branch.media_bytes) == (len(shown), sum(one.size for one in shown))
    kept = [one for index in branch.pictures for message in messages_at(branch, index) for one in media_of(message)]
    pinned = media_of(*branch.messages.slice(0, branch.pinned))
    assert [*pinned, *kept] == shown
    assert all(media_of(*messages_at(branch, index)) for index in branch.pictures)


@given(logs())
def test_marks_are_those_of_the_projection(entries):
    """The marks carried along are the marks of the same law applied to the same slots from the start."""
    branch = Branch.build(entries)
    plain = Branch.build(entry for entry in entries if isinstance(entry.body, Said))
    for id_, what in branch.law:
        plain = extend(plain, Entry(id_, None, what))
    assert list(plain.marks)[branch.keep :] == list(branch.marks)[branch.keep :]
    assert prefix_basis(replace(plain, frame=branch.frame)) == prefix_basis(branch)


PARTS = (
    Text("a"),
    Text("b"),
    Text("a\x00b"),
    Text("a\x01b\x01{}"),
    Thinking("a"),
    ToolResult("a", "", (Text("b"),)),
    ToolResult("a", "", (Text("b"),), is_error=True),
    ToolResult("a", "", (Text("b"), Text(""))),
)
SMALL = [
    Message(role, parts)
    for role in ("user", "assistant")
    for parts in [(), *((one,) for one in PARTS), *itertools.product(PARTS, PARTS)]
]


def test_an_equal_basis_is_an_equal_request():
    """Requests with one basis show the same: roles, kinds of parts, borders between them, errors, and words."""
    named = {}
    for message in SMALL:
        named.setdefault(prefix_basis(Branch.build(said([message]))), []).append(message)
    assert [same for same in named.values() if len(same) > 1] == []


@given(st.lists(st.sampled_from(SMALL), min_size=1, max_size=3))
def test_a_frame_or_a_cut_changes_the_basis(messages):
    """Another frame, a message less or a summary in place of messages is another basis."""
    branch = Branch.build(said(messages))
    others = [
        extend(branch, Entry("f", None, Frame("other", 1))),
        Branch.build(said(messages[:-1])),
        extend(branch, Entry("c", None, Compaction(len(messages), Message.of("user", "s"), 1))),
    ]
    assert prefix_basis(branch) not in {prefix_basis(one) for one in others}


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 3)), max_size=40))
def test_sequences_share_storage_without_sharing_fate(steps):
    """A sequence grown from any earlier one holds what a plain tuple would, whoever else grew from there."""
    grown = [(Seq(), ())]
    for place, item in steps:
        seq, plain = grown[place % len(grown)]
        grown.append((seq.add(item), (*plain, item)))
    for seq, plain in grown:
        assert (tuple(seq), len(seq), seq.slice(1, 3)) == (plain, len(plain), list(plain[1:3]))
        assert seq == Seq(plain)
        assert [seq[-1 - index] for index in range(len(plain))] == list(reversed(plain))


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 3)), max_size=40), st.integers(0, 6))
def test_totals_are_those_of_what_a_sequence_holds(steps, start):
    """Asked early, late or of a fork, a total is the sum over the sequence's own items."""
    grown = [Seq()]
    for place, item in steps:
        seq = grown[place % len(grown)]
        if item == 0:
            assert seq.total(_doubled) == 2 * sum(seq)
        grown.append(seq.add(item))
    for seq in grown:
        assert seq.total(_doubled, start) == 2 * sum(seq.slice(start))


def _doubled(item):
    return 2 * item
