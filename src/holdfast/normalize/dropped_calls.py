"""Calls that are left out: what came of them, or stands where theirs would, is no other call's result."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.messages.parts import ToolCall, ToolResult
from holdfast.normalize.ids import mint_call_id
from holdfast.normalize.pairing import LocatedResult, apply_wire_names, find_results_of_calls, has_never_run
from holdfast.normalize.parts import has_tool_name
from holdfast.normalize.tracked_messages import TrackedMessage
from holdfast.state.dialect import Dialect


def detach_dropped_call_results(
    items: list[TrackedMessage], dialect: Dialect, *, interrupted: frozenset[int]
) -> list[TrackedMessage]:
    """Return the items with the results of calls that will be left out under ids that nobody else has.

    Those calls name no tool, or never ran; ``interrupted`` are slots of answers that failed or were interrupted. What
    such a call gave back is told, and answers no other call of its id, whenever one comes.
    """
    matches = find_results_of_calls([item.message for item in items])
    drop_flags = {index: _flag_dropped_calls(items[index], answers, interrupted) for index, answers in matches.items()}
    if not any(map(any, drop_flags.values())):
        return items
    owner_dropped = {
        (result.message_index, result.result_index): goes
        for index, answers in matches.items()
        for result, goes in zip(answers, drop_flags[index], strict=True)
        if result is not None
    }
    uses = {index: [(call.id, goes) for call, goes in zip(items[index].message.calls, drop_flags[index], strict=True)]
            for index in matches}  # fmt: skip
    newest = dict([use for index in reversed(uses) for use in uses[index]])
    out: list[TrackedMessage] = []
    for home, item in enumerate(items):
        newest |= uses.get(home, ())
        results = enumerate(item.message.results)
        new_names = {place: _mint_unmatched_id(result.call_id, dialect) for place, result in results
                  if owner_dropped.get((home, place), newest.get(result.call_id, False))}  # fmt: skip
        out.append(
            _rename_calls_without_tool(apply_wire_names(item, new_names, ToolResult, "its call is left out"), dialect)
        )
    return out


def _flag_dropped_calls(
    item: TrackedMessage, answers: Sequence[LocatedResult | None], interrupted: frozenset[int]
) -> list[bool]:
    """Return of each call of an answer, which have these ``answers``, whether it is left out."""
    return [
        not has_tool_name(call) or (result is None and has_never_run(item, call, interrupted))
        for call, result in zip(item.message.calls, answers, strict=True)
    ]


def _rename_calls_without_tool(item: TrackedMessage, dialect: Dialect) -> TrackedMessage:
    """Return the item with its calls that name no tool under the ids that their results have."""
    calls = enumerate(item.message.calls)
    names = {number: _mint_unmatched_id(call.id, dialect) for number, call in calls if not has_tool_name(call)}
    return apply_wire_names(item, names, ToolCall, "it names no tool")


def _mint_unmatched_id(id_: str, dialect: Dialect) -> tuple[str, str]:
    """Return an id for what has ``id_`` and is of no call that is sent, and no other name."""
    return mint_call_id(f"{id_} is of no call", dialect), ""
