"""Deciding: what the next request shows is planned, written into the log, and told."""

from __future__ import annotations

from holdfast.engine.compaction import compact as compacting
from holdfast.engine.log.journal import PreparedRequest
from holdfast.engine.request_template import RequestTemplate
from holdfast.engine.session_runtime import SessionRuntime
from holdfast.state.plan import Plan
from holdfast.state.target import PlanInputs


async def decide_next_request(
    runtime: SessionRuntime, template: RequestTemplate, plan_inputs: PlanInputs, plan: Plan | None = None
) -> PreparedRequest:
    """Return the next request for ``template``, decided and in the log; ``plan`` is the one to begin with."""
    while True:
        plan, final_inputs = await compacting.plan_with_summary(runtime, template, plan_inputs, plan)
        prepared_request = await _commit_and_announce(runtime, template, plan, final_inputs)
        if prepared_request is not None:
            return prepared_request
        plan = None


async def decide_smaller_request(
    runtime: SessionRuntime, template: RequestTemplate, plan_inputs: PlanInputs, overflow_step: str
) -> PreparedRequest | str:
    """Return the request planned anew under pressure, or why it would not be smaller; then nothing is written.

    Where it compacts, who waits for compactions waits for the request too, until its run is answered or has failed.
    """
    if overflow_step == "compact":
        runtime.compaction_tracker.expect_retry()
    while True:
        plan, final_inputs = await compacting.plan_with_summary(runtime, template, plan_inputs, trigger="overflow")
        if stop_reason := compacting.get_summary_overflow_rule(plan):
            return stop_reason
        useless = compacting.find_shrink_failure(plan, overflow_step)
        if useless:
            await compacting.emit_compaction(runtime, plan, useless)
            return useless
        if plan.compaction is not None and plan.compaction is not runtime.journal.state.view.compaction:
            runtime.compaction_tracker.expect_retry()
        prepared_request = await _commit_and_announce(runtime, template, plan, final_inputs)
        if prepared_request is not None:
            return prepared_request


async def emit_new_decisions(runtime: SessionRuntime, plan: Plan, prepared_request: PreparedRequest) -> None:
    """Tell what was decided, unless it is the same request again: that was told before."""
    if prepared_request.plan is not plan:
        await compacting.emit_compaction(runtime, prepared_request.plan)
        compacting.emit_decisions(runtime, prepared_request.plan)


async def _commit_and_announce(
    runtime: SessionRuntime, template: RequestTemplate, plan: Plan, plan_inputs: PlanInputs
) -> PreparedRequest | None:
    """Return the request of ``plan``, once what it decides is in the log and told; nothing where more was said."""
    prepared_request = await runtime.resources.run_in_worker(
        lambda: runtime.commit_plan(plan, template.target, plan_inputs)
    )
    if prepared_request is not None:
        await emit_new_decisions(runtime, plan, prepared_request)
    return prepared_request
