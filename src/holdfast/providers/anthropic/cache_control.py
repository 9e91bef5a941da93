"""Explicit cache breakpoints of the Messages API: counting the ones that stand, setting new ones.

A breakpoint never stands on thinking or on empty text, there are never more than four, and a one-hour breakpoint
never follows a five-minute one. Those a body brings along stay where they are; those that messages of a log brought
along from the requests they were first said in are too many soon, so the newest stay that there is room for, or none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Raw, Struct
from msgspec.json import Decoder

from holdfast.providers.common.json.raw_json import Bytes, fields, overlay, read, write

MOST = 4
"""Breakpoints in one request, over tools, system and messages (documented)."""
HOUR = b"1h"


class _Block(Struct):
    type: str = ""
    text: str | None = None
    cache_control: Raw = Raw(b"null")
    content: Raw = Raw(b"")


class _Holder(Struct):
    content: str | list[Raw] | None = None


_HOLDER = Decoder(_Holder)
_BLOCK = Decoder(_Block)
_BLOCKS = Decoder(list[Raw])
_NAME = b'"cache_control"'


def standing(raw: Raw | bytes | None) -> list[str]:
    """Return the lifetimes (``5m`` or ``1h``) of the breakpoints in a list of blocks, in order, nested ones too."""
    data = b"" if raw is None else bytes(raw)
    if _NAME not in data:
        return []
    try:
        blocks = [_peek(block) for block in _BLOCKS.decode(data)]
    except (msgspec.DecodeError, UnicodeDecodeError):
        return []
    out: list[str] = []
    for block in blocks:
        out += standing(block.content)
        if bytes(block.cache_control) != b"null":
            out.append("1h" if HOUR in bytes(block.cache_control) else "5m")
    return out


def _peek(raw: Raw) -> _Block:
    """Return what matters of a block; one that is none counts as thinking, which is left alone."""
    try:
        return _BLOCK.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _Block("thinking")


def in_message(message: bytes) -> list[str]:
    """Return the lifetimes of the breakpoints in one wire message, or in several with commas between them."""
    if _NAME not in message:
        return []
    return [life for one in _each(message) for life in standing(fields(one, "the message").get("content"))]


def marked(message: bytes, lifetime: str = "5m") -> bytes:
    """Return ``message`` with a breakpoint behind its last part; the same bytes when there is one, or no place.

    Of several messages with commas between them the last one gets it.
    """
    *before, last = map(bytes, _each(message))
    new = _marked(last, lifetime)
    return message if new == last else b",".join([*before, new])


def _each(messages: bytes) -> list[Raw]:
    """Return each message of a stretch; what a provider compacted may be one with what stands beside it."""
    return read(_BLOCKS, b"[%b]" % messages, "the message")


def _marked(message: bytes, lifetime: str) -> bytes:
    content = read(_HOLDER, message, "the message").content
    if content is None or (isinstance(content, str) and not content.strip()):
        return message
    if isinstance(content, str):
        block = Raw(_with({"type": "text", "text": content}, lifetime))
        return write(overlay(Raw(message), {"content": [block]}))
    blocks = marked_blocks(content, lifetime)
    return message if blocks is None else write(overlay(Raw(message), {"content": blocks}))


def marked_blocks(blocks: Sequence[Raw], lifetime: str = "5m") -> list[Raw] | None:
    """Return ``blocks`` with a breakpoint on the last one that may carry it, or nothing when that changes nothing."""
    for index in range(len(blocks) - 1, -1, -1):
        block = _peek(blocks[index])
        if bytes(block.cache_control) != b"null":
            return None
        if block.type not in ("thinking", "redacted_thinking") and (block.text is None or block.text.strip()):
            one = Raw(_with(fields(blocks[index]), lifetime))
            return [*blocks[:index], one, *blocks[index + 1 :]]
    return None


def in_frame(found: Mapping[str, Any]) -> list[str]:
    """Return the lifetimes of the breakpoints in a body's fields beside its messages, the automatic one last."""
    before = [life for key in ("tools", "system") for life in standing(found.get(key))]
    automatic = bytes(found.get("cache_control", b"null"))
    return before if automatic == b"null" else [*before, "1h" if b'"1h"' in automatic else "5m"]


def newest(groups: Sequence[list[Bytes]], most: int) -> list[list[Bytes]]:
    """Return wire messages with at most so many breakpoints, those of the newest; what changes nothing is the same."""
    out = list(groups)
    for index in reversed([at for at, group in enumerate(groups) if any(_NAME in bytes(wire) for wire in group)]):
        found = sum(len(in_message(bytes(wire))) for wire in out[index])
        if found > most:
            out[index] = [unmarked(bytes(wire)) for wire in out[index]]
        else:
            most -= found
    return out


def unmarked(message: bytes) -> bytes:
    """Return ``message``, or several with commas between them, without breakpoints; the same bytes where none is."""
    return b",".join(map(_unmarked, _each(message))) if in_message(message) else message


def _unmarked(message: Raw) -> bytes:
    content = fields(message).get("content")
    return write(overlay(message, {} if content is None else {"content": _bare(content)}))


def _bare(content: Raw) -> Raw | list[Any]:
    """Return a list of blocks without breakpoints, nested ones too; other content, and what has none, as it is."""
    if not standing(content):
        return content
    return [_block(block) if bytes(block).startswith(b"{") else block for block in _BLOCKS.decode(content)]


def _block(block: Raw) -> Raw | dict[str, Any]:
    found = fields(block)
    if "cache_control" not in found and not standing(found.get("content")):
        return block
    return {key: _bare(raw) if key == "content" else raw for key, raw in found.items() if key != "cache_control"}


def kept_marks(block: dict[str, Any], stood: Raw) -> dict[str, Any]:
    """Return ``block`` with the breakpoint that stood inside ``stood``, which it replaces; as it is if none went."""
    if _NAME not in bytes(stood) or "cache_control" in block:
        return block
    inside = standing(fields(stood).get("content"))
    if not inside or standing(write(block.get("content"))):
        return block
    return block | {"cache_control": _marker(inside[-1])}


def _with(block: dict[str, Raw] | dict[str, str], lifetime: str) -> bytes:
    return write({**block, "cache_control": _marker(lifetime)})


def _marker(lifetime: str) -> dict[str, str]:
    return {"type": "ephemeral"} | ({"ttl": lifetime} if lifetime != "5m" else {})
