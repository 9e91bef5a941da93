"""How many tokens a request has: the estimate of its messages, calibrated by what providers reported."""

from __future__ import annotations

from holdfast.state.branch.branch import Branch
from holdfast.state.branch.view import held_for, native_for
from holdfast.state.calibration.calibration import HIGHEST, LOWEST
from holdfast.state.calibration.model_stats import known_of
from holdfast.state.target import Target

PRIOR_WEIGHT = 2_000
"""Estimated tokens of evidence that the prior of a model counts for."""
UNSEEN_MARGIN = 1.10
"""Before any usage was reported the estimate is rounded up by a tenth."""


def frame_tokens(target: Target) -> int:
    """Return the tokens of system prompt and tools: as told, or as estimated times the model's prior."""
    frame = target.frame
    return frame.tokens if frame.exact else round(frame.tokens * target.prior)


def ratio(branch: Branch, target: Target) -> float:
    """Return real tokens for one estimated token: the model's prior, moved by the usage reported so far."""
    gauge = known_of(branch, target.model).gauge
    value = (gauge.true + PRIOR_WEIGHT * target.prior) / (gauge.estimated + PRIOR_WEIGHT)
    return min(HIGHEST, max(LOWEST, value))


def cautious_ratio(branch: Branch, target: Target) -> float:
    """Return the ratio by which plans are made: a tenth more while no usage was reported.

    It leaves the bounds of the calibration where ``measured_ratio`` does.
    """
    is_measured = branch.measured is not None and is_same_model(branch, target)
    told = is_measured or known_of(branch, target.model).gauge.estimated > 0
    scale = ratio(branch, target) * (1.0 if told else UNSEEN_MARGIN)
    measured = measured_ratio(branch, target)
    return measured if measured > HIGHEST else scale


def measured_ratio(branch: Branch, target: Target) -> float:
    """Return real tokens for one estimated token as reported usage has them, unbounded; 0.0 where none was reported.

    Texts that were redacted after they were counted have seven times their tokens and more. A summary planned by less
    would be as large as what it stands for. Two measures must agree, and the smaller one counts: the newest request as
    a whole, which a frame larger than anybody told would raise, and how requests grew, which one odd count would.
    """
    gauge = known_of(branch, target.model).gauge
    request = branch.measured if is_same_model(branch, target) else None
    if request is None or request.held <= 0 or gauge.estimated <= 0:
        return 0.0
    whole = (request.tokens - frame_tokens(target)) / request.held
    growth = gauge.true / gauge.estimated
    return max(0.0, min(whole, growth))


def is_same_model(branch: Branch, target: Target) -> bool:
    """Return whether this model is the one that was asked last: what it counted is a measure of the next request."""
    return branch.model == target.model or not (branch.model and target.model)


def estimate(branch: Branch, target: Target, held: int | None = None) -> int:
    """Return the tokens of the request that ``branch`` makes now: frame, messages and overhead.

    The last reported usage counts for the prefix it was measured on, if that prefix still stands; the rest is our
    own count, calibrated. What a provider compacted has its size there, and its readable twin's elsewhere. ``held``
    puts another size of the projection in place of the branch's own.
    """
    if held is None:
        return _measured(branch, target, held_for(branch, target.model, target.api))
    return frame_tokens(target) + round(cautious_ratio(branch, target) * held)


def _measured(branch: Branch, target: Target, held: int) -> int:
    """Return the tokens of a projection of ``held``: as told of the prefix that was measured, if there is one."""
    scale = cautious_ratio(branch, target)
    anchor = branch.anchor if is_same_model(branch, target) else None
    if anchor is not None and anchor.native == native_for(branch, target.model, target.api):
        return anchor.tokens + round(scale * (held - anchor.held))
    return frame_tokens(target) + round(scale * held)


def refused_size(branch: Branch, target: Target) -> int:
    """Return what ``estimate`` says now of the smallest request that was refused without a number."""
    return _measured(branch, target, known_of(branch, target.model).learned.refused)
