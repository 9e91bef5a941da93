"""The comparisons of an inspector: at most one runs, and the newest results are kept in memory."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import OrderedDict
from threading import Lock, Thread
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.json import Decoder

from holdfast.errors import HoldfastError
from holdfast.inspector.comparison.values import (
    Comparison,
    ComparisonFailure,
    ComparisonProgress,
    ComparisonQuestion,
    ComparisonResult,
    ComparisonTask,
    WorkerMessage,
)
from holdfast.state.codec.reading import get_decoder

KEPT_OUTCOMES = 50
"""Results that are kept. Chosen by judgement: one of seven policies has some hundred kilobytes."""
END_SECONDS = 5.0
"""Seconds that a process has to end once it was told to. Chosen by judgement: it has nothing to save."""
_WORKER_MODULE = "holdfast.inspector.comparison.worker"
# -P: the working folder is no place to import from.
WORKER_COMMAND = (sys.executable, "-P", "-m", _WORKER_MODULE)
"""What starts the process that replays."""


class ComparisonRefused(HoldfastError):
    """A comparison cannot be started now."""


class ComparisonOutcome(Struct, frozen=True):
    """The end of a comparison: its result, or why there is none."""

    question: ComparisonQuestion
    comparison: Comparison | None
    failure: str = ""
    seconds: float = 0.0
    """How long it took."""


class RunningComparison(Struct, frozen=True):
    """A comparison that is not done yet."""

    number: int
    """Counts the comparisons of this inspector."""
    question: ComparisonQuestion
    progress: ComparisonProgress
    seconds: float
    """For how long it has been running."""
    replay_seconds: float
    """For how long it has made requests."""

    @property
    def seconds_left(self) -> float | None:
        """About how long it will take still, by what it took so far; None while that says nothing."""
        progress = self.progress
        if progress.done < 10 or self.replay_seconds < 1:
            return None
        return self.replay_seconds / progress.done * (progress.total - progress.done)


class _Job:
    """A process that replays, and what it has told."""

    def __init__(self, number: int, question: ComparisonQuestion, process: subprocess.Popen[bytes]) -> None:
        self.number = number
        self.question = question
        self.process = process
        self.started_at = time.monotonic()
        self.replay_started_at: float | None = None
        self.progress = ComparisonProgress()
        self.is_cancelled = False
        self.thread: Thread | None = None
        """Hears what the process tells."""


class Comparisons:
    """Starts comparisons of one store's sessions and keeps their results. Safe to use from several threads."""

    def __init__(self, location: str, command: tuple[str, ...] = WORKER_COMMAND) -> None:
        """``location`` is the store as ``open_store`` takes it; empty if no other process can open it."""
        self._location = location
        self._command = command
        self._lock = Lock()
        self._job: _Job | None = None
        self._count = 0
        self._is_closed = False
        self._outcomes: OrderedDict[ComparisonQuestion, ComparisonOutcome] = OrderedDict()

    @property
    def can_start(self) -> bool:
        """Whether the process that replays can open the store."""
        return bool(self._location)

    def start(self, question: ComparisonQuestion) -> None:
        """Start a comparison, unless the same one is running or done.

        Raises ``ComparisonRefused`` while another one is running, and for a store that no other process can open.
        """
        if not self.can_start:
            raise ComparisonRefused(
                "this store is in the memory of one process, and a comparison runs in another; "
                "start holdfast with a store in a file"
            )
        with self._lock:
            known = self._outcomes.get(question)
            if known is not None and known.comparison is not None:
                return
            if self._job is not None:
                if self._job.question == question:
                    return
                raise ComparisonRefused("another comparison is running; wait for its end, or cancel it")
            if self._is_closed:
                raise ComparisonRefused("the inspector is being stopped")
            self._count += 1
            job = _Job(self._count, question, self._start_process(question))
            job.thread = Thread(target=self._follow, args=(job,), daemon=True)
            job.thread.start()
            self._job = job

    def _start_process(self, question: ComparisonQuestion) -> subprocess.Popen[bytes]:
        # A group of its own: ^C is for the inspector, which ends this process by closing its standard input.
        process = subprocess.Popen(  # noqa: S603 -- our own module, and nothing from outside among its arguments
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0
        )
        assert process.stdin is not None
        try:
            process.stdin.write(msgspec.json.encode(ComparisonTask(self._location, question)) + b"\n")
            process.stdin.flush()
        except BrokenPipeError:
            # It ended at once; how is told by its exit code.
            pass
        return process

    def _follow(self, job: _Job) -> None:
        """Hear what the process tells until it ends, and keep its outcome."""
        comparison: Comparison | None = None
        failure = ""
        assert job.process.stdout is not None
        message_type: Any = WorkerMessage
        decoder: Decoder[WorkerMessage] = get_decoder(message_type)
        with job.process:
            for line in job.process.stdout:
                try:
                    message = decoder.decode(line)
                except (msgspec.DecodeError, UnicodeDecodeError):
                    # The end of a process that was ended amid a line.
                    break
                if isinstance(message, ComparisonResult):
                    comparison = message.comparison
                elif isinstance(message, ComparisonFailure):
                    failure = message.reason
                else:
                    self._note_progress(job, message)
            if job.process.stdin is not None:
                job.process.stdin.close()
        with self._lock:
            self._job = None
            if job.is_cancelled:
                return
            if comparison is None and not failure:
                failure = _describe_exit(job.process.returncode)
            outcome = ComparisonOutcome(job.question, comparison, failure, time.monotonic() - job.started_at)
            self._outcomes.pop(job.question, None)
            self._outcomes[job.question] = outcome
            while len(self._outcomes) > KEPT_OUTCOMES:
                self._outcomes.popitem(last=False)

    def _note_progress(self, job: _Job, progress: ComparisonProgress) -> None:
        with self._lock:
            job.progress = progress
            if job.replay_started_at is None:
                job.replay_started_at = time.monotonic()

    def cancel(self, number: int) -> None:
        """End the comparison ``number``. One that ended already, or was cancelled, is left as it is."""
        with self._lock:
            job = self._job
            if job is None or job.number != number:
                return
            job.is_cancelled = True
            job.process.terminate()
        assert job.thread is not None
        # Until it is gone, so that the next one can be started.
        job.thread.join(END_SECONDS)
        if job.thread.is_alive():
            job.process.kill()
            job.thread.join(END_SECONDS)

    def get_running(self) -> RunningComparison | None:
        """Return the comparison that is running, if there is one."""
        with self._lock:
            job = self._job
            if job is None or job.is_cancelled:
                return None
            now = time.monotonic()
            replay_started_at = now if job.replay_started_at is None else job.replay_started_at
            return RunningComparison(
                job.number, job.question, job.progress, now - job.started_at, now - replay_started_at
            )

    def find_outcome(self, question: ComparisonQuestion) -> ComparisonOutcome | None:
        """Return the outcome of ``question``, if it is known."""
        with self._lock:
            return self._outcomes.get(question)

    def find_newest_outcome(self, session: str) -> ComparisonOutcome | None:
        """Return the newest outcome of a session, if there is one."""
        with self._lock:
            for outcome in reversed(self._outcomes.values()):
                if outcome.question.session == session:
                    return outcome
        return None

    def close(self) -> None:
        """End the comparison that is running; none can be started any more."""
        with self._lock:
            self._is_closed = True
        running = self.get_running()
        if running is not None:
            self.cancel(running.number)


def _describe_exit(code: int) -> str:
    """Say why a process ended that told nothing. A negative code is a signal."""
    if code < 0:
        return (
            f"the process that replays was ended by signal {-code}, perhaps for lack of memory; "
            "choose fewer policies, or holdfast export the session and holdfast replay the file"
        )
    return f"the process that replays ended with code {code} before it was done; start the inspector again and retry"
