"""Compaction by the provider: it gets the head of a conversation as it was shown, and returns items of its API instead.

Only the provider can read these items, and only for the same model. So the planner keeps a summary that everybody can
read, an extract, in the same compaction: requests to other models show that one. Nothing is written to the log here.
"""

from __future__ import annotations

from collections.abc import Sequence

from anyio import move_on_after
from msgspec import Raw
from msgspec.structs import replace

from holdfast.engine.compaction.summary_writer import CompactionContext
from holdfast.engine.log.journal import PreparedRequest
from holdfast.engine.request_template import RequestTemplate
from holdfast.engine.upstream.upstream import Upstream, UpstreamRequest
from holdfast.errors import CompactionFailed, HoldfastError, UpstreamError
from holdfast.messages.message import Message
from holdfast.messages.sized_message import SizedMessage
from holdfast.planning.budget import apply_learned_limits, apply_window_cap, check_budget
from holdfast.planning.builder import PlanBuilder
from holdfast.planning.extract.summary_builder import build_compaction, build_head_messages
from holdfast.planning.extract.user_words import quote_user_messages
from holdfast.planning.pipeline import Policy, plan_request
from holdfast.planning.stages.compaction import compute_max_extract
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
    """Have the provider compact everything that ``upstream_request`` shows; return it as ``CompactionEntry.native``.

    ``extra_texts`` are appended to it as user messages. Raises ``CompactionFailed`` with the outcome
    ``nothing_to_compact``, ``summary_rejected``, ``provider_error``, ``cancelled``, or ``timed_out`` after
    ``summarizer.timeout_seconds``.
    """
    api, settings = upstream_request.api, context.settings.summarizer
    compaction_request = build_native_compaction_request(
        api, upstream_request.body, instructions=clip_focus(instructions, settings.focus_chars)
    )
    betas = find_required_betas(api, compaction_request.body)
    compact_request = replace(
        upstream_request,
        body=compaction_request.body,
        endpoint=compaction_request.endpoint,
        stream=False,
        headers=add_beta_header(upstream_request.headers, betas),
    )
    with move_on_after(settings.timeout_seconds):
        result = await _compact_with_retries(upstream, compact_request, context)
        return result.append_user_texts(api, extra_texts).to_stored_json(api, upstream_request.model)
    hint = "raise summarizer.timeout_seconds, or continue without"
    late = f"the provider did not compact in {settings.timeout_seconds:g} s; {hint}"
    raise CompactionFailed(late, "timed_out")


async def _compact_with_retries(
    upstream: Upstream, upstream_request: UpstreamRequest, context: CompactionContext
) -> NativeCompactionResult:
    """Return the compaction; failures of the provider are retried, up to ``summarizer.max_attempts`` calls in all."""
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
        answer = await context.ask(upstream, upstream_request)
        return parse_native_compaction(upstream_request.api, answer)
    except UpstreamError as error:
        reason = f"the provider did not compact ({error.kind}): {error}"
        is_retryable = error.kind in TRANSIENT_ERROR_KINDS
        return NativeCompactionFailure("provider_error", reason, is_retryable, error.retry_after)
    except HoldfastError:
        raise
    except Exception as error:  # noqa: BLE001 -- an upstream of the user's may raise anything; an extract still can be made
        reason = f"the provider did not compact ({type(error).__name__}): {error}"
        return NativeCompactionFailure("provider_error", reason, is_retryable=isinstance(error, OSError))


# -- the request -------------------------------------------------------------------------------------------------------


def build_head_request(
    state: ConversationState,
    template: RequestTemplate,
    stop: int,
    policy: Policy = Policy(),
) -> UpstreamRequest:
    """Build a request of ``template`` for the messages before ``stop``, exactly as they were shown before.

    Byte for byte the same prefix, so that the provider reads it from its cache.
    """
    plan = plan_request(state, template.target, replace(policy, stages=()))
    sized_messages = _select_head_messages(plan, stop)
    last = len(sized_messages) - 1
    breakpoints: tuple[int, ...] = ()
    if plan.options.cache_breakpoints:
        breakpoints = (last, *[index for index in plan.options.cache_breakpoints if index < last])
    plan = replace(plan, options=replace(plan.options, cache_breakpoints=breakpoints))
    return template.build_upstream_request(PreparedRequest(plan, sized_messages, "", template.target))


def _select_head_messages(plan: Plan, stop: int) -> tuple[SizedMessage, ...]:
    """Return the projected messages that come from the history before ``stop``, normalized as in ``plan``."""
    count = sum(index < stop for index in list_projection_origins(plan.state))
    head_edits = [edit for edit in plan.normalization if edit.span.stop <= count]
    return tuple(apply_normalization(build_projection(plan.state)[:count], head_edits))


def quote_user_words(
    state: ConversationState,
    target: Target,
    summary_request: SummaryRequest,
    policy: Policy,
) -> str:
    """Return the user's words before the end of ``summary_request``, quoted as in an extract, within its budget.

    Return "" if the provider's compaction keeps the user's words itself.
    """
    if returns_user_words(target.api):
        return ""
    builder = _make_plan_builder(state, target, policy)
    later_messages = state.history.sized_messages.slice(summary_request.stop)
    is_turn_open = not any(sized_message.message.is_turn_start for sized_message in later_messages)
    budget = int(builder.to_estimator_tokens(summary_request.max_tokens) * policy.settings.summary.user_share)
    head = [sized_message.message for sized_message in build_head_messages(builder, summary_request.stop)]
    goal, other_words = quote_user_messages(head, budget, is_open=is_turn_open)
    return "\n\n".join([*goal, *other_words])


# -- compaction by the provider while it answered ----------------------------------------------------------------------


def extract_server_compaction(state: ConversationState, target: Target, policy: Policy) -> CompactionEntry | None:
    """Return the provider's compaction in the newest answer, with a readable summary; None without such a compaction.

    Once it is in the log, later requests no longer show the messages before it.
    """
    index = len(state.history.sized_messages) - 1
    if index < 0:
        return None
    answer = state.history.sized_messages[index].message
    if not count_parts_before_compaction(answer):
        return None
    builder = _make_plan_builder(state, target, policy)
    extract_tokens = compute_max_extract(builder.budget.message_tokens, builder.settings)
    extract = build_compaction(builder, index, extract_tokens)
    readable_summary = extract.summary if extract is not None else None
    compaction = build_compaction_from_answer(
        target.api,
        target.model,
        answer,
        index,
        readable_summary or Message("user"),
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
