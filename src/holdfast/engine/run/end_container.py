"""Go on without a container that the provider no longer has: the code that waited in it is ended, and told."""

from __future__ import annotations

from msgspec.structs import replace

from holdfast import events
from holdfast.engine.compaction import compact as compacting
from holdfast.engine.log.journal import PreparedRequest
from holdfast.engine.session_runtime import SessionRuntime
from holdfast.planning.pipeline import plan_request
from holdfast.recovery.pending_runs import END_RUNS_RULE, end_pending_runs
from holdfast.state.plan import Plan
from holdfast.state.target import PlanInputs, Target


async def end_container(
    runtime: SessionRuntime, target: Target, prepared_request: PreparedRequest, container: str
) -> PreparedRequest:
    """Record that ``container`` is gone and return the request that goes on without it.

    It is ``prepared_request`` itself if no code waits in the container; then only the field is left out as it is sent.
    """
    journal = runtime.journal

    def plan_and_write() -> tuple[Plan | None, PreparedRequest | None]:
        plan = plan_request(journal.state, target, replace(journal.policy, stages=((END_RUNS_RULE, end_pending_runs),)))
        if not plan.record:
            return None, prepared_request
        return plan, runtime.commit_plan(plan, target, PlanInputs())

    await runtime.resources.run_in_worker(lambda: journal.record_expired_container(container))
    next_request: PreparedRequest | None = None
    plan: Plan | None = None
    while next_request is None:  # the log has moved on since the plan was made
        plan, next_request = await runtime.resources.run_in_worker(plan_and_write)
    runs = 0 if plan is None else len(plan.record)
    if plan is not None:
        compacting.emit_decisions(runtime, plan)
    runtime.emit_event(events.NoticeGiven(runtime.key, END_RUNS_RULE, _describe_end(container, has_ended=runs > 0)))
    return next_request


def _describe_end(container: str, *, has_ended: bool) -> str:
    problem = f"the provider no longer has container {container}, so requests do not name it"
    if not has_ended:
        return f"{problem}; files in it are gone: upload again what is needed"
    return f"{problem}; the code that waited in it is ended, and a line with the code stands for it: ask for it again"
