"""A branch cut back knows of the slots that stay what it knew, and of those that went nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis_strategies import log_strategy
from msgspec.structs import replace

from holdfast import ConversationState, Policy, plan
from holdfast.config import get_target
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
"""Fields that count slots from the first one on."""
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
WHERE = get_target("anthropic", "claude-sonnet-4-5", window=200_000)


def said(*texts):
    """Return entries of a user's and an assistant's words in turn."""
    told = [Message.from_text("assistant" if at % 2 else "user", text) for at, text in enumerate(texts)]
    return [Entry(f"s{at}", None, MessageEntry(build_sized_message(one))) for at, one in enumerate(told)]


def behind(branch, *bodies):
    """Return ``branch`` with ``bodies`` behind it, by their number."""
    for number, body in enumerate(bodies):
        branch = apply_entry(branch, Entry(str(number), None, body))
    return branch


def limiting(entries):
    """Return the log with limits of turns in place of compactions that nobody wrote a summary for."""
    bare = [isinstance(one.body, CompactionEntry) and one.body.summary is None for one in entries]
    return [
        replace(one, body=replace(one.body, trigger=TRIGGER_HISTORY)) if is_bare else one
        for one, is_bare in zip(entries, bare, strict=True)
    ]


def same(branch, before):
    """Assert that ``branch`` knows what ``before`` knew, with nothing used up: an edited past is asked of anew."""
    for name in (*KEPT, *COUNTS, "last_request.previous_coverage"):
        assert flatten_state(branch)[name] == flatten_state(before)[name], name
    assert (branch.counters.compactions_since_answer, branch.counters.truncations_since_answer) == (0, 0)
    assert build_projection(branch) == build_projection(before)


@given(log_strategy().map(limiting))
def test_what_was_only_said_behind_leaves_no_trace(entries):
    """Cut back to where it was, the branch knows what it knew before more was said."""
    before = ConversationState.from_entries(entries)
    new_state = rewind_state(apply_entries(before, said("x", "y")), len(before.history.sized_messages))
    same(
        replace(
            new_state,
            history=replace(
                new_state.history,
                first_index_by_call_id=before.history.first_index_by_call_id,
            ),
        ),
        before,
    )


ASKED = RequestEntry("b", 4, "m", 9_000)
CUT = DecisionEntry((Edit(Span(1, 2, 0), (Text("-"),), "r", "w", 1),))
KNOWN = {
    "last_request.seen_count": [ASKED],
    "last_request.unchanged_until": [ASKED, CUT],
    "setup_changed_at": [RequestSetup("f", 9), ASKED, RequestSetup("g", 9)],
    "view.turn_limit_start": [CompactionEntry(2, trigger=TRIGGER_HISTORY), RevokeEntry("0")],
}
"""What leaves each of the counts at a number of its own, behind four messages."""


@pytest.mark.parametrize("name", COUNTS)
def test_each_count_stands(name):
    """What a request showed, and shows otherwise since, what another frame came behind and what a limit counts."""
    before = behind(ConversationState.from_entries(said("a", "b", "c", "d")), *KNOWN[name])
    assert flatten_state(before)[name] == (1 if name == "last_request.unchanged_until" else 4)
    new_state = rewind_state(apply_entries(before, said("x", "y")), 4)
    same(
        replace(
            new_state,
            history=replace(
                new_state.history,
                first_index_by_call_id=before.history.first_index_by_call_id,
            ),
        ),
        before,
    )


@given(log_strategy().map(limiting))
def test_no_count_is_of_a_slot_that_is_no_more(entries):
    """Whatever is said in its place is new."""
    branch = ConversationState.from_entries(entries)
    for count in range(len(branch.history.sized_messages)):
        shorter = rewind_state(branch, count)
        assert all(flatten_state(shorter)[name] == min(flatten_state(branch)[name], count) for name in COUNTS)
        assert shorter.last_request.previous_coverage == tuple(
            min(number, count) for number in branch.last_request.previous_coverage
        )


@given(log_strategy().map(limiting), st.sampled_from(["auto", "overflow", "manual"]))
def test_an_edited_past_has_as_many_attempts_as_any(entries, trigger):
    """bounded-attempts: what was compacted and cut since the last answer was for another request than the one that
    comes now.
    """
    branch = ConversationState.from_entries(entries)
    count = len(branch.history.sized_messages)
    cut = DecisionEntry((Edit(Span(max(0, count - 1), count, 0), (Text("-"),), TRUNCATE_RULE, "", 1),))
    used = behind(
        branch,
        CompactionEntry(branch.view.first_kept, Message.from_text("user", "sum"), 3, trigger=trigger),
        *[cut][: bool(count)],
    )
    shorter = rewind_state(apply_entries(used, said("x")), count)
    assert (used.counters.compactions_since_answer > 0, used.counters.truncations_since_answer > 0) == (True, count > 0)
    assert (shorter.counters.compactions_since_answer, shorter.counters.truncations_since_answer) == (0, 0)
    assert [what for _, what in shorter.view.active_decisions] == [what for _, what in used.view.active_decisions]


def test_what_stands_in_the_place_of_an_edited_message_is_looked_at():
    """A long result that the model saw whole stays whole; the one in place of another is cut as any new one is."""
    rows = "\n".join(f"row {number} of a long table" for number in range(2_000))
    talk = [Message.from_text("user", "go")]
    for name in ("c1", "c2"):
        talk += [
            Message("assistant", (ToolCall(name, "read"),)),
            Message("tool", (ToolResult(name, "read", (Text(f"{name} {rows}"),)),)),
        ]
    whole, small = (Policy().with_settings(results={"spill_chars": chars}) for chars in (10_000_000, 2_000))
    branch = plan(talk, WHERE, whole).state
    other = Message("tool", (ToolResult("c2", "read", (Text(f"other {rows}"),)),))
    record = plan([*talk[:-1], other], WHERE, small, state=branch).record
    assert {edit.span.start for edit in record} == {4}


def test_an_undone_limit_of_turns_counts_from_there():
    """What it hid stays shown where the last message is said in other words."""
    policy = Policy().with_settings(history={"max_turns": 1})
    talk = [Message.from_text(role, f"{role} {number}") for number in range(3) for role in ("user", "assistant")][:-1]
    branch = plan(talk, WHERE, policy).state
    ((id_, limit),) = branch.view.active_decisions
    assert limit.trigger == TRIGGER_HISTORY
    branch = apply_entry(branch, Entry("undo", None, RevokeEntry(id_)))
    other = plan([*talk, Message.from_text("assistant", "x")], WHERE, policy, state=branch).state
    assert other.view.compaction is None
    again = plan([*talk[:-1], Message.from_text("user", "in other words")], WHERE, policy, state=branch)
    assert again.compaction is None
    assert compute_prefix_digest(again.state) != compute_prefix_digest(branch)
