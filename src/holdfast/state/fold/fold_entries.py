"""The fold: compute the state of a conversation from the entries between the root of its log and a leaf.

``apply_entry`` is the only way to a new state. Applying entries one by one, all at once, or planning without any memory
gives the same state; tests hold the fold to that. Everything a request needs to know about the past is carried along in
the state, so that planning costs what is new and not what is old.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from itertools import accumulate, groupby
from typing import Any, NamedTuple

from msgspec.structs import replace

from holdfast.messages.message import Message
from holdfast.messages.sized_message import SizedMessage
from holdfast.state.calibration.calibration import (
    LastAnswerUsage,
    adjust_for_setup_change,
)
from holdfast.state.calibration.model_stats import (
    apply_changed_options_note,
    apply_field_lessons_note,
    apply_form_note,
    apply_model_stats_note,
    forget_learned_limits,
    switch_model,
)
from holdfast.state.calibration.usage import (
    is_answer_to_last_request,
    is_impossible_count,
    learn_from_overflow,
    learn_from_usage,
)
from holdfast.state.conversation_state import ConversationState, RevokedDecision
from holdfast.state.edit_map import EditMap
from holdfast.state.edits import Edit
from holdfast.state.entries import (
    FAILURE_OVERFLOW,
    FAILURE_UNANSWERED,
    NOTE_CONTAINER,
    NOTE_DELIVERED,
    NOTE_FIELDS,
    NOTE_FORM,
    NOTE_MODEL_STATS,
    NOTE_OPTIONS,
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
"""Rule of edits that cut results under pressure. They are counted, because that may happen once between two answers."""


def apply_entry(state: ConversationState, entry: Entry) -> ConversationState:
    """Return the state with ``entry`` appended. Kinds of entries that change no request return ``state`` itself."""
    step = _FOLD_STEPS.get(type(entry.body))
    return state if step is None else step(state, entry, entry.body)


def apply_entries(state: ConversationState, entries: Iterable[Entry]) -> ConversationState:
    """Return the state with all of ``entries`` appended; runs of messages are appended together, which is faster."""
    all_entries = [*entries]
    messages = [entry.body.sized_message for entry in all_entries if isinstance(entry.body, MessageEntry)]
    if len(messages) == len(all_entries) > 0:
        return _append_messages(state, messages)
    for kind, run in groupby(all_entries, lambda entry: type(entry.body)):
        batch = [*run]
        if kind is MessageEntry:
            state = apply_entries(state, batch)
        else:
            state = reduce(apply_entry, batch, state)
    return state


def restore_coverage_before_retry(state: ConversationState, request: RequestEntry) -> ConversationState:
    """Return the state as it was before its newest request if ``request`` repeats that one, else ``state`` itself."""
    last_request = state.last_request
    is_retry = request.prefix_digest == last_request.prefix_digest and request.message_count == last_request.seen_count
    if not is_retry:
        return state
    seen_count, unchanged_until = last_request.previous_coverage
    return _replace_last_request(state, seen_count=seen_count, unchanged_until=unchanged_until)


# -- the steps of the fold ---------------------------------------------------------------------------------------------


def _apply_message(
    state: ConversationState, _entry: Entry, body: MessageEntry | BranchSummaryEntry
) -> ConversationState:
    return _append_messages(state, [body.sized_message])


def _append_messages(state: ConversationState, new: Sequence[SizedMessage]) -> ConversationState:
    """Return the state with the messages of ``new`` appended in order."""
    history, view = state.history, state.view
    count = len(history.sized_messages)
    messages = [sized_message.message for sized_message in new]
    digests_before, projection_digests = _compute_appended_digests(state, new)
    sized_messages = history.sized_messages.add(*new)
    first_index_by_call_id = record_first_calls(
        history.first_index_by_call_id, history.sized_messages, sized_messages, new
    )

    tokens_before = history.cumulative_tokens[-1] if count else 0
    cumulative_tokens = list(accumulate([sized_message.tokens for sized_message in new], initial=tokens_before))
    added_tokens = cumulative_tokens[-1] - tokens_before

    # System messages are pinned only as long as nothing else was said before them.
    new_pinned_count = 0
    if view.pinned_count == count and view.compaction is None:
        new_pinned_count = _count_leading_system_messages(messages)

    newest_answer = next((index for index in reversed(range(len(new))) if messages[index].role == "assistant"), None)
    # Only the newest answer can have open calls, so the messages before it need not be looked at.
    messages_since_answer = messages[newest_answer:]
    if newest_answer is not None:
        state = _reset_counters_at_answer(state)
    state = replace(
        state,
        history=replace(
            history,
            sized_messages=sized_messages,
            messages=history.messages.add(*messages),
            first_index_by_call_id=first_index_by_call_id,
            cumulative_tokens=history.cumulative_tokens.add(*cumulative_tokens[1:]),
            projection_digests=history.projection_digests.add(*projection_digests),
            digests_before=history.digests_before.add(*digests_before),
            open_call_ids=reduce(update_open_calls, messages_since_answer, history.open_call_ids),
        ),
        view=replace(
            view,
            pinned_count=view.pinned_count + new_pinned_count,
            first_kept=count + new_pinned_count if new_pinned_count else view.first_kept,
            shown_tokens=view.shown_tokens + added_tokens,
        ),
    )
    return add_media_counts(state, enumerate(messages, count))


class _AppendedDigests(NamedTuple):
    """Digests of the projection around each of the messages that are appended."""

    before: list[bytes]
    """Digest of what is shown before the message, as in ``MessageHistory.digests_before``."""
    through: list[bytes]
    """Digest of what is shown up to and including the message, as in ``MessageHistory.projection_digests``."""


def _compute_appended_digests(state: ConversationState, new: Sequence[SizedMessage]) -> _AppendedDigests:
    """Return the digests of the projection before and through each message of ``new``.

    A message before ``first_kept`` is hidden: a compaction can name more messages than its log has kept. Nothing but
    the leading part is shown before it, and it has an empty digest of its own.
    """
    count = len(state.history.sized_messages)
    first_kept = state.view.first_kept
    leading_digest = compute_leading_digest(state)
    hidden_count = min(len(new), max(0, first_kept - count))
    if count > first_kept:
        digest = state.history.projection_digests[-1]
    else:
        digest = leading_digest

    before = [leading_digest] * hidden_count
    through = [b""] * hidden_count
    for sized_message in new[hidden_count:]:
        before.append(digest)
        digest = chain_digest(digest, sized_message.digest)
        through.append(digest)
    return _AppendedDigests(before, through)


def _count_leading_system_messages(messages: Sequence[Message]) -> int:
    for index, message in enumerate(messages):
        if message.role != "system":
            return index
    return len(messages)


def _apply_setup(state: ConversationState, _entry: Entry, body: RequestSetup) -> ConversationState:
    if body == state.setup:
        return state
    if body.has_same_content(state.setup):
        # Only an option changed, or the digests of fields are recorded for the first time: no prompt is another one.
        return replace(state, setup=body)
    usage = state.usage
    measured_request = None
    other_model_stats = [replace(stats, measured_request=None) for stats in usage.other_model_stats]
    # An exact size and an estimated one cannot be subtracted: their difference is mostly the error of the estimate.
    if body.is_exact == state.setup.is_exact:
        added_tokens = body.tokens - state.setup.tokens
        measured_request = adjust_for_setup_change(usage.measured_request, added_tokens)
        other_model_stats = []
        for stats in usage.other_model_stats:
            other_model_stats.append(
                replace(stats, measured_request=adjust_for_setup_change(stats.measured_request, added_tokens))
            )
    # The first setup of a conversation is no change, unless a request was already sent without it.
    is_first_setup = state.setup == RequestSetup() and not state.last_request.seen_count
    if is_first_setup:
        setup_changed_at = state.setup_changed_at
    else:
        setup_changed_at = len(state.history.sized_messages)
    return replace(
        state,
        usage=replace(usage, measured_request=measured_request, other_model_stats=tuple(other_model_stats)),
        counters=replace(state.counters, requests_since_break=0),
        view=replace(state.view, normalized_prefix=None),
        setup=body,
        setup_changed_at=setup_changed_at,
    )


def _apply_decision(state: ConversationState, entry: Entry, body: DecisionEntry) -> ConversationState:
    is_truncation = any(edit.rule == TRUNCATE_RULE for edit in body.edits)
    active_decisions = (*state.view.active_decisions, (entry.id, body))
    state = _replace_view(_apply_edits(state, body.edits), active_decisions=active_decisions)
    if not is_truncation:
        return state
    return _replace_counters(state, truncations_since_answer=state.counters.truncations_since_answer + 1)


def _apply_edits(state: ConversationState, new: tuple[Edit, ...]) -> ConversationState:
    """Return the state with the edits of ``new`` in force."""
    if not new:
        return state
    view, last_request = state.view, state.last_request
    first = min(edit.span.start for edit in new)
    saved_tokens = sum(edit.saves for edit in new if edit.span.start >= view.first_kept)
    normalized_prefix = view.normalized_prefix
    if normalized_prefix is not None and first < normalized_prefix.next_index:
        normalized_prefix = None
    if first < last_request.seen_count:
        state = _replace_counters(state, requests_since_break=0)
    first_changed = _find_first_changed_index(state, new)
    state = replace(
        state,
        view=replace(
            view,
            edits=view.edits.add(new),
            shown_tokens=view.shown_tokens - saved_tokens,
            normalized_prefix=normalized_prefix,
        ),
        last_request=replace(last_request, unchanged_until=min(last_request.unchanged_until, first_changed)),
    )
    if has_media_changes(state, new):
        state = recount_media(state)
    return _recompute_projection_digests(state, max(first, view.first_kept))


def _apply_compaction(state: ConversationState, entry: Entry, body: CompactionEntry) -> ConversationState:
    counters = state.counters
    # The smallest request (fallback) and the limit of user turns (no summary) are not the compactions that are limited
    # between two answers.
    is_counted = body.summary is not None and body.trigger != TRIGGER_FALLBACK
    compactions_since_answer = counters.compactions_since_answer + is_counted
    # An extract (no author) is a summary, but says nothing about whether a model can write one.
    failed_compactions = counters.failed_compactions if body.summary is None else 0
    failures_since_summary = 0 if body.author else counters.failures_since_summary
    active_decisions = (*state.view.active_decisions, (entry.id, body))
    state = _replace_view(_replace_head_by_summary(state, body), active_decisions=active_decisions)
    return _replace_counters(
        state,
        compactions_since_answer=compactions_since_answer,
        failed_compactions=failed_compactions,
        failures_since_summary=failures_since_summary,
        requests_since_break=0,
    )


def _replace_head_by_summary(state: ConversationState, body: CompactionEntry) -> ConversationState:
    """Return the state showing the summary of ``body`` in place of the messages before its ``first_kept``.

    The cost is proportional to the kept messages, so compacting a long history stays cheap.
    """
    history, view, last_request = state.history, state.view, state.last_request
    message_count = len(history.sized_messages)
    edits = view.edits.add(body.edits)
    pinned_messages = history.sized_messages.slice(0, view.pinned_count)
    tail_messages = history.sized_messages.slice(body.first_kept)
    pinned_tokens = sum(sized_message.tokens for sized_message in pinned_messages)
    tail_tokens = sum(sized_message.tokens for sized_message in tail_messages)
    summary_tokens = measure_summary(body, last_request.model, last_request.api)
    restated_tokens = sum(history.sized_messages[index].tokens for index in body.restated if index < message_count)
    saved_tokens = 0
    for index in range(body.first_kept, message_count):
        saved_tokens += sum(edit.saves for edit in edits.get(index, ()))
    # Hidden messages have no digest. The pinned ones before them keep theirs.
    hidden_digests = [b""] * (min(body.first_kept, message_count) - view.pinned_count)
    projection_digests = history.projection_digests.replace_from(view.pinned_count, hidden_digests)
    new_view = replace(
        view,
        first_kept=body.first_kept,
        compaction=body,
        native_tokens=measure_native_summary(body, last_request.model, last_request.api),
        edits=edits,
        shown_tokens=pinned_tokens + summary_tokens + restated_tokens + tail_tokens - saved_tokens,
        normalized_prefix=None,
    )
    unchanged_until = min(last_request.unchanged_until, body.first_kept)
    state = replace(
        state,
        view=new_view,
        history=replace(history, projection_digests=projection_digests),
        last_request=replace(last_request, unchanged_until=unchanged_until),
    )
    return _recompute_projection_digests(recount_media(state), body.first_kept)


def _apply_revoke(state: ConversationState, _entry: Entry, body: RevokeEntry) -> ConversationState:
    if body.is_restored:
        return _restore_decision(state, body.revoked_id)
    view = state.view
    revoked_positions = {revoked.position for revoked in view.revoked_decisions}
    decision_count = len(view.active_decisions) + len(view.revoked_decisions)
    active_positions = [position for position in range(decision_count) if position not in revoked_positions]
    kept_decisions: list[tuple[str, DecisionEntry | CompactionEntry]] = []
    newly_revoked: list[RevokedDecision] = []
    for position, (entry_id, decision) in zip(active_positions, view.active_decisions, strict=True):
        if entry_id == body.revoked_id:
            newly_revoked.append(RevokedDecision(position, entry_id, decision))
        else:
            kept_decisions.append((entry_id, decision))
    if not newly_revoked:
        return state
    new_state = _rebuild_with_decisions(state, tuple(kept_decisions))
    new_state = _replace_view(new_state, revoked_decisions=(*view.revoked_decisions, *newly_revoked))
    for revoked in newly_revoked:
        new_state = _mark_changed_by_undo(new_state, state, revoked.body)
        new_state = _protect_parts(new_state, revoked.body)
    return new_state


def _restore_decision(state: ConversationState, decision_id: str) -> ConversationState:
    """Return the state with the undone decision ``decision_id`` in force again, or ``state`` if it is not undone.

    It takes its old place among the decisions: a later one about the same message still has the last word.
    """
    view = state.view
    restored = next((revoked for revoked in view.revoked_decisions if revoked.id == decision_id), None)
    if restored is None:
        return state
    still_revoked = tuple([revoked for revoked in view.revoked_decisions if revoked is not restored])
    revoked_before_count = sum(revoked.position < restored.position for revoked in still_revoked)
    index = restored.position - revoked_before_count
    active_decisions = (
        *view.active_decisions[:index],
        (restored.id, restored.body),
        *view.active_decisions[index:],
    )
    new_state = _rebuild_with_decisions(state, active_decisions)
    new_state = _replace_view(new_state, revoked_decisions=still_revoked)
    new_state = _mark_changed_by_undo(new_state, state, restored.body)
    return _release_parts(new_state, restored.body)


def _mark_changed_by_undo(
    state: ConversationState, before: ConversationState, decision: DecisionEntry | CompactionEntry
) -> ConversationState:
    """Return ``state`` with what is unchanged since the newest request, after ``decision`` was undone or restored.

    ``before`` is the state before that. The rebuild in between applied the other edits once more; they changed nothing
    that the newest request has not seen already.
    """
    if isinstance(decision, CompactionEntry):
        first_changed = min(state.view.first_kept, before.view.first_kept)
    else:
        first_changed = _find_first_changed_index(state, decision.edits)
    return _replace_last_request(state, unchanged_until=min(before.last_request.unchanged_until, first_changed))


def _protect_parts(state: ConversationState, revoked: DecisionEntry | CompactionEntry) -> ConversationState:
    """Return ``state`` with the parts that revoking ``revoked`` brought back marked as protected.

    Without the marks the next plan would make the same decision again, and the undo would have no effect.
    """
    protected_parts = dict(state.view.protected_parts)
    for edit in revoked.edits:
        for index in range(edit.span.start, edit.span.stop):
            protected_parts[index] = (*protected_parts.get(index, ()), edit.span.part)
    # An undone limit of turns must not hide the same turns at the next plan, so it counts only those from here on.
    turn_limit_start = state.view.turn_limit_start
    if _is_turn_limit(revoked):
        turn_limit_start = len(state.history.sized_messages)
    return _replace_view(state, protected_parts=protected_parts, turn_limit_start=turn_limit_start)


def _release_parts(state: ConversationState, restored: DecisionEntry | CompactionEntry) -> ConversationState:
    """Return ``state`` without the marks that ``_protect_parts`` made when ``restored`` was revoked."""
    protected_parts = dict(state.view.protected_parts)
    for edit in restored.edits:
        for index in range(edit.span.start, edit.span.stop):
            marks = list(protected_parts.pop(index, ()))
            # The undo of another decision may have marked the same part, so one mark goes and not all.
            if edit.span.part in marks:
                marks.remove(edit.span.part)
            if marks:
                protected_parts[index] = tuple(marks)
    turn_limit_start = state.view.turn_limit_start
    has_undone_turn_limit = any(_is_turn_limit(revoked.body) for revoked in state.view.revoked_decisions)
    if _is_turn_limit(restored) and not has_undone_turn_limit:
        turn_limit_start = 0
    return _replace_view(state, protected_parts=protected_parts, turn_limit_start=turn_limit_start)


def _is_turn_limit(decision: DecisionEntry | CompactionEntry) -> bool:
    return isinstance(decision, CompactionEntry) and decision.trigger == TRIGGER_HISTORY


def _rebuild_with_decisions(
    state: ConversationState, decisions: tuple[tuple[str, DecisionEntry | CompactionEntry], ...]
) -> ConversationState:
    """Return the state with only ``decisions`` in force; the newest compaction among them sets the view."""
    newest_compaction: CompactionEntry | None = None
    edits_before: list[Edit] = []
    edits_since: list[Edit] = []
    for _, decision in decisions:
        if isinstance(decision, CompactionEntry):
            if newest_compaction is not None:
                edits_before += newest_compaction.edits
            edits_before += edits_since
            edits_since = []
            newest_compaction = decision
        else:
            edits_since += decision.edits
    state = replace(
        state,
        view=replace(state.view, active_decisions=decisions, edits=EditMap(edits_before)),
        counters=replace(state.counters, requests_since_break=0),
    )
    if newest_compaction is not None:
        return _apply_edits(_replace_head_by_summary(state, newest_compaction), tuple(edits_since))
    state = _replace_view(
        state,
        first_kept=state.view.pinned_count,
        compaction=None,
        native_tokens=0,
        shown_tokens=state.history.cumulative_tokens[-1] if len(state.history.sized_messages) else 0,
        normalized_prefix=None,
    )
    state = _recompute_projection_digests(recount_media(state), state.view.pinned_count)
    return _apply_edits(state, tuple(edits_since))


def _find_first_changed_index(state: ConversationState, edits: Iterable[Edit]) -> int:
    """Return the index of the first shown message that ``edits`` change, or the number of messages if none does."""
    first_changed = len(state.history.sized_messages)
    for edit in edits:
        if edit.span.end > state.view.first_kept:
            first_changed = min(first_changed, max(edit.span.start, state.view.first_kept))
    return first_changed


def _apply_request(state: ConversationState, _entry: Entry, body: RequestEntry) -> ConversationState:
    is_retry = restore_coverage_before_retry(state, body) is not state
    # A refused request was read by nobody. What it covered beyond the one before it must stay "unseen", so requests
    # keep the coverage from before the first refusal until one is answered.
    previous_coverage = (state.last_request.seen_count, state.last_request.unchanged_until)
    if is_retry or state.usage.learned_limits.overflows_since_answer:
        previous_coverage = state.last_request.previous_coverage
    # In a log that lost messages a request may have covered more than there are now.
    covered_count = min(body.message_count, len(state.history.sized_messages))
    requests_since_break = state.counters.requests_since_break + (not is_retry)
    # Taken before the switch of models: the size that ``state`` holds is for the model that it names.
    shown_tokens = get_shown_tokens(state, body.model, body.api)
    native_tokens = measure_native_summary(state.view.compaction, body.model, body.api)
    state = switch_model(state, body.model, body.window)
    state = _replace_last_request(
        state,
        api=body.api,
        seen_count=covered_count,
        unchanged_until=covered_count,
        previous_coverage=previous_coverage,
        tokens=shown_tokens,
        prefix_digest=body.prefix_digest,
    )
    state = _replace_view(state, shown_tokens=shown_tokens, native_tokens=native_tokens)
    return _replace_counters(state, requests_since_break=requests_since_break)


FAILED_STOPS = frozenset({"error", "aborted"})
"""Values of ``AnswerEntry.stop_reason`` for answers that failed or were interrupted (as ``formats/base.py`` reads
them).
"""


def _apply_answer(state: ConversationState, _entry: Entry, body: AnswerEntry) -> ConversationState:
    state = _reset_counters_at_answer(_rebase_answer_digest(state))
    if body.container != state.history.container:
        state = replace(state, history=replace(state.history, container=body.container))
    if body.stop_reason in FAILED_STOPS:
        state = _mark_newest_answer_failed(state)
    elif is_answer_to_last_request(state, body) and not is_impossible_count(state, body.usage.input):
        # The answer's message may be appended before this entry or after it.
        message_count = max(state.last_request.seen_count + 1, len(state.history.sized_messages))
        last_answer = LastAnswerUsage(message_count, body.usage.total, compute_leading_digest(state))
        state = replace(state, usage=replace(state.usage, last_answer=last_answer))
    return learn_from_usage(state, body)


def _mark_newest_answer_failed(state: ConversationState) -> ConversationState:
    """Return the state with the newest message marked as a failed answer, if it is one: its calls never ran."""
    last = len(state.history.sized_messages) - 1
    if last < state.view.first_kept or state.history.sized_messages[last].message.role != "assistant":
        return state
    failed_answer_indexes = (*state.history.failed_answer_indexes, last)
    return replace(
        state,
        history=replace(state.history, failed_answer_indexes=failed_answer_indexes, open_call_ids=()),
        view=replace(state.view, normalized_prefix=None),
    )


def _rebase_answer_digest(state: ConversationState) -> ConversationState:
    """Return the state with the newest message, if it answers the newest request, based on the content of that request.

    Messages and decisions that arrived while the answer was on its way lie between the request and the answer in the
    log, but the model has not seen them, and its signature does not cover them.
    """
    history, last_request = state.history, state.last_request
    last = len(history.sized_messages) - 1
    if not last_request.prefix_digest or last < max(last_request.seen_count, state.view.first_kept):
        return state
    if history.messages[last].role != "assistant":
        return state
    # Empty if the request's content was edited meanwhile: then no signature that covers it can be valid.
    digest_before = b""
    if last_request.prefix_digest == compute_prefix_digest_at(state, last_request.seen_count):
        digest_before = get_projection_digest_at(state, last_request.seen_count)
    if history.digests_before[last] == digest_before:
        return state
    return replace(
        state, history=replace(history, digests_before=history.digests_before.replace_from(last, [digest_before]))
    )


def _apply_failure(state: ConversationState, entry: Entry, body: FailureEntry) -> ConversationState:
    if body.kind == FAILURE_OVERFLOW:
        return learn_from_overflow(state, body)
    if body.kind == FAILURE_UNANSWERED:
        return state
    return _replace_counters(
        state,
        failed_compactions=state.counters.failed_compactions + 1,
        failures_since_summary=state.counters.failures_since_summary + 1,
        compaction_failed_at=entry.time_ms,
    )


def _apply_note(state: ConversationState, entry: Entry, body: NoteEntry) -> ConversationState:
    if body.reason == NOTE_WINDOW_FORGOTTEN:
        return forget_learned_limits(state)
    if body.reason == NOTE_MODEL_STATS:
        return apply_model_stats_note(state, body)
    if body.reason == NOTE_FORM:
        return apply_form_note(state, body)
    if body.reason == NOTE_FIELDS:
        return apply_field_lessons_note(state, body)
    if body.reason == NOTE_OPTIONS:
        return apply_changed_options_note(state, body)
    if body.reason == NOTE_CONTAINER:
        return _apply_container_note(state, body)
    if body.reason == NOTE_QUEUED:
        queued_messages = (*state.history.queued_messages, (entry.id, body.raw))
        return replace(state, history=replace(state.history, queued_messages=queued_messages))
    if body.reason == NOTE_DELIVERED:
        return _drop_delivered_messages(state, body.data.get("notes"))
    policy_name = body.data.get("name") if body.reason == NOTE_POLICY else None
    if isinstance(policy_name, str):
        return replace(state, policy_name=policy_name)
    return state


def _apply_container_note(state: ConversationState, note: NoteEntry) -> ConversationState:
    """Return the state with the containers of ``note`` (``NOTE_CONTAINER``); other than text names none."""
    current, expired = note.data.get("current"), note.data.get("expired")
    expired_ids = expired if isinstance(expired, list | tuple) else ()
    history = replace(
        state.history,
        container=current if isinstance(current, str) else "",
        expired_containers=tuple([id_ for id_ in expired_ids if isinstance(id_, str)]),
    )
    return replace(state, history=history)


def _drop_delivered_messages(state: ConversationState, note_ids: object) -> ConversationState:
    """Return the state without the queued messages named in ``note_ids``; other than a list of ids names none."""
    waiting: list[tuple[str, bytes]] = []
    for queued_message in state.history.queued_messages:
        note_id = queued_message[0]
        is_delivered = isinstance(note_ids, Sequence) and note_id in note_ids
        if not is_delivered:
            waiting.append(queued_message)
    return replace(state, history=replace(state.history, queued_messages=tuple(waiting)))


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


# -- parts of the steps ------------------------------------------------------------------------------------------------


def _recompute_projection_digests(state: ConversationState, first: int) -> ConversationState:
    """Return the state with the digests of its projection computed anew from message ``first`` on."""
    history = state.history
    if first > state.view.first_kept:
        digest = history.projection_digests[first - 1]
    else:
        digest = compute_leading_digest(state)
    digests: list[bytes] = []
    index, stop = first, len(history.sized_messages)
    while index < stop:
        for sized_message in list_shown_sized_messages_at(state, index):
            digest = chain_digest(digest, sized_message.digest)
        next_index = get_next_shown_index(state, index)
        # Messages that an edit of several took have the digest of what stands in their place.
        digests += [digest] * (min(next_index, stop) - index)
        index = next_index
    return replace(
        state, history=replace(history, projection_digests=history.projection_digests.replace_from(first, digests))
    )


def _reset_counters_at_answer(state: ConversationState) -> ConversationState:
    """Return ``state`` with the counters at 0 that limit recovery between two answers."""
    return _replace_counters(state, compactions_since_answer=0, truncations_since_answer=0)


def _replace_view(state: ConversationState, **changes: Any) -> ConversationState:
    """Return ``state`` with fields of its ``view`` replaced."""
    return replace(state, view=replace(state.view, **changes))


def _replace_last_request(state: ConversationState, **changes: Any) -> ConversationState:
    """Return ``state`` with fields of its ``last_request`` replaced."""
    return replace(state, last_request=replace(state.last_request, **changes))


def _replace_counters(state: ConversationState, **changes: Any) -> ConversationState:
    """Return ``state`` with fields of its ``counters`` replaced."""
    return replace(state, counters=replace(state.counters, **changes))
