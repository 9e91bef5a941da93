"""Compaction in flight: who may report that it is done, who waits, and what a timeout in the middle means.

The state is a value with pure transitions; ``InFlight`` holds one, wakes those that wait, and aborts what runs once.
After a timeout nobody chooses between snapshots: a compaction is in the log whole or not at all, so what is there is
what stood before it (invariant P6).
"""

from __future__ import annotations

from asyncio import AbstractEventLoop, _get_running_loop, get_running_loop
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from anyio import CancelScope, Event, current_time, move_on_after
from anyio.lowlevel import checkpoint
from msgspec import Struct
from msgspec.structs import replace

from holdfast.errors import Aborted, DeadlineExceeded
from holdfast.events import Outcome

WINDOW = 60.0
"""Seconds a wait lasts after the last that happened; as often again while a compaction is really in flight. [O]"""


class Flight(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where a session stands between compactions and what is tried again after them."""

    in_flight: bool = False
    pending_retry: int = 0
    """Requests that a compaction was made for and that have not ended since."""
    begun: int = 0
    count: int = 0
    """Compactions that are in the log: an aborted or empty one is none."""
    is_over: bool = False
    """Nothing starts any more, and who waits is turned away."""

    @property
    def is_busy(self) -> bool:
        """Whether a run may not yet report that it is done."""
        return self.in_flight or self.pending_retry > 0


def started(flight: Flight) -> Flight:
    """Return the state with a compaction in flight."""
    return replace(flight, in_flight=True, begun=flight.begun + 1)


def ended(flight: Flight, outcome: Outcome, *, will_retry: bool = False) -> Flight:
    """Return the state after that compaction; ``will_retry``: a request goes out again because of it."""
    if not flight.in_flight:
        return flight
    return replace(
        flight,
        in_flight=False,
        pending_retry=flight.pending_retry + will_retry,
        count=flight.count + (outcome == "compacted"),
    )


def settled(flight: Flight) -> Flight:
    """Return the state after a run ended: one retry fewer is awaited."""
    return replace(flight, pending_retry=max(0, flight.pending_retry - 1))


def expected(flight: Flight) -> Flight:
    """Return the state with the request awaited that a compaction is made for; one that is awaited already counts."""
    return replace(flight, pending_retry=max(1, flight.pending_retry))


def flags_compaction_timeout(*, timed_out: bool, pending: bool, in_flight: bool) -> bool:
    """Return whether a timeout is the compaction's: it timed out while one was in flight or its retry pending."""
    return timed_out and (pending or in_flight)


def extended(deadline: float, extra: float, now: float, *, busy: bool) -> float:
    """Return when a run ends: a compaction under way at its ``deadline`` gives it ``extra``, however many there are."""
    return deadline + extra if busy or now > deadline else deadline


class InFlight:
    """The compactions of one session as they come and go. One task of one event loop at a time changes it.

    What was under way in a loop that was closed is over: it never goes on.
    """

    def __init__(self) -> None:
        self.flight = Flight()
        self._clear()

    def _clear(self) -> None:
        """Forget who waits, and what runs."""
        self._changed = Event()
        """Set when ``flight`` is another one; who waits for that makes it anew."""
        self._abort: Callable[[], object] | None = None
        self._runs: list[_Run] = []
        self._loop: AbstractEventLoop | None = None
        """Where one of them is, or was last."""
        self.is_sending = False
        """Whether a run waits for its provider: until that fails or answers, no retry counts as lost."""

    def _come(self) -> None:
        """Be at work in the caller's event loop, unless something is under way in another one."""
        if self._loop is not None and self._loop.is_closed():
            self.flight = replace(self.flight, in_flight=False, pending_retry=0)
            self._clear()
        if not (self._runs or self.flight.is_busy):
            self._loop = get_running_loop()

    def start(self, abort: Callable[[], object] | None = None) -> None:
        """Say that a compaction began, which ``abort`` stops. ``Aborted`` after ``unsubscribe``: none begins then."""
        self._come()
        if self.flight.is_over:
            raise Aborted("no compaction begins any more: the session is being closed; open it again")
        self._abort = abort
        self._move(started(self.flight))

    def end(self, outcome: Outcome, *, will_retry: bool = False) -> None:
        """Say what became of it; with ``will_retry`` those that wait go on waiting until ``settled``."""
        self._abort = None
        self._move(ended(self.flight, outcome, will_retry=will_retry))

    def expect_retry(self) -> None:
        """Say that the request under way goes out again because of a compaction, whoever writes its summary.

        Those that wait go on waiting until ``settled``.
        """
        self._move(expected(self.flight))

    def settled(self) -> None:
        """Say that a run ended, with an answer or without: a request tried again after a compaction is awaited less."""
        self._move(settled(self.flight))

    async def wait(self, window: float = WINDOW) -> bool:
        """Return once no compaction is in flight and no retry pending, at the next checkpoint at the earliest.

        ``False`` where a retry was pending, and for ``window`` seconds nothing came, nothing was in flight and no
        provider was waited for: it counts as lost, and nobody waits for it any more. ``Aborted`` after ``unsubscribe``.
        """
        await checkpoint()
        self._come()
        while self.flight.is_busy and not self.flight.is_over:
            with move_on_after(window) as scope:
                if self._changed.is_set():
                    self._changed = Event()
                await self._changed.wait()
            is_under_way = self.flight.in_flight or self.is_sending
            if scope.cancelled_caught and self.flight.is_busy and not is_under_way:
                self._move(replace(self.flight, pending_retry=0))
                return False
        if self.flight.is_over:
            raise Aborted("the session was closed while its compaction was waited for; open it again")
        return True

    def unsubscribe(self) -> None:
        """Turn away those that wait and come to wait, then abort the running call, once: in the loop where they are."""
        loop = self._loop
        self.flight = replace(self.flight, is_over=True)
        if loop is None or loop is _get_running_loop():
            self._stop()
        else:
            with suppress(RuntimeError):  # it was closed: nobody there goes on
                loop.call_soon_threadsafe(self._stop)

    def _stop(self) -> None:
        abort, self._abort = self._abort, None
        self._move(self.flight)
        if abort is not None:
            abort()

    @contextmanager
    def limited(self, seconds: float, extra: float, snapshot: Callable[[], str] = lambda: "") -> Iterator[None]:
        """Cancel the block after ``seconds`` and raise ``DeadlineExceeded``; a compaction gives it ``extra``.

        ``snapshot`` describes what stands, for the error of a block that was cancelled during a compaction.
        """
        self._come()
        with CancelScope(deadline=current_time() + seconds) as scope:
            run = _Run(scope, extra)
            self._runs.append(run)
            try:
                run.judge(self.flight)
                yield
            finally:
                if run in self._runs:
                    self._runs.remove(run)
        if scope.cancelled_caught:
            raise _deadline_error(seconds, run.cancelled_in or self.flight, snapshot)

    def _move(self, flight: Flight) -> None:
        for run in self._runs:
            run.note_cancelled(self.flight)
        self.flight = flight
        for run in self._runs:
            run.judge(flight)
        self._changed.set()


class _Run:
    """A deadline that a compaction moves once."""

    def __init__(self, scope: CancelScope, extra: float) -> None:
        self.scope = scope
        self.deadline = scope.deadline
        self.extra = extra
        self.cancelled_in: Flight | None = None
        """What was under way when the deadline passed; nothing where that has not changed since."""

    def note_cancelled(self, flight: Flight) -> None:
        """Keep ``flight`` where the deadline has passed: what was cancelled ends its compaction as it unwinds."""
        if self.scope.cancel_called and self.cancelled_in is None:
            self.cancelled_in = flight

    def judge(self, flight: Flight) -> None:
        """Let the run end when it should, with the session as ``flight`` says."""
        self.scope.deadline = extended(self.deadline, self.extra, current_time(), busy=flight.is_busy)


def _deadline_error(seconds: float, flight: Flight, snapshot: Callable[[], str]) -> DeadlineExceeded:
    """Return the error of a run that was cancelled while the session was as ``flight`` says."""
    is_pending = flight.pending_retry > 0
    if not flags_compaction_timeout(timed_out=True, pending=is_pending, in_flight=flight.in_flight):
        return DeadlineExceeded(f"the run's {seconds:g} s were over; give it more time, or less to do")
    when = "during a compaction" if flight.in_flight else "while a request was tried again after a compaction"
    stands = snapshot()
    named = f": {stands}" if stands else ""
    text = f"the run's {seconds:g} s were over {when}; what was in the log stands{named}; ask again with more time"
    return DeadlineExceeded(text, during_compaction=True, snapshot=stands)
