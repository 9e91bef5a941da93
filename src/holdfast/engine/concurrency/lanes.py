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

from holdfast.errors import ConfigError, DeadlineExceeded, LaneCleared, LaneClosed, OperationAborted

DEFAULT_PERMITS = 4
"""Model calls at once. [H]"""
PERMIT_TIMEOUT = 600.0
"""Seconds in which no permit was given back after which who waits for one gives up. [H] as long as a provider has."""
LOOP_POLL_SECONDS = 0.05
"""Seconds between two looks at what runs in another event loop. [H]"""

_OTHER_LOOP_HINT = "its engine is at work in another event loop; ask it there, or open an engine of your own"


class _Ticket:
    """A place at ``gate``: waited for while ``hold_count`` is 0, then held until its holder and all inside of it have
    left.

    Those that it started go in by a gate of their own, ``nested_gate``; they have a place there, and this one is their
    ``parent``.
    """

    def __init__(self, gate: _Gate, outer: _Ticket | None, behind: int) -> None:
        self.gate, self.parent = gate, outer
        self.nested_gate: _Gate | None = None
        self.loop = get_running_loop()
        self.ahead_count = behind
        """How many came before and had not left."""
        self.hold_count = 0
        self.is_called = False
        """Whether its turn came, or never will."""
        self.called_event: Event | None = None
        """Set then, where somebody waits."""

    def wake(self) -> None:
        """Let who waits for it go on: its turn came, or never will."""
        self.is_called = True
        if self.called_event is not None:
            self.called_event.set()


_HELD_TICKETS: ContextVar[tuple[_Ticket, ...]] = ContextVar("holdfast_places", default=())
"""The places of this task; a task that it starts has the same."""


class _Gate:
    """Lets ``capacity`` in at a time, in the order they came."""

    def __init__(self, capacity: int = 1) -> None:
        self.capacity = capacity
        self.inside: set[_Ticket] = set()
        self.waiting: deque[_Ticket] = deque()
        self.last_left_at = -math.inf
        """When somebody last left and another waited."""

    @property
    def is_free(self) -> bool:
        """Whether nobody is inside or waits."""
        return not self.inside and not self.waiting

    def find_own_ticket(self) -> _Ticket | None:
        """Return the place of the calling task, if it is inside."""
        return next((place for place in _HELD_TICKETS.get() if place in self.inside), None)

    def take_ticket(self, outer: _Ticket | None = None) -> _Ticket:
        """Return a place whose turn may not have come yet: here, or inside of the one that the caller has.

        In another event loop, where nobody could be woken, that is the caller's own, once more.
        """
        own = self.find_own_ticket()
        if own is None:
            place = _Ticket(self, outer, len(self.inside) + len(self.waiting))
            self.waiting.append(place)
            self._admit_waiting()
            return place
        own.hold_count += 1
        if own.loop is not get_running_loop():
            return own
        own.nested_gate = own.nested_gate or _Gate(self.capacity)
        return own.nested_gate.take_ticket(own)

    async def wait_for_turn(self, place: _Ticket, patience: float = math.inf) -> float:
        """Return when ``place`` is inside, with the seconds that it waited.

        ``TimeoutError`` where nobody left for ``patience`` seconds.
        """
        try:
            wait_seconds = 0.0 if place.is_called else await self._wait_until_called(place, patience)
        except BaseException:
            self.release_ticket(place)
            raise
        if not place.hold_count:
            self.release_ticket(place)
            raise LaneCleared(
                f"the work was taken out of its lane while it waited behind {place.ahead_count}; ask again"
            )
        _HELD_TICKETS.set(
            (
                *(
                    other_ticket
                    for other_ticket in _HELD_TICKETS.get()
                    if other_ticket.hold_count and other_ticket is not place
                ),
                place,
            )
        )
        return wait_seconds

    async def _wait_until_called(self, place: _Ticket, patience: float) -> float:
        """Return the seconds after which ``place`` was called."""
        came, place.called_event = current_time(), Event()
        while not place.is_called:
            until = max(came, self.last_left_at) + patience
            if current_time() >= until:
                raise TimeoutError
            with CancelScope(deadline=until):
                await place.called_event.wait()
        return current_time() - came

    def release_ticket(self, place: _Ticket) -> None:
        """Give ``place`` back, also where its turn never came; it is free once all inside of it have left."""
        if place.hold_count:
            place.hold_count -= 1
            if not place.hold_count:
                self.inside.remove(place)
                if self.waiting:
                    self.last_left_at = current_time()
                    self._admit_waiting()
        elif not place.is_called:
            self.waiting.remove(place)
        if place.parent is not None:
            place.parent.gate.release_ticket(place.parent)

    def turn_away_waiting(self) -> int:
        """Turn away all that wait, here and inside; return how many."""
        waiters, self.waiting = self.waiting, deque()
        for place in waiters:
            place.wake()
        return len(waiters) + sum(
            place.nested_gate.turn_away_waiting() for place in self.inside if place.nested_gate is not None
        )

    def _admit_waiting(self) -> None:
        while self.waiting and len(self.inside) < self.capacity:
            place = self.waiting.popleft()
            place.hold_count = 1
            self.inside.add(place)
            place.wake()


class _LoopOwner:
    """The event loop for which something is now; nobody's while it is idle."""

    def __init__(self) -> None:
        self._owner: dict[str, AbstractEventLoop] = {}
        """One or none."""
        self._claim_lock = Lock()

    def claim(self, subject: str, bury: Callable[[], object]) -> None:
        """Let it be for the caller's loop, and ``bury`` what a closed one left; ``OperationAborted`` where it is for
        another.
        """
        loop = get_running_loop()
        with self._claim_lock:
            if self.is_owner_closed:
                bury()
                self.release()
            owner = self._owner.setdefault("", loop)
        if owner is not loop:
            raise OperationAborted(f"{subject}: {_OTHER_LOOP_HINT}")

    @property
    def is_owner_closed(self) -> bool:
        """Whether it is a loop's that was closed: who was at work there never goes on."""
        return any(loop.is_closed() for loop in self._owners)

    @property
    def is_other_loop(self) -> bool:
        """Whether it is another loop's than the caller's."""
        return any(loop is not get_running_loop() for loop in self._owners)

    @property
    def is_owner_running(self) -> bool:
        """Whether it is a loop's that runs."""
        return any(loop.is_running() for loop in self._owners)

    @property
    def _owners(self) -> list[AbstractEventLoop]:
        return [*self._owner.values()]  # in one step: another thread may change it

    def release(self) -> None:
        """Let it be for whoever comes next: it is idle."""
        self._owner.clear()


class Lanes:
    """Work under one key runs one at a time, in the order it came; work under other keys does not wait for it."""

    def __init__(self) -> None:
        self._gates: dict[str, _Gate] = {}
        self._loop = _LoopOwner()
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
        and ``DeadlineExceeded`` raised. ``LaneCleared`` where ``turn_away_waiting`` took it out, ``LaneClosed`` after
        ``drain``, ``OperationAborted`` while lanes are held in another event loop.
        """
        gate = self._get_gate(key)
        place, wait_seconds = gate.take_ticket(), math.inf
        try:
            with CancelScope(deadline=_compute_deadline(deadline)) as scope:
                wait_seconds = await place.gate.wait_for_turn(place)
                try:
                    yield
                finally:
                    place.gate.release_ticket(place)
        finally:
            self._drop_idle_gate(key, gate)
        if scope.cancelled_caught:
            raise DeadlineExceeded(_format_deadline(key, place, deadline or 0.0, wait_seconds))

    def require_same_loop(self, subject: str) -> None:
        """Raise ``OperationAborted`` where lanes are held in another event loop, for nobody there can wake the
        caller.
        """
        if self._loop.is_other_loop and not self._loop.is_owner_closed:
            raise OperationAborted(f"{subject}: {_OTHER_LOOP_HINT}")

    def turn_away_waiting(self, key: str) -> int:
        """Turn away all that wait for lane ``key`` with ``LaneCleared``; what runs goes on. Return how many."""
        gate = self._gates.get(key)
        return gate.turn_away_waiting() if gate is not None else 0

    async def drain(self, *, deadline: float | None = None) -> None:
        """Take no new work from here on, and return when what was taken before has ended.

        What runs may still begin what it needs; what the caller itself holds is not waited for. ``DeadlineExceeded``
        after ``deadline`` seconds, where some of it still runs, and at once where its event loop does not run.
        """
        self._is_closed, began = True, current_time()
        with CancelScope(deadline=_compute_deadline(deadline)):
            while self._count_other_lanes():
                if self._loop.is_other_loop:  # nobody there can wake us
                    await sleep(LOOP_POLL_SECONDS)
                    if not self._loop.is_owner_running:
                        break
                    continue
                if self._freed.is_set():
                    self._freed = Event()
                if self._count_other_lanes():  # another thread may have freed the last one meanwhile
                    await self._freed.wait()
        if (busy := self._count_other_lanes()) and not self._loop.is_owner_closed:
            elapsed = round(current_time() - began, 1)
            text = f"{busy} lanes were still in use after {elapsed:g} s; cancel what runs, or wait longer"
            raise DeadlineExceeded(text)

    def _get_gate(self, key: str) -> _Gate:
        if self._is_closed and len(self._gates) == self._count_other_lanes():
            raise LaneClosed(f"lane {key!r} takes no new work: its engine is closing; open the engine again")
        gate = self._gates.get(key)
        if gate is None or gate.find_own_ticket() is None:
            self._loop.claim(f"lane {key!r}", self._gates.clear)
        return self._gates.setdefault(key, _Gate())

    def _count_other_lanes(self) -> int:
        return sum(
            gate.find_own_ticket() is None for gate in [*self._gates.values()]
        )  # in one step: of another thread, too

    def _drop_idle_gate(self, key: str, gate: _Gate) -> None:
        if gate.is_free and self._gates.get(key) is gate:
            del self._gates[key]
            self._freed.set()
            if not self._gates:
                self._loop.release()


class Permits:
    """At most so many model calls run at once, whoever makes them; the others wait in the order they came.

    Calls inside a call have the permit of the outer one, and are as many at once.
    """

    def __init__(self, limit: int = DEFAULT_PERMITS, *, patience: float = PERMIT_TIMEOUT) -> None:
        if limit < 1:
            raise ConfigError(f"with {limit} permits no model call could run; give at least 1")
        self.limit = limit
        self.timeout = patience
        self._gate = _Gate(limit)
        self._loop = _LoopOwner()

    @property
    def is_idle(self) -> bool:
        """Whether every permit is free and nobody waits."""
        return self._gate.is_free

    @asynccontextmanager
    async def hold(self) -> AsyncIterator[None]:
        """Hold one permit for the block; ``DeadlineExceeded`` where none was given back for ``timeout`` seconds.

        ``OperationAborted`` while permits are held in another event loop.
        """
        if self._gate.find_own_ticket() is None:
            self._loop.claim("no permit for a model call", self._reset_gate)
        place = self._gate.take_ticket()
        try:
            await self._wait_for_permit(place)
            try:
                yield
            finally:
                place.gate.release_ticket(place)
        finally:
            if self.is_idle:
                self._loop.release()

    def _reset_gate(self) -> None:
        self._gate = _Gate(self.limit)

    async def _wait_for_permit(self, place: _Ticket) -> None:
        try:
            await place.gate.wait_for_turn(place, self.timeout)
        except TimeoutError as late:
            raise DeadlineExceeded(self._format_timeout(place)) from late

    def _format_timeout(self, place: _Ticket) -> str:
        return (
            f"none of {self.limit} model calls at once ended in {self.timeout:g} s, while this one waited behind "
            f"{place.ahead_count}; try again, or allow more of them at once (permits)"
        )


def _compute_deadline(deadline: float | None) -> float:
    """Return when ``deadline`` seconds are over."""
    return math.inf if deadline is None else current_time() + deadline


def _format_deadline(key: str, place: _Ticket, deadline: float, wait_seconds: float) -> str:
    waiting = min(wait_seconds, deadline)
    return (
        f"lane {key!r}: its {deadline:g} s are over, {waiting:.1f} of them waiting behind {place.ahead_count} and "
        f"{deadline - waiting:.1f} running; give it more time, or less to do"
    )
