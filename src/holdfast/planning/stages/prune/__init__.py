"""Prune: old results and answered images give way to a line. Each rule says when, and which; it is decided once."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.planning.builder import PlanBuilder
from holdfast.planning.presets.prune_idle import prune_after_idle
from holdfast.planning.presets.prune_images import build_seen_image_edits
from holdfast.planning.presets.prune_opencode import prune_like_opencode
from holdfast.planning.presets.prune_ttl import prune_expired_results
from holdfast.planning.stages.prune.epoch import prune_at_epoch
from holdfast.planning.stages.prune.shown import CLEARED_RESULT_TEXT

__all__ = ["CLEARED_RESULT_TEXT", "prune_results"]

_PRUNE_RULES: dict[str, Callable[[PlanBuilder], PlanBuilder]] = {
    "epoch": prune_at_epoch,
    "opencode": prune_like_opencode,
    "idle": prune_after_idle,
    "ttl": prune_expired_results,
}
"""Ours stores what it clears; those of others keep no text to read back."""


def prune_results(builder: PlanBuilder) -> PlanBuilder:
    """Return the draft with answered images left out and old results cleared, as the policy says of each."""
    builder = builder.add_edits(tuple(build_seen_image_edits(builder)))
    rule = _PRUNE_RULES.get(builder.settings.prune)
    return builder if rule is None else rule(builder)
