"""The policy of pi: measure by usage and characters, keep a tail of 20,000 tokens, cut tool output as it arrives."""

from __future__ import annotations

from typing import Annotated

from msgspec.structs import replace

from holdfast.messages.message import Message
from holdfast.planning.builder import PlanBuilder
from holdfast.planning.policy_rules import require_rules
from holdfast.planning.presets.common.request_measures import measure_usage_and_chars
from holdfast.planning.presets.common.reserve_trigger import ReserveTriggerRules
from holdfast.planning.presets.common.tail_by_tokens import select_tail_by_tokens
from holdfast.planning.presets.common.truncate_lines import OutputLimits, limit_result_lines
from holdfast.planning.presets.preset import BARE_SETTINGS, Preset
from holdfast.planning.settings import (
    Bytes,
    Count,
    Name,
    RecoverySettings,
    RetrySettings,
    SummarySettings,
    Tokens,
    describe,
)
from holdfast.planning.stages.order import OWN_STAGES, insert_stages


class PiRules(ReserveTriggerRules, frozen=True):
    """pi's decisions where they differ from ours, and its settings."""

    trigger_reserve: Annotated[
        Tokens, describe("[P] Compact when a request is over the window less this, however small the window is.")
    ] = 16_384
    tail_tokens: Annotated[Tokens, describe("[P] Keep about this many tokens of the newest messages unchanged.")] = (
        20_000
    )
    output_lines: Annotated[Count, describe("[P] Show at most this many lines of a result, 0 = all.")] = 2_000
    output_bytes: Annotated[Bytes, describe("[P] And at most this many bytes, 0 = all.")] = 51_200
    output_end_tools: Annotated[
        tuple[Name, ...], describe("[P] Tools of whose output the end is shown, where errors and totals are.")
    ] = ("bash",)

    def measure_request(self, builder: PlanBuilder) -> int:
        """Return the last answer's usage plus the messages after it, at four characters a token."""
        return measure_usage_and_chars(builder)

    def select_tail_starts(
        self,
        builder: PlanBuilder,
        messages: list[Message],
        cut_points: list[int],
    ) -> list[int]:
        """Return the one offset from which enough of the newest messages stand, if it exists."""
        return select_tail_by_tokens(messages, self.tail_tokens, cut_points)

    def get_min_tail_tokens(self) -> int:
        """Return the least tokens of a kept tail."""
        return self.tail_tokens


def limit_pi_output(builder: PlanBuilder) -> PlanBuilder:
    """Cut new results to whole lines within the limits of lines and bytes."""
    rules = require_rules(builder, PiRules)
    exempt_tools = builder.settings.results.spill_exempt_tools
    limits = OutputLimits(rules.output_lines, rules.output_bytes, exempt_tools, rules.output_end_tools)
    return limit_result_lines(builder, limits)


PI = Preset(
    "like pi: keeps 20,000 tokens, and a model summarizes the rest",
    replace(
        BARE_SETTINGS,
        summary=SummarySettings(max_tokens=3_000),
        recovery=RecoverySettings(max_compactions=1, steps=("compact",)),
        retry=RetrySettings(max_retries=3, base_seconds=2.0, cap_seconds=60.0),
    ),
    PiRules(),
    insert_stages(OWN_STAGES, "tags", ("lines", limit_pi_output)),
)
