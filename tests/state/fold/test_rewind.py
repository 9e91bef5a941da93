"""A rewound state keeps what it knows of the remaining messages and forgets the others."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis_strategies import log_strategy
from msgspec.structs import replace

from holdfast import ConversationState, Policy, plan
from holdfast.config import get_target
from holdfast.engine.log.fork import collect_decisions_to_copy
from holdfast.messages.message import Message
from holdfast.messages.parts import Text, ToolCall, ToolResult
from holdfast.messages.size.tokens import build_sized_message
from holdfast.state.conversation_state import flatten_state
from holdfast.state.edits import Edit, Span
from holdfast.state.entries import (
    TRIGGER_HISTORY,
    CompactionEntry,
    DecisionEntry,
    Entry,
    MessageEntry,
    RequestEntry,
    RequestSetup,
    RevokeEntry,
)
from holdfast.state.fold.fold_entries import TRUNCATE_RULE, apply_entries, apply_entry
from holdfast.state.fold.rewind import rewind_state
from holdfast.state.view import build_projection, compute_prefix_digest

COUNTS = ("last_request.seen_count", "last_request.unchanged_until", "setup_changed_at", "view.turn_limit_start")
"""Fields that count messages from the first one on."""
KEPT = (
    *("history.sized_messages", "history.messages", "history.cumulative_tokens", "history.digests_before"),
    *("history.first_index_by_call_id", "history.open_call_ids", "history.failed_answer_indexes"),
    *("view.pinned_count", "view.first_kept", "view.edits", "view.shown_tokens"),
    *("view.active_decisions", "view.protected_parts"),
    *("last_request.model", "last_request.configured_window"),
    *("usage.measured_request", "usage.calibration", "usage.learned_limits", "usage.other_model_stats"),
    *("counters.failed_compactions", "counters.failures_since_summary", "counters.compaction_failed_at"),
    *("setup", "policy_name"),
)
TARGET = get_target("anthropic", "claude-sonnet-4-5", window=200_000)


def build_entries(*texts):
    """Build entries of user and assistant messages in turn."""
    messages = [Message.from_text("assistant" if at % 2 else "user", text) for at, text in enumerate(texts)]
    return [Entry(f"s{at}", None, MessageEntry(build_sized_message(message))) for at, message in enumerate(messages)]


def add_entries(state, *bodies):
    """Return the state with entries of these ``bodies`` applied; their ids are their numbers."""
    for number, body in enumerate(bodies):
        state = apply_entry(state, Entry(str(number), None, body))
    return state


def use_turn_limits(entries):
    """Return the log with turn limits in place of compactions without a summary."""
    bare = [isinstance(entry.body, CompactionEntry) and entry.body.summary is None for entry in entries]
    return [
        replace(entry, body=replace(entry.body, trigger=TRIGGER_HISTORY)) if is_bare else entry
        for entry, is_bare in zip(entries, bare, strict=True)
    ]


def assert_same_state(state, before):
    """Assert that both states are equal, except that ``state`` has all compaction attempts left."""
    for name in (*KEPT, *COUNTS, "last_request.previous_coverage"):
        assert flatten_state(state)[name] == flatten_state(before)[name], name
    assert (state.counters.compactions_since_answer, state.counters.truncations_since_answer) == (0, 0)
    assert build_projection(state) == build_projection(before)


@given(log_strategy().map(use_turn_limits))
def test_rewind_state_undoes_appended_messages(entries):
    """A state cut back to its earlier length is the state from before more messages were appended."""
    before = ConversationState.from_entries(entries)
    new_state = rewind_state(apply_entries(before, build_entries("x", "y")), len(before.history.sized_messages))
    assert_same_state(
        replace(
            new_state,
            history=replace(
                new_state.history,
                first_index_by_call_id=before.history.first_index_by_call_id,
            ),
        ),
        before,
    )


REQUEST = RequestEntry("b", 4, "m", 9_000)
DECISION = DecisionEntry((Edit(Span(1, 2, 0), (Text("-"),), "r", "w", 1),))
ENTRIES_BY_COUNT = {
    "last_request.seen_count": [REQUEST],
    "last_request.unchanged_until": [REQUEST, DECISION],
    "setup_changed_at": [RequestSetup("f", 9), REQUEST, RequestSetup("g", 9)],
    "view.turn_limit_start": [CompactionEntry(2, trigger=TRIGGER_HISTORY), RevokeEntry("0")],
}
"""Entries after four messages that set each of the counts to a number of its own."""


@pytest.mark.parametrize("name", COUNTS)
def test_rewind_state_keeps_message_counts(name):
    """What a request covered and still shows unchanged, where the setup changed and where a turn limit starts stay."""
    before = add_entries(ConversationState.from_entries(build_entries("a", "b", "c", "d")), *ENTRIES_BY_COUNT[name])
    assert flatten_state(before)[name] == (1 if name == "last_request.unchanged_until" else 4)
    new_state = rewind_state(apply_entries(before, build_entries("x", "y")), 4)
    assert_same_state(
        replace(
            new_state,
            history=replace(
                new_state.history,
                first_index_by_call_id=before.history.first_index_by_call_id,
            ),
        ),
        before,
    )


@given(log_strategy().map(use_turn_limits))
def test_rewind_state_limits_counts_to_the_remaining_messages(entries):
    """No count includes a message that was cut off, so that whatever replaces it is new."""
    state = ConversationState.from_entries(entries)
    for count in range(len(state.history.sized_messages)):
        shorter = rewind_state(state, count)
        assert all(flatten_state(shorter)[name] == min(flatten_state(state)[name], count) for name in COUNTS)
        assert shorter.last_request.previous_coverage == tuple(
            min(number, count) for number in state.last_request.previous_coverage
        )


@given(log_strategy().map(use_turn_limits), st.sampled_from(["auto", "overflow", "manual"]))
def test_rewind_state_resets_compaction_attempts(entries, trigger):
    """bounded-attempts: compactions and truncations since the last answer belong to another request than the one that
    comes now.
    """
    state = ConversationState.from_entries(entries)
    count = len(state.history.sized_messages)
    cut = DecisionEntry((Edit(Span(max(0, count - 1), count, 0), (Text("-"),), TRUNCATE_RULE, "", 1),))
    used = add_entries(
        state,
        CompactionEntry(state.view.first_kept, Message.from_text("user", "sum"), 3, trigger=trigger),
        *[cut][: bool(count)],
    )
    shorter = rewind_state(apply_entries(used, build_entries("x")), count)
    assert (used.counters.compactions_since_answer > 0, used.counters.truncations_since_answer > 0) == (True, count > 0)
    assert (shorter.counters.compactions_since_answer, shorter.counters.truncations_since_answer) == (0, 0)
    assert [what for _, what in shorter.view.active_decisions] == [what for _, what in used.view.active_decisions]


def test_plan_spills_a_result_that_replaces_an_edited_one():
    """A long result that the model saw whole stays whole; the one in place of another is spilled as any new one is."""
    rows = "\n".join(f"row {number} of a long table" for number in range(2_000))
    talk = [Message.from_text("user", "go")]
    for name in ("c1", "c2"):
        talk += [
            Message("assistant", (ToolCall(name, "read"),)),
            Message("tool", (ToolResult(name, "read", (Text(f"{name} {rows}"),)),)),
        ]
    whole, small = (Policy().with_settings(results={"spill_chars": chars}) for chars in (10_000_000, 2_000))
    state = plan(talk, TARGET, whole).state
    other = Message("tool", (ToolResult("c2", "read", (Text(f"other {rows}"),)),))
    record = plan([*talk[:-1], other], TARGET, small, state=state).record
    assert {edit.span.start for edit in record} == {4}


def test_plan_keeps_an_undone_turn_limit_undone_after_an_edit():
    """What the undone limit hid stays shown when the last message is replaced by another."""
    policy = Policy().with_settings(history={"max_turns": 1})
    talk = [Message.from_text(role, f"{role} {number}") for number in range(3) for role in ("user", "assistant")][:-1]
    state = plan(talk, TARGET, policy).state
    ((id_, limit),) = state.view.active_decisions
    assert limit.trigger == TRIGGER_HISTORY
    state = apply_entry(state, Entry("undo", None, RevokeEntry(id_)))
    other = plan([*talk, Message.from_text("assistant", "x")], TARGET, policy, state=state).state
    assert other.view.compaction is None
    again = plan([*talk[:-1], Message.from_text("user", "in other words")], TARGET, policy, state=state)
    assert again.compaction is None
    assert compute_prefix_digest(again.state) != compute_prefix_digest(state)


def test_rewind_state_to_the_start_shows_no_compaction():
    """An empty conversation has no decisions, also none that hides no message, so a fork and a rewind there agree."""
    summary = Message.from_text("user", "summary")
    path = [
        Entry("1", None, MessageEntry(build_sized_message(Message.from_text("user", "hello")))),
        Entry("2", "1", RequestEntry("", 1, "gpt-5", 0, "openai-responses")),
        Entry(
            "3",
            "2",
            CompactionEntry(0, summary, native=msgspec.Raw(b'[{"type":"compaction","encrypted_content":"x"}]')),
        ),
    ]
    state = ConversationState.from_entries(path)
    rewound = rewind_state(state, 0)
    forked = ConversationState.from_entries(collect_decisions_to_copy(state, path, 0, 0))
    assert rewound.view.active_decisions == forked.view.active_decisions == ()
    assert build_projection(rewound) == build_projection(forked) == []
