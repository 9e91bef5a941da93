"""Pair tool calls with their results: a result for each call where the API wants it, and no result without its call.

A misplaced result moves behind its call, a second one is dropped, a missing one is synthesized, and an orphan is retold
as the user's words. A real result wins over a synthetic one, wherever it stands. ``result_matching.py`` decides which
result belongs to which call.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from holdfast.messages.message import Message, format_part_placeholder, replace_all_parts
from holdfast.messages.parts import Media, Part, Text, ToolCall, ToolResult
from holdfast.messages.strip_foreign import get_opaque_text
from holdfast.normalize.ids import NO_CALL_IDS, assign_wire_ids, get_assistant_calls, is_wire_id
from holdfast.normalize.parts import clean_message, drop_parts_with_thinking, has_incomplete_arguments
from holdfast.normalize.result_matching import (
    SYNTHETIC_RESULT_TEXT,
    CallResults,
    LocatedResult,
    ResultIndexes,
    find_early_orphan_results,
    find_results_of_calls,
    has_distinguishable_results,
    is_synthetic_result,
    may_be_answered_later,
)
from holdfast.normalize.tracked_messages import TrackedMessage, create_inserted_message
from holdfast.state.dialect import Dialect

CALL_ID_RULE = "call-id"
"""Rule of the edits that give a call and its result the id under which they are sent."""
ORPHAN_RESULT_LABEL = "[Result of a tool call that is not here]"
"""Label before the words of an orphan, a result that answers no call."""


def drop_unfinished_calls(
    items: list[TrackedMessage], dialect: Dialect, *, interrupted: frozenset[int]
) -> list[TrackedMessage]:
    """Drop calls without a result that never ran: their arguments are incomplete or their answer was interrupted.

    A synthetic result would tell the model that such a call ran. ``interrupted`` are positions of answers that failed
    or were interrupted.
    """
    remaining_items = list(items)
    for index, results in find_results_of_calls([item.message for item in items]).items():
        item = items[index]
        part_indexes = []
        for number, part in enumerate(item.message.parts):
            if type(part) is ToolCall:
                part_indexes.append(number)
        unfinished: set[int] = set()
        for part_index, call, result in zip(part_indexes, item.message.calls, results, strict=True):
            if result is None and has_never_run(item, call, interrupted):
                unfinished.add(part_index)
        if unfinished:
            message = drop_parts_with_thinking(item.message, unfinished, dialect)
            remaining_items[index] = item.replace_message(
                message, "unfinished-call", "the answer was interrupted and the call never ran"
            )
    return remaining_items


def has_never_run(item: TrackedMessage, call: ToolCall, interrupted: frozenset[int]) -> bool:
    """Return whether ``call`` of ``item``, which has no result, never ran.

    ``interrupted`` are positions of answers that failed or were interrupted.
    """
    return item.start in interrupted or has_incomplete_arguments(call)


def pair_calls_with_results(
    items: list[TrackedMessage], dialect: Dialect, *, earlier_ids: frozenset[str] = NO_CALL_IDS
) -> list[TrackedMessage]:
    """Put the result of each call where it belongs, under the id of its call, and remove all other results.

    ``earlier_ids`` are ids sent before ``items``; an API that wants each id once must not get them again.
    """
    messages = [item.message for item in items]
    call_results = find_results_of_calls(messages)
    orphans = find_early_orphan_results(messages, call_results)
    external_results = _detach_external_results(messages, call_results, dialect)
    wire_ids = assign_wire_ids(messages, dialect, earlier_ids)
    # Results are matched with calls before ids are assigned: matching needs the original ids, and a result gets the new
    # id of its call.
    wire_ids_by_answer = {}
    for index in call_results:
        if wire_ids[index]:
            wire_ids_by_answer[index] = wire_ids[index]
    renamed_items = _rename_calls_and_results(items, call_results, wire_ids_by_answer, dialect)
    if dialect.results_adjacent:
        return list(
            _place_results_adjacent(
                renamed_items,
                call_results,
                dialect,
                orphans,
                external_results,
            )
        )
    placed_items = list(_place_results_after_calls(renamed_items, call_results, dialect, orphans))
    if _has_assigned_ids([item.message for item in placed_items], dialect, earlier_ids):
        return placed_items
    # A removed result made two answers neighbours that the API reads as one, in which an id now occurs twice.
    return pair_calls_with_results(placed_items, dialect, earlier_ids=earlier_ids)


def render_orphan_result(result: ToolResult) -> tuple[Text | Media, ...]:
    """Return the parts by which a user retells an orphan: a label and its content, or no parts without real content."""
    content: list[Text | Media] = []
    for part in result.content:
        if isinstance(part, Media):
            content.append(replace(part, raw=None))
            continue
        if isinstance(part, Text):
            text = part.text
        else:
            text = get_opaque_text(part) or format_part_placeholder(part)
        if text:
            content.append(Text(text))
    has_content = any(isinstance(part, Media) or part.text.strip() for part in content)
    if not has_content or is_synthetic_result(result):
        return ()
    if result.name:
        label = f"{ORPHAN_RESULT_LABEL[:-1]}: {result.name}]"
    else:
        label = ORPHAN_RESULT_LABEL
    return (Text(label), *content)


def _detach_external_results(messages: Sequence[Message], call_results: CallResults, dialect: Dialect) -> ResultIndexes:
    """Find results of calls in the history that the server holds, and remove them from ``call_results``.

    These are the results without a sent id before the first answer. Matching them by position would pair them with a
    later call of this request.
    """
    if not dialect.has_server_history:
        return {}
    external_results: ResultIndexes = {}
    for message_index, message in enumerate(messages):
        if message.role == "assistant":
            break
        result_indexes: set[int] = set()
        for result_index, result in enumerate(message.results):
            if not is_wire_id(result.call_id, dialect):
                result_indexes.add(result_index)
        external_results[message_index] = result_indexes
    if not external_results:
        return {}
    for matches in call_results.values():
        for call_index, match in enumerate(matches):
            if match is not None and match.result_index in external_results.get(match.message_index, ()):
                matches[call_index] = None
    return external_results


# -- the ids of both ---------------------------------------------------------------------------------------------------


def _has_assigned_ids(messages: Sequence[Message], dialect: Dialect, earlier_ids: frozenset[str]) -> bool:
    """Return whether every call has the id under which it is to be sent."""
    call_ids_by_message: list[tuple[str, ...]] = []
    for message in messages:
        call_ids_by_message.append(tuple([call.id for call in get_assistant_calls(message)]))
    return call_ids_by_message == assign_wire_ids(messages, dialect, earlier_ids)


class WireName(NamedTuple):
    """The id and tool name under which a call or result is sent; an empty one leaves it as it is."""

    id: str = ""
    tool: str = ""


WireNames = dict[int, WireName]
"""Wire names of the calls, or of the results, of one message, by their index among these."""


def _rename_calls_and_results(
    items: Sequence[TrackedMessage],
    call_results: CallResults,
    ids: Mapping[int, Sequence[str]],
    dialect: Dialect,
) -> list[TrackedMessage]:
    """Give the calls of each answer their ``ids``, and the results of these calls the same ids."""
    why = "an id is too long, has characters that the API refuses or was used before, or a result names another tool"
    renamed_items = list(items)
    result_names: dict[int, WireNames] = defaultdict(dict)
    for index, call_ids in ids.items():
        call_names = {number: WireName(id_) for number, id_ in enumerate(call_ids)}
        renamed_items[index] = apply_wire_names(renamed_items[index], call_names, ToolCall, why)
        calls = items[index].message.calls
        for call, id_, match in zip(calls, call_ids, call_results[index], strict=True):
            if match is None:
                continue
            if is_misnamed_result(match.result, calls, dialect):
                tool = call.name
            else:
                tool = ""
            result_names[match.message_index][match.result_index] = WireName(id_, tool)
    for message_index, names in result_names.items():
        renamed_items[message_index] = apply_wire_names(renamed_items[message_index], names, ToolResult, why)
    return renamed_items


def is_misnamed_result(result: ToolResult, calls: Sequence[ToolCall], dialect: Dialect) -> bool:
    """Return whether a result must be given the tool name of its call.

    That is so if no call among ``calls``, those of its answer, has its name, or if it is matched by name because no id
    is sent.
    """
    if not dialect.results_carry_name:
        return False
    return not is_wire_id(result.call_id, dialect) or all(call.name != result.name for call in calls)


def apply_wire_names(
    item: TrackedMessage,
    names: WireNames,
    kind: type,
    why: str,
) -> TrackedMessage:
    """Apply ``names`` to the parts of type ``kind`` in ``item``; return the same object if all have them already."""
    parts: list[Part] = []
    number = 0
    for part in item.message.parts:
        if type(part) is kind:
            parts.append(_rename_part(part, names.get(number, WireName())))
            number += 1
        else:
            parts.append(part)
    message = replace_all_parts(item.message, parts)
    if message is item.message:
        return item
    return item.replace_message(message, CALL_ID_RULE, why)


def _rename_part(part: Part, name: WireName) -> Part:
    """Return ``part`` under ``name``; the same object, with its raw bytes, if nothing changes."""
    if isinstance(part, ToolCall):
        new_id = name.id or part.id
        if new_id != part.id:
            return replace(part, id=new_id, raw=None)
    elif isinstance(part, ToolResult):
        new_id = name.id or part.call_id
        new_tool = name.tool or part.name
        if new_id != part.call_id or new_tool != part.name:
            return replace(part, call_id=new_id, name=new_tool, raw=None)
    return part


# -- where results stand right behind their calls ----------------------------------------------------------------------


def _place_results_adjacent(
    items: Sequence[TrackedMessage],
    call_results: CallResults,
    dialect: Dialect,
    orphans: ResultIndexes,
    external_results: ResultIndexes,
) -> Iterator[TrackedMessage]:
    """Yield the items with all results of an answer right behind it; those that stand so stay the same objects."""
    index = 0
    while index < len(items):
        stop = _find_answer_end(items, index, dialect)
        if stop == index:  # not an answer
            kept_results = external_results.get(index, ())
            yield from _emit_permitted_results(
                items[index],
                orphans.get(index, ()),
                dialect,
                kept_results,
            )
            index += 1
            continue
        # The last answers of a run may have their results in order already: these messages stay the same objects.
        start, end = _find_answers_in_order(items, call_results, index, stop, dialect)
        for answer_index in range(index, start):
            yield from _emit_answer_with_results(items, call_results, answer_index, dialect)
        yield from items[start:end]
        index = end


def _find_answer_end(items: Sequence[TrackedMessage], start: int, dialect: Dialect) -> int:
    """Return the end of the answer that begins at ``start``; ``start`` itself if the item there is not an answer.

    An answer is one message, or several neighbours that the API reads as one.
    """
    stop = start
    while stop < len(items) and items[stop].message.role == "assistant":
        stop += 1
        if not dialect.server_joins_same_role:
            break
    return stop


def _find_answers_in_order(
    items: Sequence[TrackedMessage],
    call_results: CallResults,
    first: int,
    stop: int,
    dialect: Dialect,
) -> tuple[int, int]:
    """Find the answers before ``stop``, back to ``first``, with their results already in order from ``stop`` on.

    These are the last answers of the run: only their results can directly follow it. Return the index of the first of
    them, and the index after the last of their results; both are ``stop`` if there is no such answer.
    """
    result_counts = _count_adjacent_results(items, stop, dialect)
    start = end = results_end = stop
    result_count = 0
    # An answer is in order if all results from ``stop`` to the last one of its calls are results of this answer or of
    # those after it, and none of these is missing: then there are as many results as calls.
    for answer_index in reversed(range(first, stop)):
        message_indexes: list[int] = []
        for match in call_results[answer_index]:
            message_indexes.append(match.message_index if match is not None else -1)
        if min(message_indexes, default=stop) < stop:  # a result is missing, or stands before the end of the answers
            break
        result_count += len(message_indexes)
        if message_indexes:
            results_end = max(results_end, max(message_indexes) + 1)
        if results_end - stop >= len(result_counts):
            break
        if result_count and result_counts[results_end - stop] == result_count:
            start, end = answer_index, results_end
    located_results: list[LocatedResult | None] = []
    for answer_index in range(start, stop):
        located_results += call_results[answer_index]
    if has_distinguishable_results(located_results, dialect):
        return start, end
    return stop, stop


def _count_adjacent_results(items: Sequence[TrackedMessage], stop: int, dialect: Dialect) -> list[int]:
    """Return at index n the number of results in the n items from ``stop`` on, or -1 if these may not stand so.

    The list ends before the next answer or system message.
    """
    counts = [0]
    total = 0
    has_words = False
    is_misplaced = False
    for index in range(stop, len(items)):
        message = items[index].message
        if message.role in {"assistant", "system"}:
            break
        is_result = [type(part) is ToolResult for part in message.parts]
        if dialect.results_grouped:
            # All results belong into one message, unless the server joins neighbours anyway.
            if index > stop and not dialect.server_joins_same_role:
                is_misplaced = True
        elif not any(is_result):
            is_misplaced = True
        if dialect.results_first:
            if has_words:
                words_come_first = any(is_result)
            else:
                words_come_first = sorted(is_result, reverse=True) != is_result
            is_misplaced = is_misplaced or words_come_first
        has_words = has_words or not all(is_result)
        total += sum(is_result)
        lacks_acknowledgement = has_words and dialect.needs_answer_after_results
        counts.append(-1 if is_misplaced or lacks_acknowledgement else total)
    return counts


def _emit_answer_with_results(
    items: Sequence[TrackedMessage],
    call_results: CallResults,
    index: int,
    dialect: Dialect,
) -> Iterator[TrackedMessage]:
    """Yield item ``index`` and new items with the results of its calls, in call order."""
    item = items[index]
    calls = item.message.calls
    yield item
    if not calls:
        return
    matches = call_results[index]
    final_results = _collect_results(items, matches, calls)
    if dialect.results_grouped:
        groups = [tuple(final_results)]
    else:
        groups = [(result,) for result in final_results]
    why = _explain_new_results(items, matches, index)
    for results in groups:
        yield create_inserted_message(item.stop, Message("tool", results), "pairing", why)


def _explain_new_results(items: Sequence[TrackedMessage], matches: Sequence[LocatedResult | None], index: int) -> str:
    """Say how many results of answer ``index`` were moved behind it and how many were made up."""
    real_results = [match for match in matches if match is not None]
    run_end = _find_result_run_end(items, index + 1) if real_results else (0, 0)
    moved_count = 0
    for match in real_results:
        if match.message_index <= index or match.position > run_end:
            moved_count += 1
    synthetic_count = len(matches) - len(real_results)
    changes: list[str] = []
    if moved_count:
        changes.append(f"{moved_count} result(s) moved after their calls")
    if synthetic_count:
        changes.append(f"{synthetic_count} result(s) added for calls that had none")
    return ", ".join(changes) or "the results of an answer's calls, and no others, must come directly after it"


def _find_result_run_end(items: Sequence[TrackedMessage], start: int) -> tuple[int, int]:
    """Return the indexes of the first message and part from message ``start`` on that is not a result."""
    for message_index in range(start, len(items)):
        for part_index, part in enumerate(items[message_index].message.parts):
            if type(part) is not ToolResult:
                return message_index, part_index
    return len(items), 0


def _collect_results(
    items: Sequence[TrackedMessage], matches: Sequence[LocatedResult | None], calls: Sequence[ToolCall]
) -> list[ToolResult]:
    """Return the result of each call as it stands in ``items``, under its new id, or a synthetic one.

    Synthetic results are errors, so that the model does not take them for the output of a tool.
    """
    # By message, because reading the results of a message is linear in its parts and many calls may share one.
    results_by_message: dict[int, tuple[ToolResult, ...]] = {}
    results: list[ToolResult] = []
    for call, match in zip(calls, matches, strict=True):
        if match is None:
            results.append(ToolResult(call.id, call.name, (Text(SYNTHETIC_RESULT_TEXT),), is_error=True))
            continue
        message_results = results_by_message.get(match.message_index)
        if message_results is None:
            message_results = results_by_message[match.message_index] = items[match.message_index].message.results
        results.append(message_results[match.result_index])
    return results


def _emit_permitted_results(
    item: TrackedMessage,
    orphans: Container[int],
    dialect: Dialect,
    kept_results: Container[int],
) -> Iterator[TrackedMessage]:
    """Yield ``item`` without the results that may not stand in it, and a message that retells the orphans among them.

    ``kept_results`` may stand here. ``orphans`` may if the server holds a part of the history, in which their calls can
    be. All other results were moved behind their calls, or are duplicates.
    """
    parts: list[Part] = []
    retold_parts: list[Part] = []
    result_index = -1
    for part in item.message.parts:
        if not isinstance(part, ToolResult):
            parts.append(part)
            continue
        result_index += 1
        is_orphan = result_index in orphans
        if result_index in kept_results or (is_orphan and dialect.has_server_history):
            parts.append(part)
        elif is_orphan:
            retold_parts += render_orphan_result(part)
    if len(parts) == len(item.message.parts):
        yield item
        return
    remaining_message = clean_message(Message(item.message.role, tuple(parts)), dialect)
    user_message = clean_message(Message("user", tuple(retold_parts)), dialect)
    has_results = bool(remaining_message.results)
    retold_item = create_inserted_message(
        item.stop if has_results else item.start, user_message, "pairing", "a result without a call is shown as text"
    )
    changed_item = item.replace_message(
        remaining_message, "pairing", "its results were moved after their calls, or have no call"
    )
    # Results must stay right behind their answer, so the user's retelling follows them; otherwise it keeps the order.
    if has_results:
        ordered_items = (changed_item, retold_item)
    else:
        ordered_items = (retold_item, changed_item)
    for new_item in ordered_items:
        if new_item.message.parts:
            yield new_item


# -- where results stand anywhere behind their calls -------------------------------------------------------------------


def _place_results_after_calls(
    items: Sequence[TrackedMessage],
    call_results: CallResults,
    dialect: Dialect,
    orphans: ResultIndexes,
) -> Iterator[TrackedMessage]:
    """Yield the items with a result for each call somewhere behind it; results that stand so stay where they are."""
    results_in_place: dict[int, set[int]] = defaultdict(set)
    for index, matches in call_results.items():
        for match in matches:
            if match is not None and match.message_index > index:
                results_in_place[match.message_index].add(match.result_index)
    for index, item in enumerate(items):
        if item.message.role == "assistant":
            yield item
            yield from _emit_missing_results(items, call_results[index], index)
        else:
            yield from _emit_permitted_results(
                item,
                orphans.get(index, ()),
                dialect,
                results_in_place[index],
            )


def _emit_missing_results(
    items: Sequence[TrackedMessage], results: Sequence[LocatedResult | None], index: int
) -> Iterator[TrackedMessage]:
    """Yield a new item for each call of item ``index`` without a result behind it."""
    item = items[index]
    calls = item.message.calls
    final_results = _collect_results(items, results, calls)
    for call, match, result in zip(calls, results, final_results, strict=True):
        if match is not None and match.message_index >= index:
            continue
        if match is None and may_be_answered_later(call):
            continue
        if match is None:
            why = "the call had no result"
        else:
            why = "the result came before its call"
        yield create_inserted_message(item.stop, Message("tool", (result,)), "pairing", why)
