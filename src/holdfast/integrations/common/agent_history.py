"""One conversation of an agent that a framework runs: what its model is shown, and what becomes of refused requests.

The framework keeps its own history and sends the requests. Before each it gives the whole history and gets back what to
show the model. Decisions are in the session's log, so they hold in later calls and after a restart. While the store
cannot be written, they are made on a copy in memory. Synchronous, and safe to call from several threads.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from holdfast import events
from holdfast.engine.compaction.compact import find_shrink_failure
from holdfast.engine.log.branch_copy import copy_branch_to_memory, remove_shortening_stages
from holdfast.engine.log.journal import Journal, PreparedRequest
from holdfast.engine.recall import answer_recall, compute_page_chars
from holdfast.engine.session import Report, build_report
from holdfast.errors import (
    HoldfastError,
    LogConflict,
    StoreError,
    StoreReadOnly,
    StoreReplaced,
    UnknownId,
    WindowTooSmall,
)
from holdfast.hosts.given_conversation import (
    GivenConversation,
    ShownMessage,
    drop_refused_thinking,
    list_shown_messages,
    plan_given_conversation,
)
from holdfast.integrations.common.provider_errors import is_overflow_class, read_provider_error
from holdfast.messages.message import Message
from holdfast.messages.size.tokens import measure_messages
from holdfast.messages.sized_message import SizedMessage
from holdfast.messages.text.paging import MAX_PAGE_CHARS
from holdfast.planning.pipeline import Policy
from holdfast.providers.errors.classify_error import classify_error
from holdfast.providers.errors.report import ErrorReport, Verdict
from holdfast.recovery.machine import (
    CONTEXT_OVERFLOW_KIND,
    NoProgress,
    ProviderRefusal,
    RecoveryEvent,
    RecoveryState,
    Shrink,
    decide_next_action,
    start_recovery,
    subtract_used_steps,
)
from holdfast.state.entries import Usage
from holdfast.state.plan import Plan
from holdfast.state.target import PlanInputs, Target
from holdfast.store.base import SessionStore
from holdfast.store.memory import MemoryStore

if TYPE_CHECKING:
    from holdfast.telemetry.session_spans import SessionSpans
    from holdfast.telemetry.telemetry import Telemetry

T = TypeVar("T")
_LOG = logging.getLogger("holdfast.integrations")
INPUT_PLUS_OUTPUT_KIND = "input_plus_output"
"""The kind of an overflow of the prompt together with the output asked for."""
MAX_REPLANNED_REQUESTS = 20
"""Refused requests that are planned anew, since another run of the conversation had planned its own, until a run asks
for a request that was not refused. Each begins recovery again, so two runs whose provider refuses whatever they send
would try for ever. Chosen by judgement: some runs at once need one or two each."""


class GivenMessage(Struct, frozen=True):
    """A message of the framework's history in our terms."""

    message: Message
    usage: Usage | None = None
    """For an answer: what its request took, if the framework knows."""


class _CurrentRequest(Struct, frozen=True):
    """The newest request, until the next one is planned."""

    conversation: GivenConversation
    target: Target
    """As the framework gave it."""
    journal: Journal
    """On what it was planned: the log, or the copy of it."""
    prepared_request: PreparedRequest
    recovery: RecoveryState


class AgentHistory:
    """One conversation of an agent: plans its requests, makes refused ones smaller, and reads old texts back."""

    def __init__(
        self,
        store: SessionStore,
        key: str,
        policy: Policy = Policy(),
        listener: Callable[[events.Event], None] | None = None,
        reopen_store: Callable[[SessionStore], SessionStore] | None = None,
        telemetry: Telemetry | None = None,
    ) -> None:
        """``reopen_store`` gets a store whose file was taken away, or that took no more since its disk was full, and
        returns the one to use in its place. ``telemetry`` records spans and metrics, below the framework's own.
        """
        self._store = store
        self._reopen_store = reopen_store
        self.key = key
        self._policy = policy
        self._listener = listener
        self._telemetry = telemetry
        self._spans: SessionSpans | None = None
        """The spans of the planning under way; None if there is none, or if nobody wants spans."""
        self._lock = Lock()
        self._journal: Journal | None = None
        self._copy: Journal | None = None
        """A copy of the branch, in memory alone, while the store cannot be written."""
        self._sized_messages: tuple[SizedMessage, ...] = ()
        """The messages of the last call, so that only new ones are measured."""
        self._request: _CurrentRequest | None = None
        self._answer_usage: Usage | None = None
        """What the newest request took, if the framework tells that apart from its messages."""
        self._models_counting_output: set[str] = set()
        """Models whose provider refused a request since the output asked for did not fit beside it."""
        self._replanned_count = 0
        """Refused requests that were planned anew since ``plan`` was called last."""

    def plan(self, messages: Sequence[GivenMessage], target: Target, setup_tokens: int = 0) -> list[ShownMessage]:
        """Return what to show of ``messages``, the whole history, in the next request.

        ``setup_tokens`` are those of the system prompt and the tools. Raises ``WindowTooSmall`` if the history cannot
        be made to fit.
        """
        with self._lock, self._trace_planning(target), self._forget_request_after_failure():
            self._replanned_count = 0

            def plan_messages(journal: Journal) -> list[ShownMessage]:
                conversation = GivenConversation(
                    self._measure([given.message for given in messages]), self._collect_usages(messages), setup_tokens
                )
                return _list_shown_messages(self._plan_request(journal, conversation, target))

            return self._work_on_log(plan_messages)

    def _plan_request(self, journal: Journal, conversation: GivenConversation, target: Target) -> _CurrentRequest:
        known_decisions = journal.state.view.active_decisions
        prepared_request = plan_given_conversation(journal, conversation, self._reserve_asked_output(target))
        recovery = start_recovery(journal.state, journal.policy.settings, is_breaker_cooled=journal.is_breaker_cooled())
        request = _CurrentRequest(conversation, target, journal, prepared_request, recovery)
        self._request, self._answer_usage = request, None
        if journal.state.view.active_decisions != known_decisions:
            self._emit_decisions(prepared_request.plan)
        return request

    def note_answer_usage(self, usage: Usage) -> None:
        """Say what the newest request took, if the answer will come without its usage among the messages."""
        with self._lock:
            self._answer_usage = usage

    def plan_smaller(
        self,
        error: Exception | ErrorReport,
        messages: Sequence[GivenMessage],
    ) -> list[ShownMessage] | None:
        """Return what to show in place of the newest request, for which the framework raised ``error``.

        None if the error is no overflow, or if nothing smaller is left to try: the error is then the framework's. A
        failure inside of a stream, for which nothing was raised, is given as a report. ``messages`` are those of the
        refused request: a framework may run one conversation twice at the same time, and if a request of the other run
        was planned since, the refused one is planned anew, with the limit that the refusal names.
        """
        report = error if isinstance(error, ErrorReport) else read_provider_error(error)
        with self._lock, self._forget_request_after_failure():
            newest_request = self._request
            if newest_request is None:
                return None
            verdict = classify_error(report)
            if not (verdict.is_overflow or is_overflow_class(error)):
                return None
            if verdict.kind == INPUT_PLUS_OUTPUT_KIND:
                self._models_counting_output.add(newest_request.target.model)

            def plan_refused(journal: Journal) -> list[ShownMessage] | None:
                with journal.hold_lease():
                    smaller_request = self._plan_smaller_request(journal, newest_request, report, verdict, messages)
                return None if smaller_request is None else _list_shown_messages(smaller_request)

            with self._trace_planning(newest_request.target):
                if self._telemetry is not None:
                    # Listeners are not told: what was refused is the framework's request.
                    kind = verdict.kind if verdict.is_overflow else CONTEXT_OVERFLOW_KIND
                    self._telemetry.note_event(events.RequestRefused(self.key, kind), self._spans)
                if newest_request.journal is self._copy:
                    return plan_refused(newest_request.journal)
                return self._work_on_log(plan_refused)

    def _plan_smaller_request(
        self,
        journal: Journal,
        request: _CurrentRequest,
        report: ErrorReport,
        verdict: Verdict,
        messages: Sequence[GivenMessage],
    ) -> _CurrentRequest | None:
        """Record that a request was refused, and plan a smaller one in its place; None if nothing smaller is left."""
        if journal is not request.journal:
            # The log was opened anew, or this is a copy of it: it may know nothing of the request.
            request = self._plan_request(journal, request.conversation, request.target)
        is_replanned = not _is_request_for(request, messages)
        journal.record_overflow(
            report.message_line, verdict.limit or 0, verdict.requested or 0, as_planned=not is_replanned
        )
        if is_replanned:
            self._replanned_count += 1
            if self._replanned_count > MAX_REPLANNED_REQUESTS:
                return None
            conversation = GivenConversation(
                self._measure([given.message for given in messages]),
                self._collect_usages(messages),
                request.conversation.setup_tokens,
            )
            request = self._plan_request(journal, conversation, request.target)
            if verdict.limit:
                return request
        plan = request.prepared_request.plan
        refusal = ProviderRefusal(
            verdict.kind if verdict.is_overflow else CONTEXT_OVERFLOW_KIND,
            is_overflow=True,
            token_limit=verdict.limit,
            counted_tokens=verdict.requested,
            estimated_tokens=plan.after,
            has_media=plan.state.view.media_count > 0,
        )
        smaller_request = self._shrink(request, refusal)
        if smaller_request is not None:
            self._request = smaller_request
            self._emit_decisions(smaller_request.prepared_request.plan)
        return smaller_request

    def _shrink(self, request: _CurrentRequest, refusal: ProviderRefusal) -> _CurrentRequest | None:
        """Return the request made smaller by the first step of recovery that can, or None if no step is left.

        Called under the lease, so that no other process can make a plan out of date.
        """
        journal, recovery = request.journal, request.recovery
        target = self._reserve_asked_output(request.prepared_request.target)
        event: RecoveryEvent = refusal
        # Ends: each step that makes nothing smaller is told to the recovery, which then decides for a later one.
        while True:
            recovery, action = decide_next_action(subtract_used_steps(recovery, journal.state), event)
            if not isinstance(action, Shrink):
                return None
            if action.step == "output":
                # The limit of the answer belongs to the framework's model.
                event = NoProgress("not_smaller")
                continue
            inputs = PlanInputs(overflow_step=action.step)
            plan = journal.plan_next(target, inputs)
            failure = find_shrink_failure(plan, action.step)
            if failure:
                event = NoProgress(failure)
                continue
            prepared_request = journal.commit_plan(plan, target, inputs)
            if prepared_request is None:
                return None
            return replace(request, prepared_request=prepared_request, recovery=recovery)

    def _reserve_asked_output(self, target: Target) -> Target:
        """Return ``target`` with all of the output asked for kept free, if its provider counts that into the window.

        The limit of the answer belongs to the framework's model, so it cannot be lowered to what is left.
        """
        asked_output = target.limits.requested_output
        if asked_output is None or target.model not in self._models_counting_output:
            return target
        return replace(target, limits=replace(target.limits, min_output=asked_output))

    def answer_recall(self, arguments: str | Mapping[str, Any]) -> str:
        """Return the result of the model's call of the tool ``recall``; it explains mistakes in the arguments."""
        with self._lock:
            try:
                return answer_recall(self._store, self.key, arguments, self._compute_page_chars()).text
            except HoldfastError as error:
                # The model reads it, and the agent goes on.
                return str(error)

    def report(self) -> Report | None:
        """Return how full the context is as of the newest request; None before the first one."""
        with self._lock:
            if self._request is None:
                return None
            return self._build_report(self._request)

    def _build_report(self, request: _CurrentRequest) -> Report:
        return build_report(request.journal, request.prepared_request.target)

    def _compute_page_chars(self) -> int:
        """Return the size of a page of ``recall``: one that is too large for the window would be spilled again."""
        if self._request is None:
            return MAX_PAGE_CHARS
        report = self._build_report(self._request)
        return compute_page_chars(report.usable_tokens - report.setup_tokens)

    @contextmanager
    def _forget_request_after_failure(self) -> Iterator[None]:
        """Forget the newest request if the next one cannot be planned: what the framework then sends is another."""
        try:
            yield
        except WindowTooSmall:
            raise
        except BaseException:
            self._request, self._answer_usage = None, None
            raise

    def _work_on_log(self, work: Callable[[Journal], T]) -> T:
        """Return what ``work`` makes of the log, or of a copy in memory if the store cannot be read or written."""
        leaf = self._leaf
        try:
            result = self._work_on_stored_log(work)
        except StoreError as error:
            return work(self._open_copy(error))
        if self._copy is not None and self._leaf == leaf:
            # A request that was only repeated wrote nothing: whether the store takes anything is still not known.
            return work(self._copy)
        # The framework gives the whole history, so the log has everything again.
        self._copy = None
        return result

    def _work_on_stored_log(self, work: Callable[[Journal], T]) -> T:
        try:
            return work(self._open_journal())
        except (UnknownId, LogConflict, StoreReplaced, StoreReadOnly) as error:
            # Somebody removed the session or the store's file, or changed it under us: the log is read anew, or begun.
            # A store whose disk was full takes nothing more until it is opened again.
            self._journal = None
            if isinstance(error, StoreReplaced | StoreReadOnly) and self._reopen_store is not None:
                self._store = self._reopen_store(self._store)
            return work(self._open_journal())

    def _open_journal(self) -> Journal:
        if self._journal is None:
            self._journal = Journal.open(self._store, self.key, self._policy)
        return self._journal

    @property
    def _leaf(self) -> str | None:
        return None if self._journal is None else self._journal.leaf

    def _open_copy(self, error: StoreError) -> Journal:
        """Return the copy of the branch on which requests are planned while the store fails with ``error``."""
        if self._copy is None:
            problem = f"{type(error).__name__}: {error}"
            _LOG.warning("requests stay inside the window, but what is decided is not stored: %s", problem)
            self._copy = self._copy_branch()
        return self._copy

    def _copy_branch(self) -> Journal:
        leaf = self._leaf
        try:
            store = copy_branch_to_memory(self._store, self.key, leaf)
        except StoreError:
            # Without what was decided before: the framework gives the whole history.
            store, leaf = MemoryStore(), None
        copy = Journal.open(store, self.key, self._policy, leaf=leaf)
        copy.policy = remove_shortening_stages(copy.policy)
        return copy

    def _collect_usages(self, messages: Sequence[GivenMessage]) -> tuple[Usage | None, ...]:
        """Return the usage of each message; the answer to the newest request may have come without its own."""
        usages = [given.usage for given in messages]
        if self._answer_usage is not None and self._request is not None:
            answer_index = len(self._request.conversation.messages)
            if answer_index < len(usages) and usages[answer_index] is None:
                usages[answer_index] = self._answer_usage
        return tuple(usages)

    def _measure(self, messages: Sequence[Message]) -> tuple[SizedMessage, ...]:
        """Return ``messages`` measured; those that the last call began with too are the same objects again.

        The log recognizes a conversation that goes on by its objects, which takes no time. Compared by place, since a
        message with parts of an unknown kind has no hash.
        """
        known_messages: list[SizedMessage] = []
        for message, known in zip(messages, self._sized_messages, strict=False):
            if message != known.message:
                break
            known_messages.append(known)
        new_messages = messages[len(known_messages) :]
        new_sizes = measure_messages(new_messages)
        measured_messages = [
            SizedMessage(message, tokens, digest)
            for message, (tokens, digest) in zip(new_messages, new_sizes, strict=True)
        ]
        self._sized_messages = (*known_messages, *measured_messages)
        return self._sized_messages

    def _emit_decisions(self, plan: Plan) -> None:
        if self._telemetry is not None:
            self._telemetry.note_decisions(self.key, plan, self._spans)
        saved_tokens = sum(edit.saves for edit in plan.record)
        if plan.record:
            self._emit_event(events.EditsDecided(self.key, "agent", len(plan.record), saved_tokens))
        if plan.compaction is not None:
            self._emit_event(events.CompactionEnded(self.key, tokens_before=plan.before, tokens_after=plan.after))

    @contextmanager
    def _trace_planning(self, target: Target) -> Iterator[None]:
        """Put the planning of a request in a span below that of the framework, if anybody wants spans."""
        if self._telemetry is None:
            yield
            return
        with self._telemetry.trace_planning(self.key, target.model) as spans:
            self._spans = spans
            try:
                yield
                if self._request is not None:
                    spans.note_plan(self._request.prepared_request.plan)
            finally:
                self._spans = None

    def _emit_event(self, event: events.Event) -> None:
        """Call the listener with ``event``. One that raises is dropped, with a warning in the log."""
        if self._listener is None:
            return
        try:
            self._listener(event)
        except Exception as error:  # noqa: BLE001 -- whatever a listener does, the agent goes on
            self._listener = None
            _LOG.warning("the listener raised %s: %s; it gets no more events: fix it", type(error).__name__, error)


def _list_shown_messages(request: _CurrentRequest) -> list[ShownMessage]:
    shown_messages = list_shown_messages(request.prepared_request, request.conversation.messages)
    return drop_refused_thinking(request.prepared_request, shown_messages)


def _is_request_for(request: _CurrentRequest, messages: Sequence[GivenMessage]) -> bool:
    """Return whether ``request`` was planned for exactly these messages."""
    return [sized.message for sized in request.conversation.messages] == [given.message for given in messages]
