"""Rules of policies that compact over the window less a reserve, as pi, opencode, OpenClaw and Claude Code do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

from holdfast.planning.budget import compute_reserve_floor
from holdfast.planning.builder import PlanBuilder
from holdfast.planning.policy_rules import PolicyRules
from holdfast.planning.settings import Settings, Tokens, describe
from holdfast.state.target import ModelLimits


class ReserveTriggerRules(PolicyRules, frozen=True):
    """The trigger is a size in tokens; each tool computes it in ``compute_limit``."""

    keeps_unread_results: ClassVar[bool] = False
    model_writes_summaries: ClassVar[bool] = True
    unused_settings: ClassVar[frozenset[str]] = frozenset(
        {
            "compaction.trigger_share",
            "compaction.cold_trigger_share",
            "compaction.model_trigger_share",
            "compaction.tail_share",
        }
    )

    trigger_reserve: Annotated[Tokens, describe("[A] Compact over the window less this.")] = 0

    def compute_limit(self, limits: ModelLimits, settings: Settings) -> int:
        """Return the size in tokens over which a request to a model with ``limits`` is compacted."""
        return apply_reserve_floor(limits.window - self.trigger_reserve, limits.window, settings)

    def list_reserves(self, settings: Settings) -> Mapping[str, int]:
        """Return the configured reserves: the floor raises that of the trigger too."""
        reserves = {"reserve.max": settings.reserve.max}
        if settings.compaction.enabled:
            reserves["preset.trigger_reserve"] = self.trigger_reserve
        return reserves

    def compute_trigger_size(self, builder: PlanBuilder) -> int:
        """Return the size in tokens above which a request is compacted."""
        return self.compute_limit(builder.target.limits, builder.settings)

    def is_over_trigger(self, builder: PlanBuilder) -> bool:
        """Return whether the request is over its limit; without a window there is none."""
        if not builder.target.limits.window:
            return False
        return self.measure_request(builder) > self.compute_trigger_size(builder)

    def compute_compaction_goal(self, builder: PlanBuilder) -> int:
        """Return the tokens of messages that a compaction may leave, where the settings say a goal at all."""
        settings = builder.settings
        under_trigger = self.compute_trigger_size(builder) - builder.budget.setup_tokens
        under_trigger = int(under_trigger / (1 + settings.window.estimate_margin_share))
        return min(builder.compute_compaction_share(settings.compaction.goal_share), max(0, under_trigger))


def apply_reserve_floor(size: int, window: int, settings: Settings, max_share: float = 1.0) -> int:
    """Return ``size``, a limit in tokens, lowered so that of ``window`` the floor of the reserve stays free.

    The floor takes at most ``max_share`` of the window.
    """
    floor = min(compute_reserve_floor(window, settings), int(window * max_share))
    return min(size, window - floor) if floor else size


def compute_effective_window(limits: ModelLimits, max_output: int) -> int:
    """Return the window less the model's output, of which no more than ``max_output`` is reserved."""
    return limits.window - compute_output_reserve(limits, max_output)


def compute_output_reserve(limits: ModelLimits, max_output: int) -> int:
    """Return the tokens kept free for an answer: what the model can say, at most ``max_output``."""
    return min(max_output, limits.max_output or max_output)
