"""The tracker of compactions in flight: its counts, waiters, closing and deadlines, on a fake clock."""

from __future__ import annotations

from contextlib import asynccontextmanager

import anyio
import pytest
from anyio.lowlevel import checkpoint
from hypothesis import given
from hypothesis import strategies as st

from holdfast import Policy
from holdfast.config import get_target
from holdfast.engine.compaction.inflight import (
    CompactionStatus,
    CompactionTracker,
    end_compaction,
    extend_deadline,
    is_compaction_timeout,
    settle_retry,
    start_compaction,
)
from holdfast.engine.engine import Engine
from holdfast.errors import DeadlineExceeded, OperationAborted
from holdfast.events import COMPACTION_OUTCOMES
from holdfast.store.memory import MemoryStore
from holdfast.testing.clock import run_on_fake_clock

ENDS = st.tuples(st.just("end"), st.sampled_from(COMPACTION_OUTCOMES), st.booleans())
MOVES = st.lists(st.sampled_from([("start",), ("settled",)]) | ENDS)


def apply_move(status, move):
    """Return the status after one move."""
    if move[0] == "start":
        return start_compaction(status)
    return settle_retry(status) if move[0] == "settled" else end_compaction(status, move[1], will_retry=move[2])


@given(MOVES)
def test_compaction_status_counts_each_compaction_and_retry_once(moves):
    """Only committed compactions count, and the status is idle after as many settled runs as retries."""
    status, completed, in_flight = CompactionStatus(), 0, False
    for move in moves:
        completed += move[:2] == ("end", "compacted") and in_flight
        in_flight = move[0] == "start" or (in_flight and move[0] != "end")
        status = apply_move(status, move)
        assert status.completed_count == completed
        assert status.in_flight == in_flight
        assert status.pending_retries >= 0
    status = end_compaction(status, "cancelled")
    for _ in range(status.pending_retries):
        assert status.is_busy
        status = settle_retry(status)
    assert not status.is_busy


async def call_after(seconds, function, *args, **kwargs):
    await anyio.sleep(seconds)
    function(*args, **kwargs)


async def wait_and_time(tracker, **options):
    """Wait for the tracker; return the time of the end and the result."""
    settled = await tracker.wait(**options)
    return anyio.current_time(), settled


def test_tracker_wait_ends_with_a_compaction_without_retry():
    """Without a retry, ``wait`` returns when the compaction ends."""

    async def main():
        tracker = CompactionTracker()
        async with anyio.create_task_group() as group:
            tracker.start()
            group.start_soon(lambda: call_after(5, tracker.end, "compacted"))
            return await wait_and_time(tracker)

    assert run_on_fake_clock(main) == (5, True)


def test_tracker_wait_ends_with_the_last_pending_retry():
    """A run is not done while its retry is pending, also after an aborted or empty compaction."""

    async def main():
        tracker = CompactionTracker()
        async with anyio.create_task_group() as group:
            tracker.start()
            group.start_soon(lambda: call_after(5, tracker.end, "timed_out", will_retry=True))
            group.start_soon(lambda: call_after(9, tracker.start))
            group.start_soon(lambda: call_after(12, tracker.end, "compacted", will_retry=True))
            group.start_soon(lambda: call_after(20, tracker.settle_run))
            group.start_soon(lambda: call_after(30, tracker.settle_run))
            return *await wait_and_time(tracker), tracker.status.completed_count

    assert run_on_fake_clock(main) == (30, True, 1)


def test_tracker_wait_sees_a_compaction_that_starts_in_the_same_tick():
    """An idle wait checks again at the next checkpoint before it returns."""

    async def main():
        tracker = CompactionTracker()
        assert await wait_and_time(tracker) == (0, True)
        async with anyio.create_task_group() as group:

            async def start_and_end():
                tracker.start()
                await call_after(3, tracker.end, "compacted")

            group.start_soon(start_and_end)
            return await wait_and_time(tracker)

    assert run_on_fake_clock(main) == (3, True)


def test_tracker_wait_covers_a_compaction_that_starts_as_another_ends():
    """A woken waiter checks the status again before it returns."""

    async def main():
        tracker = CompactionTracker()
        tracker.start()
        async with anyio.create_task_group() as group:

            async def start_second():
                await anyio.sleep(2)
                tracker.end("compacted")
                tracker.start()
                await call_after(2, tracker.end, "compacted")

            group.start_soon(start_second)
            return await wait_and_time(tracker)

    assert run_on_fake_clock(main) == (4, True)


def test_tracker_close_aborts_the_compaction_once_and_rejects_waiters():
    """The status is closed first, then the call is aborted; later waits and starts are refused too."""
    steps = []

    async def wait_until_closed(tracker):
        with pytest.raises(OperationAborted, match="closed while"):
            await tracker.wait()
        steps.append("turned away")

    async def main():
        tracker = CompactionTracker()
        tracker.start(lambda: steps.append(f"aborted, over: {tracker.status.is_closed}"))
        async with anyio.create_task_group() as group:
            group.start_soon(wait_until_closed, tracker)
            group.start_soon(wait_until_closed, tracker)
            await anyio.sleep(1)
            tracker.close()
            tracker.close()
        tracker.end("cancelled")
        await wait_until_closed(tracker)
        with pytest.raises(OperationAborted, match="no compaction can start"):
            tracker.start()
        return tracker.status.completed_count

    assert run_on_fake_clock(main) == 0
    assert steps == ["aborted, over: True", *["turned away"] * 3]


def test_tracker_close_does_not_abort_an_ended_compaction():
    """Nothing is in flight after the end, so ``close`` calls no abort."""

    async def main():
        tracker = CompactionTracker()
        tracker.start(lambda: pytest.fail("nothing runs"))
        tracker.end("compacted")
        tracker.close()

    run_on_fake_clock(main)


def test_tracker_wait_gives_up_on_a_lost_retry():
    """The wait goes on while a compaction is in flight, and returns False after a limit without any change."""

    async def main():
        tracker = CompactionTracker()
        async with anyio.create_task_group() as group:
            tracker.start()
            group.start_soon(lambda: call_after(130, tracker.end, "compacted", will_retry=True))
            lost = await wait_and_time(tracker)
            return lost, await wait_and_time(tracker), tracker.status.is_busy

    assert run_on_fake_clock(main) == ((190, False), (190, True), False)


@pytest.mark.parametrize(
    ("timed_out", "pending", "in_flight", "expected"),
    [(True, False, True, True), (True, True, False, True), (True, False, False, False), (False, True, True, False)],
)
def test_is_compaction_timeout_needs_a_pending_or_running_compaction(timed_out, pending, in_flight, expected):
    """A timeout counts as the compaction's when one was pending or in flight."""
    assert is_compaction_timeout(timed_out=timed_out, pending=pending, in_flight=in_flight) is expected


def test_extend_deadline_extends_only_once():
    """The deadline is later when a compaction is in flight, and an extension is neither repeated nor taken back."""
    assert extend_deadline(100, 30, 50, busy=False) == 100
    assert extend_deadline(100, 30, 50, busy=True) == 130
    assert extend_deadline(100, 30, 110, busy=False) == 130
    assert extend_deadline(100, 30, 130, busy=True) == 130


async def run_under_deadline(tracker, compactions, seconds=100.0):
    """Sleep under a deadline while compactions run; return when it was stopped and whether the error names one."""
    async with anyio.create_task_group() as group:
        for begin, end in compactions:
            group.start_soon(lambda begin=begin: call_after(begin, tracker.start))
            group.start_soon(lambda end=end: call_after(end, tracker.end, "compacted"))
        await checkpoint()
        await checkpoint()
        with pytest.raises(DeadlineExceeded) as caught, tracker.limit_run(seconds, extra=30):
            await anyio.sleep(1_000)
        stopped = anyio.current_time()
        group.cancel_scope.cancel()
    return stopped, "during a compaction" in str(caught.value)


@pytest.mark.parametrize(
    ("compactions", "stopped", "is_during_compaction"),
    [
        ([], 100, False),
        ([(0, 500)], 130, True),
        ([(0, 50)], 100, False),
        ([(10, 40)], 100, False),
        ([(90, 110)], 130, False),
        ([(90, 500)], 130, True),
        ([(90, 110), (120, 500)], 130, True),
        ([(10, 40), (90, 110)], 130, False),
    ],
)
def test_limit_run_is_extended_once_by_a_compaction_in_flight(compactions, stopped, is_during_compaction):
    """Only a compaction in flight at the deadline extends it, once and by the agreed time."""
    assert run_on_fake_clock(run_under_deadline, CompactionTracker(), compactions) == (stopped, is_during_compaction)


def test_limit_run_does_nothing_to_a_run_that_ends_in_time():
    """Nothing is cancelled, and an error of the block passes through."""

    async def main():
        tracker = CompactionTracker()
        with tracker.limit_run(5, 30):
            await anyio.sleep(1)
        with pytest.raises(ZeroDivisionError), tracker.limit_run(5, 30):
            raise ZeroDivisionError
        tracker.start()
        await anyio.sleep(50)
        return "fine"

    assert run_on_fake_clock(main) == "fine"


@pytest.mark.parametrize("seconds", [7, 400])
def test_ask_deadline_is_extended_by_the_summary_timeout(seconds):
    """A compaction extends the deadline of ``ask`` by the policy's ``summarizer.timeout_seconds``."""

    class SilentUpstream:
        @asynccontextmanager
        async def send(self, _call):
            await anyio.sleep(10_000)
            yield

    async def main():
        target = get_target("anthropic", "claude-sonnet-4-5", window=64_000)
        policy = Policy().with_settings(summarizer={"timeout_seconds": seconds})
        async with Engine.open(
            MemoryStore(), upstream=SilentUpstream(), target=target, policy=policy, fields={"max_tokens": 100}
        ) as engine:
            session = await engine.session("k")
            session.compaction_tracker.start()
            started_at = anyio.current_time()
            with pytest.raises(DeadlineExceeded):
                await session.ask("hello", deadline=50)
            return anyio.current_time() - started_at

    assert run_on_fake_clock(main) == pytest.approx(50 + seconds)
