"""OpenClaw's check before a request: whether results can make room, or a compaction must.

Version 2026.3 has a guard inside the tool loop: a request may take a share of the window, in characters of which those
of tools count twice, and the oldest results give way first. Version 2026.9 has a check instead: if truncating results
frees enough, with some to spare, they are truncated and nothing is compacted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Literal, TypeAlias

from msgspec import Struct

from holdfast.messages.message import Message, get_result_text
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
"""Characters that truncating results must free beyond the excess: with less, the next answer would overflow again.
OpenClaw's number."""
SPARE_FACTOR = 1.5
"""Or this many times the excess, if that is more. OpenClaw's number."""
TOOL_WEIGHT = 2
"""Factor on characters of tool output, since code and logs have more tokens than prose. OpenClaw's number."""
MIN_LOOP_LIMIT_CHARS = 1_024
"""Least characters of a budget of the guard, so that it leaves something in a tiny window. OpenClaw's number."""
REMOVED_RESULT_TEXT = "[Older tool output removed: it no longer fits beside what came later]"
"""Text in place of a result that the guard removed."""


class PrecheckDecision(Struct, frozen=True):
    """What to do before a request, and the tokens by which it is too large."""

    outcome: PrecheckOutcome
    excess_tokens: int = 0


def decide_precheck(
    request_tokens: int,
    window: int,
    reserve: int,
    reducible_chars: int,
) -> PrecheckDecision:
    """Decide how to fit a request of ``request_tokens`` into the window less the reserve, all in tokens.

    ``reducible_chars`` are the characters that truncating results would free.
    """
    excess_tokens = max(0, request_tokens - max(1, window - reserve))
    if not excess_tokens:
        return PrecheckDecision("fits")
    if reducible_chars <= 0:
        return PrecheckDecision("compact_only", excess_tokens)
    excess_chars = excess_tokens * CHARS_PER_TOKEN
    wanted_chars = max(excess_chars + MIN_SPARE_CHARS, math.ceil(excess_chars * SPARE_FACTOR))
    if reducible_chars >= wanted_chars:
        return PrecheckDecision("truncate_tool_results_only", excess_tokens)
    return PrecheckDecision("compact_then_truncate", excess_tokens)


def reduce_results_at_precheck(builder: PlanBuilder) -> PlanBuilder:
    """Clear or truncate results before a compaction is considered, by the guard, the check, or both."""
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
    if limits is None:
        reducible_chars = 0
    else:
        reducible_chars = count_reducible_chars(builder, limits)
    decision = decide_precheck(size, budget.window, budget.reserve, reducible_chars)
    if limits is None or decision.outcome != "truncate_tool_results_only":
        return builder
    return apply_result_limits(builder, limits)


def truncate_results(builder: PlanBuilder) -> PlanBuilder:
    """Truncate results to their limits if the request is still too large.

    That happens once between two answers: its edits are in the log, and a second time would find nothing to do.
    """
    rules = require_rules(builder, OpenclawRules)
    limits = rules.get_result_limits(builder.budget.window)
    if limits is None or not builder.can_reduce or rules.measure_request(builder) <= builder.budget.usable:
        return builder
    return apply_result_limits(builder, limits)


def _limit_tool_loop(builder: PlanBuilder, rules: OpenclawRules) -> Iterator[Edit]:
    """Yield the edits that bring results within the limits of the guard inside the tool loop."""
    window_chars = builder.budget.window * CHARS_PER_TOKEN
    max_chars = max(MIN_LOOP_LIMIT_CHARS, int(window_chars * rules.loop_share))
    max_result_chars = max(MIN_LOOP_LIMIT_CHARS, int(window_chars * rules.loop_result_share / TOOL_WEIGHT))
    # The guard runs before the request is too large. It must not cut a result below the limit that applies once the
    # request is too large (limits.per_result), or that later limit would never have anything to cut.
    limits = rules.get_result_limits(builder.budget.window)
    if limits is not None:
        max_result_chars = max(max_result_chars, limits.per_result)
    excess = sum_shown_messages(builder.state, _weigh_tools_double) - max_chars
    # Both sums are remembered for messages seen before; results are weighed one by one only if there is work.
    if excess <= 0 and not sum_shown_messages(builder.state, _OversizedCount(max_result_chars)):
        return
    results = list(weigh_shown_results(builder.state))
    shortened_results = [_shorten_result(result, max_result_chars) for result in results]
    freed_weight = 0
    for old, new in zip(results, shortened_results, strict=True):
        freed_weight += old.weight - new.weight
    excess -= TOOL_WEIGHT * freed_weight
    for old, new in zip(results, _remove_oldest_results(shortened_results, excess), strict=True):
        if new.result is not old.result:
            yield _build_tool_loop_edit(old, new)


def _weigh_tools_double(message: Message) -> int:
    return weigh_message(message, TOOL_WEIGHT)


class _OversizedCount(Struct, frozen=True):
    """Measure of a message: the number of its results over ``max_chars`` weighted characters."""

    max_chars: int

    def __call__(self, message: Message) -> int:
        return sum(weigh_result_text(result) > self.max_chars for result in message.results)


def _remove_oldest_results(results: Sequence[WeighedResult], excess: int) -> Iterator[WeighedResult]:
    """Yield ``results``, with the oldest replaced by a line until ``excess`` weighted characters are freed."""
    for result in results:
        freed = TOOL_WEIGHT * (result.weight - len(REMOVED_RESULT_TEXT))
        if excess <= 0 or freed <= 0:
            yield result
            continue
        excess -= freed
        removed_result = replace_result_text(result.result, REMOVED_RESULT_TEXT)
        yield WeighedResult(result.message_index, result.part_index, removed_result, len(REMOVED_RESULT_TEXT))


def _shorten_result(weighed: WeighedResult, max_chars: int) -> WeighedResult:
    result = truncate_result_to_weight(weighed.result, max_chars)
    if result is weighed.result:
        return weighed
    return WeighedResult(weighed.message_index, weighed.part_index, result, max_chars)


def _build_tool_loop_edit(old: WeighedResult, new: WeighedResult) -> Edit:
    old_text, new_text = get_result_text(old.result), get_result_text(new.result)
    why = f"results took too much of the window: cut from {len(old_text):,} to {len(new_text):,} characters"
    span = Span(old.message_index, old.message_index + 1, old.part_index)
    saved_tokens = estimate_text_tokens(old_text) - estimate_text_tokens(new_text)
    return Edit(span, (new.result,), "loop", why, saved_tokens)
