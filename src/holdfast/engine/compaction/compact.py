"""Compaction with all that the planner cannot do itself: hooks, the provider's own, a model's summary, the events."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from anyio import CancelScope
from msgspec import Struct
from msgspec.structs import replace

from holdfast import events
from holdfast.engine.compaction import native
from holdfast.engine.compaction.summarizer import (
    CompactionContext,
    SummaryRequestTooLarge,
    SummaryWriter,
    write_summary,
)
from holdfast.engine.hooks import BeforeCompactionResult
from holdfast.engine.log.new_entries import is_replan_forced
from holdfast.engine.request_template import RequestTemplate
from holdfast.engine.session_runtime import SessionRuntime
from holdfast.errors import CompactionFailed
from holdfast.events import CompactionOutcome
from holdfast.messages.sized_message import SizedMessage
from holdfast.planning.budget import compute_effective_target
from holdfast.planning.circuit_breaker import is_breaker_closed
from holdfast.planning.pipeline import OVER_WINDOW_RULE
from holdfast.planning.summary.prompts import SummaryPromptOptions
from holdfast.providers.native_compaction import can_compact_natively
from holdfast.recovery.machine import SUMMARY_TOO_LARGE_MESSAGES
from holdfast.state.calibration.token_estimate import estimate_request_tokens
from holdfast.state.calibration.usage import get_cache_lifetime
from holdfast.state.entries import CompactionEntry
from holdfast.state.plan import Notice, Plan, SummaryRequest, mark_compaction_manual
from holdfast.state.target import PlanInputs, SummaryResult, Target

_OUTCOMES: dict[str, CompactionOutcome] = {
    "nothing-to-compact": "nothing_to_compact",
    "not-smaller": "not_smaller",
    "breaker": "not_smaller",
    "cancelled": "cancelled",
}
"""What the planner's notices say of a compaction that did not come about."""


class CompactionTask(Struct, frozen=True):
    """What a summary is asked for."""

    template: RequestTemplate
    trigger: str
    instructions: str
    is_warm: bool
    """Whether the provider still holds what it read last."""


class SummaryAttempt(Struct, frozen=True):
    """What came of asking for a summary: the summary, or why there is none."""

    summary: SummaryResult | None = None
    outcome: CompactionOutcome = "compacted"
    reason: str = ""
    is_too_large: bool = False
    """Whether each writer was asked for too much at once, however short it was told."""


def make_runtime_plan_inputs(
    runtime: SessionRuntime, template: RequestTemplate, *, is_manual: bool = False
) -> PlanInputs:
    """Return what the planner is told, asked for in the worker: how old the cache is, and who writes summaries.

    A writer that failed several times in a row is left alone for a while, unless this compaction ``is_manual``: a user
    asked for it.
    """
    resources, target, state = runtime.resources, template.target, runtime.journal.state
    idle = runtime.journal.get_idle_seconds()
    there = bool(
        list_summary_writers(runtime, template)
        or _can_compact_natively(runtime, target)
        or resources.hooks.before_compaction
    )
    return PlanInputs(
        cache_state="cold" if idle > get_cache_lifetime(state, target.cache_rules) else "warm",
        idle_seconds=idle,
        can_summarize=there
        and (
            is_manual
            or is_breaker_closed(
                state.counters.failures_since_summary,
                state.counters.compaction_failed_at,
                resources.clock(),
                runtime.settings,
            )
        ),
        retry_compaction=runtime.journal.can_retry_compaction(),
    )


def list_summary_writers(runtime: SessionRuntime, template: RequestTemplate) -> tuple[SummaryWriter, ...]:
    """Return the models that write summaries for ``template``, the first to be asked first."""
    return (*template.request_options.writers, *runtime.resources.writers)


async def plan_with_summary(
    runtime: SessionRuntime,
    template: RequestTemplate,
    plan_inputs: PlanInputs,
    plan: Plan | None = None,
    *,
    trigger: str = "auto",
    instructions: str = "",
) -> tuple[Plan, PlanInputs]:
    """Return the plan of the next request with its summary made, and what the planner was told for it.

    ``plan`` is the one to begin with, where it is made already.
    A summary that does not come, or does not help, is told, written down, and replaced by an extract. A hook may take
    back the sentence at its end that tells the model to go on.
    """
    occasion = CompactionTask(template, trigger, instructions, plan_inputs.cache_state == "warm")
    try:
        plan, plan_inputs = await _plan_and_summarize(runtime, occasion, plan_inputs, plan)
    finally:
        runtime.emit_repairs()
    compaction = plan.compaction
    if compaction is None or compaction is runtime.journal.state.view.compaction:
        return plan, plan_inputs
    if not runtime.journal.policy.rules.has_continue_text(compaction):
        return plan, plan_inputs
    if await runtime.call_hook("auto_continue") is False:
        plan_inputs = replace(plan_inputs, can_summarize=False, can_auto_continue=False)
        plan = await runtime.resources.run_in_worker(lambda: runtime.journal.plan_next(template.target, plan_inputs))
    return plan, plan_inputs


async def _plan_and_summarize(
    runtime: SessionRuntime, task: CompactionTask, plan_inputs: PlanInputs, plan: Plan | None
) -> tuple[Plan, PlanInputs]:
    """Return the plan of the next request with its summary made, whether or not it tells the model to go on."""
    request = task.template
    target, journal = request.target, runtime.journal
    if plan is None:
        plan = await runtime.resources.run_in_worker(lambda: journal.plan_next(target, plan_inputs))
    if plan.compaction is not None and plan.compaction is journal.state.view.compaction:
        return plan, plan_inputs  # that request again
    if (
        plan.summary_request is not None
        and not is_replan_forced(plan_inputs)
        and _get_first_summarizer(runtime, request) == "extract"
    ):
        extract_inputs = replace(
            plan_inputs, can_summarize=False
        )  # a hook is asked early: not before there is anything to compact
        extract = await runtime.resources.run_in_worker(lambda: journal.plan_next(target, extract_inputs))
        if extract.compaction is None:
            return extract, extract_inputs
    if plan.summary_request is not None or plan.compaction is not None:
        plan_inputs = replace(
            plan_inputs, restored_texts=await runtime.resources.run_in_worker(lambda: _collect_restored_texts(runtime))
        )
    if plan.summary_request is not None:
        return await _plan_with_requested_summary(runtime, task, plan.summary_request, plan_inputs)
    if plan.compaction is not None:
        runtime.emit_event(events.CompactionStarted(runtime.key, task.trigger))
        plan = (
            await runtime.resources.run_in_worker(lambda: journal.plan_next(target, plan_inputs))
            if plan_inputs.restored_texts
            else plan
        )
    return plan, plan_inputs


async def _plan_with_requested_summary(
    runtime: SessionRuntime, task: CompactionTask, summary_request: SummaryRequest, plan_inputs: PlanInputs
) -> tuple[Plan, PlanInputs]:
    """Return the plan with the summary that was asked for, or with an extract; what hooks said meanwhile is in it.

    Where the request for a summary was too large after an overflow, a policy may want neither: the plan says so.
    """
    target = task.template.target
    try:
        result = await _summarize_tracked(runtime, task, summary_request)
    finally:
        await runtime.resources.run_in_worker(runtime.record_summary_costs)
    summary, outcome, why = result.summary, result.outcome, result.reason
    stops = result.is_too_large and task.trigger == "overflow" and runtime.settings.summarizer.when_too_large == "stop"
    await _emit_failed_compaction(runtime, target, _get_first_summarizer(runtime, task.template), outcome, why)
    plan, plan_inputs = await _replan_with_summary(
        runtime, target, plan_inputs, summary, without_compaction=stops or outcome == "cancelled"
    )
    if stops:
        plan = _replace_breaker_notice(
            plan, "history_too_large" if summary_request.is_replay else "session_too_large", why
        )
    elif outcome == "cancelled":
        plan = _replace_breaker_notice(plan, "cancelled", why)
    if summary is not None and plan.compaction is None:
        outcome, why = _find_no_compaction_reason(plan)
        await _emit_failed_compaction(runtime, target, summary.author, outcome, why)
        plan, plan_inputs = await _replan_with_summary(runtime, target, plan_inputs, None)
    if outcome not in {"compacted", "nothing_to_compact", "cancelled"}:
        await runtime.resources.run_in_worker(lambda: runtime.journal.record_failure(why, outcome))
    return plan, plan_inputs


async def emit_compaction(runtime: SessionRuntime, plan: Plan, outcome: CompactionOutcome = "compacted") -> None:
    """Tell of the compaction of ``plan``, if there is one: it is in the log now, or came to nothing."""
    if plan.compaction is not None:
        await runtime.emit_compacted(_make_compacted_event(runtime, plan.compaction, outcome))


def emit_decisions(runtime: SessionRuntime, plan: Plan) -> None:
    """Tell what ``plan`` decided, also about what its compaction keeps."""
    rules: dict[str, list[int]] = {}
    compaction_edits = plan.compaction.edits if plan.compaction is not None else ()
    for edit in (*plan.record, *compaction_edits):
        rules.setdefault(edit.rule, []).append(edit.saves)
    for rule, saves in rules.items():
        runtime.emit_event(events.EditsDecided(runtime.key, rule, len(saves), sum(saves)))
    for notice in plan.notices:
        runtime.emit_event(events.NoticeGiven(runtime.key, notice.rule, notice.why))


def _can_compact_natively(runtime: SessionRuntime, target: Target) -> bool:
    """Whether the provider is to compact by itself, and can."""
    return runtime.resources.native_compaction and can_compact_natively(target)


def _get_first_summarizer(runtime: SessionRuntime, template: RequestTemplate) -> str:
    """Return who is asked for a summary first; an extract is made where nobody is."""
    if _can_compact_natively(runtime, template.target):
        return "native"
    return "model" if list_summary_writers(runtime, template) else "extract"


async def _replan_with_summary(
    runtime: SessionRuntime,
    target: Target,
    plan_inputs: PlanInputs,
    summary: SummaryResult | None,
    *,
    without_compaction: bool = False,
) -> tuple[Plan, PlanInputs]:
    """Return the plan with what was written, or with an extract; ``without_compaction`` any compaction where none is
    wanted.
    """
    final_inputs = replace(plan_inputs, can_summarize=False, summary=summary)
    if without_compaction:
        final_inputs = replace(final_inputs, force_compaction=False, overflow_step="", is_breaker_closed=False)
    return await runtime.resources.run_in_worker(lambda: runtime.journal.plan_next(target, final_inputs)), final_inputs


async def compact_now(runtime: SessionRuntime, template: RequestTemplate, instructions: str) -> events.CompactionEnded:
    """Compact now; return what became of it. Nothing is sent to the model but what a summary needs.

    Where others said more in the session meanwhile, and nothing was said here beside it, that is compacted too.
    """
    along = make_session_joiner(runtime)

    def begun() -> PlanInputs:
        along()
        return replace(make_runtime_plan_inputs(runtime, template, is_manual=True), force_compaction=True)

    forced_inputs = await runtime.resources.run_in_worker(begun)
    while True:
        plan, final_inputs = await plan_with_summary(
            runtime, template, forced_inputs, trigger="manual", instructions=instructions
        )
        if plan.compaction is not None:
            decided_plan = await runtime.resources.run_in_worker(
                lambda: _write_compaction_plan(runtime, along, plan, template.target, final_inputs)  # noqa: B023
            )
            if decided_plan is None:
                continue
            await emit_compaction(runtime, plan := decided_plan)
            emit_decisions(runtime, plan)
        if plan.compaction is not None:
            return _make_compacted_event(runtime, plan.compaction)
        outcome, why = _find_no_compaction_reason(plan)
        return events.CompactionEnded(
            runtime.key, outcome, _get_first_summarizer(runtime, template), plan.before, plan.before, why
        )


def _write_compaction_plan(
    runtime: SessionRuntime, along: Callable[[], bool], plan: Plan, target: Target, plan_inputs: PlanInputs
) -> Plan | None:
    """Return the plan that is in the log: this one, or with the same summary one for what others said meanwhile.

    Nothing where it stands no more.
    """
    journal = runtime.journal
    with journal.hold_lease():
        plan = mark_compaction_manual(journal.plan_next(target, plan_inputs) if along() else plan)
        return journal.write_decision(plan, target, plan_inputs) if plan.compaction is not None else None


def make_session_joiner(runtime: SessionRuntime) -> Callable[[], bool]:
    """Return what joins the session where others said more in it, and tells whether they did.

    What is decided without a word of one's own is to count where the session goes on. A branch beside it stays there,
    and so does one that an answer is on its way to.
    """
    stays = runtime.is_answering or not runtime.journal.moves_leaf
    return lambda: not stays and runtime.journal.join_if_extended()


def get_summary_overflow_rule(plan: Plan) -> str:
    """Return the outcome of ``SUMMARY_TOO_LARGE_MESSAGES`` that ended the compaction of ``plan``, or nothing."""
    return next((notice.rule for notice in plan.notices if notice.rule in SUMMARY_TOO_LARGE_MESSAGES), "")


def find_shrink_failure(plan: Plan, overflow_step: str) -> CompactionOutcome | Literal[""]:
    """Return why a plan that was pressed for is no smaller than the request that was refused, or nothing."""
    if plan.compaction is None and not plan.record:
        return _find_no_compaction_reason(plan)[0]
    is_token_overflow = overflow_step not in {
        "fallback",
        "media",
    }  # what media take is reckoned high, and these were not too many tokens
    too_large = is_token_overflow and any(notice.rule == OVER_WINDOW_RULE for notice in plan.notices)
    return "not_smaller" if plan.after >= plan.before or too_large else ""


async def _summarize_tracked(
    runtime: SessionRuntime, task: CompactionTask, summary_request: SummaryRequest
) -> SummaryAttempt:
    """Return what ``_make_summary`` does, while everybody may know that a compaction is under way, and stop it."""
    result = SummaryAttempt(outcome="cancelled", reason="the session was closed")
    with CancelScope() as scope:
        runtime.compaction_tracker.start(scope.cancel)
        try:
            result = await _make_summary(runtime, task, summary_request)
        finally:
            runtime.compaction_tracker.end(result.outcome)
    return result


async def _make_summary(
    runtime: SessionRuntime, task: CompactionTask, summary_request: SummaryRequest
) -> SummaryAttempt:
    """Return the summary that was asked for; or nothing, with what became of it and why."""
    resources, trigger = runtime.resources, task.trigger
    head = await resources.run_in_worker(
        lambda: runtime.journal.read_messages(summary_request.start, summary_request.stop)
    )
    hook_result = await runtime.call_hook(
        "before_compaction", [sized_message.message for sized_message in head], trigger
    )
    before = hook_result if isinstance(hook_result, BeforeCompactionResult) else BeforeCompactionResult()
    if before.cancel:
        return SummaryAttempt(outcome="cancelled", reason="the hook before_compaction cancelled it")
    is_supplied = bool(before.summary.strip())
    by = "hook" if is_supplied else _get_first_summarizer(runtime, task.template)
    runtime.emit_event(events.CompactionStarted(runtime.key, trigger, by))
    if is_supplied:
        return SummaryAttempt(SummaryResult(summary_request.stop, before.summary, author="hook"))
    if by == "extract":
        return SummaryAttempt()
    try:
        return SummaryAttempt(await _try_summarizers(runtime, task, summary_request, head, before))
    except CompactionFailed as failed:
        return SummaryAttempt(
            None, _parse_outcome(failed.outcome), str(failed), isinstance(failed, SummaryRequestTooLarge)
        )


async def _try_summarizers(
    runtime: SessionRuntime,
    task: CompactionTask,
    summary_request: SummaryRequest,
    head: Sequence[SizedMessage],
    before: BeforeCompactionResult,
) -> SummaryResult:
    """Return the summary of the first that makes one: the provider's own compaction, then the models in their order."""
    if _can_compact_natively(runtime, task.template.target) and not before.prompt:
        try:
            return await _compact_natively(runtime, task, summary_request)
        except CompactionFailed:
            if not list_summary_writers(runtime, task.template):
                raise
    prompt_options = SummaryPromptOptions(
        focus=task.instructions, added_context=tuple(before.extra_context), custom_prompt=before.prompt
    )
    prefix = runtime.cached_request if task.is_warm else None
    if prefix is not None and prefix.setup_digest != task.template.target.setup.digest:
        prefix = None  # somebody else said the same, under instructions of their own
    target = compute_effective_target(task.template.target, runtime.journal.state, runtime.settings)
    candidates = [writer.with_learned_window(target) for writer in list_summary_writers(runtime, task.template)]
    return await write_summary(
        head, summary_request, candidates, _make_compaction_context(runtime), prompt_options, cached_request=prefix
    )


async def _compact_natively(
    runtime: SessionRuntime, task: CompactionTask, summary_request: SummaryRequest
) -> SummaryResult:
    """Return what the provider made of the slots that were asked for."""
    resources, journal, stop = runtime.resources, runtime.journal, summary_request.stop
    upstream_request = await resources.run_in_worker(
        lambda: native.build_head_request(journal.state, task.template, stop, journal.policy)
    )
    beside = await resources.run_in_worker(lambda: _collect_texts_beside(runtime, task, summary_request))
    terms = _make_compaction_context(runtime)
    native_summary = await native.compact_by_provider(
        resources.upstream, upstream_request, terms, instructions=task.instructions, extra_texts=beside
    )
    return SummaryResult(stop, "", "native", native_summary)


def _collect_texts_beside(
    runtime: SessionRuntime, task: CompactionTask, summary_request: SummaryRequest
) -> tuple[str, ...]:
    """Return the texts that stand behind what the provider makes: the user's words where it keeps none, and sources."""
    journal = runtime.journal
    journal.read_messages(0, summary_request.stop)  # a branch that was opened again may not have the oldest at hand
    words = native.quote_user_words(journal.state, task.template.target, summary_request, runtime.journal.policy)
    return tuple(filter(None, (words, *_collect_restored_texts(runtime))))


def _collect_restored_texts(runtime: SessionRuntime) -> tuple[str, ...]:
    """Return the texts that stand behind a summary again: rules that changed, skills that were used, the plan."""
    environment, state = runtime.resources.environment, runtime.journal.state
    if environment is None:
        return ()
    summary = state.view.compaction.summary if state.view.compaction is not None else None
    shown_messages = [
        sized_message.message for sized_message in state.history.sized_messages.slice(state.view.first_kept)
    ]
    return environment.restore_texts(shown_messages if summary is None else [summary, *shown_messages])


def _make_compaction_context(runtime: SessionRuntime) -> CompactionContext:
    """Return the terms on which models are asked for a compaction here."""
    return CompactionContext(
        runtime.settings, runtime.resources.permits.hold, runtime.emit_event, runtime.unlogged_costs.append, runtime.key
    )


async def _emit_failed_compaction(
    runtime: SessionRuntime, target: Target, by: str, outcome: CompactionOutcome, why: str
) -> None:
    """Tell of a compaction that failed, and ``by`` whom it would have been."""
    if outcome != "compacted":
        state = runtime.journal.state
        size = estimate_request_tokens(state, compute_effective_target(target, state, runtime.settings))
        await runtime.emit_compacted(events.CompactionEnded(runtime.key, outcome, by, size, size, why))


def _make_compacted_event(
    runtime: SessionRuntime, compaction: CompactionEntry, outcome: CompactionOutcome = "compacted"
) -> events.CompactionEnded:
    """Return what is told of the compaction ``compaction``."""
    return events.CompactionEnded(
        runtime.key, outcome, compaction.author or "extract", compaction.tokens_before, compaction.tokens_after
    )


def _find_no_compaction_reason(plan: Plan) -> tuple[CompactionOutcome, str]:
    """Return why there is no compaction in ``plan``."""
    notices: Sequence[Notice] = [notice for notice in plan.notices if notice.rule in _OUTCOMES]
    if not notices:
        return "nothing_to_compact", "there is nothing to compact"
    return _OUTCOMES[notices[-1].rule], notices[-1].why


def _replace_breaker_notice(plan: Plan, rule: str, why: str) -> Plan:
    """Return ``plan``, made as if the breaker were open, with the reason that is known in place of that one."""
    notices = [notice for notice in plan.notices if notice.rule != "breaker"]
    return replace(plan, notices=(*notices, Notice(rule, why)))


def _parse_outcome(word: str) -> CompactionOutcome:
    return word if word in events.COMPACTION_OUTCOMES else "provider_error"  # type: ignore[return-value]
