"""How many tokens a request has: the estimate of its messages, calibrated by what providers reported."""

from __future__ import annotations

from holdfast.state.calibration.calibration import MAX_CALIBRATION_RATIO, MIN_CALIBRATION_RATIO
from holdfast.state.calibration.model_stats import get_model_stats
from holdfast.state.conversation_state import ConversationState
from holdfast.state.target import Target
from holdfast.state.view import get_native_tokens, get_shown_tokens, get_valid_measured_request

PRIOR_WEIGHT = 2_000
"""Estimated tokens of evidence that the prior of a model counts for."""
UNSEEN_MARGIN = 1.10
"""Before any usage was reported the estimate is rounded up by a tenth."""


def get_setup_tokens(target: Target) -> int:
    """Return the tokens of system prompt and tools: as told, or as estimated times the model's prior."""
    setup = target.setup
    return setup.tokens if setup.is_exact else round(setup.tokens * target.prior_ratio)


def get_calibrated_ratio(state: ConversationState, target: Target) -> float:
    """Return real tokens for one estimated token: the model's prior, moved by the usage reported so far."""
    calibration = get_model_stats(state, target.model).calibration
    value = (calibration.real_tokens + PRIOR_WEIGHT * target.prior_ratio) / (
        calibration.estimated_tokens + PRIOR_WEIGHT
    )
    return min(MAX_CALIBRATION_RATIO, max(MIN_CALIBRATION_RATIO, value))


def get_planning_ratio(state: ConversationState, target: Target) -> float:
    """Return the ratio by which plans are made: a tenth more while no usage was reported.

    It leaves the bounds of the calibration where ``get_measured_ratio`` does.
    """
    is_measured = state.usage.measured_request is not None and is_last_model(state, target)
    has_usage = is_measured or get_model_stats(state, target.model).calibration.estimated_tokens > 0
    scale = get_calibrated_ratio(state, target) * (1.0 if has_usage else UNSEEN_MARGIN)
    usage_ratio = get_measured_ratio(state, target)
    return usage_ratio if usage_ratio > MAX_CALIBRATION_RATIO else scale


def get_measured_ratio(state: ConversationState, target: Target) -> float:
    """Return real tokens for one estimated token as reported usage has them, unbounded; 0.0 where none was reported.

    Texts that were redacted after they were counted have seven times their tokens and more. A summary planned by less
    would be as large as what it stands for. Two measures must agree, and the smaller one counts: the newest request as
    a whole, which a frame larger than anybody told would raise, and how requests grew, which one odd count would.
    """
    calibration = get_model_stats(state, target.model).calibration
    request = state.usage.measured_request if is_last_model(state, target) else None
    if request is None or request.shown_tokens <= 0 or calibration.estimated_tokens <= 0:
        return 0.0
    whole = (request.reported_tokens - get_setup_tokens(target)) / request.shown_tokens
    growth = calibration.real_tokens / calibration.estimated_tokens
    return max(0.0, min(whole, growth))


def is_last_model(state: ConversationState, target: Target) -> bool:
    """Return whether this model is the one that was asked last: what it counted is a measure of the next request."""
    return state.last_request.model == target.model or not (state.last_request.model and target.model)


def estimate_request_tokens(state: ConversationState, target: Target, shown_tokens: int | None = None) -> int:
    """Return the tokens of the request that ``state`` makes now: frame, messages and overhead.

    The last reported usage counts for the prefix it was measured on, if that prefix still stands; the rest is our own
    count, calibrated. What a provider compacted has its size there, and its readable twin's elsewhere. ``shown_tokens``
    puts another size of the projection in place of the branch's own.
    """
    if shown_tokens is None:
        return _estimate_from_measurement(state, target, get_shown_tokens(state, target.model, target.api))
    return get_setup_tokens(target) + round(get_planning_ratio(state, target) * shown_tokens)


def _estimate_from_measurement(state: ConversationState, target: Target, shown_tokens: int) -> int:
    """Return the tokens of a projection of ``shown_tokens``: as told of the prefix that was measured, if there is
    one.
    """
    scale = get_planning_ratio(state, target)
    measured_request = get_valid_measured_request(state) if is_last_model(state, target) else None
    if measured_request is not None and measured_request.native_tokens == get_native_tokens(
        state, target.model, target.api
    ):
        return measured_request.reported_tokens + round(scale * (shown_tokens - measured_request.shown_tokens))
    return get_setup_tokens(target) + round(scale * shown_tokens)


def estimate_smallest_refused_request(state: ConversationState, target: Target) -> int:
    """Return what ``estimate_request_tokens`` says now of the smallest request that was refused without a number."""
    return _estimate_from_measurement(
        state, target, get_model_stats(state, target.model).learned_limits.smallest_refused_estimate
    )
