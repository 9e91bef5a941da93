"""A named policy (settings, stages and rules), and the settings that the policies of other tools start from."""

from __future__ import annotations

from msgspec import Struct

from holdfast.planning.policy_rules import PolicyRules
from holdfast.planning.settings import (
    CacheSettings,
    CompactionSettings,
    HistorySettings,
    PruneSettings,
    ReserveSettings,
    ResultSettings,
    Settings,
    WindowSettings,
)
from holdfast.planning.stages.order import OWN_STAGES, NamedStages


class Preset(Struct, frozen=True):
    """A policy that can be chosen by name."""

    about: str
    """A description of one line."""
    settings: Settings = Settings()
    rules: PolicyRules = PolicyRules()
    """Its decisions inside the common stages, and the settings that only it has."""
    stages: NamedStages = OWN_STAGES


# The presets of other tools start from settings with our own mechanisms switched off: goals and minimum gains, the
# limit and the breaker of compactions, and the limits on results. A tool that has one of them sets it again in its
# preset: Claude Code spills large results and stops after three failed compactions, OpenClaw limits appended results.
BARE_COMPACTION = CompactionSettings(
    goal_share=0.0,
    large_trigger_share=1.0,
    min_gain_share=0.0,
    min_gain_tokens=0,
    max_per_answer=1_000,
    breaker_failures=0,
)
BARE_RESULTS = ResultSettings(
    spill_chars=0,
    spill_share=0.0,
    message_chars=0,
    message_share=0.0,
    outline_chars=0,
    append_chars=0,
)
BARE_SETTINGS = Settings(
    window=WindowSettings(min_budget=0, estimate_margin_share=0.0),
    reserve=ReserveSettings(floor=0),
    history=HistorySettings(hysteresis=False),
    results=BARE_RESULTS,
    prune=PruneSettings(when=()),
    compaction=BARE_COMPACTION,
)
"""Our settings with every mechanism switched off that only some of the other tools have, or none."""
BARE_CACHE = CacheSettings(breakpoints="tail")
"""Cache settings of the baselines: they do not know where the next change will be, so only the tail is marked."""
OWN_PRUNE_SETTINGS = frozenset(
    {"prune.when", "prune.keep_tokens", "prune.keep_share", "prune.min_tokens", "prune.min_share"}
)
"""Settings that only our own pruning reads."""
