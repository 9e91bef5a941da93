"""Prepare a history for pairing: results in odd places, results without an id, calls that only a client can answer.

A result inside the answer that made its call moves after that answer. A result without an id answers the call that it
stands after, if there are as many such results as open calls. A call for a screenshot without its output is dropped.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from itertools import groupby
from math import inf

from holdfast.messages.message import Message
from holdfast.messages.parts import Opaque, Part, ToolCall, ToolResult
from holdfast.normalize.ids import is_wire_id, mint_call_id
from holdfast.normalize.pairing import WireName, WireNames, apply_wire_names
from holdfast.normalize.parts import PartIndexes, drop_tracked_parts
from holdfast.normalize.result_matching import (
    CallResults,
    ResultPosition,
    find_results_of_calls,
    index_first_calls,
    is_synthetic_result,
    list_used_positions,
)
from holdfast.normalize.tracked_messages import TrackedMessage, create_inserted_message
from holdfast.state.dialect import Dialect

# OpenAI's computer use. Its output is a screenshot, so no synthetic result can be made up for it.
_COMPUTER_CALL = "computer_call"


# -- results in an answer ----------------------------------------------------------------------------------------------


def extract_misplaced_results(items: list[TrackedMessage], _dialect: Dialect) -> list[TrackedMessage]:
    """Move results out of answers, after them, if their call has no other result or stands later or nowhere.

    Other results inside an answer are duplicates, which pairing drops.
    """
    if not any(item.message.role == "assistant" and item.message.results for item in items):
        return items
    messages = [item.message for item in items]
    wanted_ids: set[str] = set()
    for index, matches in find_results_of_calls(messages).items():
        for call, match in zip(messages[index].calls, matches, strict=True):
            if match is None or is_synthetic_result(match.result):
                wanted_ids.add(call.id)
    first_call_indexes = index_first_calls(messages)
    split_items: list[TrackedMessage] = []
    for index, item in enumerate(items):
        extracted_ids = _find_results_to_extract(item.message, wanted_ids, first_call_indexes, index)
        split_items += _split_answer(item, extracted_ids)
    return split_items


def _find_results_to_extract(
    message: Message,
    wanted_ids: Container[str],
    first_call_indexes: Mapping[str, int],
    index: int,
) -> set[str]:
    """Return the ids of results in message ``index`` that are wanted, or that no call up to this message has."""
    extracted_ids: set[str] = set()
    for result in message.results:
        has_no_call_yet = first_call_indexes.get(result.call_id, inf) > index
        if has_no_call_yet or result.call_id in wanted_ids:
            extracted_ids.add(result.call_id)
    return extracted_ids


def _split_answer(item: TrackedMessage, extracted_ids: Collection[str]) -> Iterator[TrackedMessage]:
    """Split an answer at its results with ``extracted_ids``; these results become messages of their own."""

    def is_extracted(part: Part) -> bool:
        return isinstance(part, ToolResult) and part.call_id in extracted_ids

    if item.message.role != "assistant" or not any(map(is_extracted, item.message.parts)):
        yield item
        return
    why = "a tool result is not allowed in an assistant message"
    for number, (is_result, parts) in enumerate(groupby(item.message.parts, is_extracted)):
        message = Message("tool" if is_result else "assistant", tuple(parts))
        if number == 0:
            # The first piece takes the place of the answer.
            yield item.replace_message(message, "result-place", why)
        else:
            yield create_inserted_message(item.stop, message, "result-place", why)


# -- calls and results without an id -----------------------------------------------------------------------------------


def assign_missing_call_ids(items: list[TrackedMessage], dialect: Dialect) -> list[TrackedMessage]:
    """Give calls without an id, and the results that answer them, an id.

    The result answers the call by its order. Each id is made from the call's own message alone, so that leaving out
    earlier messages changes no id.
    """
    if not any(not call.id for item in items for call in item.message.calls):
        return items
    messages = [item.message for item in items]
    call_names: dict[int, WireNames] = defaultdict(dict)
    result_names: dict[int, WireNames] = defaultdict(dict)
    for index, matches in find_results_of_calls(messages).items():
        message = messages[index]
        for call_index, (call, match) in enumerate(zip(message.calls, matches, strict=True)):
            if match is None or call.id:
                continue
            seed = f"{message.text!r} {call.arguments} {call_index}"
            name = WireName(mint_call_id(seed, dialect))
            call_names[index][call_index] = name
            result_names[match.message_index][match.result_index] = name
    why = "a call without an id and the result after it got the same id"
    renamed_items: list[TrackedMessage] = []
    for index, item in enumerate(items):
        item_with_calls = apply_wire_names(item, call_names[index], ToolCall, why)
        renamed_items.append(apply_wire_names(item_with_calls, result_names[index], ToolResult, why))
    return renamed_items


def link_results_without_id(items: list[TrackedMessage], dialect: Dialect) -> list[TrackedMessage]:
    """Give results without a call id the id of the call that they stand after."""
    messages = [item.message for item in items]
    if not any(_has_results_without_id(message, dialect) for message in messages):
        return items
    call_results = find_results_of_calls(messages)
    used_positions = list_used_positions(call_results)
    names: dict[int, WireNames] = defaultdict(dict)
    for index in call_results:
        for position, call in _match_by_position(
            messages,
            call_results,
            index,
            used_positions,
            dialect,
        ):
            tool = call.name if dialect.results_carry_name else ""
            names[position.message_index][position.result_index] = WireName(call.id, tool)
    why = "a result without a call id got the id of the call before it"
    linked_items: list[TrackedMessage] = []
    for index, item in enumerate(items):
        linked_items.append(apply_wire_names(item, names[index], ToolResult, why))
    return linked_items


def _has_results_without_id(message: Message, dialect: Dialect) -> bool:
    return any(_has_no_wire_id(result, dialect) for result in message.results)


def _has_no_wire_id(result: ToolResult, dialect: Dialect) -> bool:
    return not result.call_id or not is_wire_id(result.call_id, dialect)


def _match_by_position(
    messages: Sequence[Message],
    call_results: CallResults,
    index: int,
    used_positions: set[ResultPosition],
    dialect: Dialect,
) -> Iterator[tuple[ResultPosition, ToolCall]]:
    """Pair the results without an id right after answer ``index`` with its open calls, in order.

    If there are not as many results as open calls, no result can be assigned for certain, and no pair is yielded.
    """
    open_calls = []
    for call, match in zip(messages[index].calls, call_results[index], strict=True):
        if match is None:
            open_calls.append(call)
    if not open_calls:
        return
    free_positions: list[ResultPosition] = []
    for message_index in range(index + 1, len(messages)):
        if messages[message_index].role == "assistant":
            break
        for result_index, result in enumerate(messages[message_index].results):
            position = ResultPosition(message_index, result_index)
            if _has_no_wire_id(result, dialect) and position not in used_positions:
                free_positions.append(position)
    if len(free_positions) == len(open_calls):
        yield from zip(free_positions, open_calls, strict=True)


# -- computer use ------------------------------------------------------------------------------------------------------


def drop_unanswered_computer_calls(items: list[TrackedMessage], dialect: Dialect) -> list[TrackedMessage]:
    """Drop calls for a screenshot without their output."""
    unanswered_calls = find_unanswered_computer_calls([item.message for item in items])
    why = "the call for a screenshot has no output"
    return drop_tracked_parts(items, unanswered_calls, dialect, "pairing", why)


def find_unanswered_computer_calls(messages: Sequence[Message]) -> PartIndexes:
    """Return the part indexes, by message index, of calls for a screenshot that no output follows."""
    output_ids: set[str] = set()
    unanswered_calls: PartIndexes = {}
    for message_index in reversed(range(len(messages))):  # backwards, so that each call sees the outputs after it
        message = messages[message_index]
        for part_index, part in enumerate(message.parts):
            if not isinstance(part, Opaque) or part.signature is None:
                continue
            if message.role == "tool":
                output_ids.add(part.signature.data)
            elif part.kind == _COMPUTER_CALL and part.signature.data not in output_ids:
                unanswered_calls.setdefault(message_index, set()).add(part_index)
    return unanswered_calls
