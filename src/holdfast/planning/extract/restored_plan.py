"""The plan of the agent as it stands, to be shown again behind a summary."""

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
"""How the text begins that tells the plan, in every summary that has one."""
MAX_PLAN_ITEM_CHARS = 300
"""Characters of one item of a plan. [H]"""
_PLANNING_TOOL = re.compile(r"todo|plan", re.IGNORECASE)
_ITEM_TEXT_KEYS = ("content", "text", "step", "task", "title", "description")
_DONE_STATUSES = frozenset({"done", "completed", "complete", "cancelled", "canceled"})


def render_restored_todos(head: Sequence[Message], tokens: int) -> tuple[str, ...]:
    """Return the plan of the newest call in ``head`` that makes one, in at most ``tokens``; nothing where all is done.

    A call makes a plan where its tool is named so, took it, and a list of items stands in it; an empty list takes the
    plan back. A plan that an earlier summary told counts as long as no newer one is made.
    """
    failed_ids = {result.call_id for message in head for result in message.results if result.is_error}
    plan = next(
        (plan_text for message in reversed(head) if (plan_text := _find_plan(message, failed_ids)) is not None), ""
    )
    return (clip_text_with_notice(plan, tokens, "the plan"),) if plan and tokens else ()


def _find_plan(message: Message, failed_ids: Container[str]) -> str | None:
    """Return the plan that ``message`` makes or tells, empty where all of it is done; nothing where it has none."""
    for part in reversed(message.parts):
        if isinstance(part, Text) and message.role == "user" and part.text.startswith(PLAN_OPENING):
            return part.text
        if isinstance(part, ToolCall) and _PLANNING_TOOL.search(part.name) and part.id not in failed_ids:
            items = _parse_plan_items(part)
            if items is not None:
                is_done = all(item.get("status") in _DONE_STATUSES for item in items)
                return "" if is_done else "\n".join([PLAN_OPENING, *map(_render_plan_item, items)])
    return None


def _parse_plan_items(call: ToolCall) -> list[Mapping[str, Any]] | None:
    """Return the items of the first list in a call's arguments; nothing where there is none or it has others."""
    call_arguments = decode_call_arguments(call)
    values = call_arguments.values() if isinstance(call_arguments, dict) else ()
    first = next((value for value in values if isinstance(value, list)), None)
    items: list[Mapping[str, Any]] = [item for item in first or () if isinstance(item, dict)]
    return items if items or first == [] else None


def _render_plan_item(item: Mapping[str, Any]) -> str:
    text = next((item[name] for name in _ITEM_TEXT_KEYS if isinstance(item.get(name), str)), "")
    return f"- [{item.get('status') or 'open'}] {flatten_to_line(text, MAX_PLAN_ITEM_CHARS)}"
