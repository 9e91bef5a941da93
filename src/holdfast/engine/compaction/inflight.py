"""Compaction in flight: who may report that it is done, who waits, and what a timeout in the middle means.

The state is a value with pure transitions; ``CompactionTracker`` holds one, wakes those that wait, and aborts what runs
once. After a timeout nobody chooses between snapshots: a compaction is in the log whole or not at all, so what is there
is what stood before it (invariant failed-attempt-changes-nothing).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from anyio import CancelScope, Event, current_time, move_on_after
from anyio.lowlevel import checkpoint
from msgspec import Struct
from msgspec.structs import replace

from holdfast.errors import DeadlineExceeded, OperationAborted
from holdfast.events import CompactionOutcome

RETRY_WAIT_SECONDS = 60.0
"""Seconds a wait lasts after the last that happened; as often again while a compaction is really in flight. [O]"""


class CompactionStatus(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where a session stands between compactions and what is tried again after them."""

    in_flight: bool = False
    pending_retries: int = 0
    """Requests that a compaction was made for and that have not ended since."""
    started_count: int = 0
    completed_count: int = 0
    """Compactions that are in the log: an aborted or empty one is none."""
    is_closed: bool = False
    """Nothing starts any more, and who waits is turned away."""

    @property
    def is_busy(self) -> bool:
        """Whether a run may not yet report that it is done."""
        return self.in_flight or self.pending_retries > 0


def start_compaction(status: CompactionStatus) -> CompactionStatus:
    """Return the state with a compaction in flight."""
    return replace(status, in_flight=True, started_count=status.started_count + 1)


def end_compaction(
    status: CompactionStatus, outcome: CompactionOutcome, *, will_retry: bool = False
) -> CompactionStatus:
    """Return the state after that compaction; ``will_retry``: a request goes out again because of it."""
    if not status.in_flight:
        return status
    return replace(
        status,
        in_flight=False,
        pending_retries=status.pending_retries + will_retry,
        completed_count=status.completed_count + (outcome == "compacted"),
    )


def settle_retry(status: CompactionStatus) -> CompactionStatus:
    """Return the state after a run ended: one retry fewer is awaited."""
    return replace(status, pending_retries=max(0, status.pending_retries - 1))


def add_expected_retry(status: CompactionStatus) -> CompactionStatus:
    """Return the state with the request awaited that a compaction is made for; one that is awaited already counts."""
    return replace(status, pending_retries=max(1, status.pending_retries))


def is_compaction_timeout(*, timed_out: bool, pending: bool, in_flight: bool) -> bool:
    """Return whether a timeout is the compaction's: it timed out while one was in flight or its retry pending."""
    return timed_out and (pending or in_flight)


def extend_deadline(deadline: float, extra: float, now: float, *, busy: bool) -> float:
    """Return when a run ends: a compaction under way at its ``deadline`` gives it ``extra``, however many there are."""
    return deadline + extra if busy or now > deadline else deadline


class CompactionTracker:
    """The compactions of one session as they come and go, in the event loop of its engine."""

    def __init__(self) -> None:
        self.status = CompactionStatus()
        self._changed = Event()
        """Set when ``status`` is another one, and then made anew."""
        self._abort: Callable[[], object] | None = None
        self._runs: list[_RunDeadline] = []
        self.is_sending = False
        """Whether a run waits for its provider: until that fails or answers, no retry counts as lost."""

    def start(self, abort: Callable[[], object] | None = None) -> None:
        """Say that a compaction began, which ``abort`` stops. ``OperationAborted`` after ``close``: none begins
        then.
        """
        if self.status.is_closed:
            raise OperationAborted("no compaction begins any more: the session is being closed; open it again")
        self._abort = abort
        self._set_status(start_compaction(self.status))

    def end(self, outcome: CompactionOutcome, *, will_retry: bool = False) -> None:
        """Say what became of it; with ``will_retry`` those that wait go on waiting until ``settle_run``."""
        self._abort = None
        self._set_status(end_compaction(self.status, outcome, will_retry=will_retry))

    def expect_retry(self) -> None:
        """Say that the request under way goes out again because of a compaction, whoever writes its summary.

        Those that wait go on waiting until ``settle_run``.
        """
        self._set_status(add_expected_retry(self.status))

    def settle_run(self) -> None:
        """Say that a run ended, with an answer or without: a request tried again after a compaction is awaited less."""
        self._set_status(settle_retry(self.status))

    async def wait(self, window: float = RETRY_WAIT_SECONDS) -> bool:
        """Return once no compaction is in flight and no retry pending, at the next checkpoint at the earliest.

        ``False`` where a retry was pending, and for ``window`` seconds nothing came, nothing was in flight and no
        provider was waited for: it counts as lost, and nobody waits for it any more. ``OperationAborted`` after
        ``close``.
        """
        await checkpoint()
        while self.status.is_busy and not self.status.is_closed:
            with move_on_after(window) as scope:
                await self._changed.wait()
            is_under_way = self.status.in_flight or self.is_sending
            if scope.cancelled_caught and self.status.is_busy and not is_under_way:
                self._set_status(replace(self.status, pending_retries=0))
                return False
        if self.status.is_closed:
            raise OperationAborted("the session was closed while its compaction was waited for; open it again")
        return True

    def close(self) -> None:
        """Turn away those that wait and come to wait, then abort the running call, once."""
        abort, self._abort = self._abort, None
        self._set_status(replace(self.status, is_closed=True))
        if abort is not None:
            abort()

    @contextmanager
    def limit_run(self, seconds: float, extra: float, snapshot: Callable[[], str] = lambda: "") -> Iterator[None]:
        """Cancel the block after ``seconds`` and raise ``DeadlineExceeded``; a compaction gives it ``extra``.

        ``snapshot`` describes what stands, for the error of a block that was cancelled during a compaction.
        """
        with CancelScope(deadline=current_time() + seconds) as scope:
            run = _RunDeadline(scope, extra)
            self._runs.append(run)
            try:
                run.apply_status(self.status)
                yield
            finally:
                self._runs.remove(run)
        if scope.cancelled_caught:
            raise _make_deadline_error(seconds, run.status_at_cancel or self.status, snapshot)

    def _set_status(self, status: CompactionStatus) -> None:
        for run in self._runs:
            run.remember_status_at_cancel(self.status)
        self.status = status
        for run in self._runs:
            run.apply_status(status)
        self._changed.set()
        self._changed = Event()


class _RunDeadline:
    """A deadline that a compaction moves once."""

    def __init__(self, scope: CancelScope, extra: float) -> None:
        self.scope = scope
        self.deadline = scope.deadline
        self.extra = extra
        self.status_at_cancel: CompactionStatus | None = None
        """What was under way when the deadline passed; nothing where that has not changed since."""

    def remember_status_at_cancel(self, status: CompactionStatus) -> None:
        """Keep ``status`` where the deadline has passed: what was cancelled ends its compaction as it unwinds."""
        if self.scope.cancel_called and self.status_at_cancel is None:
            self.status_at_cancel = status

    def apply_status(self, status: CompactionStatus) -> None:
        """Let the run end when it should, with the session as ``status`` says."""
        self.scope.deadline = extend_deadline(self.deadline, self.extra, current_time(), busy=status.is_busy)


def _make_deadline_error(seconds: float, status: CompactionStatus, snapshot: Callable[[], str]) -> DeadlineExceeded:
    """Return the error of a run that was cancelled while the session was as ``status`` says."""
    is_pending = status.pending_retries > 0
    if not is_compaction_timeout(timed_out=True, pending=is_pending, in_flight=status.in_flight):
        return DeadlineExceeded(f"the run's {seconds:g} s were over; give it more time, or less to do")
    when = "during a compaction" if status.in_flight else "while a request was tried again after a compaction"
    stands = snapshot()
    details = f": {stands}" if stands else ""
    text = f"the run's {seconds:g} s were over {when}; what was in the log stands{details}; ask again with more time"
    return DeadlineExceeded(text, during_compaction=True, snapshot=stands)
