"""The state that the runs of one session share, and the small steps that they take on it.

Planning, summarizing and sending happen elsewhere, on a ``SessionRuntime``; this module does not import them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from typing import TYPE_CHECKING, Any

from holdfast import events
from holdfast.engine.compaction.inflight import CompactionTracker
from holdfast.engine.compaction.summarizer import CachedRequest
from holdfast.engine.engine_resources import EngineResources
from holdfast.engine.hooks import run_hook
from holdfast.engine.log.journal import Journal, PreparedRequest
from holdfast.engine.run.check_request import CheckedRequest
from holdfast.errors import ConfigError, StoreError, WindowTooSmall
from holdfast.messages.message import Message
from holdfast.messages.sized_message import SizedMessage
from holdfast.planning.settings import Settings
from holdfast.state.cache_misses import CacheHistory
from holdfast.state.costs import SummaryCall, build_summary_cost_note
from holdfast.state.dialect import Dialect
from holdfast.state.plan import Plan
from holdfast.state.target import PlanInputs, Target

if TYPE_CHECKING:
    from holdfast.telemetry.content import RecordedContent
    from holdfast.telemetry.session_spans import SessionSpans

SESSION_REPAIRED = "session-repaired"
"""Rule of the notice about damage in a session that was repaired without loss."""
MODEL_OPTIONS_RULE = "model-options"
"""Rule of the notice about options that requests have only because their model takes them in no other form."""


class SessionRuntime:
    """One branch of one stored session, with everything that its runs share one after the other."""

    def __init__(self, resources: EngineResources, journal: Journal) -> None:
        self.resources = resources
        self.journal = journal
        self.compaction_tracker = CompactionTracker()
        resources.compaction_trackers.add(self.compaction_tracker)
        self.cached_request: CachedRequest | None = None
        """The last answered request, as the provider's cache holds it."""
        self.last_checked_request: CheckedRequest | None = None
        """The last request that was checked and broke no rule; later ones are checked from there on."""
        self.unlogged_costs: list[SummaryCall] = []
        """Calls for summaries whose usage is not in the log yet."""
        self.cache_history = CacheHistory()
        """The requests that this runtime had answered, for telling why a later one missed the provider's cache."""
        self.spans: SessionSpans | None = None
        """The spans of the request or the compaction under way; None if there is none, or if nobody wants spans."""
        self.recorded_content: RecordedContent | None = None
        """What spans of earlier requests have of the words; None if no content is recorded."""
        self.is_answering = False
        """Whether an answer is on its way. Set in the worker together with the commit of the request, so that no user
        message can be appended between the two."""
        self.has_reported_dropped_thinking = False
        """Whether the caller was told that the provider keeps thinking from the model."""
        self._active_runs = 0
        self._pending_appends = 0
        """How many calls of ``append`` are running in the worker, or waiting for it."""
        self._emitted_notices: set[tuple[str, str]] = set()
        # Forks have lanes of their own: a client runs subagents and titles in parallel under one session.
        if journal.moves_leaf:
            self._lane_key = self.key
        else:
            self._lane_key = f"{self.key}/{id(self)}"
        """Does not change if the branch becomes a fork later."""

    @property
    def key(self) -> str:
        """The session's name in the store."""
        return self.journal.key

    @property
    def settings(self) -> Settings:
        """The settings of the session's policy."""
        return self.journal.policy.settings

    @property
    def requires_strict_form(self) -> bool:
        """Whether a client's content is normalized by the rules of the API's maker, as `LearnedLimits` says."""
        return self.journal.state.usage.learned_limits.requires_strict_form

    @property
    def requires_check(self) -> bool:
        """Whether a client's own bodies are checked before they are sent, as `LearnedLimits` says."""
        return self.journal.state.usage.learned_limits.requires_check

    def knows_message_rules(self, dialect: Dialect) -> bool:
        """Return whether the rules of a request's API can be expected to hold for its messages at its server.

        A server other than the API's maker (``keeps_client_content``) has rules that nobody wrote down. What it refuses
        is learned from its refusals; a check by the maker's rules would reject requests that it takes.
        """
        return not (dialect.keeps_client_content or self.requires_strict_form)

    def get_default_target(self) -> Target:
        """Return the target of requests made from messages. Raises ``ConfigError`` if the engine has none."""
        if self.resources.target is None:
            raise ConfigError("this engine knows no model; give Engine.open api=… and model=…, or a whole request body")
        return self.resources.target

    def get_default_fields(self) -> Mapping[str, Any]:
        """Return the fields, beside the messages, of requests made from messages."""
        environment = self.resources.environment
        if environment is None:
            return dict(self.resources.fields)
        target = self.get_default_target()
        return {**environment.build_fields(target.api, target.model), **self.resources.fields}

    def report_model_changes(self) -> None:
        """Give notice of options that requests made from messages have only for the sake of their model."""
        environment = self.resources.environment
        if environment is None:
            return
        target = self.get_default_target()
        for note in environment.describe_model_changes(target.api, target.model):
            self.emit_event(events.NoticeGiven(self.key, MODEL_OPTIONS_RULE, note))

    def hold_lane(self) -> AbstractAsyncContextManager[None]:
        """Return a context manager that holds this branch's lane, which one run may hold at a time."""
        return self.resources.hold_lane(self._lane_key)

    def record_summary_costs(self) -> None:
        """Append the usage of calls for summaries, which is in no answer. Called in the worker."""
        calls = list(self.unlogged_costs)
        # A store that accepts nothing fails the request itself, which is the place to report it.
        with suppress(StoreError):
            self.journal.add_notes(*map(build_summary_cost_note, calls))
            del self.unlogged_costs[: len(calls)]

    # -- messages that arrive while an answer is on its way ------------------------------------------------------------

    async def append(self, messages: Sequence[Message | SizedMessage]) -> list[str]:
        """Store messages, as the ``on_append`` hook wants them; user messages wait while an answer is on its way."""
        self.resources.owner.require()
        hooked_messages = [await self.apply_append_hook(message) for message in messages]
        self._pending_appends += 1
        try:
            return await self.resources.run_in_worker(lambda: self._append_or_queue(hooked_messages))
        finally:
            self._pending_appends -= 1

    async def apply_append_hook(self, message: Message | SizedMessage) -> Message | SizedMessage:
        """Return ``message`` as the ``on_append`` hook wants it."""
        if not isinstance(message, Message):
            return message
        new_message = await self.call_hook("on_append", message)
        return message if new_message is None else new_message

    @contextmanager
    def track_answering_run(self) -> Iterator[None]:
        """Mark a run for the block: from its first committed request to its end user messages wait for the answer."""
        self._active_runs += 1
        try:
            yield
        finally:
            self._active_runs -= 1
            if not self._active_runs:
                self.end_answering()

    def commit_plan(self, plan: Plan, target: Target, inputs: PlanInputs) -> PreparedRequest | None:
        """Commit the request of ``plan``; from then on user messages wait for its answer. Called in the worker.

        Return None if the log has moved on since the plan was made.
        """
        prepared_request = self.journal.commit_plan(plan, target, inputs)
        if prepared_request is not None:
            self.is_answering = True
        return prepared_request

    def end_answering(self) -> None:
        """Note that no answer is on its way: user messages no longer wait."""
        self.is_answering = False

    async def deliver_queued(self) -> None:
        """Append the user messages that arrived while the answer was being stored."""
        if self._pending_appends or self.journal.has_queued_messages:
            await self.resources.run_in_worker(self.journal.deliver_queued)

    def _append_or_queue(self, messages: Sequence[Message | SizedMessage]) -> list[str]:
        """Append messages after the queued ones, or queue them if an answer is on its way; return their entry ids."""
        if self.is_answering:
            return self.journal.queue_messages(*messages)
        self.journal.deliver_queued()
        return self.journal.append(*messages)

    # -- events --------------------------------------------------------------------------------------------------------

    @contextmanager
    def trace_compaction(self) -> Iterator[None]:
        """Put the events of the block, a compaction that somebody asked for, into spans, if anybody wants spans."""
        if self.resources.telemetry is None:
            yield
            return
        spans = self.spans = self.resources.telemetry.start_session_spans()
        try:
            yield
        finally:
            self.spans = None
            spans.end()

    def emit_event(self, event: events.Event) -> None:
        """Call the engine's listener; the same notice is given once."""
        if isinstance(event, events.NoticeGiven):
            if (event.rule, event.why) in self._emitted_notices:
                return
            self._emitted_notices.add((event.rule, event.why))
        self.resources.emit_event(event, self.spans)

    def emit_repairs(self) -> None:
        """Give notice of the repairs made in the session since the last call."""
        repairs, self.journal.repairs = self.journal.repairs, []
        for repair in repairs:
            self.resources.emit_event(events.NoticeGiven(self.key, SESSION_REPAIRED, repair))

    async def emit_compacted(self, event: events.CompactionEnded) -> None:
        """Announce the outcome of a compaction to the listener and the ``after_compaction`` hook."""
        self.emit_event(event)
        await self.call_hook("after_compaction", event)

    async def record_window_too_small(self, error: WindowTooSmall) -> None:
        """Record and announce that nothing could be sent; the same error is recorded once."""
        event = events.NoticeGiven(self.key, "window-too-small", str(error))
        if (event.rule, event.why) in self._emitted_notices:
            return
        self.emit_event(event)
        await self.resources.run_in_worker(lambda: self.journal.record_failure(f"{event.rule}: {event.why}"))

    async def call_hook(self, name: str, *arguments: Any) -> Any:
        """Return the result of hook ``name``, or None if there is no such hook, or it fails."""
        return await run_hook(
            self.resources.hooks,
            name,
            *arguments,
            listener=self.emit_event,
            session=self.key,
        )
