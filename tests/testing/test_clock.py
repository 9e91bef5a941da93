"""The fake clock: time that costs nothing, threads that are waited for, and waits that nobody ends."""

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


def test_an_hour_costs_nothing():
    """A sleep is over at once, and the clock shows that it was slept."""

    async def patient():
        await anyio.sleep(3_600)
        return get_loop_time(), anyio.current_time()

    began = time.monotonic()
    assert run_on_fake_clock(patient) == (3_600, 3_600)
    assert time.monotonic() - began < 3_600


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=12))
def test_sleepers_wake_in_the_order_of_their_deadlines(naps):
    """Whatever the sleeps are, each ends at its own moment and none before a shorter one; the clock never goes back."""

    async def nap(seconds, woken):
        await anyio.sleep(seconds)
        woken.append((get_loop_time(), seconds))

    async def all_of_them():
        woken = []
        async with anyio.create_task_group() as group:
            for seconds in naps:
                group.start_soon(nap, seconds, woken)
        return woken

    woken = run_on_fake_clock(all_of_them)
    assert [seconds for _, seconds in woken] == pytest.approx(sorted(naps), abs=1e-6)
    assert all(at == pytest.approx(seconds, abs=1e-6) for at, seconds in woken)


def test_no_time_passes_while_a_thread_works():
    """A deadline of a moment does not overtake a thread that takes longer than a moment, in the backend's or an
    executor's."""

    async def work():
        with anyio.fail_after(0.01):
            await to_thread.run_sync(time.sleep, 0.1)
        in_backend = get_loop_time()
        async with asyncio.timeout(0.01):
            await asyncio.get_running_loop().run_in_executor(None, time.sleep, 0.1)
        return in_backend, get_loop_time()

    assert run_on_fake_clock(work) == (0, 0)


def test_a_thread_that_nobody_waits_for_any_more_still_holds_the_clock():
    """A call that was cancelled goes on in its thread: time stands until it is done, so that runs are alike."""

    done = []

    def work(begun):
        from_thread.run_sync(begun.set)
        time.sleep(0.05)
        done.append(1)

    async def give_up():
        begun = anyio.Event()
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: to_thread.run_sync(work, begun, abandon_on_cancel=True))
            await begun.wait()
            group.cancel_scope.cancel()
        await anyio.sleep(1)
        return list(done), get_loop_time()

    assert run_on_fake_clock(give_up) == ([1], 1)


def test_a_thread_may_sleep_on_the_loop():
    """What a thread asks of the loop goes on while the thread waits for it."""

    async def ask():
        await to_thread.run_sync(lambda: from_thread.run(asyncio.sleep, 0))
        return get_loop_time()

    assert run_on_fake_clock(ask) == 0


@pytest.mark.parametrize("output", [subprocess.PIPE, subprocess.DEVNULL])
def test_a_child_process_takes_real_time(output):
    """While a process is watched the clock goes as the one outside, so that its time limit means something.

    That is so where nothing of it is read too: then it is a thread alone that waits for its end.
    """

    async def child():
        await anyio.run_process(["sleep", "0.3"], stdout=output, stderr=output)
        return get_loop_time()

    assert 0.01 < run_on_fake_clock(child) < 30


def test_a_deadlock_is_told():
    """Tasks that wait for each other raise at once, and the error names their places; a shield does not hide it."""

    async def wait(event, *, shield):
        with anyio.CancelScope(shield=shield):
            await event.wait()

    async def stuck(shield):
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: wait(anyio.Event(), shield=shield))
            await anyio.sleep_forever()

    for shield in (False, True):
        with pytest.raises(Deadlock, match=r"2 tasks wait, .*test_clock\.py:\d+"):
            run_on_fake_clock(stuck, shield)


def test_a_timer_that_never_comes_wakes_nobody():
    """A sleep without end is a deadlock, not a clock that runs for ever."""
    with pytest.raises(Deadlock):
        run_on_fake_clock(anyio.sleep, inf)


def test_a_wait_with_a_deadline_is_no_deadlock():
    """What has a deadline ends at it."""

    async def patient():
        with anyio.move_on_after(180):
            await anyio.sleep_forever()
        return get_loop_time()

    assert run_on_fake_clock(patient) == 180


def test_a_clock_goes_on():
    """A second run begins where the first one ended, or where the clock was put; it can be read from outside."""
    clock = FakeClock(100)
    clock.run(anyio.sleep, 20)
    assert clock() == 120
    clock.advance(300)
    clock.advance(-5)

    async def look():
        return get_loop_time(), await to_thread.run_sync(clock)

    assert clock.run(look) == (420, 420)


def test_what_is_raised_comes_out():
    """An error of the function is the caller's."""

    async def broken():
        await anyio.sleep(9)
        raise ValueError("nine")

    with pytest.raises(ValueError, match="nine"):
        run_on_fake_clock(broken)
