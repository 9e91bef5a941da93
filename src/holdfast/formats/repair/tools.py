"""What a line says that matters for a repair, tool by tool, and how the tool writes what a repair adds."""

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
"""[H] What stands for a result that is missing, where a tool cannot go on without one."""


class LineSummary(Struct):
    """A line in a few words."""

    line: int
    """Its number in the file."""
    id: str | None = None
    parent: str | None = None
    conversation: str = ""
    """Whose conversation it belongs to: a sub-agent's name, or nothing."""
    calls: tuple[str, ...] = ()
    results: tuple[str, ...] = ()
    """The calls whose results it holds."""
    is_only_results: bool = True
    """Whether it holds nothing beside those results."""
    is_message: bool = False
    """Whether it is a message."""
    answer_key: str = ""
    """The answer it is a part of, where that can lie on several lines."""
    is_unique: bool = False
    """Whether something in it is said once alone: a time in parts of a second, an id."""


class RepairTool(Struct, frozen=True):
    """A tool's files. A tree has ids and links to parents; without, lines follow each other."""

    name: str
    is_line: LineTest
    """Whether an object is one of its lines, for certain."""
    summarize_line: Callable[[int, JsonObject], LineSummary]
    is_header: LineTest | None = None
    """Whether an object is the header that the tool wants first; nothing: it wants none."""
    parent_field: str = ""
    """The field that names a line's parent."""
    needs_order: bool = False
    """Whether the tool needs parents before their children, or calls before their results."""
    needs_results: bool = False
    """Whether a call that was passed over without a result makes every later request fail."""


# -- Claude Code -------------------------------------------------------------------------------------------------------


def _is_claude_object(value: JsonObject) -> bool:
    return "type" in value and bool({"uuid", "leafUuid", "messageId"} & value.keys()) and "sessionId" in value


def _summarize_claude_line(number: int, value: JsonObject) -> LineSummary:
    message = _get_object_or_empty(value.get("message"))
    blocks = _get_list_or_empty(message.get("content"))
    kind = _get_text_or_empty(value.get("type"))
    results = tuple(_iterate_block_field(blocks, "tool_result", "tool_use_id"))
    side = value.get("isSidechain") is True
    answer = (
        f"{_get_text_or_empty(message.get('id'))}\n{_get_text_or_empty(value.get('requestId'))}"
        if kind == "assistant"
        else ""
    )
    return LineSummary(
        number,
        _get_text_or_empty(value.get("uuid")) or None,
        _get_text_or_empty(value.get("parentUuid")) or None,
        (_get_text_or_empty(value.get("agentId")) or "sub-agent") if side else "",
        tuple(_iterate_block_field(blocks, "tool_use", "id")) if kind == "assistant" else (),
        results if kind == "user" else (),
        len(results) == len(blocks),
        kind in ("user", "assistant"),
        answer if message.get("id") else "",
    )


def remove_claude_results(line: bytes, ids: frozenset[str]) -> bytes:
    """Return a line of Claude Code without the results of the calls ``ids``."""
    line_fields = msgspec.json.decode(line)
    message = line_fields["message"]
    blocks = [
        block for block in message["content"] if not (isinstance(block, dict) and block.get("tool_use_id") in ids)
    ]
    return set_json_fields(line, {"message": message | {"content": blocks}})


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


def make_claude_error_results(line: bytes, ids: tuple[str, ...], uuid: str) -> bytes:
    """Return a line of Claude Code with error results for the calls ``ids``, to stand behind ``line``."""
    before = msgspec.json.decode(line)
    blocks = [
        {"type": "tool_result", "tool_use_id": id_, "content": MISSING_RESULT_TEXT, "is_error": True} for id_ in ids
    ]
    envelope = {name: before[name] for name in _COPIED_CLAUDE_FIELDS if name in before}
    new_line = (
        {"parentUuid": before["uuid"]} | envelope | {"type": "user", "message": {"role": "user", "content": blocks}}
    )
    return encode_json(new_line | {"uuid": uuid, "toolUseResult": f"Error: {MISSING_RESULT_TEXT}"})


# -- pi ----------------------------------------------------------------------------------------------------------------


def _is_pi_object(value: JsonObject) -> bool:
    return (
        "type" in value
        and "id" in value
        and "timestamp" in value
        and ("parentId" in value or value["type"] == "session")
    )


def _is_pi_header(value: JsonObject) -> bool:
    return value.get("type") == "session" and isinstance(value.get("id"), str)


def _summarize_pi_line(number: int, value: JsonObject) -> LineSummary:
    message = _get_object_or_empty(value.get("message"))
    role = _get_text_or_empty(message.get("role"))
    answers = _get_text_or_empty(message.get("toolCallId"))
    is_header = value.get("type") == "session"
    return LineSummary(
        number,
        None if is_header else _get_text_or_empty(value.get("id")) or None,
        _get_text_or_empty(value.get("parentId")) or None,
        calls=tuple(_iterate_block_field(_get_list_or_empty(message.get("content")), "toolCall", "id"))
        if role == "assistant"
        else (),
        results=(answers,) if role == "toolResult" and answers else (),
        is_message=bool(role),
    )


# -- Codex -------------------------------------------------------------------------------------------------------------


def _is_codex_object(value: JsonObject) -> bool:
    return "type" in value and "timestamp" in value and "payload" in value


def _is_codex_header(value: JsonObject) -> bool:
    return value.get("type") == "session_meta" or ("type" not in value and "id" in value and "timestamp" in value)


def _summarize_codex_line(number: int, value: JsonObject) -> LineSummary:
    item = _get_object_or_empty(value.get("payload")) if "payload" in value else value
    is_item = value.get("type") == "response_item" or "payload" not in value
    kind, id_ = _get_text_or_empty(item.get("type")), _get_text_or_empty(item.get("call_id"))
    if not is_item or not id_:
        is_once = bool(
            _get_text_or_empty(item.get("id")) or _SUBSECOND.search(_get_text_or_empty(value.get("timestamp")))
        )
        return LineSummary(number, is_message=is_item and bool(kind), is_unique=is_once)
    ends, is_call = kind.endswith("_call_output") or kind == "tool_search_output", kind.endswith("_call")
    return LineSummary(
        number, calls=(id_,) if is_call else (), results=(id_,) if ends else (), is_message=True, is_unique=True
    )


_SUBSECOND = re.compile(r"\.0*[1-9]")


# -- Gemini CLI --------------------------------------------------------------------------------------------------------


def _is_gemini_object(value: JsonObject) -> bool:
    return (
        "$set" in value or {"sessionId", "projectHash"} <= value.keys() or {"id", "timestamp", "type"} <= value.keys()
    )


def _is_gemini_header(value: JsonObject) -> bool:
    return "sessionId" in value and "type" not in value


def _summarize_gemini_line(number: int, value: JsonObject) -> LineSummary:
    return LineSummary(number, is_message="content" in value)


REPAIR_TOOLS = {
    tool.name: tool
    for tool in (
        RepairTool(
            "claude-code", _is_claude_object, _summarize_claude_line, parent_field="parentUuid", needs_results=True
        ),
        RepairTool("pi", _is_pi_object, _summarize_pi_line, _is_pi_header, parent_field="parentId", needs_order=True),
        RepairTool("codex", _is_codex_object, _summarize_codex_line, _is_codex_header, needs_order=True),
        RepairTool("gemini-cli", _is_gemini_object, _summarize_gemini_line, _is_gemini_header),
    )
}
"""The tools whose session files can be repaired, by the name of their format."""


# -- values of any shape -----------------------------------------------------------------------------------------------


def _get_text_or_empty(value: object) -> str:
    return value if isinstance(value, str) else ""


def _get_object_or_empty(value: object) -> JsonObject:
    return value if isinstance(value, dict) else {}


def _get_list_or_empty(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _iterate_block_field(blocks: list[Any], kind: str, field: str) -> Iterator[str]:
    """Yield what ``field`` says in each block of ``kind``."""
    for block in blocks:
        if isinstance(block, dict) and block.get("type") == kind and isinstance(block.get(field), str):
            yield block[field]
