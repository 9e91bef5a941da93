"""Where a policy may decide otherwise inside a stage that all policies share: a handful of questions with our answers.

The policy of another tool answers some of them in its own way; its fields are then the settings that only it has. A
policy and the plan under construction carry these rules beside the settings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, TypeVar

from msgspec import Struct

from holdfast.errors import ConfigError
from holdfast.messages.message import Message
from holdfast.messages.sized_message import SizedMessage
from holdfast.planning.settings import Settings
from holdfast.state.entries import CompactionEntry
from holdfast.state.plan import Notice
from holdfast.state.target import ModelLimits

if TYPE_CHECKING:
    from holdfast.planning.builder import PlanBuilder


class ResultLimits(Struct, frozen=True):
    """Weighted characters that one result may have, and all results together (0 = as many as there are)."""

    per_result: int
    total: int = 0


class PolicyRules(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Our own answers; the policy of another tool is a subclass. All methods are pure."""

    keeps_unread_results: ClassVar[bool] = True
    """Whether results that the model has not read are cut short before any of them is summarized."""
    model_writes_summaries: ClassVar[bool] = False
    """Whether a model always writes the summaries, so that a replay, which calls none, charges for the call."""
    unused_settings: ClassVar[frozenset[str]] = frozenset()
    """Settings by their dotted names, or whole groups, that this policy does not read."""

    def list_ordered_settings(self) -> tuple[tuple[str, str, str], ...]:
        """Return pairs of settings of this policy, the first of which must not be over the second unless that is 0.

        Each is two dotted names and the reason; settings that the policy does not read now are left out.
        """
        return ()

    # -- the window ----------------------------------------------------------------------------------------------------

    def check_window(self, configured: ModelLimits, limits: ModelLimits) -> tuple[Notice, ...]:
        """Return warnings about the window; raises ``WindowTooSmall`` where nothing is to be sent to it.

        ``limits`` are those in force, ``configured`` those before the cap of the settings.
        """
        return ()

    def without_window_minimum(self) -> PolicyRules:
        """Return these rules without a smallest window of their own."""
        return self

    def list_reserves(self, settings: Settings) -> Mapping[str, int]:
        """Return the configured reserves in tokens by the names of their settings; the floor may raise each."""
        return {"reserve.max": settings.reserve.max}

    # -- when to compact, and what for ---------------------------------------------------------------------------------

    def measure_request(self, builder: PlanBuilder) -> int:
        """Return the size in tokens of the request as planned, to compare with the trigger; -1 where it is unknown."""
        return builder.upper_estimate

    def compute_trigger_size(self, builder: PlanBuilder) -> int:
        """Return the size in tokens above which a request is compacted."""
        compaction = builder.settings.compaction
        is_cold = builder.inputs.cache_state == "cold"
        share = compaction.cold_trigger_share if is_cold else compaction.trigger_share
        return builder.budget.setup_tokens + builder.budget.compute_share(_limit_trigger_share(builder, share))

    def is_over_trigger(self, builder: PlanBuilder) -> bool:
        """Return whether the request as planned is so large that it is compacted unasked."""
        return self.measure_request(builder) > self.compute_trigger_size(builder)

    def compute_compaction_goal(self, builder: PlanBuilder) -> int:
        """Return the tokens of messages that a compaction may leave: with its margin that is under the trigger."""
        settings = builder.settings
        trigger_share = _limit_trigger_share(builder, settings.compaction.trigger_share)
        trigger_share /= 1 + settings.window.estimate_margin_share
        return builder.compute_compaction_share(min(settings.compaction.goal_share, trigger_share))

    # -- what a compaction keeps ---------------------------------------------------------------------------------------

    def select_tail_starts(
        self, builder: PlanBuilder, messages: list[Message], cut_points: list[int]
    ) -> list[int] | None:
        """Return where the kept tail may begin, best first, as offsets into ``messages``; None for our own choice.

        ``messages`` are those that are shown and no compaction covers, ``cut_points`` the places that split no call
        from its result. No place at all keeps everything.
        """
        return None

    def get_min_tail_tokens(self) -> int:
        """Return the tokens that a kept tail has at least; 0 where it may be empty."""
        return 0

    def order_overflow_cuts(self, builder: PlanBuilder, cut_points: Sequence[int]) -> list[int]:
        """Return ``cut_points``, places where the kept tail may begin, in the order to try them after an overflow."""
        return list(cut_points)

    def explain_useless_cut(self, before: PlanBuilder, after: PlanBuilder, cut_points: Sequence[int]) -> str:
        """Return why the compaction that ``after`` has, at one of ``cut_points``, is not made; empty if it may be."""
        return ""

    def find_replayed_message(self, builder: PlanBuilder) -> int | None:
        """Return the index of a user message that the compaction repeats as its first kept one, or None."""
        return None

    def finish_compaction(self, builder: PlanBuilder, compaction: CompactionEntry) -> CompactionEntry:
        """Return ``compaction`` with the edits that belong to it."""
        return compaction

    # -- what stands behind a summary ----------------------------------------------------------------------------------

    def list_restored_files(self, builder: PlanBuilder, head: Sequence[SizedMessage]) -> tuple[str, ...]:
        """Return the texts of files of the summarized ``head`` that are shown again behind the summary."""
        return ()

    def build_continue_text(self, builder: PlanBuilder, keep: int) -> str:
        """Return the sentence that tells the model to go on behind a summary of all before ``keep``; empty for none."""
        return ""

    def has_continue_text(self, compaction: CompactionEntry) -> bool:
        """Return whether the summary of ``compaction`` ends with such a sentence."""
        return False

    # -- results under pressure ----------------------------------------------------------------------------------------

    def get_result_limits(self, window: int) -> ResultLimits | None:
        """Return the limits of results in a ``window`` of tokens; None where only an overflow limits them."""
        return None


def _limit_trigger_share(builder: PlanBuilder, share: float) -> float:
    """Return ``share``, the trigger's, or that of written summaries where it is less and somebody writes them."""
    model_share = builder.settings.compaction.model_trigger_share
    return min(share, model_share) if model_share and builder.has_summary_writer else share


Rules = TypeVar("Rules", bound=PolicyRules)


def require_rules(builder: PlanBuilder, kind: type[Rules]) -> Rules:
    """Return the rules of the plan for a stage that needs those of one policy; raises ``ConfigError`` for others."""
    if isinstance(builder.rules, kind):
        return builder.rules
    raise ConfigError(
        f"a stage of policy {kind.__name__} cannot run with the rules of {type(builder.rules).__name__}: "
        "begin with Policy.preset(…) and change that one"
    )
