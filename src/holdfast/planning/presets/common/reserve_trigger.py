"""Rules of policies that compact above the window less a reserve: pi, opencode, OpenClaw and Claude Code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

from holdfast.planning.budget import compute_reserve_floor
from holdfast.planning.builder import PlanBuilder
from holdfast.planning.policy_rules import PolicyRules
from holdfast.planning.settings import Settings, Tokens, describe
from holdfast.state.target import ModelLimits


class ReserveTriggerRules(PolicyRules, frozen=True):
    """Compact above a fixed number of tokens, which each tool computes in ``compute_limit``."""

    keeps_unread_results: ClassVar[bool] = False
    model_writes_summaries: ClassVar[bool] = True
    unused_settings: ClassVar[frozenset[str]] = frozenset(
        {
            "compaction.trigger_share",
            "compaction.large_trigger_share",
            "compaction.cold_trigger_share",
            "compaction.model_trigger_share",
            "compaction.tail_share",
        }
    )

    trigger_reserve: Annotated[Tokens, describe("[A] Compact when a request is over the window less this.")] = 0

    def compute_limit(self, limits: ModelLimits, settings: Settings) -> int:
        """Return the tokens above which a request to a model with ``limits`` is compacted."""
        return apply_reserve_floor(limits.window - self.trigger_reserve, limits.window, settings)

    def list_reserves(self, settings: Settings) -> Mapping[str, int]:
        """Return the configured reserves by setting; the floor raises the trigger's as well."""
        reserves = {"reserve.max": settings.reserve.max}
        if settings.compaction.enabled:
            reserves["preset.trigger_reserve"] = self.trigger_reserve
        return reserves

    def compute_trigger_size(self, builder: PlanBuilder) -> int:
        """Return the tokens above which a request is compacted."""
        return self.compute_limit(builder.target.limits, builder.settings)

    def is_over_trigger(self, builder: PlanBuilder) -> bool:
        """Return whether the request is over its limit; never if the window is unknown."""
        if not builder.target.limits.window:
            return False
        return self.measure_request(builder) > self.compute_trigger_size(builder)

    def compute_compaction_goal(self, builder: PlanBuilder) -> int:
        """Return the tokens of messages that a compaction may leave: the goal, with its margin under the trigger."""
        settings = builder.settings
        # Without the margin the request would be over its trigger again as soon as it is estimated high.
        tokens_under_trigger = self.compute_trigger_size(builder) - builder.budget.setup_tokens
        tokens_under_trigger = int(tokens_under_trigger / (1 + settings.window.estimate_margin_share))
        return min(builder.compute_compaction_share(settings.compaction.goal_share), max(0, tokens_under_trigger))


def apply_reserve_floor(
    size: int,
    window: int,
    settings: Settings,
    max_share: float = 1.0,
) -> int:
    """Lower ``size``, a limit in tokens, so that the floor of the reserve stays free in ``window``.

    The floor takes at most ``max_share`` of the window.
    """
    floor = min(compute_reserve_floor(window, settings), int(window * max_share))
    return min(size, window - floor) if floor else size


def compute_effective_window(limits: ModelLimits, max_output: int) -> int:
    """Return the window less the model's output limit, of which at most ``max_output`` tokens are reserved."""
    return limits.window - compute_output_reserve(limits, max_output)


def compute_output_reserve(limits: ModelLimits, max_output: int) -> int:
    """Return the tokens kept free for an answer: the model's output limit, at most ``max_output``."""
    return min(max_output, limits.max_output or max_output)
