"""Split a request into blocks, in the order in which the model reads them, for counting, caching and signing.

A block's key stands for its meaning and not its spelling. Two bodies have the same keys if they differ only in white
space, the order of fields, a string in place of one text block, or cache breakpoints.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec import Struct

from holdfast.testing.provider.visible_text import Rendering, render_block


class PromptBlock(Struct, frozen=True):
    """One block of a request: a tool, a part of the system prompt, or a part of a message."""

    section: Literal["tools", "system", "messages"]
    role: str
    value: Any
    path: str
    """Its path in the notation of its API (Anthropic's ``messages.1.content.0``)."""
    key: bytes
    """Canonical form of role and value; equal keys mean the same to the model."""
    rendering: Rendering
    marker: str = ""
    """``5m`` or ``1h`` if the block has a cache breakpoint."""

    @property
    def kind(self) -> str:
        """The field ``type``, or an empty string."""
        return str(self.value.get("type", "")) if isinstance(self.value, dict) else ""


def split_into_blocks(api: str, body: Mapping[str, Any]) -> list[PromptBlock]:
    """Split a body into blocks in the order of the prompt: tools, system, messages. Malformed elements are left out."""
    splitters = {
        "anthropic": _iterate_anthropic_pieces,
        "openai-chat": _iterate_chat_pieces,
        "openai-responses": _iterate_responses_pieces,
        "gemini": _iterate_gemini_pieces,
    }
    return [_make_block(api, piece) for piece in splitters[api](body)]


class _Piece(NamedTuple):
    section: Literal["tools", "system", "messages"]
    role: str
    value: Any
    path: str


def _make_block(api: str, piece: _Piece) -> PromptBlock:
    key = piece.role.encode() + b":" + msgspec.json.encode(canonicalize_block_value(piece.value))
    rendering = render_block(piece.value, api)
    return PromptBlock(*piece, key, rendering, _get_cache_marker(piece.value))


def _get_cache_marker(value: object) -> str:
    """Return the life of the breakpoint on a block, or on one inside of a result, or an empty string."""
    if not isinstance(value, dict):
        return ""
    candidates = [value]
    if isinstance(value.get("content"), list):
        candidates += value["content"]
    for candidate in candidates:
        control = candidate.get("cache_control") if isinstance(candidate, dict) else None
        if isinstance(control, dict):
            return "1h" if control.get("ttl") == "1h" else "5m"
    return ""


# -- canonical form ----------------------------------------------------------------------------------------------------

# Clients drop or add these without changing what the model reads.
_IGNORED_FIELDS = frozenset({"cache_control", "status", "annotations", "logprobs"})
_TEXT_TYPES = frozenset({"text", "input_text", "output_text"})
_ID_REPLACING_FIELDS = frozenset({"call_id", "encrypted_content", "summary", "role"})
"""Fields that identify an item of Responses better than its ``id``, which may be left out then."""


def canonicalize_block_value(value: Any) -> Any:
    """Return ``value`` in its canonical form: without breakpoints, nulls and ids of items, and with sorted fields."""
    if not isinstance(value, dict):
        return value
    if str(value.get("type")) in _TEXT_TYPES and isinstance(value.get("text"), str) and not value.get("citations"):
        return {"text": value["text"], "type": "text"}
    ignored_fields = _IGNORED_FIELDS
    if _ID_REPLACING_FIELDS & value.keys():
        ignored_fields |= {"id"}
    canonical: dict[str, Any] = {}
    for key in sorted(value):
        inner = value[key]
        is_default = inner is None or inner is False or (key == "type" and inner == "message")
        if key in ignored_fields or is_default:
            continue
        if key == "content":
            canonical[key] = [canonicalize_block_value(item) for item in _to_block_list(inner)]
        else:
            canonical[key] = inner
    return canonical


def _to_block_list(content: Any) -> list[Any]:
    """Return content as a list of blocks; a string is one text block."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return content if isinstance(content, list) else []


# -- the four APIs -----------------------------------------------------------------------------------------------------


def _filter_objects(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _iterate_tools(body: Mapping[str, Any]) -> Iterator[_Piece]:
    for index, tool in enumerate(_filter_objects(body.get("tools"))):
        yield _Piece("tools", "tools", tool, f"tools.{index}")


def _iterate_anthropic_pieces(body: Mapping[str, Any]) -> Iterator[_Piece]:
    yield from _iterate_tools(body)
    for index, value in enumerate(_to_block_list(body.get("system"))):
        yield _Piece("system", "system", value, f"system.{index}")
    for message_index, message in enumerate(_filter_objects(body.get("messages"))):
        role = str(message.get("role"))
        for index, value in enumerate(_to_block_list(message.get("content"))):
            yield _Piece("messages", role, value, f"messages.{message_index}.content.{index}")


def _iterate_chat_pieces(body: Mapping[str, Any]) -> Iterator[_Piece]:
    yield from _iterate_tools(body)
    if body.get("response_format") is not None:
        yield _Piece("system", "system", body["response_format"], "response_format")
    for index, message in enumerate(_filter_objects(body.get("messages"))):
        yield _Piece("messages", str(message.get("role")), message, f"messages[{index}]")


def _iterate_responses_pieces(body: Mapping[str, Any]) -> Iterator[_Piece]:
    yield from _iterate_tools(body)
    for name in ("instructions", "text"):
        if body.get(name) is not None:
            yield _Piece("system", "system", body[name], name)
    for index, item in enumerate(get_input_items(body.get("input"))):
        yield _Piece("messages", str(item.get("role") or item.get("type")), item, f"input[{index}]")


def get_input_items(value: Any) -> list[dict[str, Any]]:
    """Return the ``input`` of a Responses request as items; a string is a user message."""
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    return _filter_objects(value)


def _iterate_gemini_pieces(body: Mapping[str, Any]) -> Iterator[_Piece]:
    yield from _iterate_tools(body)
    system = body.get("systemInstruction", body.get("system_instruction"))
    if system is not None:
        yield _Piece("system", "system", system, "system_instruction")
    for content_index, content in enumerate(_filter_objects(body.get("contents"))):
        role = str(content.get("role") or "user")
        for index, part in enumerate(_filter_objects(content.get("parts"))):
            yield _Piece("messages", role, part, f"contents[{content_index}].parts[{index}]")
