"""The course of a session: the state that its runs share, and the small steps that they take on it.

What needs a plan, a summary or an answer is done elsewhere, to a ``SessionRuntime``; this module knows none of that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from typing import Any

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
from holdfast.state.costs import SummaryCall, build_summary_cost_note
from holdfast.state.plan import Plan
from holdfast.state.target import PlanInputs, Target

SESSION_REPAIRED = "session-repaired"
"""Rule of the notice that tells what was damaged in a session and repaired without loss."""


class SessionRuntime:
    """One branch of one stored session and whoever answers it, as its runs find it one after the other."""

    def __init__(self, resources: EngineResources, journal: Journal) -> None:
        self.resources = resources
        self.journal = journal
        self.compaction_tracker = CompactionTracker()
        resources.compaction_trackers.add(self.compaction_tracker)
        self.cached_request: CachedRequest | None = None
        """The last request that was answered, as the provider's cache holds it."""
        self.last_checked_request: CheckedRequest | None = None
        """The last request in which something of ours was judged, and nothing wrong was found."""
        self.unlogged_costs: list[SummaryCall] = []
        """Calls for summaries that the log does not tell of yet."""
        self.is_answering = False
        """Whether a request is on its way. Set where it is committed, in the worker, so that no words slip between."""
        self._active_runs = 0
        self._pending_appends = 0
        """How many calls of ``append`` are in the worker, or on their way there."""
        self._emitted_notices: set[tuple[str, str]] = set()
        self._lane_key = self.key if journal.moves_leaf else f"{self.key}/{id(self)}"
        """Stays the same where the branch parts from the session's."""

    @property
    def key(self) -> str:
        """The session's name in the store."""
        return self.journal.key

    @property
    def settings(self) -> Settings:
        """The numbers of the policy that decides here."""
        return self.journal.policy.settings

    @property
    def requires_strict_form(self) -> bool:
        """Whether a server that we do not know refused what its client wrote: the API's maker's rules hold there."""
        return self.journal.state.usage.learned_limits.fixes_client_content

    @property
    def requires_check(self) -> bool:
        """Whether its API refused what its client wrote, for a rule that we know: it is judged like what is ours."""
        return self.journal.state.usage.learned_limits.validates_client_content

    def get_default_target(self) -> Target:
        """Return the target of requests that are made of words; ``ConfigError`` where there is none."""
        if self.resources.target is None:
            raise ConfigError("this engine knows no model; give Engine.open api=… and model=…, or a whole request body")
        return self.resources.target

    def get_default_fields(self) -> Mapping[str, Any]:
        """Return the fields beside the messages of requests that are made of words."""
        environment = self.resources.environment
        environment_fields = {} if environment is None else environment.build_fields(self.get_default_target().api)
        return {**environment_fields, **self.resources.fields}

    def hold_lane(self) -> AbstractAsyncContextManager[None]:
        """Return the lane of this branch, to be held by one run at a time."""
        return self.resources.hold_lane(self._lane_key)

    def record_summary_costs(self) -> None:
        """Write down what summaries cost, in the worker: no answer tells it."""
        calls, self.unlogged_costs = self.unlogged_costs, []
        with suppress(StoreError):  # of a store that takes nothing the request itself tells
            self.journal.add_notes(*map(build_summary_cost_note, calls))

    # -- what is said while an answer is on its way --------------------------------------------------------------------

    async def append(self, messages: Sequence[Message | SizedMessage]) -> list[str]:
        """Store messages, the hook asked; a user's words wait while an answer is on its way."""
        self.resources.owner.require()
        hooked_messages = [await self.apply_append_hook(message) for message in messages]
        self._pending_appends += 1
        try:
            return await self.resources.run_in_worker(lambda: self._append_or_queue(hooked_messages))
        finally:
            self._pending_appends -= 1

    async def apply_append_hook(self, message: Message | SizedMessage) -> Message | SizedMessage:
        """Return ``message`` as the hook wants it appended."""
        if not isinstance(message, Message):
            return message
        new_message = await self.call_hook("on_append", message)
        return message if new_message is None else new_message

    @contextmanager
    def track_answering_run(self) -> Iterator[None]:
        """Let a user's words wait from the block's first committed request to its end: an answer is on its way."""
        self._active_runs += 1
        try:
            yield
        finally:
            self._active_runs -= 1
            if not self._active_runs:
                self.end_answering()

    def commit_plan(self, plan: Plan, target: Target, inputs: PlanInputs) -> PreparedRequest | None:
        """Commit the request of ``plan``, in the worker; from then on a user's words wait for its answer."""
        prepared_request = self.journal.commit_plan(plan, target, inputs)
        self.is_answering = self.is_answering or prepared_request is not None
        return prepared_request

    def end_answering(self) -> None:
        """Let a user's words wait no longer: no answer is on its way."""
        self.is_answering = False

    async def deliver_queued(self) -> None:
        """Say what came while the answer was being stored."""
        if self._pending_appends or self.journal.can_have_queued:
            await self.resources.run_in_worker(self.journal.deliver_queued)

    def _append_or_queue(self, messages: Sequence[Message | SizedMessage]) -> list[str]:
        """Append messages behind those that waited; a user's words wait. Return the ids of their entries."""
        if self.is_answering:
            return self.journal.queue_messages(*messages)
        self.journal.deliver_queued()
        return self.journal.append(*messages)

    # -- who is told ---------------------------------------------------------------------------------------------------

    def emit_event(self, event: events.Event) -> None:
        """Tell the engine's listener; the same notice is told once."""
        if isinstance(event, events.NoticeGiven):
            if (event.rule, event.why) in self._emitted_notices:
                return
            self._emitted_notices.add((event.rule, event.why))
        self.resources.emit_event(event)

    def emit_repairs(self) -> None:
        """Tell what was repaired in the session since this was asked last."""
        repairs, self.journal.repairs = self.journal.repairs, []
        for repair in repairs:
            self.resources.emit_event(events.NoticeGiven(self.key, SESSION_REPAIRED, repair))

    async def emit_compacted(self, event: events.CompactionEnded) -> None:
        """Tell what became of a compaction, the hook too."""
        self.emit_event(event)
        await self.call_hook("after_compaction", event)

    async def record_window_too_small(self, error: WindowTooSmall) -> None:
        """Write down, and tell, why nothing could be sent; the same is said once."""
        event = events.NoticeGiven(self.key, "window-too-small", str(error))
        if (event.rule, event.why) not in self._emitted_notices:
            self.emit_event(event)
            await self.resources.run_in_worker(lambda: self.journal.record_failure(f"{event.rule}: {event.why}"))

    async def call_hook(self, name: str, *arguments: Any) -> Any:
        """Return what the hook called ``name`` says; nothing where there is none, or where it fails."""
        return await run_hook(self.resources.hooks, name, *arguments, listener=self.emit_event, session=self.key)
