"""Explain findings that are caused by another API's form: whose form it is, of which content, and what to write.

Rules report such content only as unknown to their own API. The messages of findings change here; which findings there
are does not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct
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
    findings: Sequence[Finding],
    messages: Sequence[Any],
    messages_field: str,
    tools: Sequence[Any],
    api: str,
) -> tuple[Finding, ...]:
    """Return the findings; errors about content in another API's form say so in their message.

    ``messages`` is the list in the field ``messages_field`` of the body.
    """
    # Filled as messages with errors come up: nearly all requests have none, and blocks are not looked at then.
    foreign_blocks: dict[int, dict[str, BlockOrigin]] = {}
    explained_findings = []
    for finding in findings:
        origin = None
        if finding.level == "error":
            location = _locate_in_list(finding.path, messages_field, len(messages))
            if location is None:
                origin = _find_foreign_tool(finding, tools, api)
            else:
                message = messages[location.index]
                if location.index not in foreign_blocks:
                    foreign_blocks[location.index] = dict(find_foreign_blocks(message, api))
                origin = _find_enclosing_origin(location.inner_path, foreign_blocks[location.index])
                origin = origin or _find_misplaced_content(location.inner_path, message)
        if origin is None:
            explained_findings.append(finding)
        else:
            explained_findings.append(replace(finding, message=format_foreign_block_advice(origin, api)))
    return tuple(explained_findings)


def _find_foreign_tool(finding: Finding, tools: Sequence[Any], api: str) -> BlockOrigin | None:
    """Return the origin of the tool that a finding is about, or None if it is about something else or an own tool."""
    location = _locate_in_list(finding.path, "tools", len(tools))
    if location is not None:
        origin = classify_tool_declaration(tools[location.index])
    else:
        origin = None
    return None if origin is None or api in origin.apis else origin


class _ListLocation(Struct, frozen=True):
    index: int
    inner_path: str
    """The rest of the path, from the element on."""


def _locate_in_list(path: str, field: str, length: int) -> _ListLocation | None:
    """Split a JSON path into an index of the list in ``field`` and the rest, or return None if it leads elsewhere."""
    start = f"$.{field}["
    if not path.startswith(start):
        return None
    digits, _, inner_path = path[len(start) :].partition("]")
    if not digits.isdigit() or int(digits) >= length:
        return None
    return _ListLocation(int(digits), inner_path)


def _find_enclosing_origin(inner_path: str, foreign_blocks: Mapping[str, BlockOrigin]) -> BlockOrigin | None:
    """Return the origin of the innermost foreign block at or around a path in a message, or None.

    If the content itself is missing, the first foreign block of the message is the reason.
    """
    path = inner_path
    while path and path not in foreign_blocks:
        path = path[: max(path.rfind("."), path.rfind("["))]
    if path in foreign_blocks:
        return foreign_blocks[path]
    if inner_path in _CONTENT_PATHS:
        return next(iter(foreign_blocks.values()), None)
    return foreign_blocks.get(_RELATED_PATHS.get(inner_path, inner_path))


# A message in another API's form has its content in the other field, so the finding is about a missing one.
_CONTENT_PATHS = (".content", ".parts")
_RELATED_PATHS = {".tool_call_id": ".role"}
"""Paths of missing fields, with that of the field which shows why they are missing."""


def _find_misplaced_content(inner_path: str, message: object) -> BlockOrigin | None:
    """Return the origin of a message that has its content only in the field of other APIs, or None."""
    if inner_path not in _CONTENT_PATHS or not isinstance(message, dict):
        return None
    content_fields = [key for key in ("content", "parts") if message.get(key)]
    if len(content_fields) == 1:
        return MESSAGE_ORIGIN_BY_FIELD[content_fields[0]]
    return None
