"""Normalize a history: edits that make it valid for its API. They are computed anew for each request, never stored.

A sequence of passes works on tracked messages: each message is cleaned, every result is put where its call wants it,
system messages are placed, neighbours are merged, both ends are closed. The edits are the difference between the first
and the last state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

from holdfast.messages.message import Message
from holdfast.messages.parts import Thinking
from holdfast.normalize.approvals import drop_orphan_approvals
from holdfast.normalize.dropped_calls import detach_dropped_call_results
from holdfast.normalize.fast_path import is_normalized_inside
from holdfast.normalize.ids import NO_CALL_IDS
from holdfast.normalize.media_limit import replace_excess_media
from holdfast.normalize.misplaced_results import (
    assign_missing_call_ids,
    drop_unanswered_computer_calls,
    extract_misplaced_results,
    link_results_without_id,
)
from holdfast.normalize.old_calls import replace_old_calls
from holdfast.normalize.pairing import drop_unfinished_calls, pair_calls_with_results
from holdfast.normalize.parts import CLEANING_RULES, clean_messages, has_nonblank_content
from holdfast.normalize.result_media import move_unsupported_result_media
from holdfast.normalize.returned_reasoning import add_missing_reasoning
from holdfast.normalize.roles import (
    ensure_valid_ends,
    has_valid_end_roles,
    insert_acknowledgements,
    is_summary_merge_required,
    merge_adjacent_messages,
    place_system_messages,
)
from holdfast.normalize.server_tools import drop_unpaired_server_parts
from holdfast.normalize.signatures import add_missing_signatures
from holdfast.normalize.tracked_messages import (
    EditReason,
    TrackedMessage,
    build_normalization_edits,
    find_dropped_positions,
)
from holdfast.state.dialect import Dialect
from holdfast.state.edits import Edit

_NO_POSITIONS: frozenset[int] = frozenset()
CHANGED_PREFIX_THINKING_RULE = "thinking-binding"
"""Rule of the edits that drop thinking because its signature no longer fits the messages before it."""
DROPPED_THINKING_RULES = frozenset({CHANGED_PREFIX_THINKING_RULE, "thinking"})
"""Rules of the edits that drop thinking: ``CHANGED_PREFIX_THINKING_RULE``, and the rule for thinking without
a signature or of another model."""
SINGLE_MESSAGE_RULES = CLEANING_RULES | DROPPED_THINKING_RULES
"""Rules of the edits that depend on their own message alone, whatever stands around it."""

_Pass: TypeAlias = Callable[[list[TrackedMessage], Dialect], list[TrackedMessage]]


def normalize_history(
    messages: Sequence[Message],
    dialect: Dialect,
    first_position: int = 0,
    invalid_thinking: frozenset[int] = _NO_POSITIONS,
    interrupted: frozenset[int] = _NO_POSITIONS,
    *,
    has_system_field: bool = True,
    summary_position: int = -1,
    earlier_ids: frozenset[str] = NO_CALL_IDS,
) -> tuple[Edit, ...]:
    """Return the edits that make ``messages`` a valid request; spans count from ``first_position``.

    ``invalid_thinking`` are positions of thinking that no longer fits the messages before it, on a model that checks
    that; ``interrupted`` are positions of answers that failed or were interrupted. ``has_system_field`` says
    whether ``messages`` may begin with system messages (which move into a field of their own if the API has one); false
    for the messages of a client's body whose API has such a field, since they cannot move any more.
    ``summary_position`` is the index of the summary of older turns, or -1. ``earlier_ids`` are ids of calls sent before
    ``messages``.
    """
    has_content = not has_system_field or any(map(has_nonblank_content, messages))
    has_system_field = has_system_field and first_position == 0
    # Most histories need nothing. This check visits each message once, where each of the passes does.
    may_be_normalized = not (
        invalid_thinking or interrupted or is_summary_merge_required(messages, dialect, summary_position)
    )
    if (
        may_be_normalized
        and (dialect.keeps_client_content or has_valid_end_roles(messages, dialect, first_position))
        and is_normalized_inside(messages, dialect, has_system_field=has_system_field, earlier_ids=earlier_ids)
    ):
        return ()

    original_items = []
    for position, message in enumerate(messages, first_position):
        original_items.append(TrackedMessage(position, position + 1, message))
    items = []
    for item in original_items:
        if item.start in invalid_thinking:
            items.append(_drop_invalid_thinking(item))
        else:
            items.append(item)
    drop_reasons: dict[int, EditReason] = {}
    passes = _list_passes(
        dialect,
        first_position,
        interrupted,
        first_position + summary_position,
        earlier_ids,
        has_system_field=has_system_field,
        has_content=has_content,
    )
    for run_pass, drop_reason in passes:
        changed_items = run_pass(items, dialect)
        drop_reasons |= find_dropped_positions(items, changed_items, drop_reason)
        items = changed_items
    return build_normalization_edits(original_items, items, drop_reasons)


def _list_passes(
    dialect: Dialect,
    first_position: int,
    interrupted: frozenset[int],
    summary_position: int,
    earlier_ids: frozenset[str],
    *,
    has_system_field: bool,
    has_content: bool,
) -> tuple[tuple[_Pass, EditReason], ...]:
    """Return the passes in order, each with the rule and the reason given for a message that it drops."""
    if dialect.keeps_client_content:  # a server whose rules we do not know: only what Holdfast added is normalized
        return (
            (replace_old_calls, ("drop", "")),
            (clean_messages, ("empty", "all its content was signed or encrypted for another model")),
            (
                partial(merge_adjacent_messages, summary_position=summary_position),
                ("merge", "adjacent messages of the same role are merged"),
            ),
            (replace_excess_media, ("drop", "")),
        )
    pair_server_calls = (
        partial(drop_unpaired_server_parts, earlier_ids=earlier_ids),
        ("server-pair", "it had only half of a server tool's call and result"),
    )
    # Each pass relies on those before it. The order has these reasons:
    #
    # - The old form of calls goes first: all others know calls and results only.
    # - Results get the places and ids by which they can be matched, before anything is matched.
    # - Calls are dropped before cleaning: a dropped call may leave a message, or its thinking, with nothing to send.
    # - Media move out of results before cleaning, which would replace them by a line.
    # - Pairing comes after cleaning, so that it sees the calls which are really sent.
    # - Server calls are paired twice, before and after system messages are placed. A system message may stand inside a
    #   paused answer; where the API takes none there, it becomes a user message, and that ends the paused answer.
    # - Merging, and all that depends on neighbours and ends, comes when no message moves any more.
    # - Media are counted last.
    return (
        (replace_old_calls, ("drop", "")),
        (extract_misplaced_results, ("drop", "")),
        (link_results_without_id, ("drop", "")),
        (assign_missing_call_ids, ("drop", "")),
        (partial(detach_dropped_call_results, interrupted=interrupted), ("drop", "")),
        (partial(drop_unfinished_calls, interrupted=interrupted), ("drop", "")),
        (move_unsupported_result_media, ("drop", "")),
        (drop_orphan_approvals, ("pairing", "the request that this approval answers is gone")),
        (drop_unanswered_computer_calls, ("pairing", "it had only a call for a screenshot without output")),
        (clean_messages, ("empty", "it has no content that this API accepts")),
        (
            partial(pair_calls_with_results, earlier_ids=earlier_ids),
            ("pairing", "its results were moved after their calls, or have no call"),
        ),
        pair_server_calls,
        (
            partial(place_system_messages, has_system_field=has_system_field),
            ("system", "no system message is allowed here, and its content is not allowed in other roles"),
        ),
        pair_server_calls,
        (
            partial(merge_adjacent_messages, summary_position=summary_position),
            ("merge", "adjacent messages of the same role are merged"),
        ),
        (insert_acknowledgements, ("drop", "")),
        (add_missing_signatures, ("drop", "")),
        (add_missing_reasoning, ("drop", "")),
        (
            partial(ensure_valid_ends, first_position=first_position, has_content=has_content),
            ("end", "the last message had only white space"),
        ),
        (replace_excess_media, ("drop", "")),
    )


def _drop_invalid_thinking(item: TrackedMessage) -> TrackedMessage:
    parts = tuple(part for part in item.message.parts if not isinstance(part, Thinking))
    why = "the thinking was signed for the messages before it, which have changed"
    return item.replace_message(Message(item.message.role, parts), CHANGED_PREFIX_THINKING_RULE, why)
