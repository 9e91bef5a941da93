"""A run: one request of a session, with every retry and compaction it takes to get its answer into the log."""

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
from holdfast.engine.run.trace_run import trace_run
from holdfast.engine.session_runtime import SessionRuntime
from holdfast.errors import OperationAborted, StoreError
from holdfast.providers.answers.parsed_answer import ParsedAnswer
from holdfast.providers.common.sse import StreamEvent


class Run:
    """One request of a session. Use it as ``async with`` and iterate it for the API's own events.

    Once the block ends, ``answer`` is in the log, or the error was raised. If the caller leaves the block early, the
    answer received so far is in the log, marked as interrupted.
    """

    def __init__(
        self,
        runtime: SessionRuntime,
        request_input: RequestInput,
        request_options: RequestOptions = RequestOptions(),
        *,
        quiet: bool = False,
    ) -> None:
        self._runtime = runtime
        self._request_input = request_input
        self._request_options = request_options
        self._suppress_events = quiet
        self.attempt: Attempt | None = None
        """The newest request that was sent, with the reply to it."""
        self.attempts = 0
        """Requests that were sent, or are about to be."""
        self._stack = AsyncExitStack()
        self._events: AsyncGenerator[list[StreamEvent]] | None = None
        self._unread_events: deque[StreamEvent] = deque()
        """Events of the newest batch that ``__anext__`` has not returned yet."""
        self._answer: ParsedAnswer | None = None

    @property
    def answer(self) -> ParsedAnswer:
        """The model's answer. Raises ``OperationAborted`` if the run was not read to its end."""
        if self._answer is None:
            raise OperationAborted("this run has no answer: it was not read to its end; iterate it, or use session.ask")
        return self._answer

    async def __aenter__(self) -> Self:
        """Wait for the branch's lane and hold it until the block ends. A run can be entered once."""
        if self._events is not None:
            raise OperationAborted(
                "a run is one request, and this one has started already; call session.run for another"
            )
        await self._stack.enter_async_context(self._runtime.hold_lane())
        self._events = self._generate_events()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self._unread_events.clear()
            if self._events is not None:
                # Closing the generator records the interruption; the lane is held until that is in the log.
                await self._events.aclose()
        except StoreError as unwritten:
            if kind is None:
                raise
            # The block's own error is the more useful one to the caller, so this one becomes a notice.
            recording.emit_unwritten(self._runtime, unwritten)
        finally:
            self._runtime.compaction_tracker.is_sending = False
            self._runtime.compaction_tracker.settle_run()
            await self._stack.aclose()

    def iter_batches(self) -> AsyncIterator[list[StreamEvent]]:
        """Return the API's own events in the batches they arrive in."""
        if self._events is None:
            raise OperationAborted("read a run inside its block: async with session.run(…) as run")
        return self._events

    def __aiter__(self) -> Self:
        """Return the run itself, as the iterator of its events."""
        self.iter_batches()  # raises outside of the block
        return self

    async def __anext__(self) -> StreamEvent:
        """Return the next event."""
        while not self._unread_events:
            self._unread_events += await anext(self.iter_batches())
        return self._unread_events.popleft()

    async def _generate_events(self) -> AsyncGenerator[list[StreamEvent]]:
        """Prepare the request, send it as often as recovery asks, and record the answer; yield batches of events."""
        runtime = self._runtime
        tracker = runtime.compaction_tracker
        parsed_input = parse_request_input(runtime, self._request_input)
        tracker.is_sending = True
        with trace_run(runtime, parsed_input, self._request_options), runtime.track_answering_run():
            prepared_run = await prepare_run(runtime, parsed_input, self._request_options)
            template, prepared_request = prepared_run.template, prepared_run.prepared_request
            recovery = prepared_run.recovery
            while True:
                self.attempts += 1
                attempt = self.attempt = await prepare_attempt(
                    runtime, template, prepared_request, quiet=self._suppress_events
                )
                try:
                    async with runtime.resources.permits.hold(), aclosing(attempt.stream_events()) as batches:
                        async for batch in batches:
                            # While the caller has control it may never come back for more.
                            tracker.is_sending = False
                            if runtime.spans is not None:
                                runtime.spans.note_first_events()
                            yield batch
                            tracker.is_sending = True
                except BaseException as error:
                    # The caller left (GeneratorExit), was cancelled, or an upstream raised an error of its own.
                    has_left = not isinstance(error, Exception)
                    if has_left and attempt.judge_unread_answer():
                        await self._record_answer(template, prepared_request)  # it had read all of the answer
                    else:
                        await recording.record_interruption(runtime, attempt, error)
                    raise
                if attempt.is_answered:
                    await self._record_answer(template, prepared_request)
                    break
                template, prepared_request, recovery = await decide_next_attempt(
                    runtime,
                    template,
                    prepared_request,
                    recovery,
                    attempt,
                )
        await runtime.deliver_queued()

    async def _record_answer(self, template: RequestTemplate, prepared_request: PreparedRequest) -> None:
        """Write the answer to the log; `Run.answer` returns it from then on."""
        assert self.attempt is not None
        self._answer = await recording.record_answer(
            self._runtime, self.attempt, prepared_request, is_own_conversation=template.parsed_body is None
        )
        if self._runtime.spans is not None:
            self._runtime.spans.note_answer(self._answer)
