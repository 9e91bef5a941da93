"""The policy of opencode: the usage of the last answer, the last turns stay, pruning only if asked for."""

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
"""Tokens that opencode holds back of an input limit where nothing is set, or the output if that is less. [C]"""


class OpencodeRules(OverflowReplayRules, frozen=True):
    """What opencode decides otherwise, and its settings."""

    unused_settings: ClassVar[frozenset[str]] = ReserveTriggerRules.unused_settings | OWN_PRUNE_SETTINGS

    measure: Annotated[
        Literal["usage", "usage+chars"],
        describe(
            "[C] The trigger looks at the usage of the last answer alone, or, since version 2, at what came behind it "
            "too, at four characters a token."
        ),
    ] = "usage"
    trigger_rule: Annotated[
        Literal["usable", "smaller"],
        describe(
            "[C] The limit is that of the input if the model has one, else the window less the output; version 2 takes "
            "the smaller of both."
        ),
    ] = "usable"
    trigger_reserve: Annotated[
        Tokens, describe("[C] Hold back this much instead of the output or of the buffer, 0 = these.")
    ] = 0
    trigger_output: Annotated[
        Tokens, describe("[C] Reserve the model's output for the answer, but no more than this.")
    ] = 32_000
    tail_turns: Annotated[Count, describe("[C] Keep at most this many of the newest turns.")] = 2
    tail_tokens: Annotated[Tokens, describe("[C] Of at most this many tokens.")] = 8_000
    tail_min_tokens: Annotated[Tokens, describe("[C] The share below gives at least this.")] = 2_000
    tail_usable_share: Annotated[
        Share, describe("[C] Keep this share of what is usable, between the two; 0 = always tail_tokens.")
    ] = 0.25
    output_lines: Annotated[Count, describe("[C] A result shows this many whole lines, 0 = all.")] = 2_000
    output_bytes: Annotated[Bytes, describe("[C] And this many bytes, 0 = all.")] = 51_200
    prune: Annotated[
        bool, describe("[C] Clear old results. Off, as there: it has to be asked for in its configuration.")
    ] = False
    prune_keep_tokens: Annotated[Tokens, describe("[C] Never clear the newest results of this many tokens.")] = 40_000
    prune_min_tokens: Annotated[
        Tokens, describe("[C] Clear only where more tokens go than this: a few are not worth a changed prefix.")
    ] = 20_000

    def measure_request(self, builder: PlanBuilder) -> int:
        """Return the usage of the last answer, -1 before there is one, or an estimate of the request."""
        return measure_last_usage(builder) if self.measure == "usage" else measure_usage_and_chars(builder)

    def compute_limit(self, limits: ModelLimits, settings: Settings) -> int:
        """Return the size at which a request is compacted; the floor is held back of an input limit, too."""
        usable = self.compute_usable_tokens(limits)
        size = usable if self.trigger_rule == "usable" else self.compute_smaller_limit(limits)
        floor = compute_reserve_floor(limits.window, settings)
        return min(size, min(limits.window, limits.max_input or limits.window) - floor) if floor else size

    def is_over_trigger(self, builder: PlanBuilder) -> bool:
        """Return whether the request has reached the limit: opencode compacts at it, the others above it."""
        if not builder.target.limits.window:
            return False
        return self.measure_request(builder) >= self.compute_trigger_size(builder)

    def compute_usable_tokens(self, limits: ModelLimits) -> int:
        """Return what opencode lets a request hold: the input limit less a buffer, or the window less the output.

        A reserve in the settings counts in both cases; where nothing is left, or no window is known, it is 0.
        """
        if not limits.window:
            return 0
        output = compute_output_reserve(limits, self.trigger_output)
        if limits.max_input:
            return max(0, limits.max_input - (self.trigger_reserve or min(INPUT_LIMIT_BUFFER_TOKENS, output)))
        return max(0, limits.window - max(output, self.trigger_reserve))

    def compute_smaller_limit(self, limits: ModelLimits) -> int:
        """Return opencode 2's limit: the smaller of input limit and window, each less a buffer or the output."""
        buffer = self.trigger_reserve or INPUT_LIMIT_BUFFER_TOKENS
        window_limit = limits.window - max(compute_output_reserve(limits, self.trigger_output), buffer)
        return max(0, min(limits.max_input - buffer, window_limit) if limits.max_input else window_limit)

    def select_tail_starts(self, builder: PlanBuilder, messages: list[Message], cut_points: list[int]) -> list[int]:
        """Return where the last turns that fit together begin; the first that does not is split where its rest fits."""
        turns = self.tail_turns
        first = min(find_turn_starts(messages)[-turns:], default=0) if turns else len(messages)
        sizes = [0] * first + [estimate_opencode_tokens(message) for message in messages[first:]]
        budget = self.compute_tail_budget(builder.target.limits)
        start = find_opencode_tail_start(messages, sizes, budget, turns, cut_points)
        return [offset for offset in cut_points if offset >= start][:1]

    def compute_tail_budget(self, limits: ModelLimits) -> int:
        """Return the tokens the kept tail may have: a share of what is usable, clamped, or exactly what is set."""
        if not self.tail_usable_share:
            return self.tail_tokens
        share_tokens = int(self.compute_usable_tokens(limits) * self.tail_usable_share)
        return min(self.tail_tokens, max(self.tail_min_tokens, share_tokens))

    def list_ordered_settings(self) -> tuple[tuple[str, str, str], ...]:
        """Return the bounds of the tail, where it is clamped between them."""
        if not self.tail_usable_share:
            return ()
        return (("preset.tail_min_tokens", "preset.tail_tokens", "the kept tail lies between them"),)


def find_opencode_tail_start(
    messages: Sequence[Message], sizes: Sequence[int], budget: int, turns: int, cut_points: Container[int] | None = None
) -> int:
    """Return where opencode's kept tail begins: the last ``turns`` turns that fit ``budget``; the end for no tail.

    The newest that does not fit is split at the earliest message whose rest fits, and ends the search. A tail that
    would hold everything is none: nothing would be left to summarise.
    """
    start = stop = len(messages)
    for turn in reversed(find_turn_starts(messages)[-turns:] if turns > 0 else []):
        if sum(sizes[turn:stop]) > budget:
            inside = [index for index in range(turn + 1, stop) if cut_points is None or index in cut_points]
            start = next((index for index in inside if sum(sizes[index:stop]) <= budget), start)
            break
        budget -= sum(sizes[turn:stop])
        start = stop = turn
    return start or len(messages)


def limit_opencode_output(builder: PlanBuilder) -> PlanBuilder:
    """Return the plan with new results cut to whole lines and bytes."""
    rules, exempt_tools = require_rules(builder, OpencodeRules), builder.settings.results.spill_exempt_tools
    return limit_result_lines(builder, OutputLimits(rules.output_lines, rules.output_bytes, exempt_tools))


def prune_like_opencode(builder: PlanBuilder) -> PlanBuilder:
    """Return the draft with results cleared behind the newest tokens of them and the second user message, if enough go.

    Results of failed calls stay and do not count, nor do those of exempt tools; the first one that was cleared before
    ends the search. Tokens are characters over four.
    """
    rules = require_rules(builder, OpencodeRules)
    if not rules.prune:
        return builder
    total_tokens = freed_tokens = 0
    edits: list[Edit] = []
    for result in _list_countable_results(builder):
        size = estimate_opencode_text_tokens(result.text)
        total_tokens += size
        if total_tokens > rules.prune_keep_tokens and (edit := build_clear_edit(result)) is not None:
            freed_tokens += size
            edits.append(edit)
    return builder.add_edits(tuple(edits)) if freed_tokens > rules.prune_min_tokens else builder


def _list_countable_results(builder: PlanBuilder) -> Iterator[ShownResult]:
    """Yield the results that may be counted, newest first, back to one that was cleared."""
    start, names, goes = (
        _find_second_last_user_message(builder),
        build_tool_name_lookup(builder.state),
        build_prune_filter(builder.settings.prune),
    )
    for result in find_shown_results(builder.state):
        if result.text == CLEARED_RESULT_TEXT:
            return
        if (
            result.message_index < start
            and not result.result.is_error
            and goes(names(result.message_index, result.result))
        ):
            yield result


def _find_second_last_user_message(builder: PlanBuilder) -> int:
    """Return the slot of the second user message from the end; 0 where there is none."""
    state, users = builder.state, 0
    for index in range(len(state.history.sized_messages) - 1, state.view.first_kept - 1, -1):
        users += state.history.messages[index].is_turn_start
        if users == 2:
            return index
    return 0


OPENCODE = Preset(
    "as opencode does it: the last turns stay, a model summarises the rest",
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
"""When opencode 2 compacts: ``Policy.preset("opencode").with_settings(**OPENCODE_2)``; not twice between answers."""
