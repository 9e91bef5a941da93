"""Lanes and permits: what runs one at a time in the order it came, and how many model calls run at once.

A branch's work holds its lane; a permit is taken last, around a model call alone. Who holds one may take it again: the
task itself and those that it started wait for one another alone, never for the hold they are inside of, so nothing
waits for itself. Of those inside of one hold as many are in at once as there are outside.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from contextvars import ContextVar

from anyio import CancelScope, Event, Semaphore, current_time

from holdfast.errors import ConfigError, DeadlineExceeded, LaneCleared, LaneClosed

DEFAULT_PERMITS = 4
"""Model calls at once. [H]"""
PERMIT_TIMEOUT = 600.0
"""Seconds in which no permit was given back after which who waits for one gives up. [H] as long as a provider has."""


class _Hold:
    """A slot of ``gate``, and the slots of those that its holder lets in beside itself.

    It is the owner token: whoever has it among ``_HOLDS`` goes in by ``slots``. The slot is given back once the holder
    and all inside have left, so a child task that outlives its parent keeps it. The outermost hold of a gate is the
    gate's own, which nobody has to wait for.
    """

    def __init__(self, gate: _Gate, outer: _Hold | None) -> None:
        self.gate, self.outer = gate, outer
        self.slots = Semaphore(gate.capacity, fast_acquire=True)
        self.user_count = 0
        """The holder, and those that are inside or wait to be."""

    def count_ahead(self) -> int:
        """Return how many are inside or wait to be, the holder itself aside."""
        return self.gate.capacity - self.slots.value + self.slots.statistics().tasks_waiting

    def leave(self) -> None:
        """Say that one of its users has left."""
        self.user_count -= 1
        if self.user_count == 0 and self.outer is not None:
            self.outer.slots.release()
            self.gate.extend_patience()
            self.outer.leave()


_HOLDS: ContextVar[tuple[_Hold, ...]] = ContextVar("holdfast_holds", default=())
"""What this task holds, the innermost last; a task that it starts has the same."""


class _Waiter:
    """Somebody who waits for a slot."""

    def __init__(self, scope: CancelScope, ahead_count: int) -> None:
        self.scope = scope
        self.ahead_count = ahead_count
        self.is_turned_away = False

    def turn_away(self) -> None:
        """End the wait with ``LaneCleared``."""
        self.is_turned_away = True
        self.scope.cancel()


class _Gate:
    """Lets ``capacity`` in at a time, in the order they came.

    Where nobody left for ``patience`` seconds, who waits gives up: that is for permits alone, as its error says.
    """

    def __init__(self, capacity: int = 1, patience: float = math.inf) -> None:
        self.capacity, self.patience = capacity, patience
        self._root = _Hold(self, None)
        self._waiters: list[_Waiter] = []

    @property
    def is_idle(self) -> bool:
        """Whether nobody is inside or waits."""
        return self._root.user_count == 0

    def find_own_hold(self) -> _Hold | None:
        """Return the calling task's innermost hold that somebody still has, or ``None`` where it is not inside."""
        for hold in reversed(_HOLDS.get()):
            if hold.gate is self and hold.user_count:
                return hold
        return None

    def count_ahead(self) -> int:
        """Return how many the calling task would wait behind, or beside."""
        return (self.find_own_hold() or self._root).count_ahead()

    @asynccontextmanager
    async def enter(self) -> AsyncIterator[None]:
        """Be inside for the block, which starts when the turn has come."""
        outer = self.find_own_hold() or self._root
        outer.user_count += 1
        try:
            await self._acquire_slot(outer)
        except BaseException:
            outer.leave()
            raise
        hold = _Hold(self, outer)
        hold.user_count = 1
        _HOLDS.set((*[other for other in _HOLDS.get() if other.user_count], hold))
        try:
            yield
        finally:
            hold.leave()

    async def _acquire_slot(self, outer: _Hold) -> None:
        if outer.slots.value:
            outer.slots.acquire_nowait()
            return
        is_acquired = False
        with CancelScope(deadline=current_time() + self.patience) as scope:
            waiter = _Waiter(scope, outer.count_ahead())
            self._waiters.append(waiter)
            try:
                await outer.slots.acquire()
                is_acquired = True
            finally:
                self._waiters.remove(waiter)
        if waiter.is_turned_away:
            if is_acquired:  # the turn came in the same moment
                outer.slots.release()
            raise LaneCleared(
                f"the work was taken out of its lane while it waited behind {waiter.ahead_count}; ask again"
            )
        if not is_acquired:
            raise DeadlineExceeded(
                f"none of {self.capacity} model calls at once ended in {self.patience:g} s, while this one waited "
                f"behind {waiter.ahead_count}; try again, or allow more of them at once (permits)"
            )

    def extend_patience(self) -> None:
        """Let those that wait go on waiting: somebody left."""
        for waiter in self._waiters:
            waiter.scope.deadline = current_time() + self.patience

    def turn_away_waiting(self) -> int:
        """Turn away all that wait, here and inside; return how many."""
        waiters = [waiter for waiter in self._waiters if not waiter.is_turned_away]
        for waiter in waiters:
            waiter.turn_away()
        return len(waiters)


class Lanes:
    """Work under one key runs one at a time, in the order it came; work under other keys does not wait for it."""

    def __init__(self) -> None:
        self._gates: dict[str, _Gate] = {}
        self._is_closed = False
        self._freed = Event()
        """Set when a lane comes free, and then made anew."""

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
        ``drain``.
        """
        gate = self._get_gate(key)
        began, ahead_count, wait_seconds = current_time(), gate.count_ahead(), math.inf
        try:
            with CancelScope(deadline=_compute_deadline(deadline)) as scope:
                async with gate.enter():
                    wait_seconds = current_time() - began
                    yield
        finally:
            self._drop_idle_gate(key, gate)
        if scope.cancelled_caught:
            raise DeadlineExceeded(_format_deadline(key, ahead_count, deadline or 0.0, wait_seconds))

    def turn_away_waiting(self, key: str) -> int:
        """Turn away all that wait for lane ``key`` with ``LaneCleared``; what runs goes on. Return how many."""
        gate = self._gates.get(key)
        return gate.turn_away_waiting() if gate is not None else 0

    async def drain(self, *, deadline: float | None = None) -> None:
        """Take no new work from here on, and return when what was taken before has ended.

        What runs may still begin what it needs; what the caller itself holds is not waited for. ``DeadlineExceeded``
        after ``deadline`` seconds, where some of it still runs.
        """
        self._is_closed, began = True, current_time()
        with CancelScope(deadline=_compute_deadline(deadline)):
            while self._count_other_lanes():
                await self._freed.wait()
        if busy_count := self._count_other_lanes():
            elapsed = round(current_time() - began, 1)
            raise DeadlineExceeded(
                f"{busy_count} lanes were still in use after {elapsed:g} s; cancel what runs, or wait longer"
            )

    def _get_gate(self, key: str) -> _Gate:
        """Return the gate of ``key``, made if need be; ``LaneClosed`` for new work after ``drain``."""
        holds_any = self._count_other_lanes() < len(self._gates)
        if self._is_closed and not holds_any:
            raise LaneClosed(f"lane {key!r} takes no new work: its engine is closing; open the engine again")
        return self._gates.setdefault(key, _Gate())

    def _count_other_lanes(self) -> int:
        """Return how many lanes are in use that the calling task does not hold."""
        return sum(gate.find_own_hold() is None for gate in self._gates.values())

    def _drop_idle_gate(self, key: str, gate: _Gate) -> None:
        if gate.is_idle and self._gates.get(key) is gate:
            del self._gates[key]
            self._freed.set()
            self._freed = Event()


class Permits:
    """At most so many model calls run at once, whoever makes them; the others wait in the order they came.

    Calls inside a call have the permit of the outer one, and are as many at once.
    """

    def __init__(self, limit: int = DEFAULT_PERMITS, *, patience: float = PERMIT_TIMEOUT) -> None:
        if limit < 1:
            raise ConfigError(f"with {limit} permits no model call could run; give at least 1")
        self.limit = limit
        self.timeout = patience
        self._gate = _Gate(limit, patience)

    @property
    def is_idle(self) -> bool:
        """Whether every permit is free and nobody waits."""
        return self._gate.is_idle

    def hold(self) -> AbstractAsyncContextManager[None]:
        """Hold one permit for the block; ``DeadlineExceeded`` where none was given back for ``timeout`` seconds."""
        return self._gate.enter()


def _compute_deadline(deadline: float | None) -> float:
    """Return when ``deadline`` seconds are over."""
    return math.inf if deadline is None else current_time() + deadline


def _format_deadline(key: str, ahead_count: int, deadline: float, wait_seconds: float) -> str:
    waiting = min(wait_seconds, deadline)
    return (
        f"lane {key!r}: its {deadline:g} s are over, {waiting:.1f} of them waiting behind {ahead_count} and "
        f"{deadline - waiting:.1f} running; give it more time, or less to do"
    )
