"""The baselines that other policies are compared with: keep everything, or drop the oldest messages."""

from __future__ import annotations

from typing import ClassVar

from msgspec.structs import replace

from holdfast.messages.cut_points import find_cut_points
from holdfast.planning.builder import PlanBuilder
from holdfast.planning.policy_rules import PolicyRules
from holdfast.planning.presets.preset import BARE_CACHE, BARE_COMPACTION, BARE_SETTINGS, Preset
from holdfast.planning.settings import RecoverySettings, WindowSettings
from holdfast.planning.stages.order import OWN_STAGES, insert_stages
from holdfast.state.entries import CompactionEntry


def hide_oldest_messages(builder: PlanBuilder) -> PlanBuilder:
    """Hide the oldest messages until the request fits, without anything in their place."""
    state, settings = builder.state, builder.settings
    margin = int(settings.window.estimate_margin_share * builder.budget.message_tokens)
    excess = builder.estimated_tokens + margin - builder.budget.usable
    may_hide = settings.compaction.auto or builder.inputs.is_compaction_requested
    if excess <= 0 or not may_hide:
        return builder
    # Cumulative sums, in the estimator's tokens, give what each cut frees without measuring a message again.
    wanted_tokens = builder.to_estimator_tokens(excess)
    first_kept = state.view.first_kept
    cumulative_tokens = state.history.cumulative_tokens
    hidden_tokens = cumulative_tokens[first_kept - 1] if first_kept else 0
    for cut_offset in find_cut_points(state.history.messages.slice(first_kept))[1:]:
        keep = first_kept + cut_offset
        freed_tokens = cumulative_tokens[keep - 1] - hidden_tokens
        if freed_tokens >= wanted_tokens and keep < len(state.history.sized_messages):
            return builder.add_compaction(CompactionEntry(keep, trigger="slide"))
    return builder


class SlidingRules(PolicyRules, frozen=True):
    """The baseline puts nothing in place of what it drops."""

    restates_open_work: ClassVar[bool] = False


_NO_COMPACTION = replace(BARE_COMPACTION, enabled=False)

APPEND_ONLY = Preset(
    "keeps every message unchanged; the baseline for cost",
    replace(
        BARE_SETTINGS,
        compaction=_NO_COMPACTION,
        cache=BARE_CACHE,
        recovery=RecoverySettings(steps=()),
    ),
)
SLIDING = Preset(
    "drops the oldest messages when the window is full, without a summary",
    replace(
        BARE_SETTINGS,
        # Without usage to correct its estimate, and without a summary to gain room from, it needs a margin. Five
        # percent: chosen by judgement.
        window=WindowSettings(min_budget=0, estimate_margin_share=0.05),
        compaction=_NO_COMPACTION,
        cache=BARE_CACHE,
    ),
    SlidingRules(),
    stages=insert_stages(OWN_STAGES, "overflow", ("slide", hide_oldest_messages)),
)
