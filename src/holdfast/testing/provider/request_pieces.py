"""A request in pieces, in the order in which the model reads them: what is counted, cached and signed over.

A piece's key is its meaning, not its spelling: two bodies that say the same thing with other white space, another order
of fields, a string for one text block or other cache breakpoints have the same keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import msgspec
from msgspec import Struct

from holdfast.testing.provider.visible_text import Rendering, render_block


class PromptBlock(Struct, frozen=True):
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


def split_into_blocks(api: str, body: Mapping[str, Any]) -> list[PromptBlock]:
    """Return the pieces of a body in prompt order: tools, system, messages. What is malformed is left out."""
    pieces = {
        "anthropic": _iterate_anthropic_pieces,
        "openai-chat": _iterate_chat_pieces,
        "openai-responses": _iterate_responses_pieces,
        "gemini": _iterate_gemini_pieces,
    }
    return [_make_block(api, *piece) for piece in pieces[api](body)]


_PieceTuple = tuple[Literal["tools", "system", "messages"], str, Any, str]
"""Section, role, value, path."""


def _make_block(
    api: str, section: Literal["tools", "system", "messages"], role: str, value: Any, path: str
) -> PromptBlock:
    key = role.encode() + b":" + msgspec.json.encode(canonicalize_block_value(value))
    return PromptBlock(section, role, value, path, key, render_block(value, api), _get_cache_marker(value))


def _get_cache_marker(value: object) -> str:
    """Return how long the breakpoint on a block, or on one inside its result, keeps; nothing without one."""
    inside = value.get("content") if isinstance(value, dict) else None
    for candidate in (value, *(inside if isinstance(inside, list) else ())):
        control = candidate.get("cache_control") if isinstance(candidate, dict) else None
        if isinstance(control, dict):
            return "1h" if control.get("ttl") == "1h" else "5m"
    return ""


# -- meaning -----------------------------------------------------------------------------------------------------------

_IGNORED_FIELDS = frozenset({"cache_control", "status", "annotations", "logprobs"})
_TEXT_TYPES = frozenset({"text", "input_text", "output_text"})
_ID_REPLACING_FIELDS = frozenset({"call_id", "encrypted_content", "summary", "role"})
"""An item of Responses that has one of these is the same without its ``id``."""


def canonicalize_block_value(value: Any) -> Any:
    """Return ``value`` without what does not change what it says: breakpoints, nulls, ids of items, order of fields."""
    if not isinstance(value, dict):
        return value
    if str(value.get("type")) in _TEXT_TYPES and isinstance(value.get("text"), str) and not value.get("citations"):
        return {"text": value["text"], "type": "text"}
    left_out = _IGNORED_FIELDS | {"id"} if _ID_REPLACING_FIELDS & value.keys() else _IGNORED_FIELDS
    kept_keys = sorted(
        key for key, inner in value.items() if key not in left_out and inner is not None and inner is not False
    )
    return {key: _normalize_field(key, value[key]) for key in kept_keys if key != "type" or value[key] != "message"}


def _normalize_field(key: str, value: Any) -> Any:
    if key == "content":
        return [canonicalize_block_value(item) for item in _to_block_list(value)]
    return value


def _to_block_list(content: Any) -> list[Any]:
    """Return content as a list of blocks, a plain string as one text."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return content if isinstance(content, list) else []


# -- the four APIs -----------------------------------------------------------------------------------------------------


def _filter_objects(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _iterate_tools(body: Mapping[str, Any]) -> Iterator[_PieceTuple]:
    for at, tool in enumerate(_filter_objects(body.get("tools"))):
        yield "tools", "tools", tool, f"tools.{at}"


def _iterate_anthropic_pieces(body: Mapping[str, Any]) -> Iterator[_PieceTuple]:
    yield from _iterate_tools(body)
    for at, value in enumerate(_to_block_list(body.get("system"))):
        yield "system", "system", value, f"system.{at}"
    for at, message in enumerate(_filter_objects(body.get("messages"))):
        for index, value in enumerate(_to_block_list(message.get("content"))):
            yield "messages", str(message.get("role")), value, f"messages.{at}.content.{index}"


def _iterate_chat_pieces(body: Mapping[str, Any]) -> Iterator[_PieceTuple]:
    yield from _iterate_tools(body)
    if body.get("response_format") is not None:
        yield "system", "system", body["response_format"], "response_format"
    for at, message in enumerate(_filter_objects(body.get("messages"))):
        yield "messages", str(message.get("role")), message, f"messages[{at}]"


def _iterate_responses_pieces(body: Mapping[str, Any]) -> Iterator[_PieceTuple]:
    yield from _iterate_tools(body)
    for name in ("instructions", "text"):
        if body.get(name) is not None:
            yield "system", "system", body[name], name
    for at, item in enumerate(get_input_items(body.get("input"))):
        yield "messages", str(item.get("role") or item.get("type")), item, f"input[{at}]"


def get_input_items(arguments: Any) -> list[dict[str, Any]]:
    """Return the input of a Responses request as items, a plain string as a user's message."""
    return [{"role": "user", "content": arguments}] if isinstance(arguments, str) else _filter_objects(arguments)


def _iterate_gemini_pieces(body: Mapping[str, Any]) -> Iterator[_PieceTuple]:
    yield from _iterate_tools(body)
    system = body.get("systemInstruction", body.get("system_instruction"))
    if system is not None:
        yield "system", "system", system, "system_instruction"
    for at, content in enumerate(_filter_objects(body.get("contents"))):
        for index, part in enumerate(_filter_objects(content.get("parts"))):
            yield "messages", str(content.get("role") or "user"), part, f"contents[{at}].parts[{index}]"
