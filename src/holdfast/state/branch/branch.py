"""The branch: a fold over the entries from the root of the log to a leaf.

``apply_entry`` is the only constructor. Extending one entry at a time, building at once and planning without memory all
give the same branch; that law is tested. What a request needs of the past is carried along, so that planning costs
what is new.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from itertools import accumulate, groupby
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from holdfast.messages.message import Message
from holdfast.messages.sized_message import SizedMessage
from holdfast.state.branch.media import add_media_counts, has_media_changes, recount_media
from holdfast.state.branch.tool_calls import record_first_calls, update_open_calls
from holdfast.state.branch.view import (
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
from holdfast.state.calibration.calibration import (
    Calibration,
    LastAnswerUsage,
    LearnedLimits,
    MeasuredRequest,
    adjust_for_setup_change,
)
from holdfast.state.calibration.model_stats import (
    ModelStats,
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
from holdfast.state.codec.dump import dump_state, load_state_fields
from holdfast.state.edit_map import EditMap
from holdfast.state.edits import Edit, NormalizedPrefix
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
    Usage,
)
from holdfast.state.sequence import PersistentSequence

TRUNCATE_RULE = "truncate"
"""Rule of the edits that cut results under pressure, which happens once between two answers."""


class ConversationState(Struct, frozen=True):
    """What is known of a conversation at one leaf. Immutable; sizes are estimator tokens unless said otherwise."""

    sized_messages: PersistentSequence[SizedMessage] = field(default_factory=PersistentSequence)
    """Every message from the root, oldest first."""
    messages: PersistentSequence[Message] = field(default_factory=PersistentSequence)
    """The messages of the slots, to be compared with a caller's list."""
    cumulative_tokens: PersistentSequence[int] = field(default_factory=PersistentSequence)
    """``sums[i]`` is the size of slots 0 to i as they were said."""
    projection_digests: PersistentSequence[bytes] = field(default_factory=PersistentSequence)
    """``marks[i]`` is the digest of the projection up to and with slot i; nothing for one that gave way."""
    digests_before: PersistentSequence[bytes] = field(default_factory=PersistentSequence)
    """``born[i]`` is the digest of the projection before slot i at the time it was appended; of an answer, of what its
    request showed, or nothing where that stands no more."""
    pinned_count: int = 0
    """System messages at the very start; they are always sent."""
    first_kept: int = 0
    """First slot that is shown; the ones before it gave way to ``compaction``."""
    compaction: CompactionEntry | None = None
    edits: EditMap = field(default_factory=EditMap)
    """Recorded edits in force, by the slot they start at."""
    shown_tokens: int = 0
    """Size of the projection, as the model that was asked last is shown it."""
    native_tokens: int = 0
    """Size of what stands for the head in it, where a provider compacted: its own items, or their readable twin."""
    first_index_by_call_id: dict[str, int] = field(default_factory=dict)
    """The slot that first used a call id; shared with the branches grown from here, so a larger index means never."""
    media_indexes: tuple[int, ...] = ()
    """The kept slots that show images or documents."""
    media_count: int = 0
    """Images and documents that are shown."""
    media_bytes: int = 0
    open_call_ids: tuple[str, ...] = ()
    """Ids of calls of the newest assistant message that have no result yet."""
    failed_answer_indexes: tuple[int, ...] = ()
    """Slots of answers that failed or were interrupted: calls of theirs without a result never ran."""
    setup: RequestSetup = RequestSetup()
    setup_changed_at: int = 0
    """How many slots there were when another frame last took the place of one; 0 where none did."""
    seen_count: int = 0
    """How many slots the newest request covered: what lies before was seen by the model as it is shown."""
    unchanged_until: int = 0
    """First of them that is shown otherwise since; ``seen_count`` where none is."""
    previous_coverage: tuple[int, int] = (0, 0)
    """``seen_count`` and ``unchanged_until`` as the newest request found them."""
    last_request_tokens: int = 0
    """``shown_tokens`` at the newest request."""
    last_prefix_digest: str = ""
    model: str = ""
    api: str = ""
    """The API that the newest request went to, as far as the log says so."""
    configured_window: int = 0
    """Window of the newest request as it was configured; 0 = not known."""
    measured_request: MeasuredRequest | None = None
    """The newest request whose size was told, whatever it shows now; ``valid_measured_request`` where that still
    stands.
    """
    last_answer: LastAnswerUsage | None = None
    """What was in use at the newest good answer; ``valid_last_answer`` where no compaction came later."""
    calibration: Calibration = Calibration()
    learned_limits: LearnedLimits = LearnedLimits()
    """What overflows told of the model that was asked last."""
    other_model_stats: tuple[ModelStats, ...] = ()
    """What was told of the models that were asked before it, in the order in which they were left."""
    requests_since_break: int = 0
    """Requests since the prefix last broke; a retry is the same request."""
    compactions_since_answer: int = 0
    """Compactions since the last answer."""
    failed_compactions: int = 0
    """Failed or useless compactions since the last good one."""
    failures_since_summary: int = 0
    """The same since the last one that somebody wrote: an extract in its place ends no row."""
    compaction_failed_at: int | None = None
    """When the newest of them failed, in ms since 1970, where the log says so."""
    truncations_since_answer: int = 0
    """Decisions to cut results under pressure since the last answer."""
    active_decisions: tuple[tuple[str, DecisionEntry | CompactionEntry], ...] = ()
    """Decisions and compactions in force with the ids of their entries, oldest first."""
    protected_parts: dict[int, tuple[int | None, ...]] = field(default_factory=dict)
    """Parts that an undo brought back, by their slot; nothing is all of it. Only what must fit may take them again."""
    turn_limit_start: int = 0
    """First slot that a limit of turns counts: an undo of what it hid brings back those before."""
    queued_messages: tuple[tuple[str, bytes], ...] = ()
    """The ids of the notes that hold messages which wait to be said, and what they hold; oldest first."""
    policy_name: str = ""
    """Who decides, as far as a note says so."""
    normalized_prefix: NormalizedPrefix | None = None
    """What hygiene found so far; a memory of the planner's, it changes no result."""

    @property
    def valid_measured_request(self) -> MeasuredRequest | None:
        """The request whose size was told, if what it showed still stands; so it does once a decision is undone."""
        measurement = self.measured_request
        if measurement is None or not measurement.projection_digest or measurement.native_tokens != self.native_tokens:
            return None
        return (
            measurement
            if measurement.projection_digest == get_projection_digest_at(self, measurement.message_count)
            else None
        )

    @property
    def valid_last_answer(self) -> LastAnswerUsage | None:
        """What was in use at the newest good answer, under the summary that is shown now."""
        return (
            self.last_answer
            if self.last_answer is not None and self.last_answer.base_digest == compute_leading_digest(self)
            else None
        )

    @classmethod
    def from_entries(cls, entries: Iterable[Entry]) -> ConversationState:
        """Return the branch of ``entries``, given in order from the root."""
        return apply_entries(cls(), entries)

    def with_reported_usage(self, input_tokens: int, output_tokens: int = 0) -> ConversationState:
        """Return the branch knowing what the request it was planned for really cost, cached tokens included.

        Raises ``TypeError`` for what is no number of tokens.
        """
        for name, token_count in (("input_tokens", input_tokens), ("output_tokens", output_tokens)):
            if not isinstance(token_count, int):
                raise TypeError(
                    f"{name} is of type {type(token_count).__name__}; give the number that the provider reported"
                )
        usage = Usage(input_tokens, output_tokens)
        return apply_entry(self, Entry("", None, AnswerEntry(self.last_prefix_digest, usage)))

    def dump(self) -> bytes:
        """Return the branch as bytes for a database of your own; wire bytes are kept byte for byte."""
        return dump_state(self)

    @classmethod
    def load(cls, data: bytes) -> ConversationState:
        """Return the branch that ``dump`` wrote; raises ``FormatError`` for any other bytes."""
        return recount_media(cls(**load_state_fields(data)))


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
    if (request.prefix_digest, request.message_count) != (state.last_prefix_digest, state.seen_count):
        return state
    seen_count, standing = state.previous_coverage
    return replace(state, seen_count=seen_count, unchanged_until=standing)


def is_protected_part(state: ConversationState, slot: int, part: int | None) -> bool:
    """Return whether an undo brought back this part, or all of its slot."""
    parts = state.protected_parts.get(slot, ())
    return part in parts or None in parts


# -- the steps of the fold ---------------------------------------------------------------------------------------------


def _apply_message(
    state: ConversationState, _entry: Entry, body: MessageEntry | BranchSummaryEntry
) -> ConversationState:
    return _append_messages(state, [body.sized_message])


def _append_messages(state: ConversationState, new: Sequence[SizedMessage]) -> ConversationState:
    """Return the branch with the messages of ``new`` said in turn."""
    count, messages = len(state.sized_messages), [sized_message.message for sized_message in new]
    born, marks = _compute_appended_digests(state, new)
    sized_messages = state.sized_messages.add(*new)
    callers = record_first_calls(state.first_index_by_call_id, state.sized_messages, sized_messages, new)
    sizes = list(
        accumulate([sized_message.tokens for sized_message in new], initial=state.cumulative_tokens[-1] if count else 0)
    )
    opening = (
        _count_leading_system_messages(messages) if state.pinned_count == count and state.compaction is None else 0
    )
    answer = next((at for at in reversed(range(len(new))) if messages[at].role == "assistant"), None)
    state = replace(
        state,
        sized_messages=sized_messages,
        messages=state.messages.add(*messages),
        first_index_by_call_id=callers,
        cumulative_tokens=state.cumulative_tokens.add(*sizes[1:]),
        projection_digests=state.projection_digests.add(*marks),
        digests_before=state.digests_before.add(*born),
        pinned_count=state.pinned_count + opening,
        first_kept=count + opening if opening else state.first_kept,
        shown_tokens=state.shown_tokens + sizes[-1] - sizes[0],
        open_call_ids=reduce(
            update_open_calls, messages[answer:], state.open_call_ids
        ),  # an answer's calls are all that wait behind it
        compactions_since_answer=state.compactions_since_answer if answer is None else 0,
        truncations_since_answer=state.truncations_since_answer if answer is None else 0,
    )
    return add_media_counts(state, enumerate(messages, count))


def _compute_appended_digests(state: ConversationState, new: Sequence[SizedMessage]) -> tuple[list[bytes], list[bytes]]:
    """Return the digests of the projection before each of ``new``, and with it."""
    count, base = len(state.sized_messages), compute_leading_digest(state)
    hidden = [b""] * min(len(new), max(0, state.first_kept - count))
    before = state.projection_digests[-1] if count > state.first_kept else base
    marks = [*accumulate([sized_message.digest for sized_message in new[len(hidden) :]], chain_digest, initial=before)]
    return [base] * len(hidden) + marks[:-1], hidden + marks[1:]


def _count_leading_system_messages(messages: Sequence[Message]) -> int:
    """Return how many system messages ``messages`` open with."""
    return next((at for at, message in enumerate(messages) if message.role != "system"), len(messages))


def _apply_setup(state: ConversationState, _entry: Entry, body: RequestSetup) -> ConversationState:
    if body == state.setup:
        return state
    extra_tokens, is_comparable = body.tokens - state.setup.tokens, body.is_exact == state.setup.is_exact
    new_measurement = adjust_for_setup_change(state.measured_request, extra_tokens) if is_comparable else None
    aside = [
        replace(
            stats,
            measured_request=adjust_for_setup_change(stats.measured_request, extra_tokens) if is_comparable else None,
        )
        for stats in state.other_model_stats
    ]
    setup_changed_at = (
        len(state.sized_messages) if state.seen_count or state.setup != RequestSetup() else state.setup_changed_at
    )  # the first changes nothing
    return replace(
        state,
        setup=body,
        setup_changed_at=setup_changed_at,
        measured_request=new_measurement,
        other_model_stats=tuple(aside),
        requests_since_break=0,
        normalized_prefix=None,
    )


def _apply_decision(state: ConversationState, entry: Entry, body: DecisionEntry) -> ConversationState:
    return replace(
        _apply_edits(state, body.edits),
        active_decisions=(*state.active_decisions, (entry.id, body)),
        truncations_since_answer=state.truncations_since_answer
        + any(edit.rule == TRUNCATE_RULE for edit in body.edits),
    )


def _apply_edits(state: ConversationState, new: tuple[Edit, ...]) -> ConversationState:
    """Put ``new`` edits in force."""
    if not new:
        return state
    first = min(edit.span.start for edit in new)
    saved_tokens = sum(edit.saves for edit in new if edit.span.start >= state.first_kept)
    state = replace(
        state,
        edits=state.edits.add(new),
        shown_tokens=state.shown_tokens - saved_tokens,
        requests_since_break=state.requests_since_break if first >= state.seen_count else 0,
        unchanged_until=min(state.unchanged_until, _find_first_changed_index(state, new)),
        normalized_prefix=state.normalized_prefix
        if state.normalized_prefix is not None and first >= state.normalized_prefix.next_index
        else None,
    )
    state = recount_media(state) if has_media_changes(state, new) else state
    return _recompute_projection_digests(state, max(first, state.first_kept))


def _apply_compaction(state: ConversationState, entry: Entry, body: CompactionEntry) -> ConversationState:
    return replace(
        _replace_head_by_summary(state, body),
        active_decisions=(*state.active_decisions, (entry.id, body)),
        compactions_since_answer=state.compactions_since_answer
        + (body.summary is not None and body.trigger != TRIGGER_FALLBACK),
        failed_compactions=state.failed_compactions if body.summary is None else 0,
        failures_since_summary=0 if body.author else state.failures_since_summary,
        requests_since_break=0,
    )


def _replace_head_by_summary(state: ConversationState, body: CompactionEntry) -> ConversationState:
    """Return the branch with what lies before the kept slots given way: it costs what is kept."""
    every, edits = len(state.sized_messages), state.edits.add(body.edits)
    head = sum(sized_message.tokens for sized_message in state.sized_messages.slice(0, state.pinned_count))
    tail = sum(sized_message.tokens for sized_message in state.sized_messages.slice(body.first_kept))
    saved_tokens = sum(edit.saves for index in range(body.first_kept, every) for edit in edits.get(index, ()))
    hidden = [b""] * (min(body.first_kept, every) - state.pinned_count)
    state = replace(
        state,
        first_kept=body.first_kept,
        compaction=body,
        native_tokens=measure_native_summary(body, state.model, state.api),
        edits=edits,
        shown_tokens=head + measure_summary(body, state.model, state.api) + tail - saved_tokens,
        projection_digests=state.projection_digests.replace_from(state.pinned_count, hidden),
        unchanged_until=min(state.unchanged_until, body.first_kept),
        normalized_prefix=None,
    )
    return _recompute_projection_digests(recount_media(state), body.first_kept)


def _apply_revoke(state: ConversationState, _entry: Entry, body: RevokeEntry) -> ConversationState:
    law = tuple([(id_, decision) for id_, decision in state.active_decisions if id_ != body.revoked_id])
    if len(law) == len(state.active_decisions):
        return state
    after = replace(_rebuild_with_decisions(state, law), unchanged_until=state.unchanged_until)
    for revoked_decision in [decision for id_, decision in state.active_decisions if id_ == body.revoked_id]:
        after = _protect_restored_parts(after, state, revoked_decision)
    return after


def _protect_restored_parts(
    state: ConversationState, before: ConversationState, revoked: DecisionEntry | CompactionEntry
) -> ConversationState:
    """Return ``state``, that of ``before`` without ``revoked``, knowing what that brought back."""
    hid = isinstance(revoked, CompactionEntry)
    is_history_limit = isinstance(revoked, CompactionEntry) and revoked.trigger == TRIGGER_HISTORY
    first = min(state.first_kept, before.first_kept) if hid else _find_first_changed_index(state, revoked.edits)
    protected_parts = dict(state.protected_parts)
    for edit in revoked.edits:
        for slot in range(edit.span.start, edit.span.stop):
            protected_parts[slot] = (*protected_parts.get(slot, ()), edit.span.part)
    return replace(
        state,
        unchanged_until=min(state.unchanged_until, first),
        protected_parts=protected_parts,
        turn_limit_start=len(state.sized_messages) if is_history_limit else state.turn_limit_start,
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
    state = replace(state, active_decisions=decisions, edits=EditMap(before), requests_since_break=0)
    compaction = decisions[newest][1] if newest >= 0 else None
    if isinstance(compaction, CompactionEntry):
        return _apply_edits(_replace_head_by_summary(state, compaction), tuple(behind))
    shown_tokens = state.cumulative_tokens[-1] if len(state.sized_messages) else 0
    state = replace(
        state,
        first_kept=state.pinned_count,
        compaction=None,
        native_tokens=0,
        shown_tokens=shown_tokens,
        normalized_prefix=None,
    )
    return _apply_edits(_recompute_projection_digests(recount_media(state), state.pinned_count), tuple(behind))


def _find_first_changed_index(state: ConversationState, edits: Iterable[Edit]) -> int:
    """Return the first slot that is shown otherwise by ``edits``, or the end."""
    starts = (
        max(edit.span.start, state.first_kept)
        for edit in edits
        if max(edit.span.stop, edit.span.start + 1) > state.first_kept
    )
    return min(starts, default=len(state.sized_messages))


def _apply_request(state: ConversationState, _entry: Entry, body: RequestEntry) -> ConversationState:
    is_retry = restore_coverage_before_retry(state, body) is not state
    covered_count = min(
        body.message_count, len(state.sized_messages)
    )  # in a log that lost messages a request may have covered more
    shown_tokens = get_shown_tokens(state, body.model, body.api)
    return replace(
        switch_model(state, body.model, body.window),
        api=body.api,
        shown_tokens=shown_tokens,
        native_tokens=measure_native_summary(state.compaction, body.model, body.api),
        seen_count=covered_count,
        unchanged_until=covered_count,
        previous_coverage=state.previous_coverage
        if is_retry or state.learned_limits.overflows_since_answer
        else (state.seen_count, state.unchanged_until),
        last_request_tokens=shown_tokens,
        last_prefix_digest=body.prefix_digest,
        requests_since_break=state.requests_since_break + (not is_retry),
    )


FAILED_STOPS = frozenset({"error", "aborted"})
"""Values of ``AnswerEntry.stop_reason`` for answers that failed or were interrupted (as ``formats/base.py`` reads
them).
"""


def _apply_answer(state: ConversationState, _entry: Entry, body: AnswerEntry) -> ConversationState:
    state = replace(_rebase_answer_digest(state), compactions_since_answer=0, truncations_since_answer=0)
    last = len(state.sized_messages) - 1
    if (
        body.stop_reason in FAILED_STOPS
        and last >= state.first_kept
        and state.sized_messages[last].message.role == "assistant"
    ):
        state = replace(
            state, failed_answer_indexes=(*state.failed_answer_indexes, last), open_call_ids=(), normalized_prefix=None
        )  # its calls never ran
    if (
        body.stop_reason not in FAILED_STOPS
        and is_answer_to_last_request(state, body)
        and not is_impossible_count(state, body.usage.input)
    ):
        slots = max(
            state.seen_count + 1, len(state.sized_messages)
        )  # the answer may be said before this entry or after it
        state = replace(state, last_answer=LastAnswerUsage(slots, body.usage.total, compute_leading_digest(state)))
    return learn_from_usage(state, body)


def _rebase_answer_digest(state: ConversationState) -> ConversationState:
    """Return the branch with its newest message, if that answers the newest request, born behind what that showed.

    What was said or decided while the answer was on its way lies between them.
    """
    last = len(state.sized_messages) - 1
    if (
        not state.last_prefix_digest
        or last < max(state.seen_count, state.first_kept)
        or state.messages[last].role != "assistant"
    ):
        return state
    before = (
        get_projection_digest_at(state, state.seen_count)
        if state.last_prefix_digest == compute_prefix_digest_at(state, state.seen_count)
        else b""
    )
    is_unchanged = state.digests_before[last] == before
    return state if is_unchanged else replace(state, digests_before=state.digests_before.replace_from(last, [before]))


def _apply_failure(state: ConversationState, entry: Entry, body: FailureEntry) -> ConversationState:
    if body.kind == FAILURE_OVERFLOW:
        return learn_from_overflow(state, body)
    if body.kind == FAILURE_UNANSWERED:
        return state
    return replace(
        state,
        failed_compactions=state.failed_compactions + 1,
        failures_since_summary=state.failures_since_summary + 1,
        compaction_failed_at=entry.time_ms,
    )


def _apply_note(state: ConversationState, entry: Entry, body: NoteEntry) -> ConversationState:
    if body.reason == NOTE_WINDOW_FORGOTTEN:
        return forget_learned_limits(state)
    if body.reason == NOTE_MODEL_STATS:
        return apply_model_stats_note(state, body)
    if body.reason == NOTE_FORM:
        return apply_server_format_note(state, body)
    if body.reason == NOTE_QUEUED:
        return replace(state, queued_messages=(*state.queued_messages, (entry.id, body.raw)))
    if body.reason == NOTE_DELIVERED:
        note_ids = body.data.get("notes")
        waiting = [
            queued_message
            for queued_message in state.queued_messages
            if not isinstance(note_ids, Sequence) or queued_message[0] not in note_ids
        ]
        return replace(state, queued_messages=tuple(waiting))
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
    before = state.projection_digests[first - 1] if first > state.first_kept else compute_leading_digest(state)
    index, stop = first, len(state.sized_messages)
    while index < stop:
        for sized_message in list_shown_sized_messages_at(state, index):
            before = chain_digest(before, sized_message.digest)
        after = get_next_shown_index(state, index)
        marks += [before] * (min(after, stop) - index)
        index = after
    return replace(state, projection_digests=state.projection_digests.replace_from(first, marks))
