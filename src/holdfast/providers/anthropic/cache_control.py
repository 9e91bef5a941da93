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

from holdfast.providers.common.json.raw_json import (
    JsonBytes,
    decode_json,
    decode_json_fields,
    encode_json,
    overlay_fields,
)

MAX_BREAKPOINTS = 4
"""Breakpoints in one request, over tools, system and messages (documented)."""
HOUR_TTL = b"1h"


class _BlockPeek(Struct):
    type: str = ""
    text: str | None = None
    cache_control: Raw = Raw(b"null")
    content: Raw = Raw(b"")


class _MessageContent(Struct):
    content: str | list[Raw] | None = None


_CONTENT_DECODER = Decoder(_MessageContent)
_BLOCK_DECODER = Decoder(_BlockPeek)
_RAW_LIST_DECODER = Decoder(list[Raw])
_CACHE_CONTROL_KEY = b'"cache_control"'


def list_breakpoint_ttls(raw: Raw | bytes | None) -> list[str]:
    """Return the lifetimes (``5m`` or ``1h``) of the breakpoints in a list of blocks, in order, nested ones too."""
    data = b"" if raw is None else bytes(raw)
    if _CACHE_CONTROL_KEY not in data:
        return []
    try:
        blocks = [_peek_block(block) for block in _RAW_LIST_DECODER.decode(data)]
    except (msgspec.DecodeError, UnicodeDecodeError):
        return []
    out: list[str] = []
    for block in blocks:
        out += list_breakpoint_ttls(block.content)
        if bytes(block.cache_control) != b"null":
            out.append("1h" if HOUR_TTL in bytes(block.cache_control) else "5m")
    return out


def _peek_block(raw: Raw) -> _BlockPeek:
    """Return what matters of a block; one that is none counts as thinking, which is left alone."""
    try:
        return _BLOCK_DECODER.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _BlockPeek("thinking")


def list_message_breakpoint_ttls(message: bytes) -> list[str]:
    """Return the lifetimes of the breakpoints in one wire message, or in several with commas between them."""
    if _CACHE_CONTROL_KEY not in message:
        return []
    return [
        life
        for raw_message in _split_messages(message)
        for life in list_breakpoint_ttls(decode_json_fields(raw_message, "the message").get("content"))
    ]


def add_message_breakpoint(message: bytes, lifetime: str = "5m") -> bytes:
    """Return ``message`` with a breakpoint behind its last part; the same bytes when there is one, or no place.

    Of several messages with commas between them the last one gets it.
    """
    *before, last = map(bytes, _split_messages(message))
    new = _add_breakpoint_to_message(last, lifetime)
    return message if new == last else b",".join([*before, new])


def _split_messages(messages: bytes) -> list[Raw]:
    """Return each message of a stretch; what a provider compacted may be one with what stands beside it."""
    return decode_json(_RAW_LIST_DECODER, b"[%b]" % messages, "the message")


def _add_breakpoint_to_message(message: bytes, lifetime: str) -> bytes:
    content = decode_json(_CONTENT_DECODER, message, "the message").content
    if content is None or (isinstance(content, str) and not content.strip()):
        return message
    if isinstance(content, str):
        block = Raw(_encode_block_with_breakpoint({"type": "text", "text": content}, lifetime))
        return encode_json(overlay_fields(Raw(message), {"content": [block]}))
    blocks = add_breakpoint_to_blocks(content, lifetime)
    return message if blocks is None else encode_json(overlay_fields(Raw(message), {"content": blocks}))


def add_breakpoint_to_blocks(blocks: Sequence[Raw], lifetime: str = "5m") -> list[Raw] | None:
    """Return ``blocks`` with a breakpoint on the last one that may carry it, or nothing when that changes nothing."""
    for index in range(len(blocks) - 1, -1, -1):
        block = _peek_block(blocks[index])
        if bytes(block.cache_control) != b"null":
            return None
        if block.type not in ("thinking", "redacted_thinking") and (block.text is None or block.text.strip()):
            new_block = Raw(_encode_block_with_breakpoint(decode_json_fields(blocks[index]), lifetime))
            return [*blocks[:index], new_block, *blocks[index + 1 :]]
    return None


def list_setup_breakpoint_ttls(fields: Mapping[str, Any]) -> list[str]:
    """Return the lifetimes of the breakpoints in a body's fields beside its messages, the automatic one last."""
    before = [life for key in ("tools", "system") for life in list_breakpoint_ttls(fields.get(key))]
    automatic = bytes(fields.get("cache_control", b"null"))
    return before if automatic == b"null" else [*before, "1h" if b'"1h"' in automatic else "5m"]


def keep_newest_breakpoints(groups: Sequence[list[JsonBytes]], max_breakpoints: int) -> list[list[JsonBytes]]:
    """Return wire messages with at most so many breakpoints, those of the newest; what changes nothing is the same."""
    out = list(groups)
    for index in reversed(
        [at for at, group in enumerate(groups) if any(_CACHE_CONTROL_KEY in bytes(wire) for wire in group)]
    ):
        breakpoint_count = sum(len(list_message_breakpoint_ttls(bytes(wire))) for wire in out[index])
        if breakpoint_count > max_breakpoints:
            out[index] = [strip_message_breakpoints(bytes(wire)) for wire in out[index]]
        else:
            max_breakpoints -= breakpoint_count
    return out


def strip_message_breakpoints(message: bytes) -> bytes:
    """Return ``message``, or several with commas between them, without breakpoints; the same bytes where none is."""
    return (
        b",".join(map(_strip_breakpoints, _split_messages(message)))
        if list_message_breakpoint_ttls(message)
        else message
    )


def _strip_breakpoints(message: Raw) -> bytes:
    content = decode_json_fields(message).get("content")
    return encode_json(
        overlay_fields(message, {} if content is None else {"content": _strip_content_breakpoints(content)})
    )


def _strip_content_breakpoints(content: Raw) -> Raw | list[Any]:
    """Return a list of blocks without breakpoints, nested ones too; other content, and what has none, as it is."""
    if not list_breakpoint_ttls(content):
        return content
    return [
        _strip_block_breakpoint(block) if bytes(block).startswith(b"{") else block
        for block in _RAW_LIST_DECODER.decode(content)
    ]


def _strip_block_breakpoint(block: Raw) -> Raw | dict[str, Any]:
    raw_fields = decode_json_fields(block)
    if "cache_control" not in raw_fields and not list_breakpoint_ttls(raw_fields.get("content")):
        return block
    return {
        key: _strip_content_breakpoints(raw) if key == "content" else raw
        for key, raw in raw_fields.items()
        if key != "cache_control"
    }


def keep_nested_breakpoint(block: dict[str, Any], replaced: Raw) -> dict[str, Any]:
    """Return ``block`` with the breakpoint that stood inside ``replaced``, which it replaces; as it is if none went."""
    if _CACHE_CONTROL_KEY not in bytes(replaced) or "cache_control" in block:
        return block
    inside = list_breakpoint_ttls(decode_json_fields(replaced).get("content"))
    if not inside or list_breakpoint_ttls(encode_json(block.get("content"))):
        return block
    return block | {"cache_control": _build_cache_control(inside[-1])}


def _encode_block_with_breakpoint(block: dict[str, Raw] | dict[str, str], lifetime: str) -> bytes:
    return encode_json({**block, "cache_control": _build_cache_control(lifetime)})


def _build_cache_control(lifetime: str) -> dict[str, str]:
    return {"type": "ephemeral"} | ({"ttl": lifetime} if lifetime != "5m" else {})
