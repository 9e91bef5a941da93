"""The engine without ``async``: the same verbs, for programs that have no event loop.

::

    with open_engine("agent.db", upstream=Http(url, "anthropic", headers), api="anthropic", model=model) as engine:
        session = engine.session("tide")
        print(session.ask("How high is it?").message.text)

The loop runs in a thread of its own, which ends with the block. What a verb raises is what its ``async`` twin raises.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import CancelledError, Future, InvalidStateError
from contextlib import AbstractAsyncContextManager, AbstractContextManager, ExitStack, contextmanager, suppress
from contextvars import Context, ContextVar, copy_context
from functools import partial, wraps
from threading import Event as Flag
from threading import Thread, main_thread
from typing import Any, Concatenate, ParamSpec, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

import anyio
from anyio import BrokenResourceError, CancelScope, ClosedResourceError, EndOfStream, create_memory_object_stream
from anyio.from_thread import BlockingPortal
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from holdfast.engine.engine import Engine
from holdfast.engine.run.run import Run
from holdfast.engine.session import Report, Session
from holdfast.errors import HoldfastError, OperationAborted
from holdfast.messages.text.paging import TextPage
from holdfast.providers.common.sse import StreamEvent
from holdfast.providers.responses import ParsedAnswer

P = ParamSpec("P")
T = TypeVar("T")

WAIT_SLICE_SECONDS = 0.5
"""Seconds of one wait: ^C that comes a moment before it begins, or to another thread, is heard when it ends. [H]"""
_RUN_CONTEXT: ContextVar[Context | None] = ContextVar("holdfast_around", default=None)
"""What is around the run whose block this thread is in: its work goes into the run's lane, and has its permit."""


_SyncRunContext: TypeAlias = AbstractContextManager["SyncRun"]
_PORTAL_PROCESSES: WeakKeyDictionary[BlockingPortal, int] = WeakKeyDictionary()
"""Where each loop has its thread: a child that is forked has the loop and no thread that would do its work."""


@contextmanager
def run_event_loop() -> Iterator[BlockingPortal]:
    """Run an event loop in a thread of its own until the end of the block; what still runs then is cancelled.

    Whoever is interrupted here, at its beginning or end too, waits for no loop that nobody told to end. The end of the
    block in a child that was forked inside of it ends nothing.
    """
    portal_future = Future[BlockingPortal]()
    thread = Thread(target=Context().run, args=(_serve_portal, portal_future), name="holdfast", daemon=True)
    try:
        thread.start()
        yield _wait_for_result(portal_future)
    finally:
        _stop_portal(portal_future)
        while thread.is_alive():
            thread.join(WAIT_SLICE_SECONDS)


def _serve_portal(portal_future: Future[BlockingPortal]) -> None:
    """Run a loop until it is told to end, or the main thread has: whoever is interrupted may have told it nothing."""

    async def serve() -> None:
        async with BlockingPortal() as portal:
            _PORTAL_PROCESSES[portal] = os.getpid()
            portal_future.set_result(portal)
            while main_thread().is_alive():
                with anyio.move_on_after(WAIT_SLICE_SECONDS):
                    await portal.sleep_until_stopped()
                    return
            await portal.stop(cancel_remaining=True)

    try:
        anyio.run(serve)
    except BaseException as error:  # noqa: BLE001 -- it is raised where the loop is waited for
        with suppress(InvalidStateError):  # nobody waits for it any more
            portal_future.set_exception(error)


def _stop_portal(portal_future: Future[BlockingPortal]) -> None:
    """Tell a loop to end; one that is about to begin ends by itself."""
    if (
        not portal_future.cancel()
        and portal_future.exception() is None
        and _is_of_this_process(portal := portal_future.result())
    ):
        with suppress(RuntimeError):  # it has ended
            portal.start_task_soon(portal.stop, True)  # noqa: FBT003 -- what runs is cancelled


def _is_of_this_process(portal: BlockingPortal) -> bool:
    """Return whether a loop was begun in this process."""
    return _PORTAL_PROCESSES.get(portal, os.getpid()) == os.getpid()


def _start_work(portal: BlockingPortal, work: Callable[[], Awaitable[T]]) -> Future[T]:
    """Return the future of ``work``; ``OperationAborted`` where the loop has ended, is another process's or the
    caller's own.
    """
    if not _is_of_this_process(portal):
        raise OperationAborted("the engine was opened in another process, from which this one was forked; open it here")
    around = _RUN_CONTEXT.get()
    context = copy_context() if around is None else around.copy()
    try:
        return context.run(portal.start_task_soon, work)
    except RuntimeError as error:
        text = f"the engine cannot be used here ({error}); open it again, or call it from another thread"
        raise OperationAborted(text) from error


async def _call_plain(function: Callable[[], T]) -> T:
    """Return what a plain function returns, called where the session is at work."""
    return function()


def _run_work(portal: BlockingPortal, work: Callable[[], Awaitable[T]]) -> T:
    """Return what ``work`` returns; it is given up where the caller is interrupted, also before its future is here."""
    scopes: list[CancelScope] = []

    async def held() -> T:
        with CancelScope() as scope:
            scopes.append(scope)
            return await work()
        raise OperationAborted("it was given up: its caller was interrupted")

    async def given_up() -> None:
        for scope in scopes:
            scope.cancel()

    try:
        return _wait_for_result(_start_work(portal, held))
    except BaseException as error:
        if not isinstance(error, Exception):
            with suppress(OperationAborted):
                _start_work(portal, given_up)  # behind ``held``, which has its scope by then
        raise


def _wait_for_result(future: Future[T]) -> T:
    """Return what is waited for; it is given up where the caller is interrupted."""
    try:
        while not future.done():
            with suppress(TimeoutError):
                future.exception(WAIT_SLICE_SECONDS)
        return future.result()
    except CancelledError as error:
        raise OperationAborted("the engine was closed before this ended; open it again") from error
    finally:
        future.cancel()


def _make_sync_method(
    method: Callable[Concatenate[Session, P], Awaitable[T]],
) -> Callable[Concatenate[SyncSession, P], T]:
    """Return ``method`` as one that returns when it is done."""

    @wraps(method)
    def done(self: SyncSession, /, *args: P.args, **options: P.kwargs) -> T:
        return _run_work(self.portal, partial(method, self.session, *args, **options))

    return done


def _make_sync_run_method(
    method: Callable[Concatenate[Session, P], Run],
) -> Callable[Concatenate[SyncSession, P], _SyncRunContext]:
    """Return ``method`` as one whose run is used as ``with``, and iterated without ``async``.

    Who leaves the block early has what was said so far in the log, as an answer that was interrupted.
    """

    @wraps(method)
    @contextmanager
    def running(self: SyncSession, /, *args: P.args, **options: P.kwargs) -> Iterator[SyncRun]:
        before = _RUN_CONTEXT.get()
        run = SyncRun(self.portal, method(self.session, *args, **options))
        try:
            run.wait_for_turn()
            yield run
        except BaseException:
            with suppress(HoldfastError):
                run.finish()
            raise
        else:
            run.finish()
        finally:
            _RUN_CONTEXT.set(before)

    return running


class SyncSession:
    """A ``Session`` whose verbs return when they are done."""

    def __init__(self, portal: BlockingPortal, session: Session) -> None:
        self.portal = portal
        self.session = session

    @property
    def key(self) -> str:
        """The session's name in the store."""
        return self.session.key

    append = _make_sync_method(Session.append)
    ask = _make_sync_method(Session.ask)
    compact = _make_sync_method(Session.compact)
    undo = _make_sync_method(Session.undo)
    prepare = _make_sync_method(Session.prepare)
    record = _make_sync_method(Session.record)
    wait_for_compaction = _make_sync_method(Session.wait_for_compaction)

    def branch(self, entry: str) -> SyncSession:
        """Return a session that goes on behind ``entry``; this one stays where it is."""
        open_branch = partial(self.session.branch, entry)
        return SyncSession(self.portal, _run_work(self.portal, open_branch))

    def recall(self, id: str = "", **where: Any) -> TextPage:  # noqa: A002 -- what it is called everywhere
        """Return a page of a text that was stored away, or of what an entry says."""
        return _run_work(self.portal, partial(self.session.recall, id, **where))

    def report(self) -> Report:
        """Return how full the context is."""
        return _run_work(self.portal, partial(_call_plain, self.session.report))

    def close(self) -> None:
        """Stop a compaction under way and turn away those that wait for it; the engine lets the session go."""
        _run_work(self.portal, partial(_call_plain, self.session.close))

    run = _make_sync_run_method(Session.run)


_RunStep: TypeAlias = tuple[StreamEvent | None, Context]
"""An event, and what is around the run now; no event when its turn has come."""


class SyncRun:
    """A ``Run`` to be iterated. One task does all of it, and goes on by one event whenever one is asked for."""

    def __init__(self, portal: BlockingPortal, run: Run) -> None:
        self._portal = portal
        self._run = run
        self._step_requests, ask_receiver = create_memory_object_stream[None]()
        gives, self._steps = create_memory_object_stream[_RunStep]()
        self._is_waiting_for_step = False
        self._task_exited = Flag()
        try:
            self._task_future = _start_work(portal, partial(self._run_task, ask_receiver, gives))
        except BaseException:
            with suppress(OperationAborted):
                _start_work(portal, self._step_requests.aclose)  # the task waits to be asked
            raise

    @property
    def answer(self) -> ParsedAnswer:
        """The model's answer; ``OperationAborted`` where the run was not read to its end."""
        return self._run.answer

    def __iter__(self) -> Iterator[StreamEvent]:
        """Yield the API's own events as they come; what the run raises is raised here."""
        while (event := self._next_event()) is not None:
            yield event

    def wait_for_turn(self) -> None:
        """Return when the run's turn has come."""
        self._next_event()

    def finish(self) -> None:
        """Return when the run is over, with what was said so far in the log; raise what it raised."""
        try:
            _run_work(self._portal, self._step_requests.aclose)
        except OperationAborted:
            self._step_requests.close()  # the loop has ended, and with it who waited for more
            raise
        if self._is_waiting_for_step:
            self._task_future.cancel()
            self._task_exited.wait()
        _wait_for_result(self._task_future)

    def _next_event(self) -> StreamEvent | None:
        """Return the next event; nothing when the turn has come, and at the end."""
        self._is_waiting_for_step = True
        delivery = _run_work(self._portal, self._request_step)
        self._is_waiting_for_step = False
        if delivery is None:
            _wait_for_result(self._task_future)
            return None
        event, around = delivery
        _RUN_CONTEXT.set(around)
        return event

    async def _request_step(self) -> _RunStep | None:
        """Return what the run gives next, or nothing at its end."""
        try:
            await self._step_requests.send(None)
            return await self._steps.receive()
        except (BrokenResourceError, ClosedResourceError, EndOfStream):
            return None

    async def _run_task(
        self, ask_receiver: MemoryObjectReceiveStream[None], gives: MemoryObjectSendStream[_RunStep]
    ) -> None:
        try:
            async with ask_receiver, gives, self._steps:
                async for (
                    _
                ) in ask_receiver:  # nothing begins before it is asked for: who is interrupted here never asks
                    await self._send_steps(ask_receiver, gives)
                    break
        finally:
            self._task_exited.set()

    async def _send_steps(
        self, ask_receiver: MemoryObjectReceiveStream[None], gives: MemoryObjectSendStream[_RunStep]
    ) -> None:
        """Give that the turn has come, and then an event whenever one is asked for."""
        async with self._run:
            events = aiter(self._run)
            await gives.send((None, copy_context()))
            async for _ in ask_receiver:
                event = await anext(events, None)
                if event is None:
                    break
                await gives.send((event, copy_context()))


class SyncEngine:
    """An ``Engine`` whose sessions need no event loop; ``open_engine`` makes one."""

    def __init__(self, portal: BlockingPortal, engine: Engine) -> None:
        self._portal = portal
        self.engine = engine

    def session(self, key: str, *, leaf: str | None = None) -> SyncSession:
        """Return the session called ``key``, created if need be; with ``leaf`` the branch that ends there."""
        open_session = partial(self.engine.session, key, leaf=leaf)
        return SyncSession(self._portal, _run_work(self._portal, open_session))


def _enter_async_context(stack: ExitStack, portal: BlockingPortal, manager: AbstractAsyncContextManager[T]) -> T:
    """Return what ``manager`` gives; ``stack`` leaves it, and does not say why: that could end the loop.

    A child that was forked inside of it does not leave it: it is still the other process's.
    """
    context = portal.wrap_async_context_manager(manager)
    value = context.__enter__()
    stack.callback(lambda: context.__exit__(None, None, None) if _is_of_this_process(portal) else None)
    return value


def _make_open_engine(
    open_async: Callable[P, AbstractAsyncContextManager[Engine]],
) -> Callable[P, AbstractContextManager[SyncEngine]]:
    @contextmanager
    def open_engine(*args: P.args, **options: P.kwargs) -> Iterator[SyncEngine]:
        """Open an engine as ``Engine.open`` does, with the same arguments, for programs that have no event loop.

        An ``upstream`` that is to be used as ``async with`` (``HttpUpstream``, an SDK's async client) is closed with
        it.
        """
        with ExitStack() as stack:
            portal = stack.enter_context(run_event_loop())
            upstream = options.get("upstream")
            if isinstance(upstream, AbstractAsyncContextManager):
                _enter_async_context(stack, portal, upstream)
            yield SyncEngine(portal, _enter_async_context(stack, portal, open_async(*args, **options)))

    return open_engine


open_engine = _make_open_engine(Engine.open)
