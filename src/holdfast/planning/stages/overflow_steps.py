"""Overflow steps: what recovery asks for beside a compaction, whatever the policy's own triggers say."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.planning.builder import PlanBuilder
from holdfast.planning.stages.media import drop_shown_media
from holdfast.planning.stages.smallest_request import build_smallest_request
from holdfast.planning.stages.truncate import truncate_results_after_overflow


def apply_overflow_step(builder: PlanBuilder) -> PlanBuilder:
    """Return the draft made smaller as ``PlanInputs.overflow_step`` says; where that decides nothing, a notice says
    so.
    """
    step = _STEP_STAGES.get(builder.inputs.overflow_step)
    if step is None:
        return builder
    smaller_draft = step(builder)
    if smaller_draft is builder:
        return builder.add_notice("not-smaller", _NO_EFFECT_REASONS[builder.inputs.overflow_step])
    return smaller_draft


_STEP_STAGES: dict[str, Callable[[PlanBuilder], PlanBuilder]] = {
    "truncate": truncate_results_after_overflow,
    "media": drop_shown_media,
    "fallback": build_smallest_request,
}
_NO_EFFECT_REASONS = {
    "truncate": "no result is over its limit, or they were cut since the last answer",
    "media": "no images or documents are shown",
    "fallback": "this is the smallest request there is",
}
"""Why an overflow step decides nothing."""
