"""The engine without ``async``: the same methods, for programs that have no event loop.

::

    upstream = HttpUpstream(url, "anthropic", headers)
    with open_engine("agent.db", upstream=upstream, api="anthropic", model=model) as engine:
        session = engine.session("tide")
        print(session.ask("How high is it?").message.text)

The event loop runs in a thread of its own, which ends with the block. A method raises the same errors as its ``async``
counterpart.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from concurrent.futures import CancelledError, Future, InvalidStateError
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    ExitStack,
    aclosing,
    contextmanager,
    suppress,
)
from contextvars import Context, ContextVar, copy_context
from functools import partial, wraps
from threading import Thread, current_thread, main_thread
from typing import Any, Concatenate, Generic, NamedTuple, ParamSpec, TypeVar

import anyio
from anyio import BrokenResourceError, CancelScope, ClosedResourceError, EndOfStream, create_memory_object_stream
from anyio.from_thread import BlockingPortal
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from holdfast.engine.concurrency.engine_owner import make_forked_error
from holdfast.engine.engine import Engine
from holdfast.engine.run.run import Run
from holdfast.engine.session import Session
from holdfast.errors import HoldfastError, OperationAborted
from holdfast.messages.text.paging import TextPage
from holdfast.providers.answers.parsed_answer import ParsedAnswer
from holdfast.providers.common.sse import StreamEvent

P = ParamSpec("P")
T = TypeVar("T")

# Python handles ^C between bytecodes of the main thread only, so a wait without end may miss one that comes a moment
# before it begins, or to another thread. Shorter slices react sooner and wake the thread more often. Chosen by
# judgement.
WAIT_SLICE_SECONDS = 0.5
"""Seconds of one wait; ^C is noticed between two of them at the latest."""
_RUN_CONTEXT: ContextVar[Context | None] = ContextVar("holdfast_run_context", default=None)
"""The context of the run whose ``with`` block this thread is in. Calls made in the block run in it, so that they share
the run's lane and permit instead of waiting for them for ever."""


class LoopThread:
    """An event loop in a thread of its own, for callers in other threads of the process."""

    def __init__(self, portal: BlockingPortal) -> None:
        self.portal = portal
        self._process_id = os.getpid()

    @property
    def is_forked(self) -> bool:
        """Whether this process is a forked child, in which the loop has no thread."""
        return self._process_id != os.getpid()

    def submit(self, work: Callable[[], Awaitable[T]]) -> Future[T]:
        """Start ``work`` in the loop and return its future.

        Raises ``OperationAborted`` if the loop has ended, or if the caller is in the loop itself.
        """
        if self.is_forked:
            raise make_forked_error()
        run_context = _RUN_CONTEXT.get()
        context = copy_context() if run_context is None else run_context.copy()
        try:
            return context.run(self.portal.start_task_soon, work)
        except RuntimeError as error:
            text = f"the engine cannot be used here ({error}); open it again, or call it from another thread"
            raise OperationAborted(text) from error

    def run(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run ``work`` in the loop and return its result; cancel it if the caller is interrupted."""
        job = _Job(self, work)
        try:
            job.start()
            return job.wait()
        except BaseException as error:
            is_interrupted = not isinstance(error, Exception)
            if is_interrupted:
                job.cancel()
            raise


class _Job(Generic[T]):
    """Work in an event loop whose caller may be interrupted at any moment, even before it has the future."""

    def __init__(self, loop: LoopThread, work: Callable[[], Awaitable[T]]) -> None:
        self._loop = loop
        self._work = work
        self._scope: CancelScope | None = None
        self._future: Future[T] = Future()

    def start(self) -> None:
        """Start the work."""
        self._future = self._loop.submit(self._run)

    def wait(self) -> T:
        """Wait for the work and return its result."""
        return _wait_for_result(self._future)

    def cancel(self) -> None:
        """Cancel the work if it was started; ``wait`` returns when it has ended."""
        with suppress(OperationAborted):
            # Through the loop, and so after the start of `_run`, which has its scope by then.
            self._loop.submit(self._cancel_scope)

    async def _run(self) -> T:
        with CancelScope() as self._scope:
            return await self._work()
        raise OperationAborted("the call was cancelled: its caller was interrupted")

    async def _cancel_scope(self) -> None:
        if self._scope is not None:
            self._scope.cancel()


def _wait_for_result(future: Future[T]) -> T:
    """Wait for ``future`` in slices, between which ^C is noticed, and return its result."""
    try:
        while not future.done():
            with suppress(TimeoutError):
                future.exception(WAIT_SLICE_SECONDS)
        return future.result()
    except CancelledError as error:
        raise OperationAborted("the engine was closed before this call ended; open it again") from error


@contextmanager
def run_event_loop() -> Iterator[LoopThread]:
    """Run an event loop in a thread of its own until the end of the block, then cancel the tasks that still run.

    Not ``anyio.from_thread.start_blocking_portal``: it lets running tasks end by themselves, and it joins its thread
    even if ^C came before the loop was told to stop, which then hangs. This loop also ends with the program.
    """
    started: Future[LoopThread] = Future()
    thread = Thread(
        target=Context().run,
        args=(_serve_portal, started, current_thread()),
        name="holdfast",
        daemon=True,
    )
    try:
        thread.start()
        yield _wait_for_result(started)
    finally:
        _stop_portal(started)
        while thread.is_alive():
            thread.join(WAIT_SLICE_SECONDS)


def _serve_portal(started: Future[LoopThread], opener: Thread) -> None:
    """Run a loop until it is told to stop, or the program ends: an interrupted opener may never tell it.

    A program ends with its main thread, unless ``opener``, the thread that opened the loop, is one that Python waits
    for: it may be in the middle of an answer.
    """

    async def serve() -> None:
        async with BlockingPortal() as portal:
            started.set_result(LoopThread(portal))
            while main_thread().is_alive() or (opener.is_alive() and not opener.daemon):
                with anyio.move_on_after(WAIT_SLICE_SECONDS):
                    await portal.sleep_until_stopped()
                    return
            await portal.stop(cancel_remaining=True)

    try:
        anyio.run(serve)
    except BaseException as error:  # noqa: BLE001 -- raised where ``started`` is waited for
        with suppress(InvalidStateError):  # nobody waits for it any more
            started.set_exception(error)


def _stop_portal(started: Future[LoopThread]) -> None:
    """Tell a loop to stop; one that has not begun yet ends by itself, since its future is cancelled."""
    if started.cancel() or started.exception() is not None:
        return
    loop = started.result()
    with suppress(OperationAborted):  # it has ended, or is that of the parent process
        loop.submit(partial(loop.portal.stop, cancel_remaining=True))


def _make_sync_method(
    method: Callable[Concatenate[Session, P], Awaitable[T]],
) -> Callable[Concatenate[SyncSession, P], T]:
    """Turn an async method of ``Session`` into a blocking one of ``SyncSession``."""

    @wraps(method)
    def call(self: SyncSession, /, *args: P.args, **options: P.kwargs) -> T:
        return self.loop.run(partial(method, self.session, *args, **options))

    return call


def _make_async(method: Callable[Concatenate[Session, P], T]) -> Callable[Concatenate[Session, P], Awaitable[T]]:
    """Turn a plain method of ``Session`` into an async one, so that it runs in the session's event loop."""

    @wraps(method)
    async def call(self: Session, /, *args: P.args, **options: P.kwargs) -> T:
        return method(self, *args, **options)

    return call


def _make_sync_run_method(
    method: Callable[Concatenate[Session, P], Run],
) -> Callable[Concatenate[SyncSession, P], AbstractContextManager[SyncRun]]:
    """Turn ``Session.run`` into a method whose run is used as ``with`` and iterated without ``async``.

    If the caller leaves the block early, the answer received so far is in the log, marked as interrupted.
    """

    @wraps(method)
    @contextmanager
    def open_run(self: SyncSession, /, *args: P.args, **options: P.kwargs) -> Iterator[SyncRun]:
        outer_context = _RUN_CONTEXT.get()
        run = SyncRun(self.loop, method(self.session, *args, **options))
        try:
            run.wait_for_turn()
            yield run
        except BaseException:
            with suppress(HoldfastError):  # the error of the block is the one to raise
                run.finish()
            raise
        else:
            run.finish()
        finally:
            _RUN_CONTEXT.set(outer_context)

    return open_run


class SyncSession:
    """A ``Session`` whose methods block until they are done."""

    def __init__(self, loop: LoopThread, session: Session) -> None:
        self.loop = loop
        self.session = session

    @property
    def key(self) -> str:
        """The session's name in the store."""
        return self.session.key

    @property
    def recall_tool(self) -> dict[str, Any]:
        """The definition of the tool ``recall``, as an element of the ``tools`` of a request to this session's API."""
        return self.session.recall_tool

    answer_recall = _make_sync_method(Session.answer_recall)
    append = _make_sync_method(Session.append)
    ask = _make_sync_method(Session.ask)
    close = _make_sync_method(_make_async(Session.close))
    compact = _make_sync_method(Session.compact)
    prepare = _make_sync_method(Session.prepare)
    record = _make_sync_method(Session.record)
    render_body = _make_sync_method(_make_async(Session.render_body))
    report = _make_sync_method(_make_async(Session.report))
    run = _make_sync_run_method(Session.run)
    shorten_results = _make_sync_method(Session.shorten_results)
    undo = _make_sync_method(Session.undo)
    wait_for_compaction = _make_sync_method(Session.wait_for_compaction)

    def recall(self, id: str = "", **where: Any) -> TextPage:  # noqa: A002 -- what it is called everywhere
        """Return a page of a spilled text, or of an entry's content."""
        return self.loop.run(partial(self.session.recall, id, **where))

    def branch(self, entry: str) -> SyncSession:
        """Return a fork of this session after ``entry``; this one stays where it is."""
        return SyncSession(self.loop, self.loop.run(partial(self.session.branch, entry)))


class _RunStep(NamedTuple):
    """The next event of a run, or None for its start, and the context that the run has then."""

    event: StreamEvent | None
    context: Context


class SyncRun:
    """A ``Run`` to be iterated without ``async``.

    One task in the event loop does all of the run: lanes, permits and cancel scopes belong to the task that entered
    them. It advances by one event for each request that it receives.
    """

    def __init__(self, loop: LoopThread, run: Run) -> None:
        self._loop = loop
        self._run = run
        self._step_requests, step_requests = create_memory_object_stream[None]()
        steps, self._steps = create_memory_object_stream[_RunStep]()
        self._is_waiting_for_step = False
        self._job = _Job(loop, partial(self._give_steps, step_requests, steps))
        try:
            self._job.start()
        except BaseException:
            self._job.cancel()
            raise

    @property
    def answer(self) -> ParsedAnswer:
        """The model's answer. Raises ``OperationAborted`` if the run was not read to its end."""
        return self._run.answer

    def __iter__(self) -> Iterator[StreamEvent]:
        """Yield the API's own events as they come; errors of the run are raised here."""
        while (event := self._next_event()) is not None:
            yield event

    def wait_for_turn(self) -> None:
        """Wait until the run holds its lane."""
        self._next_event()

    def finish(self) -> None:
        """End the run, with its answer in the log as far as it was received, and raise its error if it had one."""
        try:
            self._loop.run(self._step_requests.aclose)
        except OperationAborted:
            self._step_requests.close()  # the loop has ended, and with it the task that received requests
            raise
        if self._is_waiting_for_step:
            self._job.cancel()  # interrupted while a step was under way: it may wait for the provider for long
        self._job.wait()

    def _next_event(self) -> StreamEvent | None:
        """Return the next event, or None for the first step, which starts the run, and at the end."""
        self._is_waiting_for_step = True
        step = self._loop.run(self._request_step)
        self._is_waiting_for_step = False
        if step is None:
            self._job.wait()
            return None
        _RUN_CONTEXT.set(step.context)
        return step.event

    async def _request_step(self) -> _RunStep | None:
        """Request and return the next step, or None at the end of the run."""
        try:
            await self._step_requests.send(None)
            return await self._steps.receive()
        except (BrokenResourceError, ClosedResourceError, EndOfStream):
            return None

    async def _give_steps(
        self, step_requests: MemoryObjectReceiveStream[None], steps: MemoryObjectSendStream[_RunStep]
    ) -> None:
        """Send one step for each request. The run does not begin before the first one: an early ^C leaves no trace."""
        events = self._generate_events()
        async with self._step_requests, step_requests, steps, self._steps, aclosing(events):
            async for _ in step_requests:
                try:
                    event = await anext(events)
                except StopAsyncIteration:
                    break
                await steps.send(_RunStep(event, copy_context()))

    async def _generate_events(self) -> AsyncGenerator[StreamEvent | None]:
        """Yield None once the run holds its lane, and then its events."""
        async with self._run:
            yield None
            async for event in self._run:
                yield event


class SyncEngine:
    """An ``Engine`` for programs without an event loop; ``open_engine`` makes one."""

    def __init__(self, loop: LoopThread, engine: Engine) -> None:
        self._loop = loop
        self.engine = engine

    def session(self, key: str, *, leaf: str | None = None) -> SyncSession:
        """Return the session called ``key``, creating it if needed; with ``leaf`` a fork of it after that entry."""
        return SyncSession(self._loop, self._loop.run(partial(self.engine.session, key, leaf=leaf)))


def _make_open_engine(
    open_async: Callable[P, AbstractAsyncContextManager[Engine]],
) -> Callable[P, AbstractContextManager[SyncEngine]]:
    @contextmanager
    def open_engine(*args: P.args, **options: P.kwargs) -> Iterator[SyncEngine]:
        """Open an engine as ``Engine.open`` does, with the same arguments, for programs that have no event loop.

        An ``upstream`` that is an async context manager (``HttpUpstream``, an SDK's async client) is closed with it.
        """
        with run_event_loop() as loop:
            stack = ExitStack()
            try:
                upstream = options.get("upstream")
                if isinstance(upstream, AbstractAsyncContextManager):
                    stack.enter_context(loop.portal.wrap_async_context_manager(upstream))
                engine = open_async(*args, **options)
                yield SyncEngine(loop, stack.enter_context(loop.portal.wrap_async_context_manager(engine)))
            finally:
                # A child process forked inside the block must not close anything of its parent's. Closed without the
                # error of the block: a KeyboardInterrupt passed into the loop would end it before it has closed.
                if not loop.is_forked:
                    stack.close()

    return open_engine


open_engine = _make_open_engine(Engine.open)
