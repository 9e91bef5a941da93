"""Lanes and permits, on a fake clock that detects deadlocks."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from contextvars import Context

import anyio
import anyio.lowlevel
import pytest
from anyio import to_thread

from holdfast.engine.concurrency.lanes_and_permits import Lanes, Permits
from holdfast.errors import DeadlineExceeded, HoldfastError, LaneCleared, LaneClosed
from holdfast.testing.clock import run_on_fake_clock


def test_lanes_hold_runs_one_at_a_time_in_order_of_arrival():
    """FIFO: each holder begins when the one before it has ended, however long it takes."""
    steps = []

    async def scenario(lanes, number):
        async with lanes.hold("a"):
            steps.append(f"s{number}")
            await anyio.sleep(5 - number)
            steps.append(f"e{number}")

    async def main():
        lanes = Lanes()
        async with anyio.create_task_group() as group:
            for number in range(3):
                group.start_soon(scenario, lanes, number)
        return lanes.is_idle

    assert run_on_fake_clock(main)
    assert steps == ["s0", "e0", "s1", "e1", "s2", "e2"]


def test_lanes_hold_does_not_block_other_keys():
    """A lane belongs to one branch: a compaction of one session delays no other."""

    async def main():
        lanes = Lanes()
        async with lanes.hold("a"), anyio.create_task_group() as group:
            started_at = anyio.current_time()
            for number in range(3):
                group.start_soon(sleep_in_lane, lanes, f"b{number}")
        return anyio.current_time() - started_at

    assert run_on_fake_clock(main) == 1


async def sleep_in_lane(lanes, key, seconds=1):
    async with lanes.hold(key):
        await anyio.sleep(seconds)


def test_lanes_hold_can_be_re_entered_by_its_holder():
    """Re-entry is immediate in the same task, in a child task, and in a worker thread that calls back."""

    async def main():
        lanes, entered = Lanes(), []

        async def enter(name):
            async with lanes.hold("a"):
                entered.append(name)

        async with lanes.hold("a"):
            await enter("same")
            async with anyio.create_task_group() as group:
                group.start_soon(enter, "child")
            await to_thread.run_sync(anyio.from_thread.run, enter, "thread")
        return entered, lanes.is_idle

    assert run_on_fake_clock(main) == (["same", "child", "thread"], True)


@pytest.mark.parametrize(("permit_count", "seconds"), [(1, 4), (2, 2), (4, 1)])
def test_permits_hold_limits_the_children_of_a_holder(permit_count, seconds):
    """Children of a holder run as many at once as there are permits, in order; tasks outside wait for all of them."""
    steps = []

    async def hold_twice(permits, number):
        async with permits.hold():
            steps.append(f"s{number}")
            await anyio.sleep(1)
            async with permits.hold():  # further in
                steps.append(f"e{number}")

    async def main():
        permits = Permits(permit_count)
        async with anyio.create_task_group() as group:
            async with permits.hold():
                started_at = anyio.current_time()
                async with anyio.create_task_group() as children:
                    for number in range(4):
                        children.start_soon(hold_twice, permits, number)
                elapsed = anyio.current_time() - started_at
            group.start_soon(hold_twice, permits, 9)
        return elapsed, permits.is_idle

    assert run_on_fake_clock(main) == (seconds, True)
    assert [step for step in steps if step.startswith("s")] == ["s0", "s1", "s2", "s3", "s9"]
    assert {*steps[: 2 * permit_count]} == {f"{sign}{number}" for sign in "se" for number in range(permit_count)}


def test_lanes_waiters_inside_a_hold_can_be_cleared_or_time_out():
    """Clearing and deadlines reach waiting children of a holder, and the lane is free afterwards."""
    outcomes = []

    async def hold_or_fail(lanes, deadline=None):
        try:
            async with lanes.hold("a", deadline=deadline):
                await anyio.sleep(5)
        except (LaneCleared, DeadlineExceeded) as error:
            outcomes.append(type(error).__name__)

    async def main():
        lanes = Lanes()
        async with lanes.hold("a"), anyio.create_task_group() as group:
            for deadline in (None, 1, None, None):
                group.start_soon(hold_or_fail, lanes, deadline)
            await anyio.sleep(2)
            outcomes.append(lanes.turn_away_waiting("a"))
        return lanes.is_idle, outcomes

    assert run_on_fake_clock(main) == (True, ["DeadlineExceeded", 2, "LaneCleared", "LaneCleared"])


def test_lanes_child_that_outlives_its_parent_keeps_the_lane():
    """No other task gets in while a child is inside, whoever came first."""
    steps = []

    async def child(lanes, started):
        async with lanes.hold("a"):
            started.set()
            await anyio.sleep(10)
            steps.append("child")

    async def stranger(lanes):
        async with lanes.hold("a"):
            steps.append("stranger")

    async def main():
        lanes, started = Lanes(), anyio.Event()
        async with anyio.create_task_group() as group:
            group.start_soon(stranger_later, lanes, group)
            async with lanes.hold("a"):
                group.start_soon(child, lanes, started)
                await started.wait()
            steps.append("parent left")
        return lanes.is_idle

    async def stranger_later(lanes, group):
        await anyio.sleep(1)
        await stranger(lanes)

    assert run_on_fake_clock(main)
    assert steps == ["parent left", "child", "stranger"]


def test_lanes_re_entry_ends_with_the_hold_that_allowed_it():
    """A task started inside a hold that has ended waits like any other."""
    steps = []

    async def child(lanes):
        await anyio.sleep(5)
        async with lanes.hold("a"):
            steps.append("child")

    async def main():
        lanes = Lanes()
        async with anyio.create_task_group() as group:
            async with lanes.hold("a"):
                group.start_soon(child, lanes)
            async with lanes.hold("a"):
                await anyio.sleep(9)
                steps.append("second")

    run_on_fake_clock(main)
    assert steps == ["second", "child"]


def test_lanes_can_be_released_in_any_order():
    """Leaving the outer lane first takes nothing from the inner one, which can still be re-entered."""

    async def main():
        lanes = Lanes()
        outer, inner = AsyncExitStack(), AsyncExitStack()
        await outer.enter_async_context(lanes.hold("a"))
        await inner.enter_async_context(lanes.hold("b"))
        inner_first = outer.pop_all()
        async with lanes.hold("b"), lanes.hold("a"):
            pass
        await inner.aclose()
        async with lanes.hold("a"):
            pass
        await inner_first.aclose()
        return lanes.is_idle

    assert run_on_fake_clock(main)


def test_lanes_hold_frees_the_lane_after_an_error():
    """The exception passes through unchanged, and the next holder runs."""

    async def main():
        lanes = Lanes()
        with pytest.raises(ZeroDivisionError):
            async with lanes.hold("a"):
                1 / 0  # noqa: B018
        async with lanes.hold("a"):
            return "fine"

    assert run_on_fake_clock(main) == "fine"


@pytest.mark.parametrize("state", ["inside", "waiting"])
def test_lanes_hold_frees_the_lane_after_a_cancellation(state):
    """Whether the cancelled task ran or waited, those behind it get in and those before it go on."""

    async def main():
        lanes, entered_at = Lanes(), []
        async with anyio.create_task_group() as group:
            group.start_soon(sleep_in_lane, lanes, "a", 3)
            await anyio.sleep(1)
            with anyio.move_on_after(1 if state == "waiting" else 5):
                await sleep_in_lane(lanes, "a", 100)
            async with lanes.hold("a"):
                entered_at.append(anyio.current_time())
        return entered_at, lanes.is_idle

    assert run_on_fake_clock(main) == ([3 if state == "waiting" else 6], True)


def test_lanes_waiter_cancelled_at_its_turn_passes_it_on():
    """A task cancelled at the moment its turn comes gives the turn to the next one."""

    async def main():
        lanes, entered = Lanes(), []

        async def scenario(name):
            async with lanes.hold("a"):
                entered.append(name)

        outer = lanes.hold("a")
        await outer.__aenter__()
        second, third = (asyncio.create_task(scenario(name), context=Context()) for name in ("second", "third"))
        await anyio.sleep(1)
        await outer.__aexit__(None, None, None)
        second.cancel()
        await asyncio.wait([second, third])
        return entered, second.cancelled(), lanes.is_idle

    assert run_on_fake_clock(main) == (["third"], True, True)


def test_turn_away_waiting_raises_lane_cleared_in_waiters():
    """The holder goes on, each waiter's error says how many were before it, and later tasks get in."""

    async def main():
        lanes, outcomes = Lanes(), []

        async def scenario(name):
            try:
                async with lanes.hold("a"):
                    await anyio.sleep(5)
                    outcomes.append(name)
            except LaneCleared as error:
                outcomes.append(str(error))

        async with anyio.create_task_group() as group:
            for name in ("first", "second", "third"):
                group.start_soon(scenario, name)
            await anyio.sleep(1)
            assert lanes.turn_away_waiting("a") == 2
            assert lanes.turn_away_waiting("nobody's") == 0
            group.start_soon(scenario, "fourth")
        return outcomes, lanes.is_idle

    outcomes, is_idle = run_on_fake_clock(main)
    assert is_idle
    assert [line.partition("while it ")[2] for line in outcomes[:2]] == [
        "waited behind 1; ask again",
        "waited behind 2; ask again",
    ]
    assert outcomes[2:] == ["first", "fourth"]


def test_turn_away_waiting_passes_on_a_turn_that_just_came():
    """Every counted waiter gets ``LaneCleared``, and its turn goes to the next task."""

    async def main():
        lanes, outcomes = Lanes(), []

        async def scenario(name):
            try:
                async with lanes.hold("a"):
                    outcomes.append(name)
            except LaneCleared:
                outcomes.append(f"{name} cleared")

        outer = lanes.hold("a")
        await outer.__aenter__()
        second = asyncio.create_task(scenario("second"), context=Context())
        await anyio.sleep(1)
        await outer.__aexit__(None, None, None)
        outcomes.append(lanes.turn_away_waiting("a"))
        await scenario("third")
        await second
        return outcomes, lanes.is_idle

    assert run_on_fake_clock(main) == ([1, "second cleared", "third"], True)


def test_lanes_drain_waits_for_accepted_work_and_refuses_new_work():
    """Waiting tasks still run, with the lanes that they need; new work gets ``LaneClosed``."""

    async def main():
        lanes, finished = Lanes(), []

        async def scenario(name):
            async with lanes.hold("a"):
                await anyio.sleep(5)
                async with lanes.hold("b"):
                    finished.append(name)

        async with anyio.create_task_group() as group:
            group.start_soon(scenario, "first")
            group.start_soon(scenario, "second")
            await anyio.sleep(1)
            group.start_soon(lanes.drain)
            await anyio.sleep(1)
            with pytest.raises(LaneClosed, match="'c' takes no new work"):
                async with lanes.hold("c"):
                    pass
            await lanes.drain()
            return finished, anyio.current_time(), lanes.is_idle

    assert run_on_fake_clock(main) == (["first", "second"], 10, True)


def test_lanes_drain_inside_a_hold_does_not_wait_for_it():
    """A task that drains while it holds a lane waits for the others only."""

    async def main():
        lanes = Lanes()
        async with anyio.create_task_group() as group:
            group.start_soon(sleep_in_lane, lanes, "b", 4)
            await anyio.sleep(1)
            async with lanes.hold("a"):
                await lanes.drain()
                return anyio.current_time()

    assert run_on_fake_clock(main) == 4


def test_lanes_drain_raises_deadline_exceeded_with_the_lanes_in_use():
    """The error counts the lanes still in use; nothing is cancelled."""

    async def main():
        lanes = Lanes()
        async with anyio.create_task_group() as group:
            group.start_soon(sleep_in_lane, lanes, "a", 100)
            await anyio.sleep(1)
            with pytest.raises(DeadlineExceeded, match="1 lanes were still in use after 9 s"):
                await lanes.drain(deadline=9)
        return anyio.current_time()

    assert run_on_fake_clock(main) == 100


@pytest.mark.parametrize(
    ("busy", "works", "numbers"),
    [(0, 100, "0.0 s waiting behind 1 and 8.0 s running"), (3, 100, "3.0 s waiting behind 1 and 5.0 s running"),
     (50, 1, "8.0 s waiting behind 1 and 0.0 s running")],
)  # fmt: skip
def test_lanes_hold_deadline_covers_waiting_and_running(busy, works, numbers):
    """``DeadlineExceeded`` is a ``TimeoutError`` with both numbers, and the lane is free afterwards."""

    async def main():
        lanes = Lanes()
        async with anyio.create_task_group() as group:
            group.start_soon(sleep_in_lane, lanes, "a", busy)
            await anyio.lowlevel.checkpoint()
            with pytest.raises(TimeoutError) as caught:
                async with lanes.hold("a", deadline=8):
                    await anyio.sleep(works)
            late = anyio.current_time()
            async with lanes.hold("a"):
                pass
        return caught.value, late, lanes.is_idle

    error, late, is_idle = run_on_fake_clock(main)
    assert isinstance(error, DeadlineExceeded)
    assert numbers in str(error)
    assert late == 8
    assert is_idle


def test_lanes_hold_deadline_does_nothing_before_it_is_reached():
    """Work that ends in time is not affected by its deadline."""

    async def main():
        lanes = Lanes()
        async with lanes.hold("a", deadline=2):
            await anyio.sleep(1)
        return "fine"

    assert run_on_fake_clock(main) == "fine"


def test_lanes_hold_does_not_convert_a_cancel_scope_of_the_caller():
    """A cancel scope of the caller that ends is no ``DeadlineExceeded``."""

    async def main():
        lanes = Lanes()
        with anyio.move_on_after(1) as scope:
            async with lanes.hold("a", deadline=5):
                await anyio.sleep(9)
        return scope.cancelled_caught, lanes.is_idle

    assert run_on_fake_clock(main) == (True, True)


# -- permits -----------------------------------------------------------------------------------------------------------


def test_permits_allow_exactly_their_number_at_once():
    """Never more calls than permits run, and never fewer while others wait."""
    running, counts = 0, []

    async def call(permits):
        nonlocal running
        async with permits.hold():
            running += 1
            counts.append(running)
            await anyio.sleep(1)
            running -= 1

    async def main():
        permits = Permits(4)
        async with anyio.create_task_group() as group:
            for _ in range(12):
                group.start_soon(call, permits)
        return anyio.current_time(), permits.is_idle

    assert run_on_fake_clock(main) == (3, True)
    assert max(counts) == 4


def test_permits_hold_can_be_re_entered_by_its_holder():
    """With one permit a call can make another one (a summary, a subagent) without waiting for itself."""

    async def main():
        permits = Permits(1)
        async with permits.hold(), permits.hold(), anyio.create_task_group() as group:
            group.start_soon(sleep_with_permit, permits)
        return permits.is_idle

    assert run_on_fake_clock(main)


async def sleep_with_permit(permits):
    async with permits.hold():
        await anyio.sleep(1)


def test_lanes_and_permits_together_do_not_deadlock():
    """With the lane taken first and the permit last, all tasks end, even with every permit in other lanes."""

    async def scenario(lanes, permits, key):
        async with lanes.hold(key):
            await sleep_with_permit(permits)
            async with lanes.hold(key):
                await sleep_with_permit(permits)

    async def main():
        lanes, permits = Lanes(), Permits(2)
        async with anyio.create_task_group() as group:
            for number in range(12):
                group.start_soon(scenario, lanes, permits, f"k{number % 3}")
        return lanes.is_idle, permits.is_idle

    assert run_on_fake_clock(main) == (True, True)


def test_permits_hold_raises_when_no_call_ends_within_the_patience():
    """Only a standstill counts: as long as other calls end, a waiter goes on waiting."""

    async def main():
        permits = Permits(1, patience=10)
        async with anyio.create_task_group() as group:
            for _ in range(30):
                group.start_soon(sleep_with_permit, permits)
            await anyio.sleep(0.5)
            async with permits.hold():
                entered_at = anyio.current_time()
            group.start_soon(hold_permit_for_long, permits)
            await anyio.sleep(1)
            with pytest.raises(
                DeadlineExceeded, match=r"all 1 permits for model calls were in use for 10 s.*behind 1"
            ) as late:
                async with permits.hold():
                    pass
            assert isinstance(late.value, HoldfastError)
            assert anyio.current_time() == 41
        return entered_at, permits.is_idle

    async def hold_permit_for_long(permits):
        async with permits.hold():
            await anyio.sleep(100)

    assert run_on_fake_clock(main) == (30, True)


def test_permits_hold_passes_on_a_timeout_of_the_body():
    """An error of the call passes through unchanged."""

    async def main():
        permits = Permits(1)
        with pytest.raises(TimeoutError) as caught:
            async with permits.hold():
                raise TimeoutError("of the upstream")
        return str(caught.value), permits.is_idle

    assert run_on_fake_clock(main) == ("of the upstream", True)


def test_permits_rejects_a_number_below_one():
    """Without permits no call could ever run."""
    with pytest.raises(ValueError, match="at least 1"):
        Permits(0)
