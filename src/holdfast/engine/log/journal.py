"""The journal: append to one branch of a stored session, plan its requests, and follow a client's conversation.

Synchronous. When a method returns, its entries are in the log; when it raises, log and state are unchanged. The cost of
a method is proportional to what is new: the state is folded on, not read again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from holdfast.engine.log.branch_log import BranchLog
from holdfast.engine.log.conversation_diff import ConversationMatcher, PrefixMatch
from holdfast.engine.log.fork import (
    collect_decisions_to_copy,
    make_container_notes,
    make_learned_limits_notes,
    rebase_entry_body,
)
from holdfast.engine.log.new_entries import (
    add_unstored_notice,
    begin_session,
    check_message_types,
    convert_to_sized_message,
    is_replan_forced,
    make_answer_entry_body,
    make_plan_entry_bodies,
    resolve_decision_id,
    resolve_undone_id,
)
from holdfast.engine.log.queued_messages import (
    decode_queued_messages,
    is_queued_note,
    is_user_message,
    make_delivered_note,
    make_queued_note,
)
from holdfast.errors import StoreError, UnknownId, raise_if_wrong_type
from holdfast.messages.message import Message
from holdfast.messages.size.tokens import build_sized_message
from holdfast.messages.sized_message import SizedMessage, bound_message_chars
from holdfast.messages.text.text_cuts import flatten_to_line
from holdfast.messages.text.user_text import find_first_user_text
from holdfast.normalize.projection import build_messages_to_send
from holdfast.planning.budget import compute_effective_target
from holdfast.planning.circuit_breaker import is_breaker_closed, is_breaker_tripped
from holdfast.planning.pipeline import Policy, plan_request
from holdfast.planning.stages.append_limit import cap_message_texts
from holdfast.state.cache_misses import AnsweredRequest
from holdfast.state.changed_options import MAX_CHANGED_OPTIONS, ChangedOption, find_new_options
from holdfast.state.conversation_state import ConversationState
from holdfast.state.edits import Blob
from holdfast.state.entries import (
    FAILURE_OVERFLOW,
    FAILURE_UNANSWERED,
    NOTE_CONTAINER,
    NOTE_FIELDS,
    NOTE_FORM,
    NOTE_OPTIONS,
    NOTE_WINDOW_FORGOTTEN,
    AnswerEntry,
    BranchSummaryEntry,
    CompactionEntry,
    Entry,
    EntryBody,
    FailureEntry,
    MessageEntry,
    NoteEntry,
    RequestEntry,
    RevokeEntry,
    Usage,
)
from holdfast.state.field_lessons import FieldLesson
from holdfast.state.fold.rewind import replace_raw_bytes, share_message_objects
from holdfast.state.plan import Plan, mark_compaction_manual
from holdfast.state.target import PlanInputs, Target
from holdfast.state.view import compute_prefix_digest, compute_prefix_digest_at
from holdfast.store.base import MessageDecoder, SessionStore
from holdfast.store.blobs.blob_names import NOTE_CAPPED
from holdfast.store.repair.repair_on_read import read_with_repair
from holdfast.store.tree.active import GappedSequence
from holdfast.store.tree.tree import get_time_ms, make_entry_ids

# One line of `holdfast ls`. Chosen by judgement.
MAX_TITLE_CHARS = 80
"""Characters of the title that a session gets from its user's first words, if nobody gave it one."""
# A client repeats the last one that it was told of, so one or two are in use at a time. Chosen by judgement.
MAX_EXPIRED_CONTAINERS = 8
"""Containers of the provider's that are remembered as gone; the newest are kept."""
# A request is followed by its answer, the answer's usage, and now and then a note, or messages that were appended.
# Chosen by judgement: 32 look-ups by id take about 2 ms.
MAX_ENTRIES_TO_LAST_REQUEST = 32
"""Entries that are read, from the newest back, for the last request before a session was opened."""


class PreparedRequest(Struct, frozen=True):
    """A request that may be sent now: its plan, the messages it shows, and the id of its entry in the log."""

    plan: Plan
    messages: tuple[SizedMessage, ...]
    request_id: str
    target: Target


class Journal(BranchLog):
    """One branch of one stored session, and the operations of a conversation on it."""

    def __init__(
        self,
        store: SessionStore,
        key: str,
        policy: Policy,
        state: ConversationState,
        leaf: str | None,
        clock: Callable[[], int] = get_time_ms,
        *,
        ids: Callable[[int], list[str]] = make_entry_ids,
        moves_leaf: bool = False,
    ) -> None:
        super().__init__(store, key, state, leaf, clock, ids, moves_leaf=moves_leaf)
        self.policy = policy
        self._last_sent_at = store.get_session(key).updated_at or clock()
        """Time in milliseconds when the last request was sent or answered, as far as it is known."""
        self._opening: tuple[ConversationState, str | None] | None = (state, leaf)
        """State and leaf at which this journal was opened, until somebody asked for the last request before it."""
        self.request_sent_at: int | None = None
        """Time in milliseconds when the newest request was committed here; None before the first one."""
        self._ready_request: PreparedRequest | None = None
        """The last committed request, as long as nothing was appended since: sent again, it must be the same."""
        self._matcher = ConversationMatcher()
        self._described_model = ""
        """The model that this journal last wrote to the list of sessions."""

    @classmethod
    def open(
        cls,
        store: SessionStore,
        key: str,
        policy: Policy = Policy(),
        *,
        leaf: str | None = None,
        clock: Callable[[], int] = get_time_ms,
        ids: Callable[[int], list[str]] = make_entry_ids,
    ) -> Journal:
        """Open session ``key`` to append to it.

        Without ``leaf`` the journal continues at the session's own leaf, and moves it; a session that does not exist is
        created. With ``leaf``, the id of an entry or its beginning, the journal is a fork that continues after that
        entry, and the session's leaf stays where it is.

        The policy is adapted to the key: a channel may have a limit of turns. A damaged session is repaired first if
        that loses nothing (see ``repairs``). Raises ``StoreCorrupt`` if it cannot be repaired so, and ``UnknownId`` if
        the session has no entry ``leaf``, or several whose ids begin with it.
        """
        policy = policy.for_session(key)
        if leaf is not None:
            leaf_id: str | None = store.get_entry(key, leaf).id
        else:
            with store.hold_lease(key):
                leaf_id = begin_session(store, key, policy, clock, ids)
        repairs: list[str] = []
        state = ConversationState()
        if leaf_id is not None:
            state = read_with_repair(store, key, lambda: store.open_state(key, leaf_id), repairs.extend)
        journal = cls(
            store,
            key,
            policy,
            state,
            leaf_id,
            clock,
            ids=ids,
            moves_leaf=leaf is None,
        )
        decode_queued_messages(state, key)  # one that cannot be read is said now, not when it is due
        journal.repairs = repairs
        return journal

    # -- messages ------------------------------------------------------------------------------------------------------

    def append(self, *messages: Message | SizedMessage) -> list[str]:
        """Append messages in one transaction and return the ids of their entries.

        A text over the append limit is stored as a blob and shortened; if the blob cannot be stored it stays whole.
        """
        return self._append_messages(messages)

    def record_answer(
        self,
        answer: Message | SizedMessage,
        usage: Usage = Usage(),
        stop: str = "",
        *,
        as_planned: bool = True,
        container: str = "",
    ) -> str:
        """Append the answer to the last prepared request with its usage, then the messages that waited for it.

        Return the id of the answer's message; for an answer without content, of which only the usage is recorded, the
        id of that entry. ``as_planned`` is false if other messages were sent than planned: the usage then does not
        measure the plan. ``container`` is the id of the provider's container that the answer named.
        """
        sized_message = convert_to_sized_message(answer)
        # One transaction: were only the queued messages refused, the caller would record the answer once more.
        with self.batch_writes():
            if sized_message.message.parts:
                bodies = self._make_message_bodies(sized_message)
            else:
                bodies = []
            bodies.append(make_answer_entry_body(self.state, usage, stop, as_planned=as_planned, container=container))
            entries = self._append_bodies(bodies)
            self._deliver_queued()
        message_ids = []
        for entry in entries:
            if isinstance(entry.body, MessageEntry):
                message_ids.append(entry.id)
        return message_ids[-1] if message_ids else entries[0].id

    def record_expired_container(self, container: str) -> None:
        """Append that the provider no longer has ``container``: no later request names it."""
        history = self.state.history
        current = "" if history.container == container else history.container
        expired = (*history.expired_containers, container)[-MAX_EXPIRED_CONTAINERS:]
        data = {"current": current, "expired": list(expired)}
        with self.hold_lease():
            self._append_bodies([NoteEntry(NOTE_CONTAINER, data=data)])

    def record_failure(self, reason: str, kind: str = FAILURE_UNANSWERED) -> str:
        """Append that an attempt failed; return the entry's id.

        ``kind`` is ``FAILURE_UNANSWERED`` for the last prepared request, or the outcome of a failed compaction. The
        request stays ready: a failure changes nothing in it.
        """
        ready_request = self._ready_request
        with self.hold_lease():
            entries = self._append_bodies([FailureEntry(kind, reason)])
        self._ready_request = ready_request
        return entries[0].id

    def add_notes(self, *notes: NoteEntry) -> None:
        """Append ``notes``; no later request depends on them."""
        if notes:
            with self.hold_lease():
                self._append_bodies(notes)

    def record_overflow(
        self,
        reason: str,
        limit: int = 0,
        requested_tokens: int = 0,
        most_bytes: int = 0,
        *,
        as_planned: bool = True,
    ) -> str:
        """Append that the last prepared request was too large, with the provider's numbers; return the entry's id.

        All later requests are planned by them. ``limit`` and ``requested_tokens`` are in tokens, ``most_bytes`` is the
        longest body that is accepted; 0 if not known. If other messages were sent than planned, only the limits count.
        """
        failure = FailureEntry(
            FAILURE_OVERFLOW,
            reason,
            limit,
            requested_tokens if as_planned else 0,
            is_other_branch=not as_planned,
            max_body_bytes=most_bytes,
        )
        with self.hold_lease():
            return self._append_bodies([failure])[0].id

    def record_accepted_form(self, *, requires_strict_form: bool = False, requires_check: bool = False) -> None:
        """Record what the server requires of a client's content, unless the log says the same already.

        The arguments become the fields of the same names of ``LearnedLimits``. A ready request stays ready: it is
        about to be sent again.
        """
        learned_limits = self.state.usage.learned_limits
        known_form = (learned_limits.requires_strict_form, learned_limits.requires_check)
        if known_form == (requires_strict_form, requires_check):
            return
        # The names of the log, which stay readable.
        data = {"mends": requires_strict_form, "judges": requires_check}
        self._append_note_beside_request(NoteEntry(NOTE_FORM, data=data))

    def record_field_lessons(self, lessons: Sequence[FieldLesson]) -> None:
        """Record that ``lessons`` hold for the model of the last request from here on, in place of those before.

        A ready request stays ready: it is about to be sent again.
        """
        known = self.state.usage.learned_limits.field_lessons
        if known == tuple(lessons):
            return
        new_count = sum(lesson not in known for lesson in lessons)
        data = {"lessons": to_builtins(tuple(lessons)), "new": new_count}
        self._append_note_beside_request(NoteEntry(NOTE_FIELDS, data=data))

    def record_changed_options(self, options: Sequence[ChangedOption]) -> None:
        """Record ``options`` that were changed in the last request, unless that is known for its model.

        A ready request stays ready: it is about to be sent.
        """
        known = self.state.usage.learned_limits.changed_options
        new_options = find_new_options(options, known)[: MAX_CHANGED_OPTIONS - len(known)]
        if new_options:
            self._append_note_beside_request(NoteEntry(NOTE_OPTIONS, data={"options": to_builtins(new_options)}))

    def _append_note_beside_request(self, note: NoteEntry) -> None:
        ready_request = self._ready_request
        with self.hold_lease():
            self._append_bodies([note])
        self._ready_request = ready_request

    def describe_session(self, model: str) -> None:
        """Store the model, and the user's first words as a title, for the list of sessions."""
        if self._described_model == model:
            return
        info = self.store.get_session(self.key)
        title: str | None = None
        # A gapped history left its oldest messages in the log; such a session was described when they were new.
        has_first_message = not isinstance(self.state.history.sized_messages, GappedSequence)
        if not info.title and has_first_message:
            title = flatten_to_line(find_first_user_text(self.state.history.messages), MAX_TITLE_CHARS) or None
        self.store.update_session_info(self.key, title=title, model=model)
        self._described_model = model

    def get_idle_seconds(self) -> int:
        """Return the seconds since the last request was sent or answered."""
        return max(0, (self._clock() - self._last_sent_at) // 1_000)

    def take_request_before_opening(self) -> AnsweredRequest | None:
        """Return the newest answered request from before this journal was opened; None at every later call.

        None also if there is none among the last entries, or if a decision has changed since what it showed: its state
        would have to be folded anew, for a report that ``holdfast stats`` gives as well.
        """
        if self._opening is None:
            return None
        (state, entry_id), self._opening = self._opening, None
        count = state.last_request.seen_count
        if not count or state.last_request.prefix_digest != compute_prefix_digest_at(state, count):
            return None
        answer: AnswerEntry | None = None
        for _ in range(MAX_ENTRIES_TO_LAST_REQUEST):
            if entry_id is None:
                return None
            try:
                entry = self.store.get_entry(self.key, entry_id)
            except StoreError:
                # The answer that is about to be recorded matters more than a report about the cache.
                return None
            if isinstance(entry.body, AnswerEntry) and answer is None:
                answer = entry.body
            if isinstance(entry.body, RequestEntry):
                return None if answer is None else AnsweredRequest(entry.id, state, entry.time_ms, answer.usage)
            entry_id = entry.parent
        return None

    def is_breaker_cooled(self) -> bool:
        """Return whether compaction failed so often that the breaker opened, and its cool-down has passed since."""
        counters, settings = self.state.counters, self.policy.settings
        if not is_breaker_tripped(counters.failed_compactions, settings):
            return False
        return is_breaker_closed(counters.failed_compactions, counters.compaction_failed_at, self._clock(), settings)

    def is_still_stored(self) -> bool:
        """Return whether the store still has the leaf; somebody may have removed the session."""
        try:
            return self.leaf is None or bool(self.store.get_entry(self.key, self.leaf).id)
        except UnknownId:
            return False

    def read_messages(self, start: int, stop: int) -> list[SizedMessage]:
        """Return the messages from ``start`` to ``stop`` as appended, from the log if the state does not hold them."""
        try:
            return self.state.history.sized_messages.slice(start, stop)
        except LookupError:
            self._rebuild_state()
            return self.state.history.sized_messages.slice(start, stop)

    # -- messages that arrive while a request is on its way ------------------------------------------------------------

    def queue_messages(self, *messages: Message | SizedMessage) -> list[str]:
        """Store messages while an answer is on its way, and return the ids of their entries.

        A user message belongs after the answer: it is stored now and appended by ``deliver_queued``. Anything else,
        such as tool results, is appended now.
        """
        bodies: list[EntryBody] = []
        with self.hold_lease():
            for message in messages:
                if is_user_message(message):
                    bodies.append(make_queued_note(check_message_types(message)))
                else:
                    bodies += self._make_message_bodies(message)
            entries = self._append_bodies(bodies)
        return [entry.id for entry in entries if isinstance(entry.body, MessageEntry) or is_queued_note(entry)]

    @property
    def has_queued_messages(self) -> bool:
        """Whether messages wait for the answer, as far as this journal has read the log."""
        return bool(self.state.history.queued_messages)

    def deliver_queued(self) -> list[str]:
        """Append the queued messages; return the ids of their entries."""
        if not self.has_queued_messages:
            return []
        with self.hold_lease():
            return self._deliver_queued()

    def _deliver_queued(self) -> list[str]:
        self._catch_up()
        queued_messages = decode_queued_messages(self.state, self.key)
        if not queued_messages:
            return []
        note_ids: list[str] = []
        bodies: list[EntryBody] = []
        for note_id, message in queued_messages:
            note_ids.append(note_id)
            bodies += self._make_message_bodies(message)
        # One transaction with the messages themselves: after a crash none is missing and none is there twice.
        entries = self._append_bodies([*bodies, make_delivered_note(note_ids)])
        message_ids: list[str] = []
        for entry in entries:
            if isinstance(entry.body, MessageEntry):
                message_ids.append(entry.id)
        return message_ids

    # -- requests ------------------------------------------------------------------------------------------------------

    def prepare_request(self, target: Target, inputs: PlanInputs = PlanInputs()) -> PreparedRequest:
        """Plan and commit the next request: its decisions, and the request itself, are in the log when it is returned.

        A retry with nothing appended since shows the same bytes, also after a restart, unless a compaction or an
        overflow step is asked for, or the request no longer fits the target. No summary is requested: a compaction
        makes an extract. Raises ``WindowTooSmall`` before anything is written.
        """
        own_inputs = replace(inputs, can_summarize=False)
        # Planned under the lease too: else another process that keeps writing could make every plan out of date.
        with self.hold_lease():
            plan = self.plan_next(target, own_inputs)
            return self._write_request(plan, target, own_inputs)

    def plan_next(self, target: Target, inputs: PlanInputs = PlanInputs()) -> Plan:
        """Plan the next request without writing anything.

        If the plan has a ``summary_request``, that summary is to be made before the plan is committed.
        """
        raise_if_wrong_type(
            TypeError,
            target=(target, Target),
            inputs=(inputs, PlanInputs),
        )
        self._catch_up()
        ready_request = self._ready_request
        if ready_request is not None and ready_request.target == target and not is_replan_forced(inputs):
            return ready_request.plan
        return self._plan_retry(target, inputs) or self._plan_anew(target, inputs)

    def commit_plan(
        self,
        plan: Plan,
        target: Target,
        inputs: PlanInputs = PlanInputs(),
    ) -> PreparedRequest | None:
        """Write the decisions of ``plan`` and its request to the log, and return the request.

        Return None, with nothing written, if the log has moved on since the plan was made.
        """
        if self._ready_request is not None and plan is self._ready_request.plan:
            return self._ready_request
        with self.hold_lease():
            if not self._is_plan_current(plan):
                return None
            return self._write_request(plan, target, inputs)

    def _write_request(self, plan: Plan, target: Target, inputs: PlanInputs) -> PreparedRequest:
        """Write the decisions of ``plan``, which is of the log as it is now, and its request; return the request."""
        if self._ready_request is not None and plan is self._ready_request.plan:
            return self._ready_request
        with self.hold_lease():
            plan = self._store_plan_blobs(plan, target, inputs)
            entries = self._append_bodies(make_plan_entry_bodies(self.state, plan, target, self.policy.name))
        # The fold knows nothing of normalization: the plan's cache of it is carried over to the new state.
        view = replace(self.state.view, normalized_prefix=plan.state.view.normalized_prefix)
        self.state = replace(self.state, view=view)
        plan = replace(plan, state=self.state)
        prepared_request = PreparedRequest(plan, tuple(build_messages_to_send(plan)), entries[-1].id, target)
        self._ready_request = prepared_request
        return prepared_request

    def write_decision(
        self,
        plan: Plan,
        target: Target,
        inputs: PlanInputs = PlanInputs(),
    ) -> Plan | None:
        """Write the decisions of ``plan`` without a request (``/compact``).

        Return the plan that was written: another one if its texts could not be stored. Return None if the log has moved
        on since the plan was made.
        """
        with self.hold_lease():
            if not self._is_plan_current(plan):
                return None
            stored_plan = self._store_plan_blobs(plan, target, inputs)
            *decision_bodies, _request = make_plan_entry_bodies(self.state, stored_plan, target, self.policy.name)
            self._append_bodies(decision_bodies)
        return stored_plan

    def record_compaction(self, compaction: CompactionEntry) -> str:
        """Append a compaction that was made elsewhere, by the provider; return its id."""
        with self.hold_lease():
            return self._append_bodies([compaction])[0].id

    def _is_plan_current(self, plan: Plan) -> bool:
        """Return whether ``plan`` was made for the state as it is now: no message, decision or undo came since."""
        if self._catch_up():
            return False
        if len(plan.state.history.sized_messages) != len(self.state.history.sized_messages):
            return False
        # `plan.state` has the plan's own decisions applied, at the end.
        planned_decisions = plan.state.view.active_decisions
        own_count = bool(plan.record) + (plan.compaction is not None)
        return planned_decisions[: len(planned_decisions) - own_count] == self.state.view.active_decisions

    def _store_plan_blobs(self, plan: Plan, target: Target, inputs: PlanInputs) -> Plan:
        """Store the texts of ``plan`` and return it; if the store refuses one, return a plan that spills nothing.

        The texts come first: a decision that names a blob may only be written once the blob is durable.
        """
        store_error = self._store_blobs(plan.blobs)
        if store_error is None:
            return plan
        unspilled_plan = self._plan_anew(target, replace(inputs, can_spill=False, can_summarize=False))
        unspilled_plan = add_unstored_notice(unspilled_plan, store_error)
        is_manual = plan.compaction is not None and plan.compaction.trigger == "manual"
        if is_manual:
            return mark_compaction_manual(unspilled_plan)
        return unspilled_plan

    # -- other branches ------------------------------------------------------------------------------------------------

    def undo(self, id: str | None = None) -> str:  # noqa: A002 -- what it is called everywhere
        """Revoke the newest decision or compaction in force, or the one whose id begins with ``id``; return its id.

        No rule decides the same again, except to make the request fit: then texts and media may go, and a compaction
        may be made once the request is over its trigger. After an undone limit of turns only newer turns count.
        """
        return self.revoke_decisions(id)[0]

    def revoke_decisions(self, *ids: str | None) -> list[str]:
        """Revoke the decisions that the prefixes ``ids`` name, each once; return their full ids.

        Raises ``UnknownId``, and revokes nothing, if one of them names none or several.
        """
        with self.hold_lease():
            self._catch_up()
            if isinstance(self.state.history.sized_messages, GappedSequence):
                self._rebuild_state()  # the undo may bring back messages that the state does not hold
            active_ids = [id_ for id_, _ in self.state.view.active_decisions]
            revoked_ids = list(dict.fromkeys(resolve_decision_id(active_ids, id_) for id_ in ids))
            self._append_bodies([RevokeEntry(id_) for id_ in revoked_ids])
        return revoked_ids

    def restore_decisions(self, *ids: str | None) -> list[str]:
        """Put undone decisions in force again, each once; return their full ids.

        ``ids`` are prefixes of the decisions' ids; None is the one that was undone last. Each takes its old place among
        the decisions, so that the request is the one from before the undo. Raises ``UnknownId``, and restores nothing,
        if one of them names none or several.
        """
        with self.hold_lease():
            self._catch_up()
            self._rebuild_state()  # a state that was opened from a checkpoint does not hold what was undone
            undone_ids = [revoked.id for revoked in self.state.view.revoked_decisions]
            restored_ids = list(dict.fromkeys(resolve_undone_id(undone_ids, id_) for id_ in ids))
            self._append_bodies([RevokeEntry(id_, is_restored=True) for id_ in restored_ids])
        return restored_ids

    def forget_learned_window(self) -> None:
        """Append that the window learned from overflows no longer counts: the configured one does again."""
        with self.hold_lease():
            self._catch_up()
            forgotten_limit = self.state.usage.learned_limits.window_limit
            data = {"limit": forgotten_limit, "behind": self.leaf or ""}
            self._append_bodies([NoteEntry(NOTE_WINDOW_FORGOTTEN, data=data)])

    def follow_conversation(
        self,
        messages: Sequence[SizedMessage],
        decode: MessageDecoder | None = None,
        *,
        allows_regrouping: bool = True,
    ) -> list[str]:
        """Follow a client's whole conversation: append its new messages and return the ids of their entries.

        The same content in other bytes is the same conversation, and the new bytes count from now on. If an earlier
        message differs, its past was edited: this branch then forks just before that message, takes along the decisions
        about the messages before it, and the session's leaf stays where it is. ``messages`` have sizes and digests;
        ``decode`` is the function that made each of them from its bytes. Without ``allows_regrouping`` the same content
        in more or fewer messages is an edit too, so that the branch then has each of ``messages`` as one of its own.
        """
        messages = tuple(messages)
        with self.hold_lease():
            repeated_prefix = self.match_conversation(messages)
            if not allows_regrouping:
                repeated_prefix = repeated_prefix.keep_one_to_one()
            is_edited = len(repeated_prefix.messages) < len(self.state.history.sized_messages)
            if not is_edited:
                return self._follow_match(messages, repeated_prefix, repeated_prefix.unchanged_count, decode)
            # One transaction: a fork without some of the decisions would show as a whole what was shortened before.
            with self.batch_writes():
                self._fork_before(len(repeated_prefix.messages))
                return self._follow_match(messages, repeated_prefix, 0, decode)

    def _follow_match(
        self,
        messages: tuple[SizedMessage, ...],
        repeated_prefix: PrefixMatch,
        unchanged_count: int,
        decode: MessageDecoder | None,
    ) -> list[str]:
        """Take over the client's bytes of ``repeated_prefix`` and append the messages after it; return their ids.

        Of the messages in the state the first ``unchanged_count`` are known to be the client's own objects.
        """
        # The order of the next steps matters. The client's bytes are put in place before anything is appended, since
        # every digest after a message covers its bytes; and the messages appended below are the client's own objects,
        # so that the next conversation, which repeats them, is recognized by identity. After a fork the state was
        # folded anew and shares no object with the client.
        repeated_messages = repeated_prefix.messages
        state = replace_raw_bytes(self.state, repeated_messages, unchanged_count)
        if state is not self.state:
            self._ready_request = None  # it shows the old bytes
        self.state = share_message_objects(state, repeated_messages, unchanged_count)
        new_ids = self._append_messages(messages[repeated_prefix.client_count :], decode)
        self._client_messages = self.state.history.sized_messages
        self._matcher.remember_match(self._client_messages, messages, repeated_prefix)
        return new_ids

    def match_conversation(self, messages: Sequence[SizedMessage]) -> PrefixMatch:
        """Find how much of this branch the conversation ``messages`` repeats, by all messages of the branch."""
        if isinstance(self.state.history.sized_messages, GappedSequence):
            self._rebuild_state()
        return self._matcher.match_prefix(self.state.history.sized_messages, tuple(messages), self.policy.settings)

    def _fork_before(self, message_index: int) -> None:
        """Go back to just before a message was appended, and copy there the decisions about the earlier messages."""
        path, previous_state = self._read_path(), self.state
        message_positions = [
            position for position, entry in enumerate(path) if isinstance(entry.body, MessageEntry | BranchSummaryEntry)
        ]
        stop = message_positions[message_index]
        self._ready_request = None
        self.moves_leaf = False
        self.state, self.leaf = self._fold_path(path[:stop]), path[stop].parent
        new_ids: dict[str, str] = {}
        for entry in collect_decisions_to_copy(previous_state, path, stop, message_index):
            # One by one: the digest of each request depends on the decisions copied before it.
            body = rebase_entry_body(entry.body, compute_prefix_digest(self.state), new_ids)
            (new_entry,) = self._append_bodies([body])
            new_ids[entry.id] = new_entry.id
        self._append_bodies(make_learned_limits_notes(self.state, previous_state))
        self._append_bodies(make_container_notes(self.state, previous_state))

    def fork_at(self, entry: str) -> Journal:
        """Open a fork after ``entry``; this journal and the session's leaf stay where they are."""
        return Journal.open(
            self.store,
            self.key,
            self.policy,
            leaf=entry,
            clock=self._clock,
            ids=self._ids,
        )

    def rewrite_messages(self, replacements: Callable[[Sequence[Entry]], Mapping[str, Message]]) -> int:
        """Copy the branch with the messages that ``replacements`` returns by entry id, and continue on the copy.

        The old branch stays whole. Return how many messages were replaced; for 0 the branch is not copied.
        """
        with self.hold_lease():
            new_messages = replacements(self.store.read_path(self.key, self.leaf))
            leaf = self.store.copy_branch(self.key, new_messages, self.leaf)
            if leaf is None:
                return 0
            self.leaf, self.state, self._ready_request = leaf, self.store.open_state(self.key, leaf), None
        return len(new_messages)

    # -- internals -----------------------------------------------------------------------------------------------------

    def _append_messages(
        self, messages: Iterable[Message | SizedMessage], decode: MessageDecoder | None = None
    ) -> list[str]:
        """Append messages in one transaction; return the ids of their entries, without those of notes."""
        bodies: list[EntryBody] = []
        with self.hold_lease():
            for message in messages:
                bodies += self._make_message_bodies(message)
            entries = self._append_bodies(bodies, decode)
        return [entry.id for entry in entries if isinstance(entry.body, MessageEntry)]

    def _make_message_bodies(self, message: Message | SizedMessage) -> list[EntryBody]:
        """Build the entries of one message.

        Texts over the append limit are stored as blobs and shortened, with a note that names the blobs before the
        message. If a blob cannot be stored, the message stays whole.
        """
        sized_message, settings = convert_to_sized_message(message), self.policy.settings
        # An upper bound, which is cheap: almost no message comes near the limit.
        if bound_message_chars(sized_message) <= settings.results.append_chars:
            return [MessageEntry(sized_message)]
        short_message, blobs = cap_message_texts(sized_message.message, settings)
        if not blobs or self._store_blobs(blobs) is not None:
            return [MessageEntry(sized_message)]
        note = NoteEntry(NOTE_CAPPED, data={"blobs": [blob.hash for blob in blobs]})
        return [note, MessageEntry(replace(build_sized_message(short_message), api=sized_message.api))]

    def _store_blobs(self, blobs: Iterable[Blob]) -> StoreError | None:
        """Store ``blobs``; return the error if one could not be stored, else None."""
        try:
            for blob in blobs:
                self.store.blobs.store_content(blob.text)
        except StoreError as error:
            return error
        return None

    def _plan_retry(self, target: Target, inputs: PlanInputs) -> Plan | None:
        """Return the plan of the newest request again, or None if it has to be planned anew.

        It can be repeated, which keeps the provider's cache warm, if nothing was appended or revoked since, and it
        still fits the target.
        """
        if is_replan_forced(inputs):
            return None
        state = self.state
        last_request = state.last_request
        if not last_request.seen_count or last_request.seen_count != len(state.history.sized_messages):
            return None
        if last_request.model != target.model or not state.setup.has_same_content(target.setup):
            return None
        if last_request.prefix_digest != compute_prefix_digest(state):
            return None
        # Without stages nothing is decided: the recorded decisions give the same request.
        plan = plan_request(state, target, replace(self.policy, stages=()), inputs)
        window = compute_effective_target(target, state, self.policy.settings).limits.window
        return plan if plan.after <= window else None

    def _plan_anew(self, target: Target, inputs: PlanInputs) -> Plan:
        """Plan the next request; hidden messages that the state does not hold are read only if a stage needs them."""
        try:
            return plan_request(self.state, target, self.policy, inputs)
        except LookupError:
            if not isinstance(self.state.history.sized_messages, GappedSequence):
                raise
        self._rebuild_state()
        return plan_request(self.state, target, self.policy, inputs)

    def _on_branch_changed(self, new: Sequence[Entry] = ()) -> None:
        """Forget the prepared request, which no longer fits the branch."""
        self._ready_request = None
        if any(isinstance(entry.body, RequestEntry | AnswerEntry) for entry in new):
            self._last_sent_at = self._clock()
        for entry in new:
            if isinstance(entry.body, RequestEntry):
                self.request_sent_at = entry.time_ms
