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
from holdfast.errors import Aborted, HoldfastError
from holdfast.messages.text.paging import Page
from holdfast.providers.common.sse import Event
from holdfast.providers.responses import Answer

P = ParamSpec("P")
T = TypeVar("T")

LOOK = 0.5
"""Seconds of one wait: ^C that comes a moment before it begins, or to another thread, is heard when it ends. [H]"""
_AROUND: ContextVar[Context | None] = ContextVar("holdfast_around", default=None)
"""What is around the run whose block this thread is in: its work goes into the run's lane, and has its permit."""


_Running: TypeAlias = AbstractContextManager["SyncRun"]
_PROCESSES: WeakKeyDictionary[BlockingPortal, int] = WeakKeyDictionary()
"""Where each loop has its thread: a child that is forked has the loop and no thread that would do its work."""


@contextmanager
def event_loop() -> Iterator[BlockingPortal]:
    """Run an event loop in a thread of its own until the end of the block; what still runs then is cancelled.

    Whoever is interrupted here, at its beginning or end too, waits for no loop that nobody told to end. The end of the
    block in a child that was forked inside of it ends nothing.
    """
    begun = Future[BlockingPortal]()
    thread = Thread(target=Context().run, args=(_serve, begun), name="holdfast", daemon=True)
    try:
        thread.start()
        yield _result(begun)
    finally:
        _end(begun)
        while thread.is_alive():
            thread.join(LOOK)


def _serve(begun: Future[BlockingPortal]) -> None:
    """Run a loop until it is told to end, or the main thread has: whoever is interrupted may have told it nothing."""

    async def serve() -> None:
        async with BlockingPortal() as portal:
            _PROCESSES[portal] = os.getpid()
            begun.set_result(portal)
            while main_thread().is_alive():
                with anyio.move_on_after(LOOK):
                    await portal.sleep_until_stopped()
                    return
            await portal.stop(cancel_remaining=True)

    try:
        anyio.run(serve)
    except BaseException as error:  # noqa: BLE001 -- it is raised where the loop is waited for
        with suppress(InvalidStateError):  # nobody waits for it any more
            begun.set_exception(error)


def _end(begun: Future[BlockingPortal]) -> None:
    """Tell a loop to end; one that is about to begin ends by itself."""
    if not begun.cancel() and begun.exception() is None and _is_here(portal := begun.result()):
        with suppress(RuntimeError):  # it has ended
            portal.start_task_soon(portal.stop, True)  # noqa: FBT003 -- what runs is cancelled


def _is_here(portal: BlockingPortal) -> bool:
    """Return whether a loop was begun in this process."""
    return _PROCESSES.get(portal, os.getpid()) == os.getpid()


def _begun(portal: BlockingPortal, work: Callable[[], Awaitable[T]]) -> Future[T]:
    """Return the future of ``work``; ``Aborted`` where the loop has ended, is another process's or the caller's own."""
    if not _is_here(portal):
        raise Aborted("the engine was opened in another process, from which this one was forked; open it here")
    around = _AROUND.get()
    context = copy_context() if around is None else around.copy()
    try:
        return context.run(portal.start_task_soon, work)
    except RuntimeError as error:
        text = f"the engine cannot be used here ({error}); open it again, or call it from another thread"
        raise Aborted(text) from error


async def _called(what: Callable[[], T]) -> T:
    """Return what a plain function returns, called where the session is at work."""
    return what()


def _done(portal: BlockingPortal, work: Callable[[], Awaitable[T]]) -> T:
    """Return what ``work`` returns; it is given up where the caller is interrupted, also before its future is here."""
    scopes: list[CancelScope] = []

    async def held() -> T:
        with CancelScope() as scope:
            scopes.append(scope)
            return await work()
        raise Aborted("it was given up: its caller was interrupted")

    async def given_up() -> None:
        for scope in scopes:
            scope.cancel()

    try:
        return _result(_begun(portal, held))
    except BaseException as error:
        if not isinstance(error, Exception):
            with suppress(Aborted):
                _begun(portal, given_up)  # behind ``held``, which has its scope by then
        raise


def _result(future: Future[T]) -> T:
    """Return what is waited for; it is given up where the caller is interrupted."""
    try:
        while not future.done():
            with suppress(TimeoutError):
                future.exception(LOOK)
        return future.result()
    except CancelledError as error:
        raise Aborted("the engine was closed before this ended; open it again") from error
    finally:
        future.cancel()


def _verb(verb: Callable[Concatenate[Session, P], Awaitable[T]]) -> Callable[Concatenate[SyncSession, P], T]:
    """Return ``verb`` as one that returns when it is done."""

    @wraps(verb)
    def done(self: SyncSession, /, *args: P.args, **options: P.kwargs) -> T:
        return _done(self.portal, partial(verb, self.session, *args, **options))

    return done


def _running(verb: Callable[Concatenate[Session, P], Run]) -> Callable[Concatenate[SyncSession, P], _Running]:
    """Return ``verb`` as one whose run is used as ``with``, and iterated without ``async``.

    Who leaves the block early has what was said so far in the log, as an answer that was interrupted.
    """

    @wraps(verb)
    @contextmanager
    def running(self: SyncSession, /, *args: P.args, **options: P.kwargs) -> Iterator[SyncRun]:
        before = _AROUND.get()
        run = SyncRun(self.portal, verb(self.session, *args, **options))
        try:
            run.begin()
            yield run
        except BaseException:
            with suppress(HoldfastError):
                run.leave()
            raise
        else:
            run.leave()
        finally:
            _AROUND.set(before)

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

    append = _verb(Session.append)
    ask = _verb(Session.ask)
    compact = _verb(Session.compact)
    undo = _verb(Session.undo)
    prepare = _verb(Session.prepare)
    record = _verb(Session.record)
    wait_for_compaction = _verb(Session.wait_for_compaction)

    def branch(self, entry: str) -> SyncSession:
        """Return a session that goes on behind ``entry``; this one stays where it is."""
        branched = partial(self.session.branch, entry)
        return SyncSession(self.portal, _done(self.portal, branched))

    def recall(self, id: str = "", **where: Any) -> Page:  # noqa: A002 -- what it is called everywhere
        """Return a page of a text that was stored away, or of what an entry says."""
        return _done(self.portal, partial(self.session.recall, id, **where))

    def report(self) -> Report:
        """Return how full the context is."""
        return _done(self.portal, partial(_called, self.session.report))

    def close(self) -> None:
        """Stop a compaction under way and turn away those that wait for it; the engine lets the session go."""
        _done(self.portal, partial(_called, self.session.close))

    run = _running(Session.run)


_Given: TypeAlias = tuple[Event | None, Context]
"""An event, and what is around the run now; no event when its turn has come."""


class SyncRun:
    """A ``Run`` to be iterated. One task does all of it, and goes on by one event whenever one is asked for."""

    def __init__(self, portal: BlockingPortal, run: Run) -> None:
        self._portal = portal
        self._run = run
        self._asks, asked = create_memory_object_stream[None]()
        gives, self._given = create_memory_object_stream[_Given]()
        self._is_asking = False
        self._has_left = Flag()
        try:
            self._ended = _begun(portal, partial(self._task, asked, gives))
        except BaseException:
            with suppress(Aborted):
                _begun(portal, self._asks.aclose)  # the task waits to be asked
            raise

    @property
    def answer(self) -> Answer:
        """The model's answer; ``Aborted`` where the run was not read to its end."""
        return self._run.answer

    def __iter__(self) -> Iterator[Event]:
        """Yield the API's own events as they come; what the run raises is raised here."""
        while (event := self._next()) is not None:
            yield event

    def begin(self) -> None:
        """Return when the run's turn has come."""
        self._next()

    def leave(self) -> None:
        """Return when the run is over, with what was said so far in the log; raise what it raised."""
        try:
            _done(self._portal, self._asks.aclose)
        except Aborted:
            self._asks.close()  # the loop has ended, and with it who waited for more
            raise
        if self._is_asking:
            self._ended.cancel()
            self._has_left.wait()
        _result(self._ended)

    def _next(self) -> Event | None:
        """Return the next event; nothing when the turn has come, and at the end."""
        self._is_asking = True
        given = _done(self._portal, self._exchange)
        self._is_asking = False
        if given is None:
            _result(self._ended)
            return None
        event, around = given
        _AROUND.set(around)
        return event

    async def _exchange(self) -> _Given | None:
        """Return what the run gives next, or nothing at its end."""
        try:
            await self._asks.send(None)
            return await self._given.receive()
        except (BrokenResourceError, ClosedResourceError, EndOfStream):
            return None

    async def _task(self, asked: MemoryObjectReceiveStream[None], gives: MemoryObjectSendStream[_Given]) -> None:
        try:
            async with asked, gives, self._given:
                async for _ in asked:  # nothing begins before it is asked for: who is interrupted here never asks
                    await self._told(asked, gives)
                    break
        finally:
            self._has_left.set()

    async def _told(self, asked: MemoryObjectReceiveStream[None], gives: MemoryObjectSendStream[_Given]) -> None:
        """Give that the turn has come, and then an event whenever one is asked for."""
        async with self._run:
            events = aiter(self._run)
            await gives.send((None, copy_context()))
            async for _ in asked:
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
        opened = partial(self.engine.session, key, leaf=leaf)
        return SyncSession(self._portal, _done(self._portal, opened))


def _entered(stack: ExitStack, portal: BlockingPortal, given: AbstractAsyncContextManager[T]) -> T:
    """Return what ``given`` gives; ``stack`` leaves it, and does not say why: that could end the loop.

    A child that was forked inside of it does not leave it: it is still the other process's.
    """
    context = portal.wrap_async_context_manager(given)
    entered = context.__enter__()
    stack.callback(lambda: context.__exit__(None, None, None) if _is_here(portal) else None)
    return entered


def _opener(opens: Callable[P, AbstractAsyncContextManager[Engine]]) -> Callable[P, AbstractContextManager[SyncEngine]]:
    @contextmanager
    def open_engine(*args: P.args, **options: P.kwargs) -> Iterator[SyncEngine]:
        """Open an engine as ``Engine.open`` does, with the same arguments, for programs that have no event loop.

        An ``upstream`` that is to be used as ``async with`` (``Http``, an SDK's async client) is closed with it.
        """
        with ExitStack() as stack:
            portal = stack.enter_context(event_loop())
            upstream = options.get("upstream")
            if isinstance(upstream, AbstractAsyncContextManager):
                _entered(stack, portal, upstream)
            yield SyncEngine(portal, _entered(stack, portal, opens(*args, **options)))

    return open_engine


open_engine = _opener(Engine.open)
