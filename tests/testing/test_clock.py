"""The fake clock: sleeps without waiting, threads and processes, and deadlocks."""

from __future__ import annotations

import asyncio
import subprocess
import time
from math import inf

import anyio
import pytest
from anyio import from_thread, to_thread
from hypothesis import given
from hypothesis import strategies as st

from holdfast.testing.clock import Deadlock, FakeClock, get_loop_time, run_on_fake_clock


def test_fake_clock_skips_sleeps():
    """A sleep ends at once, and the clock shows its time."""

    async def sleep_an_hour():
        await anyio.sleep(3_600)
        return get_loop_time(), anyio.current_time()

    started_at = time.monotonic()
    assert run_on_fake_clock(sleep_an_hour) == (3_600, 3_600)
    assert time.monotonic() - started_at < 3_600


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=12))
def test_fake_clock_wakes_sleepers_in_order(durations):
    """Each sleep ends at its own time, none before a shorter one, and the clock never goes back."""

    async def sleep(seconds, wake_times):
        await anyio.sleep(seconds)
        wake_times.append((get_loop_time(), seconds))

    async def sleep_all():
        wake_times = []
        async with anyio.create_task_group() as group:
            for seconds in durations:
                group.start_soon(sleep, seconds, wake_times)
        return wake_times

    wake_times = run_on_fake_clock(sleep_all)
    assert [seconds for _, seconds in wake_times] == pytest.approx(sorted(durations), abs=1e-6)
    assert all(at == pytest.approx(seconds, abs=1e-6) for at, seconds in wake_times)


def test_fake_clock_stands_still_while_a_thread_works():
    """A short deadline does not expire while a thread of the backend or of an executor takes longer."""

    async def scenario():
        with anyio.fail_after(0.01):
            await to_thread.run_sync(time.sleep, 0.1)
        in_backend = get_loop_time()
        async with asyncio.timeout(0.01):
            await asyncio.get_running_loop().run_in_executor(None, time.sleep, 0.1)
        return in_backend, get_loop_time()

    assert run_on_fake_clock(scenario) == (0, 0)


def test_fake_clock_waits_for_an_abandoned_thread():
    """A cancelled call goes on in its thread, and the clock stands still until then, so that runs are reproducible."""

    results = []

    def scenario(has_begun):
        from_thread.run_sync(has_begun.set)
        time.sleep(0.05)
        results.append(1)

    async def give_up():
        has_begun = anyio.Event()
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: to_thread.run_sync(scenario, has_begun, abandon_on_cancel=True))
            await has_begun.wait()
            group.cancel_scope.cancel()
        await anyio.sleep(1)
        return list(results), get_loop_time()

    assert run_on_fake_clock(give_up) == ([1], 1)


def test_fake_clock_lets_a_thread_sleep_on_the_loop():
    """A call of a thread into the loop runs while the thread waits for it."""

    async def ask():
        await to_thread.run_sync(lambda: from_thread.run(asyncio.sleep, 0))
        return get_loop_time()

    assert run_on_fake_clock(ask) == 0


@pytest.mark.parametrize("output", [subprocess.PIPE, subprocess.DEVNULL])
def test_fake_clock_follows_real_time_during_a_child_process(output):
    """While a process runs the clock follows real time, so that its time limit works.

    This holds also when no output is read and only a thread waits for its end.
    """

    async def run_child():
        await anyio.run_process(["sleep", "0.3"], stdout=output, stderr=output)
        return get_loop_time()

    assert 0.01 < run_on_fake_clock(run_child) < 30


def test_fake_clock_raises_on_a_deadlock():
    """Tasks that wait for each other raise at once with their places, and a shield does not hide it."""

    async def wait(event, *, shield):
        with anyio.CancelScope(shield=shield):
            await event.wait()

    async def wait_for_ever(shield):
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: wait(anyio.Event(), shield=shield))
            await anyio.sleep_forever()

    for shield in (False, True):
        with pytest.raises(Deadlock, match=r"2 tasks wait, .*test_clock\.py:\d+"):
            run_on_fake_clock(wait_for_ever, shield)


def test_fake_clock_treats_an_endless_sleep_as_a_deadlock():
    """The clock does not run for ever."""
    with pytest.raises(Deadlock):
        run_on_fake_clock(anyio.sleep, inf)


def test_fake_clock_ends_a_wait_at_its_deadline():
    """A wait with a deadline is no deadlock."""

    async def wait_with_deadline():
        with anyio.move_on_after(180):
            await anyio.sleep_forever()
        return get_loop_time()

    assert run_on_fake_clock(wait_with_deadline) == 180


def test_fake_clock_continues_in_a_second_run():
    """The second run begins where the first one ended or where the clock was set, and the time can be read outside."""
    clock = FakeClock(100)
    clock.run(anyio.sleep, 20)
    assert clock() == 120
    clock.advance(300)
    clock.advance(-5)

    async def read_clock():
        return get_loop_time(), await to_thread.run_sync(clock)

    assert clock.run(read_clock) == (420, 420)


def test_fake_clock_run_raises_the_error_of_its_function():
    """The caller gets the same exception."""

    async def raise_later():
        await anyio.sleep(9)
        raise ValueError("nine")

    with pytest.raises(ValueError, match="nine"):
        run_on_fake_clock(raise_later)
