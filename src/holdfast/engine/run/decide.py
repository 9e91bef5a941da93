"""Deciding: what the next request shows is planned, written into the log, and told."""

from __future__ import annotations

from holdfast.engine.compaction import compact as compacting
from holdfast.engine.log.journal import Prepared
from holdfast.engine.requests import Request
from holdfast.engine.session_runtime import Course
from holdfast.state.plan import Plan
from holdfast.state.target import World


async def next_request(course: Course, request: Request, world: World, plan: Plan | None = None) -> Prepared:
    """Return the next request for ``request``, decided and in the log; ``plan`` is the one to begin with."""
    while True:
        plan, known = await compacting.planned(course, request, world, plan)
        prepared = await _decided(course, request, plan, known)
        if prepared is not None:
            return prepared
        plan = None


async def smaller_request(course: Course, request: Request, world: World, rung: str) -> Prepared | str:
    """Return the request planned anew under pressure, or why it would not be smaller; then nothing is written.

    Where it compacts, who waits for compactions waits for the request too, until its run is answered or has failed.
    """
    if rung == "compact":
        course.inflight.expect_retry()
    while True:
        plan, known = await compacting.planned(course, request, world, trigger="overflow")
        if stopped := compacting.summary_overflow(plan):
            return stopped
        useless = compacting.useless(plan, rung)
        if useless:
            await compacting.made(course, plan, useless)
            return useless
        if plan.compaction is not None and plan.compaction is not course.journal.branch.compaction:
            course.inflight.expect_retry()
        prepared = await _decided(course, request, plan, known)
        if prepared is not None:
            return prepared


async def announce(course: Course, plan: Plan, prepared: Prepared) -> None:
    """Tell what was decided, unless it is the same request again: that was told before."""
    if prepared.plan is not plan:
        await compacting.made(course, prepared.plan)
        compacting.tell_decided(course, prepared.plan)


async def _decided(course: Course, request: Request, plan: Plan, world: World) -> Prepared | None:
    """Return the request of ``plan``, once what it decides is in the log and told; nothing where more was said."""
    prepared = await course.means.in_worker(lambda: course.commit(plan, request.target, world))
    if prepared is not None:
        await announce(course, plan, prepared)
    return prepared
