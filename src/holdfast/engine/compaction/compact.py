"""Compaction, with the steps that the planner cannot take itself: hooks, summaries by a provider or model, events."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
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
from holdfast.planning.open_work.hidden_work import render_hidden_work
from holdfast.planning.pipeline import OVER_WINDOW_RULE
from holdfast.planning.stages.compaction import BREAKER_RULE, COMPACTION_LIMIT_RULE, PAUSED_RULE
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
    BREAKER_RULE: "not_smaller",
    COMPACTION_LIMIT_RULE: "not_smaller",
    PAUSED_RULE: "not_smaller",
    "cancelled": "cancelled",
}
"""Outcomes by the rule of the planner's notice about a compaction that it did not make."""
_BYTE_STEPS = frozenset({"fallback", "media"})
"""Overflow steps whose success shows in bytes rather than tokens: media are estimated at a high flat rate, and the
requests they follow were often not over the limit of tokens."""


class CompactionTask(Struct, frozen=True):
    """A compaction for which a summary is to be written."""

    template: RequestTemplate
    trigger: str
    """``auto``, ``manual`` or ``overflow``."""
    instructions: str
    """The user's own wishes for the summary; empty if there are none."""
    is_warm: bool
    """Whether the provider's cache still holds the last request."""


class SummaryAttempt(Struct, frozen=True):
    """A summary, or the reason why there is none."""

    summary: SummaryResult | None = None
    outcome: CompactionOutcome = "compacted"
    reason: str = ""
    is_too_large: bool = False
    """Whether the request for a summary was too large for every writer, even in the smallest parts."""


def make_runtime_plan_inputs(
    runtime: SessionRuntime, template: RequestTemplate, *, is_manual: bool = False
) -> PlanInputs:
    """Collect the planner's inputs from outside of the log: the age of the cache, and whether summaries can be made.

    Called in the worker. After several failures in a row no summary is asked for until a cool-down has passed, unless
    ``is_manual``: a user asked for this compaction.
    """
    resources, target, state = runtime.resources, template.target, runtime.journal.state
    idle_seconds = runtime.journal.get_idle_seconds()
    is_cold = idle_seconds > get_cache_lifetime(state, target.cache_rules)
    has_summarizer = bool(
        list_summary_writers(runtime, template)
        or _can_compact_natively(runtime, target)
        or resources.hooks.before_compaction
    )
    counters = state.counters
    is_summarizer_ready = is_manual or is_breaker_closed(
        counters.failures_since_summary, counters.compaction_failed_at, resources.clock(), runtime.settings
    )
    return PlanInputs(
        cache_state="cold" if is_cold else "warm",
        idle_seconds=idle_seconds,
        can_summarize=has_summarizer and is_summarizer_ready,
        is_breaker_cooled=runtime.journal.is_breaker_cooled(),
    )


def list_summary_writers(runtime: SessionRuntime, template: RequestTemplate) -> tuple[SummaryWriter, ...]:
    """Return the models that write summaries for ``template``, in the order in which they are asked."""
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
    """Plan the next request, have its summary written if it needs one, and return the final plan with its inputs.

    ``plan`` is a plan to start from, if the caller already has one. If no summary comes, or it does not help, that is
    announced and recorded, and an extract takes its place. The ``auto_continue`` hook may drop the sentence at the end
    of a summary that tells the model to go on.
    """
    task = CompactionTask(template, trigger, instructions, plan_inputs.cache_state == "warm")
    try:
        plan, plan_inputs = await _plan_and_summarize(runtime, task, plan_inputs, plan)
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
    runtime: SessionRuntime,
    task: CompactionTask,
    plan_inputs: PlanInputs,
    plan: Plan | None,
) -> tuple[Plan, PlanInputs]:
    """Plan the next request and have its summary written; return the plan with its inputs."""
    target, journal = task.template.target, runtime.journal
    run_in_worker = runtime.resources.run_in_worker
    if plan is None:
        plan = await run_in_worker(lambda: journal.plan_next(target, plan_inputs))
    is_repeated = plan.compaction is not None and plan.compaction is journal.state.view.compaction
    if is_repeated:
        return plan, plan_inputs  # the committed request again, with the compaction it had
    may_be_early = plan.summary_request is not None and not is_replan_forced(plan_inputs)
    if may_be_early and _get_first_summarizer(runtime, task.template) == "extract":
        # The trigger for written summaries is lower than that for extracts, to leave time for the writing. Here neither
        # a model nor the provider can write one, only a hook, and a hook may decline; then an extract takes its place.
        # So nothing is compacted before the request is over the trigger for extracts too.
        extract_inputs = replace(plan_inputs, can_summarize=False)
        extract_plan = await run_in_worker(lambda: journal.plan_next(target, extract_inputs))
        if extract_plan.compaction is None:
            return extract_plan, extract_inputs
    if plan.summary_request is None and plan.compaction is None:
        return plan, plan_inputs
    restored_texts = await run_in_worker(lambda: _collect_restored_texts(runtime))
    plan_inputs = replace(plan_inputs, restored_texts=restored_texts)
    if plan.summary_request is not None:
        return await _plan_with_requested_summary(runtime, task, plan.summary_request, plan_inputs)
    runtime.emit_event(events.CompactionStarted(runtime.key, task.trigger))
    if restored_texts:
        plan = await run_in_worker(lambda: journal.plan_next(target, plan_inputs))
    return plan, plan_inputs


async def _plan_with_requested_summary(
    runtime: SessionRuntime,
    task: CompactionTask,
    summary_request: SummaryRequest,
    plan_inputs: PlanInputs,
) -> tuple[Plan, PlanInputs]:
    """Have a summary written and plan with it, or with an extract; messages appended meanwhile are in the plan.

    A policy may want neither if the request for a summary was too large after an overflow; the plan has a notice then
    (see ``get_summary_overflow_rule``).
    """
    target = task.template.target
    try:
        attempt = await _summarize_tracked(runtime, task, summary_request)
    finally:
        await runtime.resources.run_in_worker(runtime.record_summary_costs)
    summary, outcome, reason = attempt.summary, attempt.outcome, attempt.reason
    must_stop = (
        attempt.is_too_large and task.trigger == "overflow" and runtime.settings.summarizer.when_too_large == "stop"
    )
    first_summarizer = _get_first_summarizer(runtime, task.template)
    await _emit_failed_compaction(runtime, target, first_summarizer, outcome, reason)
    plan, plan_inputs = await _replan_with_summary(
        runtime,
        target,
        plan_inputs,
        summary,
        without_compaction=must_stop or outcome == "cancelled",
    )
    if must_stop:
        if summary_request.is_replay:
            rule = "history_too_large"
        else:
            rule = "session_too_large"
        plan = _replace_paused_notice(plan, rule, reason)
    elif outcome == "cancelled":
        plan = _replace_paused_notice(plan, "cancelled", reason)
    if summary is not None and plan.compaction is None:
        # The planner did not accept the summary, because it does not make the request smaller. An extract may.
        outcome, reason = _find_no_compaction_reason(plan)
        await _emit_failed_compaction(runtime, target, summary.author, outcome, reason)
        plan, plan_inputs = await _replan_with_summary(runtime, target, plan_inputs, None)
    is_failure = outcome not in {"compacted", "nothing_to_compact", "cancelled"}
    if is_failure:
        # Counted by the breaker, which then leaves the summarizer alone for a while.
        await runtime.resources.run_in_worker(lambda: runtime.journal.record_failure(reason, outcome))
    return plan, plan_inputs


async def emit_compaction(runtime: SessionRuntime, plan: Plan, outcome: CompactionOutcome = "compacted") -> None:
    """Announce the compaction of ``plan``, if it has one: committed, or given up with another ``outcome``."""
    if plan.compaction is not None:
        await runtime.emit_compacted(_make_compacted_event(runtime, plan.compaction, outcome))


def emit_decisions(runtime: SessionRuntime, plan: Plan) -> None:
    """Announce the edits of ``plan``, one event for each rule, and its notices."""
    saves_by_rule: dict[str, list[int]] = {}
    compaction_edits = plan.compaction.edits if plan.compaction is not None else ()
    for edit in (*plan.record, *compaction_edits):
        saves_by_rule.setdefault(edit.rule, []).append(edit.saves)
    for rule, saves in saves_by_rule.items():
        runtime.emit_event(
            events.EditsDecided(
                runtime.key,
                rule,
                len(saves),
                sum(saves),
            )
        )
    for notice in plan.notices:
        runtime.emit_event(events.NoticeGiven(runtime.key, notice.rule, notice.why))


def _can_compact_natively(runtime: SessionRuntime, target: Target) -> bool:
    """Return whether compaction by the provider is switched on, and its API has it."""
    return runtime.resources.native_compaction and can_compact_natively(target)


def _get_first_summarizer(runtime: SessionRuntime, template: RequestTemplate) -> str:
    """Return the author of the first summary to be tried: ``native``, ``model`` or, without a model, ``extract``."""
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
    """Plan with ``summary``, or with an extract if it is None, or ``without_compaction``; return plan and inputs."""
    final_inputs = replace(plan_inputs, can_summarize=False, summary=summary)
    if without_compaction:
        final_inputs = replace(
            final_inputs,
            force_compaction=False,
            overflow_step="",
            allow_auto_compaction=False,
        )
    plan = await runtime.resources.run_in_worker(lambda: runtime.journal.plan_next(target, final_inputs))
    return plan, final_inputs


async def compact_now(runtime: SessionRuntime, template: RequestTemplate, instructions: str) -> events.CompactionEnded:
    """Compact now, whatever the size, and return the event that describes the outcome.

    Only requests for a summary are sent. If others extended the session meanwhile, and nothing was appended here beside
    it, their messages are compacted too.
    """
    join_session = make_session_joiner(runtime)

    def join_and_collect_inputs() -> PlanInputs:
        join_session()
        return replace(make_runtime_plan_inputs(runtime, template, is_manual=True), force_compaction=True)

    forced_inputs = await runtime.resources.run_in_worker(join_and_collect_inputs)
    while True:
        plan, final_inputs = await plan_with_summary(
            runtime,
            template,
            forced_inputs,
            trigger="manual",
            instructions=instructions,
        )
        if plan.compaction is not None:
            write_plan = partial(
                _write_compaction_plan,
                runtime,
                join_session,
                plan,
                template.target,
                final_inputs,
            )
            written_plan = await runtime.resources.run_in_worker(write_plan)
            if written_plan is None:
                continue  # entries were appended while the summary was written: plan again with them
            plan = written_plan
            await emit_compaction(runtime, plan)
            emit_decisions(runtime, plan)
        # A plan made anew, because its texts could not be stored, may have no compaction.
        if plan.compaction is not None:
            return _make_compacted_event(runtime, plan.compaction)
        outcome, reason = _find_no_compaction_reason(plan)
        author = _get_first_summarizer(runtime, template)
        return events.CompactionEnded(
            runtime.key,
            outcome,
            author,
            plan.before,
            plan.before,
            reason,
        )


def _write_compaction_plan(
    runtime: SessionRuntime,
    join_session: Callable[[], bool],
    plan: Plan,
    target: Target,
    plan_inputs: PlanInputs,
) -> Plan | None:
    """Write ``plan``, or a new one with the same summary if others extended the session; return the one written.

    Return None if the plan is out of date, or if the new one has no compaction.
    """
    journal = runtime.journal
    with journal.hold_lease():
        if join_session():
            plan = journal.plan_next(target, plan_inputs)
        plan = mark_compaction_manual(plan)
        if plan.compaction is None:
            return None
        return journal.write_decision(plan, target, plan_inputs)


def make_session_joiner(runtime: SessionRuntime) -> Callable[[], bool]:
    """Return a function that moves the branch to where others extended the session, and returns whether it did.

    A compaction or an undo adds no message of its own, so it should count where the session has gone on. It does
    nothing for a fork, and for a branch that an answer is on its way to: both have to stay where they are.
    """
    must_stay = runtime.is_answering or not runtime.journal.moves_leaf

    def join_session() -> bool:
        return not must_stay and runtime.journal.join_if_extended()

    return join_session


def get_summary_overflow_rule(plan: Plan) -> str:
    """Return the key of ``SUMMARY_TOO_LARGE_MESSAGES`` that ended the compaction of ``plan``, or ""."""
    for notice in plan.notices:
        if notice.rule in SUMMARY_TOO_LARGE_MESSAGES:
            return notice.rule
    return ""


def find_shrink_failure(plan: Plan, overflow_step: str) -> CompactionOutcome | Literal[""]:
    """Return why the plan made by ``overflow_step`` is no smaller than the refused request, or "" if it is smaller."""
    if plan.compaction is None and not plan.record:
        outcome, _ = _find_no_compaction_reason(plan)
        return outcome
    if plan.after >= plan.before:
        return "not_smaller"
    is_over_window = any(notice.rule == OVER_WINDOW_RULE for notice in plan.notices)
    if is_over_window and overflow_step not in _BYTE_STEPS:
        return "not_smaller"
    return ""


async def _summarize_tracked(
    runtime: SessionRuntime, task: CompactionTask, summary_request: SummaryRequest
) -> SummaryAttempt:
    """Call ``_make_summary`` while the session's tracker shows a compaction in flight, which ``close`` can abort."""
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
    """Have a summary written by a hook, the provider or a model.

    The result has no summary if that failed, or if an extract is to be made without a model.
    """
    resources, trigger = runtime.resources, task.trigger
    head = await resources.run_in_worker(
        lambda: runtime.journal.read_messages(summary_request.start, summary_request.stop)
    )
    hook_messages = [sized_message.message for sized_message in head]
    hook_result = await runtime.call_hook("before_compaction", hook_messages, trigger)
    if not isinstance(hook_result, BeforeCompactionResult):
        hook_result = BeforeCompactionResult()
    if hook_result.cancel:
        return SummaryAttempt(outcome="cancelled", reason="the hook before_compaction cancelled it")
    is_supplied = bool(hook_result.summary.strip())
    if is_supplied:
        author = "hook"
    else:
        author = _get_first_summarizer(runtime, task.template)
    runtime.emit_event(events.CompactionStarted(runtime.key, trigger, author))
    if is_supplied:
        return SummaryAttempt(SummaryResult(summary_request.stop, hook_result.summary, author="hook"))
    if author == "extract":
        return SummaryAttempt()
    try:
        return SummaryAttempt(
            await _try_summarizers(
                runtime,
                task,
                summary_request,
                head,
                hook_result,
            )
        )
    except CompactionFailed as error:
        is_too_large = isinstance(error, SummaryRequestTooLarge)
        return SummaryAttempt(
            None,
            _parse_outcome(error.outcome),
            str(error),
            is_too_large,
        )


async def _try_summarizers(
    runtime: SessionRuntime,
    task: CompactionTask,
    summary_request: SummaryRequest,
    head: Sequence[SizedMessage],
    hook_result: BeforeCompactionResult,
) -> SummaryResult:
    """Return the first summary that succeeds: by the provider's own compaction, then by the models in their order."""
    writers = list_summary_writers(runtime, task.template)
    # The provider's own compaction takes no prompt, so a hook's prompt is for the models.
    if _can_compact_natively(runtime, task.template.target) and not hook_result.prompt:
        try:
            return await _compact_natively(runtime, task, summary_request)
        except CompactionFailed:
            if not writers:
                raise
    prompt_options = SummaryPromptOptions(
        focus=task.instructions,
        added_context=tuple(hook_result.extra_context),
        custom_prompt=hook_result.prompt,
    )
    cached_request = runtime.cached_request if task.is_warm else None
    if cached_request is not None and cached_request.setup_digest != task.template.target.setup.digest:
        # The messages are the same under another system prompt: another agent shares the session, and the summary
        # would be written under its instructions.
        cached_request = None
    target = compute_effective_target(task.template.target, runtime.journal.state, runtime.settings)
    return await write_summary(
        head,
        summary_request,
        [writer.with_learned_window(target) for writer in writers],
        _make_compaction_context(runtime),
        prompt_options,
        cached_request=cached_request,
    )


async def _compact_natively(
    runtime: SessionRuntime, task: CompactionTask, summary_request: SummaryRequest
) -> SummaryResult:
    """Have the provider compact the messages of ``summary_request``."""
    resources, journal, stop = runtime.resources, runtime.journal, summary_request.stop
    upstream_request = await resources.run_in_worker(
        lambda: native.build_head_request(journal.state, task.template, stop, journal.policy)
    )
    extra_texts = await resources.run_in_worker(lambda: _collect_texts_beside(runtime, task, summary_request))
    native_summary = await native.compact_by_provider(
        resources.upstream,
        upstream_request,
        _make_compaction_context(runtime),
        instructions=task.instructions,
        extra_texts=extra_texts,
    )
    return SummaryResult(stop, "", "native", native_summary)


def _collect_texts_beside(
    runtime: SessionRuntime, task: CompactionTask, summary_request: SummaryRequest
) -> tuple[str, ...]:
    """Return the texts to append to the provider's summary.

    These are the user's words if it keeps none, what is still open, and restored texts.
    """
    journal = runtime.journal
    # A branch that was opened again may not hold its oldest messages; reading them here loads them into the state.
    journal.read_messages(0, summary_request.stop)
    user_words = native.quote_user_words(journal.state, task.template.target, summary_request, journal.policy)
    texts_beside: list[str] = []
    open_work = render_hidden_work(journal.state, summary_request.stop, summary_request.max_tokens)
    for text in (user_words, open_work, *_collect_restored_texts(runtime)):
        if text:
            texts_beside.append(text)
    return tuple(texts_beside)


def _collect_restored_texts(runtime: SessionRuntime) -> tuple[str, ...]:
    """Return the texts to show again after a summary: rules that changed, and skills that were used."""
    environment = runtime.resources.environment
    state = runtime.journal.state
    if environment is None:
        return ()
    kept_messages = state.history.sized_messages.slice(state.view.first_kept)
    messages = [sized_message.message for sized_message in kept_messages]
    if state.view.compaction is not None and state.view.compaction.summary is not None:
        messages.insert(0, state.view.compaction.summary)
    return environment.restore_texts(messages)


def _make_compaction_context(runtime: SessionRuntime) -> CompactionContext:
    return CompactionContext(
        runtime.settings,
        runtime.resources.permits.hold,
        runtime.emit_event,
        runtime.unlogged_costs.append,
        runtime.key,
        runtime.spans,
    )


async def _emit_failed_compaction(
    runtime: SessionRuntime,
    target: Target,
    author: str,
    outcome: CompactionOutcome,
    reason: str,
) -> None:
    """Announce a failed compaction by ``author``; a successful one is announced elsewhere."""
    if outcome == "compacted":
        return
    state = runtime.journal.state
    size = estimate_request_tokens(state, compute_effective_target(target, state, runtime.settings))
    await runtime.emit_compacted(
        events.CompactionEnded(
            runtime.key,
            outcome,
            author,
            size,
            size,
            reason,
        )
    )


def _make_compacted_event(
    runtime: SessionRuntime, compaction: CompactionEntry, outcome: CompactionOutcome = "compacted"
) -> events.CompactionEnded:
    return events.CompactionEnded(
        runtime.key,
        outcome,
        compaction.author or "extract",
        compaction.tokens_before,
        compaction.tokens_after,
    )


def _find_no_compaction_reason(plan: Plan) -> tuple[CompactionOutcome, str]:
    """Return the outcome and the reason of a ``plan`` without a compaction, from its last notice about that."""
    for notice in reversed(plan.notices):
        if notice.rule in _OUTCOMES:
            return _OUTCOMES[notice.rule], notice.why
    return "nothing_to_compact", "there is nothing to compact"


def _replace_paused_notice(plan: Plan, rule: str, why: str) -> Plan:
    """Return ``plan`` with the real reason for having no compaction in place of the notice that it is paused.

    The plan was made with compaction paused, to keep the planner from compacting.
    """
    notices = [notice for notice in plan.notices if notice.rule != PAUSED_RULE]
    return replace(plan, notices=(*notices, Notice(rule, why)))


def _parse_outcome(word: str) -> CompactionOutcome:
    """Return ``word`` if it is an outcome; errors of hooks and writers may carry any text."""
    return word if word in events.COMPACTION_OUTCOMES else "provider_error"  # type: ignore[return-value]
