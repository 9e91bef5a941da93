"""Detach the results of calls that will be dropped, so that they answer no other call of the same id."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.messages.parts import ToolCall, ToolResult
from holdfast.normalize.ids import mint_call_id
from holdfast.normalize.pairing import WireName, WireNames, apply_wire_names, has_never_run
from holdfast.normalize.parts import has_tool_name
from holdfast.normalize.result_matching import LocatedResult, ResultPosition, find_results_of_calls
from holdfast.normalize.tracked_messages import TrackedMessage
from holdfast.state.dialect import Dialect


def detach_dropped_call_results(
    items: list[TrackedMessage], dialect: Dialect, *, interrupted: frozenset[int]
) -> list[TrackedMessage]:
    """Give the results of calls that later passes drop an id that no other call has.

    Calls are dropped that name no tool, or that never ran. Without their call such results become orphans, which are
    retold; under their old id they would answer the next call that uses it. ``interrupted`` are positions of answers
    that failed or were interrupted.
    """
    matches = find_results_of_calls([item.message for item in items])
    drop_flags = {index: _flag_dropped_calls(items[index], answers, interrupted) for index, answers in matches.items()}
    if not any(map(any, drop_flags.values())):
        return items

    # A matched result goes with its call. An unmatched one (a duplicate) goes with the newest call of its id before it;
    # one before all of them goes with the first, which is what the reversed fill of the dict leaves.
    is_dropped_by_position: dict[ResultPosition, bool] = {}
    is_dropped_by_id: dict[str, bool] = {}
    flags_by_answer: dict[int, dict[str, bool]] = {}
    for index, answers in matches.items():
        flags_by_id: dict[str, bool] = {}
        for call, match, is_dropped in zip(items[index].message.calls, answers, drop_flags[index], strict=True):
            flags_by_id[call.id] = is_dropped
            if match is not None:
                is_dropped_by_position[match.position] = is_dropped
        flags_by_answer[index] = flags_by_id
    for index in reversed(flags_by_answer):
        is_dropped_by_id |= flags_by_answer[index]

    detached_items: list[TrackedMessage] = []
    for message_index, item in enumerate(items):
        is_dropped_by_id |= flags_by_answer.get(message_index, {})
        names: WireNames = {}
        for result_index, result in enumerate(item.message.results):
            is_dropped_by_last_use = is_dropped_by_id.get(result.call_id, False)
            position = ResultPosition(message_index, result_index)
            if is_dropped_by_position.get(position, is_dropped_by_last_use):
                names[result_index] = _mint_unmatched_id(result.call_id, dialect)
        renamed_item = apply_wire_names(item, names, ToolResult, "its call is dropped")
        detached_items.append(_rename_calls_without_tool(renamed_item, dialect))
    return detached_items


def _flag_dropped_calls(
    item: TrackedMessage, matches: Sequence[LocatedResult | None], interrupted: frozenset[int]
) -> list[bool]:
    """Return for each call of an answer, which ``matches`` are the results of, whether it will be dropped."""
    flags: list[bool] = []
    for call, match in zip(item.message.calls, matches, strict=True):
        never_ran = match is None and has_never_run(item, call, interrupted)
        flags.append(never_ran or not has_tool_name(call))
    return flags


def _rename_calls_without_tool(item: TrackedMessage, dialect: Dialect) -> TrackedMessage:
    """Give calls that name no tool the id that their results got, so that these still match until the calls go."""
    names: WireNames = {}
    for number, call in enumerate(item.message.calls):
        if not has_tool_name(call):
            names[number] = _mint_unmatched_id(call.id, dialect)
    return apply_wire_names(item, names, ToolCall, "the call names no tool")


def _mint_unmatched_id(id_: str, dialect: Dialect) -> WireName:
    """Return a wire name with an id made from ``id_`` that no call which is sent can have."""
    return WireName(mint_call_id(f"{id_} is of no call", dialect))
