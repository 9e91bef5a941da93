"""Forks: decisions, undos and learned limits that a new branch takes over from the one it leaves."""

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
ANSWER, NEXT_QUESTION = Message.from_text("assistant", "seen"), Message.from_text("user", "tell me more")


def fork_path(path, count):
    """Return the entries of a branch that leaves ``path`` before its message number ``count``."""
    start = [index for index, entry in enumerate(path) if isinstance(entry.body, MessageEntry)][count]
    branch, ids = list(path[:start]), {}
    for copied in collect_decisions_to_copy(ConversationState.from_entries(path), path, start, count):
        ids[copied.id] = f"{copied.id}'"
        parent = branch[-1].id if branch else None
        branch.append(Entry(ids[copied.id], parent, rebase_entry_body(copied.body, "b", ids)))
    return branch


def collect_undone_parts(path, count):
    """Return the parts that undos in ``path`` restored, by message, for the first ``count`` messages."""
    decisions, undone = {}, {}
    for entry in path:
        if isinstance(entry.body, DecisionEntry | CompactionEntry):
            decisions[entry.id] = entry.body
        elif isinstance(entry.body, RevokeEntry):
            source, target = (undone, decisions) if entry.body.is_restored else (decisions, undone)
            if entry.body.revoked_id in source:
                target[entry.body.revoked_id] = source.pop(entry.body.revoked_id)
    parts_by_message = defaultdict(set)
    for decision in undone.values():
        for edit in decision.edits:
            if edit.span.stop <= count:
                for index in range(edit.span.start, edit.span.stop):
                    parts_by_message[index].add(edit.span.part)
    return parts_by_message


def make_turn_limits(entries):
    """Return the log with every compaction without a summary turned into a turn limit."""
    is_bare_by_entry = [isinstance(entry.body, CompactionEntry) and entry.body.summary is None for entry in entries]
    return [
        replace(entry, body=replace(entry.body, trigger=TRIGGER_HISTORY)) if is_bare else entry
        for entry, is_bare in zip(entries, is_bare_by_entry, strict=True)
    ]


@given(log_strategy().map(make_turn_limits))
def test_fork_keeps_decisions_and_undos_at_every_fork_point(path):
    """A fork has the decisions about its own messages and the restored parts, and so has a fork of the fork."""
    before = ConversationState.from_entries(path)
    for count in range(len(before.history.sized_messages)):
        branch = fork_path(path, count)
        after = ConversationState.from_entries(branch)
        clipped = [clip_decision(body, count) for _, body in before.view.active_decisions]
        assert [body for _, body in after.view.active_decisions] == [body for body in clipped if body is not None]
        assert {index: {*parts} for index, parts in after.view.protected_parts.items()} == collect_undone_parts(
            path, count
        )
        assert after.view.turn_limit_start == min(before.view.turn_limit_start, count)
        next_entry = [Entry("m", branch[-1].id if branch else None, MessageEntry(build_sized_message(NEXT_QUESTION)))]
        again = ConversationState.from_entries(fork_path([*branch, *next_entry], count))
        assert (again.view.active_decisions, again.view.protected_parts, again.view.turn_limit_start) == (
            after.view.active_decisions,
            after.view.protected_parts,
            after.view.turn_limit_start,
        )


@given(log_strategy().map(make_turn_limits))
def test_rewind_state_equals_a_fork_at_the_same_point(path):
    """Looking at the first messages alone shows the same decisions and view as a branch that leaves there."""
    before = ConversationState.from_entries(path)
    for count in range(len(before.history.sized_messages)):
        forked, rewound = ConversationState.from_entries(fork_path(path, count)), rewind_state(before, count)
        assert [body for _, body in rewound.view.active_decisions] == [body for _, body in forked.view.active_decisions]
        assert build_projection(rewound) == build_projection(forked)


def test_fork_keeps_a_compaction_without_its_edits_of_later_messages():
    """Edits of messages behind the fork point are dropped; the summary and its hidden messages stay."""
    messages = [
        MessageEntry(build_sized_message(Message.from_text(role, role)))
        for role in ("user", "assistant", "user", "assistant")
    ]
    compaction = CompactionEntry(1, Message.from_text("user", "sum"), 3, BOTH.edits)
    path = [Entry(str(at), str(at - 1) if at else None, body) for at, body in enumerate([*messages, compaction])]
    clipped = replace(compaction, edits=CUT.edits)
    assert [body for _, body in ConversationState.from_entries(fork_path(path, 3)).view.active_decisions] == [clipped]
    assert [body for _, body in rewind_state(ConversationState.from_entries(path), 3).view.active_decisions] == [
        clipped
    ]


CUT = DecisionEntry((Edit(Span(1, 2, 0), (Text("-"),), "r", "w", 1),))
BOTH = DecisionEntry((*CUT.edits, Edit(Span(3, 4, 0), (Text("-"),), "r", "w", 1)))
COMPACTION = CompactionEntry(3, Message.from_text("user", "sum"), 3, CUT.edits)
UNDO_CASES = {
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
"""Entries around a fork behind two messages, the bodies that are copied, and the messages with restored parts."""
BODIES = {"d": CUT, "e": CUT, "both": BOTH, "sum": COMPACTION, "asked": RequestEntry("x", 4)}


@pytest.mark.parametrize("case", UNDO_CASES)
def test_collect_decisions_to_copy_copies_undos(case):
    """An undo is copied alone when the decision it revokes lies before the fork, else with that decision."""
    names, expected, restored = UNDO_CASES[case]
    messages = [
        MessageEntry(build_sized_message(Message.from_text(role, role)))
        for role in ("user", "assistant", "user", "assistant")
    ]
    path = [Entry("0", None, messages[0]), Entry("1", "0", messages[1])]
    for number, name in enumerate(names):
        bodies = {"|": messages[2:]}.get(name) or [BODIES.get(name) or RevokeEntry(name[1:])]
        path += [
            Entry(name if name in BODIES else f"{number}.{at}", path[-1].id, body) for at, body in enumerate(bodies)
        ]
    start = next(at for at, entry in enumerate(path) if entry.body is messages[2])
    copied = [entry.body for entry in collect_decisions_to_copy(ConversationState.from_entries(path), path, start, 2)]
    assert copied == [RevokeEntry(body[1:]) if isinstance(body, str) else body for body in expected]
    assert {*ConversationState.from_entries(fork_path(path, 2)).view.protected_parts} == restored


@pytest.mark.parametrize(
    "new_messages", [[NEXT_QUESTION], [Message.from_text("user", "other")], []], ids=["again", "edited", "left out"]
)
def test_follow_conversation_keeps_an_undo_when_the_client_drops_the_last_answer(new_messages, store, anthropic):
    """A restored text stays whole when the client asks again or says something else."""
    wide_target = replace(anthropic, limits=replace(anthropic.limits, window=200_000))
    journal, history = Journal.open(store, SAMPLE_KEY), [GO, CALL, RESULT, ANSWER]
    journal.append(*history[:3])
    assert journal.prepare_request(wide_target).plan.record
    journal.append(*history[3:], NEXT_QUESTION)
    journal.record_answer(Message.from_text("assistant", "more"))
    journal.undo()
    other = Journal.open(store, SAMPLE_KEY)
    for branch in (journal, other):
        branch.follow_conversation(
            [build_sized_message(message) for message in [*(history if new_messages else history[:3]), *new_messages]]
        )
        prepared = branch.prepare_request(wide_target)
        assert prepared.plan.record == ()
        assert RESULT in [slot.message for slot in prepared.messages]


def test_follow_conversation_in_a_copied_store_keeps_an_undo(store, anthropic):
    """A client's own compaction, planned in a copy of the log, drops no image that an undo restored."""
    policy = Policy().with_settings(media={"max_count": 4})
    journal = Journal.open(store, SAMPLE_KEY, policy)
    for number in range(5):
        picture = Media("image", "image/png", 300, "", "A" * (400 + 4 * number))
        journal.append(Message("user", (Text(f"look {number}"), picture)))
        assert bool(journal.prepare_request(anthropic).plan.record) == (number == 4)
        journal.record_answer(ANSWER)
    journal.undo()
    copied_store = MemoryStore()
    copied_store.import_entries(SAMPLE_KEY, store.read_path(SAMPLE_KEY, journal.leaf))
    copied_journal = Journal.open(copied_store, SAMPLE_KEY, policy)
    copied_journal.follow_conversation(
        [*journal.state.history.sized_messages.slice(), build_sized_message(NEXT_QUESTION)]
    )
    assert copied_journal.prepare_request(anthropic).plan.record == ()


# -- learned limits ----------------------------------------------------------------------------------------------------

WORDS = "the tide takes the harbour wall twice a day and nobody minds it " * 50


def run_turns(store, *targets, turns=4):
    """Run turns with the targets in rotation; return the journal and its messages.

    Reported usage is twice the estimate.
    """
    journal, messages = Journal.open(store, SAMPLE_KEY), []
    for number in range(turns):
        prepared = journal.prepare_request(targets[number % len(targets)]) if messages else None
        if prepared is not None:
            messages.append(Message.from_text("assistant", f"{number} {WORDS}"))
            journal.record_answer(messages[-1], Usage(2 * prepared.plan.state.last_request.tokens, 100))
        messages.append(Message.from_text("user", f"{number} {WORDS}"))
        journal.append(messages[-1])
    journal.prepare_request(targets[turns % len(targets)])
    return journal, messages


def fork_with_other_message(journal, messages, count, word="other"):
    """Continue ``journal`` with another message behind the first ``count`` of ``messages``."""
    journal.follow_conversation(
        [build_sized_message(message) for message in [*messages[:count], Message.from_text("user", word)]]
    )


def list_model_stats_notes(store, journal):
    return [
        entry.body
        for entry in store.read_path(SAMPLE_KEY, journal.leaf)
        if isinstance(entry.body, NoteEntry) and entry.body.reason == NOTE_MODEL_STATS
    ]


@pytest.mark.parametrize(
    "overflow", [{}, {"limit": 30_000}, {"requested_tokens": 45_000}, {"limit": 30_000, "requested_tokens": 45_000}]
)
@pytest.mark.parametrize("count", range(7))
def test_fork_keeps_learned_limits_and_calibration_at_every_fork_point(count, overflow, store, anthropic):
    """The model's window and calibration apply from the branch's first request on, also after a restart."""
    wide_target = replace(anthropic, limits=replace(anthropic.limits, window=200_000))
    journal, messages = run_turns(store, wide_target)
    journal.record_overflow("too large", **overflow)
    window = compute_effective_target(wide_target, journal.state, journal.policy.settings).limits.window
    before = get_model_stats(journal.state, wide_target.model)
    fork_with_other_message(journal, messages, count)
    reopened = Journal.open(store, SAMPLE_KEY, leaf=journal.leaf)
    for branch in (journal, reopened):
        stats = get_model_stats(branch.state, wide_target.model)
        assert replace(stats.learned_limits, overflows_since_answer=0) == replace(
            before.learned_limits, overflows_since_answer=0
        )
        assert get_calibrated_ratio(branch.state, wide_target) == pytest.approx(
            get_calibrated_ratio(
                replace(branch.state, usage=replace(branch.state.usage, calibration=before.calibration)), wide_target
            ),
            abs=MAX_RATIO_DIFFERENCE,
        )
        assert compute_effective_target(
            wide_target, branch.state, branch.policy.settings
        ).limits.window == pytest.approx(window, rel=0.1)
        assert list_nonempty_model_stats(branch.prepare_request(wide_target).plan.state) == (
            replace(stats, model=wide_target.model, window=200_000),
        )


def test_fork_records_model_statistics_once_per_fork_point(store, anthropic):
    """Further branches from one point add a note only for new statistics."""
    anthropic = replace(anthropic, setup=RequestSetup("f", 1_000, is_exact=True))
    other = replace(anthropic, model="claude-opus-4-5")
    journal, messages = run_turns(store, anthropic, other)
    before = list_nonempty_model_stats(journal.state)
    assert [stats.model for stats in before] == [other.model, anthropic.model]
    for number in range(3):
        fork_with_other_message(journal, messages, 0, f"another {number}")
        assert list_nonempty_model_stats(journal.state) == before
    assert len(list_model_stats_notes(store, journal)) == 1
    journal.prepare_request(other)
    journal.record_overflow("too large", 20_000)
    fork_with_other_message(journal, messages, 0, "the last")
    assert get_model_stats(journal.state, other.model).learned_limits.window_limit == 20_000
    assert get_model_stats(journal.state, anthropic.model) == get_model_stats(
        ConversationState(usage=MeasuredUsage(other_model_stats=before)), anthropic.model
    )


def test_fork_keeps_a_forgotten_window_forgotten(store, anthropic):
    """Limits learned before ``forget_learned_window`` do not come back on a fork; limits learned later apply."""
    journal, messages = run_turns(store, anthropic)
    journal.record_overflow("too large", 30_000)
    messages += [Message.from_text("assistant", "hm"), Message.from_text("user", "on")]
    journal.append(*messages[-2:])
    count = len(messages) - 1
    journal.forget_learned_window()
    fork_with_other_message(journal, messages, count)
    assert get_model_stats(journal.state, anthropic.model).learned_limits.window_limit == 0
    assert Journal.open(store, SAMPLE_KEY, leaf=journal.leaf).state.usage.learned_limits.window_limit == 0
    journal.prepare_request(anthropic)
    journal.record_overflow("too large", 40_000)
    fork_with_other_message(journal, messages, count, "another")
    assert get_model_stats(journal.state, anthropic.model).learned_limits.window_limit == 40_000


def test_fork_without_learned_limits_records_no_statistics(store, anthropic):
    """A fork from a conversation without an answer gets no note."""
    journal, messages = run_turns(store, anthropic, turns=1)
    fork_with_other_message(journal, messages, 0)
    assert list_model_stats_notes(store, journal) == []
    assert get_model_stats(journal.state, anthropic.model) == ModelStats("")
