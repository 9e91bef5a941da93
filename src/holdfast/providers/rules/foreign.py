"""What breaks a rule because it is another API's, told as that: whose form it is, of what, and what stands here for it.

The rules find it by what their own API does not know; only the words of a finding change here, never what is found.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from holdfast.providers.foreign.foreign_blocks import (
    MESSAGE_ORIGIN_BY_FIELD,
    BlockOrigin,
    classify_tool_declaration,
    find_foreign_blocks,
    format_foreign_block_advice,
)
from holdfast.providers.rules.rule import Finding


def explain_foreign_findings(
    findings: Sequence[Finding], messages: Sequence[Any], messages_field: str, tools: Sequence[Any], api: str
) -> tuple[Finding, ...]:
    """Return the findings, with those on what is written as another API has it saying so; ``messages`` is
    ``messages_field``.
    """
    signs: dict[int, dict[str, BlockOrigin]] = {}
    out = []
    for finding in findings:
        at, inner_path = _split_message_path(finding.path, messages_field)
        kind = None
        if 0 <= at < len(messages) and finding.level == "error":
            if at not in signs:
                signs[at] = dict(find_foreign_blocks(messages[at], api))
            kind = _find_enclosing_origin(inner_path, signs[at]) or _find_misplaced_content(inner_path, messages[at])
        elif finding.level == "error":
            kind = _find_foreign_tool(finding, tools, api)
        out.append(finding if kind is None else replace(finding, message=format_foreign_block_advice(kind, api)))
    return tuple(out)


def _find_foreign_tool(finding: Finding, tools: Sequence[Any], api: str) -> BlockOrigin | None:
    """Return what a finding is on where that is a tool that is offered in another API's form."""
    at, _ = _split_message_path(finding.path, "tools")
    kind = classify_tool_declaration(tools[at]) if 0 <= at < len(tools) else None
    return None if kind is None or api in kind.apis else kind


def _split_message_path(path: str, field: str) -> tuple[int, str]:
    """Return which message a path leads into and what follows it; -1 where it leads into none."""
    start = f"$.{field}["
    number, _, inner_path = path[len(start) :].partition("]") if path.startswith(start) else ("", "", "")
    return (int(number), inner_path) if number.isdigit() else (-1, "")


def _find_enclosing_origin(inner_path: str, foreign_blocks: Mapping[str, BlockOrigin]) -> BlockOrigin | None:
    """Return what stands at or around a place in a message, the innermost; a content that misses stands elsewhere."""
    place = inner_path
    while place and place not in foreign_blocks:
        place = place[: max(place.rfind("."), place.rfind("["))]
    if place in foreign_blocks:
        return foreign_blocks[place]
    return (
        next(iter(foreign_blocks.values()), None)
        if inner_path in _CONTENT_PATHS
        else foreign_blocks.get(_RELATED_PATHS.get(inner_path, inner_path))
    )


_CONTENT_PATHS = (".content", ".parts")
_RELATED_PATHS = {".tool_call_id": ".role"}
"""A field that misses where another one tells what the message is."""


def _find_misplaced_content(inner_path: str, message: object) -> BlockOrigin | None:
    """Return what a message is that holds its words where only other APIs do."""
    keys = [key for key in ("content", "parts") if isinstance(message, dict) and message.get(key)]
    return MESSAGE_ORIGIN_BY_FIELD[keys[0]] if inner_path in _CONTENT_PATHS and len(keys) == 1 else None
