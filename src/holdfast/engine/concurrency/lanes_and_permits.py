"""Lanes and permits: lanes run the work of one branch one at a time, in order; permits limit concurrent model calls.

The work of a branch holds its lane; a permit is taken last, only around a model call. Both are re-entrant: a task that
holds one, and the tasks it started, may take it again. They wait only for one another, never for the hold that they are
inside of, so nothing waits for itself. Inside one hold the same number may be in at once as outside.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from contextvars import ContextVar

from anyio import CancelScope, Event, Semaphore, current_time

from holdfast.errors import ConfigError, DeadlineExceeded, LaneCleared, LaneClosed

# More calls at once finish sooner, but share one account's rate limit: each refusal costs a wait. Chosen by judgement;
# `permits` of `Engine.open` sets another number.
DEFAULT_PERMITS = 4
"""Model calls that run at once."""
# As long as a provider may take for one answer (`READ_TIMEOUT`): if none of the running calls has ended by then, none
# is going to.
PERMIT_TIMEOUT = 600.0
"""Seconds without any permit being given back after which a waiter gives up."""


class _Hold:
    """A slot of ``gate``, with slots of its own for the tasks that its holder lets in beside itself.

    It serves as the owner token: a task that has it among its ``_HOLDS`` enters through its ``slots``. The slot is
    given back once the holder and everybody inside have left, so a child task that outlives its parent keeps it. Each
    gate has an outermost hold of its own, whose slots are the gate's.
    """

    def __init__(self, gate: _Gate, outer: _Hold | None) -> None:
        self.gate = gate
        self.outer = outer
        self.slots = Semaphore(gate.capacity, fast_acquire=True)
        self.user_count = 0
        """The holder, and the tasks that are inside or wait to be."""

    def count_ahead(self) -> int:
        """Return how many tasks are inside or wait to be, without the holder."""
        return self.gate.capacity - self.slots.value + self.slots.statistics().tasks_waiting

    def leave(self) -> None:
        """Note that one of its users has left; after the last one, give the slot back."""
        self.user_count -= 1
        if self.user_count == 0 and self.outer is not None:
            self.outer.slots.release()
            self.gate.extend_patience()
            self.outer.leave()


_HOLDS: ContextVar[tuple[_Hold, ...]] = ContextVar("holdfast_holds", default=())
"""The holds of this task, innermost last. A task that it starts inherits them."""


class _Waiter:
    """A task that waits for a slot."""

    def __init__(self, scope: CancelScope, ahead_count: int) -> None:
        self.scope = scope
        self.ahead_count = ahead_count
        self.is_turned_away = False

    def turn_away(self) -> None:
        """End the wait with ``LaneCleared``."""
        self.is_turned_away = True
        self.scope.cancel()


class _Gate:
    """Lets ``capacity`` tasks in at a time, in the order they came.

    Waiters give up if nobody has left for ``patience`` seconds. Only permits use that, and the error says so.
    """

    def __init__(self, capacity: int = 1, patience: float = math.inf) -> None:
        self.capacity = capacity
        self.patience = patience
        self._root = _Hold(self, None)
        self._waiters: list[_Waiter] = []

    @property
    def is_idle(self) -> bool:
        """Whether no task is inside or waits."""
        return self._root.user_count == 0

    def find_own_hold(self) -> _Hold | None:
        """Return the calling task's innermost hold that is still in use, or None if it is not inside."""
        for hold in reversed(_HOLDS.get()):
            if hold.gate is self and hold.user_count:
                return hold
        return None

    def count_ahead(self) -> int:
        """Return how many tasks the calling task would wait behind, or run beside."""
        return (self.find_own_hold() or self._root).count_ahead()

    @asynccontextmanager
    async def enter(self) -> AsyncIterator[None]:
        """Wait for a slot and hold it for the block."""
        outer = self.find_own_hold() or self._root
        outer.user_count += 1
        try:
            await self._acquire_slot(outer)
        except BaseException:
            outer.leave()
            raise
        hold = _Hold(self, outer)
        hold.user_count = 1
        holds_in_use = [other for other in _HOLDS.get() if other.user_count]
        _HOLDS.set((*holds_in_use, hold))
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
            if is_acquired:  # the slot came free at the same moment
                outer.slots.release()
            raise LaneCleared(
                f"the work was cancelled in its lane while it waited behind {waiter.ahead_count}; ask again"
            )
        if not is_acquired:
            raise DeadlineExceeded(
                f"all {self.capacity} permits for model calls were in use for {self.patience:g} s, while one waited "
                f"behind {waiter.ahead_count}; try again, or allow more calls at once (permits)"
            )

    def extend_patience(self) -> None:
        """Start the waiters' ``patience`` anew, because somebody has left."""
        for waiter in self._waiters:
            waiter.scope.deadline = current_time() + self.patience

    def turn_away_waiting(self) -> int:
        """Turn away all waiters, of the gate and of its holds; return how many."""
        waiters = [waiter for waiter in self._waiters if not waiter.is_turned_away]
        for waiter in waiters:
            waiter.turn_away()
        return len(waiters)


class Lanes:
    """Runs the work under one key one at a time, in the order it came; work under other keys does not wait for it."""

    def __init__(self) -> None:
        self._gates: dict[str, _Gate] = {}
        self._is_closed = False
        self._freed = Event()
        """Set when a lane comes free, and then replaced by a new event."""

    @property
    def is_idle(self) -> bool:
        """Whether no task holds a lane or waits for one."""
        return not self._gates

    @asynccontextmanager
    async def hold(self, key: str, *, deadline: float | None = None) -> AsyncIterator[None]:
        """Wait until all earlier work under ``key`` has ended, then hold the lane for the block.

        A block inside another that holds the key waits only for others inside of that one. To hold several keys, take
        them in one order everywhere, or give a ``deadline``, or two tasks may wait for each other.

        ``deadline`` is in seconds for waiting and block together; after it the block is cancelled and
        ``DeadlineExceeded`` raised. Raises ``LaneCleared`` after ``turn_away_waiting``, ``LaneClosed`` after ``drain``.
        """
        gate = self._get_gate(key)
        began, ahead_count = current_time(), gate.count_ahead()
        wait_seconds = math.inf  # until the lane is held
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
        """Raise ``LaneCleared`` in all tasks that wait for lane ``key``, and return how many; running work goes on."""
        gate = self._gates.get(key)
        return gate.turn_away_waiting() if gate is not None else 0

    async def drain(self, *, deadline: float | None = None) -> None:
        """Accept no new work, and wait until the accepted work has ended.

        Running work may still take lanes that it needs. Lanes that the caller holds are not waited for. Raises
        ``DeadlineExceeded`` if some of it still runs after ``deadline`` seconds.
        """
        self._is_closed = True
        began = current_time()
        with CancelScope(deadline=_compute_deadline(deadline)):
            while self._count_other_lanes():
                await self._freed.wait()
        busy_count = self._count_other_lanes()
        if busy_count:
            elapsed = round(current_time() - began, 1)
            raise DeadlineExceeded(
                f"{busy_count} lanes were still in use after {elapsed:g} s; cancel what runs, or wait longer"
            )

    def _get_gate(self, key: str) -> _Gate:
        """Return the gate of ``key``, creating it if needed. Raises ``LaneClosed`` for new work after ``drain``."""
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
    """Limits the model calls that run at once to ``limit``; the others wait in the order they came.

    Calls made inside a call share its permit; of those, again, ``limit`` run at once.
    """

    def __init__(self, limit: int = DEFAULT_PERMITS, *, patience: float = PERMIT_TIMEOUT) -> None:
        if limit < 1:
            raise ConfigError(f"with {limit} permits no model call could run; give at least 1")
        self.limit = limit
        self.timeout = patience
        self._gate = _Gate(limit, patience)

    @property
    def is_idle(self) -> bool:
        """Whether all permits are free and no task waits."""
        return self._gate.is_idle

    def hold(self) -> AbstractAsyncContextManager[None]:
        """Return a context manager that holds one permit.

        Entering it raises ``DeadlineExceeded`` if no permit was given back for ``timeout`` seconds.
        """
        return self._gate.enter()


def _compute_deadline(deadline: float | None) -> float:
    """Return the time of the event loop's clock that is ``deadline`` seconds from now; never for None."""
    return math.inf if deadline is None else current_time() + deadline


def _format_deadline(
    key: str,
    ahead_count: int,
    deadline: float,
    wait_seconds: float,
) -> str:
    waiting = min(wait_seconds, deadline)  # infinite if the lane was never held
    return (
        f"lane {key!r} took longer than {deadline:g} s: {waiting:.1f} s waiting behind {ahead_count} and "
        f"{deadline - waiting:.1f} s running; allow more time, or ask for less"
    )
