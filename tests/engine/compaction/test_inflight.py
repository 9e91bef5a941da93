"""Compaction in flight: who waits for what, on a clock that costs nothing."""

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


def moved(flight, move):
    """Return the state after one move."""
    if move[0] == "start":
        return start_compaction(flight)
    return settle_retry(flight) if move[0] == "settled" else end_compaction(flight, move[1], will_retry=move[2])


@given(MOVES)
def test_whatever_comes_the_counts_are_true(moves):
    """Only real compactions count, none twice, and as many runs' ends as anything awaits make it idle."""
    flight, real, flying = CompactionStatus(), 0, False
    for move in moves:
        real += move[:2] == ("end", "compacted") and flying
        flying = move[0] == "start" or (flying and move[0] != "end")
        flight = moved(flight, move)
        assert flight.completed_count == real
        assert flight.in_flight == flying
        assert flight.pending_retries >= 0
    flight = end_compaction(flight, "cancelled")
    for _ in range(flight.pending_retries):
        assert flight.is_busy
        flight = settle_retry(flight)
    assert not flight.is_busy


async def _after(seconds, act, *args, **more):
    await anyio.sleep(seconds)
    act(*args, **more)


async def _waited(flying, **more):
    """Return when a wait ended, and with what."""
    settled = await flying.wait(**more)
    return anyio.current_time(), settled


def test_without_a_retry_the_end_of_the_compaction_is_the_end():
    """``wait`` returns when the compaction ends."""

    async def main():
        flying = CompactionTracker()
        async with anyio.create_task_group() as group:
            flying.start()
            group.start_soon(lambda: _after(5, flying.end, "compacted"))
            return await _waited(flying)

    assert run_on_fake_clock(main) == (5, True)


def test_with_a_retry_its_end_is_the_end():
    """A run never reports done while its retry is pending; an aborted or empty compaction is awaited all the same."""

    async def main():
        flying = CompactionTracker()
        async with anyio.create_task_group() as group:
            flying.start()
            group.start_soon(lambda: _after(5, flying.end, "timed_out", will_retry=True))
            group.start_soon(lambda: _after(9, flying.start))
            group.start_soon(lambda: _after(12, flying.end, "compacted", will_retry=True))
            group.start_soon(lambda: _after(20, flying.settle_run))
            group.start_soon(lambda: _after(30, flying.settle_run))
            return *await _waited(flying), flying.status.completed_count

    assert run_on_fake_clock(main) == (30, True, 1)


def test_an_idle_one_is_looked_at_again():
    """What starts in the same tick is still seen: an idle wait returns at the next checkpoint, after another look."""

    async def main():
        flying = CompactionTracker()
        assert await _waited(flying) == (0, True)
        async with anyio.create_task_group() as group:

            async def starts():
                flying.start()
                await _after(3, flying.end, "compacted")

            group.start_soon(starts)
            return await _waited(flying)

    assert run_on_fake_clock(main) == (3, True)


def test_one_that_starts_as_another_ends_is_waited_for():
    """Who wakes looks again before it returns."""

    async def main():
        flying = CompactionTracker()
        flying.start()
        async with anyio.create_task_group() as group:

            async def again():
                await anyio.sleep(2)
                flying.end("compacted")
                flying.start()
                await _after(2, flying.end, "compacted")

            group.start_soon(again)
            return await _waited(flying)

    assert run_on_fake_clock(main) == (4, True)


def test_closing_turns_waiters_away_and_aborts_once():
    """The flag first, then the waiters, then the call; who comes later is turned away too; nothing starts any more."""
    told = []

    async def waits(flying):
        with pytest.raises(OperationAborted, match="closed while"):
            await flying.wait()
        told.append("turned away")

    async def main():
        flying = CompactionTracker()
        flying.start(lambda: told.append(f"aborted, over: {flying.status.is_closed}"))
        async with anyio.create_task_group() as group:
            group.start_soon(waits, flying)
            group.start_soon(waits, flying)
            await anyio.sleep(1)
            flying.close()
            flying.close()
        flying.end("cancelled")
        await waits(flying)
        with pytest.raises(OperationAborted, match="no compaction can start"):
            flying.start()
        return flying.status.completed_count

    assert run_on_fake_clock(main) == 0
    assert told == ["aborted, over: True", *["turned away"] * 3]


def test_what_has_ended_is_not_aborted():
    """The one abort path has nothing to do where nothing runs."""

    async def main():
        flying = CompactionTracker()
        flying.start(lambda: pytest.fail("nothing runs"))
        flying.end("compacted")
        flying.close()

    run_on_fake_clock(main)


def test_a_lost_retry_holds_nobody_for_ever():
    """A window goes on while a compaction is really in flight; after one in which nothing came, the wait says so."""

    async def main():
        flying = CompactionTracker()
        async with anyio.create_task_group() as group:
            flying.start()
            group.start_soon(lambda: _after(130, flying.end, "compacted", will_retry=True))
            lost = await _waited(flying)
            return lost, await _waited(flying), flying.status.is_busy

    assert run_on_fake_clock(main) == ((190, False), (190, True), False)


@pytest.mark.parametrize(
    ("timed_out", "pending", "in_flight", "flagged"),
    [(True, False, True, True), (True, True, False, True), (True, False, False, False), (False, True, True, False)],
)
def test_which_timeouts_are_the_compactions(timed_out, pending, in_flight, flagged):
    """It timed out, and one was pending or in flight."""
    assert is_compaction_timeout(timed_out=timed_out, pending=pending, in_flight=in_flight) is flagged


def test_when_a_run_ends():
    """At its deadline; later where a compaction is under way then; what was given stays, and is not given twice."""
    assert extend_deadline(100, 30, 50, busy=False) == 100
    assert extend_deadline(100, 30, 50, busy=True) == 130
    assert extend_deadline(100, 30, 110, busy=False) == 130
    assert extend_deadline(100, 30, 130, busy=True) == 130


async def _run(flying, compactions, seconds=100.0):
    """Run something endless under a deadline, with compactions from here to there; return when it was stopped."""
    async with anyio.create_task_group() as group:
        for begin, end in compactions:
            group.start_soon(lambda begin=begin: _after(begin, flying.start))
            group.start_soon(lambda end=end: _after(end, flying.end, "compacted"))
        await checkpoint()
        await checkpoint()
        with pytest.raises(DeadlineExceeded) as caught, flying.limit_run(seconds, extra=30):
            await anyio.sleep(1_000)
        stopped = anyio.current_time()
        group.cancel_scope.cancel()
    return stopped, "during a compaction" in str(caught.value)


@pytest.mark.parametrize(
    ("compactions", "stopped", "during"),
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
def test_a_compaction_extends_a_run_once(compactions, stopped, during):
    """Only one that is in flight at the deadline, only once, and by no more than was agreed."""
    assert run_on_fake_clock(_run, CompactionTracker(), compactions) == (stopped, during)


def test_a_run_that_ends_in_time_has_no_deadline():
    """Nothing is cancelled, and an error of the block passes through."""

    async def main():
        flying = CompactionTracker()
        with flying.limit_run(5, 30):
            await anyio.sleep(1)
        with pytest.raises(ZeroDivisionError), flying.limit_run(5, 30):
            raise ZeroDivisionError
        flying.start()
        await anyio.sleep(50)
        return "fine"

    assert run_on_fake_clock(main) == "fine"


@pytest.mark.parametrize("seconds", [7, 400])
def test_a_compaction_gives_a_question_as_long_as_a_summary_may_take(seconds):
    """What extends the deadline of ``ask`` is the policy's ``summarizer.timeout_seconds``, whatever that is."""

    class Silent:
        @asynccontextmanager
        async def send(self, _call):
            await anyio.sleep(10_000)
            yield

    async def main():
        place = get_target("anthropic", "claude-sonnet-4-5", window=64_000)
        policy = Policy().with_settings(summarizer={"timeout_seconds": seconds})
        async with Engine.open(
            MemoryStore(), upstream=Silent(), target=place, policy=policy, fields={"max_tokens": 100}
        ) as engine:
            session = await engine.session("k")
            session.compaction_tracker.start()
            began = anyio.current_time()
            with pytest.raises(DeadlineExceeded):
                await session.ask("hello", deadline=50)
            return anyio.current_time() - began

    assert run_on_fake_clock(main) == pytest.approx(50 + seconds)
