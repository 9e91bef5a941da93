"""Decide what the next request shows: plan it, write the decisions to the log, and emit the events about them."""

from __future__ import annotations

from holdfast.engine.compaction import compact as compacting
from holdfast.engine.log.journal import PreparedRequest
from holdfast.engine.request_template import RequestTemplate
from holdfast.engine.session_runtime import SessionRuntime
from holdfast.state.plan import Plan
from holdfast.state.target import PlanInputs


async def decide_next_request(
    runtime: SessionRuntime,
    template: RequestTemplate,
    plan_inputs: PlanInputs,
    plan: Plan | None = None,
) -> PreparedRequest:
    """Return the next request for ``template``, decided and in the log.

    ``plan`` is a plan to start from, if the caller already has one.
    """
    while True:
        plan, final_inputs = await compacting.plan_with_summary(runtime, template, plan_inputs, plan)
        prepared_request = await _commit_and_announce(runtime, template, plan, final_inputs)
        if prepared_request is not None:
            return prepared_request
        plan = None  # entries were appended while a summary was written: plan again with them


async def decide_smaller_request(
    runtime: SessionRuntime,
    template: RequestTemplate,
    plan_inputs: PlanInputs,
    overflow_step: str,
) -> PreparedRequest | str:
    """Return the request planned anew by ``overflow_step``, or the outcome that says why it would not be smaller.

    In the second case the log is not written.
    """
    tracker = runtime.compaction_tracker
    if overflow_step == "compact":
        # Callers of `wait_for_compaction` must not be told "done" between a compaction and the request it was made for.
        tracker.expect_retry()
    while True:
        plan, final_inputs = await compacting.plan_with_summary(runtime, template, plan_inputs, trigger="overflow")
        if summary_overflow := compacting.get_summary_overflow_rule(plan):
            return summary_overflow
        failure = compacting.find_shrink_failure(plan, overflow_step)
        if failure:
            await compacting.emit_compaction(runtime, plan, failure)
            return failure
        if plan.compaction is not None and plan.compaction is not runtime.journal.state.view.compaction:
            tracker.expect_retry()  # the other steps may compact too
        prepared_request = await _commit_and_announce(runtime, template, plan, final_inputs)
        if prepared_request is not None:
            return prepared_request


async def emit_new_decisions(runtime: SessionRuntime, plan: Plan, prepared_request: PreparedRequest) -> None:
    """Emit the events about the decisions of a committed request, unless it is a repeated request.

    A repeated request keeps the plan object that it was first committed with; its decisions were announced then.
    """
    if prepared_request.plan is not plan:
        await compacting.emit_compaction(runtime, prepared_request.plan)
        compacting.emit_decisions(runtime, prepared_request.plan)


async def _commit_and_announce(
    runtime: SessionRuntime,
    template: RequestTemplate,
    plan: Plan,
    plan_inputs: PlanInputs,
) -> PreparedRequest | None:
    """Write the decisions of ``plan`` to the log and announce them; return None if the log has moved on since."""
    prepared_request = await runtime.resources.run_in_worker(
        lambda: runtime.commit_plan(plan, template.target, plan_inputs)
    )
    if prepared_request is not None:
        await emit_new_decisions(runtime, plan, prepared_request)
    return prepared_request
