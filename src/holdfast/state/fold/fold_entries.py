"""The fold: the state of a conversation, made of the entries from the root of the log to a leaf.

``apply_entry`` is the only constructor. Extending one entry at a time, building at once and planning without memory all
give the same state; that law is tested. What a request needs of the past is carried along, so that planning costs
what is new.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from itertools import accumulate, groupby
from typing import Any

from msgspec.structs import replace

from holdfast.messages.message import Message
from holdfast.messages.sized_message import SizedMessage
from holdfast.state.calibration.calibration import (
    LastAnswerUsage,
    adjust_for_setup_change,
)
from holdfast.state.calibration.model_stats import (
    apply_model_stats_note,
    apply_server_format_note,
    forget_learned_limits,
    switch_model,
)
from holdfast.state.calibration.usage import (
    is_answer_to_last_request,
    is_impossible_count,
    learn_from_overflow,
    learn_from_usage,
)
from holdfast.state.conversation_state import ConversationState
from holdfast.state.edit_map import EditMap
from holdfast.state.edits import Edit
from holdfast.state.entries import (
    FAILURE_OVERFLOW,
    FAILURE_UNANSWERED,
    NOTE_DELIVERED,
    NOTE_FORM,
    NOTE_MODEL_STATS,
    NOTE_POLICY,
    NOTE_QUEUED,
    NOTE_WINDOW_FORGOTTEN,
    TRIGGER_FALLBACK,
    TRIGGER_HISTORY,
    AnswerEntry,
    BranchSummaryEntry,
    CompactionEntry,
    DecisionEntry,
    Entry,
    FailureEntry,
    MessageEntry,
    NoteEntry,
    RequestEntry,
    RequestSetup,
    RevokeEntry,
)
from holdfast.state.fold.media import add_media_counts, has_media_changes, recount_media
from holdfast.state.fold.tool_calls import record_first_calls, update_open_calls
from holdfast.state.view import (
    chain_digest,
    compute_leading_digest,
    compute_prefix_digest_at,
    get_next_shown_index,
    get_projection_digest_at,
    get_shown_tokens,
    list_shown_sized_messages_at,
    measure_native_summary,
    measure_summary,
)

TRUNCATE_RULE = "truncate"
"""Rule of the edits that cut results under pressure, which happens once between two answers."""


def apply_entry(state: ConversationState, entry: Entry) -> ConversationState:
    """Return the branch with ``entry`` at its leaf. Kinds that change no request return the same branch."""
    step = _FOLD_STEPS.get(type(entry.body))
    return state if step is None else step(state, entry, entry.body)


def apply_entries(state: ConversationState, entries: Iterable[Entry]) -> ConversationState:
    """Return the branch with all of ``entries`` behind its leaf; messages that stand together are taken at once."""
    every = [*entries]
    messages = [entry.body.sized_message for entry in every if isinstance(entry.body, MessageEntry)]
    if len(messages) == len(every) > 0:
        return _append_messages(state, messages)
    for kind, run in groupby(every, lambda entry: type(entry.body)):
        batch = [*run]
        state = apply_entries(state, batch) if kind is MessageEntry else reduce(apply_entry, batch, state)
    return state


def restore_coverage_before_retry(state: ConversationState, request: RequestEntry) -> ConversationState:
    """Return the branch as its newest request found it, where ``request`` is that one again: a retry."""
    if (request.prefix_digest, request.message_count) != (
        state.last_request.prefix_digest,
        state.last_request.seen_count,
    ):
        return state
    seen_count, standing = state.last_request.previous_coverage
    return replace(state, last_request=replace(state.last_request, seen_count=seen_count, unchanged_until=standing))


# -- the steps of the fold ---------------------------------------------------------------------------------------------


def _apply_message(
    state: ConversationState, _entry: Entry, body: MessageEntry | BranchSummaryEntry
) -> ConversationState:
    return _append_messages(state, [body.sized_message])


def _append_messages(state: ConversationState, new: Sequence[SizedMessage]) -> ConversationState:
    """Return the branch with the messages of ``new`` said in turn."""
    count, messages = len(state.history.sized_messages), [sized_message.message for sized_message in new]
    born, marks = _compute_appended_digests(state, new)
    sized_messages = state.history.sized_messages.add(*new)
    callers = record_first_calls(
        state.history.first_index_by_call_id, state.history.sized_messages, sized_messages, new
    )
    sizes = list(
        accumulate(
            [sized_message.tokens for sized_message in new], initial=state.history.cumulative_tokens[-1] if count else 0
        )
    )
    opening = (
        _count_leading_system_messages(messages)
        if state.view.pinned_count == count and state.view.compaction is None
        else 0
    )
    answer = next((at for at in reversed(range(len(new))) if messages[at].role == "assistant"), None)
    state = replace(
        state,
        history=replace(
            state.history,
            sized_messages=sized_messages,
            messages=state.history.messages.add(*messages),
            first_index_by_call_id=callers,
            cumulative_tokens=state.history.cumulative_tokens.add(*sizes[1:]),
            projection_digests=state.history.projection_digests.add(*marks),
            digests_before=state.history.digests_before.add(*born),
            open_call_ids=reduce(update_open_calls, messages[answer:], state.history.open_call_ids),
        ),
        view=replace(
            state.view,
            pinned_count=state.view.pinned_count + opening,
            first_kept=count + opening if opening else state.view.first_kept,
            shown_tokens=state.view.shown_tokens + sizes[-1] - sizes[0],
        ),
        counters=replace(
            state.counters,
            compactions_since_answer=state.counters.compactions_since_answer if answer is None else 0,
            truncations_since_answer=state.counters.truncations_since_answer if answer is None else 0,
        ),
    )
    return add_media_counts(state, enumerate(messages, count))


def _compute_appended_digests(state: ConversationState, new: Sequence[SizedMessage]) -> tuple[list[bytes], list[bytes]]:
    """Return the digests of the projection before each of ``new``, and with it."""
    count, base = len(state.history.sized_messages), compute_leading_digest(state)
    hidden = [b""] * min(len(new), max(0, state.view.first_kept - count))
    before = state.history.projection_digests[-1] if count > state.view.first_kept else base
    marks = [*accumulate([sized_message.digest for sized_message in new[len(hidden) :]], chain_digest, initial=before)]
    return [base] * len(hidden) + marks[:-1], hidden + marks[1:]


def _count_leading_system_messages(messages: Sequence[Message]) -> int:
    """Return how many system messages ``messages`` open with."""
    return next((at for at, message in enumerate(messages) if message.role != "system"), len(messages))


def _apply_setup(state: ConversationState, _entry: Entry, body: RequestSetup) -> ConversationState:
    if body == state.setup:
        return state
    extra_tokens, is_comparable = body.tokens - state.setup.tokens, body.is_exact == state.setup.is_exact
    new_measurement = adjust_for_setup_change(state.usage.measured_request, extra_tokens) if is_comparable else None
    aside = [
        replace(
            stats,
            measured_request=adjust_for_setup_change(stats.measured_request, extra_tokens) if is_comparable else None,
        )
        for stats in state.usage.other_model_stats
    ]
    setup_changed_at = (
        len(state.history.sized_messages)
        if state.last_request.seen_count or state.setup != RequestSetup()
        else state.setup_changed_at
    )  # the first changes nothing
    return replace(
        state,
        usage=replace(state.usage, measured_request=new_measurement, other_model_stats=tuple(aside)),
        counters=replace(state.counters, requests_since_break=0),
        view=replace(state.view, normalized_prefix=None),
        setup=body,
        setup_changed_at=setup_changed_at,
    )


def _apply_decision(state: ConversationState, entry: Entry, body: DecisionEntry) -> ConversationState:
    new_state = _apply_edits(state, body.edits)
    return replace(
        new_state,
        view=replace(new_state.view, active_decisions=(*state.view.active_decisions, (entry.id, body))),
        counters=replace(
            new_state.counters,
            truncations_since_answer=state.counters.truncations_since_answer
            + any(edit.rule == TRUNCATE_RULE for edit in body.edits),
        ),
    )


def _apply_edits(state: ConversationState, new: tuple[Edit, ...]) -> ConversationState:
    """Put ``new`` edits in force."""
    if not new:
        return state
    first = min(edit.span.start for edit in new)
    saved_tokens = sum(edit.saves for edit in new if edit.span.start >= state.view.first_kept)
    state = replace(
        state,
        view=replace(
            state.view,
            edits=state.view.edits.add(new),
            shown_tokens=state.view.shown_tokens - saved_tokens,
            normalized_prefix=state.view.normalized_prefix
            if state.view.normalized_prefix is not None and first >= state.view.normalized_prefix.next_index
            else None,
        ),
        counters=replace(
            state.counters,
            requests_since_break=state.counters.requests_since_break if first >= state.last_request.seen_count else 0,
        ),
        last_request=replace(
            state.last_request,
            unchanged_until=min(state.last_request.unchanged_until, _find_first_changed_index(state, new)),
        ),
    )
    state = recount_media(state) if has_media_changes(state, new) else state
    return _recompute_projection_digests(state, max(first, state.view.first_kept))


def _apply_compaction(state: ConversationState, entry: Entry, body: CompactionEntry) -> ConversationState:
    new_state = _replace_head_by_summary(state, body)
    return replace(
        new_state,
        view=replace(
            new_state.view,
            active_decisions=(*state.view.active_decisions, (entry.id, body)),
        ),
        counters=replace(
            new_state.counters,
            compactions_since_answer=state.counters.compactions_since_answer
            + (body.summary is not None and body.trigger != TRIGGER_FALLBACK),
            failed_compactions=state.counters.failed_compactions if body.summary is None else 0,
            failures_since_summary=0 if body.author else state.counters.failures_since_summary,
            requests_since_break=0,
        ),
    )


def _replace_head_by_summary(state: ConversationState, body: CompactionEntry) -> ConversationState:
    """Return the branch with what lies before the kept slots given way: it costs what is kept."""
    every, edits = len(state.history.sized_messages), state.view.edits.add(body.edits)
    head = sum(sized_message.tokens for sized_message in state.history.sized_messages.slice(0, state.view.pinned_count))
    tail = sum(sized_message.tokens for sized_message in state.history.sized_messages.slice(body.first_kept))
    saved_tokens = sum(edit.saves for index in range(body.first_kept, every) for edit in edits.get(index, ()))
    hidden = [b""] * (min(body.first_kept, every) - state.view.pinned_count)
    state = replace(
        state,
        view=replace(
            state.view,
            first_kept=body.first_kept,
            compaction=body,
            native_tokens=measure_native_summary(body, state.last_request.model, state.last_request.api),
            edits=edits,
            shown_tokens=head
            + measure_summary(body, state.last_request.model, state.last_request.api)
            + tail
            - saved_tokens,
            normalized_prefix=None,
        ),
        history=replace(
            state.history,
            projection_digests=state.history.projection_digests.replace_from(state.view.pinned_count, hidden),
        ),
        last_request=replace(
            state.last_request, unchanged_until=min(state.last_request.unchanged_until, body.first_kept)
        ),
    )
    return _recompute_projection_digests(recount_media(state), body.first_kept)


def _apply_revoke(state: ConversationState, _entry: Entry, body: RevokeEntry) -> ConversationState:
    law = tuple([(id_, decision) for id_, decision in state.view.active_decisions if id_ != body.revoked_id])
    if len(law) == len(state.view.active_decisions):
        return state
    new_state = _rebuild_with_decisions(state, law)
    after = replace(
        new_state,
        last_request=replace(new_state.last_request, unchanged_until=state.last_request.unchanged_until),
    )
    for revoked_decision in [decision for id_, decision in state.view.active_decisions if id_ == body.revoked_id]:
        after = _protect_restored_parts(after, state, revoked_decision)
    return after


def _protect_restored_parts(
    state: ConversationState, before: ConversationState, revoked: DecisionEntry | CompactionEntry
) -> ConversationState:
    """Return ``state``, that of ``before`` without ``revoked``, knowing what that brought back."""
    hid = isinstance(revoked, CompactionEntry)
    is_history_limit = isinstance(revoked, CompactionEntry) and revoked.trigger == TRIGGER_HISTORY
    first = (
        min(state.view.first_kept, before.view.first_kept) if hid else _find_first_changed_index(state, revoked.edits)
    )
    protected_parts = dict(state.view.protected_parts)
    for edit in revoked.edits:
        for slot in range(edit.span.start, edit.span.stop):
            protected_parts[slot] = (*protected_parts.get(slot, ()), edit.span.part)
    return replace(
        state,
        last_request=replace(state.last_request, unchanged_until=min(state.last_request.unchanged_until, first)),
        view=replace(
            state.view,
            protected_parts=protected_parts,
            turn_limit_start=len(state.history.sized_messages) if is_history_limit else state.view.turn_limit_start,
        ),
    )


def _rebuild_with_decisions(
    state: ConversationState, decisions: tuple[tuple[str, DecisionEntry | CompactionEntry], ...]
) -> ConversationState:
    """Return the branch with ``decisions`` alone in force; of its compactions the newest says what is shown."""
    newest = max(
        [at for at, (_, decision) in enumerate(decisions) if isinstance(decision, CompactionEntry)], default=-1
    )
    before = [edit for _, decision in decisions[: max(0, newest)] for edit in decision.edits]
    behind = [edit for _, decision in decisions[newest + 1 :] for edit in decision.edits]
    state = replace(
        state,
        view=replace(state.view, active_decisions=decisions, edits=EditMap(before)),
        counters=replace(state.counters, requests_since_break=0),
    )
    compaction = decisions[newest][1] if newest >= 0 else None
    if isinstance(compaction, CompactionEntry):
        return _apply_edits(_replace_head_by_summary(state, compaction), tuple(behind))
    shown_tokens = state.history.cumulative_tokens[-1] if len(state.history.sized_messages) else 0
    state = replace(
        state,
        view=replace(
            state.view,
            first_kept=state.view.pinned_count,
            compaction=None,
            native_tokens=0,
            shown_tokens=shown_tokens,
            normalized_prefix=None,
        ),
    )
    return _apply_edits(_recompute_projection_digests(recount_media(state), state.view.pinned_count), tuple(behind))


def _find_first_changed_index(state: ConversationState, edits: Iterable[Edit]) -> int:
    """Return the first slot that is shown otherwise by ``edits``, or the end."""
    starts = (
        max(edit.span.start, state.view.first_kept)
        for edit in edits
        if max(edit.span.stop, edit.span.start + 1) > state.view.first_kept
    )
    return min(starts, default=len(state.history.sized_messages))


def _apply_request(state: ConversationState, _entry: Entry, body: RequestEntry) -> ConversationState:
    is_retry = restore_coverage_before_retry(state, body) is not state
    covered_count = min(
        body.message_count, len(state.history.sized_messages)
    )  # in a log that lost messages a request may have covered more
    shown_tokens = get_shown_tokens(state, body.model, body.api)
    new_state = switch_model(state, body.model, body.window)
    return replace(
        new_state,
        last_request=replace(
            new_state.last_request,
            api=body.api,
            seen_count=covered_count,
            unchanged_until=covered_count,
            previous_coverage=state.last_request.previous_coverage
            if is_retry or state.usage.learned_limits.overflows_since_answer
            else (state.last_request.seen_count, state.last_request.unchanged_until),
            tokens=shown_tokens,
            prefix_digest=body.prefix_digest,
        ),
        view=replace(
            new_state.view,
            shown_tokens=shown_tokens,
            native_tokens=measure_native_summary(state.view.compaction, body.model, body.api),
        ),
        counters=replace(
            new_state.counters,
            requests_since_break=state.counters.requests_since_break + (not is_retry),
        ),
    )


FAILED_STOPS = frozenset({"error", "aborted"})
"""Values of ``AnswerEntry.stop_reason`` for answers that failed or were interrupted (as ``formats/base.py`` reads
them).
"""


def _apply_answer(state: ConversationState, _entry: Entry, body: AnswerEntry) -> ConversationState:
    new_state = _rebase_answer_digest(state)
    state = replace(
        new_state,
        counters=replace(new_state.counters, compactions_since_answer=0, truncations_since_answer=0),
    )
    last = len(state.history.sized_messages) - 1
    if (
        body.stop_reason in FAILED_STOPS
        and last >= state.view.first_kept
        and state.history.sized_messages[last].message.role == "assistant"
    ):
        state = replace(
            state,
            history=replace(
                state.history, failed_answer_indexes=(*state.history.failed_answer_indexes, last), open_call_ids=()
            ),
            view=replace(state.view, normalized_prefix=None),
        )  # its calls never ran
    if (
        body.stop_reason not in FAILED_STOPS
        and is_answer_to_last_request(state, body)
        and not is_impossible_count(state, body.usage.input)
    ):
        slots = max(
            state.last_request.seen_count + 1, len(state.history.sized_messages)
        )  # the answer may be said before this entry or after it
        state = replace(
            state,
            usage=replace(
                state.usage, last_answer=LastAnswerUsage(slots, body.usage.total, compute_leading_digest(state))
            ),
        )
    return learn_from_usage(state, body)


def _rebase_answer_digest(state: ConversationState) -> ConversationState:
    """Return the branch with its newest message, if that answers the newest request, born behind what that showed.

    What was said or decided while the answer was on its way lies between them.
    """
    last = len(state.history.sized_messages) - 1
    if (
        not state.last_request.prefix_digest
        or last < max(state.last_request.seen_count, state.view.first_kept)
        or state.history.messages[last].role != "assistant"
    ):
        return state
    before = (
        get_projection_digest_at(state, state.last_request.seen_count)
        if state.last_request.prefix_digest == compute_prefix_digest_at(state, state.last_request.seen_count)
        else b""
    )
    is_unchanged = state.history.digests_before[last] == before
    return (
        state
        if is_unchanged
        else replace(
            state,
            history=replace(state.history, digests_before=state.history.digests_before.replace_from(last, [before])),
        )
    )


def _apply_failure(state: ConversationState, entry: Entry, body: FailureEntry) -> ConversationState:
    if body.kind == FAILURE_OVERFLOW:
        return learn_from_overflow(state, body)
    if body.kind == FAILURE_UNANSWERED:
        return state
    return replace(
        state,
        counters=replace(
            state.counters,
            failed_compactions=state.counters.failed_compactions + 1,
            failures_since_summary=state.counters.failures_since_summary + 1,
            compaction_failed_at=entry.time_ms,
        ),
    )


def _apply_note(state: ConversationState, entry: Entry, body: NoteEntry) -> ConversationState:
    if body.reason == NOTE_WINDOW_FORGOTTEN:
        return forget_learned_limits(state)
    if body.reason == NOTE_MODEL_STATS:
        return apply_model_stats_note(state, body)
    if body.reason == NOTE_FORM:
        return apply_server_format_note(state, body)
    if body.reason == NOTE_QUEUED:
        return replace(
            state,
            history=replace(state.history, queued_messages=(*state.history.queued_messages, (entry.id, body.raw))),
        )
    if body.reason == NOTE_DELIVERED:
        note_ids = body.data.get("notes")
        waiting = [
            queued_message
            for queued_message in state.history.queued_messages
            if not isinstance(note_ids, Sequence) or queued_message[0] not in note_ids
        ]
        return replace(state, history=replace(state.history, queued_messages=tuple(waiting)))
    name = body.data.get("name") if body.reason == NOTE_POLICY else None
    return replace(state, policy_name=name) if isinstance(name, str) else state


_FOLD_STEPS: dict[type, Callable[[ConversationState, Entry, Any], ConversationState]] = {
    MessageEntry: _apply_message,
    BranchSummaryEntry: _apply_message,
    RequestSetup: _apply_setup,
    DecisionEntry: _apply_decision,
    CompactionEntry: _apply_compaction,
    RevokeEntry: _apply_revoke,
    RequestEntry: _apply_request,
    AnswerEntry: _apply_answer,
    FailureEntry: _apply_failure,
    NoteEntry: _apply_note,
}


def _recompute_projection_digests(state: ConversationState, first: int) -> ConversationState:
    """Return the branch with the digests of its projection made anew from slot ``first`` on."""
    marks: list[bytes] = []
    before = (
        state.history.projection_digests[first - 1] if first > state.view.first_kept else compute_leading_digest(state)
    )
    index, stop = first, len(state.history.sized_messages)
    while index < stop:
        for sized_message in list_shown_sized_messages_at(state, index):
            before = chain_digest(before, sized_message.digest)
        after = get_next_shown_index(state, index)
        marks += [before] * (min(after, stop) - index)
        index = after
    return replace(
        state,
        history=replace(state.history, projection_digests=state.history.projection_digests.replace_from(first, marks)),
    )
