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
"""The real one takes a quarter of a minute."""
BRANCHES, TASKS, PERMITS = 200, 20, 4


class Task(Struct, frozen=True):
    """What one piece of work does: its model calls, one after the other, in seconds, and how it ends."""

    calls: tuple[int, ...] = (1,)
    nested: int = 0
    """How many child tasks enter its own lane again for its last call, which is made once without any."""
    fails: bool = False
    given_up: int | None = None
    """Seconds after which its caller cancels it, waiting or running."""
    deadline: int | None = None


class Failed(Exception):
    """What a task raises."""


class World:
    """Lanes, permits, a fake upstream, and what was seen of them."""

    def __init__(self, permits, unit=1.0):
        self.unit = unit
        self.lanes, self.permits = Lanes(), Permits(permits)
        self.began, self.asked, self.inside = defaultdict(list), defaultdict(list), defaultdict(int)
        self.within = defaultdict(int)
        self.calling = self.most = self.called = 0

    async def call(self, seconds):
        """Ask the fake upstream."""
        async with self.permits.hold():
            self.calling += 1
            self.most = max(self.most, self.calling)
            began = anyio.current_time()
            try:
                await anyio.sleep(seconds * self.unit)
            finally:
                self.calling -= 1
                self.called += anyio.current_time() - began

    async def _nested(self, key, seconds):
        with suppress(LaneCleared):
            async with self.lanes.hold(key):
                self.within[key] += 1
                assert self.within[key] == 1
                try:
                    await self.call(seconds)
                finally:
                    self.within[key] -= 1

    async def _work(self, key, task):
        *first, last = task.calls
        for seconds in first:
            await self.call(seconds)
        if task.fails:
            raise Failed
        async with anyio.create_task_group() as group:
            for _ in range(task.nested):
                group.start_soon(self._nested, key, last)
            if not task.nested:
                group.start_soon(self.call, last)

    async def work(self, key, number, task):
        """Do one task in its lane; it ends with an answer or with an error, and either is fine."""
        self.asked[key].append(number)
        with anyio.CancelScope() as scope:
            if task.given_up is not None:
                scope.deadline = anyio.current_time() + task.given_up * self.unit
            try:
                deadline = None if task.deadline is None else task.deadline * self.unit
                async with self.lanes.hold(key, deadline=deadline):
                    self.inside[key] += 1
                    assert self.inside[key] == 1
                    self.began[key].append(number)
                    try:
                        await self._work(key, task)
                    finally:
                        self.inside[key] -= 1
            except (Failed, OperationAborted):
                pass

    def judge(self):
        """Nobody is left, and each lane ran in the order of arrival, some left out."""
        assert self.lanes.is_idle
        assert self.permits.is_idle
        assert self.most <= self.permits.limit
        for key, began in self.began.items():
            came = iter(self.asked[key])
            assert all(number in came for number in began)


async def played(world, branches):
    """Run every branch's tasks, all at once, those of one branch asked for in order; return the seconds it took."""
    began = anyio.current_time()
    async with anyio.create_task_group() as group:
        for key, tasks in branches.items():
            for number, task in enumerate(tasks):
                group.start_soon(world.work, key, number, task)
    return anyio.current_time() - began


def mixed(branch, number):
    """Return one of the tasks of the large run: most of them answer, some go in again, fail, or are given up."""
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
def test_two_hundred_branches_end_within_the_bound(clock):
    """No deadlock, order kept in each branch, and at most 1.3 x the time that four permits need at the least."""
    world = World(PERMITS, 1.0 if clock is run_on_fake_clock else 0.005)
    branches = {f"b{branch}": [mixed(branch, number) for number in range(TASKS)] for branch in range(BRANCHES)}
    took = clock(played, world, branches)
    world.judge()
    assert sum(map(len, world.asked.values())) == BRANCHES * TASKS
    assert sum(map(len, world.began.values())) > 0.8 * BRANCHES * TASKS
    assert world.most == PERMITS
    assert took <= 1.3 * world.called / PERMITS


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
    cleared=st.none() | st.tuples(st.sampled_from("abcd"), st.integers(0, 9)),
    drained=st.none() | st.integers(0, 9),
)
def test_whatever_happens_nobody_is_left(branches, permits, cleared, drained):
    """For any work, given up, failing, late, cleared or drained: everyone ends, in order, and every lane is free."""
    world = World(permits)

    async def main():
        async with anyio.create_task_group() as group:
            group.start_soon(played, world, branches)
            if cleared is not None:
                group.start_soon(clear, *cleared)
            if drained is not None:
                group.start_soon(drain, drained)

    async def clear(key, seconds):
        await anyio.sleep(seconds)
        world.lanes.turn_away_waiting(key)

    async def drain(seconds):
        await anyio.sleep(seconds)
        await world.lanes.drain()
        assert world.lanes.is_idle

    run_on_fake_clock(main)
    world.judge()
