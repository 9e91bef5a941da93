"""Unread results: what answers the newest calls is shortened to fair shares before any of it is summarized.

A tool loop that never sees its results repeats the calls. So when a compaction of the older messages is not enough,
each result that the model waits for still shows something, and a handle to the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from holdfast.messages.message import get_part_text, get_result_text
from holdfast.messages.parts import ToolResult
from holdfast.messages.size.tokens import estimate_text_tokens
from holdfast.planning.builder import PlanBuilder, build_part_edit
from holdfast.planning.shown_messages import map_shown_parts
from holdfast.planning.stages.smallest_request import (
    CUT_LEVELS,
    NOTICE_TOKENS,
    UNREAD_RULE,
    CutLevel,
    clip_text_with_blob,
)
from holdfast.planning.stages.spill import replace_result_text
from holdfast.planning.stages.tail_selection import find_answer_with_unread_results, measure_tail
from holdfast.state.edits import Blob, Edit
from holdfast.state.view import list_shown_indexes


def shorten_unread_results(builder: PlanBuilder, max_result_tokens: int, max_tail_tokens: int) -> PlanBuilder:
    """Shorten the unread results to ``max_result_tokens`` together, or less if the tail they are in is limited.

    ``max_tail_tokens`` is the limit of the newest answer and everything after it; both are real tokens. Each result
    keeps at least the smallest cut level, so the limits may be missed. Media in the results stay.
    """
    state = builder.state
    answer_index = find_answer_with_unread_results(state)
    results: list[_UnreadResult] = []
    for index in list_shown_indexes(state, answer_index):
        for part_index, part in map_shown_parts(state, index).items():
            if isinstance(part, ToolResult):
                results.append(_UnreadResult(index, part_index, part))
    sizes = [estimate_text_tokens(get_result_text(unread.result)) for unread in results]
    other_tokens = measure_tail(state, answer_index) - sum(sizes)
    total_tokens = min(
        builder.to_estimator_tokens(max_result_tokens), builder.to_estimator_tokens(max_tail_tokens) - other_tokens
    )
    # Each cut adds a line that says what was left out; it comes on top of the tokens a text is cut to.
    tokens_per_result = _compute_fair_limit(sizes, total_tokens) - NOTICE_TOKENS
    min_tokens = CutLevel(*CUT_LEVELS[-1]).result_tokens
    pairs: list[tuple[Edit, Blob | None]] = []
    for unread in results:
        pairs += _cut_unread_result(builder, unread, max(tokens_per_result, min_tokens))
    return builder.replace_texts(pairs)


class _UnreadResult(NamedTuple):
    """A result that the model has not read, as it is shown now."""

    message_index: int
    part_index: int
    result: ToolResult


def _compute_fair_limit(sizes: Sequence[int], total_tokens: int) -> int:
    """Return the limit of each size at which all together have at most ``total_tokens``.

    Sizes below the limit leave their rest to the others, so the smallest are served first.
    """
    remaining = total_tokens
    for index, size in enumerate(sorted(sizes)):
        share = remaining // (len(sizes) - index)
        if size > share:
            return share
        remaining -= size
    # All fit. The caller subtracts a notice from the limit, so it is added here: none of them is cut.
    return max(sizes, default=0) + NOTICE_TOKENS


def _cut_unread_result(
    builder: PlanBuilder, unread: _UnreadResult, max_tokens: int
) -> Iterator[tuple[Edit, Blob | None]]:
    """Yield the edit that shows a result in about ``max_tokens`` tokens, with its blob, if that is shorter."""
    message_index, part_index, result = unread
    text = get_result_text(result)
    message = builder.state.history.messages[message_index]
    whole_text = get_part_text(message.parts[part_index])
    short_text, blob = clip_text_with_blob(builder, text, whole_text, max_tokens)
    saves = estimate_text_tokens(text) - estimate_text_tokens(short_text)
    if saves <= 0:
        return
    why = f"the new results must fit together: cut from {len(text):,} to {len(short_text):,} characters"
    replacement = replace_result_text(result, short_text)
    blob_hash = "" if blob is None else blob.hash
    yield (
        build_part_edit(
            message_index,
            part_index,
            replacement,
            UNREAD_RULE,
            why,
            saves,
            blob_hash,
        ),
        blob,
    )
