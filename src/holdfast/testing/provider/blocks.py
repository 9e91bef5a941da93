"""A request in pieces, in the order in which the model reads them: what is counted, cached and signed over.

A piece's key is its meaning, not its spelling: two bodies that say the same thing with other white space, another order
of fields, a string for one text block or other cache breakpoints have the same keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import msgspec
from msgspec import Struct

from holdfast.testing.provider.rendering import Rendering, render


class Block(Struct, frozen=True):
    """One piece of a request."""

    section: Literal["tools", "system", "messages"]
    role: str
    value: Any
    path: str
    """Where it stands, as Anthropic names places: ``messages.1.content.0``."""
    key: bytes
    rendering: Rendering
    marker: str = ""
    """``5m`` or ``1h`` where a cache breakpoint stands."""

    @property
    def kind(self) -> str:
        """Its type, where it says one."""
        return str(self.value.get("type", "")) if isinstance(self.value, dict) else ""


def blocks(api: str, body: Mapping[str, Any]) -> list[Block]:
    """Return the pieces of a body in prompt order: tools, system, messages. What is malformed is left out."""
    pieces = {"anthropic": _anthropic, "openai-chat": _chat, "openai-responses": _responses, "gemini": _gemini}
    return [_block(api, *piece) for piece in pieces[api](body)]


_Piece = tuple[Literal["tools", "system", "messages"], str, Any, str]
"""Section, role, value, path."""


def _block(api: str, section: Literal["tools", "system", "messages"], role: str, value: Any, path: str) -> Block:
    key = role.encode() + b":" + msgspec.json.encode(meaning(value))
    return Block(section, role, value, path, key, render(value, api), _marker(value))


def _marker(value: object) -> str:
    """Return how long the breakpoint on a block, or on one inside its result, keeps; nothing without one."""
    inside = value.get("content") if isinstance(value, dict) else None
    for one in (value, *(inside if isinstance(inside, list) else ())):
        control = one.get("cache_control") if isinstance(one, dict) else None
        if isinstance(control, dict):
            return "1h" if control.get("ttl") == "1h" else "5m"
    return ""


# -- meaning -----------------------------------------------------------------------------------------------------------

_MEANINGLESS = frozenset({"cache_control", "status", "annotations", "logprobs"})
_TEXTS = frozenset({"text", "input_text", "output_text"})
_ITEM_IDS = frozenset({"call_id", "encrypted_content", "summary", "role"})
"""An item of Responses that has one of these is the same without its ``id``."""


def meaning(value: Any) -> Any:
    """Return ``value`` without what does not change what it says: breakpoints, nulls, ids of items, order of fields."""
    if not isinstance(value, dict):
        return value
    if str(value.get("type")) in _TEXTS and isinstance(value.get("text"), str) and not value.get("citations"):
        return {"text": value["text"], "type": "text"}
    left_out = _MEANINGLESS | {"id"} if _ITEM_IDS & value.keys() else _MEANINGLESS
    kept = sorted(
        key for key, inner in value.items() if key not in left_out and inner is not None and inner is not False
    )
    return {key: _inside(key, value[key]) for key in kept if key != "type" or value[key] != "message"}


def _inside(key: str, value: Any) -> Any:
    if key == "content":
        return [meaning(one) for one in _listed(value)]
    return value


def _listed(content: Any) -> list[Any]:
    """Return content as a list of blocks, a plain string as one text."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return content if isinstance(content, list) else []


# -- the four APIs -----------------------------------------------------------------------------------------------------


def _objects(value: Any) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _tools(body: Mapping[str, Any]) -> Iterator[_Piece]:
    for at, tool in enumerate(_objects(body.get("tools"))):
        yield "tools", "tools", tool, f"tools.{at}"


def _anthropic(body: Mapping[str, Any]) -> Iterator[_Piece]:
    yield from _tools(body)
    for at, value in enumerate(_listed(body.get("system"))):
        yield "system", "system", value, f"system.{at}"
    for at, message in enumerate(_objects(body.get("messages"))):
        for index, value in enumerate(_listed(message.get("content"))):
            yield "messages", str(message.get("role")), value, f"messages.{at}.content.{index}"


def _chat(body: Mapping[str, Any]) -> Iterator[_Piece]:
    yield from _tools(body)
    if body.get("response_format") is not None:
        yield "system", "system", body["response_format"], "response_format"
    for at, message in enumerate(_objects(body.get("messages"))):
        yield "messages", str(message.get("role")), message, f"messages[{at}]"


def _responses(body: Mapping[str, Any]) -> Iterator[_Piece]:
    yield from _tools(body)
    for name in ("instructions", "text"):
        if body.get(name) is not None:
            yield "system", "system", body[name], name
    for at, item in enumerate(items(body.get("input"))):
        yield "messages", str(item.get("role") or item.get("type")), item, f"input[{at}]"


def items(given: Any) -> list[dict[str, Any]]:
    """Return the input of a Responses request as items, a plain string as a user's message."""
    return [{"role": "user", "content": given}] if isinstance(given, str) else _objects(given)


def _gemini(body: Mapping[str, Any]) -> Iterator[_Piece]:
    yield from _tools(body)
    system = body.get("systemInstruction", body.get("system_instruction"))
    if system is not None:
        yield "system", "system", system, "system_instruction"
    for at, content in enumerate(_objects(body.get("contents"))):
        for index, part in enumerate(_objects(content.get("parts"))):
            yield "messages", str(content.get("role") or "user"), part, f"contents[{at}].parts[{index}]"
