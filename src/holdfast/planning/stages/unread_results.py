"""Unread results: what answers the newest calls is cut short, each to a fair share, before any of it is folded away."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from holdfast.messages.message import get_part_text, get_result_text
from holdfast.messages.parts import ToolResult
from holdfast.messages.size.tokens import estimate_text_tokens
from holdfast.planning.builder import PlanBuilder
from holdfast.planning.shown_messages import map_shown_parts
from holdfast.planning.stages.smallest_request import CUT_LEVELS, NOTICE_TOKENS, UNREAD_RULE, clip_text_with_blob
from holdfast.planning.stages.spill import replace_result_text
from holdfast.planning.stages.tail_selection import find_answer_with_unread_results, measure_tail
from holdfast.state.edits import Blob, Edit, Span
from holdfast.state.view import list_shown_indexes


def shorten_unread_results(builder: PlanBuilder, share: int, tail: int) -> PlanBuilder:
    """Return the draft with the results that the model waits for cut to ``share`` tokens together, or to the least.

    ``tail`` is what they and all that stands with them may take. Images and documents stay.
    """
    state, start = builder.state, find_answer_with_unread_results(builder.state)
    results = [
        (index, place, part)
        for index in list_shown_indexes(state, start)
        for place, part in map_shown_parts(state, index).items()
        if isinstance(part, ToolResult)
    ]
    sizes = [estimate_text_tokens(get_result_text(part)) for _, _, part in results]
    beside = measure_tail(state, start) - sum(sizes)
    tokens_per_result = max(
        _compute_fair_limit(sizes, min(builder.to_estimator_tokens(share), builder.to_estimator_tokens(tail) - beside))
        - NOTICE_TOKENS,
        CUT_LEVELS[-1][1],
    )
    return builder.replace_texts(
        pair for result in results for pair in _cut_unread_result(builder, *result, tokens_per_result)
    )


def _compute_fair_limit(sizes: Sequence[int], total_tokens: int) -> int:
    """Return how much each of ``sizes`` may have at most, so that together they have no more than ``total_tokens``."""
    remaining = total_tokens
    for index, size in enumerate(sorted(sizes)):
        share = remaining // (len(sizes) - index)
        if size > share:
            return share
        remaining -= size
    return max(sizes, default=0) + NOTICE_TOKENS


def _cut_unread_result(
    builder: PlanBuilder, message_index: int, part_index: int, visible_result: ToolResult, max_tokens: int
) -> Iterator[tuple[Edit, Blob | None]]:
    """Yield the edit that shows a result in about ``max_tokens`` tokens, and its whole text, where that is shorter."""
    text = get_result_text(visible_result)
    short, blob = clip_text_with_blob(
        builder, text, get_part_text(builder.state.history.messages[message_index].parts[part_index]), max_tokens
    )
    saves = estimate_text_tokens(text) - estimate_text_tokens(short)
    if saves > 0:
        why = f"{len(text):,} characters shown, {len(short):,} stay: all that the model waits for must fit together"
        replacement = (replace_result_text(visible_result, short),)
        yield (
            Edit(
                Span(message_index, message_index + 1, part_index),
                replacement,
                UNREAD_RULE,
                why,
                saves,
                blob.hash if blob else "",
            ),
            blob,
        )
