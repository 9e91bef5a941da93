"""The policy of opencode: measure by the last answer's usage, keep the last turns, prune only if configured."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from typing import Annotated, Any, ClassVar, Literal

from msgspec.structs import replace

from holdfast.messages.message import Message
from holdfast.planning.budget import compute_reserve_floor
from holdfast.planning.builder import PlanBuilder
from holdfast.planning.policy_rules import require_rules
from holdfast.planning.presets.common.overflow_replay import OverflowReplayRules
from holdfast.planning.presets.common.request_measures import (
    estimate_opencode_text_tokens,
    estimate_opencode_tokens,
    measure_last_usage,
    measure_usage_and_chars,
)
from holdfast.planning.presets.common.reserve_trigger import ReserveTriggerRules, compute_output_reserve
from holdfast.planning.presets.common.truncate_lines import OutputLimits, limit_result_lines
from holdfast.planning.presets.preset import BARE_SETTINGS, OWN_PRUNE_SETTINGS, Preset
from holdfast.planning.settings import (
    Bytes,
    Count,
    RetrySettings,
    Settings,
    Share,
    SummarizerSettings,
    SummarySettings,
    Tokens,
    describe,
)
from holdfast.planning.stages.order import OWN_STAGES, insert_stages, replace_stages
from holdfast.planning.stages.prune.prunable_results import (
    CLEARED_RESULT_TEXT,
    ShownResult,
    build_clear_edit,
    build_prune_filter,
    find_shown_results,
)
from holdfast.planning.stages.tool_results import build_tool_name_lookup
from holdfast.state.edits import Edit
from holdfast.state.target import ModelLimits
from holdfast.state.turns import find_turn_starts

INPUT_LIMIT_BUFFER_TOKENS = 20_000
"""Tokens that opencode holds back from an input limit unless a reserve is set, or the output if that is less."""


class OpencodeRules(OverflowReplayRules, frozen=True):
    """opencode's decisions where they differ from ours, and its settings."""

    unused_settings: ClassVar[frozenset[str]] = ReserveTriggerRules.unused_settings | OWN_PRUNE_SETTINGS

    measure: Annotated[
        Literal["usage", "usage+chars"],
        describe(
            "[C] How a request is measured: usage = by the usage of the last answer alone, usage+chars (opencode 2) = "
            "also by the messages after it, at four characters a token."
        ),
    ] = "usage"
    trigger_rule: Annotated[
        Literal["usable", "smaller"],
        describe(
            "[C] When to compact: usable = at the input limit, or at the window if the model has none, each less its "
            "reserve; smaller (opencode 2) = at the smaller of both."
        ),
    ] = "usable"
    trigger_reserve: Annotated[
        Tokens, describe("[C] Keep this much free, 0 = the output, or 20,000 tokens below an input limit.")
    ] = 0
    trigger_output: Annotated[
        Tokens, describe("[C] Reserve the model's output for the answer, but no more than this.")
    ] = 32_000
    tail_turns: Annotated[Count, describe("[C] Keep at most this many of the newest turns.")] = 2
    tail_tokens: Annotated[Tokens, describe("[C] Keep at most this many tokens of them.")] = 8_000
    tail_min_tokens: Annotated[Tokens, describe("[C] Let tail_usable_share keep at least this much.")] = 2_000
    tail_usable_share: Annotated[
        Share,
        describe(
            "[C] Keep this share of the usable tokens, from tail_min_tokens to tail_tokens; 0 = always tail_tokens."
        ),
    ] = 0.25
    output_lines: Annotated[Count, describe("[C] Show at most this many lines of a result, 0 = all.")] = 2_000
    output_bytes: Annotated[Bytes, describe("[C] And at most this many bytes, 0 = all.")] = 51_200
    prune: Annotated[bool, describe("[C] Clear old results. Off by default, as in opencode.")] = False
    prune_keep_tokens: Annotated[Tokens, describe("[C] Never clear the newest results up to this many tokens.")] = (
        40_000
    )
    prune_min_tokens: Annotated[
        Tokens, describe("[C] Clear only if this frees more tokens: fewer are not worth a changed prefix.")
    ] = 20_000

    def measure_request(self, builder: PlanBuilder) -> int:
        """Return the last answer's usage, -1 before there is one, or an estimate of the request if so configured."""
        if self.measure == "usage":
            return measure_last_usage(builder)
        return measure_usage_and_chars(builder)

    def compute_limit(self, limits: ModelLimits, settings: Settings) -> int:
        """Return the tokens at which a request is compacted. The floor of the reserve applies to an input limit too."""
        size = self.compute_smaller_limit(limits)
        if self.trigger_rule == "usable":
            size = self.compute_usable_tokens(limits)
        floor = compute_reserve_floor(limits.window, settings)
        if not floor:
            return size
        return min(size, min(limits.window, limits.max_input or limits.window) - floor)

    def is_over_trigger(self, builder: PlanBuilder) -> bool:
        """Return whether the request has reached the limit: opencode compacts at it, the others above it."""
        if not builder.target.limits.window:
            return False
        return self.measure_request(builder) >= self.compute_trigger_size(builder)

    def compute_usable_tokens(self, limits: ModelLimits) -> int:
        """Return opencode's limit of a request in tokens: the input limit less a buffer, or the window less the output.

        A reserve in the settings replaces the buffer and raises the output's. The limit is 0 if the window is unknown.
        """
        if not limits.window:
            return 0
        output = compute_output_reserve(limits, self.trigger_output)
        if limits.max_input:
            buffer = self.trigger_reserve or min(INPUT_LIMIT_BUFFER_TOKENS, output)
            return max(0, limits.max_input - buffer)
        return max(0, limits.window - max(output, self.trigger_reserve))

    def compute_smaller_limit(self, limits: ModelLimits) -> int:
        """Return opencode 2's limit: the smaller of input limit and window, each less a buffer or the output."""
        buffer = self.trigger_reserve or INPUT_LIMIT_BUFFER_TOKENS
        output = compute_output_reserve(limits, self.trigger_output)
        limit = limits.window - max(output, buffer)
        if limits.max_input:
            limit = min(limits.max_input - buffer, limit)
        return max(0, limit)

    def select_tail_starts(
        self,
        builder: PlanBuilder,
        messages: list[Message],
        cut_points: list[int],
    ) -> list[int]:
        """Return the start of the last turns that fit; the first that does not is split where its rest fits."""
        # Only the last turns are measured: encoding every message as JSON would cost time in each request.
        first_measured = len(messages)
        if self.tail_turns:
            first_measured = min(find_turn_starts(messages)[-self.tail_turns :], default=0)
        sizes = [0] * first_measured
        for message in messages[first_measured:]:
            sizes.append(estimate_opencode_tokens(message))
        budget = self.compute_tail_budget(builder.target.limits)
        start = find_opencode_tail_start(
            messages,
            sizes,
            budget,
            self.tail_turns,
            cut_points,
        )
        return [offset for offset in cut_points if offset >= start][:1]

    def compute_tail_budget(self, limits: ModelLimits) -> int:
        """Return the most tokens of the kept tail: a clamped share of the usable ones, or the configured number."""
        if not self.tail_usable_share:
            return self.tail_tokens
        share_tokens = int(self.compute_usable_tokens(limits) * self.tail_usable_share)
        return min(self.tail_tokens, max(self.tail_min_tokens, share_tokens))

    def list_ordered_settings(self) -> tuple[tuple[str, str, str], ...]:
        """Return the bounds of the tail if it is clamped between them."""
        if not self.tail_usable_share:
            return ()
        return (("preset.tail_min_tokens", "preset.tail_tokens", "the size of the kept tail is between them"),)


def find_opencode_tail_start(
    messages: Sequence[Message],
    sizes: Sequence[int],
    budget: int,
    turns: int,
    cut_points: Container[int] | None = None,
) -> int:
    """Return the start of opencode's kept tail: the last ``turns`` turns that fit into ``budget`` tokens.

    The newest turn that does not fit is split at the earliest message from which its rest fits, and ends the search. A
    tail that would hold everything becomes empty (the end is returned): nothing would be left to summarize.
    """
    tail_start = turn_stop = len(messages)
    newest_turns = find_turn_starts(messages)[-turns:] if turns > 0 else []
    for turn_start in reversed(newest_turns):
        turn_tokens = sum(sizes[turn_start:turn_stop])
        if turn_tokens <= budget:
            budget -= turn_tokens
            tail_start = turn_stop = turn_start
            continue
        for index in range(turn_start + 1, turn_stop):
            is_cut_point = cut_points is None or index in cut_points
            if is_cut_point and sum(sizes[index:turn_stop]) <= budget:
                tail_start = index
                break
        break
    return tail_start or len(messages)


def limit_opencode_output(builder: PlanBuilder) -> PlanBuilder:
    """Cut new results to whole lines within the limits of lines and bytes."""
    rules = require_rules(builder, OpencodeRules)
    exempt_tools = builder.settings.results.spill_exempt_tools
    return limit_result_lines(builder, OutputLimits(rules.output_lines, rules.output_bytes, exempt_tools))


def prune_like_opencode(builder: PlanBuilder) -> PlanBuilder:
    """Clear results older than the newest ``prune_keep_tokens`` tokens of them, if enough tokens go.

    Only results before the second-newest user message count; those of failed calls and exempt tools do not. The search
    ends at a result that was cleared before. Tokens are characters over four, as in opencode.
    """
    rules = require_rules(builder, OpencodeRules)
    if not rules.prune:
        return builder
    total_tokens = freed_tokens = 0
    edits: list[Edit] = []
    for result in _list_countable_results(builder):
        size = estimate_opencode_text_tokens(result.text)
        total_tokens += size
        if total_tokens <= rules.prune_keep_tokens:
            continue
        edit = build_clear_edit(result)
        if edit is not None:
            freed_tokens += size
            edits.append(edit)
    if freed_tokens > rules.prune_min_tokens:
        return builder.add_edits(tuple(edits))
    return builder


def _list_countable_results(builder: PlanBuilder) -> Iterator[ShownResult]:
    """Yield the results that count, newest first, back to one that was cleared before."""
    protected_start = _find_second_last_user_message(builder)
    get_tool_name = build_tool_name_lookup(builder.state)
    may_prune = build_prune_filter(builder.settings.prune)
    for result in find_shown_results(builder.state):
        if result.text == CLEARED_RESULT_TEXT:  # everything older was looked at when that one was cleared
            return
        if result.message_index >= protected_start or result.result.is_error:
            continue
        if may_prune(get_tool_name(result.message_index, result.result)):
            yield result


def _find_second_last_user_message(builder: PlanBuilder) -> int:
    """Return the index of the second-newest user message, or 0 if there are fewer than two."""
    state = builder.state
    user_count = 0
    for index in range(
        len(state.history.sized_messages) - 1,
        state.view.first_kept - 1,
        -1,
    ):
        user_count += state.history.messages[index].is_turn_start
        if user_count == 2:
            return index
    return 0


OPENCODE = Preset(
    "like opencode: keeps the last turns, and a model summarizes the rest",
    replace(
        BARE_SETTINGS,
        summary=SummarySettings(max_tokens=3_000),
        summarizer=SummarizerSettings(when_too_large="stop"),
        retry=RetrySettings(base_seconds=2.0),
    ),
    OpencodeRules(),
    replace_stages(insert_stages(OWN_STAGES, "tags", ("lines", limit_opencode_output)), prune=prune_like_opencode),
)

OPENCODE_2: dict[str, Any] = {
    "compaction": {"max_per_answer": 1},
    "preset": {"measure": "usage+chars", "trigger_rule": "smaller", "trigger_reserve": 20_000},
}
"""Settings that compact when opencode 2 does, and not twice between answers:
``Policy.preset("opencode").with_settings(**OPENCODE_2)``."""
