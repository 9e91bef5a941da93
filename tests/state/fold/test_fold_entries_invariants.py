"""However it is folded, the same log gives the same state."""

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

UNCOMPARED_FIELDS = {"normalized_prefix", "first_index_by_call_id"}
"""The first is the planner's cache; the second may hold ids of other branches and is compared separately."""


def flatten_comparable_fields(state):
    """Return the fields of ``state`` that depend on its own log alone."""
    known = {key: value for key, value in asdict(state).items() if key not in UNCOMPARED_FIELDS}
    return known | {
        "first_index_by_call_id": {
            key: index
            for key, index in state.history.first_index_by_call_id.items()
            if index < len(state.history.sized_messages)
        }
    }


def build_entries(messages):
    """Return the entries of plain messages."""
    return [
        Entry(f"m{index}", None, MessageEntry(build_sized_message(message)), index)
        for index, message in enumerate(messages)
    ]


@given(log_strategy(), st.data())
def test_open_state_equals_from_entries_at_every_step(entries, data):
    """A state that a store resumes, however often, equals the one folded from all entries, and reads nothing that was
    hidden.
    """
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
        assert [sized_message.digest for sized_message in build_projection(resumed)] == [
            sized_message.digest for sized_message in build_projection(built)
        ]
        for name in ("projection_digests", "digests_before"):
            assert [*getattr(resumed.history, name)][built.view.first_kept :] == [*getattr(built.history, name)][
                built.view.first_kept :
            ]


@pytest.mark.parametrize("stop", ["error", "aborted", ""])
def test_open_state_after_an_empty_answer_behind_a_full_compaction(stop):
    """An answer without text marks no message hidden before it as failed, and the session opens again."""
    talk = [Message.from_text(role, role) for role in ("user", "assistant")]
    bodies = [
        CompactionEntry(2, Message.from_text("user", "s"), 1),
        RequestEntry("b", 2, "m"),
        AnswerEntry("b", Usage(9, 1), stop),
    ]
    entries = [*build_entries(talk), *[Entry(f"o{index}", None, body, index + 2) for index, body in enumerate(bodies)]]
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
def test_from_entries_equals_apply_entry_one_by_one(entries, cut):
    """Any two ways of folding the same log give equal states."""
    half = ConversationState.from_entries(entries[:cut])
    for entry in entries[cut:]:
        half = apply_entry(half, entry)
    assert flatten_comparable_fields(half) == flatten_comparable_fields(ConversationState.from_entries(entries))


@given(log_strategy())
def test_load_restores_a_dumped_state(entries):
    """``load(state.dump())`` is the same state, and it grows in the same way."""
    half = len(entries) // 2
    state = ConversationState.from_entries(entries[:half])
    settled = NormalizedPrefix(Dialect("anthropic"), 1, 1, (Edit(Span(0, 1), (Message.from_text("user", "x"),)),))
    state = replace(state, view=replace(state.view, normalized_prefix=settled))
    again = ConversationState.load(state.dump())
    assert again == state
    assert again.dump() == state.dump()
    for entry in entries[half:]:
        again, state = apply_entry(again, entry), apply_entry(state, entry)
    assert again == state


@given(wild_history_strategy())
def test_dump_keeps_any_message(messages):
    """NUL bytes, lone surrogates and wire bytes come back unchanged."""
    state = ConversationState.from_entries(build_entries(messages))
    sized_message = replace(
        build_sized_message(Message("user", (Text("a", None, Raw(b'{"type" : "text"}')),))), raw=Raw(b'{ "role":1}')
    )
    state = apply_entry(state, Entry("raw", None, MessageEntry(sized_message)))
    assert ConversationState.load(state.dump()) == state


@pytest.mark.parametrize("cut", [0, 1, 10, -1])
def test_load_rejects_a_truncated_dump(cut):
    """Bytes that are no dump raise ``ValueError``, whatever they are."""
    dumped = ConversationState.from_entries(build_entries([Message.from_text("user", "a")])).dump()
    with pytest.raises(ValueError, match=r".+"):
        ConversationState.load(dumped[:cut])


@given(log_strategy(), log_strategy(), st.integers(0, 40))
def test_apply_entry_keeps_forks_independent(entries, other_entries, cut):
    """States grown from a common one stay what each would be alone, and so does the common one."""
    stem = ConversationState.from_entries(entries[:cut])
    before = flatten_comparable_fields(stem)
    left, right = stem, stem
    grown = [[], []]
    for pair in zip([*entries[cut:], *other_entries], [*other_entries, *entries[cut:]], strict=True):
        left, right = apply_entry(left, pair[0]), apply_entry(right, pair[1])
        grown[0].append(pair[0])
        grown[1].append(pair[1])
    assert flatten_comparable_fields(stem) == before
    assert flatten_comparable_fields(left) == flatten_comparable_fields(
        ConversationState.from_entries([*entries[:cut], *grown[0]])
    )
    assert flatten_comparable_fields(right) == flatten_comparable_fields(
        ConversationState.from_entries([*entries[:cut], *grown[1]])
    )


@given(log_strategy(), st.data())
def test_revoke_restores_the_projection(entries, data):
    """A revoked decision or compaction leaves the projection as if it had never been made."""
    made = [entry.id for entry in entries if isinstance(entry.body, DecisionEntry | CompactionEntry)]
    revoked_id = data.draw(st.sampled_from(made)) if made else "none"
    undone = ConversationState.from_entries([*entries, Entry("undo", None, RevokeEntry(revoked_id))])
    never = ConversationState.from_entries([entry for entry in entries if entry.id != revoked_id])
    assert [sized_message.message for sized_message in build_projection(undone)] == [
        sized_message.message for sized_message in build_projection(never)
    ]
    for name in ("first_kept", "compaction", "edits", "shown_tokens", "active_decisions"):
        assert getattr(undone.view, name) == getattr(never.view, name)
    assert undone.history.projection_digests == never.history.projection_digests
    assert compute_prefix_digest(undone) == compute_prefix_digest(never)


@st.composite
def decision_strategy(draw, entries):
    """Any decision about some words of ``entries``, or any compaction."""
    state = ConversationState.from_entries(entries)
    words = [
        at for at, message in enumerate(state.history.messages) if message.parts and type(message.parts[0]) is Text
    ]
    if words and draw(st.booleans()):
        at = draw(st.sampled_from(words))
        return DecisionEntry((Edit(Span(at, at + 1, 0), (Text("[cut]"),), "test", "", 1),))
    keep = draw(st.integers(state.view.pinned_count, len(state.history.sized_messages)))
    return CompactionEntry(keep, draw(st.sampled_from([None, Message.from_text("user", "so far")])), 9)


def build_counted_state(entries, tokens):
    """Build the state of ``entries`` after one more request, which the provider counted at ``tokens``."""
    state = ConversationState.from_entries(entries)
    request = RequestEntry(compute_prefix_digest(state), len(state.history.sized_messages), "m")
    answer = AnswerEntry(request.prefix_digest, Usage(tokens, 10))
    return apply_entry(apply_entry(state, Entry("asked", None, request)), Entry("answered", None, answer))


@given(log_strategy(), st.integers(0, 60_000), st.data())
def test_revoke_restores_token_estimates(entries, tokens, data):
    """A decision made and undone since a request was counted changes no size, by any estimate."""
    before, decided = build_counted_state(entries, tokens), data.draw(decision_strategy(entries))
    after = apply_entry(apply_entry(before, Entry("d", None, decided)), Entry("undo", None, RevokeEntry("d")))
    assert (get_valid_measured_request(after), get_valid_last_answer(after)) == (
        get_valid_measured_request(before),
        get_valid_last_answer(before),
    )
    assert estimate_pi_request(after) == estimate_pi_request(before)
    for place in (Target(model="m"), Target(model="m", setup=before.setup), Target(model="n")):
        sizes = [
            estimate_request_tokens(state, compute_effective_target(place, state, Settings()))
            for state in (before, after)
        ]
        assert sizes[0] == sizes[1]


@given(log_strategy(), st.integers(0, 60_000), st.data())
def test_unknown_setup_tokens_survive_decisions(entries, tokens, data):
    """What a counted request had besides its messages is part of the next one too, whatever is decided about the
    messages.
    """
    entries = [entry for entry in entries if not isinstance(entry.body, RequestSetup)]
    before, decided = build_counted_state(entries, tokens), data.draw(decision_strategy(entries))
    after = apply_entry(before, Entry("d", None, decided))
    places = [compute_effective_target(Target(model="m"), state, Settings()) for state in (before, after)]
    setup, same = map(get_setup_tokens, places)
    assert setup == same
    measured = get_valid_measured_request(before)
    if measured is not None and not before.view.media_count:
        assert setup >= min(
            measured.reported_tokens - round(get_calibrated_ratio(before, places[0]) * measured.shown_tokens), 100_000
        )


@given(log_strategy())
def test_revoke_of_every_decision_shows_the_whole_history(entries):
    """With every decision revoked, the projection is the history at its original size."""
    state = ConversationState.from_entries(entries)
    for id_, _ in state.view.active_decisions:
        state = apply_entry(state, Entry("undo", None, RevokeEntry(id_)))
    assert [sized_message.message for sized_message in build_projection(state)] == list(state.history.messages)
    assert state.view.shown_tokens == sum(sized_message.tokens for sized_message in state.history.sized_messages)
    assert state.view.active_decisions == ()


@given(log_strategy())
def test_shown_tokens_is_the_sum_of_the_projection(entries):
    """``shown_tokens`` is the sum of the messages shown, and each message shown has an origin."""
    state = ConversationState.from_entries(entries)
    shown = build_projection(state)
    assert state.view.shown_tokens == sum(sized_message.tokens for sized_message in shown)
    places = list_projection_origins(state)
    assert len(places) == len(shown)
    assert places == sorted(places, key=lambda place: state.view.pinned_count - 0.5 if place < 0 else place)
    assert all(place < state.view.pinned_count or place >= state.view.first_kept for place in places)
    assert (
        len(state.history.projection_digests)
        == len(state.history.digests_before)
        == len(state.history.cumulative_tokens)
        == len(state.history.messages)
        == len(state.history.sized_messages)
    )


@given(log_strategy())
def test_media_counts_match_the_projection(entries):
    """``media_count``, ``media_bytes`` and ``media_indexes`` are those of the projection: hidden media do not count."""
    state = ConversationState.from_entries(entries)
    shown = [
        media for sized_message in build_projection(state) for media in collect_media_in_messages(sized_message.message)
    ]
    assert (state.view.media_count, state.view.media_bytes) == (len(shown), sum(media.size for media in shown))
    kept = [
        media
        for index in state.view.media_indexes
        for message in list_shown_messages_at(state, index)
        for media in collect_media_in_messages(message)
    ]
    pinned = collect_media_in_messages(*state.history.messages.slice(0, state.view.pinned_count))
    assert [*pinned, *kept] == shown
    assert all(collect_media_in_messages(*list_shown_messages_at(state, index)) for index in state.view.media_indexes)


@given(log_strategy())
def test_projection_digests_equal_those_of_a_fresh_fold(entries):
    """The digests carried along are those of the same decisions applied to the same messages from the start."""
    state = ConversationState.from_entries(entries)
    plain = ConversationState.from_entries(entry for entry in entries if isinstance(entry.body, MessageEntry))
    for id_, what in state.view.active_decisions:
        plain = apply_entry(plain, Entry(id_, None, what))
    assert (
        list(plain.history.projection_digests)[state.view.first_kept :]
        == list(state.history.projection_digests)[state.view.first_kept :]
    )
    assert compute_prefix_digest(replace(plain, setup=state.setup)) == compute_prefix_digest(state)


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
SMALL_MESSAGES = [
    Message(role, parts)
    for role in ("user", "assistant")
    for parts in [(), *((part,) for part in PARTS), *itertools.product(PARTS, PARTS)]
]


def test_compute_prefix_digest_differs_for_different_messages():
    """Requests with one digest show the same: roles, kinds of parts, borders between them, error flags and words."""
    named = {}
    for message in SMALL_MESSAGES:
        named.setdefault(compute_prefix_digest(ConversationState.from_entries(build_entries([message]))), []).append(
            message
        )
    assert [same for same in named.values() if len(same) > 1] == []


@given(st.lists(st.sampled_from(SMALL_MESSAGES), min_size=1, max_size=3))
def test_compute_prefix_digest_changes_with_setup_cut_or_summary(messages):
    """Another setup, one message less or a summary in place of messages gives another digest."""
    state = ConversationState.from_entries(build_entries(messages))
    others = [
        apply_entry(state, Entry("f", None, RequestSetup("other", 1))),
        ConversationState.from_entries(build_entries(messages[:-1])),
        apply_entry(state, Entry("c", None, CompactionEntry(len(messages), Message.from_text("user", "s"), 1))),
    ]
    assert compute_prefix_digest(state) not in {compute_prefix_digest(other) for other in others}


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 3)), max_size=40))
def test_persistent_sequence_versions_are_independent(steps):
    """A sequence grown from any earlier one holds what a plain tuple would, whatever else grew from there."""
    grown = [(PersistentSequence(), ())]
    for place, item in steps:
        seq, plain = grown[place % len(grown)]
        grown.append((seq.add(item), (*plain, item)))
    for seq, plain in grown:
        assert (tuple(seq), len(seq), seq.slice(1, 3)) == (plain, len(plain), list(plain[1:3]))
        assert seq == PersistentSequence(plain)
        assert [seq[-1 - index] for index in range(len(plain))] == list(reversed(plain))


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 3)), max_size=40), st.integers(0, 6))
def test_persistent_sequence_sum_from_covers_its_own_items(steps, start):
    """Computed early, late or of a fork, a total is the sum over the sequence's own items."""
    grown = [PersistentSequence()]
    for place, item in steps:
        seq = grown[place % len(grown)]
        if item == 0:
            assert seq.sum_from(double) == 2 * sum(seq)
        grown.append(seq.add(item))
    for seq in grown:
        assert seq.sum_from(double, start) == 2 * sum(seq.slice(start))


def double(item):
    return 2 * item
