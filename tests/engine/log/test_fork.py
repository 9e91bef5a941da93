"""What is decided and what is undone stands wherever a conversation goes on beside its log."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis_strategies import log_strategy
from msgspec.structs import replace
from sample_entries import SAMPLE_KEY

from holdfast.engine.log.fork import MAX_RATIO_DIFFERENCE, collect_decisions_to_copy, rebase_entry_body
from holdfast.engine.log.journal import Journal
from holdfast.messages.message import Message
from holdfast.messages.parts import Media, Text, ToolCall, ToolResult
from holdfast.messages.size.tokens import build_sized_message
from holdfast.planning.budget import compute_effective_target
from holdfast.planning.pipeline import Policy
from holdfast.state.calibration.calibration import ModelStats
from holdfast.state.calibration.model_stats import get_model_stats, list_nonempty_model_stats
from holdfast.state.calibration.token_estimate import get_calibrated_ratio
from holdfast.state.conversation_state import ConversationState, MeasuredUsage
from holdfast.state.edits import Edit, Span
from holdfast.state.entries import (
    NOTE_MODEL_STATS,
    TRIGGER_HISTORY,
    CompactionEntry,
    DecisionEntry,
    Entry,
    MessageEntry,
    NoteEntry,
    RequestEntry,
    RequestSetup,
    RevokeEntry,
    Usage,
)
from holdfast.state.fold.rewind import clip_decision, rewind_state
from holdfast.state.view import build_projection
from holdfast.store.memory import MemoryStore

LONG = "\n".join(f"line {number} of a long output" for number in range(5_000))
GO, CALL = Message.from_text("user", "go"), Message("assistant", (ToolCall("c1", "bash", "{}"),))
RESULT = Message("tool", (ToolResult("c1", "bash", (Text(LONG),)),))
SEEN, MORE = Message.from_text("assistant", "seen"), Message.from_text("user", "tell me more")


def parted(path, count):
    """Return the entries of a branch that parts from ``path`` before message ``count`` was said."""
    start = [at for at, entry in enumerate(path) if isinstance(entry.body, MessageEntry)][count]
    beside, ids = list(path[:start]), {}
    for one in collect_decisions_to_copy(ConversationState.from_entries(path), path, start, count):
        ids[one.id] = f"{one.id}'"
        parent = beside[-1].id if beside else None
        beside.append(Entry(ids[one.id], parent, rebase_entry_body(one.body, "b", ids)))
    return beside


def undone(path, count):
    """Return what was brought back of the first ``count`` slots, part by part, as ``path`` tells it."""
    found, law = defaultdict(set), {}
    for entry in path:
        if isinstance(entry.body, DecisionEntry | CompactionEntry):
            law[entry.id] = entry.body
        elif isinstance(entry.body, RevokeEntry) and entry.body.revoked_id in law:
            for edit in law.pop(entry.body.revoked_id).edits:
                if edit.span.stop <= count:
                    for slot in range(edit.span.start, edit.span.stop):
                        found[slot].add(edit.span.part)
    return found


def limiting(entries):
    """Return the log with limits of turns in place of compactions that nobody wrote a summary for."""
    bare = [isinstance(one.body, CompactionEntry) and one.body.summary is None for one in entries]
    return [
        replace(one, body=replace(one.body, trigger=TRIGGER_HISTORY)) if is_bare else one
        for one, is_bare in zip(entries, bare, strict=True)
    ]


@given(log_strategy().map(limiting))
def test_whatever_was_decided_or_undone_stands_at_every_parting(path):
    """In force there is the part about what both say, and no more; brought back is what was; again on a second one."""
    before = ConversationState.from_entries(path)
    for count in range(len(before.history.sized_messages)):
        beside = parted(path, count)
        after = ConversationState.from_entries(beside)
        law = [clip_decision(body, count) for _, body in before.view.active_decisions]
        assert [body for _, body in after.view.active_decisions] == [body for body in law if body is not None]
        assert {slot: {*parts} for slot, parts in after.view.protected_parts.items()} == undone(path, count)
        assert after.view.turn_limit_start == min(before.view.turn_limit_start, count)
        more = [Entry("m", beside[-1].id if beside else None, MessageEntry(build_sized_message(MORE)))]
        again = ConversationState.from_entries(parted([*beside, *more], count))
        assert (again.view.active_decisions, again.view.protected_parts, again.view.turn_limit_start) == (
            after.view.active_decisions,
            after.view.protected_parts,
            after.view.turn_limit_start,
        )


@given(log_strategy().map(limiting))
def test_a_branch_that_is_cut_back_has_the_same_law(path):
    """Who only looks at the first messages is shown what a branch would be that parts there."""
    before = ConversationState.from_entries(path)
    for count in range(len(before.history.sized_messages)):
        beside, looked = ConversationState.from_entries(parted(path, count)), rewind_state(before, count)
        assert [body for _, body in looked.view.active_decisions] == [body for _, body in beside.view.active_decisions]
        assert build_projection(looked) == build_projection(beside)


def test_a_summary_stands_whatever_was_decided_with_it_about_what_is_behind():
    """Of a compaction goes what is about messages that are no more; what it summed up does not come back."""
    said = [
        MessageEntry(build_sized_message(Message.from_text(role, role)))
        for role in ("user", "assistant", "user", "assistant")
    ]
    made = CompactionEntry(1, Message.from_text("user", "sum"), 3, BOTH.edits)
    path = [Entry(str(at), str(at - 1) if at else None, body) for at, body in enumerate([*said, made])]
    kept = replace(made, edits=CUT.edits)
    assert [body for _, body in ConversationState.from_entries(parted(path, 3)).view.active_decisions] == [kept]
    assert [body for _, body in rewind_state(ConversationState.from_entries(path), 3).view.active_decisions] == [kept]


CUT = DecisionEntry((Edit(Span(1, 2, 0), (Text("-"),), "r", "w", 1),))
BOTH = DecisionEntry((*CUT.edits, Edit(Span(3, 4, 0), (Text("-"),), "r", "w", 1)))
GAVE_WAY = CompactionEntry(3, Message.from_text("user", "sum"), 3, CUT.edits)
OF_TWO = {
    "before the parting": (["d", "|", "-d"], ["-d"], {1}),
    "behind it": (["|", "d", "-d"], [CUT, "-d"], {1}),
    "a part of it": (["|", "both", "-both"], [CUT, "-both"], {1}),
    "taken again": (["d", "|", "-d", "e"], ["-d", CUT], {1}),
    "taken again and undone": (["d", "|", "-d", "e", "-e"], ["-d", CUT, "-e"], {1}),
    "one of two": (["d", "e", "|", "-e"], ["-e"], {1}),
    "undone before it": (["d", "-d", "|"], [], {1}),
    "a compaction behind it": (["|", "sum", "-sum"], [CUT, "-sum"], {1}),
    "a request showed it again": (
        ["d", "|", "asked", "-d", "asked"],
        [RequestEntry("", 2), "-d", RequestEntry("", 2)],
        {1},
    ),
}
"""What is told around the parting behind two messages, what is carried along, and which slots were brought back."""
BODIES = {"d": CUT, "e": CUT, "both": BOTH, "sum": GAVE_WAY, "asked": RequestEntry("x", 4)}


@pytest.mark.parametrize("name", OF_TWO)
def test_an_undo_is_carried(name):
    """As the undo alone where what it undid stands before the parting, else with that."""
    told, expected, back = OF_TWO[name]
    said = [
        MessageEntry(build_sized_message(Message.from_text(role, role)))
        for role in ("user", "assistant", "user", "assistant")
    ]
    path = [Entry("0", None, said[0]), Entry("1", "0", said[1])]
    for number, one in enumerate(told):
        bodies = {"|": said[2:]}.get(one) or [BODIES.get(one) or RevokeEntry(one[1:])]
        path += [Entry(one if one in BODIES else f"{number}.{at}", path[-1].id, body) for at, body in enumerate(bodies)]
    start = next(at for at, entry in enumerate(path) if entry.body is said[2])
    found = [entry.body for entry in collect_decisions_to_copy(ConversationState.from_entries(path), path, start, 2)]
    assert found == [RevokeEntry(one[1:]) if isinstance(one, str) else one for one in expected]
    assert {*ConversationState.from_entries(parted(path, 2)).view.protected_parts} == back


@pytest.mark.parametrize(
    "said", [[MORE], [Message.from_text("user", "other")], []], ids=["again", "edited", "left out"]
)
def test_a_client_that_leaves_out_its_last_answer_keeps_what_it_undid(said, store, anthropic):
    """A text that an undo brought back stays whole where the client asks again, or says something else."""
    wide = replace(anthropic, limits=replace(anthropic.limits, window=200_000))
    journal, past = Journal.open(store, SAMPLE_KEY), [GO, CALL, RESULT, SEEN]
    journal.append(*past[:3])
    assert journal.prepare_request(wide).plan.record
    journal.append(*past[3:], MORE)
    journal.record_answer(Message.from_text("assistant", "more"))
    journal.undo()
    other = Journal.open(store, SAMPLE_KEY)
    for one in (journal, other):
        one.follow_conversation([build_sized_message(message) for message in [*(past if said else past[:3]), *said]])
        prepared = one.prepare_request(wide)
        assert prepared.plan.record == ()
        assert RESULT in [slot.message for slot in prepared.messages]


def test_what_is_only_looked_at_keeps_what_was_undone(store, anthropic):
    """A client's own compaction, planned in a copy and forgotten, leaves out no picture that an undo brought back."""
    policy = Policy().with_settings(media={"max_count": 4})
    journal = Journal.open(store, SAMPLE_KEY, policy)
    for number in range(5):
        picture = Media("image", "image/png", 300, "", "A" * (400 + 4 * number))
        journal.append(Message("user", (Text(f"look {number}"), picture)))
        assert bool(journal.prepare_request(anthropic).plan.record) == (number == 4)
        journal.record_answer(SEEN)
    journal.undo()
    copy = MemoryStore()
    copy.import_entries(SAMPLE_KEY, store.read_path(SAMPLE_KEY, journal.leaf))
    beside = Journal.open(copy, SAMPLE_KEY, policy)
    beside.follow_conversation([*journal.state.history.sized_messages.slice(), build_sized_message(MORE)])
    assert beside.prepare_request(anthropic).plan.record == ()


# -- what was learned --------------------------------------------------------------------------------------------------

WORDS = "the tide takes the harbour wall twice a day and nobody minds it " * 50


def talked(store, *places, turns=4):
    """Return a journal whose models, asked in turn, count far more than is estimated, and what was said there."""
    journal, said = Journal.open(store, SAMPLE_KEY), []
    for number in range(turns):
        prepared = journal.prepare_request(places[number % len(places)]) if said else None
        if prepared is not None:
            said.append(Message.from_text("assistant", f"{number} {WORDS}"))
            journal.record_answer(said[-1], Usage(2 * prepared.plan.state.last_request.tokens, 100))
        said.append(Message.from_text("user", f"{number} {WORDS}"))
        journal.append(said[-1])
    journal.prepare_request(places[turns % len(places)])
    return journal, said


def parting(journal, said, count, word="other"):
    """Let ``journal`` go on with another message behind the first ``count`` that were ``said``."""
    journal.follow_conversation([build_sized_message(one) for one in [*said[:count], Message.from_text("user", word)]])


def notes(store, journal):
    return [
        one.body
        for one in store.read_path(SAMPLE_KEY, journal.leaf)
        if isinstance(one.body, NoteEntry) and one.body.reason == NOTE_MODEL_STATS
    ]


@pytest.mark.parametrize(
    "told", [{}, {"limit": 30_000}, {"requested_tokens": 45_000}, {"limit": 30_000, "requested_tokens": 45_000}]
)
@pytest.mark.parametrize("count", range(7))
def test_what_was_learned_of_a_model_counts_wherever_a_conversation_parts(count, told, store, anthropic):
    """Its window and how it counts are those of before from the first request on, also after a restart."""
    wide = replace(anthropic, limits=replace(anthropic.limits, window=200_000))
    journal, said = talked(store, wide)
    journal.record_overflow("too large", **told)
    window = compute_effective_target(wide, journal.state, journal.policy.settings).limits.window
    before = get_model_stats(journal.state, wide.model)
    parting(journal, said, count)
    again = Journal.open(store, SAMPLE_KEY, leaf=journal.leaf)
    for one in (journal, again):
        known = get_model_stats(one.state, wide.model)
        assert replace(known.learned_limits, overflows_since_answer=0) == replace(
            before.learned_limits, overflows_since_answer=0
        )
        assert get_calibrated_ratio(one.state, wide) == pytest.approx(
            get_calibrated_ratio(
                replace(one.state, usage=replace(one.state.usage, calibration=before.calibration)), wide
            ),
            abs=MAX_RATIO_DIFFERENCE,
        )
        assert compute_effective_target(wide, one.state, one.policy.settings).limits.window == pytest.approx(
            window, rel=0.1
        )
        assert list_nonempty_model_stats(one.prepare_request(wide).plan.state) == (
            replace(known, model=wide.model, window=200_000),
        )


def test_what_was_learned_of_each_model_is_told_once_where_a_conversation_parts(store, anthropic):
    """Branch after branch from one place, and one in its midst, tell no more than what is new."""
    anthropic = replace(anthropic, setup=RequestSetup("f", 1_000, is_exact=True))
    other = replace(anthropic, model="claude-opus-4-5")
    journal, said = talked(store, anthropic, other)
    before = list_nonempty_model_stats(journal.state)
    assert [known.model for known in before] == [other.model, anthropic.model]
    for number in range(3):
        parting(journal, said, 0, f"another {number}")
        assert list_nonempty_model_stats(journal.state) == before
    assert len(notes(store, journal)) == 1
    journal.prepare_request(other)
    journal.record_overflow("too large", 20_000)
    parting(journal, said, 0, "the last")
    assert get_model_stats(journal.state, other.model).learned_limits.window_limit == 20_000
    assert get_model_stats(journal.state, anthropic.model) == get_model_stats(
        ConversationState(usage=MeasuredUsage(other_model_stats=before)), anthropic.model
    )


def test_a_window_that_was_forgotten_stays_so_where_a_conversation_parts(store, anthropic):
    """What taught it before is not known there, also where that was told before the parting; what taught since is."""
    journal, said = talked(store, anthropic)
    journal.record_overflow("too large", 30_000)
    said += [Message.from_text("assistant", "hm"), Message.from_text("user", "on")]
    journal.append(*said[-2:])
    count = len(said) - 1
    journal.forget_learned_window()
    parting(journal, said, count)
    assert get_model_stats(journal.state, anthropic.model).learned_limits.window_limit == 0
    assert Journal.open(store, SAMPLE_KEY, leaf=journal.leaf).state.usage.learned_limits.window_limit == 0
    journal.prepare_request(anthropic)
    journal.record_overflow("too large", 40_000)
    parting(journal, said, count, "another")
    assert get_model_stats(journal.state, anthropic.model).learned_limits.window_limit == 40_000


def test_who_learned_nothing_tells_nothing(store, anthropic):
    """A conversation that parts from one without an answer is told no note."""
    journal, said = talked(store, anthropic, turns=1)
    parting(journal, said, 0)
    assert notes(store, journal) == []
    assert get_model_stats(journal.state, anthropic.model) == ModelStats("")
