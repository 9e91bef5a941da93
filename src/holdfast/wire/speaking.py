"""Values that one API's reader made, said by another: its bytes give way to what they say.

``messages`` of each API keeps the bytes of every part, for they go out again as they came. A caller may hold such
values and talk to another provider with them.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import Raw

from holdfast.model.messages import Message
from holdfast.model.parts import Part, ToolResult
from holdfast.view.foreign import native
from holdfast.wire.whose import kind_of

_A, _C, _R, _G = "anthropic", "openai-chat", "openai-responses", "gemini"
_WORDS = {
    b"text": (_A, _C), b"function": (_C,), b"input_text": (_R,), b"output_text": (_R,), b"message": (_R,),
    b"search_result": (_A,),
}  # fmt: skip
"""Who writes words and calls so, by the type of the block, or of the item around it."""
_SERVERS = {b"_tool_use": (_A,), b"_tool_result": (_A,), b"_call": (_R,), b"_call_output": (_R,)}
"""Who writes the calls of servers and what came of them, by how their types end."""
_BEGINNING = re.compile(rb'\s*\{\s*(?:"id"\s*:\s*"[^"]*"\s*,\s*)?"type"\s*:\s*"(\w+)"')
"""How most blocks and calls begin: those need not be read."""
_NOBODY: tuple[str, ...] = ()


def speaking(message: Message, api: str) -> Message:
    """Return ``message`` with no bytes of other APIs than ``api`` in it; the same where it has none."""
    return native(message, api) if any(_is_foreign(part, api) for part in message.parts) else message


def _is_foreign(part: Part, api: str) -> bool:
    if part.raw is not None:
        writers = _writers(part.raw)
        return bool(writers) and api not in writers
    return isinstance(part, ToolResult) and any(_is_foreign(inner, api) for inner in part.content)


def _writers(raw: Raw) -> tuple[str, ...]:
    """Return the APIs that write a part in these bytes, or nothing where that is not sure."""
    found = _BEGINNING.match(raw)
    known = _by_type(found[1]) if found is not None else _NOBODY
    if known:
        return known
    try:
        block = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _NOBODY
    return _writers_of(block) if isinstance(block, dict) else _NOBODY


@lru_cache
def _by_type(type_: bytes) -> tuple[str, ...]:
    """Return who surely writes blocks of a type; nothing for types that several have, or nobody known."""
    kind = kind_of({"type": type_.decode()})
    if kind is not None:
        return kind.apis
    ends = (apis for end, apis in _SERVERS.items() if type_.endswith(end))
    return _WORDS.get(type_) or next(ends, _NOBODY)


def _writers_of(block: dict[str, Any]) -> tuple[str, ...]:
    if "tool_call_id" in block or isinstance(block.get("function"), dict):
        return (_C,)
    if "type" not in block and isinstance(block.get("text"), str):
        return (_G,)
    kind = kind_of(block)
    if kind is not None:
        return kind.apis
    type_ = block.get("type")
    return _WORDS.get(type_.encode(), _NOBODY) if isinstance(type_, str) else _NOBODY
