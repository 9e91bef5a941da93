"""Compaction by the provider itself: the head of a conversation goes out as it was shown, and comes back as its items.

Nothing is written down here. What the provider makes only it can read, and only for the same model: the readable twin
is the planner's.
"""

from __future__ import annotations

from collections.abc import Sequence

from anyio import move_on_after
from msgspec import Raw
from msgspec.structs import replace

from holdfast.engine.compaction.summary_writer import CompactionContext
from holdfast.engine.log.journal import PreparedRequest
from holdfast.engine.request_template import RequestTemplate
from holdfast.engine.upstream.replies import ask_upstream as asked
from holdfast.engine.upstream.upstream import Upstream, UpstreamRequest
from holdfast.errors import CompactionFailed, HoldfastError, UpstreamError
from holdfast.messages.message import Message
from holdfast.messages.sized_message import SizedMessage
from holdfast.planning.budget import apply_learned_limits, apply_window_cap, check_budget
from holdfast.planning.builder import PlanBuilder
from holdfast.planning.extract.summary_builder import build_compaction, build_head_messages
from holdfast.planning.extract.user_words import quote_user_messages
from holdfast.planning.pipeline import Policy, plan_request
from holdfast.planning.stages.compaction import compute_summary_share
from holdfast.planning.summary.prompts import clip_focus
from holdfast.providers.common.compaction import add_beta_header
from holdfast.providers.native_compaction import (
    NativeCompactionFailure,
    NativeCompactionResult,
    build_compaction_from_answer,
    build_native_compaction_request,
    count_parts_before_compaction,
    find_required_betas,
    parse_native_compaction,
    returns_user_words,
)
from holdfast.state.conversation_state import ConversationState
from holdfast.state.entries import TRANSIENT_ERROR_KINDS, CompactionEntry
from holdfast.state.plan import Plan, SummaryRequest
from holdfast.state.target import PlanInputs, Target
from holdfast.state.view import apply_normalization, build_projection, list_projection_origins


async def compact_by_provider(
    upstream: Upstream,
    upstream_request: UpstreamRequest,
    context: CompactionContext = CompactionContext(),
    *,
    instructions: str = "",
    extra_texts: Sequence[str] = (),
) -> Raw:
    """Return what the provider made of all that ``upstream_request`` shows, as ``CompactionEntry.native``.

    The texts ``extra_texts`` it follow as the user's. Raises ``CompactionFailed`` with what became of it:
    ``nothing_to_compact``, ``summary_rejected``, ``provider_error``, ``cancelled``, or ``timed_out`` after
    ``summarizer.timeout_seconds``.
    """
    settings = context.settings
    compaction_request = build_native_compaction_request(
        upstream_request.api,
        upstream_request.body,
        instructions=clip_focus(instructions, settings.summarizer.focus_chars),
    )
    request_headers = add_beta_header(
        upstream_request.headers, find_required_betas(upstream_request.api, compaction_request.body)
    )
    compact_request = replace(
        upstream_request,
        body=compaction_request.body,
        endpoint=compaction_request.endpoint,
        stream=False,
        headers=request_headers,
    )
    with move_on_after(settings.summarizer.timeout_seconds):
        result = await _compact_with_retries(upstream, compact_request, context)
        return result.append_user_texts(upstream_request.api, extra_texts).to_stored_json(
            upstream_request.api, upstream_request.model
        )
    hint = "raise summarizer.timeout_seconds, or go on without"
    late = f"the provider did not compact in {settings.summarizer.timeout_seconds:g} s; {hint}"
    raise CompactionFailed(late, "timed_out")


async def _compact_with_retries(
    upstream: Upstream, upstream_request: UpstreamRequest, context: CompactionContext
) -> NativeCompactionResult:
    """Return the compaction; where only the provider is at fault, up to ``summarizer.max_attempts`` are made."""
    attempt = 1
    while True:
        result = await _try_compaction(upstream, upstream_request, context)
        if isinstance(result, NativeCompactionResult):
            return result
        if not result.is_retryable or attempt >= context.settings.summarizer.max_attempts:
            raise CompactionFailed(result.reason, result.outcome)
        await context.wait_before_retry(result.outcome, attempt, result.retry_after)
        attempt += 1


async def _try_compaction(
    upstream: Upstream, upstream_request: UpstreamRequest, context: CompactionContext
) -> NativeCompactionResult | NativeCompactionFailure:
    try:
        async with context.hold_permit():
            answer = await asked(upstream, upstream_request)
            context.record_cost(upstream_request, answer)
            return parse_native_compaction(upstream_request.api, answer)
    except UpstreamError as error:
        why = f"the provider did not compact ({error.kind}): {error}"
        return NativeCompactionFailure("provider_error", why, error.kind in TRANSIENT_ERROR_KINDS, error.retry_after)
    except Exception as error:
        if isinstance(error, HoldfastError):
            raise
        why = f"the provider did not compact ({type(error).__name__}): {error}"
        return NativeCompactionFailure("provider_error", why, is_retryable=isinstance(error, OSError))


# -- the request -------------------------------------------------------------------------------------------------------


def build_head_request(
    state: ConversationState, template: RequestTemplate, stop: int, policy: Policy = Policy()
) -> UpstreamRequest:
    """Return ``template`` as it shows the slots before ``stop`` and no more, just as they were shown before."""
    plan = plan_request(state, template.target, replace(policy, stages=()))
    sized_messages = _select_head_messages(plan, stop)
    last = len(sized_messages) - 1
    markers = (
        (last, *[place for place in plan.options.cache_breakpoints if place < last])
        if plan.options.cache_breakpoints
        else ()
    )
    options = replace(plan.options, cache_breakpoints=markers)
    return template.build_upstream_request(
        PreparedRequest(replace(plan, options=options), sized_messages, "", template.target)
    )


def _select_head_messages(plan: Plan, stop: int) -> tuple[SizedMessage, ...]:
    place = sum(index < stop for index in list_projection_origins(plan.state))
    repairs = [edit for edit in plan.normalization if edit.span.stop <= place]
    return tuple(apply_normalization(build_projection(plan.state)[:place], repairs))


def quote_user_words(state: ConversationState, target: Target, summary_request: SummaryRequest, policy: Policy) -> str:
    """Return the user's words before the slot where ``summary_request`` stops, as an extract quotes them.

    They stand beside a compaction that keeps none of them: the request under way may be one, and rules are. Nothing
    where the provider keeps them itself.
    """
    if returns_user_words(target.api):
        return ""
    builder = _make_plan_builder(state, target, policy)
    is_open = not any(
        sized_message.message.is_turn_start
        for sized_message in state.history.sized_messages.slice(summary_request.stop)
    )
    budget = int(builder.to_estimator_tokens(summary_request.max_tokens) * policy.settings.summary.user_share)
    goal, other_words = quote_user_messages(
        [sized_message.message for sized_message in build_head_messages(builder, summary_request.stop)],
        budget,
        is_open=is_open,
    )
    return "\n\n".join([*goal, *other_words])


# -- what the provider compacted while it answered ---------------------------------------------------------------------


def extract_server_compaction(state: ConversationState, target: Target, policy: Policy) -> CompactionEntry | None:
    """Return the compaction that the newest answer brought along, with its readable twin; nothing where it has none.

    Once it is in the log, no later request shows what lies before it.
    """
    index = len(state.history.sized_messages) - 1
    if index < 0 or not count_parts_before_compaction(state.history.sized_messages[index].message):
        return None
    builder = _make_plan_builder(state, target, policy)
    extract = build_compaction(
        builder, index, builder.budget.compute_share(compute_summary_share(builder.budget, builder.settings))
    )
    twin = extract.summary if extract is not None else None
    compaction = build_compaction_from_answer(
        target.api, target.model, state.history.sized_messages[index].message, index, twin or Message("user")
    )
    if compaction is None:
        return None
    return replace(
        compaction,
        tokens_before=builder.estimated_tokens,
        tokens_after=builder.add_compaction(compaction).estimated_tokens,
    )


def _make_plan_builder(state: ConversationState, target: Target, policy: Policy) -> PlanBuilder:
    settings = policy.settings
    learned_target = apply_learned_limits(target, state, settings)
    return PlanBuilder(
        state,
        apply_window_cap(learned_target, settings),
        settings,
        PlanInputs(),
        check_budget(learned_target, settings, policy.rules)[0],
        policy.rules,
    )
