"""To-do lists that a call writes whole: ``TodoWrite``, ``todowrite``, ``update_plan``, ``write_todos`` and others.

A list is recognized by the name of the tool, "todo" or "plan" in it, and by a list of objects among the arguments.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from holdfast.messages.parts import ToolCall
from holdfast.messages.references import decode_call_arguments
from holdfast.planning.open_work.work_events import TodoItem, TodosReplaced

PLANNING_TOOL = re.compile(r"todo|plan", re.IGNORECASE)
"""Names of tools that may write a to-do list."""
# Agents name the field differently; the first of these that holds a text is shown.
_ITEM_TEXT_KEYS = ("content", "text", "step", "task", "title", "description", "subject")


def read_todo_list(call: ToolCall) -> TodosReplaced | None:
    """Return the to-do list that ``call`` writes: empty if it withdraws the list, None if it writes none."""
    call_arguments = decode_call_arguments(call)
    if not isinstance(call_arguments, dict):
        return None
    for value in call_arguments.values():
        if isinstance(value, list):
            items = [_read_item(item) for item in value if isinstance(item, dict)]
            return TodosReplaced(tuple(items)) if items or not value else None
    return None


def _read_item(item: Mapping[str, Any]) -> TodoItem:
    text = next((item[key] for key in _ITEM_TEXT_KEYS if isinstance(item.get(key), str)), "")
    status = item.get("status")
    id_ = item.get("id")
    return TodoItem(
        text,
        status if isinstance(status, str) else "",
        str(id_) if isinstance(id_, str | int) else "",
    )
