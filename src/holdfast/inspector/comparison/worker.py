"""The process that replays a session for a comparison: a task on standard input, progress and a result on standard
output, one line of JSON each.

It is a process of its own because a replay is minutes of computing in Python: in a thread of the inspector every page
would wait for it (measured: docs/inspector.md), and so would the requests of a proxy that has the inspector. It steps
back for every other process, and ends with the one that started it.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from io import FileIO
from pathlib import Path
from threading import Thread
from typing import BinaryIO

import msgspec

from holdfast.errors import HoldfastError
from holdfast.inspector.charts import group_sizes
from holdfast.inspector.comparison.replay_job import make_replay_job
from holdfast.inspector.comparison.values import (
    ComparedPolicy,
    Comparison,
    ComparisonFailure,
    ComparisonProgress,
    ComparisonResult,
    ComparisonTask,
    FailedPolicy,
    WorkerMessage,
)
from holdfast.replay.measure import RequestPoint
from holdfast.replay.report import PolicyRow, ReportSubject, encode_policy_row
from holdfast.reports.sessions.session_replay import ReplayReport, replay_recording
from holdfast.state.codec.reading import convert_value, get_decoder
from holdfast.store.open_store import open_store
from holdfast.store.session_recording import load_branch_recording

NICENESS = 10
"""How far the process steps back for others. Chosen by judgement: it gets a whole core that is idle, and a tenth of
one that a proxy needs."""
OUT_OF_MEMORY_SCORE = 500
"""Added to what Linux goes by when memory runs out, of 1,000: this process ends before the inspector, a proxy or an
editor does."""
MEMORY_SHARE = 0.5
"""Share of the machine's memory that the process may take. Chosen by judgement: a session of 300 MB takes 4 GB, and
whatever else runs keeps the other half."""
REPORT_SECONDS = 0.2
"""Seconds between two lines of progress. Chosen by judgement: a bar that moves five times a second looks steady."""
_EVENTS_OF_CHART = {
    "compaction": "compaction",
    "slide": "compaction",
    "history": "compaction",
    "prune": "decision",
    "spill": "decision",
}


def main() -> int:
    """Do the task on standard input, and return the exit code."""
    tasks = FileIO(0, closefd=False)
    task = get_decoder(ComparisonTask).decode(tasks.readline())
    Thread(target=_end_with_parent, args=(tasks,), daemon=True).start()
    writer = MessageWriter(os.fdopen(os.dup(1), "wb"))
    # Nothing else may write between the lines.
    sys.stdout = sys.stderr
    _step_back()
    memory_limit = _limit_memory()
    try:
        writer.write(ComparisonResult(compare_policies(task, writer)))
    except MemoryError:
        writer.write(ComparisonFailure(_describe_memory(memory_limit)))
    except (HoldfastError, OSError, UnicodeError) as error:
        writer.write(ComparisonFailure(str(error)))
    except Exception as error:  # noqa: BLE001 -- a fault of ours: the page says so in place of waiting
        writer.write(ComparisonFailure(_describe_fault(error)))
    return 0


def _end_with_parent(tasks: FileIO) -> None:
    """Wait until the process that started this one closes its end, for whatever reason, and end at once."""
    while tasks.read(1):
        pass
    os._exit(1)


def _step_back() -> None:
    with suppress(OSError, AttributeError):
        os.nice(NICENESS)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(OUT_OF_MEMORY_SCORE))


def _limit_memory() -> int:
    """Forbid the process to take more than its share of the memory; return the limit in bytes, 0 if there is none."""
    try:
        import resource

        limit = int(MEMORY_SHARE * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
        _, hard_limit = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard_limit))
    except (ImportError, AttributeError, OSError, ValueError):
        return 0
    return limit


def _describe_memory(limit: int) -> str:
    if not limit:
        return "there is not enough memory for this session; holdfast export it, and holdfast replay the file elsewhere"
    return (
        f"this session takes more than {limit / 1e9:.1f} GB to replay, {MEMORY_SHARE:.0%} of this machine's memory, "
        "which is as much as a comparison may take; holdfast export it, and holdfast replay the file"
    )


def _describe_fault(error: Exception) -> str:
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    where = "" if place is None else f" at {Path(place.tb_frame.f_code.co_filename).name}:{place.tb_lineno}"
    return f"the replay failed because of a fault in it ({type(error).__name__}{where}: {error}); please report it"


class MessageWriter:
    """Writes messages as lines; hears the progress of a replay."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self._policy = ""
        self._done = 0
        self._total = 0
        self._reported_at = 0.0
        self._policies: tuple[str, ...] = ()

    def write(self, message: WorkerMessage) -> None:
        """Write one message."""
        self._out.write(msgspec.json.encode(message) + b"\n")
        self._out.flush()

    def expect_policies(self, policies: tuple[str, ...]) -> None:
        """Say which policies are replayed, in this order."""
        self._policies = policies

    def begin_part(self, label: str, total: int) -> None:  # noqa: ARG002 -- the label is for a terminal
        """Begin the next policy, which makes ``total`` requests."""
        self._policy, *rest = self._policies
        self._policies = tuple(rest)
        # A policy that failed made fewer requests than the others.
        self._total = self._total or total * (1 + len(rest))
        self._done = self._total - total * (1 + len(rest))
        self._report()

    def advance(self) -> None:
        """Count one more request."""
        self._done += 1
        if time.monotonic() - self._reported_at >= REPORT_SECONDS:
            self._report()

    def _report(self) -> None:
        self._reported_at = time.monotonic()
        self.write(ComparisonProgress(self._policy, self._done, self._total))


def compare_policies(task: ComparisonTask, writer: MessageWriter) -> Comparison:
    """Replay the session of ``task`` through its policies.

    Raises ``HoldfastError`` if the session cannot be read, or no policy could be replayed.
    """
    question = task.question
    with open_store(task.location, readonly=True) as store:
        info = msgspec.structs.replace(store.get_session(question.session), leaf_id=question.leaf)
        recording = load_branch_recording(store, info)
    writer.expect_policies(question.policies)
    report = replay_recording(info.key, recording, make_replay_job(question), writer)
    return _make_comparison(report)


def _make_comparison(report: ReplayReport) -> Comparison:
    subject = report.subject
    return Comparison(
        window=subject.window,
        usable=subject.usable,
        setup_tokens=subject.setup_tokens,
        model=subject.model,
        api=subject.api,
        tokenizer=subject.tokenizer,
        steps=subject.steps,
        peak_tokens=subject.peak_tokens,
        problems=subject.problems,
        policies=tuple(_make_compared_policy(subject, row) for row in report.rows),
        failures=tuple(
            FailedPolicy(failure.policy, str(failure.error) or type(failure.error).__name__)
            for failure in report.failures
        ),
    )


def _make_compared_policy(subject: ReportSubject, row: PolicyRow) -> ComparedPolicy:
    # Through the JSON of the command, so that its figures and these cannot differ.
    figures = encode_policy_row(subject, row)
    # How many requests were refused in all: the command has them by reason.
    figures["refused_requests"] = row.figures.refused_requests
    # Those of the command, but for the recording's own problems, which stand once above the table.
    figures["notes"] = (*row.notes, *row.figures.notes)
    figures["sizes"] = msgspec.to_builtins(group_sizes([_get_size(point) for point in row.figures.points]))
    return convert_value(figures, ComparedPolicy)


def _get_size(point: RequestPoint) -> tuple[int, str]:
    return point.tokens, _EVENTS_OF_CHART.get(point.event, "")


if __name__ == "__main__":
    sys.exit(main())
