"""Decisions inside shared stages that policies of other tools make differently, as methods with our own answers.

The policy of another tool is a subclass of ``PolicyRules`` that overrides some of them. Its fields are the settings
that only this policy has. Without this seam every stage would need to know the tools by name. A policy and the plan
under construction carry the rules beside the settings.
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

SMALL_TRIGGER_TOKENS, LARGE_TRIGGER_TOKENS = 60_000, 160_000
"""Message budgets in tokens between which the share of the trigger falls linearly from ``trigger_share`` to
``large_trigger_share``. Chosen by judgement between the windows of 64,000 and 200,000 tokens that were measured."""


class ResultLimits(Struct, frozen=True):
    """Limits of tool results under pressure, in weighted characters."""

    per_result: int
    total: int = 0
    """Of all results together; 0 for no limit."""


class PolicyRules(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The rules of our own policy, and the base class of others. All methods are pure."""

    keeps_unread_results: ClassVar[bool] = True
    """Whether results that the model has not read are shortened before any of them is summarized."""
    model_writes_summaries: ClassVar[bool] = False
    """Whether a model always writes the summaries. A replay calls no model, but charges for the call then."""
    restates_open_work: ClassVar[bool] = True
    """Whether requests keep naming what is still open when the messages that told of it go."""
    unused_settings: ClassVar[frozenset[str]] = frozenset()
    """Dotted names of settings, or names of whole groups, that this policy does not read."""

    def list_ordered_settings(self) -> tuple[tuple[str, str, str], ...]:
        """Return pairs of settings of which the first must not be larger than the second, unless that is 0.

        Each item is two dotted names and the reason. Settings that other settings switch off are left out.
        """
        return ()

    # -- the window ----------------------------------------------------------------------------------------------------

    def check_window(self, configured: ModelLimits, limits: ModelLimits) -> tuple[Notice, ...]:
        """Return warnings about the window; raises ``WindowTooSmall`` if this policy sends nothing to a window like it.

        ``limits`` are those in force, ``configured`` those before ``window.cap`` was applied.
        """
        return ()

    def without_window_minimum(self) -> PolicyRules:
        """Return these rules without a smallest window of their own."""
        return self

    def list_reserves(self, settings: Settings) -> Mapping[str, int]:
        """Return the configured reserves in tokens by the dotted names of their settings.

        Each may be raised to ``reserve.floor``.
        """
        return {"reserve.max": settings.reserve.max}

    # -- when to compact, and what for ---------------------------------------------------------------------------------

    def measure_request(self, builder: PlanBuilder) -> int:
        """Return the size in tokens that is compared with the trigger, or -1 if it is not known.

        Ours is the estimate of the request itself; some tools look at the last answer's usage only.
        """
        return builder.upper_estimate

    def compute_trigger_size(self, builder: PlanBuilder) -> int:
        """Return the size in tokens above which a request is compacted."""
        compaction = builder.settings.compaction
        share = compaction.trigger_share
        if builder.inputs.cache_state == "cold":
            # The whole prefix is written to the cache anyway, so a shorter one costs nothing extra.
            share = compaction.cold_trigger_share
        return builder.budget.setup_tokens + builder.budget.compute_share(_limit_trigger_share(builder, share))

    def is_over_trigger(self, builder: PlanBuilder) -> bool:
        """Return whether the request as planned is large enough to be compacted unasked."""
        return self.measure_request(builder) > self.compute_trigger_size(builder)

    def compute_compaction_goal(self, builder: PlanBuilder) -> int:
        """Return the most tokens of messages that a compaction may leave."""
        settings = builder.settings
        trigger_share = _limit_trigger_share(builder, settings.compaction.trigger_share)
        # The trigger compares the estimate with its margin on top. Without the margin here, a compaction that just
        # reaches its goal would be followed by the next one at once.
        trigger_share /= 1 + settings.window.estimate_margin_share
        return builder.compute_compaction_share(min(settings.compaction.goal_share, trigger_share))

    # -- what a compaction keeps ---------------------------------------------------------------------------------------

    def select_tail_starts(
        self,
        builder: PlanBuilder,
        messages: list[Message],
        cut_points: list[int],
    ) -> list[int] | None:
        """Return the offsets into ``messages`` at which the kept tail may begin, best first, or None for our own rule.

        ``messages`` are those after the summary in force, as a request shows them; ``cut_points`` are the offsets that
        separate no call from its results. An empty list keeps everything.
        """
        return None

    def get_min_tail_tokens(self) -> int:
        """Return the smallest size in tokens of a kept tail; 0 if it may be empty."""
        return 0

    def order_overflow_cuts(self, builder: PlanBuilder, cut_points: Sequence[int]) -> list[int]:
        """Return the message indexes at which the kept tail may begin, in the order to try them after an overflow."""
        return list(cut_points)

    def explain_useless_cut(
        self,
        before: PlanBuilder,
        after: PlanBuilder,
        cut_points: Sequence[int],
    ) -> str:
        """Return why the compaction in ``after`` is not made, or an empty string if it may be.

        It was tried at one of ``cut_points``, the message indexes at which the tail may begin.
        """
        return ""

    def find_replayed_message(self, builder: PlanBuilder) -> int | None:
        """Return the index of a user message that the compaction repeats as its first kept message, or None."""
        return None

    def finish_compaction(self, builder: PlanBuilder, compaction: CompactionEntry) -> CompactionEntry:
        """Return ``compaction`` with the edits that belong to the same entry."""
        return compaction

    # -- what follows a summary ---------------------------------------------------------------------------------------

    def list_restored_files(self, builder: PlanBuilder, head: Sequence[SizedMessage]) -> tuple[str, ...]:
        """Return the texts of files that the summarized messages ``head`` touched, to show again after the summary."""
        return ()

    def build_continue_text(self, builder: PlanBuilder, keep: int) -> str:
        """Return the sentence that tells the model to continue its turn, which stands last in a summary of a cut turn.

        ``keep`` is the index of the first kept message. An empty string adds no sentence.
        """
        return ""

    def has_continue_text(self, compaction: CompactionEntry) -> bool:
        """Return whether the summary of ``compaction`` ends with a sentence of ``build_continue_text``."""
        return False

    # -- results under pressure ----------------------------------------------------------------------------------------

    def get_result_limits(self, window: int) -> ResultLimits | None:
        """Return the limits of results in a ``window`` of tokens, or None if only an overflow limits them."""
        return None


def _limit_trigger_share(builder: PlanBuilder, share: float) -> float:
    """Return the trigger's ``share``, lowered in large windows, and if a model or a hook writes the summary.

    A writer takes time and may be rejected, so it must begin before the window is full.
    """
    compaction = builder.settings.compaction
    budget_tokens = builder.compute_compaction_share(1.0)
    # Messages that always stay are like setup: only what is left beside them is large or not.
    pinned_tokens = min(budget_tokens, builder.token_ratio * builder.pinned_tokens)
    open_tokens = budget_tokens - pinned_tokens
    position = (open_tokens - SMALL_TRIGGER_TOKENS) / (LARGE_TRIGGER_TOKENS - SMALL_TRIGGER_TOKENS)
    fall = max(0.0, share - compaction.large_trigger_share)
    open_share = share - min(1.0, max(0.0, position)) * fall
    if open_share < share:
        share = min(share, (pinned_tokens + open_share * open_tokens) / budget_tokens)
    if compaction.model_trigger_share and builder.has_summary_writer:
        return min(share, compaction.model_trigger_share)
    return share


Rules = TypeVar("Rules", bound=PolicyRules)


def require_rules(builder: PlanBuilder, kind: type[Rules]) -> Rules:
    """Return the rules of the plan as those of one policy, for a stage that needs its settings.

    Raises ``ConfigError`` if the plan has other rules: somebody put the stage into another policy.
    """
    if isinstance(builder.rules, kind):
        return builder.rules
    raise ConfigError(
        f"a stage of policy {kind.__name__} cannot run with the rules of {type(builder.rules).__name__}: "
        "begin with Policy.preset(…) and change that one"
    )
