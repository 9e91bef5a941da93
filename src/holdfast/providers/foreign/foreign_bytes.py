"""Drop the raw bytes that values carry from one API before they are sent to another.

The reader of each API keeps the bytes of every part, because they are sent again unchanged. A caller may hold such
values and use them with another provider; then their bytes give way to what they mean.
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
"""The APIs that write texts and calls with a type, for types that prove it without looking at other fields."""
_WRITERS_OF_FIELDS = tuple([spec.api for spec in API_SPECS.values() if spec.blocks.own_message_fields])
"""The APIs that write message fields beside the content."""
_CITATION_FIELDS = ("citations",)
_CITATION_AND_CACHE_FIELDS = (*_CITATION_FIELDS, "cache_control")
"""Fields of text blocks that only the Messages API documents."""
_BLOCK_START = re.compile(rb'\s*\{\s*(?:"id"\s*:\s*"[^"]*"\s*,\s*)?"type"\s*:\s*"(\w+)"')
"""How most blocks and calls begin. A match gives the type without parsing the block, of which there may be many."""
_UNKNOWN_WRITERS: tuple[str, ...] = ()


def drop_foreign_bytes_of_messages(messages: Sequence[Message], api: str) -> list[Message]:
    """Return messages without bytes of APIs other than ``api``; messages that have none are the same objects.

    A cache breakpoint on a text proves nothing by itself, since routers accept it in Chat. Once anything else in the
    list is certainly foreign, texts with a breakpoint count as Anthropic's too.
    """
    new_messages = [drop_foreign_bytes(message, api) for message in messages]
    if all(map(is_, new_messages, messages)):
        return new_messages
    return [drop_foreign_bytes(message, api, anthropic_fields=_CITATION_AND_CACHE_FIELDS) for message in new_messages]


def drop_foreign_bytes(message: Message, api: str, anthropic_fields: Sequence[str] = _CITATION_FIELDS) -> Message:
    """Return ``message`` without bytes of APIs other than ``api``, the same object if it has none.

    A text block with one of ``anthropic_fields`` counts as Anthropic's.
    """
    for part in message.parts:
        if _is_foreign(part, api, anthropic_fields):
            return strip_foreign_content(message, api)
    return message


def _is_foreign(part: Part, api: str, anthropic_fields: Sequence[str]) -> bool:
    """Return whether a part certainly has bytes of another API, by itself or in the content of a result."""
    if isinstance(part, Opaque) and part.kind == "message":
        return False  # no reader could decode it, so let the provider say what is wrong
    if isinstance(part, Opaque) and part.kind == "options":
        return api != ANTHROPIC_SPEC.api
    if part.raw is not None:
        if is_message_field(part):
            writers = _WRITERS_OF_FIELDS
        else:
            writers = _find_writers(part.raw, anthropic_fields)
        return bool(writers) and api not in writers
    return isinstance(part, ToolResult) and any(_is_foreign(inner, api, anthropic_fields) for inner in part.content)


def _find_writers(raw: Raw, anthropic_fields: Sequence[str]) -> tuple[str, ...]:
    """Return the APIs that write a part in the form of ``raw``, or an empty tuple if that is not certain."""
    match = _BLOCK_START.match(raw)
    if match is not None:
        writers = _find_writers_by_type(match[1])
    else:
        writers = _UNKNOWN_WRITERS
    # The bytes are searched first and parsed only on a hit, which may be a word of the text itself.
    may_be_anthropic = False
    if writers == _WRITERS_BY_TYPE["text"]:
        may_be_anthropic = any(b'"%b"' % field.encode() in bytes(raw) for field in anthropic_fields)
    if writers and not may_be_anthropic:
        return writers
    try:
        block = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _UNKNOWN_WRITERS
    if may_be_anthropic:
        if any(field in block for field in anthropic_fields):
            return (ANTHROPIC_SPEC.api,)
        return writers
    if isinstance(block, dict):
        return _classify_writers_by_fields(block)
    return _UNKNOWN_WRITERS


@lru_cache
def _find_writers_by_type(type_: bytes) -> tuple[str, ...]:
    """Return the APIs that write blocks of a type, or an empty tuple for types that prove nothing."""
    return _classify_writers({"type": type_.decode()})


def _classify_writers(block: dict[str, Any]) -> tuple[str, ...]:
    block_type = block.get("type")
    if isinstance(block_type, str) and _WRITERS_BY_TYPE.get(block_type):
        return _WRITERS_BY_TYPE[block_type]
    origin = classify_any_block(block)
    return _UNKNOWN_WRITERS if origin is None else origin.apis


def _classify_writers_by_fields(block: dict[str, Any]) -> tuple[str, ...]:
    """Return the APIs that write a block without a telling type, by its fields."""
    if "tool_call_id" in block or isinstance(block.get("function"), dict):
        return _WRITERS_OF_FIELDS
    if "role" in block and "content" in block:
        return (OPENAI_RESPONSES_SPEC.api,)
    if "type" not in block and isinstance(block.get("text"), str):
        return (GEMINI_SPEC.api,)
    return _classify_writers(block)
