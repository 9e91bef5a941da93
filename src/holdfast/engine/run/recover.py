"""Recovery from a failed attempt: carry out the actions of ``recovery/machine.py`` until a request can be sent."""

from __future__ import annotations

from typing import NamedTuple

from anyio import sleep
from msgspec.structs import replace

from holdfast import events
from holdfast.engine.compaction import compact as compacting
from holdfast.engine.log.journal import PreparedRequest
from holdfast.engine.request_template import RequestTemplate
from holdfast.engine.run import record as recording
from holdfast.engine.run.attempt import Attempt, AttemptOutcome
from holdfast.engine.run.check_request import check_request
from holdfast.engine.run.decide import decide_next_request, decide_smaller_request
from holdfast.engine.run.drop_signatures import drop_signatures, restore_signatures
from holdfast.engine.run.end_container import end_container
from holdfast.engine.run.learn_from_refusal import forget_wrong_lessons, learn_field_lessons
from holdfast.engine.session_runtime import SessionRuntime
from holdfast.engine.upstream.upstream import find_header_version
from holdfast.errors import ContextOverflow, InvalidRequest, UpstreamError
from holdfast.planning.budget import compute_effective_target
from holdfast.planning.stages.smallest_request import estimate_irreducible_tokens
from holdfast.providers.errors.report import Verdict
from holdfast.providers.requests.parsed_request import parse_request
from holdfast.recovery.machine import (
    CONTEXT_OVERFLOW_KIND,
    FIRST_STEP_BY_KIND,
    ChangeFields,
    DropSignatures,
    NoProgress,
    ProviderRefusal,
    RecoveryEvent,
    RecoveryState,
    RequestForm,
    Retry,
    Shrink,
    Stop,
    can_recover_from_refusals,
    decide_next_action,
    subtract_used_steps,
)
from holdfast.recovery.stop_message import format_stop_message
from holdfast.state.calibration.token_estimate import estimate_request_tokens
from holdfast.state.plan import PlanOptions
from holdfast.state.target import PlanInputs

_FORM_REFUSALS = frozenset({"invalid_history", "invalid_request", "unknown"})
"""Kinds of refusals that may be about the form of a client's content."""
_STRICT_FORM_NOTICE = (
    "the server refused a conversation in the form of its client; it is sent by the strict rules of the API from now on"
)


class NextRequest(NamedTuple):
    """A request to send, decided and in the log, with the template that it was made from."""

    template: RequestTemplate
    prepared_request: PreparedRequest


class NextAttempt(NamedTuple):
    """What to send after a failed attempt, and how much recovery may still do if that fails too."""

    template: RequestTemplate
    prepared_request: PreparedRequest
    recovery: RecoveryState


def can_recover(verdict: Verdict) -> bool:
    """Return whether a changed request may be accepted where this one was refused."""
    return verdict.is_overflow or verdict.kind in _FORM_REFUSALS or verdict.kind in FIRST_STEP_BY_KIND


async def decide_next_attempt(
    runtime: SessionRuntime,
    template: RequestTemplate,
    prepared_request: PreparedRequest,
    recovery: RecoveryState,
    attempt: Attempt,
) -> NextAttempt:
    """Record a failed attempt and return what to send next.

    That is the same request again, the same content in another form, the request without what was refused in it (an
    expired container, signatures, a field), or a smaller one. Sleeps where the provider wants a pause. Raises
    ``UpstreamError``, or ``ContextOverflow`` for an overflow, if nothing is left to try.
    """
    refusal = attempt.refusal
    is_silent_overflow = attempt.outcome is AttemptOutcome.SILENT_OVERFLOW
    # An empty answer may be the model's own choice after all, so it is questioned once and then accepted.
    template = replace(template, accepts_empty_answer=template.accepts_empty_answer or is_silent_overflow)
    await recording.record_refusal(runtime, attempt)

    # This comes first: a server that rejects an element of the history rejects it in a smaller request too.
    other_attempt = await _decide_attempt_in_other_form(runtime, template, prepared_request, recovery, attempt)
    if other_attempt is not None:
        return other_attempt

    event: RecoveryEvent = refusal
    while True:
        previous_recovery = recovery
        recovery, action = decide_next_action(subtract_used_steps(recovery, runtime.journal.state), event)
        match action:
            case Stop() if is_silent_overflow:
                # Nothing smaller can be sent. Ask the same once more and take whatever answer comes.
                return NextAttempt(template, prepared_request, previous_recovery)
            case Stop():
                await _take_back_vain_changes(runtime, template, recovery, attempt)
                raise make_final_error(runtime, prepared_request, action, attempt)
            case Retry():
                retry_number = runtime.settings.retry.max_retries - recovery.retries
                runtime.emit_event(events.RetryScheduled(runtime.key, refusal.kind, action.seconds, retry_number))
                await sleep(action.seconds)
                return NextAttempt(template, prepared_request, recovery)
            case DropSignatures() | ChangeFields():
                changed = await _change_refused_parts(runtime, template, prepared_request, recovery, attempt, action)
                if changed is not None:
                    return changed
                # Nothing was signed: fed the same refusal again, the machine stops.
                event = refusal
            case Shrink():
                smaller = await _announce_and_shrink(
                    runtime,
                    template,
                    prepared_request,
                    action,
                    attempt,
                )
                if isinstance(smaller, NextRequest):
                    return NextAttempt(*smaller, recovery)
                event = NoProgress(smaller)


def _may_change_request(runtime: SessionRuntime, template: RequestTemplate, refusal: ProviderRefusal) -> bool:
    """Return whether a refused request may be replaced by another one at all."""
    is_observed = template.request_options.observe_only
    return can_recover_from_refusals(runtime.settings) and not refusal.has_answer_started and not is_observed


async def _change_refused_parts(
    runtime: SessionRuntime,
    template: RequestTemplate,
    prepared_request: PreparedRequest,
    recovery: RecoveryState,
    attempt: Attempt,
    action: DropSignatures | ChangeFields,
) -> NextAttempt | None:
    """Return the request without what its server refused in it, or None if it has nothing of that."""
    if isinstance(action, DropSignatures):
        unsigned_request = await commit_without_signatures(runtime, template)
        return None if unsigned_request is None else NextAttempt(template, unsigned_request, recovery)
    await learn_field_lessons(runtime, template.target, attempt.upstream, action.lessons, attempt.failure_text)
    # The plan stays: the fields are changed in the body as it is sent.
    return NextAttempt(template, prepared_request, recovery)


async def _take_back_vain_changes(
    runtime: SessionRuntime, template: RequestTemplate, recovery: RecoveryState, attempt: Attempt
) -> None:
    """Take back the changes that were meant to satisfy the provider and brought no answer.

    They would otherwise stay in force for the rest of the session, although the refusals are about something else. Of
    the form, that is what this run changed: what an earlier run learned brought it an answer. Of signatures and fields
    it is what the last refusal names again; a field that it no longer names was changed for a reason.
    """
    refusal = attempt.refusal
    if recovery.tried_forms:
        tried_forms = recovery.tried_forms
        requires_strict_form = runtime.requires_strict_form and "strict" not in tried_forms
        requires_check = runtime.requires_check and "checked" not in tried_forms
        await _record_accepted_form(runtime, requires_strict_form=requires_strict_form, requires_check=requires_check)
    if refusal.is_signature_error and not template.request_options.observe_only:
        await restore_signatures(runtime)
    if _may_change_request(runtime, template, refusal):
        await forget_wrong_lessons(runtime, template.target, attempt.upstream, attempt.named_fields)


async def _record_accepted_form(runtime: SessionRuntime, *, requires_strict_form: bool, requires_check: bool) -> None:
    journal = runtime.journal
    await runtime.resources.run_in_worker(
        lambda: journal.record_accepted_form(requires_strict_form=requires_strict_form, requires_check=requires_check)
    )


async def _decide_attempt_in_other_form(
    runtime: SessionRuntime,
    template: RequestTemplate,
    prepared_request: PreparedRequest,
    recovery: RecoveryState,
    attempt: Attempt,
) -> NextAttempt | None:
    """Return the request without a container that is gone, or in another form; None if neither is the problem."""
    refusal = attempt.refusal
    if attempt.expired_container and _may_change_request(runtime, template, refusal):
        # It cannot loop: each time one more container is left out for good.
        ended = await end_container(runtime, template.target, prepared_request, attempt.expired_container)
        return NextAttempt(template, ended, recovery)
    # A refusal that names a field is about that field, so the form as a whole is left alone.
    may_be_about_form = refusal.kind in _FORM_REFUSALS and not refusal.has_answer_started and not refusal.field_lessons
    if not may_be_about_form or template.request_options.observe_only:
        return None
    form: RequestForm
    if template.target.dialect.keeps_client_content:
        form, next_request = "strict", await _switch_to_strict_form(runtime, template, prepared_request)
    else:
        form, next_request = "checked", await _switch_to_checks(runtime, template, prepared_request)
    if next_request is None:
        return None
    return NextAttempt(*next_request, replace(recovery, tried_forms=(*recovery.tried_forms, form)))


async def _switch_to_strict_form(
    runtime: SessionRuntime, template: RequestTemplate, prepared_request: PreparedRequest
) -> NextRequest | None:
    """Return the request in the form that the API's maker documents, or None if it has that form already.

    Requests to a server other than the maker's keep what their client wrote, since such servers accept more. When one
    refuses that, this and all later requests of the session are normalized by the maker's rules.
    """
    run_in_worker = runtime.resources.run_in_worker
    strict_dialect = replace(template.target.dialect, keeps_client_content=False)
    strict_target = replace(template.target, dialect=strict_dialect)
    strict_template = replace(template, target=strict_target)
    inputs = await run_in_worker(lambda: compacting.make_runtime_plan_inputs(runtime, strict_template))
    plan = await run_in_worker(lambda: runtime.journal.plan_next(strict_target, inputs))
    if plan.normalization == prepared_request.plan.normalization:
        return None
    # Recorded before the send: after a crash the next request must not repeat the refused form.
    await _record_accepted_form(runtime, requires_strict_form=True, requires_check=runtime.requires_check)
    runtime.emit_event(events.NoticeGiven(runtime.key, "form", _STRICT_FORM_NOTICE))
    return NextRequest(strict_template, await decide_next_request(runtime, strict_template, inputs, plan))


async def _switch_to_checks(
    runtime: SessionRuntime, template: RequestTemplate, prepared_request: PreparedRequest
) -> NextRequest | None:
    """Return the same request, to be checked and fixed as it is sent, if that may be what its API wants.

    From then on the client's own bodies are checked in this session. Return None if they are checked already, and if
    this one breaks no rule, or one that cannot be fixed here.
    """
    is_ever_checked = runtime.resources.check_mode == "changed" and runtime.knows_message_rules(template.target.dialect)
    if runtime.requires_check or not is_ever_checked:
        return None
    upstream_request = template.build_upstream_request(prepared_request)
    if not template.is_client_body(upstream_request.body):
        return None
    version = find_header_version(template.request_options.upstream or runtime.resources.upstream)
    try:
        result = check_request(replace(upstream_request, version=version), template.target.dialect)
    except InvalidRequest:  # it breaks a rule, and no fix is known
        return None
    if not result.fixed_rule:
        return None
    # The next attempt fixes the body, since `requires_check` holds from here on.
    await _record_accepted_form(runtime, requires_strict_form=runtime.requires_strict_form, requires_check=True)
    return NextRequest(template, prepared_request)


async def commit_without_signatures(runtime: SessionRuntime, template: RequestTemplate) -> PreparedRequest | None:
    """Return the request without signed parts, decided and in the log, or None if nothing in it is signed."""
    target = template.target
    return await drop_signatures(runtime, target, lambda plan: runtime.commit_plan(plan, target, PlanInputs()))


async def _announce_and_shrink(
    runtime: SessionRuntime,
    template: RequestTemplate,
    prepared_request: PreparedRequest,
    shrink: Shrink,
    attempt: Attempt,
) -> NextRequest | str:
    compactions = runtime.journal.state.counters.compactions_since_answer
    runtime.emit_event(events.ShrinkStarted(runtime.key, shrink.step, compactions))
    limited_template = _halve_byte_limit(template, attempt, shrink)
    return await shrink_request(
        runtime, limited_template, prepared_request, shrink, refused_media=attempt.refused_media
    )


def _halve_byte_limit(template: RequestTemplate, attempt: Attempt, shrink: Shrink) -> RequestTemplate:
    """Return ``template`` limited to half the bytes of a body that was too long, if the provider named no limit.

    The step "media" then drops media until the body fits. That step is tried once, so the guess must be bold: half is
    chosen by judgement.
    """
    verdict = attempt.verdict
    is_unknown_byte_limit = verdict.kind == "request_bytes" and not verdict.max_bytes
    if shrink.step != "media" or not is_unknown_byte_limit:
        return template
    dialect = template.target.dialect
    smaller_dialect = replace(dialect, max_bytes=min(dialect.max_bytes, attempt.body_size // 2))
    return replace(template, target=replace(template.target, dialect=smaller_dialect))


async def shrink_request(
    runtime: SessionRuntime,
    template: RequestTemplate,
    prepared_request: PreparedRequest,
    shrink: Shrink,
    *,
    refused_media: tuple[str, ...] | None = None,
) -> NextRequest | str:
    """Return the request made smaller by the step in ``shrink``, or the outcome that says why it did not get smaller.

    The outcome is a `CompactionOutcome`, or a word of ``SUMMARY_TOO_LARGE_MESSAGES``.
    """
    inputs = await runtime.resources.run_in_worker(lambda: compacting.make_runtime_plan_inputs(runtime, template))
    if shrink.step == "output":
        lowered_template = _lower_output_limit(runtime, template, prepared_request)
        if isinstance(lowered_template, str):
            return lowered_template
        return NextRequest(lowered_template, await decide_next_request(runtime, lowered_template, inputs))
    # Only the step that compacts may wait for a summary; the later ones cut what is there without asking a model.
    can_summarize = inputs.can_summarize and shrink.step == "compact"
    inputs = replace(inputs, overflow_step=shrink.step, can_summarize=can_summarize, refused_media=refused_media)
    smaller_request = await decide_smaller_request(runtime, template, inputs, shrink.step)
    if isinstance(smaller_request, str):
        return smaller_request
    return NextRequest(template, smaller_request)


def _lower_output_limit(
    runtime: SessionRuntime, template: RequestTemplate, prepared_request: PreparedRequest
) -> RequestTemplate | str:
    """Return ``template`` with a lower limit for the answer, or the outcome that says why that would not help.

    For providers that count the requested output into the window. The limit is halved at least, so that an estimate of
    the prompt that is too low does not lead to the same refusal again.
    """
    state, settings = runtime.journal.state, runtime.settings
    target = compute_effective_target(template.target, state, settings)
    remaining_tokens = target.limits.window - estimate_request_tokens(state, target)
    current_output = _get_rendered_max_output(template, prepared_request, prepared_request.plan.options)
    if current_output is None:
        return "not_smaller"
    wanted_output = max(settings.reserve.min, min(current_output // 2, remaining_tokens))
    # The body may ask for more than is wanted: its limit stays above the tokens that the model may think in.
    wanted_options = PlanOptions(max_tokens=wanted_output)
    new_output = _get_rendered_max_output(template, prepared_request, wanted_options) or wanted_output
    if new_output >= current_output:
        return "not_smaller"
    if remaining_tokens < new_output:
        return "too_large_without_it"
    limits = replace(template.target.limits, requested_output=new_output)
    return replace(template, target=replace(template.target, limits=limits), max_output=new_output)


def _get_rendered_max_output(
    template: RequestTemplate, prepared_request: PreparedRequest, options: PlanOptions
) -> int | None:
    """Return the output limit in the body rendered with ``options``, or None if the body sets none.

    It is always above the thinking budget of the request. That budget is not lowered: changing it would invalidate the
    provider's cache of all messages.
    """
    request_with_options = replace(prepared_request, plan=replace(prepared_request.plan, options=options))
    body = template.render_body(request_with_options, ())
    return parse_request(body, template.target.api).requested_max_tokens


def make_final_error(
    runtime: SessionRuntime,
    prepared_request: PreparedRequest,
    stop: Stop,
    attempt: Attempt,
) -> UpstreamError:
    """Build the error that ends a run: the measured sizes, and what the user can do."""
    verdict = attempt.verdict
    if stop.kind != CONTEXT_OVERFLOW_KIND:
        text = format_stop_message(stop, attempt.refusal, provider_message=attempt.failure_text)
        return UpstreamError(text, verdict.kind, verdict.retry_after)
    target = prepared_request.target
    text = format_stop_message(
        stop,
        attempt.refusal,
        window=target.limits.window,
        min_tokens=estimate_irreducible_tokens(runtime.journal.state, target, runtime.settings),
        provider_message=attempt.failure_text,
    )
    return ContextOverflow(text, verdict.kind)
