"""Find the agent's newest to-do list, so that it is shown again after a summary."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping, Sequence
from typing import Any

from holdfast.messages.message import Message
from holdfast.messages.parts import Text, ToolCall
from holdfast.messages.references import decode_call_arguments
from holdfast.messages.text.text_cuts import flatten_to_line
from holdfast.messages.text.token_excerpts import clip_text_with_notice

PLAN_OPENING = "The plan as it stands:"
"""First line of the plan in every summary that has one."""
MAX_PLAN_ITEM_CHARS = 300
"""Characters of one item of a plan. Items are sentences; a longer one is a text that stands in the log. Chosen by
judgement."""
_PLANNING_TOOL = re.compile(r"todo|plan", re.IGNORECASE)
# Agents name the field differently; the first of these that holds a text is shown.
_ITEM_TEXT_KEYS = ("content", "text", "step", "task", "title", "description")
_DONE_STATUSES = frozenset({"done", "completed", "complete", "cancelled", "canceled"})


def render_restored_todos(head: Sequence[Message], tokens: int) -> tuple[str, ...]:
    """Return the newest plan in ``head`` as one text of at most ``tokens``, or no text if none is open.

    A plan is a list of items in the arguments of a call that did not fail, of a tool with "todo" or "plan" in its name.
    An empty list withdraws the plan. A plan that an earlier summary showed counts until a newer one is made.
    """
    failed_ids = {result.call_id for message in head for result in message.results if result.is_error}
    for message in reversed(head):
        plan = _find_plan(message, failed_ids)
        if plan is None:
            continue
        if not plan or not tokens:
            break
        return (clip_text_with_notice(plan, tokens, "the plan"),)
    return ()


def _find_plan(message: Message, failed_ids: Container[str]) -> str | None:
    """Return the newest plan in ``message``: empty if all its items are done, None if the message holds no plan."""
    for part in reversed(message.parts):
        if isinstance(part, Text) and message.role == "user" and part.text.startswith(PLAN_OPENING):
            return part.text
        if isinstance(part, ToolCall) and _PLANNING_TOOL.search(part.name) and part.id not in failed_ids:
            items = _parse_plan_items(part)
            if items is None:
                continue
            if all(item.get("status") in _DONE_STATUSES for item in items):
                return ""
            return "\n".join([PLAN_OPENING, *map(_render_plan_item, items)])
    return None


def _parse_plan_items(call: ToolCall) -> list[Mapping[str, Any]] | None:
    """Return the objects in the first list among a call's arguments.

    The result is empty for an empty list, and None if there is no list or it holds no objects.
    """
    call_arguments = decode_call_arguments(call)
    if not isinstance(call_arguments, dict):
        return None
    for value in call_arguments.values():
        if isinstance(value, list):
            items: list[Mapping[str, Any]] = []
            for item in value:
                if isinstance(item, dict):
                    items.append(item)
            return items if items or not value else None
    return None


def _render_plan_item(item: Mapping[str, Any]) -> str:
    text = next((item[key] for key in _ITEM_TEXT_KEYS if isinstance(item.get(key), str)), "")
    return f"- [{item.get('status') or 'open'}] {flatten_to_line(text, MAX_PLAN_ITEM_CHARS)}"
