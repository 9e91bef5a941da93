"""Overflow steps: reductions that recovery asks for after the provider refused a request as too large.

They run whatever the triggers of the policy say. The step ``compact`` is not among them: the compaction stage does it.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.planning.builder import PlanBuilder
from holdfast.planning.stages.media import drop_shown_media
from holdfast.planning.stages.smallest_request import build_smallest_request
from holdfast.planning.stages.truncate import truncate_results_after_overflow


def apply_overflow_step(builder: PlanBuilder) -> PlanBuilder:
    """Reduce the request as ``PlanInputs.overflow_step`` says, or add a notice if that step can reduce nothing."""
    step = builder.inputs.overflow_step
    reduce_request = _STEP_STAGES.get(step)
    if reduce_request is None:
        return builder
    reduced = reduce_request(builder)
    # A step that decides nothing returns the very same builder.
    if reduced is builder:
        return builder.add_notice("not-smaller", _NO_EFFECT_REASONS[step])
    return reduced


_STEP_STAGES: dict[str, Callable[[PlanBuilder], PlanBuilder]] = {
    "truncate": truncate_results_after_overflow,
    "media": drop_shown_media,
    "fallback": build_smallest_request,
}
_NO_EFFECT_REASONS = {
    "truncate": "no result is over its limit, or results were already cut since the last answer",
    "media": "no images or documents are shown",
    "fallback": "the request cannot be made smaller",
}
"""Text of the notice that a step reduced nothing."""
