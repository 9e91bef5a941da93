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

from holdfast.messages.equality import is_beside
from holdfast.messages.message import Message
from holdfast.messages.parts import Opaque, Part, ToolResult
from holdfast.messages.strip_foreign import native
from holdfast.providers.common.foreign.foreign_blocks import known

_A, _C, _R, _G = "anthropic", "openai-chat", "openai-responses", "gemini"
_ALIKE = {"text": (_A, _C), "refusal": (_C,), "function": (_C,), "custom": (_C,)}
"""Who writes words and calls so, by types that tell it of bytes alone."""
_CITED = ("citations",)
_UNMARKED = (*_CITED, "cache_control")
"""Fields of words in the Messages API."""
_BEGINNING = re.compile(rb'\s*\{\s*(?:"id"\s*:\s*"[^"]*"\s*,\s*)?"type"\s*:\s*"(\w+)"')
"""How most blocks and calls begin: those need not be read."""
_NOBODY: tuple[str, ...] = ()


def all_speaking(messages: Sequence[Message], api: str) -> list[Message]:
    """Return messages with no bytes of other APIs than ``api`` in them; those that have none are the same.

    A breakpoint on words is any API's as long as nothing beside it is surely another's: routers take it in Chat.
    """
    said = [speaking(one, api) for one in messages]
    if all(map(is_, said, messages)):
        return said
    return [speaking(one, api, marked=_UNMARKED) for one in said]


def speaking(message: Message, api: str, marked: Sequence[str] = _CITED) -> Message:
    """Return ``message`` with no bytes of other APIs than ``api`` in it; the same where it has none.

    Words are the Messages API's by a field of those that are ``marked``.
    """
    return native(message, api) if any(_is_foreign(part, api, marked) for part in message.parts) else message


def _is_foreign(part: Part, api: str, marked: Sequence[str]) -> bool:
    if isinstance(part, Opaque) and part.kind == "message":
        return False  # nobody could read it: its provider says what is wrong with it
    if isinstance(part, Opaque) and part.kind == "options":
        return api != _A
    if part.raw is not None:
        writers = (_C,) if is_beside(part) else _writers(part.raw, marked)
        return bool(writers) and api not in writers
    return isinstance(part, ToolResult) and any(_is_foreign(inner, api, marked) for inner in part.content)


def _writers(raw: Raw, marked: Sequence[str]) -> tuple[str, ...]:
    """Return the APIs that write a part in these bytes, or nothing where that is not sure."""
    found = _BEGINNING.match(raw)
    writers = _by_type(found[1]) if found is not None else _NOBODY
    is_marked = writers == _ALIKE["text"] and any(b'"%b"' % mark.encode() in bytes(raw) for mark in marked)
    if writers and not is_marked:
        return writers
    try:
        block = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _NOBODY
    if is_marked:
        return (_A,) if any(mark in block for mark in marked) else writers
    return _writers_of(block) if isinstance(block, dict) else _NOBODY


@lru_cache
def _by_type(type_: bytes) -> tuple[str, ...]:
    """Return who surely writes blocks of a type; nothing for types that several have, or nobody known."""
    return _apis({"type": type_.decode()})


def _apis(block: dict[str, Any]) -> tuple[str, ...]:
    kind, type_ = known(block), block.get("type")
    alike = _ALIKE.get(type_, _NOBODY) if isinstance(type_, str) else _NOBODY
    return alike or (_NOBODY if kind is None else kind.apis)


def _writers_of(block: dict[str, Any]) -> tuple[str, ...]:
    if "tool_call_id" in block or isinstance(block.get("function"), dict):
        return (_C,)
    if "role" in block and "content" in block:
        return (_R,)
    if "type" not in block and isinstance(block.get("text"), str):
        return (_G,)
    return _apis(block)
