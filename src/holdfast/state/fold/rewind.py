"""Forks: a branch cut back to what a conversation shares with it, and said in that conversation's own bytes."""

from __future__ import annotations

from collections.abc import Sequence
from operator import is_

from msgspec.structs import replace

from holdfast.messages.sized_message import SizedMessage
from holdfast.state.conversation_state import ConversationState
from holdfast.state.entries import CompactionEntry, DecisionEntry, Entry, MessageEntry
from holdfast.state.fold.fold_entries import apply_entry
from holdfast.state.persistent_sequence import PersistentSequence, count_shared_prefix_items


def replace_raw_bytes(
    state: ConversationState, sized_messages: Sequence[SizedMessage], start: int = 0
) -> ConversationState:
    """Return the branch with its first slots said in other bytes; repairs stand where they are of other slots alone.

    Those before ``start`` are known to be its own.
    """
    new_messages, old_messages, prefix = (
        sized_messages[start:],
        state.history.sized_messages.slice(start),
        state.view.normalized_prefix,
    )
    common_count = count_shared_prefix_items(new_messages, old_messages)
    if common_count == len(new_messages):
        return state
    first, replacement = start + common_count, [*new_messages[common_count:], *old_messages[len(new_messages) :]]
    return replace(
        state,
        history=replace(
            state.history,
            sized_messages=state.history.sized_messages.replace_from(first, replacement),
            messages=state.history.messages.replace_from(
                first, [sized_message.message for sized_message in replacement]
            ),
        ),
        view=replace(
            state.view,
            normalized_prefix=prefix
            if prefix is None or not prefix.normalization or prefix.next_index <= first
            else None,
        ),
    )


def share_message_objects(
    state: ConversationState, sized_messages: Sequence[SizedMessage], start: int = 0
) -> ConversationState:
    """Return the branch with ``sized_messages`` in place of its own first ones, which they equal.

    What is the very same object is not looked into whenever it is compared. Those before ``start`` are known to be so.
    """
    new_messages = sized_messages[start:]
    if all(map(is_, new_messages, state.history.sized_messages.slice(start))):
        return state
    replacement = [*new_messages, *state.history.sized_messages.slice(start + len(new_messages))]
    messages = [sized_message.message for sized_message in replacement]
    return replace(
        state,
        history=replace(
            state.history,
            sized_messages=state.history.sized_messages.replace_from(start, replacement),
            messages=state.history.messages.replace_from(start, messages),
        ),
    )


def rewind_state(state: ConversationState, count: int) -> ConversationState:
    """Return the branch as if it ended after ``count`` slots: decisions about those stay in force, word for word."""
    if count >= len(state.history.sized_messages):
        return state
    shorter = ConversationState.from_entries(
        Entry("", None, MessageEntry(sized_message)) for sized_message in state.history.sized_messages.slice(0, count)
    )
    shorter = replace(
        shorter,
        history=replace(
            shorter.history,
            digests_before=PersistentSequence(state.history.digests_before.slice(0, count)),
            failed_answer_indexes=tuple(index for index in state.history.failed_answer_indexes if index < count),
        ),
        last_request=replace(
            shorter.last_request,
            seen_count=min(state.last_request.seen_count, count),
            model=state.last_request.model,
            api=state.last_request.api,
            configured_window=state.last_request.configured_window,
        ),
        usage=replace(
            shorter.usage,
            measured_request=state.usage.measured_request,
            calibration=state.usage.calibration,
            learned_limits=state.usage.learned_limits,
            other_model_stats=state.usage.other_model_stats,
        ),
        setup=state.setup,
        setup_changed_at=min(state.setup_changed_at, count),
    )
    for id_, decision in state.view.active_decisions:
        kept_decision = clip_decision(decision, count)
        shorter = shorter if kept_decision is None else apply_entry(shorter, Entry(id_, None, kept_decision))
    return replace(
        shorter,
        counters=replace(
            shorter.counters,
            compactions_since_answer=0,
            truncations_since_answer=0,
            failed_compactions=state.counters.failed_compactions,
            failures_since_summary=state.counters.failures_since_summary,
            compaction_failed_at=state.counters.compaction_failed_at,
        ),
        last_request=replace(
            shorter.last_request,
            unchanged_until=min(state.last_request.unchanged_until, count),
            previous_coverage=(
                min(state.last_request.previous_coverage[0], count),
                min(state.last_request.previous_coverage[1], count),
            ),
        ),
        view=replace(
            shorter.view,
            protected_parts={
                sized_message: parts
                for sized_message, parts in state.view.protected_parts.items()
                if sized_message < count
            },
            turn_limit_start=min(state.view.turn_limit_start, count),
        ),
        policy_name=state.policy_name,
    )


def clip_decision(decision: DecisionEntry | CompactionEntry, count: int) -> DecisionEntry | CompactionEntry | None:
    """Return the part of what was decided that is about the first ``count`` slots; nothing where none of it is.

    A summary of them stands, whatever was decided with it about those behind.
    """
    kept_decision = replace(decision, edits=tuple(edit for edit in decision.edits if edit.span.stop <= count))
    stands = kept_decision.first_kept <= count if isinstance(kept_decision, CompactionEntry) else kept_decision.edits
    return kept_decision if stands else None
