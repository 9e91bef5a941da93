"""A run: a request and all it takes to get its answer into the log."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, aclosing
from typing import Self

from holdfast.engine.log.journal import Prepared
from holdfast.engine.requests import Asked, Request, Way
from holdfast.engine.run import record as recording
from holdfast.engine.run.attempt import Attempt, attempt_at
from holdfast.engine.run.prepare import begun, read
from holdfast.engine.run.recover import recovered
from holdfast.engine.session_runtime import Course
from holdfast.errors import Aborted, StoreError
from holdfast.providers.common.sse import Event
from holdfast.providers.responses import Answer


class Run:
    """One request of a session, as ``async with``; iterate it for the API's own events as they come, one by one.

    Behind the block ``answer`` is in the log, or the error was raised. Who leaves early has what was said so far in
    the log, as an answer that was interrupted.
    """

    def __init__(self, course: Course, asked: Asked, way: Way = Way(), *, quiet: bool = False) -> None:
        self._course, self._asked, self._way, self._quiet = course, asked, way, quiet
        self.attempt: Attempt | None = None
        """The newest request that went out, with what came back."""
        self.attempts = 0
        """How many requests went out, or are about to."""
        self._stack = AsyncExitStack()
        self._events: AsyncGenerator[list[Event]] | None = None
        self._left: deque[Event] = deque()
        """What came at once and was not read yet."""
        self._answer: Answer | None = None

    @property
    def answer(self) -> Answer:
        """The model's answer; ``Aborted`` where the run was not read to its end."""
        if self._answer is None:
            raise Aborted("this run has no answer: it was not read to its end; iterate it, or use session.ask")
        return self._answer

    async def __aenter__(self) -> Self:
        """Hold the branch's lane until the end of the block; ``Aborted`` the second time."""
        if self._events is not None:
            raise Aborted("a run is one request and this one was begun already; call session.run for another")
        await self._stack.enter_async_context(self._course.lane())
        self._events = self._going()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self._left.clear()
            if self._events is not None:
                await self._events.aclose()
        except StoreError as unwritten:
            if kind is None:
                raise
            recording.tell_unwritten(self._course, unwritten)
        finally:
            self._course.inflight.is_sending = False
            self._course.inflight.settled()
            await self._stack.aclose()

    def together(self) -> AsyncIterator[list[Event]]:
        """Return the API's own events, those together that came at once."""
        if self._events is None:
            raise Aborted("a run is read inside of its block: async with session.run(…) as run")
        return self._events

    def __aiter__(self) -> Self:
        """Return the run, for its events."""
        self.together()
        return self

    async def __anext__(self) -> Event:
        """Return the next event."""
        while not self._left:
            self._left += await anext(self.together())
        return self._left.popleft()

    async def _going(self) -> AsyncGenerator[list[Event]]:
        course, inflight = self._course, self._course.inflight
        said = read(course, self._asked)
        inflight.is_sending = True
        with course.answering():
            first, prepared = await begun(course, said, self._way)
            request, state = first.request, first.state
            while True:
                self.attempts += 1
                attempt = self.attempt = await attempt_at(course, request, prepared, quiet=self._quiet)
                try:
                    async with course.means.permits.hold(), aclosing(attempt.events()) as coming:
                        async for came in coming:
                            inflight.is_sending = False  # the caller has the floor, and may never come back for more
                            yield came
                            inflight.is_sending = True
                except BaseException as error:
                    if isinstance(error, Exception) or not attempt.settled():
                        await recording.broken(course, attempt, error)
                    else:  # the caller has all it waited for
                        await self._record(request, prepared)
                    raise
                if attempt.is_answered:
                    await self._record(request, prepared)
                    break
                request, prepared, state = await recovered(course, request, prepared, state, attempt)
        await course.delivered()

    async def _record(self, request: Request, prepared: Prepared) -> None:
        """Write the answer down, also where the caller leaves meanwhile."""
        assert self.attempt is not None
        self._answer = await recording.answered(self._course, self.attempt, prepared, ours=request.lens is None)
