"""The branch is a lawful fold: however it is made, the same log gives the same branch."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis_strategies import log_strategy, wild_history_strategy
from msgspec import Raw
from msgspec.structs import asdict, replace

from holdfast import ConversationState
from holdfast.messages.message import Message, collect_media_in_messages
from holdfast.messages.parts import Text, Thinking, ToolResult
from holdfast.messages.size.tokens import build_sized_message
from holdfast.planning.budget import compute_effective_target
from holdfast.planning.presets.common.request_measures import estimate_pi_request
from holdfast.planning.settings import Settings
from holdfast.state.calibration.token_estimate import estimate_request_tokens, get_calibrated_ratio, get_setup_tokens
from holdfast.state.conversation_state import flatten_state
from holdfast.state.dialect import Dialect
from holdfast.state.edits import Edit, NormalizedPrefix, Span
from holdfast.state.entries import (
    AnswerEntry,
    CompactionEntry,
    DecisionEntry,
    Entry,
    MessageEntry,
    RequestEntry,
    RequestSetup,
    RevokeEntry,
    Usage,
)
from holdfast.state.fold.fold_entries import apply_entry
from holdfast.state.persistent_sequence import PersistentSequence
from holdfast.state.target import Target
from holdfast.state.view import (
    build_projection,
    compute_prefix_digest,
    get_valid_last_answer,
    get_valid_measured_request,
    list_projection_origins,
    list_shown_messages_at,
)
from holdfast.store.memory import MemoryStore
from holdfast.store.tree.active import CHECKPOINT_FIELDS

FORGOTTEN = {"normalized_prefix", "first_index_by_call_id"}
"""The first is a memory of the planner's; the second may know more than one branch, and is compared apart."""


def state(branch):
    """Return all that a branch says of its own log."""
    known = {key: value for key, value in asdict(branch).items() if key not in FORGOTTEN}
    return known | {
        "first_index_by_call_id": {
            key: index
            for key, index in branch.history.first_index_by_call_id.items()
            if index < len(branch.history.sized_messages)
        }
    }


def said(messages):
    """Return the entries of plain messages."""
    return [
        Entry(f"m{index}", None, MessageEntry(build_sized_message(message)), index)
        for index, message in enumerate(messages)
    ]


@given(log_strategy(), st.data())
def test_a_branch_that_a_store_resumes_goes_on_like_one_that_is_built(entries, data):
    """However often it is opened meanwhile: what gave way is not read, and nothing that stands differs."""
    store, done = MemoryStore(), 0
    store.create_session("k")
    while done < len(entries):
        count = data.draw(st.integers(1, 4))
        store.append_entries("k", entries[done : done + count])
        done += count
        resumed, built = store.open_state("k"), ConversationState.from_entries(entries[:done])
        assert [name for name in CHECKPOINT_FIELDS if flatten_state(resumed)[name] != flatten_state(built)[name]] == []
        assert (
            get_valid_measured_request(resumed),
            get_valid_last_answer(resumed),
            compute_prefix_digest(resumed),
        ) == (
            get_valid_measured_request(built),
            get_valid_last_answer(built),
            compute_prefix_digest(built),
        )
        assert [slot.digest for slot in build_projection(resumed)] == [slot.digest for slot in build_projection(built)]
        for name in ("projection_digests", "digests_before"):
            assert [*getattr(resumed.history, name)][built.view.first_kept :] == [*getattr(built.history, name)][
                built.view.first_kept :
            ]


@pytest.mark.parametrize("stop", ["error", "aborted", ""])
def test_an_answer_without_a_word_behind_a_compaction_that_keeps_nothing(stop):
    """It says nothing of the message that gave way before it, and the session opens again."""
    talk = [Message.from_text(role, role) for role in ("user", "assistant")]
    bodies = [
        CompactionEntry(2, Message.from_text("user", "s"), 1),
        RequestEntry("b", 2, "m"),
        AnswerEntry("b", Usage(9, 1), stop),
    ]
    entries = [*said(talk), *[Entry(f"o{index}", None, body, index + 2) for index, body in enumerate(bodies)]]
    linked = [replace(entry, parent=before.id) for before, entry in itertools.pairwise(entries)]
    store = MemoryStore()
    store.create_session("k")
    store.append_entries("k", [entries[0], *linked])
    assert (
        store.open_state("k").history.failed_answer_indexes
        == ConversationState.from_entries(entries).history.failed_answer_indexes
        == ()
    )


@given(log_strategy(), st.integers(0, 60))
def test_building_at_once_is_extending_one_by_one(entries, cut):
    """Any two ways of folding the same log give equal branches."""
    half = ConversationState.from_entries(entries[:cut])
    for entry in entries[cut:]:
        half = apply_entry(half, entry)
    assert state(half) == state(ConversationState.from_entries(entries))


@given(log_strategy())
def test_a_dumped_branch_comes_back(entries):
    """``load(dump(branch))`` is the same branch, and it grows in the same way."""
    half = len(entries) // 2
    branch = ConversationState.from_entries(entries[:half])
    settled = NormalizedPrefix(Dialect("anthropic"), 1, 1, (Edit(Span(0, 1), (Message.from_text("user", "x"),)),))
    branch = replace(branch, view=replace(branch.view, normalized_prefix=settled))
    again = ConversationState.load(branch.dump())
    assert again == branch
    assert again.dump() == branch.dump()
    for entry in entries[half:]:
        again, branch = apply_entry(again, entry), apply_entry(branch, entry)
    assert again == branch


@given(wild_history_strategy())
def test_any_message_survives_a_dump(messages):
    """NUL bytes, lone surrogates and wire bytes come back as they were."""
    branch = ConversationState.from_entries(said(messages))
    slot = replace(
        build_sized_message(Message("user", (Text("a", None, Raw(b'{"type" : "text"}')),))), raw=Raw(b'{ "role":1}')
    )
    branch = apply_entry(branch, Entry("raw", None, MessageEntry(slot)))
    assert ConversationState.load(branch.dump()) == branch


@pytest.mark.parametrize("cut", [0, 1, 10, -1])
def test_a_damaged_dump_is_a_value_error(cut):
    """Bytes that are no dump raise ``ValueError``, whatever they are."""
    dumped = ConversationState.from_entries(said([Message.from_text("user", "a")])).dump()
    with pytest.raises(ValueError, match=r".+"):
        ConversationState.load(dumped[:cut])


@given(log_strategy(), log_strategy(), st.integers(0, 40))
def test_forks_do_not_disturb_each_other(one, other, cut):
    """Branches grown from a common one stay what they would be if each stood alone, and so does the common one."""
    stem = ConversationState.from_entries(one[:cut])
    before = state(stem)
    left, right = stem, stem
    grown = [[], []]
    for pair in zip([*one[cut:], *other], [*other, *one[cut:]], strict=True):
        left, right = apply_entry(left, pair[0]), apply_entry(right, pair[1])
        grown[0].append(pair[0])
        grown[1].append(pair[1])
    assert state(stem) == before
    assert state(left) == state(ConversationState.from_entries([*one[:cut], *grown[0]]))
    assert state(right) == state(ConversationState.from_entries([*one[:cut], *grown[1]]))


@given(log_strategy(), st.data())
def test_undo_restores_what_was_there(entries, data):
    """A revoked decision or compaction leaves the projection as if it had never been made."""
    made = [entry.id for entry in entries if isinstance(entry.body, DecisionEntry | CompactionEntry)]
    gone = data.draw(st.sampled_from(made)) if made else "none"
    undone = ConversationState.from_entries([*entries, Entry("undo", None, RevokeEntry(gone))])
    never = ConversationState.from_entries([entry for entry in entries if entry.id != gone])
    assert [slot.message for slot in build_projection(undone)] == [slot.message for slot in build_projection(never)]
    for name in ("first_kept", "compaction", "edits", "shown_tokens", "active_decisions"):
        assert getattr(undone.view, name) == getattr(never.view, name)
    assert undone.history.projection_digests == never.history.projection_digests
    assert compute_prefix_digest(undone) == compute_prefix_digest(never)


@st.composite
def decisions(draw, entries):
    """Any decision about some words of ``entries``, or any compaction."""
    branch = ConversationState.from_entries(entries)
    words = [
        at for at, message in enumerate(branch.history.messages) if message.parts and type(message.parts[0]) is Text
    ]
    if words and draw(st.booleans()):
        at = draw(st.sampled_from(words))
        return DecisionEntry((Edit(Span(at, at + 1, 0), (Text("[cut]"),), "test", "", 1),))
    keep = draw(st.integers(branch.view.pinned_count, len(branch.history.sized_messages)))
    return CompactionEntry(keep, draw(st.sampled_from([None, Message.from_text("user", "so far")])), 9)


def counted(entries, tokens):
    """Return the branch of ``entries`` after one more request, which the provider counted at ``tokens``."""
    branch = ConversationState.from_entries(entries)
    request = RequestEntry(compute_prefix_digest(branch), len(branch.history.sized_messages), "m")
    answer = AnswerEntry(request.prefix_digest, Usage(tokens, 10))
    return apply_entry(apply_entry(branch, Entry("asked", None, request)), Entry("told", None, answer))


@given(log_strategy(), st.integers(0, 60_000), st.data())
def test_an_undone_decision_gives_the_figures_from_before(entries, tokens, data):
    """What was decided and taken back since a request was counted changes no size, by no measure."""
    before, decided = counted(entries, tokens), data.draw(decisions(entries))
    after = apply_entry(apply_entry(before, Entry("d", None, decided)), Entry("undo", None, RevokeEntry("d")))
    assert (get_valid_measured_request(after), get_valid_last_answer(after)) == (
        get_valid_measured_request(before),
        get_valid_last_answer(before),
    )
    assert estimate_pi_request(after) == estimate_pi_request(before)
    for place in (Target(model="m"), Target(model="m", setup=before.setup), Target(model="n")):
        sizes = [
            estimate_request_tokens(branch, compute_effective_target(place, branch, Settings()))
            for branch in (before, after)
        ]
        assert sizes[0] == sizes[1]


@given(log_strategy(), st.integers(0, 60_000), st.data())
def test_a_frame_that_nobody_told_does_not_vanish(entries, tokens, data):
    """What a counted request had beside its messages is in the next one too, whatever is decided about those."""
    entries = [entry for entry in entries if not isinstance(entry.body, RequestSetup)]
    before, decided = counted(entries, tokens), data.draw(decisions(entries))
    after = apply_entry(before, Entry("d", None, decided))
    places = [compute_effective_target(Target(model="m"), branch, Settings()) for branch in (before, after)]
    frame, same = map(get_setup_tokens, places)
    assert frame == same
    told = get_valid_measured_request(before)
    if told is not None and not before.view.media_count:
        assert frame >= min(
            told.reported_tokens - round(get_calibrated_ratio(before, places[0]) * told.shown_tokens), 100_000
        )


@given(log_strategy())
def test_undoing_everything_shows_everything(entries):
    """With every decision revoked, the projection is what was said, at the size it was said."""
    branch = ConversationState.from_entries(entries)
    for id_, _ in branch.view.active_decisions:
        branch = apply_entry(branch, Entry("undo", None, RevokeEntry(id_)))
    assert [slot.message for slot in build_projection(branch)] == list(branch.history.messages)
    assert branch.view.shown_tokens == sum(slot.tokens for slot in branch.history.sized_messages)
    assert branch.view.active_decisions == ()


@given(log_strategy())
def test_the_projection_is_measured(entries):
    """``held`` is the sum of the slots shown, and each slot shown says where it came from."""
    branch = ConversationState.from_entries(entries)
    shown = build_projection(branch)
    assert branch.view.shown_tokens == sum(slot.tokens for slot in shown)
    places = list_projection_origins(branch)
    assert len(places) == len(shown)
    assert places == sorted(places, key=lambda place: branch.view.pinned_count - 0.5 if place < 0 else place)
    assert all(place < branch.view.pinned_count or place >= branch.view.first_kept for place in places)
    assert (
        len(branch.history.projection_digests)
        == len(branch.history.digests_before)
        == len(branch.history.cumulative_tokens)
        == len(branch.history.messages)
        == len(branch.history.sized_messages)
    )


@given(log_strategy())
def test_media_are_counted_where_they_are_shown(entries):
    """``media``, ``media_bytes`` and ``pictures`` are those of the projection: what gave way counts no more."""
    branch = ConversationState.from_entries(entries)
    shown = [one for slot in build_projection(branch) for one in collect_media_in_messages(slot.message)]
    assert (branch.view.media_count, branch.view.media_bytes) == (len(shown), sum(one.size for one in shown))
    kept = [
        one
        for index in branch.view.media_indexes
        for message in list_shown_messages_at(branch, index)
        for one in collect_media_in_messages(message)
    ]
    pinned = collect_media_in_messages(*branch.history.messages.slice(0, branch.view.pinned_count))
    assert [*pinned, *kept] == shown
    assert all(collect_media_in_messages(*list_shown_messages_at(branch, index)) for index in branch.view.media_indexes)


@given(log_strategy())
def test_marks_are_those_of_the_projection(entries):
    """The marks carried along are the marks of the same law applied to the same slots from the start."""
    branch = ConversationState.from_entries(entries)
    plain = ConversationState.from_entries(entry for entry in entries if isinstance(entry.body, MessageEntry))
    for id_, what in branch.view.active_decisions:
        plain = apply_entry(plain, Entry(id_, None, what))
    assert (
        list(plain.history.projection_digests)[branch.view.first_kept :]
        == list(branch.history.projection_digests)[branch.view.first_kept :]
    )
    assert compute_prefix_digest(replace(plain, setup=branch.setup)) == compute_prefix_digest(branch)


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
        named.setdefault(compute_prefix_digest(ConversationState.from_entries(said([message]))), []).append(message)
    assert [same for same in named.values() if len(same) > 1] == []


@given(st.lists(st.sampled_from(SMALL), min_size=1, max_size=3))
def test_a_frame_or_a_cut_changes_the_basis(messages):
    """Another frame, a message less or a summary in place of messages is another basis."""
    branch = ConversationState.from_entries(said(messages))
    others = [
        apply_entry(branch, Entry("f", None, RequestSetup("other", 1))),
        ConversationState.from_entries(said(messages[:-1])),
        apply_entry(branch, Entry("c", None, CompactionEntry(len(messages), Message.from_text("user", "s"), 1))),
    ]
    assert compute_prefix_digest(branch) not in {compute_prefix_digest(one) for one in others}


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 3)), max_size=40))
def test_sequences_share_storage_without_sharing_fate(steps):
    """A sequence grown from any earlier one holds what a plain tuple would, whoever else grew from there."""
    grown = [(PersistentSequence(), ())]
    for place, item in steps:
        seq, plain = grown[place % len(grown)]
        grown.append((seq.add(item), (*plain, item)))
    for seq, plain in grown:
        assert (tuple(seq), len(seq), seq.slice(1, 3)) == (plain, len(plain), list(plain[1:3]))
        assert seq == PersistentSequence(plain)
        assert [seq[-1 - index] for index in range(len(plain))] == list(reversed(plain))


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 3)), max_size=40), st.integers(0, 6))
def test_totals_are_those_of_what_a_sequence_holds(steps, start):
    """Asked early, late or of a fork, a total is the sum over the sequence's own items."""
    grown = [PersistentSequence()]
    for place, item in steps:
        seq = grown[place % len(grown)]
        if item == 0:
            assert seq.sum_from(_doubled) == 2 * sum(seq)
        grown.append(seq.add(item))
    for seq in grown:
        assert seq.sum_from(_doubled, start) == 2 * sum(seq.slice(start))


def _doubled(item):
    return 2 * item
