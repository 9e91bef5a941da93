"""Calls that are left out: what came of them, or stands where theirs would, is no other call's result."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.messages.parts import ToolCall, ToolResult
from holdfast.normalize.ids import minted_id
from holdfast.normalize.items import Item
from holdfast.normalize.pairing import Found, matched, never_ran, with_names
from holdfast.normalize.parts import names_tool
from holdfast.state.dialect import Dialect


def disown(items: list[Item], dialect: Dialect, *, cut: frozenset[int]) -> list[Item]:
    """Return the items with the results of calls that will be left out under ids that nobody else has.

    Those calls name no tool, or never ran; ``cut`` are slots of answers that failed or were interrupted. What such a
    call gave back is told, and answers no other call of its id, whenever one comes.
    """
    found = matched([item.message for item in items])
    gone = {index: _left_out(items[index], answers, cut) for index, answers in found.items()}
    if not any(map(any, gone.values())):
        return items
    owned = {
        (one.home, one.place): goes
        for index, answers in found.items()
        for one, goes in zip(answers, gone[index], strict=True)
        if one is not None
    }
    uses = {index: [(call.id, goes) for call, goes in zip(items[index].message.calls, gone[index], strict=True)]
            for index in found}  # fmt: skip
    newest = dict([use for index in reversed(uses) for use in uses[index]])
    out: list[Item] = []
    for home, item in enumerate(items):
        newest |= uses.get(home, ())
        results = enumerate(item.message.results)
        theirs = {place: _own_id(one.call_id, dialect) for place, one in results
                  if owned.get((home, place), newest.get(one.call_id, False))}  # fmt: skip
        out.append(_without_name(with_names(item, theirs, ToolResult, "its call is left out"), dialect))
    return out


def _left_out(item: Item, answers: Sequence[Found | None], cut: frozenset[int]) -> list[bool]:
    """Return of each call of an answer, which have these ``answers``, whether it is left out."""
    return [
        not names_tool(call) or (one is None and never_ran(item, call, cut))
        for call, one in zip(item.message.calls, answers, strict=True)
    ]


def _without_name(item: Item, dialect: Dialect) -> Item:
    """Return the item with its calls that name no tool under the ids that their results have."""
    calls = enumerate(item.message.calls)
    names = {number: _own_id(call.id, dialect) for number, call in calls if not names_tool(call)}
    return with_names(item, names, ToolCall, "it names no tool")


def _own_id(id_: str, dialect: Dialect) -> tuple[str, str]:
    """Return an id for what has ``id_`` and is of no call that is sent, and no other name."""
    return minted_id(f"{id_} is of no call", dialect), ""
