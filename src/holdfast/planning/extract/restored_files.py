"""What stands behind the summary again: the files that the agent read last, and the plan as it stands."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping, Sequence
from math import inf
from typing import Any

from holdfast.messages.message import Message, result_text
from holdfast.messages.parts import Text, ToolCall
from holdfast.messages.references import arguments
from holdfast.messages.size.tokens import count
from holdfast.messages.text.clipping import clipped
from holdfast.messages.text.cutting import one_line
from holdfast.planning.extract.ledger import deeds

PLAN = "The plan as it stands:"
"""How the text begins that tells the plan, in every summary that has one."""
ITEM_CHARS = 300
"""Characters of one item of a plan. [H]"""
_PLANNING = re.compile(r"todo|plan", re.IGNORECASE)
_WORDS = ("content", "text", "step", "task", "title", "description")
_DONE = frozenset({"done", "completed", "complete", "cancelled", "canceled"})


def restored(
    head: Sequence[Message], most: int, tokens: int, scale: float = 1.0, together: float = inf
) -> tuple[str, ...]:
    """Return the ``most`` files of ``head`` touched last, newest first, as they were read; longer ones only by name.

    Longer is what has more than ``tokens`` tokens, or more than newer ones leave of ``together``, where ``scale`` real
    ones are one of the estimator. What the agent changed after it read it is told to be so.
    """
    if not most:
        return ()
    touched: dict[str, str] = {}
    reads: dict[str, str] = {}
    results = {result.call_id: result_text(result) for message in head for result in message.results}
    for one in deeds(head):
        if one.is_of_file and not one.failed:
            touched.pop(one.what, None)
            touched[one.what] = one.verb
        if one.verb == "read" and not one.failed:
            reads[one.what] = results.get(one.call_id, "")
    found: list[str] = []
    for path in [*reversed(touched)][:most]:
        if together <= 0:
            break
        found.append(_told(path, touched[path], reads.get(path), min(tokens, together) / scale))
        together -= scale * count(found[-1])
    return tuple(found)


def _told(path: str, verb: str, text: str | None, tokens: float) -> str:
    if text is None:
        return f"{path} was changed and never read; read it to see it"
    if count(text) > tokens:
        return f"{path} was read; it is too long to show"
    changed = ", and changed since" if verb == "edit" else ""
    return f"{path} as it was last read{changed}:\n{text}"


def restored_plan(head: Sequence[Message], tokens: int) -> tuple[str, ...]:
    """Return the plan of the newest call in ``head`` that makes one, in at most ``tokens``; nothing where all is done.

    A call makes a plan where its tool is named so, took it, and a list of items stands in it; an empty list takes the
    plan back. A plan that an earlier summary told counts as long as no newer one is made.
    """
    refused = {result.call_id for message in head for result in message.results if result.is_error}
    plan = next((told for message in reversed(head) if (told := _plan(message, refused)) is not None), "")
    return (clipped(plan, tokens, "the plan"),) if plan and tokens else ()


def _plan(message: Message, refused: Container[str]) -> str | None:
    """Return the plan that ``message`` makes or tells, empty where all of it is done; nothing where it has none."""
    for part in reversed(message.parts):
        if isinstance(part, Text) and message.role == "user" and part.text.startswith(PLAN):
            return part.text
        if isinstance(part, ToolCall) and _PLANNING.search(part.name) and part.id not in refused:
            items = _items(part)
            if items is not None:
                is_done = all(item.get("status") in _DONE for item in items)
                return "" if is_done else "\n".join([PLAN, *map(_line, items)])
    return None


def _items(call: ToolCall) -> list[Mapping[str, Any]] | None:
    """Return the items of the first list in a call's arguments; nothing where there is none or it has others."""
    given = arguments(call)
    values = given.values() if isinstance(given, dict) else ()
    first = next((value for value in values if isinstance(value, list)), None)
    items: list[Mapping[str, Any]] = [item for item in first or () if isinstance(item, dict)]
    return items if items or first == [] else None


def _line(item: Mapping[str, Any]) -> str:
    text = next((item[name] for name in _WORDS if isinstance(item.get(name), str)), "")
    return f"- [{item.get('status') or 'open'}] {one_line(text, ITEM_CHARS)}"
