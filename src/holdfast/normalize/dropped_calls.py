"""Detach the results of calls that will be dropped, so that they are not matched with another call of the same id."""

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
    """Give the results of dropped calls a new id, one that no call has.

    Later passes drop the calls that name no tool or never ran, and turn results without a call (orphans) into the
    user's text. With their old id, results of a dropped call would be matched with another call that has the same id.
    ``interrupted`` are the indexes of the answers that failed or were interrupted.
    """
    call_results = find_results_of_calls([item.message for item in items])
    drop_flags: dict[int, list[bool]] = {}
    for index, results in call_results.items():
        drop_flags[index] = _flag_dropped_calls(items[index], results, interrupted)
    if not any(map(any, drop_flags.values())):
        return items

    # A matched result is detached if its call is dropped. An unmatched one (a duplicate) is detached if the nearest
    # call of its id before it is dropped, or the first call of its id if it stands before all of them. So that
    # ``is_dropped_by_id`` starts with the first call of each id, it is filled from the last answer to the first.
    is_dropped_by_position: dict[ResultPosition, bool] = {}
    is_dropped_by_id: dict[str, bool] = {}
    flags_by_answer: dict[int, dict[str, bool]] = {}
    for index, results in call_results.items():
        flags_by_id: dict[str, bool] = {}
        for call, result, is_dropped in zip(items[index].message.calls, results, drop_flags[index], strict=True):
            flags_by_id[call.id] = is_dropped
            if result is not None:
                is_dropped_by_position[result.position] = is_dropped
        flags_by_answer[index] = flags_by_id
    for index in reversed(flags_by_answer):
        is_dropped_by_id |= flags_by_answer[index]

    detached_items: list[TrackedMessage] = []
    for message_index, item in enumerate(items):
        is_dropped_by_id |= flags_by_answer.get(message_index, {})
        names: WireNames = {}
        for result_index, tool_result in enumerate(item.message.results):
            is_dropped_by_last_use = is_dropped_by_id.get(tool_result.call_id, False)
            position = ResultPosition(message_index, result_index)
            if is_dropped_by_position.get(position, is_dropped_by_last_use):
                names[result_index] = _mint_unmatched_id(tool_result.call_id, dialect)
        renamed_item = apply_wire_names(item, names, ToolResult, "its call is dropped")
        detached_items.append(_rename_calls_without_tool(renamed_item, dialect))
    return detached_items


def _flag_dropped_calls(
    item: TrackedMessage, results: Sequence[LocatedResult | None], interrupted: frozenset[int]
) -> list[bool]:
    """Return for each call of an answer whether it will be dropped; ``results`` are the results of these calls."""
    flags: list[bool] = []
    for call, result in zip(item.message.calls, results, strict=True):
        never_ran = result is None and has_never_run(item, call, interrupted)
        flags.append(never_ran or not has_tool_name(call))
    return flags


def _rename_calls_without_tool(item: TrackedMessage, dialect: Dialect) -> TrackedMessage:
    """Give calls that name no tool the new id of their results, so that both match until the calls are dropped."""
    names: WireNames = {}
    for number, call in enumerate(item.message.calls):
        if not has_tool_name(call):
            names[number] = _mint_unmatched_id(call.id, dialect)
    return apply_wire_names(item, names, ToolCall, "the call names no tool")


def _mint_unmatched_id(id_: str, dialect: Dialect) -> WireName:
    """Return a wire name with a new id, derived from ``id_``, that no call in the request can have."""
    return WireName(mint_call_id(f"{id_} is of no call", dialect))
