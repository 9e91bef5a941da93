"""Lanes under load: two hundred branches, four permits, re-entry, failures and cancels."""

from __future__ import annotations

from collections import defaultdict
from contextlib import suppress

import anyio
import example_counts
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct

from holdfast.engine.concurrency.lanes_and_permits import Lanes, Permits
from holdfast.errors import LaneCleared, OperationAborted
from holdfast.testing.clock import run_on_fake_clock

CLOCKS = {"fake": run_on_fake_clock} | ({"real": anyio.run} if example_counts.IS_THOROUGH else {})
"""The clocks to run on; the real one takes 15 seconds."""
BRANCHES, TASKS, PERMITS = 200, 20, 4


class Task(Struct, frozen=True):
    """A task: its model calls in sequence, in seconds, and how it ends."""

    calls: tuple[int, ...] = (1,)
    nested: int = 0
    """Number of child tasks that enter the lane again for the last call; without any it is made once."""
    fails: bool = False
    given_up: int | None = None
    """Seconds after which its caller cancels it, waiting or running."""
    deadline: int | None = None


class TaskFailed(Exception):
    """The error of a failing task."""


class Simulation:
    """Lanes, permits, a fake upstream, and their observed use."""

    def __init__(self, permits, unit=1.0):
        self.unit = unit
        self.lanes, self.permits = Lanes(), Permits(permits)
        self.started, self.requested, self.inside_count = defaultdict(list), defaultdict(list), defaultdict(int)
        self.nested_count = defaultdict(int)
        self.open_calls = self.max_open_calls = self.call_seconds = 0

    async def call(self, seconds):
        """Call the fake upstream."""
        async with self.permits.hold():
            self.open_calls += 1
            self.max_open_calls = max(self.max_open_calls, self.open_calls)
            started_at = anyio.current_time()
            try:
                await anyio.sleep(seconds * self.unit)
            finally:
                self.open_calls -= 1
                self.call_seconds += anyio.current_time() - started_at

    async def _nested(self, key, seconds):
        with suppress(LaneCleared):
            async with self.lanes.hold(key):
                self.nested_count[key] += 1
                assert self.nested_count[key] == 1
                try:
                    await self.call(seconds)
                finally:
                    self.nested_count[key] -= 1

    async def _work(self, key, task):
        *first, last = task.calls
        for seconds in first:
            await self.call(seconds)
        if task.fails:
            raise TaskFailed
        async with anyio.create_task_group() as group:
            for _ in range(task.nested):
                group.start_soon(self._nested, key, last)
            if not task.nested:
                group.start_soon(self.call, last)

    async def work(self, key, number, task):
        """Run one task in its lane; it may end with an answer or with an error."""
        self.requested[key].append(number)
        with anyio.CancelScope() as scope:
            if task.given_up is not None:
                scope.deadline = anyio.current_time() + task.given_up * self.unit
            try:
                deadline = None if task.deadline is None else task.deadline * self.unit
                async with self.lanes.hold(key, deadline=deadline):
                    self.inside_count[key] += 1
                    assert self.inside_count[key] == 1
                    self.started[key].append(number)
                    try:
                        await self._work(key, task)
                    finally:
                        self.inside_count[key] -= 1
            except (TaskFailed, OperationAborted):
                pass

    def assert_all_ended_in_order(self):
        """Assert that nothing runs or waits, and that each lane ran its tasks in order of arrival, some left out."""
        assert self.lanes.is_idle
        assert self.permits.is_idle
        assert self.max_open_calls <= self.permits.limit
        for key, started in self.started.items():
            requested = iter(self.requested[key])
            assert all(number in requested for number in started)


async def run_branches(simulation, branches):
    """Start the tasks of all branches at once, in order within a branch; return the seconds they took."""
    started_at = anyio.current_time()
    async with anyio.create_task_group() as group:
        for key, tasks in branches.items():
            for number, task in enumerate(tasks):
                group.start_soon(simulation.work, key, number, task)
    return anyio.current_time() - started_at


def build_mixed_task(branch, number):
    """Return a task of the large run: most answer, some re-enter their lane, fail, or are cancelled."""
    turn = branch * 7 + number * 13
    return Task(
        calls=tuple(1 + (turn + step) % 3 for step in range(1 + turn % 2)),
        nested=2 * (turn % 5 == 0),
        fails=turn % 11 == 0,
        given_up=500 + turn if turn % 17 == 0 else None,
        deadline=900 + turn if turn % 19 == 0 else None,
    )


@pytest.mark.long
@pytest.mark.parametrize("clock", CLOCKS.values(), ids=CLOCKS)
def test_lanes_serve_two_hundred_branches_within_the_bound(clock):
    """No deadlock, order kept in each branch, and at most 1.3 times the time that four permits need at least."""
    simulation = Simulation(PERMITS, 1.0 if clock is run_on_fake_clock else 0.005)
    branches = {
        f"b{branch}": [build_mixed_task(branch, number) for number in range(TASKS)] for branch in range(BRANCHES)
    }
    elapsed = clock(run_branches, simulation, branches)
    simulation.assert_all_ended_in_order()
    assert sum(map(len, simulation.requested.values())) == BRANCHES * TASKS
    assert sum(map(len, simulation.started.values())) > 0.8 * BRANCHES * TASKS
    assert simulation.max_open_calls == PERMITS
    assert elapsed <= 1.3 * simulation.call_seconds / PERMITS


TASK = st.builds(
    Task,
    calls=st.lists(st.integers(0, 3), min_size=1, max_size=3).map(tuple),
    nested=st.integers(0, 3),
    fails=st.booleans(),
    given_up=st.none() | st.integers(0, 9),
    deadline=st.none() | st.integers(0, 9),
)


@settings(max_examples=60)
@given(
    branches=st.dictionaries(st.sampled_from("abcd"), st.lists(TASK, max_size=6), max_size=4),
    permits=st.integers(1, 3),
    clear_options=st.none() | st.tuples(st.sampled_from("abcd"), st.integers(0, 9)),
    drain_seconds=st.none() | st.integers(0, 9),
)
def test_lanes_and_permits_are_idle_after_any_work(branches, permits, clear_options, drain_seconds):
    """For any work, cancelled, failing, late, cleared or drained, every task ends, in order, and every lane is free."""
    simulation = Simulation(permits)

    async def main():
        async with anyio.create_task_group() as group:
            group.start_soon(run_branches, simulation, branches)
            if clear_options is not None:
                group.start_soon(clear, *clear_options)
            if drain_seconds is not None:
                group.start_soon(drain, drain_seconds)

    async def clear(key, seconds):
        await anyio.sleep(seconds)
        simulation.lanes.turn_away_waiting(key)

    async def drain(seconds):
        await anyio.sleep(seconds)
        await simulation.lanes.drain()
        assert simulation.lanes.is_idle

    run_on_fake_clock(main)
    simulation.assert_all_ended_in_order()
