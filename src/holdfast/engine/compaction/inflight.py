"""Compactions in flight: when a session may report that it is done, and what a timeout in the middle means.

The status is a value with pure transitions; ``CompactionTracker`` holds one, wakes the waiters, and aborts a running
compaction on close. A timeout needs no choice between snapshots: a compaction is in the log whole or not at all, so a
cancelled one leaves the session as it was (invariant failed-attempt-changes-nothing).
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

# From OpenClaw. Shorter, and a waiter gives up on a retry whose provider is merely slow to start; longer, and a lost
# retry blocks it for no reason.
RETRY_WAIT_SECONDS = 60.0
"""Seconds without any change after which a pending retry counts as lost, unless a compaction is really in flight."""


class CompactionStatus(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The compactions of a session, and the requests that are sent again after them."""

    in_flight: bool = False
    pending_retries: int = 0
    """Requests that a compaction was made for, and whose runs have not ended since."""
    started_count: int = 0
    completed_count: int = 0
    """Compactions that were committed; aborted and empty ones do not count."""
    is_closed: bool = False
    """Whether the session is closed: no compaction starts any more, and waiters are turned away."""

    @property
    def is_busy(self) -> bool:
        """Whether a run may not yet report that it is done."""
        return self.in_flight or self.pending_retries > 0


def start_compaction(status: CompactionStatus) -> CompactionStatus:
    """Return ``status`` with a compaction in flight."""
    return replace(status, in_flight=True, started_count=status.started_count + 1)


def end_compaction(
    status: CompactionStatus, outcome: CompactionOutcome, *, will_retry: bool = False
) -> CompactionStatus:
    """Return ``status`` after the compaction in flight ended; ``will_retry``: a request is sent again because of it."""
    if not status.in_flight:
        return status
    return replace(
        status,
        in_flight=False,
        pending_retries=status.pending_retries + will_retry,
        completed_count=status.completed_count + (outcome == "compacted"),
    )


def settle_retry(status: CompactionStatus) -> CompactionStatus:
    """Return ``status`` after a run ended: one retry fewer is pending."""
    return replace(status, pending_retries=max(0, status.pending_retries - 1))


def add_expected_retry(status: CompactionStatus) -> CompactionStatus:
    """Return ``status`` with at least one retry pending; one that is pending already is the same."""
    return replace(status, pending_retries=max(1, status.pending_retries))


def is_compaction_timeout(*, timed_out: bool, pending: bool, in_flight: bool) -> bool:
    """Return whether a timeout hit a compaction: one was in flight, or the retry after it pending."""
    return timed_out and (pending or in_flight)


def extend_deadline(deadline: float, extra: float, now: float, *, busy: bool) -> float:
    """Return when a run has to end: at ``deadline``, or ``extra`` seconds later if a compaction is under way by then.

    It is extended once, however many compactions there are: once the deadline has passed the extension stays.
    """
    is_extended = busy or now > deadline
    return deadline + extra if is_extended else deadline


class CompactionTracker:
    """Tracks the compactions of one session, in the event loop of its engine."""

    def __init__(self) -> None:
        self.status = CompactionStatus()
        self._changed = Event()
        """Set when ``status`` changes, and then replaced by a new event."""
        self._abort: Callable[[], object] | None = None
        self._runs: list[_RunDeadline] = []
        self.is_sending = False
        """Whether a run waits for its provider; while it does, no retry counts as lost."""

    def start(self, abort: Callable[[], object] | None = None) -> None:
        """Note that a compaction began, which ``close`` stops by ``abort``. Raises ``OperationAborted`` once closed."""
        if self.status.is_closed:
            raise OperationAborted("no compaction begins any more: the session is being closed; open it again")
        self._abort = abort
        self._set_status(start_compaction(self.status))

    def end(self, outcome: CompactionOutcome, *, will_retry: bool = False) -> None:
        """Note that the compaction ended; with ``will_retry`` waiters go on waiting until ``settle_run``."""
        self._abort = None
        self._set_status(end_compaction(self.status, outcome, will_retry=will_retry))

    def expect_retry(self) -> None:
        """Note that a request will be sent again after a compaction; waiters go on waiting until ``settle_run``."""
        self._set_status(add_expected_retry(self.status))

    def settle_run(self) -> None:
        """Note that a run ended, with an answer or without, and with it the retry after its compaction."""
        self._set_status(settle_retry(self.status))

    async def wait(self, window: float = RETRY_WAIT_SECONDS) -> bool:
        """Wait until no compaction is in flight and no retry pending; return True then.

        Return False if a retry was pending and for ``window`` seconds nothing changed, although no compaction was in
        flight and no provider was waited for: the retry counts as lost. Raises ``OperationAborted`` after ``close``.
        """
        await checkpoint()  # an awaited call lets others run, also when there is nothing to wait for
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
        """Turn away all waiters, present and future, and abort a compaction in flight."""
        # The flag comes first: an aborted compaction ends at once, and waiters must not take that for a normal end.
        abort, self._abort = self._abort, None
        self._set_status(replace(self.status, is_closed=True))
        if abort is not None:
            abort()

    @contextmanager
    def limit_run(self, seconds: float, extra: float, snapshot: Callable[[], str] = lambda: "") -> Iterator[None]:
        """Cancel the block after ``seconds`` and raise ``DeadlineExceeded``.

        A compaction under way extends the deadline once by ``extra`` seconds. ``snapshot`` describes what is in the
        log, for the error of a block that was cancelled during a compaction.
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
    """The deadline of one run, which a compaction extends once."""

    def __init__(self, scope: CancelScope, extra: float) -> None:
        self.scope = scope
        self.deadline = scope.deadline
        self.extra = extra
        self.status_at_cancel: CompactionStatus | None = None
        """The status when the deadline passed; None if it has not passed, or nothing has changed since."""

    def remember_status_at_cancel(self, status: CompactionStatus) -> None:
        """Remember ``status`` if the deadline has passed: the cancelled code ends its compaction as it unwinds."""
        if self.scope.cancel_called and self.status_at_cancel is None:
            self.status_at_cancel = status

    def apply_status(self, status: CompactionStatus) -> None:
        """Move the deadline as ``status`` requires."""
        self.scope.deadline = extend_deadline(self.deadline, self.extra, current_time(), busy=status.is_busy)


def _make_deadline_error(seconds: float, status: CompactionStatus, snapshot: Callable[[], str]) -> DeadlineExceeded:
    """Build the error of a run that was cancelled with ``status``."""
    is_pending = status.pending_retries > 0
    if not is_compaction_timeout(timed_out=True, pending=is_pending, in_flight=status.in_flight):
        return DeadlineExceeded(f"the run's {seconds:g} s were over; give it more time, or less to do")
    when = "during a compaction" if status.in_flight else "while a request was tried again after a compaction"
    stands = snapshot()
    details = f": {stands}" if stands else ""
    text = f"the run's {seconds:g} s were over {when}; the log has what was recorded{details}; ask again with more time"
    return DeadlineExceeded(text, during_compaction=True, snapshot=stands)
