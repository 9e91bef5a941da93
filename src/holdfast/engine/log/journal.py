"""The journal: one branch of one stored session, from what is said to what is sent.

Synchronous. What a verb returns for is in the log; where it raises, log and branch are as they were. Each verb costs
what is new: the branch is folded on, not read again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from holdfast.engine.log.branch_log import BranchLog
from holdfast.engine.log.conversation_diff import ConversationMatcher, PrefixMatch
from holdfast.engine.log.fork import collect_decisions_to_copy, make_learned_limits_notes, rebase_entry_body
from holdfast.engine.log.new_entries import (
    add_unstored_notice,
    begin_session,
    check_message_types,
    convert_to_sized_message,
    is_replan_forced,
    make_answer_entry_body,
    make_plan_entry_bodies,
    resolve_decision_id,
)
from holdfast.engine.log.queued_messages import (
    decode_queued_messages,
    is_queued_note,
    is_user_message,
    make_delivered_note,
    make_queued_note,
    read_queued_messages,
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
from holdfast.state.conversation_state import ConversationState
from holdfast.state.edits import Blob
from holdfast.state.entries import (
    FAILURE_OVERFLOW,
    FAILURE_UNANSWERED,
    NOTE_FORM,
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
from holdfast.state.fold.rewind import replace_raw_bytes, share_message_objects
from holdfast.state.plan import Plan, mark_compaction_manual
from holdfast.state.target import PlanInputs, Target
from holdfast.state.view import compute_prefix_digest
from holdfast.store.base import MessageDecoder, SessionStore
from holdfast.store.blobs.blob_names import NOTE_CAPPED
from holdfast.store.repair.repair_on_read import read_with_repair
from holdfast.store.tree.active import GappedSequence
from holdfast.store.tree.tree import get_time_ms, make_entry_ids

MAX_TITLE_CHARS = 80
"""Characters of a session's title, if nobody gave it one."""


class PreparedRequest(Struct, frozen=True):
    """A request that may be sent now: what it shows and why, and the id of its entry in the log."""

    plan: Plan
    messages: tuple[SizedMessage, ...]
    request_id: str
    target: Target


class Journal(BranchLog):
    """One branch of one stored session, with the verbs that go on with it. What a fork appends is always a branch."""

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
        """When the last request went out or was answered, as far as that is known."""
        self._ready_request: PreparedRequest | None = None
        self._matcher = ConversationMatcher()
        self._described_model = ""
        """The model that the list of sessions shows, as far as this journal said so."""
        self._queued_messages: list[tuple[str, Message]] | None = None
        """What was said while a request was on its way, with the ids of its notes; nothing = not looked for yet."""

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
        """Return the journal at ``leaf`` of session ``key``; without one, at the session's leaf, created if need be.

        The policy is the one for that key: a channel's limit of turns counts. A damaged session is repaired first where
        that loses nothing (``repairs`` says what was done), else it is a ``StoreCorrupt``.
        """
        policy = policy.for_session(key)
        if leaf is not None:
            place: str | None = store.get_entry(key, leaf).id
        else:
            with store.hold_lease(key):
                place = begin_session(store, key, policy, clock, ids)
        repairs: list[str] = []
        state = ConversationState()
        if place is not None:
            state = read_with_repair(store, key, lambda: store.open_state(key, place), repairs.extend)
        journal = cls(store, key, policy, state, place, clock, ids=ids, moves_leaf=leaf is None)
        journal._queued_messages = decode_queued_messages(state, key)
        journal.repairs = repairs
        return journal

    # -- what is said --------------------------------------------------------------------------------------------------

    def append(self, *messages: Message | SizedMessage) -> list[str]:
        """Append messages in one transaction and return the ids of their entries.

        A text that is longer than an entry may hold is stored apart; where that fails, the message stays whole.
        """
        return self._append_messages(messages)

    def record_answer(
        self, answer: Message | SizedMessage, usage: Usage = Usage(), stop: str = "", *, as_planned: bool = True
    ) -> str:
        """Append the answer to the last prepared request, with what it cost; return the id of the message.

        One without a word is no message: what it cost is written alone. What was said while the answer was on its way
        follows it. Where another request went out than the one that was planned, what it cost tells nothing of the
        size of that one.
        """
        sized_message = convert_to_sized_message(answer)
        with self.hold_lease():
            message_entries = self._make_message_bodies(sized_message) if sized_message.message.parts else []
            entries = self._append_bodies(
                [*message_entries, make_answer_entry_body(self.state, usage, stop, as_planned=as_planned)]
            )
            self._deliver_queued()
        return next((entry.id for entry in reversed(entries) if isinstance(entry.body, MessageEntry)), entries[0].id)

    def record_failure(self, reason: str, kind: str = FAILURE_UNANSWERED) -> str:
        """Append that an attempt failed, which changes no later request; return the entry's id.

        ``kind`` is ``FAILURE_UNANSWERED`` for the last prepared request, else what became of a compaction.
        """
        ready = self._ready_request
        with self.hold_lease():
            entries = self._append_bodies([FailureEntry(kind, reason)])
        self._ready_request = ready
        return entries[0].id

    def add_notes(self, *notes: NoteEntry) -> None:
        """Append ``notes`` that change no request."""
        if notes:
            with self.hold_lease():
                self._append_bodies(notes)

    def record_overflow(
        self, reason: str, limit: int = 0, requested_tokens: int = 0, most_bytes: int = 0, *, as_planned: bool = True
    ) -> str:
        """Append that the last prepared request was too large, by the provider's numbers; return the entry's id.

        Every later request knows it; the next one is planned anew. Of a request that was another than the planned one
        the limit alone counts. ``most_bytes`` is what a body may have, where that was what was wrong.
        """
        size = requested_tokens if as_planned else 0
        lesson = FailureEntry(
            FAILURE_OVERFLOW, reason, limit, size, is_other_branch=not as_planned, max_body_bytes=most_bytes
        )
        with self.hold_lease():
            return self._append_bodies([lesson])[0].id

    def record_accepted_form(self, *, mends: bool = False, judges: bool = False) -> None:
        """Append which form the server of the model asked last wants (``LearnedLimits``), unless the log says so
        already.

        A request that is about to be sent again stays ready.
        """
        ready, learned_limits = self._ready_request, self.state.usage.learned_limits
        if (learned_limits.fixes_client_content, learned_limits.validates_client_content) != (mends, judges):
            with self.hold_lease():
                self._append_bodies([NoteEntry(NOTE_FORM, data={"mends": mends, "judges": judges})])
            self._ready_request = ready

    def describe_session(self, model: str) -> None:
        """Let the list of sessions show which model this one asks, and the first words of its user as a title."""
        if self._described_model == model:
            return
        info = self.store.get_session(self.key)
        messages = () if isinstance(self.state.history.sized_messages, GappedSequence) else self.state.history.messages
        title = None if info.title else flatten_to_line(find_first_user_text(messages), MAX_TITLE_CHARS) or None
        self.store.update_session_info(self.key, title=title, model=model)
        self._described_model = model

    def get_idle_seconds(self) -> int:
        """Return the seconds since the last request went out or was answered."""
        return max(0, (self._clock() - self._last_sent_at) // 1_000)

    def can_retry_compaction(self) -> bool:
        """Return whether compaction failed too often, and so long ago that it may be tried once more."""
        state, settings = self.state, self.policy.settings
        return is_breaker_tripped(state.counters.failed_compactions, settings) and is_breaker_closed(
            state.counters.failed_compactions, state.counters.compaction_failed_at, self._clock(), settings
        )

    def is_still_stored(self) -> bool:
        """Return whether the store still has what this goes on behind: somebody may have removed the session."""
        try:
            return self.leaf is None or bool(self.store.get_entry(self.key, self.leaf).id)
        except UnknownId:
            return False

    def read_messages(self, start: int, stop: int) -> list[SizedMessage]:
        """Return the slots from ``start`` to ``stop`` as they were said, read again where the branch has them not."""
        try:
            return self.state.history.sized_messages.slice(start, stop)
        except LookupError:
            self._rebuild_state()
            return self.state.history.sized_messages.slice(start, stop)

    # -- what is said while a request is on its way --------------------------------------------------------------------

    def queue_messages(self, *messages: Message | SizedMessage) -> list[str]:
        """Store messages while an answer is on its way, and return the ids of their entries.

        A user's words belong behind it: they are durable now and said when it is there. What else there is, as the
        results of calls, is said now.
        """
        with self.hold_lease():
            bodies = [body for message in messages for body in self._make_message_bodies(message, waits=True)]
            entries = [
                entry
                for entry in self._append_bodies(bodies)
                if isinstance(entry.body, MessageEntry) or is_queued_note(entry)
            ]
        if self._queued_messages is not None:
            ids = [entry.id for entry in entries if is_queued_note(entry)]
            self._queued_messages += zip(ids, filter(is_user_message, messages), strict=True)
        return [entry.id for entry in entries]

    @property
    def can_have_queued(self) -> bool:
        """Whether something may wait for an answer that was not said yet."""
        return self._queued_messages != []

    def deliver_queued(self) -> list[str]:
        """Say what waited for an answer and was not said yet; return the ids of the messages."""
        if not self.can_have_queued:
            return []
        with self.hold_lease():
            return self._deliver_queued()

    def _deliver_queued(self) -> list[str]:
        self._catch_up()
        if self._queued_messages is None:
            self._queued_messages = read_queued_messages(self.store, self.key, self.leaf)
        if not self._queued_messages:
            return []
        bodies = [body for _, message in self._queued_messages for body in self._make_message_bodies(message)]
        entries = self._append_bodies([*bodies, make_delivered_note([id_ for id_, _ in self._queued_messages])])
        self._queued_messages = []
        return [entry.id for entry in entries if isinstance(entry.body, MessageEntry)]

    # -- what is sent --------------------------------------------------------------------------------------------------

    def prepare_request(self, target: Target, inputs: PlanInputs = PlanInputs()) -> PreparedRequest:
        """Return the next request; what was decided for it is in the log, and so is that it is about to be sent.

        A retry, with nothing said since, shows the same, also after a restart: only ``inputs.force_compaction``,
        or an ``overflow_step`` and a target that it does not fit, decide anew. Where a text cannot be stored away every
        text stays whole, and a notice says so. Nobody is asked for a summary: an extract is made. Raises
        ``WindowTooSmall`` before anything is written.
        """
        alone = replace(inputs, can_summarize=False)
        while (prepared_request := self.commit_plan(self.plan_next(target, alone), target, alone)) is None:
            pass
        return prepared_request

    def plan_next(self, target: Target, inputs: PlanInputs = PlanInputs()) -> Plan:
        """Return the plan of the next request; nothing is written. Its ``summary_request`` is one to be made first."""
        raise_if_wrong_type(TypeError, target=(target, Target), inputs=(inputs, PlanInputs))
        self._catch_up()
        if self._ready_request is not None and self._ready_request.target == target and not is_replan_forced(inputs):
            return self._ready_request.plan
        return self._plan_retry(target, inputs) or self._plan_anew(target, inputs)

    def commit_plan(self, plan: Plan, target: Target, inputs: PlanInputs = PlanInputs()) -> PreparedRequest | None:
        """Return the request of ``plan``, once what it decides is in the log; nothing where more was said since."""
        if self._ready_request is not None and plan is self._ready_request.plan:
            return self._ready_request
        with self.hold_lease():
            if not self._is_plan_current(plan):
                return None
            plan = self._store_plan_blobs(plan, target, inputs)
            entries = self._append_bodies(make_plan_entry_bodies(self.state, plan, target, self.policy.name))
        self.state = replace(
            self.state, view=replace(self.state.view, normalized_prefix=plan.state.view.normalized_prefix)
        )
        plan = replace(plan, state=self.state)
        prepared_request = PreparedRequest(plan, tuple(build_messages_to_send(plan)), entries[-1].id, target)
        self._ready_request = prepared_request
        return prepared_request

    def write_decision(self, plan: Plan, target: Target, inputs: PlanInputs = PlanInputs()) -> Plan | None:
        """Write what ``plan`` decides, with no request behind it (``/compact``).

        Returns the plan that is in the log, another where its texts cannot be stored; nothing where it stood no more.
        """
        with self.hold_lease():
            if not self._is_plan_current(plan):
                return None
            stored_plan = self._store_plan_blobs(plan, target, inputs)
            self._append_bodies(make_plan_entry_bodies(self.state, stored_plan, target, self.policy.name)[:-1])
        return stored_plan

    def record_compaction(self, compaction: CompactionEntry) -> str:
        """Append a compaction that somebody else made of what was said here; return its id."""
        with self.hold_lease():
            return self._append_bodies([compaction])[0].id

    def _is_plan_current(self, plan: Plan) -> bool:
        """Whether ``plan`` was made for the branch as it is: nothing was said, decided or taken back since."""
        if self._catch_up() or len(plan.state.history.sized_messages) != len(self.state.history.sized_messages):
            return False
        new = bool(plan.record) + (plan.compaction is not None)
        return (
            plan.state.view.active_decisions[: len(plan.state.view.active_decisions) - new]
            == self.state.view.active_decisions
        )

    def _store_plan_blobs(self, plan: Plan, target: Target, inputs: PlanInputs) -> Plan:
        """Return ``plan`` with its texts stored away, or another where they cannot be."""
        store_error = self._store_blobs(plan.blobs)
        if store_error is None:
            return plan
        unspilled_plan = add_unstored_notice(
            self._plan_anew(target, replace(inputs, can_spill=False, can_summarize=False)), store_error
        )
        was_asked_for = plan.compaction is not None and plan.compaction.trigger == "manual"
        return mark_compaction_manual(unspilled_plan) if was_asked_for else unspilled_plan

    # -- other branches ------------------------------------------------------------------------------------------------

    def undo(self, id: str | None = None) -> str:  # noqa: A002 -- what it is called everywhere
        """Revoke the newest decision or compaction in force, or the one whose id begins with ``id``; return its id.

        What that brings back no rule takes again, except where the request would not fit without: texts and media go
        then, and a compaction comes again where the request is over its trigger. Behind an undone limit of turns only
        the turns said since count.
        """
        return self.revoke_decisions(id)[0]

    def revoke_decisions(self, *ids: str | None) -> list[str]:
        """Undo each of what ``ids`` begin, or nothing of it where one means none; return their whole ids."""
        with self.hold_lease():
            self._catch_up()
            if isinstance(self.state.history.sized_messages, GappedSequence):
                self._rebuild_state()
            law = [id_ for id_, _ in self.state.view.active_decisions]
            revoked_ids = list(dict.fromkeys(resolve_decision_id(law, id_) for id_ in ids))
            self._append_bodies([RevokeEntry(id_) for id_ in revoked_ids])
        return revoked_ids

    def forget_learned_window(self) -> None:
        """Append that nothing counts any more that overflows told of the window: it is as configured again."""
        with self.hold_lease():
            self._catch_up()
            self._append_bodies(
                [
                    NoteEntry(
                        NOTE_WINDOW_FORGOTTEN,
                        data={"limit": self.state.usage.learned_limits.window_limit, "behind": self.leaf or ""},
                    )
                ]
            )

    def follow_conversation(self, messages: Sequence[SizedMessage], decode: MessageDecoder | None = None) -> list[str]:
        """Go on where ``messages``, a whole conversation, does: what is new is appended; return the ids of that.

        The same words in other bytes are no other conversation; those bytes count from now on. Where it parts from the
        log its past was edited: this goes on beside what was said there, with the decisions about what stands, and the
        session's leaf stays. They are measured; ``decode`` made them of their bytes, each alone.
        """
        if isinstance(self.state.history.sized_messages, GappedSequence):
            self._rebuild_state()
        messages = tuple(messages)
        repeated_prefix = self.match_conversation(messages)
        parts = len(repeated_prefix.messages) < len(self.state.history.sized_messages)
        if parts:
            self._fork_before(len(repeated_prefix.messages))
        start = 0 if parts else repeated_prefix.unchanged_count
        state = replace_raw_bytes(self.state, repeated_prefix.messages, start)
        if state is not self.state:
            self._ready_request = None
        self.state = share_message_objects(state, repeated_prefix.messages, start)
        ids = self._append_messages(messages[repeated_prefix.client_count :], decode)
        self._client_messages = self.state.history.sized_messages
        self._matcher.remember_match(self._client_messages, messages, repeated_prefix)
        return ids

    def match_conversation(self, messages: Sequence[SizedMessage]) -> PrefixMatch:
        """Return what ``messages``, a whole conversation, repeats of this branch."""
        return self._matcher.match_prefix(self.state.history.sized_messages, tuple(messages), self.policy.settings)

    def _fork_before(self, count: int) -> None:
        """Go back to just before message ``count`` was said."""
        path, before = self._read_path(), self.state
        message_positions = [
            at for at, entry in enumerate(path) if isinstance(entry.body, MessageEntry | BranchSummaryEntry)
        ]
        stop, ids = message_positions[count], dict[str, str]()
        self.state, self.leaf = self._fold_path(path[:stop]), path[stop].parent
        self.moves_leaf, self._ready_request = False, None
        for carried_entry in collect_decisions_to_copy(before, path, stop, count):
            (entry,) = self._append_bodies(
                [rebase_entry_body(carried_entry.body, compute_prefix_digest(self.state), ids)]
            )
            ids[carried_entry.id] = entry.id
        self._append_bodies(make_learned_limits_notes(self.state, before))

    def fork_at(self, entry: str) -> Journal:
        """Return a journal that goes on behind ``entry``; this one, and the session's leaf, stay where they are."""
        return Journal.open(self.store, self.key, self.policy, leaf=entry, clock=self._clock, ids=self._ids)

    def rewrite_messages(self, replacements: Callable[[Sequence[Entry]], Mapping[str, Message]]) -> int:
        """Say the branch again on a copy, with other messages for some entries of its path, and go on there.

        The old branch stays whole. Returns how many say something else; 0 where nothing does, and nothing was copied.
        """
        with self.hold_lease():
            new_messages = replacements(self.store.read_path(self.key, self.leaf))
            leaf = self.store.copy_branch(self.key, new_messages, self.leaf)
            if leaf is None:
                return 0
            self.leaf, self.state, self._ready_request = leaf, self.store.open_state(self.key, leaf), None
        return len(new_messages)

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _append_messages(
        self, messages: Iterable[Message | SizedMessage], decode: MessageDecoder | None = None
    ) -> list[str]:
        with self.hold_lease():
            bodies = [body for message in messages for body in self._make_message_bodies(message)]
            return [entry.id for entry in self._append_bodies(bodies, decode) if isinstance(entry.body, MessageEntry)]

    def _make_message_bodies(self, message: Message | SizedMessage, *, waits: bool = False) -> list[EntryBody]:
        """Return the entries of one message: capped, with a note that names the blobs behind it, or as it is.

        A user's words are a note where an answer ``waits`` to be said before them.
        """
        if waits and is_user_message(message):
            return [make_queued_note(check_message_types(message))]
        sized_message, settings = convert_to_sized_message(message), self.policy.settings
        if bound_message_chars(sized_message) <= settings.results.append_chars:
            return [MessageEntry(sized_message)]
        short, blobs = cap_message_texts(sized_message.message, settings)
        if not blobs or self._store_blobs(blobs) is not None:
            return [MessageEntry(sized_message)]
        note = NoteEntry(NOTE_CAPPED, data={"blobs": [blob.hash for blob in blobs]})
        return [note, MessageEntry(replace(build_sized_message(short), api=sized_message.api))]

    def _store_blobs(self, blobs: Iterable[Blob]) -> StoreError | None:
        """Store ``blobs``; return why one could not be, if so."""
        try:
            for blob in blobs:
                self.store.blobs.store_content(blob.text)
        except StoreError as error:
            return error
        return None

    def _plan_retry(self, target: Target, inputs: PlanInputs) -> Plan | None:
        """Return the plan of the newest request again, where nothing was said or revoked since and it still fits."""
        state = self.state
        last_request, now = (
            (state.last_request.seen_count, state.last_request.model, state.setup),
            (len(state.history.sized_messages), target.model, target.setup),
        )
        if (
            is_replan_forced(inputs)
            or last_request != now
            or not state.last_request.seen_count
            or state.last_request.prefix_digest != compute_prefix_digest(state)
        ):
            return None
        plan = plan_request(state, target, replace(self.policy, stages=()), inputs)
        window = compute_effective_target(target, state, self.policy.settings).limits.window
        return plan if plan.after <= window else None

    def _plan_anew(self, target: Target, inputs: PlanInputs) -> Plan:
        """Return the plan of the next request; turns that gave way are read again only where it needs them."""
        try:
            return plan_request(self.state, target, self.policy, inputs)
        except LookupError:
            if not isinstance(self.state.history.sized_messages, GappedSequence):
                raise
        self._rebuild_state()
        return plan_request(self.state, target, self.policy, inputs)

    def _on_branch_changed(self, new: Sequence[Entry] = ()) -> None:
        """Make ready anew what was made for another branch; what others did may be that what waited was said."""
        self._ready_request = None
        if not new:
            self._queued_messages = None
        if not {RequestEntry, AnswerEntry}.isdisjoint([type(entry.body) for entry in new]):
            self._last_sent_at = self._clock()
