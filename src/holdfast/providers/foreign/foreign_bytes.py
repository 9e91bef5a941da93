"""Values that one API's reader made, said by another: its bytes give way to what they say.

``messages`` of each API keeps the bytes of every part, for they go out again as they came. A caller may hold such
values and talk to another provider with them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from operator import is_
from typing import Any

import msgspec
from msgspec import Raw

from holdfast.messages.equality import is_message_field
from holdfast.messages.message import Message
from holdfast.messages.parts import Opaque, Part, ToolResult
from holdfast.messages.strip_foreign import strip_foreign_content
from holdfast.providers.anthropic.spec import ANTHROPIC_SPEC
from holdfast.providers.foreign.foreign_blocks import classify_any_block
from holdfast.providers.gemini.spec import GEMINI_SPEC
from holdfast.providers.openai_responses.spec import OPENAI_RESPONSES_SPEC
from holdfast.providers.registry import API_SPECS


def _list_writers_by_type() -> dict[str, tuple[str, ...]]:
    writers: dict[str, tuple[str, ...]] = {}
    for spec in API_SPECS.values():
        for type_ in spec.blocks.writes_block_types:
            writers[type_] = (*writers.get(type_, ()), spec.api)
    return writers


_WRITERS_BY_TYPE = _list_writers_by_type()
"""Who writes words and calls so, by types that tell it of bytes alone."""
_WRITERS_OF_FIELDS = tuple([spec.api for spec in API_SPECS.values() if spec.blocks.own_message_fields])
"""Who writes fields beside the content."""
_CITATION_FIELDS = ("citations",)
_CITATION_AND_CACHE_FIELDS = (*_CITATION_FIELDS, "cache_control")
"""Fields of words in the Messages API."""
_BLOCK_START = re.compile(rb'\s*\{\s*(?:"id"\s*:\s*"[^"]*"\s*,\s*)?"type"\s*:\s*"(\w+)"')
"""How most blocks and calls begin: those need not be read."""
_UNKNOWN_WRITERS: tuple[str, ...] = ()


def drop_foreign_bytes_of_messages(messages: Sequence[Message], api: str) -> list[Message]:
    """Return messages with no bytes of other APIs than ``api`` in them; those that have none are the same.

    A breakpoint on words is any API's as long as nothing beside it is surely another's: routers take it in Chat.
    """
    new_messages = [drop_foreign_bytes(message, api) for message in messages]
    if all(map(is_, new_messages, messages)):
        return new_messages
    return [drop_foreign_bytes(message, api, anthropic_fields=_CITATION_AND_CACHE_FIELDS) for message in new_messages]


def drop_foreign_bytes(message: Message, api: str, anthropic_fields: Sequence[str] = _CITATION_FIELDS) -> Message:
    """Return ``message`` with no bytes of other APIs than ``api`` in it; the same where it has none.

    Words are the Messages API's by a field of those that are ``anthropic_fields``.
    """
    return (
        strip_foreign_content(message, api)
        if any(_is_foreign(part, api, anthropic_fields) for part in message.parts)
        else message
    )


def _is_foreign(part: Part, api: str, anthropic_fields: Sequence[str]) -> bool:
    if isinstance(part, Opaque) and part.kind == "message":
        return False  # nobody could read it: its provider says what is wrong with it
    if isinstance(part, Opaque) and part.kind == "options":
        return api != ANTHROPIC_SPEC.api
    if part.raw is not None:
        writers = _WRITERS_OF_FIELDS if is_message_field(part) else _find_writers(part.raw, anthropic_fields)
        return bool(writers) and api not in writers
    return isinstance(part, ToolResult) and any(_is_foreign(inner, api, anthropic_fields) for inner in part.content)


def _find_writers(raw: Raw, anthropic_fields: Sequence[str]) -> tuple[str, ...]:
    """Return the APIs that write a part in these bytes, or nothing where that is not sure."""
    match = _BLOCK_START.match(raw)
    writers = _find_writers_by_type(match[1]) if match is not None else _UNKNOWN_WRITERS
    is_marked = writers == _WRITERS_BY_TYPE["text"] and any(
        b'"%b"' % mark.encode() in bytes(raw) for mark in anthropic_fields
    )
    if writers and not is_marked:
        return writers
    try:
        block = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _UNKNOWN_WRITERS
    if is_marked:
        return (ANTHROPIC_SPEC.api,) if any(mark in block for mark in anthropic_fields) else writers
    return _classify_writers_by_fields(block) if isinstance(block, dict) else _UNKNOWN_WRITERS


@lru_cache
def _find_writers_by_type(type_: bytes) -> tuple[str, ...]:
    """Return who surely writes blocks of a type; nothing for types that several have, or nobody known."""
    return _classify_writers({"type": type_.decode()})


def _classify_writers(block: dict[str, Any]) -> tuple[str, ...]:
    kind, type_ = classify_any_block(block), block.get("type")
    alike = _WRITERS_BY_TYPE.get(type_, _UNKNOWN_WRITERS) if isinstance(type_, str) else _UNKNOWN_WRITERS
    return alike or (_UNKNOWN_WRITERS if kind is None else kind.apis)


def _classify_writers_by_fields(block: dict[str, Any]) -> tuple[str, ...]:
    if "tool_call_id" in block or isinstance(block.get("function"), dict):
        return _WRITERS_OF_FIELDS
    if "role" in block and "content" in block:
        return (OPENAI_RESPONSES_SPEC.api,)
    if "type" not in block and isinstance(block.get("text"), str):
        return (GEMINI_SPEC.api,)
    return _classify_writers(block)
