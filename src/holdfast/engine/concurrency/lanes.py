"""Lanes and permits: what runs one at a time in the order it came, and how many model calls run at once.

A branch's work holds its lane; a permit is taken last, around a model call alone. Who is inside already (the task that
holds it, or one that it started) does not wait for those outside, so nothing waits for itself; of several that it
started as many are in there at once as elsewhere. As long as somebody holds or waits for any of them they are for one
event loop alone: who leaves could wake nobody in another.
"""

from __future__ import annotations

import math
from asyncio import AbstractEventLoop, get_running_loop
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from threading import Lock

from anyio import CancelScope, Event, current_time, sleep

from holdfast.errors import Aborted, ConfigError, DeadlineExceeded, LaneCleared, LaneClosed

PERMITS = 4
"""Model calls at once. [H]"""
PATIENCE = 600.0
"""Seconds in which no permit was given back after which who waits for one gives up. [H] as long as a provider has."""
PAUSE = 0.05
"""Seconds between two looks at what runs in another event loop. [H]"""

_ELSEWHERE = "its engine is at work in another event loop; ask it there, or open an engine of your own"


class _Place:
    """A place at ``gate``: waited for while ``depth`` is 0, then held until its holder and all inside of it have left.

    Those that it started go in by a gate of their own, ``inner``; they have a place there, and this one is their
    ``outer``.
    """

    def __init__(self, gate: _Gate, outer: _Place | None, behind: int) -> None:
        self.gate, self.outer = gate, outer
        self.inner: _Gate | None = None
        self.loop = get_running_loop()
        self.behind = behind
        """How many came before and had not left."""
        self.depth = 0
        self.is_called = False
        """Whether its turn came, or never will."""
        self.called: Event | None = None
        """Set then, where somebody waits."""

    def call(self) -> None:
        """Let who waits for it go on: its turn came, or never will."""
        self.is_called = True
        if self.called is not None:
            self.called.set()


_HELD: ContextVar[tuple[_Place, ...]] = ContextVar("holdfast_places", default=())
"""The places of this task; a task that it starts has the same."""


class _Gate:
    """Lets ``most`` in at a time, in the order they came."""

    def __init__(self, most: int = 1) -> None:
        self.most = most
        self.inside: set[_Place] = set()
        self.waiting: deque[_Place] = deque()
        self.left = -math.inf
        """When somebody last left and another waited."""

    @property
    def is_free(self) -> bool:
        """Whether nobody is inside or waits."""
        return not self.inside and not self.waiting

    def mine(self) -> _Place | None:
        """Return the place of the calling task, if it is inside."""
        return next((place for place in _HELD.get() if place in self.inside), None)

    def come(self, outer: _Place | None = None) -> _Place:
        """Return a place whose turn may not have come yet: here, or inside of the one that the caller has.

        In another event loop, where nobody could be woken, that is the caller's own, once more.
        """
        own = self.mine()
        if own is None:
            place = _Place(self, outer, len(self.inside) + len(self.waiting))
            self.waiting.append(place)
            self._call()
            return place
        own.depth += 1
        if own.loop is not get_running_loop():
            return own
        own.inner = own.inner or _Gate(self.most)
        return own.inner.come(own)

    async def turn(self, place: _Place, patience: float = math.inf) -> float:
        """Return when ``place`` is inside, with the seconds that it waited.

        ``TimeoutError`` where nobody left for ``patience`` seconds.
        """
        try:
            waited = 0.0 if place.is_called else await self._called(place, patience)
        except BaseException:
            self.leave(place)
            raise
        if not place.depth:
            self.leave(place)
            raise LaneCleared(f"the work was taken out of its lane while it waited behind {place.behind}; ask again")
        _HELD.set((*(held for held in _HELD.get() if held.depth and held is not place), place))
        return waited

    async def _called(self, place: _Place, patience: float) -> float:
        """Return the seconds after which ``place`` was called."""
        came, place.called = current_time(), Event()
        while not place.is_called:
            until = max(came, self.left) + patience
            if current_time() >= until:
                raise TimeoutError
            with CancelScope(deadline=until):
                await place.called.wait()
        return current_time() - came

    def leave(self, place: _Place) -> None:
        """Give ``place`` back, also where its turn never came; it is free once all inside of it have left."""
        if place.depth:
            place.depth -= 1
            if not place.depth:
                self.inside.remove(place)
                if self.waiting:
                    self.left = current_time()
                    self._call()
        elif not place.is_called:
            self.waiting.remove(place)
        if place.outer is not None:
            place.outer.gate.leave(place.outer)

    def clear(self) -> int:
        """Turn away all that wait, here and inside; return how many."""
        turned, self.waiting = self.waiting, deque()
        for place in turned:
            place.call()
        return len(turned) + sum(place.inner.clear() for place in self.inside if place.inner is not None)

    def _call(self) -> None:
        while self.waiting and len(self.inside) < self.most:
            place = self.waiting.popleft()
            place.depth = 1
            self.inside.add(place)
            place.call()


class _Loop:
    """The event loop for which something is now; nobody's while it is idle."""

    def __init__(self) -> None:
        self._whose: dict[str, AbstractEventLoop] = {}
        """One or none."""
        self._taking = Lock()

    def take(self, what: str, bury: Callable[[], object]) -> None:
        """Let it be for the caller's loop, and ``bury`` what a closed one left; ``Aborted`` where it is for another."""
        loop = get_running_loop()
        with self._taking:
            if self.is_dead:
                bury()
                self.free()
            whose = self._whose.setdefault("", loop)
        if whose is not loop:
            raise Aborted(f"{what}: {_ELSEWHERE}")

    @property
    def is_dead(self) -> bool:
        """Whether it is a loop's that was closed: who was at work there never goes on."""
        return any(loop.is_closed() for loop in self._now)

    @property
    def is_elsewhere(self) -> bool:
        """Whether it is another loop's than the caller's."""
        return any(loop is not get_running_loop() for loop in self._now)

    @property
    def is_at_work(self) -> bool:
        """Whether it is a loop's that runs."""
        return any(loop.is_running() for loop in self._now)

    @property
    def _now(self) -> list[AbstractEventLoop]:
        return [*self._whose.values()]  # in one step: another thread may change it

    def free(self) -> None:
        """Let it be for whoever comes next: it is idle."""
        self._whose.clear()


class Lanes:
    """Work under one key runs one at a time, in the order it came; work under other keys does not wait for it."""

    def __init__(self) -> None:
        self._gates: dict[str, _Gate] = {}
        self._loop = _Loop()
        self._is_closed = False
        self._freed = Event()
        """Set when a lane comes free; who waits for the next one makes it anew."""

    @property
    def is_idle(self) -> bool:
        """Whether nobody holds a lane or waits for one."""
        return not self._gates

    @asynccontextmanager
    async def hold(self, key: str, *, deadline: float | None = None) -> AsyncIterator[None]:
        """Hold lane ``key`` for the block, which starts when all that came before it have ended.

        A block inside one that holds the key waits for others inside of that alone. Who holds several keys takes them
        in one order or gives a ``deadline``: seconds for waiting and block together, after which the block is cancelled
        and ``DeadlineExceeded`` raised. ``LaneCleared`` where ``clear`` took it out, ``LaneClosed`` after ``drain``,
        ``Aborted`` while lanes are held in another event loop.
        """
        gate = self._gate(key)
        place, waited = gate.come(), math.inf
        try:
            with CancelScope(deadline=_until(deadline)) as scope:
                waited = await place.gate.turn(place)
                try:
                    yield
                finally:
                    place.gate.leave(place)
        finally:
            self._forget(key, gate)
        if scope.cancelled_caught:
            raise DeadlineExceeded(_late(key, place, deadline or 0.0, waited))

    def stay(self, what: str) -> None:
        """Raise ``Aborted`` where lanes are held in another event loop, for nobody there can wake the caller."""
        if self._loop.is_elsewhere and not self._loop.is_dead:
            raise Aborted(f"{what}: {_ELSEWHERE}")

    def clear(self, key: str) -> int:
        """Turn away all that wait for lane ``key`` with ``LaneCleared``; what runs goes on. Return how many."""
        gate = self._gates.get(key)
        return gate.clear() if gate is not None else 0

    async def drain(self, *, deadline: float | None = None) -> None:
        """Take no new work from here on, and return when what was taken before has ended.

        What runs may still begin what it needs; what the caller itself holds is not waited for. ``DeadlineExceeded``
        after ``deadline`` seconds, where some of it still runs, and at once where its event loop does not run.
        """
        self._is_closed, began = True, current_time()
        with CancelScope(deadline=_until(deadline)):
            while self._others():
                if self._loop.is_elsewhere:  # nobody there can wake us
                    await sleep(PAUSE)
                    if not self._loop.is_at_work:
                        break
                    continue
                if self._freed.is_set():
                    self._freed = Event()
                if self._others():  # another thread may have freed the last one meanwhile
                    await self._freed.wait()
        if (busy := self._others()) and not self._loop.is_dead:
            waited = round(current_time() - began, 1)
            text = f"{busy} lanes were still in use after {waited:g} s; cancel what runs, or wait longer"
            raise DeadlineExceeded(text)

    def _gate(self, key: str) -> _Gate:
        if self._is_closed and len(self._gates) == self._others():
            raise LaneClosed(f"lane {key!r} takes no new work: its engine is closing; open the engine again")
        held = self._gates.get(key)
        if held is None or held.mine() is None:
            self._loop.take(f"lane {key!r}", self._gates.clear)
        return self._gates.setdefault(key, _Gate())

    def _others(self) -> int:
        return sum(gate.mine() is None for gate in [*self._gates.values()])  # in one step: of another thread, too

    def _forget(self, key: str, gate: _Gate) -> None:
        if gate.is_free and self._gates.get(key) is gate:
            del self._gates[key]
            self._freed.set()
            if not self._gates:
                self._loop.free()


class Permits:
    """At most so many model calls run at once, whoever makes them; the others wait in the order they came.

    Calls inside a call have the permit of the outer one, and are as many at once.
    """

    def __init__(self, most: int = PERMITS, *, patience: float = PATIENCE) -> None:
        if most < 1:
            raise ConfigError(f"with {most} permits no model call could run; give at least 1")
        self.most = most
        self.patience = patience
        self._gate = _Gate(most)
        self._loop = _Loop()

    @property
    def is_idle(self) -> bool:
        """Whether every permit is free and nobody waits."""
        return self._gate.is_free

    @asynccontextmanager
    async def hold(self) -> AsyncIterator[None]:
        """Hold one permit for the block; ``DeadlineExceeded`` where none was given back for ``patience`` seconds.

        ``Aborted`` while permits are held in another event loop.
        """
        if self._gate.mine() is None:
            self._loop.take("no permit for a model call", self._anew)
        place = self._gate.come()
        try:
            await self._turn(place)
            try:
                yield
            finally:
                place.gate.leave(place)
        finally:
            if self.is_idle:
                self._loop.free()

    def _anew(self) -> None:
        self._gate = _Gate(self.most)

    async def _turn(self, place: _Place) -> None:
        try:
            await place.gate.turn(place, self.patience)
        except TimeoutError as late:
            raise DeadlineExceeded(self._stuck(place)) from late

    def _stuck(self, place: _Place) -> str:
        return (
            f"none of {self.most} model calls at once ended in {self.patience:g} s, while this one waited behind "
            f"{place.behind}; try again, or allow more of them at once (permits)"
        )


def _until(deadline: float | None) -> float:
    """Return when ``deadline`` seconds are over."""
    return math.inf if deadline is None else current_time() + deadline


def _late(key: str, place: _Place, deadline: float, waited: float) -> str:
    waiting = min(waited, deadline)
    return (
        f"lane {key!r}: its {deadline:g} s are over, {waiting:.1f} of them waiting behind {place.behind} and "
        f"{deadline - waiting:.1f} running; give it more time, or less to do"
    )
