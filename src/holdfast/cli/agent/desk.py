"""One session with the agent: its loop runs in a thread of its own, and whoever is at the terminal sees one queue.

So ^C is what it is everywhere: it stops what runs, and a second one leaves. Whatever ends the program does the same.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import current_thread, main_thread
from types import FrameType
from typing import TypeVar

import click
from anyio import CancelScope, Event
from anyio.from_thread import BlockingPortal
from click.exceptions import Exit
from msgspec import Struct

from holdfast.agent.agent import place_for, surroundings
from holdfast.agent.loop import Outcome, work
from holdfast.agent.workspace import Allow, everything_allowed, nothing_allowed
from holdfast.cli.agent.meter import Spent, spent, status
from holdfast.cli.agent.screen import Screen
from holdfast.cli.output.errors import Stopped
from holdfast.cli.output.terminal import clean
from holdfast.cli.places import opened
from holdfast.cli.providers import KEYS
from holdfast.config import Catalog
from holdfast.engine.compaction.summarizer import Writer
from holdfast.engine.engine import Engine
from holdfast.engine.session import Session
from holdfast.engine.sync import LOOK, event_loop
from holdfast.engine.upstream.upstream import Http
from holdfast.planning.pipeline import Policy
from holdfast.state.target import Target
from holdfast.store.base import SessionStore

HEARD = (signal.SIGTERM, signal.SIGHUP)

T = TypeVar("T")

_ID = re.compile(r"[0-9a-f-]{12,}")
"""A session's key that was made and not chosen, by this agent or by another tool."""


class Order(Struct, frozen=True):
    """What is asked for on the command line."""

    target: Target
    url: str
    headers: dict[str, str]
    folder: Path
    policy: Policy
    key: str
    """The session's."""
    again: str
    """The command that goes on with it."""
    store: str | None
    skills: tuple[str, ...]
    writer: Target | None
    """The model that writes summaries."""
    catalog: Catalog
    """Where the prices of models are that wrote them earlier."""
    goes_on: bool
    """Whether the session must be there already."""
    has_task: bool
    """Whether there is something to begin a new one with."""
    steps: int
    streams: bool
    allow: bool
    """Whether every command may run."""
    asks: bool
    """Whether somebody is there who can be asked."""


class Question:
    """A command that waits for a yes."""

    def __init__(self, command: str) -> None:
        self.command = command
        self.is_allowed = False
        self.answered = Event()


class Desk:
    """The session, and what can be done with it from the terminal."""

    def __init__(self, portal: BlockingPortal, session: Session, order: Order, screen: Screen, end: Ending) -> None:
        self.session, self.order, self.screen, self.end = session, order, screen, end
        self.queue: SimpleQueue[object] = SimpleQueue()
        self._portal = portal
        self._scope: CancelScope | None = None
        self._allows_all = order.allow

    @property
    def store(self) -> SessionStore:
        """The store of the session."""
        return self.session.means.store

    def work(self, task: str) -> Outcome:
        """Return how the work on ``task`` ended; without one the session goes on where it was."""
        place = place_for(self.session, self.order.folder, allow=self._allow(), hidden=KEYS)
        order, session, put = self.order, self.session, self.queue.put

        async def go(scope: CancelScope) -> Outcome:
            return await work(
                session, task, place, most_steps=order.steps, tell=put, streams=order.streams, scope=scope
            )

        return self.run(go)

    def stopped(self, do: Callable[[], Awaitable[T]]) -> T | None:
        """Return what ``do`` returns, or nothing where it was stopped."""

        async def go(scope: CancelScope) -> T | None:
            with scope:
                return await do()
            return None

        return self.run(go)

    def run(self, do: Callable[[CancelScope], Awaitable[T]]) -> T:
        """Return what ``do`` returns, showing meanwhile what happens; ^C stops it, and a second one raises."""

        async def going() -> T:
            self._scope = CancelScope()
            return await do(self._scope)

        future = self._portal.start_task_soon(going)
        over: list[object] = []  # asked without a lock, which ^C could leave locked
        future.add_done_callback(over.append)
        future.add_done_callback(self.queue.put)
        is_stopping = False
        try:
            while True:
                try:
                    if over and self.queue.empty():
                        return future.result()
                    self._take_next()
                except (KeyboardInterrupt, click.Abort):
                    if is_stopping:
                        raise KeyboardInterrupt from None
                    is_stopping = True
                    self._portal.start_task_soon(self._stop)
                    if not self.end.number:
                        self.screen.note("stopping; ^C again leaves at once", "yellow")
        except BaseException:
            self._portal.start_task_soon(self._stop)  # who leaves waits for nothing, however fast the second ^C came
            raise

    def spent(self) -> Spent:
        """Return what the session cost so far."""
        entries = (one for kind in ("answer", "note") for one in self.store.entries(self.session.key, kind))
        return spent(entries, self.order.target.prices, self.order.catalog)

    def status(self) -> str:
        """Return how full the context is, and what was spent."""
        return status(self.session.report(), self.spent())

    def _take_next(self) -> None:
        """Show what comes next; no wait is long, for ^C that comes a moment before one is heard when it ends."""
        with suppress(Empty):
            item = self.queue.get(timeout=LOOK)
            if isinstance(item, Question):
                self._ask(item)
            else:
                self.screen.show(item)

    def _ask(self, question: Question) -> None:
        self.screen.note(f"the agent wants to run: {question.command}", "bold yellow")
        told = click.prompt("allow? [y]es, [N]o, [a]ll from now on", default="n", show_default=False, err=True)
        self._allows_all = self._allows_all or told.strip().lower() in ("a", "all")
        question.is_allowed = self._allows_all or told.strip().lower() in ("y", "yes")
        self._portal.call(question.answered.set)

    def _allow(self) -> Allow:
        if self.order.allow:
            return everything_allowed
        return self._asked if self.order.asks else nothing_allowed

    async def _asked(self, command: str) -> bool:
        if self._allows_all:
            return True
        question = Question(command)
        self.queue.put(question)
        await question.answered.wait()
        return question.is_allowed

    def _stop(self) -> None:
        if self._scope is not None:
            self._scope.cancel()


@contextmanager
def desk(order: Order, screen: Screen) -> Iterator[Desk]:
    """Open the store, the provider and the session that ``order`` names; all are closed at the end."""
    surrounding = surroundings(order.folder, skills=order.skills)
    for notice in surrounding.notices:
        screen.note(f"warning: {notice}", "yellow")
    queues: list[SimpleQueue[object]] = []

    def told(event: object) -> None:
        for queue in queues:
            queue.put(event)

    with ending(screen) as end, opened(order.store) as store, event_loop() as portal:
        upstream = Http(order.url, order.target.api, order.headers)
        engine = Engine.open(
            store,
            upstream=upstream,
            target=order.target,
            policy=order.policy,
            environment=surrounding,
            writers=() if order.writer is None else (Writer(upstream, order.writer),),
            listen=told,
        )
        with portal.wrap_async_context_manager(upstream), portal.wrap_async_context_manager(engine) as there:
            made = Desk(portal, portal.call(there.session, _key(store, order)), order, screen, end)
            queues.append(made.queue)
            screen.share = made.session.report().share
            yield made


def _key(store: SessionStore, order: Order) -> str:
    """Return the key of the session that is named, or its name for a new one; ``UnknownId`` for several.

    With a task the beginning of a key means only one that nobody chose: beside ``fix-login`` there may be ``fix``.
    """
    name = order.key
    known = [info.key for info in store.sessions() if info.key.startswith(name)]
    if order.goes_on and not known:
        raise Stopped(f"no session is called {clean(name)!r}, so there is nothing to go on with; see `holdfast ls`")
    is_new = not known or (order.has_task and not any(map(_ID.fullmatch, known)))
    return name if is_new or name in known else store.session(name).key


class Ending:
    """Whether the system asked the program to end: each time it does so counts as ^C."""

    number = 0
    """The signal, if there was one."""

    def hear(self, number: int, _: FrameType | None) -> None:
        """Stop what the main thread does."""
        self.number = number
        raise KeyboardInterrupt


@contextmanager
def ending(screen: Screen) -> Iterator[Ending]:
    """Let SIGTERM and SIGHUP stop the block as ^C does; the exit code is then 128 and the signal, as shells have it.

    A signal that nobody here may hear (``nohup``) is left alone, and so are all outside of the main thread.
    """
    end = Ending()
    is_main = current_thread() is main_thread()
    heard = [one for one in HEARD if is_main and signal.getsignal(one) is not signal.SIG_IGN]
    before = [signal.signal(one, end.hear) for one in heard]
    try:
        yield end
    finally:
        for one, handler in zip(heard, before, strict=True):
            signal.signal(one, handler)
        if end.number:
            with suppress(OSError):  # of a terminal that was closed
                screen.note(f"ended by {signal.Signals(end.number).name}; nothing was left half-written", "yellow")
            raise Exit(128 + end.number)
