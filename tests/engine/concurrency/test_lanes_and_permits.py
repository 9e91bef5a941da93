"""Lanes and permits, on a clock that costs nothing and that finds deadlocks."""

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


def test_one_at_a_time_in_the_order_of_arrival():
    """FIFO: each begins when the one before it has ended, however long it takes."""
    told = []

    async def work(lanes, number):
        async with lanes.hold("a"):
            told.append(f"s{number}")
            await anyio.sleep(5 - number)
            told.append(f"e{number}")

    async def main():
        lanes = Lanes()
        async with anyio.create_task_group() as group:
            for number in range(3):
                group.start_soon(work, lanes, number)
        return lanes.is_idle

    assert run_on_fake_clock(main)
    assert told == ["s0", "e0", "s1", "e1", "s2", "e2"]


def test_other_keys_do_not_wait():
    """A lane is a branch's own: a compaction of one session delays no other."""

    async def main():
        lanes = Lanes()
        async with lanes.hold("a"), anyio.create_task_group() as group:
            began = anyio.current_time()
            for number in range(3):
                group.start_soon(_sleeping, lanes, f"b{number}")
        return anyio.current_time() - began

    assert run_on_fake_clock(main) == 1


async def _sleeping(lanes, key, seconds=1):
    async with lanes.hold(key):
        await anyio.sleep(seconds)


def test_who_holds_a_lane_goes_in_again_at_once():
    """Re-entry runs inline: in the same task, in a child of it, and in a worker thread that calls back."""

    async def main():
        lanes, told = Lanes(), []

        async def inside(name):
            async with lanes.hold("a"):
                told.append(name)

        async with lanes.hold("a"):
            await inside("same")
            async with anyio.create_task_group() as group:
                group.start_soon(inside, "child")
            await to_thread.run_sync(anyio.from_thread.run, inside, "thread")
        return told, lanes.is_idle

    assert run_on_fake_clock(main) == (["same", "child", "thread"], True)


@pytest.mark.parametrize(("permits", "seconds"), [(1, 4), (2, 2), (4, 1)])
def test_of_those_inside_as_many_are_at_once_as_elsewhere(permits, seconds):
    """What a holder starts goes in by the same number, in order; those outside wait for all of it."""
    told = []

    async def inside(gates, number):
        async with gates.hold():
            told.append(f"s{number}")
            await anyio.sleep(1)
            async with gates.hold():  # further in
                told.append(f"e{number}")

    async def main():
        gates = Permits(permits)
        async with anyio.create_task_group() as group:
            async with gates.hold():
                began = anyio.current_time()
                async with anyio.create_task_group() as children:
                    for number in range(4):
                        children.start_soon(inside, gates, number)
                took = anyio.current_time() - began
            group.start_soon(inside, gates, 9)
        return took, gates.is_idle

    assert run_on_fake_clock(main) == (seconds, True)
    assert [one for one in told if one.startswith("s")] == ["s0", "s1", "s2", "s3", "s9"]
    assert {*told[: 2 * permits]} == {f"{sign}{number}" for sign in "se" for number in range(permits)}


def test_those_that_wait_inside_are_turned_away_and_given_up():
    """``clear`` reaches them, a deadline ends their wait, and the lane is free once the holder left."""
    told = []

    async def inside(lanes, deadline=None):
        try:
            async with lanes.hold("a", deadline=deadline):
                await anyio.sleep(5)
        except (LaneCleared, DeadlineExceeded) as error:
            told.append(type(error).__name__)

    async def main():
        lanes = Lanes()
        async with lanes.hold("a"), anyio.create_task_group() as group:
            for deadline in (None, 1, None, None):
                group.start_soon(inside, lanes, deadline)
            await anyio.sleep(2)
            told.append(lanes.turn_away_waiting("a"))
        return lanes.is_idle, told

    assert run_on_fake_clock(main) == (True, ["DeadlineExceeded", 2, "LaneCleared", "LaneCleared"])


def test_a_child_that_outlives_its_parent_keeps_the_lane():
    """Nobody else gets in while somebody is inside, whoever came first."""
    told = []

    async def child(lanes, started):
        async with lanes.hold("a"):
            started.set()
            await anyio.sleep(10)
            told.append("child")

    async def stranger(lanes):
        async with lanes.hold("a"):
            told.append("stranger")

    async def main():
        lanes, started = Lanes(), anyio.Event()
        async with anyio.create_task_group() as group:
            group.start_soon(stranger_later, lanes, group)
            async with lanes.hold("a"):
                group.start_soon(child, lanes, started)
                await started.wait()
            told.append("parent left")
        return lanes.is_idle

    async def stranger_later(lanes, group):
        await anyio.sleep(1)
        await stranger(lanes)

    assert run_on_fake_clock(main)
    assert told == ["parent left", "child", "stranger"]


def test_a_task_started_inside_has_no_key_for_later():
    """The right to go in again ends with the hold that gave it."""
    told = []

    async def child(lanes):
        await anyio.sleep(5)
        async with lanes.hold("a"):
            told.append("child")

    async def main():
        lanes = Lanes()
        async with anyio.create_task_group() as group:
            async with lanes.hold("a"):
                group.start_soon(child, lanes)
            async with lanes.hold("a"):
                await anyio.sleep(9)
                told.append("second")

    run_on_fake_clock(main)
    assert told == ["second", "child"]


def test_lanes_are_left_in_any_order():
    """Leaving the outer lane first takes nothing from the inner one: its holder still goes in again."""

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


def test_a_failing_body_frees_its_lane():
    """An exception passes through unchanged, and the next one runs."""

    async def main():
        lanes = Lanes()
        with pytest.raises(ZeroDivisionError):
            async with lanes.hold("a"):
                1 / 0  # noqa: B018
        async with lanes.hold("a"):
            return "fine"

    assert run_on_fake_clock(main) == "fine"


@pytest.mark.parametrize("place", ["inside", "waiting"])
def test_a_cancelled_one_frees_its_lane(place):
    """Whether it ran or waited: those behind it get in, those before it are left alone."""

    async def main():
        lanes, told = Lanes(), []
        async with anyio.create_task_group() as group:
            group.start_soon(_sleeping, lanes, "a", 3)
            await anyio.sleep(1)
            with anyio.move_on_after(1 if place == "waiting" else 5):
                await _sleeping(lanes, "a", 100)
            async with lanes.hold("a"):
                told.append(anyio.current_time())
        return told, lanes.is_idle

    assert run_on_fake_clock(main) == ([3 if place == "waiting" else 6], True)


def test_a_turn_that_comes_too_late_is_passed_on():
    """Who is cancelled in the moment its turn comes gives the turn to the next one."""

    async def main():
        lanes, told = Lanes(), []

        async def work(name):
            async with lanes.hold("a"):
                told.append(name)

        outer = lanes.hold("a")
        await outer.__aenter__()
        second, third = (asyncio.create_task(work(name), context=Context()) for name in ("second", "third"))
        await anyio.sleep(1)
        await outer.__aexit__(None, None, None)
        second.cancel()
        await asyncio.wait([second, third])
        return told, second.cancelled(), lanes.is_idle

    assert run_on_fake_clock(main) == (["third"], True, True)


def test_clearing_turns_away_those_that_wait():
    """What runs goes on; those that wait get ``LaneCleared``, which says behind how many; later ones get in."""

    async def main():
        lanes, told = Lanes(), []

        async def work(name):
            try:
                async with lanes.hold("a"):
                    await anyio.sleep(5)
                    told.append(name)
            except LaneCleared as error:
                told.append(str(error))

        async with anyio.create_task_group() as group:
            for name in ("first", "second", "third"):
                group.start_soon(work, name)
            await anyio.sleep(1)
            assert lanes.turn_away_waiting("a") == 2
            assert lanes.turn_away_waiting("nobody's") == 0
            group.start_soon(work, "fourth")
        return told, lanes.is_idle

    told, is_idle = run_on_fake_clock(main)
    assert is_idle
    assert [line.partition("while it ")[2] for line in told[:2]] == [
        "waited behind 1; ask again",
        "waited behind 2; ask again",
    ]
    assert told[2:] == ["first", "fourth"]


def test_who_is_turned_away_as_its_turn_comes_gives_it_back():
    """Each that ``turn_away_waiting`` counts gets ``LaneCleared``, and the turn goes to the next one."""

    async def main():
        lanes, told = Lanes(), []

        async def work(name):
            try:
                async with lanes.hold("a"):
                    told.append(name)
            except LaneCleared:
                told.append(f"{name} cleared")

        outer = lanes.hold("a")
        await outer.__aenter__()
        second = asyncio.create_task(work("second"), context=Context())
        await anyio.sleep(1)
        await outer.__aexit__(None, None, None)
        told.append(lanes.turn_away_waiting("a"))
        await work("third")
        await second
        return told, lanes.is_idle

    assert run_on_fake_clock(main) == ([1, "second cleared", "third"], True)


def test_draining_waits_for_what_was_taken_and_refuses_what_is_new():
    """Those that wait already still run; what they need they may still begin; new work is ``LaneClosed``."""

    async def main():
        lanes, told = Lanes(), []

        async def work(name):
            async with lanes.hold("a"):
                await anyio.sleep(5)
                async with lanes.hold("b"):
                    told.append(name)

        async with anyio.create_task_group() as group:
            group.start_soon(work, "first")
            group.start_soon(work, "second")
            await anyio.sleep(1)
            group.start_soon(lanes.drain)
            await anyio.sleep(1)
            with pytest.raises(LaneClosed, match="'c' takes no new work"):
                async with lanes.hold("c"):
                    pass
            await lanes.drain()
            return told, anyio.current_time(), lanes.is_idle

    assert run_on_fake_clock(main) == (["first", "second"], 10, True)


def test_draining_from_inside_does_not_wait_for_itself():
    """Who drains while it holds a lane waits for the others alone."""

    async def main():
        lanes = Lanes()
        async with anyio.create_task_group() as group:
            group.start_soon(_sleeping, lanes, "b", 4)
            await anyio.sleep(1)
            async with lanes.hold("a"):
                await lanes.drain()
                return anyio.current_time()

    assert run_on_fake_clock(main) == 4


def test_draining_has_a_deadline():
    """What hangs is counted in the error; nothing of it is cancelled."""

    async def main():
        lanes = Lanes()
        async with anyio.create_task_group() as group:
            group.start_soon(_sleeping, lanes, "a", 100)
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
def test_a_deadline_counts_waiting_and_running(busy, works, numbers):
    """``DeadlineExceeded`` is a ``TimeoutError`` with the numbers; the lane is free behind it."""

    async def main():
        lanes = Lanes()
        async with anyio.create_task_group() as group:
            group.start_soon(_sleeping, lanes, "a", busy)
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


def test_work_that_ends_in_time_knows_no_deadline():
    """A deadline changes nothing where it is not reached."""

    async def main():
        lanes = Lanes()
        async with lanes.hold("a", deadline=2):
            await anyio.sleep(1)
        return "fine"

    assert run_on_fake_clock(main) == "fine"


def test_a_deadline_outside_is_not_ours():
    """A scope of the caller's that ends is no ``DeadlineExceeded``."""

    async def main():
        lanes = Lanes()
        with anyio.move_on_after(1) as scope:
            async with lanes.hold("a", deadline=5):
                await anyio.sleep(9)
        return scope.cancelled_caught, lanes.is_idle

    assert run_on_fake_clock(main) == (True, True)


# -- permits -----------------------------------------------------------------------------------------------------------


def test_so_many_model_calls_at_once():
    """Never more than the permits, never fewer while somebody waits."""
    running, most = 0, []

    async def call(permits):
        nonlocal running
        async with permits.hold():
            running += 1
            most.append(running)
            await anyio.sleep(1)
            running -= 1

    async def main():
        permits = Permits(4)
        async with anyio.create_task_group() as group:
            for _ in range(12):
                group.start_soon(call, permits)
        return anyio.current_time(), permits.is_idle

    assert run_on_fake_clock(main) == (3, True)
    assert max(most) == 4


def test_a_call_inside_a_call_has_its_permit():
    """With one permit a call may make another (a summary, a subagent) and does not wait for itself."""

    async def main():
        permits = Permits(1)
        async with permits.hold(), permits.hold(), anyio.create_task_group() as group:
            group.start_soon(_permitted, permits)
        return permits.is_idle

    assert run_on_fake_clock(main)


async def _permitted(permits):
    async with permits.hold():
        await anyio.sleep(1)


def test_a_lane_waits_for_a_permit_and_others_for_the_lane():
    """Lane first, permit last: all of them end, though every permit is taken by holders of other lanes."""

    async def work(lanes, permits, key):
        async with lanes.hold(key):
            await _permitted(permits)
            async with lanes.hold(key):
                await _permitted(permits)

    async def main():
        lanes, permits = Lanes(), Permits(2)
        async with anyio.create_task_group() as group:
            for number in range(12):
                group.start_soon(work, lanes, permits, f"k{number % 3}")
        return lanes.is_idle, permits.is_idle

    assert run_on_fake_clock(main) == (True, True)


def test_a_permit_that_never_comes_free_is_an_error_with_the_numbers():
    """Only standing still counts: as long as others get on, who waits goes on waiting."""

    async def main():
        permits = Permits(1, patience=10)
        async with anyio.create_task_group() as group:
            for _ in range(30):
                group.start_soon(_permitted, permits)
            await anyio.sleep(0.5)
            async with permits.hold():
                waited = anyio.current_time()
            group.start_soon(_stuck, permits)
            await anyio.sleep(1)
            with pytest.raises(
                DeadlineExceeded, match=r"all 1 permits for model calls were in use for 10 s.*behind 1"
            ) as late:
                async with permits.hold():
                    pass
            assert isinstance(late.value, HoldfastError)
            assert anyio.current_time() == 41
        return waited, permits.is_idle

    async def _stuck(permits):
        async with permits.hold():
            await anyio.sleep(100)

    assert run_on_fake_clock(main) == (30, True)


def test_a_timeout_of_the_body_is_its_own():
    """What the call raises passes through unchanged."""

    async def main():
        permits = Permits(1)
        with pytest.raises(TimeoutError) as caught:
            async with permits.hold():
                raise TimeoutError("of the upstream")
        return str(caught.value), permits.is_idle

    assert run_on_fake_clock(main) == ("of the upstream", True)


def test_no_permits_at_all_is_refused():
    """Nothing could ever run: that is said where it is made."""
    with pytest.raises(ValueError, match="at least 1"):
        Permits(0)
