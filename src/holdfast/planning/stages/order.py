"""The stages of our own policy, in the order in which they run."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from holdfast.planning.builder import PlanBuilder
from holdfast.planning.stages.compaction import compact_conversation
from holdfast.planning.stages.escape_tags import escape_forged_tags
from holdfast.planning.stages.history_limit import limit_history_turns
from holdfast.planning.stages.media import limit_shown_media
from holdfast.planning.stages.overflow_steps import apply_overflow_step
from holdfast.planning.stages.prune.prune_at_epoch import prune_at_epoch
from holdfast.planning.stages.spill_largest import spill_largest_texts
from holdfast.planning.stages.tool_results import spill_large_results

Stage: TypeAlias = Callable[[PlanBuilder], PlanBuilder]
"""A pure step of planning: takes the builder of a plan and returns it with decisions added (``add_edits``, …)."""
NamedStages: TypeAlias = tuple[tuple[str, Stage], ...]

# New content is reduced first: what is spilled at once never was in the cached prefix, and its tags are escaped before
# any request shows them. Then old content gives way, the cheapest first: media, old results when the prefix breaks
# anyway, and a compaction only if that was not enough. The last stage makes the request fit at any cost.
OWN_STAGES: NamedStages = (
    ("history", limit_history_turns),
    ("results", spill_large_results),
    ("tags", escape_forged_tags),
    ("media", limit_shown_media),
    ("prune", prune_at_epoch),
    ("overflow", apply_overflow_step),
    ("compaction", compact_conversation),
    ("largest", spill_largest_texts),
)
"""The stages of our own policy by name, in the order in which they run."""


def insert_stages(stages: NamedStages, name: str, *new: tuple[str, Stage]) -> NamedStages:
    """Return ``stages`` with the ``new`` ones inserted before the one called ``name``."""
    position = [stage_name for stage_name, _ in stages].index(name)
    return (*stages[:position], *new, *stages[position:])


def replace_stages(stages: NamedStages, **new: Stage) -> NamedStages:
    """Return ``stages`` with those replaced that ``new`` names."""
    return tuple((name, new.get(name, stage)) for name, stage in stages)
