"""Forks: cut a state back to what an incoming conversation shares with it, and adopt that conversation's own bytes."""

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
    """Return the state with its first messages replaced by ``sized_messages``, which say the same in other bytes.

    The first ``start`` are known to be identical already. A client that encodes its history anew sends other bytes than
    before; later requests must repeat these, or the provider does not find them in its prompt cache.
    """
    new_messages, old_messages = sized_messages[start:], state.history.sized_messages.slice(start)
    common_count = count_shared_prefix_items(new_messages, old_messages)
    if common_count == len(new_messages):
        return state
    first = start + common_count
    replacement = [*new_messages[common_count:], *old_messages[len(new_messages) :]]
    messages = [sized_message.message for sized_message in replacement]
    # Stored repairs contain messages in their old bytes. They stay valid only if they concern other messages.
    prefix = state.view.normalized_prefix
    if prefix is not None and prefix.normalization and prefix.next_index > first:
        prefix = None
    return replace(
        state,
        history=replace(
            state.history,
            sized_messages=state.history.sized_messages.replace_from(first, replacement),
            messages=state.history.messages.replace_from(first, messages),
        ),
        view=replace(state.view, normalized_prefix=prefix),
    )


def share_message_objects(
    state: ConversationState, sized_messages: Sequence[SizedMessage], start: int = 0
) -> ConversationState:
    """Return the state with its first messages replaced by ``sized_messages``, which must be equal to them.

    That they are equal is not checked; ``replace_raw_bytes`` has made them so. With the caller's own objects in the
    state, the next comparison with the caller's list is fast, since identical objects are not compared by value. The
    first ``start`` are known to be identical already.
    """
    new_messages = sized_messages[start:]
    if all(map(is_, new_messages, state.history.sized_messages.slice(start))):
        return state
    # The history may be longer than the caller's list, if it ends with an answer that the caller does not have yet.
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
    """Return the state as if the history ended after ``count`` messages.

    Decisions about those messages stay in force word for word, and everything learned about models is kept.
    """
    if count >= len(state.history.sized_messages):
        return state
    shorter = ConversationState.from_entries(
        Entry("", None, MessageEntry(sized_message)) for sized_message in state.history.sized_messages.slice(0, count)
    )
    shorter = replace(
        shorter,
        history=replace(
            shorter.history,
            # What each answer was based on cannot be computed from the messages alone.
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
    for entry_id, decision in state.view.active_decisions:
        kept_decision = clip_decision(decision, count)
        if kept_decision is not None:
            shorter = apply_entry(shorter, Entry(entry_id, None, kept_decision))
    protected_parts = {}
    for index, parts in state.view.protected_parts.items():
        if index < count:
            protected_parts[index] = parts
    seen_count, unchanged_until = state.last_request.previous_coverage
    # Applying the decisions changed these once more, as if they were made now.
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
            previous_coverage=(min(seen_count, count), min(unchanged_until, count)),
        ),
        view=replace(
            shorter.view,
            protected_parts=protected_parts,
            turn_limit_start=min(state.view.turn_limit_start, count),
        ),
        policy_name=state.policy_name,
    )


def clip_decision(decision: DecisionEntry | CompactionEntry, count: int) -> DecisionEntry | CompactionEntry | None:
    """Return the part of ``decision`` that is about the first ``count`` messages, or None without any.

    A compaction keeps its summary if that covers no more than these messages, whatever edits it made after them.
    """
    if count == 0:
        # A compaction that hides nothing covers "no more than these messages" too, but an empty conversation shows it
        # in the form of whatever model was asked last, which a fork does not know.
        return None
    kept_edits = tuple(edit for edit in decision.edits if edit.span.stop <= count)
    is_kept = bool(kept_edits)
    if isinstance(decision, CompactionEntry):
        is_kept = decision.first_kept <= count
    return replace(decision, edits=kept_edits) if is_kept else None
