"""Results where nobody would look for them, and calls that nobody can answer in a client's place.

A result in the answer that made its call stands behind that answer. One without an id answers the call that it stands
behind, where there are as many of the one as of the other. A call that Holdfast does not read goes without its output.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterator, Mapping, Sequence
from itertools import groupby
from math import inf

from holdfast.messages.message import Message
from holdfast.messages.parts import Opaque, ToolCall, ToolResult
from holdfast.normalize.ids import is_wire_id, mint_call_id
from holdfast.normalize.pairing import (
    ResultsByAnswer,
    WireNames,
    apply_wire_names,
    find_results_of_calls,
    index_first_calls,
    is_synthetic_result,
)
from holdfast.normalize.parts import PartIndexes, drop_tracked_parts
from holdfast.normalize.tracked_messages import TrackedMessage, create_inserted_message
from holdfast.state.dialect import Dialect

ResultPosition = tuple[int, int]
"""A result: the message that holds it, and the how-manieth of its results it is."""
_COMPUTER_CALL = "computer_call"
"""A call whose output is no text: none can be made up."""


# -- results in an answer ----------------------------------------------------------------------------------------------


def extract_misplaced_results(items: list[TrackedMessage], _dialect: Dialect) -> list[TrackedMessage]:
    """Return the items with results out of answers behind them, where their calls have no other or are not here."""
    if not any(item.message.role == "assistant" and item.message.results for item in items):
        return items
    messages = [item.message for item in items]
    matches = find_results_of_calls(messages)
    wanted_ids = {
        call.id
        for index, answers in matches.items()
        for call, element in zip(messages[index].calls, answers, strict=True)
        if element is None or is_synthetic_result(element.result)
    }
    first = index_first_calls(messages)
    return [
        element
        for at, item in enumerate(items)
        for element in _split_answer(item, _find_results_to_extract(item.message, wanted_ids, first, at))
    ]


def _find_results_to_extract(
    message: Message, wanted_ids: Container[str], first_calls: Mapping[str, int], index: int
) -> set[str]:
    """Return the ids of results in message ``index`` that are ``wanted_ids``, or that nobody called ``first_calls``
    by then.
    """
    ids = {result.call_id for result in message.results}
    return {id_ for id_ in ids if id_ in wanted_ids or first_calls.get(id_, inf) > index}


def _split_answer(item: TrackedMessage, extracted_ids: Container[str]) -> Iterator[TrackedMessage]:
    """Yield an answer as answers with messages of those results between them that are ``extracted_ids``."""
    if item.message.role != "assistant" or all(result.call_id not in extracted_ids for result in item.message.results):
        yield item
        return
    why = "only the other side tells what a call gave back"
    runs = groupby(item.message.parts, lambda part: isinstance(part, ToolResult) and part.call_id in extracted_ids)
    for number, (is_result, parts) in enumerate(runs):
        message = Message("tool" if is_result else "assistant", tuple(parts))
        if number:
            yield create_inserted_message(item.stop, message, "result-place", why)
        else:
            yield item.replace_message(message, "result-place", why)


# -- calls and results without an id -----------------------------------------------------------------------------------


def assign_missing_call_ids(items: list[TrackedMessage], dialect: Dialect) -> list[TrackedMessage]:
    """Return the items with calls without an id that are answered under one of their own, and their results under it.

    They answer each other by their order. An id tells of its message alone, so what goes before renames nobody.
    """
    if not any(not call.id for item in items for call in item.message.calls):
        return items
    messages = [item.message for item in items]
    new: dict[type, dict[int, WireNames]] = {ToolCall: defaultdict(dict), ToolResult: defaultdict(dict)}
    for index, results in find_results_of_calls(messages).items():
        for place, (call, result) in enumerate(zip(messages[index].calls, results, strict=True)):
            if result is not None and not call.id:
                id_ = mint_call_id(f"{messages[index].text!r} {call.arguments} {place}", dialect)
                new[ToolCall][index][place] = id_, ""
                new[ToolResult][result.message_index][result.result_index] = id_, ""
    for kind, names in new.items():
        why = "a call without an id is answered by the result that stands behind it"
        items = [apply_wire_names(item, names[at], kind, why) for at, item in enumerate(items)]
    return items


def link_results_without_id(items: list[TrackedMessage], dialect: Dialect) -> list[TrackedMessage]:
    """Return the items with results that name no call under the id of the one they stand behind."""
    messages = [item.message for item in items]
    if not any(_has_no_wire_id(result, dialect) for message in messages for result in message.results):
        return items
    matches = find_results_of_calls(messages)
    used = {
        (match.message_index, match.result_index)
        for answers in matches.values()
        for match in answers
        if match is not None
    }
    names: dict[int, WireNames] = defaultdict(dict)
    for index in matches:
        for (home, place), call in _match_by_position(messages, matches, index, used, dialect):
            names[home][place] = call.id, call.name if dialect.results_carry_name else ""
    why = "a result that names no call answers the one it stands behind"
    return [apply_wire_names(item, names[home], ToolResult, why) for home, item in enumerate(items)]


def _has_no_wire_id(result: ToolResult, dialect: Dialect) -> bool:
    return not result.call_id or not is_wire_id(result.call_id, dialect)


def _match_by_position(
    messages: Sequence[Message], matches: ResultsByAnswer, index: int, used: set[ResultPosition], dialect: Dialect
) -> Iterator[tuple[ResultPosition, ToolCall]]:
    """Yield the nameless results right behind an answer with its open calls, where they are as many."""
    calls = [call for call, result in zip(messages[index].calls, matches[index], strict=True) if result is None]
    if not calls:
        return
    spots: list[ResultPosition] = []
    for home in range(index + 1, len(messages)):
        if messages[home].role == "assistant":
            break
        numbered_results = enumerate(messages[home].results)
        spots += [
            (home, place)
            for place, result in numbered_results
            if _has_no_wire_id(result, dialect) and (home, place) not in used
        ]
    if len(spots) == len(calls):
        yield from zip(spots, calls, strict=True)


# -- calls that are not read -------------------------------------------------------------------------------------------


def drop_unanswered_computer_calls(items: list[TrackedMessage], dialect: Dialect) -> list[TrackedMessage]:
    """Return the items without calls for a screenshot that none came of."""
    why = "no screenshot came of the call, and none can be made up"
    return drop_tracked_parts(
        items, find_unanswered_computer_calls([item.message for item in items]), dialect, "pairing", why
    )


def find_unanswered_computer_calls(messages: Sequence[Message]) -> PartIndexes:
    """Return the places of calls for a screenshot that none stands behind."""
    output_ids: set[str] = set()
    out: PartIndexes = {}
    for index in reversed(range(len(messages))):
        for place, part in enumerate(messages[index].parts):
            if isinstance(part, Opaque) and part.signature is not None:
                if messages[index].role == "tool":
                    output_ids.add(part.signature.data)
                elif part.kind == _COMPUTER_CALL and part.signature.data not in output_ids:
                    out.setdefault(index, set()).add(place)
    return out
