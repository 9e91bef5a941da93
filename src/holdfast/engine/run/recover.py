"""Recovery, driven: what ``recovery/machine.py`` says is done, until a request can be sent or an error is raised."""

from __future__ import annotations

from contextlib import suppress

from anyio import sleep
from msgspec.structs import replace

from holdfast import events
from holdfast.engine.compaction import compact as compacting
from holdfast.engine.log.journal import PreparedRequest
from holdfast.engine.request_template import RequestTemplate
from holdfast.engine.run import drop_signatures as unsealing
from holdfast.engine.run import record as recording
from holdfast.engine.run.attempt import Attempt
from holdfast.engine.run.check_request import check_request
from holdfast.engine.run.decide import decide_next_request, decide_smaller_request
from holdfast.engine.session_runtime import SessionRuntime
from holdfast.errors import ContextOverflow, InvalidRequest, UpstreamError
from holdfast.planning.budget import compute_effective_target
from holdfast.planning.stages.smallest_request import estimate_irreducible_tokens
from holdfast.providers.errors.report import Verdict
from holdfast.providers.requests.request_body import parse_request
from holdfast.recovery.machine import (
    CONTEXT_OVERFLOW_KIND,
    FIRST_STEP_BY_KIND,
    DropSignatures,
    NoProgress,
    ProviderRefusal,
    RecoveryState,
    Retry,
    Shrink,
    Stop,
    decide_next_action,
    subtract_used_steps,
)
from holdfast.recovery.stop_message import format_stop_message
from holdfast.state.calibration.token_estimate import estimate_request_tokens
from holdfast.state.plan import PlanOptions
from holdfast.state.target import PlanInputs

_FORM_REFUSALS = frozenset({"invalid_history", "invalid_request", "unknown"})
"""Kinds of refusals that may be about the form of a request."""
_STRICT_FORM_NOTICE = (
    "the server refused a conversation as its client wrote it; it goes out by the rules of the API's maker"
)


def can_recover(verdict: Verdict) -> bool:
    """Whether something else may be asked in place of a request that was refused like this."""
    return verdict.is_overflow or verdict.kind in _FORM_REFUSALS or verdict.kind in FIRST_STEP_BY_KIND


async def decide_next_attempt(
    runtime: SessionRuntime,
    template: RequestTemplate,
    prepared_request: PreparedRequest,
    state: RecoveryState,
    attempt: Attempt,
) -> tuple[RequestTemplate, PreparedRequest, RecoveryState]:
    """Return what is sent next after an attempt that failed: the same again, or less. Raises where nothing is left.

    Where nothing was said, and nothing smaller can be asked, the same is asked once more: what comes then is taken.
    """
    refusal = attempt.refusal
    template = replace(template, accepts_empty_answer=template.accepts_empty_answer or attempt.is_silent_overflow)
    await recording.record_refusal(runtime, attempt)
    fixed_request = await _retry_with_strict_form(runtime, template, prepared_request, refusal)
    if fixed_request is not None:
        return *fixed_request, state
    event: ProviderRefusal | NoProgress = refusal
    while True:
        before, (state, action) = state, decide_next_action(subtract_used_steps(state, runtime.journal.state), event)
        if isinstance(action, Stop) and attempt.is_silent_overflow:
            return template, prepared_request, before
        if isinstance(action, Stop):
            await runtime.resources.run_in_worker(runtime.journal.record_accepted_form)
            if refusal.is_signature_error and not template.request_options.observe_only:
                await unsealing.restore_signatures(runtime)
            raise make_final_error(runtime, prepared_request, action, attempt)
        if isinstance(action, Retry):
            attempts = runtime.settings.retry.max_retries - state.retries
            runtime.emit_event(events.RetryScheduled(runtime.key, refusal.kind, action.seconds, attempts))
            await sleep(action.seconds)
            return template, prepared_request, state
        if isinstance(action, DropSignatures):
            without = await commit_without_signatures(runtime, template)
            if without is not None:
                return template, without, state
            event = refusal  # said again: now that nothing is sealed, it stops
        else:
            runtime.emit_event(
                events.ShrinkStarted(runtime.key, action.step, runtime.journal.state.counters.compactions_since_answer)
            )
            smaller = await shrink_request(
                runtime, _halve_byte_limit(template, attempt, action), prepared_request, action
            )
            if not isinstance(smaller, str):
                return *smaller, state
            event = NoProgress(smaller)


async def _retry_with_strict_form(
    runtime: SessionRuntime, template: RequestTemplate, prepared_request: PreparedRequest, refusal: ProviderRefusal
) -> tuple[RequestTemplate, PreparedRequest] | None:
    """Return what went out as its client wrote it and was refused for its form, made what the API's maker takes.

    Nothing where it has that form already. What comes next in this session goes out like that too.
    """
    dialect = template.target.dialect
    if refusal.has_answer_started or refusal.kind not in _FORM_REFUSALS or template.request_options.observe_only:
        return None
    if not dialect.keeps_client_content:
        return await _retry_with_checks(runtime, template, prepared_request)
    strict = replace(template, target=replace(template.target, dialect=replace(dialect, keeps_client_content=False)))
    inputs = await runtime.resources.run_in_worker(lambda: compacting.make_runtime_plan_inputs(runtime, strict))
    plan = await runtime.resources.run_in_worker(lambda: runtime.journal.plan_next(strict.target, inputs))
    if plan.normalization == prepared_request.plan.normalization:
        return None
    await runtime.resources.run_in_worker(
        lambda: runtime.journal.record_accepted_form(mends=True, judges=runtime.requires_check)
    )
    runtime.emit_event(events.NoticeGiven(runtime.key, "form", _STRICT_FORM_NOTICE))
    return strict, await decide_next_request(runtime, strict, inputs, plan)


async def _retry_with_checks(
    runtime: SessionRuntime, template: RequestTemplate, prepared_request: PreparedRequest
) -> tuple[RequestTemplate, PreparedRequest] | None:
    """Return the same, to be mended as it goes out, where it went as its client wrote it and breaks a known rule.

    Nothing where it was judged before, or breaks no rule that can be kept here.
    """
    if runtime.requires_check or runtime.resources.check_mode != "changed":
        return None
    upstream_request = template.build_upstream_request(prepared_request)
    if not template.is_client_body(upstream_request.body):
        return None
    with suppress(InvalidRequest):
        if check_request(upstream_request)[1]:
            await runtime.resources.run_in_worker(
                lambda: runtime.journal.record_accepted_form(mends=runtime.requires_strict_form, judges=True)
            )
    return (template, prepared_request) if runtime.requires_check else None


async def commit_without_signatures(runtime: SessionRuntime, template: RequestTemplate) -> PreparedRequest | None:
    """Return the request without what the provider sealed, decided and in the log; nothing where nothing is."""
    target = template.target
    return await unsealing.drop_signatures(
        runtime, target, lambda plan: runtime.commit_plan(plan, target, PlanInputs())
    )


def _halve_byte_limit(template: RequestTemplate, attempt: Attempt, shrink: Shrink) -> RequestTemplate:
    """Return ``template`` for half the bytes of a body that had too many, where nobody said how many it may have."""
    verdict, dialect = attempt.verdict, template.target.dialect
    if shrink.step != "media" or verdict.kind != "request_bytes" or verdict.max_bytes:
        return template
    smaller_dialect = replace(dialect, max_bytes=min(dialect.max_bytes, attempt.body_size // 2))
    return replace(template, target=replace(template.target, dialect=smaller_dialect))


async def shrink_request(
    runtime: SessionRuntime, template: RequestTemplate, prepared_request: PreparedRequest, shrink: Shrink
) -> tuple[RequestTemplate, PreparedRequest] | str:
    """Return the request made smaller as ``shrink`` says, or why it does not get smaller."""
    inputs = await runtime.resources.run_in_worker(lambda: compacting.make_runtime_plan_inputs(runtime, template))
    if shrink.step == "output":
        lower = _lower_output_limit(runtime, template, prepared_request)
        return lower if isinstance(lower, str) else (lower, await decide_next_request(runtime, lower, inputs))
    writes = inputs.can_summarize and shrink.step == "compact"
    harder = replace(inputs, overflow_step=shrink.step, can_summarize=writes)
    smaller = await decide_smaller_request(runtime, template, harder, shrink.step)
    return smaller if isinstance(smaller, str) else (template, smaller)


def _lower_output_limit(
    runtime: SessionRuntime, template: RequestTemplate, prepared_request: PreparedRequest
) -> RequestTemplate | str:
    """Return ``template`` with a lower limit for the answer, or why that would not help."""
    state, settings = runtime.journal.state, runtime.settings
    target = compute_effective_target(template.target, state, settings)
    remaining_tokens, current_output = (
        target.limits.window - estimate_request_tokens(state, target),
        _get_rendered_max_output(template, prepared_request, prepared_request.plan.options),
    )
    if current_output is None:
        return "not_smaller"
    new_output = max(settings.reserve.min, min(current_output // 2, remaining_tokens))
    lower = _get_rendered_max_output(template, prepared_request, PlanOptions(max_tokens=new_output)) or new_output
    if lower >= current_output:
        return "not_smaller"
    if remaining_tokens < lower:
        return "too_large_without_it"
    limits = replace(template.target.limits, requested_output=lower)
    return replace(template, target=replace(template.target, limits=limits), max_output=lower)


def _get_rendered_max_output(
    template: RequestTemplate, prepared_request: PreparedRequest, options: PlanOptions
) -> int | None:
    """Return the tokens that the body asks for with ``options``: always more than its model may think in.

    What it may think in is not lowered: with it the provider's cache of all messages would be gone.
    """
    request_with_options = replace(prepared_request, plan=replace(prepared_request.plan, options=options))
    return parse_request(template.render_body(request_with_options, ()), template.target.api).requested_max_tokens


def make_final_error(
    runtime: SessionRuntime, prepared_request: PreparedRequest, stop: Stop, attempt: Attempt
) -> UpstreamError:
    """Return the error that ends a run: what was measured, and what can be done."""
    verdict, target = attempt.verdict, prepared_request.target
    if stop.kind != CONTEXT_OVERFLOW_KIND:
        return UpstreamError(
            format_stop_message(stop, attempt.refusal, provider_message=attempt.failure_text),
            verdict.kind,
            verdict.retry_after,
        )
    min_tokens = estimate_irreducible_tokens(runtime.journal.state, target, runtime.settings)
    text = format_stop_message(
        stop, attempt.refusal, window=target.limits.window, min_tokens=min_tokens, provider_message=attempt.failure_text
    )
    return ContextOverflow(text, verdict.kind)
