"""The baselines that other policies are compared with: nothing ever goes, or the oldest messages do."""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.messages.cut_points import find_cut_points
from holdfast.planning.builder import PlanBuilder
from holdfast.planning.presets.preset import BARE_CACHE, BARE_COMPACTION, BARE_SETTINGS, Preset
from holdfast.planning.settings import RecoverySettings, WindowSettings
from holdfast.planning.stages.order import OWN_STAGES, insert_stages
from holdfast.state.entries import CompactionEntry


def hide_oldest_messages(builder: PlanBuilder) -> PlanBuilder:
    """Return the plan with its oldest messages out of sight until the request fits; no summary stands for them."""
    state, settings = builder.state, builder.settings
    margin = int(settings.window.estimate_margin_share * builder.budget.message_tokens)
    excess = builder.estimated_tokens + margin - builder.budget.usable
    may_hide = settings.compaction.auto or builder.inputs.is_compaction_requested
    if excess <= 0 or not may_hide:
        return builder
    goal = builder.to_estimator_tokens(excess)
    for cut_offset in find_cut_points(state.history.messages.slice(state.view.first_kept))[1:]:
        keep = state.view.first_kept + cut_offset
        freed_tokens = state.history.cumulative_tokens[keep - 1] - (
            state.history.cumulative_tokens[state.view.first_kept - 1] if state.view.first_kept else 0
        )
        if freed_tokens >= goal and keep < len(state.history.sized_messages):
            return builder.add_compaction(CompactionEntry(keep, trigger="slide"))
    return builder


_NO_COMPACTION = replace(BARE_COMPACTION, enabled=False)

APPEND_ONLY = Preset(
    "nothing is ever taken away; the baseline for cost",
    replace(BARE_SETTINGS, compaction=_NO_COMPACTION, cache=BARE_CACHE, recovery=RecoverySettings(steps=())),
)
SLIDING = Preset(
    "the oldest messages go when the window is full; nothing stands for them",
    replace(
        BARE_SETTINGS,
        window=WindowSettings(min_budget=0, estimate_margin_share=0.05),
        compaction=_NO_COMPACTION,
        cache=BARE_CACHE,
    ),
    stages=insert_stages(OWN_STAGES, "overflow", ("slide", hide_oldest_messages)),
)
"""Without usage and without a summary to gain from, it trusts its estimate within five percent."""
