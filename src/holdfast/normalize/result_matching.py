"""Match tool calls with their results, and find the results that belong to no call.

An id alone does not identify a call, because clients use ids again in later turns. So each use of an id is matched by
its place in the conversation.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from math import inf
from typing import NamedTuple

import msgspec
from msgspec import Struct
from msgspec.json import Decoder

from holdfast.messages.message import Message, get_result_text
from holdfast.messages.parts import Opaque, ToolCall, ToolResult
from holdfast.normalize.ids import is_server_tool_call, is_wire_id
from holdfast.state.dialect import Dialect

SYNTHETIC_RESULT_TEXT = "[No result was recorded for this call: it was interrupted or its output was lost.]"
"""Text of a synthetic result. It exists only in requests and is never logged, but a client that read a request may send
it back."""


class LocatedResult(NamedTuple):
    """A result and its place: the ``result_index``-th result of message ``message_index``."""

    message_index: int
    result_index: int
    result: ToolResult

    @property
    def position(self) -> ResultPosition:
        """The place without the result."""
        return ResultPosition(self.message_index, self.result_index)


class ResultPosition(NamedTuple):
    """The ``result_index``-th result of message ``message_index``."""

    message_index: int
    result_index: int


CallResults = dict[int, list[LocatedResult | None]]
"""The results of the calls of each assistant message: by the message's index a list in call order, with None for a call
without a result."""
ResultIndexes = dict[int, set[int]]
"""Indexes of results in their message, by the message's index."""


def find_results_of_calls(messages: Sequence[Message]) -> CallResults:
    """Match the calls of each assistant message with their results.

    A result belongs to the newest call of its id that has no result yet, since clients use an id again in later turns.
    A result that is left over belongs to the call of its id nearest to it (see ``_find_nearby_results``), if that call
    has no result or only a synthetic one.
    """
    call_results: CallResults = {}
    unmatched: dict[str, list[LocatedResult]] = defaultdict(list)
    waiting: dict[str, deque[_CallPosition]] = defaultdict(deque)
    run_start = 0  # adjacent assistant messages are one run: their calls wait together
    for index, message in enumerate(messages):
        if message.role == "assistant":
            calls = message.calls
            if index - 1 not in call_results:
                run_start = index
            call_results[index] = [None] * len(calls)
            # Pushed from the last call to the first, so that results of one id answer its calls in call order.
            for call_index in reversed(range(len(calls))):
                queue = waiting[calls[call_index].id]
                # The id is used again, so later results do not belong to its calls of earlier runs. Those calls are at
                # the end of the queue.
                while queue and queue[-1].message_index < run_start:
                    queue.pop()
                queue.appendleft(_CallPosition(index, call_index))
            continue
        for result_index, result in enumerate(message.results):
            located_result = LocatedResult(index, result_index, result)
            open_calls = waiting.get(result.call_id)
            if open_calls:
                call_position = open_calls.popleft()
                call_results[call_position.message_index][call_position.call_index] = located_result
            else:
                unmatched[result.call_id].append(located_result)
    if unmatched:
        return _assign_unmatched_results(messages, call_results, unmatched)
    return call_results


class _CallPosition(NamedTuple):
    message_index: int
    call_index: int


def _assign_unmatched_results(
    messages: Sequence[Message], call_results: CallResults, unmatched: Mapping[str, Sequence[LocatedResult]]
) -> CallResults:
    """Add results that stand before their call, or long after it, to ``call_results``."""
    use_indexes_by_id: dict[str, list[int]] = defaultdict(list)
    for index in call_results:
        for call in messages[index].calls:
            use_indexes_by_id[call.id].append(index)
    for index, results in call_results.items():
        if not results:
            continue
        for call_index, call in enumerate(messages[index].calls):
            current = results[call_index]
            is_missing = current is None or is_synthetic_result(current.result)
            if call.id not in unmatched or not is_missing:
                continue
            nearby = _find_nearby_results(
                unmatched[call.id],
                use_indexes_by_id[call.id],
                index,
            )
            real = next((result for result in nearby if not is_synthetic_result(result.result)), None)
            if real is not None:
                results[call_index] = real
            elif current is None and nearby:
                results[call_index] = nearby[0]
    return call_results


def _find_nearby_results(
    unmatched: Sequence[LocatedResult], use_indexes: Sequence[int], index: int
) -> list[LocatedResult]:
    """Return those results in ``unmatched``, all of one id, that belong to the use of the id in message ``index``.

    They stand before the next use of the id, so that later messages change nothing, and after this use unless it is the
    first. If one answer uses the id twice, it is unclear which call a result belongs to, and none is returned.
    """
    number = bisect_left(use_indexes, index)
    start = 0 if number == 0 else index
    stop = use_indexes[number + 1] if number + 1 < len(use_indexes) else inf
    if stop <= index:
        return []
    return [result for result in unmatched if start <= result.message_index < stop]


def has_distinguishable_results(results: Sequence[LocatedResult | None], dialect: Dialect) -> bool:
    """Return whether the server can tell which call each result belongs to.

    It matches by id if ids are sent. Results without a sent id are matched with the calls of their tool in order, so
    the results of one tool must stand in the order of ``results``.
    """
    last_positions: dict[str, ResultPosition] = {}
    for located_result in results:
        if located_result is None or is_wire_id(located_result.result.call_id, dialect):
            continue
        name = located_result.result.name
        position = located_result.position
        if position < last_positions.get(name, position):
            return False
        last_positions[name] = position
    return True


def is_synthetic_result(result: ToolResult) -> bool:
    """Return whether a result is one that normalization made up, and that came back in a client's history."""
    text = get_result_text(result)
    # Clients add a line of their own at times; a much longer text only quotes ours.
    return len(text) < 2 * len(SYNTHETIC_RESULT_TEXT) and SYNTHETIC_RESULT_TEXT in text


class _AsyncFlag(Struct, rename={"is_async": "async"}):
    is_async: bool = False


_ASYNC_FLAG_DECODER = Decoder(_AsyncFlag)


def may_be_answered_later(call: ToolCall) -> bool:
    """Return whether a call may stand without a result: its output comes in any later request (OpenAI's async tools).

    A made-up result would be an answer, and the real one then a second one for the same call.
    """
    if call.raw is None or b'"async"' not in bytes(call.raw):
        return False
    try:
        return _ASYNC_FLAG_DECODER.decode(call.raw).is_async
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False


def find_orphan_ids(messages: Sequence[Message]) -> frozenset[str]:
    """Return the ids of results, also of server calls, that have no call of their id in ``messages``."""
    call_ids: set[str] = set()
    result_ids: set[str] = set()
    for message in messages:
        for part in message.parts:
            if type(part) is ToolCall:
                if message.role == "assistant":  # a call in another role's message is dropped, so nothing answers it
                    call_ids.add(part.id)
            elif type(part) is ToolResult:
                result_ids.add(part.call_id)
            elif type(part) is Opaque and part.signature is not None:
                ids = call_ids if is_server_tool_call(part) else result_ids
                ids.add(part.signature.data)
    return frozenset(result_ids - call_ids)


def index_first_calls(messages: Sequence[Message]) -> dict[str, int]:
    """Return the index of the first message with a call of each id, also of server calls."""
    first_indexes: dict[str, int] = {}
    for index, message in enumerate(messages):
        for part in message.parts:
            if type(part) is ToolCall and message.role == "assistant":
                first_indexes.setdefault(part.id, index)
            elif type(part) is Opaque and part.signature is not None and is_server_tool_call(part):
                first_indexes.setdefault(part.signature.data, index)
    return first_indexes


def find_early_orphan_results(messages: Sequence[Message], call_results: CallResults) -> ResultIndexes:
    """Find orphans: results that belong to no call and stand before all calls of their id.

    A result that belongs to no call but stands after a call of its id is a duplicate, and is dropped. A later call of
    its id that has its own result does not change that it is an orphan: the text already sent in its place must stay.
    """
    first_call_indexes = index_first_calls(messages)
    used = list_used_positions(call_results)
    orphans: ResultIndexes = {}
    for message_index, message in enumerate(messages):
        for result_index, result in enumerate(message.results):
            is_before_calls = first_call_indexes.get(result.call_id, inf) > message_index
            if is_before_calls and (message_index, result_index) not in used:
                orphans.setdefault(message_index, set()).add(result_index)
    return orphans


def list_used_positions(call_results: CallResults) -> set[ResultPosition]:
    """Return the positions of all results that belong to a call."""
    used_positions: set[ResultPosition] = set()
    for results in call_results.values():
        for result in results:
            if result is not None:
                used_positions.add(result.position)
    return used_positions
