"""What a line says that matters for a repair, tool by tool, and how the tool writes what a repair adds."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from msgspec import Struct

from holdfast.formats.common.lines import edited
from holdfast.formats.repair.pieces import Fits, Object
from holdfast.providers.common.json.raw_json import write

NO_RESULT = "No result was recorded: the session was damaged or interrupted. Whether the call ran is not known."
"""[H] What stands for a result that is missing, where a tool cannot go on without one."""


class Sketch(Struct):
    """A line in a few words."""

    line: int
    """Its number in the file."""
    id: str | None = None
    parent: str | None = None
    chain: str = ""
    """Whose conversation it belongs to: a sub-agent's name, or nothing."""
    calls: tuple[str, ...] = ()
    results: tuple[str, ...] = ()
    """The calls whose results it holds."""
    alone: bool = True
    """Whether it holds nothing beside those results."""
    said: bool = False
    """Whether it is a message."""
    answer: str = ""
    """The answer it is a part of, where that can lie on several lines."""
    is_once: bool = False
    """Whether something in it is said once alone: a time in parts of a second, an id."""


class Tool(Struct, frozen=True):
    """A tool's files. A tree has ids and links to parents; without, lines follow each other."""

    name: str
    fits: Fits
    """Whether an object is one of its lines, for certain."""
    sketch: Callable[[int, Object], Sketch]
    heads: Fits | None = None
    """Whether an object is the header that the tool wants first; nothing: it wants none."""
    link: str = ""
    """The field that names a line's parent."""
    orders: bool = False
    """Whether the tool needs parents before their children, or calls before their results."""
    answers: bool = False
    """Whether a call that was passed over without a result makes every later request fail."""


# -- Claude Code -------------------------------------------------------------------------------------------------------


def _fits_claude(said: Object) -> bool:
    return "type" in said and bool({"uuid", "leafUuid", "messageId"} & said.keys()) and "sessionId" in said


def _claude(number: int, said: Object) -> Sketch:
    message = _object(said.get("message"))
    blocks = _blocks(message.get("content"))
    kind = _text(said.get("type"))
    results = tuple(_named(blocks, "tool_result", "tool_use_id"))
    side = said.get("isSidechain") is True
    answer = f"{_text(message.get('id'))}\n{_text(said.get('requestId'))}" if kind == "assistant" else ""
    return Sketch(
        number,
        _text(said.get("uuid")) or None,
        _text(said.get("parentUuid")) or None,
        (_text(said.get("agentId")) or "sub-agent") if side else "",
        tuple(_named(blocks, "tool_use", "id")) if kind == "assistant" else (),
        results if kind == "user" else (),
        len(results) == len(blocks),
        kind in ("user", "assistant"),
        answer if message.get("id") else "",
    )


def without_results(line: bytes, ids: frozenset[str]) -> bytes:
    """Return a line of Claude Code without the results of the calls ``ids``."""
    said = msgspec.json.decode(line)
    message = said["message"]
    kept = [block for block in message["content"] if not (isinstance(block, dict) and block.get("tool_use_id") in ids)]
    return edited(line, {"message": message | {"content": kept}})


_ENVELOPE = ("isSidechain", "userType", "cwd", "sessionId", "version", "gitBranch", "agentId", "slug", "timestamp")


def answering(line: bytes, ids: tuple[str, ...], uuid: str) -> bytes:
    """Return a line of Claude Code with error results for the calls ``ids``, to stand behind ``line``."""
    before = msgspec.json.decode(line)
    blocks = [{"type": "tool_result", "tool_use_id": id_, "content": NO_RESULT, "is_error": True} for id_ in ids]
    told = {name: before[name] for name in _ENVELOPE if name in before}
    said = {"parentUuid": before["uuid"]} | told | {"type": "user", "message": {"role": "user", "content": blocks}}
    return write(said | {"uuid": uuid, "toolUseResult": f"Error: {NO_RESULT}"})


# -- pi ----------------------------------------------------------------------------------------------------------------


def _fits_pi(said: Object) -> bool:
    return "type" in said and "id" in said and "timestamp" in said and ("parentId" in said or said["type"] == "session")


def _heads_pi(said: Object) -> bool:
    return said.get("type") == "session" and isinstance(said.get("id"), str)


def _pi(number: int, said: Object) -> Sketch:
    message = _object(said.get("message"))
    role = _text(message.get("role"))
    answers = _text(message.get("toolCallId"))
    is_header = said.get("type") == "session"
    return Sketch(
        number,
        None if is_header else _text(said.get("id")) or None,
        _text(said.get("parentId")) or None,
        calls=tuple(_named(_blocks(message.get("content")), "toolCall", "id")) if role == "assistant" else (),
        results=(answers,) if role == "toolResult" and answers else (),
        said=bool(role),
    )


# -- Codex -------------------------------------------------------------------------------------------------------------


def _fits_codex(said: Object) -> bool:
    return "type" in said and "timestamp" in said and "payload" in said


def _heads_codex(said: Object) -> bool:
    return said.get("type") == "session_meta" or ("type" not in said and "id" in said and "timestamp" in said)


def _codex(number: int, said: Object) -> Sketch:
    item = _object(said.get("payload")) if "payload" in said else said
    is_item = said.get("type") == "response_item" or "payload" not in said
    kind, id_ = _text(item.get("type")), _text(item.get("call_id"))
    if not is_item or not id_:
        is_once = bool(_text(item.get("id")) or _PART_OF_A_SECOND.search(_text(said.get("timestamp"))))
        return Sketch(number, said=is_item and bool(kind), is_once=is_once)
    ends, made = kind.endswith("_call_output") or kind == "tool_search_output", kind.endswith("_call")
    return Sketch(number, calls=(id_,) if made else (), results=(id_,) if ends else (), said=True, is_once=True)


_PART_OF_A_SECOND = re.compile(r"\.0*[1-9]")


# -- Gemini CLI --------------------------------------------------------------------------------------------------------


def _fits_gemini(said: Object) -> bool:
    return "$set" in said or {"sessionId", "projectHash"} <= said.keys() or {"id", "timestamp", "type"} <= said.keys()


def _heads_gemini(said: Object) -> bool:
    return "sessionId" in said and "type" not in said


def _gemini(number: int, said: Object) -> Sketch:
    return Sketch(number, said="content" in said)


TOOLS = {
    tool.name: tool
    for tool in (
        Tool("claude-code", _fits_claude, _claude, link="parentUuid", answers=True),
        Tool("pi", _fits_pi, _pi, _heads_pi, link="parentId", orders=True),
        Tool("codex", _fits_codex, _codex, _heads_codex, orders=True),
        Tool("gemini-cli", _fits_gemini, _gemini, _heads_gemini),
    )
}
"""The tools whose session files can be repaired, by the name of their format."""


# -- values of any shape -----------------------------------------------------------------------------------------------


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _object(value: object) -> Object:
    return value if isinstance(value, dict) else {}


def _blocks(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _named(blocks: list[Any], kind: str, field: str) -> Iterator[str]:
    """Yield what ``field`` says in each block of ``kind``."""
    for block in blocks:
        if isinstance(block, dict) and block.get("type") == kind and isinstance(block.get(field), str):
            yield block[field]
