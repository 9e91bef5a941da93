"""How many tokens a request has: our estimate of its messages, calibrated by what providers reported."""

from __future__ import annotations

from holdfast.state.calibration.calibration import MAX_CALIBRATION_RATIO, MIN_CALIBRATION_RATIO
from holdfast.state.calibration.model_stats import get_model_stats
from holdfast.state.conversation_state import ConversationState
from holdfast.state.target import Target
from holdfast.state.view import get_native_tokens, get_shown_tokens, get_valid_measured_request

PRIOR_WEIGHT = 2_000
"""Weight of a model's prior ratio, in estimated tokens of evidence.

A first answer of a few hundred tokens then moves the ratio a little, and some 10,000 tokens outweigh the prior.
"""
UNSEEN_MARGIN = 1.10
"""Factor on estimates before any usage was reported.

Too high an estimate wastes a little of the window at the first request; too low a one may get it refused.
"""


def get_setup_tokens(target: Target) -> int:
    """Return the tokens of system prompt and tools: the exact number if known, else the estimate times the prior."""
    setup = target.setup
    if setup.is_exact:
        return setup.tokens
    return round(setup.tokens * target.prior_ratio)


def get_calibrated_ratio(state: ConversationState, target: Target) -> float:
    """Return the real tokens for one estimated token: the model's prior, moved by the usage reported so far."""
    calibration = get_model_stats(state, target.model).calibration
    real_tokens = calibration.real_tokens + PRIOR_WEIGHT * target.prior_ratio
    ratio = real_tokens / (calibration.estimated_tokens + PRIOR_WEIGHT)
    return min(MAX_CALIBRATION_RATIO, max(MIN_CALIBRATION_RATIO, ratio))


def get_planning_ratio(state: ConversationState, target: Target) -> float:
    """Return the ratio to plan with: the calibrated one, with a margin as long as no usage was reported.

    It exceeds the bounds of the calibration if ``get_measured_ratio`` does.
    """
    measured_ratio = get_measured_ratio(state, target)
    if measured_ratio is not None and measured_ratio > MAX_CALIBRATION_RATIO:
        return measured_ratio
    ratio = get_calibrated_ratio(state, target)
    is_measured = state.usage.measured_request is not None and is_last_model(state, target)
    has_usage = is_measured or get_model_stats(state, target.model).calibration.estimated_tokens > 0
    return ratio if has_usage else ratio * UNSEEN_MARGIN


def get_measured_ratio(state: ConversationState, target: Target) -> float | None:
    """Return the real tokens for one estimated token by reported usage alone, unbounded; None if none was reported.

    Needed for sessions whose texts were redacted after the provider counted them: their usage is seven to twenty times
    the size of the texts now, and a summary planned by a lower ratio would be as large as the text it replaces.

    The ratio is measured in two ways, each of which can come out too high by itself: on the newest request as a whole
    (too high if its setup was larger than we know) and on the growth from request to request (too high after one odd
    count). So the lower of the two is returned.
    """
    calibration = get_model_stats(state, target.model).calibration
    request = state.usage.measured_request if is_last_model(state, target) else None
    if request is None or request.shown_tokens <= 0 or calibration.estimated_tokens <= 0:
        return None
    # The reported tokens include the setup, but ``shown_tokens`` are those of the messages alone.
    whole_ratio = (request.reported_tokens - get_setup_tokens(target)) / request.shown_tokens
    growth_ratio = calibration.real_tokens / calibration.estimated_tokens
    return max(0.0, min(whole_ratio, growth_ratio))


def is_last_model(state: ConversationState, target: Target) -> bool:
    """Return whether the target's model was asked last, so that its counts are a measure of the next request.

    An unknown model, on either side, counts as the same one.
    """
    return state.last_request.model == target.model or not (state.last_request.model and target.model)


def estimate_request_tokens(state: ConversationState, target: Target, shown_tokens: int | None = None) -> int:
    """Return the tokens of the request that ``state`` makes now: setup, messages and overhead.

    The measured request counts as reported if its content is still shown the same, and only the rest is our calibrated
    estimate. With ``shown_tokens``, estimate a request that shows that many estimated tokens instead, without reference
    to the measured one.
    """
    if shown_tokens is None:
        return _estimate_from_measurement(state, target, get_shown_tokens(state, target.model, target.api))
    return get_setup_tokens(target) + round(get_planning_ratio(state, target) * shown_tokens)


def _estimate_from_measurement(state: ConversationState, target: Target, shown_tokens: int) -> int:
    """Return the tokens of a projection of ``shown_tokens``, counted from the measured request if there is one."""
    ratio = get_planning_ratio(state, target)
    if is_last_model(state, target):
        measured_request = get_valid_measured_request(state)
    else:
        measured_request = None
    # The measurement holds only where the head has the same size: another API is shown the readable summary in place of
    # the provider's own compaction items.
    native_tokens = get_native_tokens(state, target.model, target.api)
    if measured_request is not None and measured_request.native_tokens == native_tokens:
        return measured_request.reported_tokens + round(ratio * (shown_tokens - measured_request.shown_tokens))
    return get_setup_tokens(target) + round(ratio * shown_tokens)


def estimate_smallest_refused_request(state: ConversationState, target: Target) -> int:
    """Return today's estimate, in tokens, of the smallest request that was refused without a number."""
    learned_limits = get_model_stats(state, target.model).learned_limits
    return _estimate_from_measurement(state, target, learned_limits.smallest_refused_estimate)
