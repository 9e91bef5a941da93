"""A run: a request and all it takes to get its answer into the log."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, aclosing
from typing import Self

from holdfast.engine.log.journal import PreparedRequest
from holdfast.engine.request_template import RequestInput, RequestOptions, RequestTemplate
from holdfast.engine.run import record as recording
from holdfast.engine.run.attempt import Attempt, prepare_attempt
from holdfast.engine.run.prepare import parse_request_input, prepare_run
from holdfast.engine.run.recover import decide_next_attempt
from holdfast.engine.session_runtime import SessionRuntime
from holdfast.errors import OperationAborted, StoreError
from holdfast.providers.answers.parsed_answer import ParsedAnswer
from holdfast.providers.common.sse import StreamEvent


class Run:
    """One request of a session, as ``async with``; iterate it for the API's own events as they come, one by one.

    Behind the block ``answer`` is in the log, or the error was raised. Who leaves early has what was said so far in
    the log, as an answer that was interrupted.
    """

    def __init__(
        self,
        runtime: SessionRuntime,
        request_input: RequestInput,
        way: RequestOptions = RequestOptions(),
        *,
        quiet: bool = False,
    ) -> None:
        self._runtime, self._request_input, self._request_options, self._suppress_events = (
            runtime,
            request_input,
            way,
            quiet,
        )
        self.attempt: Attempt | None = None
        """The newest request that went out, with what came back."""
        self.attempts = 0
        """How many requests went out, or are about to."""
        self._stack = AsyncExitStack()
        self._events: AsyncGenerator[list[StreamEvent]] | None = None
        self._unread_events: deque[StreamEvent] = deque()
        """What came at once and was not read yet."""
        self._answer: ParsedAnswer | None = None

    @property
    def answer(self) -> ParsedAnswer:
        """The model's answer; ``OperationAborted`` where the run was not read to its end."""
        if self._answer is None:
            raise OperationAborted("this run has no answer: it was not read to its end; iterate it, or use session.ask")
        return self._answer

    async def __aenter__(self) -> Self:
        """Hold the branch's lane until the end of the block; ``OperationAborted`` the second time."""
        if self._events is not None:
            raise OperationAborted("a run is one request and this one was begun already; call session.run for another")
        await self._stack.enter_async_context(self._runtime.hold_lane())
        self._events = self._generate_events()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self._unread_events.clear()
            if self._events is not None:
                await self._events.aclose()
        except StoreError as unwritten:
            if kind is None:
                raise
            recording.emit_unwritten(self._runtime, unwritten)
        finally:
            self._runtime.compaction_tracker.is_sending = False
            self._runtime.compaction_tracker.settle_run()
            await self._stack.aclose()

    def iter_batches(self) -> AsyncIterator[list[StreamEvent]]:
        """Return the API's own events, those together that came at once."""
        if self._events is None:
            raise OperationAborted("a run is read inside of its block: async with session.run(…) as run")
        return self._events

    def __aiter__(self) -> Self:
        """Return the run, for its events."""
        self.iter_batches()
        return self

    async def __anext__(self) -> StreamEvent:
        """Return the next event."""
        while not self._unread_events:
            self._unread_events += await anext(self.iter_batches())
        return self._unread_events.popleft()

    async def _generate_events(self) -> AsyncGenerator[list[StreamEvent]]:
        runtime, inflight = self._runtime, self._runtime.compaction_tracker
        parsed_input = parse_request_input(runtime, self._request_input)
        inflight.is_sending = True
        with runtime.track_answering_run():
            first, prepared_request = await prepare_run(runtime, parsed_input, self._request_options)
            request, state = first.template, first.recovery
            while True:
                self.attempts += 1
                attempt = self.attempt = await prepare_attempt(
                    runtime, request, prepared_request, quiet=self._suppress_events
                )
                try:
                    async with runtime.resources.permits.hold(), aclosing(attempt.stream_events()) as coming:
                        async for came in coming:
                            inflight.is_sending = False  # the caller has the floor, and may never come back for more
                            yield came
                            inflight.is_sending = True
                except BaseException as error:
                    if isinstance(error, Exception) or not attempt.judge_unread_answer():
                        await recording.record_interruption(runtime, attempt, error)
                    else:  # the caller has all it waited for
                        await self._record_answer(request, prepared_request)
                    raise
                if attempt.is_answered:
                    await self._record_answer(request, prepared_request)
                    break
                request, prepared_request, state = await decide_next_attempt(
                    runtime, request, prepared_request, state, attempt
                )
        await runtime.deliver_queued()

    async def _record_answer(self, request: RequestTemplate, prepared_request: PreparedRequest) -> None:
        """Write the answer down, also where the caller leaves meanwhile."""
        assert self.attempt is not None
        self._answer = await recording.record_answer(
            self._runtime, self.attempt, prepared_request, is_own_conversation=request.parsed_body is None
        )
