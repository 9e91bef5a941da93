"""For each tool, the facts of a line that a repair needs, and the lines that a repair adds."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from msgspec import Struct

from holdfast.formats.common.lines import set_json_fields
from holdfast.formats.repair.damaged_lines import JsonObject, LineTest
from holdfast.providers.common.json.raw_json import encode_json

MISSING_RESULT_TEXT = (
    "No result was recorded: the session was damaged or interrupted. Whether the call ran is not known."
)
"""Text of a result that is added for a call without one, in files whose tool cannot continue otherwise.

It does not say that the call failed: the model must not repeat an action that may have been done.
"""


class LineSummary(Struct):
    """The facts of a line that are kept between the passes."""

    line: int
    """Line number in the file."""
    id: str | None = None
    parent: str | None = None
    conversation: str = ""
    """Id of the sub-agent whose conversation the line belongs to; empty for the main one."""
    calls: tuple[str, ...] = ()
    results: tuple[str, ...] = ()
    """Ids of the calls whose results the line holds."""
    is_only_results: bool = True
    """Whether the line holds nothing beside those results."""
    is_message: bool = False
    """Whether the line is a message."""
    answer_key: str = ""
    """Key of the answer that the line is a part of, for tools that write one answer on several lines."""
    ordinal: int | None = None
    ordinal_fault: str = ""
    """Why there is no ordinal although the line has a value for it; empty if it has none."""
    """The number that the tool gave the line, if it numbers them."""
    first_ordinal: int | None = None
    """On the header of a file with numbered lines, the number that it must have."""
    is_unique: bool = False
    """Whether the line has an id or a time in fractions of a second, so that the same bytes again are a copy."""


class RepairTool(Struct, frozen=True):
    """A tool's session files. With ``parent_field`` they are a tree; without it, lines follow each other."""

    name: str
    is_line: LineTest
    """Returns whether an object certainly is one of the tool's lines."""
    summarize_line: Callable[[int, JsonObject], LineSummary]
    is_header: LineTest | None = None
    """Returns whether an object is the header that the tool requires first; None if it requires none."""
    parent_field: str = ""
    """Name of the field with a line's parent."""
    needs_order: bool = False
    """Whether the tool needs parents before their children, or calls before their results."""
    needs_results: bool = False
    """Whether a call without a result makes every later request of the tool fail, once the conversation went on after
    it.
    """


# -- Claude Code -------------------------------------------------------------------------------------------------------


def _is_claude_object(value: JsonObject) -> bool:
    return "type" in value and bool({"uuid", "leafUuid", "messageId"} & value.keys()) and "sessionId" in value


def _summarize_claude_line(number: int, value: JsonObject) -> LineSummary:
    message = _get_object_or_empty(value.get("message"))
    blocks = _get_list_or_empty(message.get("content"))
    kind = _get_text_or_empty(value.get("type"))
    results = tuple(_iterate_block_field(blocks, "tool_result", "tool_use_id"))
    summary = LineSummary(
        number,
        _get_text_or_empty(value.get("uuid")) or None,
        _get_text_or_empty(value.get("parentUuid")) or None,
        is_only_results=len(results) == len(blocks),
        is_message=kind in ("user", "assistant"),
    )
    if value.get("isSidechain") is True:
        summary.conversation = _get_text_or_empty(value.get("agentId")) or "sub-agent"
    if kind == "user":
        summary.results = results
    elif kind == "assistant":
        summary.calls = tuple(_iterate_block_field(blocks, "tool_use", "id"))
        if message.get("id"):
            # With the request too: some servers behind a gateway give every answer the same id.
            message_id = _get_text_or_empty(message.get("id"))
            request_id = _get_text_or_empty(value.get("requestId"))
            summary.answer_key = f"{message_id}\n{request_id}"
    return summary


def remove_claude_results(line: bytes, call_ids: frozenset[str]) -> bytes:
    """Return a line of Claude Code without the results of these calls."""
    message = msgspec.json.decode(line)["message"]
    blocks = []
    for block in message["content"]:
        is_removed = isinstance(block, dict) and block.get("tool_use_id") in call_ids
        if not is_removed:
            blocks.append(block)
    return set_json_fields(line, {"message": message | {"content": blocks}})


# Fields that an added line has in common with the line before it.
_COPIED_CLAUDE_FIELDS = (
    "isSidechain",
    "userType",
    "cwd",
    "sessionId",
    "version",
    "gitBranch",
    "agentId",
    "slug",
    "timestamp",
)


def make_claude_error_results(line: bytes, call_ids: tuple[str, ...], uuid: str) -> bytes:
    """Return a line of Claude Code with error results for these calls, to be written after ``line``."""
    previous = msgspec.json.decode(line)
    blocks = []
    for call_id in call_ids:
        blocks.append({"type": "tool_result", "tool_use_id": call_id, "content": MISSING_RESULT_TEXT, "is_error": True})
    copied_fields = {name: previous[name] for name in _COPIED_CLAUDE_FIELDS if name in previous}
    new_line = {"parentUuid": previous["uuid"]} | copied_fields
    new_line |= {
        "type": "user",
        "message": {"role": "user", "content": blocks},
        "uuid": uuid,
        "toolUseResult": f"Error: {MISSING_RESULT_TEXT}",
    }
    return encode_json(new_line)


# -- pi ----------------------------------------------------------------------------------------------------------------


def _is_pi_object(value: JsonObject) -> bool:
    has_common_fields = {"type", "id", "timestamp"} <= value.keys()
    return has_common_fields and ("parentId" in value or value["type"] == "session")


def _is_pi_header(value: JsonObject) -> bool:
    return value.get("type") == "session" and isinstance(value.get("id"), str)


def _summarize_pi_line(number: int, value: JsonObject) -> LineSummary:
    message = _get_object_or_empty(value.get("message"))
    role = _get_text_or_empty(message.get("role"))
    summary = LineSummary(number, parent=_get_text_or_empty(value.get("parentId")) or None, is_message=bool(role))
    if value.get("type") != "session":
        summary.id = _get_text_or_empty(value.get("id")) or None
    if role == "assistant":
        blocks = _get_list_or_empty(message.get("content"))
        summary.calls = tuple(_iterate_block_field(blocks, "toolCall", "id"))
    elif role == "toolResult":
        call_id = _get_text_or_empty(message.get("toolCallId"))
        summary.results = (call_id,) if call_id else ()
    return summary


# -- Codex -------------------------------------------------------------------------------------------------------------


def _is_codex_object(value: JsonObject) -> bool:
    return "type" in value and "timestamp" in value and "payload" in value


def _is_codex_header(value: JsonObject) -> bool:
    is_bare_header = "type" not in value and "id" in value and "timestamp" in value
    return value.get("type") == "session_meta" or is_bare_header


def _summarize_codex_line(number: int, value: JsonObject) -> LineSummary:
    summary = _summarize_codex_item(number, value)
    summary.ordinal = _get_ordinal_or_none(value.get("ordinal"))
    summary.ordinal_fault = _explain_ordinal_fault(value.get("ordinal"))
    payload = _get_object_or_empty(value.get("payload"))
    if value.get("type") == "session_meta" and payload.get("history_mode") == "paginated":
        base = _get_object_or_empty(payload.get("history_base"))
        summary.first_ordinal = _get_ordinal_or_none(base.get("end_ordinal_exclusive"))
        if summary.first_ordinal is None:
            # Not 0: a rollout may be continued in another file, whose lines are numbered on.
            summary.first_ordinal = summary.ordinal or 0
    return summary


def _summarize_codex_item(number: int, value: JsonObject) -> LineSummary:
    # Old files hold items without an envelope.
    is_bare = "payload" not in value
    item = value if is_bare else _get_object_or_empty(value.get("payload"))
    is_item = is_bare or value.get("type") == "response_item"
    kind = _get_text_or_empty(item.get("type"))
    call_id = _get_text_or_empty(item.get("call_id"))
    if not is_item or not call_id:
        has_id = bool(_get_text_or_empty(item.get("id")))
        has_exact_time = _SUBSECOND.search(_get_text_or_empty(value.get("timestamp"))) is not None
        return LineSummary(number, is_message=is_item and bool(kind), is_unique=has_id or has_exact_time)
    summary = LineSummary(number, is_message=True, is_unique=True)
    if kind.endswith("_call"):
        summary.calls = (call_id,)
    elif kind.endswith("_call_output") or kind == "tool_search_output":
        summary.results = (call_id,)
    return summary


# A time in whole seconds (``.000``) does not tell two lines apart: both may be meant.
_SUBSECOND = re.compile(r"\.0*[1-9]")


# -- Gemini CLI --------------------------------------------------------------------------------------------------------


def _is_gemini_object(value: JsonObject) -> bool:
    is_header = {"sessionId", "projectHash"} <= value.keys()
    is_message = {"id", "timestamp", "type"} <= value.keys()
    return "$set" in value or is_header or is_message


def _is_gemini_header(value: JsonObject) -> bool:
    return "sessionId" in value and "type" not in value


def _summarize_gemini_line(number: int, value: JsonObject) -> LineSummary:
    return LineSummary(number, is_message="content" in value)


# Claude Code sends exactly what it recorded, so a call without a result has to get one in the file; pi and Codex make
# up missing results when they send. pi continues from its last line and Codex reads in order, so both need parents and
# calls first. Gemini CLI replaces lines by id, and neither order nor copies matter to it.
_ALL_TOOLS = (
    RepairTool("claude-code", _is_claude_object, _summarize_claude_line, parent_field="parentUuid", needs_results=True),
    RepairTool("pi", _is_pi_object, _summarize_pi_line, _is_pi_header, parent_field="parentId", needs_order=True),
    RepairTool("codex", _is_codex_object, _summarize_codex_line, _is_codex_header, needs_order=True),
    RepairTool("gemini-cli", _is_gemini_object, _summarize_gemini_line, _is_gemini_header),
)
REPAIR_TOOLS = {tool.name: tool for tool in _ALL_TOOLS}
"""The tools whose session files can be repaired, by format name."""


# -- values of any shape -----------------------------------------------------------------------------------------------


def _get_text_or_empty(value: object) -> str:
    return value if isinstance(value, str) else ""


_ORDINAL_END = 2**63
"""Ordinals are below this number."""


def _get_ordinal_or_none(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _ORDINAL_END else None


def _explain_ordinal_fault(value: object) -> str:
    """Say what is wrong with a value that stands for an ordinal; empty if nothing is, or there is none."""
    if value is None or _get_ordinal_or_none(value) is not None:
        return ""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "is no number"
    if value < 0:
        return "is negative"
    return "is too large" if value >= _ORDINAL_END else "is no whole number"


def _get_object_or_empty(value: object) -> JsonObject:
    return value if isinstance(value, dict) else {}


def _get_list_or_empty(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _iterate_block_field(blocks: list[Any], kind: str, field: str) -> Iterator[str]:
    """Yield the text in ``field`` of each block of type ``kind``."""
    for block in blocks:
        if isinstance(block, dict) and block.get("type") == kind and isinstance(block.get(field), str):
            yield block[field]
