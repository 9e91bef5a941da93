"""Before a request: whether results can make room, or a compaction must.

[O] 2026.3 has a guard inside the loop: a request may take a share of the window, in characters of which those of tools
count twice, and the oldest results give way first. 2026.9 has a check instead: where cutting results frees enough, with
something to spare, they are cut and nothing is compacted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Literal, TypeAlias

from msgspec import Struct

from holdfast.messages.message import Message, get_result_text
from holdfast.messages.parts import ToolResult
from holdfast.messages.size.tokens import estimate_text_tokens
from holdfast.messages.size.weighted_chars import CHARS_PER_TOKEN, weigh_message
from holdfast.planning.builder import PlanBuilder
from holdfast.planning.policy_rules import require_rules
from holdfast.planning.presets.openclaw.rules import OpenclawRules
from holdfast.planning.shown_messages import sum_shown_messages
from holdfast.planning.stages.spill import replace_result_text
from holdfast.planning.stages.truncate import (
    WeighedResult,
    apply_result_limits,
    count_reducible_chars,
    truncate_result_to_weight,
    weigh_result_text,
    weigh_shown_results,
)
from holdfast.state.edits import Edit, Span

PrecheckOutcome: TypeAlias = Literal["fits", "compact_only", "truncate_tool_results_only", "compact_then_truncate"]
MIN_SPARE_CHARS = 2_048
"""[O] Characters that cutting results must free beyond what is too much."""
SPARE_FACTOR = 1.5
"""[O] Or so many times what is too much."""
TOOL_WEIGHT = 2
"""[O] Words of tools count twice: code and logs have more tokens than prose."""
MIN_LOOP_LIMIT_CHARS = 1_024
"""[O] Characters that a budget of the guard has at least."""
REMOVED_RESULT_TEXT = "[Older tool output removed: it no longer fits beside what came later]"
"""What the guard inside the loop shows in place of a result."""


class PrecheckDecision(Struct, frozen=True):
    """What to do before a request, and the tokens by which it is too big."""

    outcome: PrecheckOutcome
    excess_tokens: int = 0


def decide_precheck(request_tokens: int, window: int, reserve: int, reducible_chars: int) -> PrecheckDecision:
    """Return the way to make a request of ``request_tokens`` tokens fit its window less the reserve."""
    overflow = max(0, request_tokens - max(1, window - reserve))
    chars = overflow * CHARS_PER_TOKEN
    if not overflow:
        return PrecheckDecision("fits")
    if reducible_chars <= 0:
        return PrecheckDecision("compact_only", overflow)
    enough = max(chars + MIN_SPARE_CHARS, math.ceil(chars * SPARE_FACTOR))
    return PrecheckDecision(
        "truncate_tool_results_only" if reducible_chars >= enough else "compact_then_truncate", overflow
    )


def reduce_results_at_precheck(builder: PlanBuilder) -> PlanBuilder:
    """Return the draft with results cleared or cut as the policy does before it thinks of compacting."""
    rules, budget = require_rules(builder, OpenclawRules), builder.budget
    if not builder.can_reduce:
        return builder
    if rules.loop_share:
        builder = builder.add_edits(tuple(_limit_tool_loop(builder, rules)))
    if not rules.precheck:
        return builder
    size, limits = rules.measure_request(builder), rules.get_result_limits(budget.window)
    if size <= budget.usable:
        return builder
    reducible_chars = 0 if limits is None else count_reducible_chars(builder, limits)
    decision = decide_precheck(size, budget.window, budget.reserve, reducible_chars)
    if limits is None or decision.outcome != "truncate_tool_results_only":
        return builder
    return apply_result_limits(builder, limits)


def truncate_results(builder: PlanBuilder) -> PlanBuilder:
    """Return the plan with its results within their limits, if the request is still too big.

    Once between two answers: what came of it is in the log, and a second run would find nothing new.
    """
    rules = require_rules(builder, OpenclawRules)
    limits = rules.get_result_limits(builder.budget.window)
    if limits is None or not builder.can_reduce or rules.measure_request(builder) <= builder.budget.usable:
        return builder
    return apply_result_limits(builder, limits)


def _limit_tool_loop(builder: PlanBuilder, rules: OpenclawRules) -> Iterator[Edit]:
    """Yield the edits that bring results within what the guard inside the loop allows."""
    chars, limits = builder.budget.window * CHARS_PER_TOKEN, rules.get_result_limits(builder.budget.window)
    max_chars = max(MIN_LOOP_LIMIT_CHARS, int(chars * rules.loop_share))
    most_of_one = max(MIN_LOOP_LIMIT_CHARS, int(chars * rules.loop_result_share / TOOL_WEIGHT))
    # Half of the window, where words of tools count twice, is less than results may have under pressure. Nothing is
    # under pressure yet, so the guard does not cut deeper than that: a lower limit would leave the other without use.
    if limits is not None:
        most_of_one = max(most_of_one, limits.per_result)
    over = sum_shown_messages(builder.state, _weigh_tools_double) - max_chars
    if over <= 0 and not sum_shown_messages(builder.state, _OversizedCount(most_of_one)):
        return
    results = list(weigh_shown_results(builder.state))
    short_results = [_shorten_result(old, most_of_one) for old in results]
    over -= TOOL_WEIGHT * sum(old.weight - new.weight for old, new in zip(results, short_results, strict=True))
    for old, new in zip(results, _remove_oldest_results(short_results, over), strict=True):
        if new.result is not old.result:
            yield _build_tool_loop_edit(old, new)


def _weigh_tools_double(message: Message) -> int:
    return weigh_message(message, TOOL_WEIGHT)


class _OversizedCount(Struct, frozen=True):
    """The measure that counts results over a limit."""

    max_chars: int

    def __call__(self, message: Message) -> int:
        return sum(weigh_result_text(result) > self.max_chars for result in message.results)


def _remove_oldest_results(results: Sequence[WeighedResult], over: int) -> Iterator[WeighedResult]:
    """Yield ``results``, the oldest of them as a line until ``over`` weighted characters are free."""
    for result in results:
        frees = TOOL_WEIGHT * (result.weight - len(REMOVED_RESULT_TEXT))
        if over > 0 and frees > 0:
            over -= frees
            yield WeighedResult(
                result.message_index,
                result.part_index,
                replace_result_text(result.result, REMOVED_RESULT_TEXT),
                len(REMOVED_RESULT_TEXT),
            )
        else:
            yield result


def _shorten_result(weighed: WeighedResult, max_chars: int) -> WeighedResult:
    result = truncate_result_to_weight(weighed.result, max_chars)
    return (
        weighed
        if result is weighed.result
        else WeighedResult(weighed.message_index, weighed.part_index, result, max_chars)
    )


def _build_tool_loop_edit(old: WeighedResult, new: WeighedResult) -> Edit:
    text, short = get_result_text(old.result), get_result_text(new.result)
    why = f"results took too much of the window: of {len(text):,} characters {len(short):,} stay"
    replacement: tuple[ToolResult, ...] = (new.result,)
    return Edit(
        Span(old.message_index, old.message_index + 1, old.part_index),
        replacement,
        "loop",
        why,
        estimate_text_tokens(text) - estimate_text_tokens(short),
    )
