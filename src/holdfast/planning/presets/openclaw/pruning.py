"""As OpenClaw prunes: once the cache has outlived its time, long results are trimmed, then old ones cleared."""

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
from holdfast.state.view import count_leading_messages

TRIMMED_IMAGE_TEXT = "[Image removed with the middle of this result]"
"""What stands in a trimmed result for an image."""


class _PrunableResult(Struct, frozen=True):
    """A result that may be pruned: as it is shown, as it would be shown, and under which rule."""

    weighed: WeighedResult
    shortened: ToolResult
    rule: str = ""


def prune_images_and_results(builder: PlanBuilder) -> PlanBuilder:
    """Return the plan without answered images, and with old results trimmed or cleared when the cache is cold."""
    rules = require_rules(builder, OpenclawRules)
    builder = builder.add_edits(tuple(build_seen_image_edits(builder, rules.image_keep_turns)))
    if not rules.prune or not _is_cache_cold(builder, rules):
        return builder
    return builder.add_edits(tuple(_build_ttl_edits(builder, rules)))


def _is_cache_cold(builder: PlanBuilder, rules: OpenclawRules) -> bool:
    return builder.inputs.cache_state == "cold" or builder.inputs.idle_seconds >= rules.prune_ttl_seconds


def _build_ttl_edits(builder: PlanBuilder, rules: OpenclawRules) -> Iterator[Edit]:
    """Yield the edits of the results behind the newest answers, by how much of the window all characters take."""
    chars = builder.budget.window * CHARS_PER_TOKEN
    total = sum_shown_messages(builder.state, weigh_message)
    if total < rules.prune_trim_share * chars:
        return
    old = [_trim_result_middle(result, rules) for result in _find_prunable_results(builder, rules)]
    total -= sum(weigh_part(result.weighed.result) - weigh_part(result.shortened) for result in old)
    over = total - rules.prune_clear_share * chars
    if over >= 0 and sum(weigh_part(result.shortened) for result in old) >= rules.prune_clear_min_chars:
        old = list(_clear_oldest_results(old, over))
    for result in old:
        if result.rule:
            yield _build_ttl_edit(result)


def _find_prunable_results(builder: PlanBuilder, rules: OpenclawRules) -> Iterator[WeighedResult]:
    """Yield the results that may go: behind the first words of a user and before the newest answers, oldest first."""
    state, keep_answers = builder.state, rules.prune_keep_answers
    answers = [
        at
        for at in range(state.view.first_kept, len(state.history.sized_messages))
        if state.history.messages[at].role == "assistant"
    ]
    if len(answers) < keep_answers:
        return
    first = _find_first_user_message(state)
    last, names, goes = (
        answers[-keep_answers] if keep_answers else len(state.history.sized_messages),
        build_tool_name_lookup(state),
        build_prune_filter(builder.settings.prune),
    )
    for result in weigh_shown_results(state):
        if is_protected_part(state, result.message_index, result.part_index):
            continue
        if first < result.message_index < last and goes(names(result.message_index, result.result)):
            yield result


def _find_first_user_message(state: ConversationState) -> int:
    """Return where a user first speaks in what is shown; a summary is a user's words too."""
    if count_leading_messages(state) > state.view.pinned_count:
        return state.view.first_kept - 1
    slots = range(state.view.first_kept, len(state.history.sized_messages))
    return next(
        (index for index in slots if state.history.messages[index].is_turn_start), len(state.history.sized_messages)
    )


def _trim_result_middle(weighed: WeighedResult, rules: OpenclawRules) -> _PrunableResult:
    """Return a result with its middle trimmed, where it is long enough."""
    ends = rules.prune_trim_end_chars
    text = "\n".join(map(_get_trimmed_text, weighed.result.content))
    if len(text) <= max(rules.prune_trim_min_chars, 2 * ends):
        return _PrunableResult(weighed, weighed.result)
    note = f"[Tool result trimmed: kept first {ends} chars and last {ends} chars of {len(text)} chars.]"
    head, tail = text[:ends], text[len(text) - ends :]
    return _PrunableResult(weighed, _replace_result_content(weighed.result, f"{head}\n...\n{tail}\n\n{note}"), "trim")


def _get_trimmed_text(part: Text | Media | Opaque) -> str:
    return part.text if isinstance(part, Text) else TRIMMED_IMAGE_TEXT if isinstance(part, Media) else ""


def _clear_oldest_results(old: list[_PrunableResult], over: float) -> Iterator[_PrunableResult]:
    """Yield ``old``, the oldest cleared until less than the share of the window is taken."""
    for result in old:
        frees = weigh_part(result.shortened) - len(CLEARED_RESULT_TEXT)
        if over >= 0 and frees > 0:
            over -= frees
            yield _PrunableResult(
                result.weighed, _replace_result_content(result.weighed.result, CLEARED_RESULT_TEXT), "prune"
            )
        else:
            yield result


def _replace_result_content(result: ToolResult, text: str) -> ToolResult:
    """Return ``result`` with ``text`` for all its words and images."""
    opaque_parts = tuple(part for part in result.content if isinstance(part, Opaque))
    return ToolResult(result.call_id, result.name, (Text(text), *opaque_parts), result.is_error)


def _build_ttl_edit(pruned: _PrunableResult) -> Edit:
    text, short = get_result_text(pruned.weighed.result), get_result_text(pruned.shortened)
    images = sum(isinstance(part, Media) for part in pruned.weighed.result.content)
    saves = estimate_text_tokens(text) - estimate_text_tokens(short) + images * IMAGE_TOKENS
    why = f"an old result of {len(text):,} characters, {len(short):,} stay"
    return Edit(
        Span(pruned.weighed.message_index, pruned.weighed.message_index + 1, pruned.weighed.part_index),
        (pruned.shortened,),
        pruned.rule,
        why,
        saves,
    )
