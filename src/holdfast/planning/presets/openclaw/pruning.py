"""OpenClaw's pruning: once the cache has expired, trim long results, then clear the oldest."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from holdfast.messages.message import get_result_text
from holdfast.messages.parts import Media, Opaque, Text, ToolResult
from holdfast.messages.size.tokens import IMAGE_TOKENS, estimate_text_tokens
from holdfast.messages.size.weighted_chars import CHARS_PER_TOKEN, weigh_message, weigh_part
from holdfast.planning.builder import PlanBuilder
from holdfast.planning.policy_rules import require_rules
from holdfast.planning.presets.openclaw.rules import OpenclawRules
from holdfast.planning.presets.openclaw.seen_images import build_seen_image_edits
from holdfast.planning.shown_messages import sum_shown_messages
from holdfast.planning.stages.prune.prunable_results import CLEARED_RESULT_TEXT, build_prune_filter
from holdfast.planning.stages.tool_results import build_tool_name_lookup
from holdfast.planning.stages.truncate import WeighedResult, weigh_shown_results
from holdfast.state.conversation_state import ConversationState, is_protected_part
from holdfast.state.edits import Edit, Span

TRIMMED_IMAGE_TEXT = "[Image removed with the middle of this result]"
"""Text in a trimmed result in place of an image."""


class _PrunableResult(Struct, frozen=True):
    """A result that may be pruned."""

    weighed: WeighedResult
    """The result as it is shown."""
    shortened: ToolResult
    """The result as it would be shown."""
    rule: str = ""
    """The rule that shortens it; empty if nothing does."""


def prune_images_and_results(builder: PlanBuilder) -> PlanBuilder:
    """Drop images that the model has answered, and trim or clear old results if the cache is cold."""
    rules = require_rules(builder, OpenclawRules)
    builder = builder.add_edits(tuple(build_seen_image_edits(builder, rules.image_keep_turns)))
    if not rules.prune or not _is_cache_cold(builder, rules):
        return builder
    return builder.add_edits(tuple(_build_ttl_edits(builder, rules)))


def _is_cache_cold(builder: PlanBuilder, rules: OpenclawRules) -> bool:
    return builder.inputs.cache_state == "cold" or builder.inputs.idle_seconds >= rules.prune_ttl_seconds


def _build_ttl_edits(builder: PlanBuilder, rules: OpenclawRules) -> Iterator[Edit]:
    """Yield the edits that trim or clear results, by the share of the window that all messages take."""
    window_chars = builder.budget.window * CHARS_PER_TOKEN
    total = sum_shown_messages(builder.state, weigh_message)
    if total < rules.prune_trim_share * window_chars:
        return
    results = [_trim_result_middle(result, rules) for result in _find_prunable_results(builder, rules)]
    for result in results:
        total -= weigh_part(result.weighed.result) - weigh_part(result.shortened)
    # Clearing comes after trimming, and only if that was not enough.
    excess = total - rules.prune_clear_share * window_chars
    prunable_chars = sum(weigh_part(result.shortened) for result in results)
    if excess >= 0 and prunable_chars >= rules.prune_clear_min_chars:
        results = list(_clear_oldest_results(results, excess))
    for result in results:
        if result.rule:
            yield _build_ttl_edit(result)


def _find_prunable_results(builder: PlanBuilder, rules: OpenclawRules) -> Iterator[WeighedResult]:
    """Yield the results between the user's first message and the newest answers, oldest first."""
    state, keep_answers = builder.state, rules.prune_keep_answers
    message_count = len(state.history.sized_messages)
    answer_indexes = []
    for index in range(state.view.first_kept, message_count):
        if state.history.messages[index].role == "assistant":
            answer_indexes.append(index)
    # As long as there are fewer answers than are protected, nothing may be pruned.
    if len(answer_indexes) < keep_answers:
        return
    first_user_index = _find_first_user_message(state)
    if keep_answers:
        protected_start = answer_indexes[-keep_answers]
    else:
        protected_start = message_count
    get_tool_name = build_tool_name_lookup(state)
    may_prune = build_prune_filter(builder.settings.prune)
    for result in weigh_shown_results(state):
        if is_protected_part(state, result.message_index, result.part_index):
            continue
        is_between = first_user_index < result.message_index < protected_start
        if is_between and may_prune(get_tool_name(result.message_index, result.result)):
            yield result


def _find_first_user_message(state: ConversationState) -> int:
    """Return the index of the first shown user message; the summary, in front of the kept messages, is one."""
    compaction = state.view.compaction
    if compaction is not None and compaction.summary is not None:
        return state.view.first_kept - 1
    for index in range(state.view.first_kept, len(state.history.sized_messages)):
        if state.history.messages[index].is_turn_start:
            return index
    return len(state.history.sized_messages)


def _trim_result_middle(weighed: WeighedResult, rules: OpenclawRules) -> _PrunableResult:
    """Trim the middle of a result that is long enough."""
    end_chars = rules.prune_trim_end_chars
    text = "\n".join(map(_get_trimmed_text, weighed.result.content))
    if len(text) <= max(rules.prune_trim_min_chars, 2 * end_chars):
        return _PrunableResult(weighed, weighed.result)
    note = f"[Tool result trimmed: kept first {end_chars} chars and last {end_chars} chars of {len(text)} chars.]"
    head = text[:end_chars]
    tail = text[len(text) - end_chars :]
    trimmed_result = _replace_result_content(weighed.result, f"{head}\n...\n{tail}\n\n{note}")
    return _PrunableResult(weighed, trimmed_result, "trim")


def _get_trimmed_text(part: Text | Media | Opaque) -> str:
    if isinstance(part, Text):
        return part.text
    return TRIMMED_IMAGE_TEXT if isinstance(part, Media) else ""


def _clear_oldest_results(results: list[_PrunableResult], excess: float) -> Iterator[_PrunableResult]:
    """Yield ``results``, with the oldest cleared until the messages take less than the share of the window."""
    for result in results:
        freed = weigh_part(result.shortened) - len(CLEARED_RESULT_TEXT)
        if excess < 0 or freed <= 0:
            yield result
            continue
        excess -= freed
        cleared_result = _replace_result_content(result.weighed.result, CLEARED_RESULT_TEXT)
        yield _PrunableResult(result.weighed, cleared_result, "prune")


def _replace_result_content(result: ToolResult, text: str) -> ToolResult:
    """Return ``result`` with ``text`` in place of all its texts and images."""
    # Opaque parts stay: they record the form of the result for its API.
    opaque_parts = tuple(part for part in result.content if isinstance(part, Opaque))
    return ToolResult(result.call_id, result.name, (Text(text), *opaque_parts), result.is_error)


def _build_ttl_edit(pruned: _PrunableResult) -> Edit:
    weighed = pruned.weighed
    old_text, new_text = get_result_text(weighed.result), get_result_text(pruned.shortened)
    image_count = sum(isinstance(part, Media) for part in weighed.result.content)
    saved_tokens = estimate_text_tokens(old_text) - estimate_text_tokens(new_text) + image_count * IMAGE_TOKENS
    why = f"an old result, cut from {len(old_text):,} to {len(new_text):,} characters"
    span = Span(weighed.message_index, weighed.message_index + 1, weighed.part_index)
    return Edit(span, (pruned.shortened,), pruned.rule, why, saved_tokens)
