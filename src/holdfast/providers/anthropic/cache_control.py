"""Explicit cache breakpoints of the Messages API: list, add, limit and remove them.

The API accepts at most four, none on thinking, empty text or deferred tools, and no one-hour breakpoint after a
five-minute one.
Breakpoints of a request body stay where the client put them. Messages of the log still carry the breakpoints of the
requests they first appeared in; those are soon too many, so only the newest that fit are kept, or none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Raw, Struct
from msgspec.json import Decoder

from holdfast.providers.api_spec import BreakpointFormat
from holdfast.providers.common.json.raw_json import (
    JsonBytes,
    decode_json,
    decode_json_fields,
    encode_json,
    overlay_fields,
)
from holdfast.state.plan import PlanOptions

MAX_BREAKPOINTS = 4
"""Breakpoints in one request, over tools, system and messages (documented)."""
HOUR_TTL = b"1h"


class _BlockPeek(Struct):
    type: str = ""
    text: str | None = None
    cache_control: Raw = Raw(b"null")
    defer_loading: Raw = Raw(b"false")
    content: Raw = Raw(b"")


class _MessageContent(Struct):
    content: str | list[Raw] | None = None


_CONTENT_DECODER = Decoder(_MessageContent)
_BLOCK_DECODER = Decoder(_BlockPeek)
_RAW_LIST_DECODER = Decoder(list[Raw])
_CACHE_CONTROL_KEY = b'"cache_control"'


def list_breakpoint_ttls(raw: Raw | bytes | None) -> list[str]:
    """Return the lifetimes (``5m`` or ``1h``) of the breakpoints in a list of blocks, in order and nested ones too."""
    data = b"" if raw is None else bytes(raw)
    # The bytes are searched first and parsed only on a hit, since most lists have no breakpoint.
    if _CACHE_CONTROL_KEY not in data:
        return []
    try:
        blocks = [_peek_block(block) for block in _RAW_LIST_DECODER.decode(data)]
    except (msgspec.DecodeError, UnicodeDecodeError):
        return []
    lifetimes: list[str] = []
    for block in blocks:
        lifetimes += list_breakpoint_ttls(block.content)  # blocks inside a tool result
        if bytes(block.cache_control) != b"null":
            if HOUR_TTL in bytes(block.cache_control):
                lifetimes.append("1h")
            else:
                lifetimes.append("5m")
    return lifetimes


def _peek_block(raw: Raw) -> _BlockPeek:
    """Read the fields of a block that matter here. An unreadable block is taken for thinking, which gets no
    breakpoint.
    """
    try:
        return _BLOCK_DECODER.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _BlockPeek("thinking")


def list_message_breakpoint_ttls(message: bytes) -> list[str]:
    """Return the lifetimes of the breakpoints in one wire message, or in several joined by commas."""
    if _CACHE_CONTROL_KEY not in message:
        return []
    lifetimes: list[str] = []
    for raw_message in _split_messages(message):
        lifetimes += list_breakpoint_ttls(decode_json_fields(raw_message, "the message").get("content"))
    return lifetimes


def add_message_breakpoint(message: bytes, lifetime: str = "5m", part_count: int | None = None) -> bytes:
    """Return ``message`` with a breakpoint after its last part, or after its first ``part_count`` parts.

    The same bytes come back if it has one there already, or no place for it. Of several messages joined by commas, the
    last one gets the breakpoint.
    """
    *before, last = map(bytes, _split_messages(message))
    new = _add_breakpoint_to_message(last, lifetime, part_count)
    return message if new == last else b",".join([*before, new])


def _split_messages(messages: bytes) -> list[Raw]:
    """Split messages joined by commas: a stored compaction of the provider may hold a message beside it."""
    return decode_json(_RAW_LIST_DECODER, b"[%b]" % messages, "the message")


def _add_breakpoint_to_message(message: bytes, lifetime: str, part_count: int | None = None) -> bytes:
    content = decode_json(_CONTENT_DECODER, message, "the message").content
    if content is None:
        return message
    if isinstance(content, str):
        if not content.strip():
            return message
        # Only a block can carry a breakpoint, so the string becomes one.
        new_blocks = [Raw(_encode_block_with_breakpoint({"type": "text", "text": content}, lifetime))]
        return encode_json(overlay_fields(Raw(message), {"content": new_blocks}))
    blocks = add_breakpoint_to_blocks(content[:part_count], lifetime)
    if blocks is None:
        return message
    if part_count is not None:
        blocks += content[part_count:]
    return encode_json(overlay_fields(Raw(message), {"content": blocks}))


def add_breakpoint_to_blocks(blocks: Sequence[Raw], lifetime: str = "5m") -> list[Raw] | None:
    """Return ``blocks`` with a breakpoint on the last one that may carry it, or None if nothing changes."""
    for index in range(len(blocks) - 1, -1, -1):
        block = _peek_block(blocks[index])
        if bytes(block.cache_control) != b"null":
            return None
        # The API refuses a breakpoint on thinking, on empty text and on a tool that is loaded later.
        is_thinking = block.type in ("thinking", "redacted_thinking")
        is_blank = block.text is not None and not block.text.strip()
        is_deferred = bytes(block.defer_loading) == b"true"
        if is_thinking or is_blank or is_deferred:
            continue
        block_fields = decode_json_fields(blocks[index])
        new_blocks = list(blocks)
        new_blocks[index] = Raw(_encode_block_with_breakpoint(block_fields, lifetime))
        return new_blocks
    return None


def list_setup_breakpoint_ttls(fields: Mapping[str, Any]) -> list[str]:
    """Return the lifetimes of the breakpoints in a body's fields beside its messages, the automatic one last."""
    lifetimes = [*list_breakpoint_ttls(fields.get("tools")), *list_breakpoint_ttls(fields.get("system"))]
    automatic_ttl = _get_automatic_ttl(fields)
    if automatic_ttl:
        lifetimes.append(automatic_ttl)
    return lifetimes


def _get_automatic_ttl(fields: Mapping[str, Any]) -> str:
    """Return the lifetime of the automatic breakpoint (``5m`` or ``1h``), or an empty string without one.

    A client asks for it with ``cache_control`` at the top of the body, such as ``{"type": "ephemeral", "ttl": "1h"}``.
    The API then places a breakpoint on the last block of the request by itself. It counts like the others.
    """
    cache_control = bytes(fields.get("cache_control", b"null"))
    if cache_control == b"null":
        return ""
    # The bytes of the whole value are searched: the lifetime is the only string in it that can be "1h".
    return "1h" if b'"1h"' in cache_control else "5m"


def keep_newest_breakpoints(groups: Sequence[list[JsonBytes]], max_breakpoints: int) -> list[list[JsonBytes]]:
    """Return groups of wire messages with at most ``max_breakpoints`` breakpoints, the newest.

    A message keeps all of its breakpoints or none. Unchanged groups are the same objects.
    """
    kept_groups = list(groups)
    # From the newest back, because the newest breakpoints cover the longest prefixes.
    for index in reversed(range(len(groups))):
        group = groups[index]
        if not any(_CACHE_CONTROL_KEY in bytes(wire) for wire in group):
            continue
        breakpoint_count = sum(len(list_message_breakpoint_ttls(bytes(wire))) for wire in group)
        if breakpoint_count > max_breakpoints:
            kept_groups[index] = [strip_message_breakpoints(bytes(wire)) for wire in group]
        else:
            max_breakpoints -= breakpoint_count
    return kept_groups


def _keep_newest_beside_setup(fields: Mapping[str, Raw], groups: list[list[JsonBytes]]) -> list[list[JsonBytes]]:
    """Return the groups with the newest breakpoints that the API takes beside those of the setup in ``fields``."""
    return keep_newest_breakpoints(groups, MAX_BREAKPOINTS - len(list_setup_breakpoint_ttls(fields)))


def _strip_all_breakpoints(groups: list[list[JsonBytes]]) -> list[list[JsonBytes]]:
    """Return the groups without breakpoints."""
    return keep_newest_breakpoints(groups, 0)


def strip_message_breakpoints(message: bytes) -> bytes:
    """Return ``message``, or several joined by commas, without breakpoints; the same bytes if it has none."""
    if not list_message_breakpoint_ttls(message):
        return message
    return b",".join(map(_strip_breakpoints, _split_messages(message)))


def _strip_breakpoints(message: Raw) -> bytes:
    content = decode_json_fields(message).get("content")
    if content is None:
        new_fields = {}
    else:
        new_fields = {"content": _strip_content_breakpoints(content)}
    return encode_json(overlay_fields(message, new_fields))


def _strip_content_breakpoints(content: Raw) -> Raw | list[Any]:
    """Return a list of blocks without breakpoints, nested ones included; any other content as it is."""
    if not list_breakpoint_ttls(content):
        return content
    blocks: list[Any] = []
    for block in _RAW_LIST_DECODER.decode(content):
        is_object = bytes(block).startswith(b"{")
        blocks.append(_strip_block_breakpoint(block) if is_object else block)
    return blocks


def _strip_block_breakpoint(block: Raw) -> Raw | dict[str, Any]:
    fields: dict[str, Any] = dict(decode_json_fields(block))
    if "cache_control" not in fields and not list_breakpoint_ttls(fields.get("content")):
        return block
    fields.pop("cache_control", None)
    if "content" in fields:
        fields["content"] = _strip_content_breakpoints(fields["content"])
    return fields


def keep_nested_breakpoint(block: dict[str, Any], replaced: Raw) -> dict[str, Any]:
    """Return ``block`` with the breakpoint that was nested in ``replaced``, the block it replaces.

    A result that is shortened loses its inner blocks; the client's breakpoint on one of them moves to the result, so
    that the cached prefix still ends there. ``block`` is returned as it is if no nested breakpoint was lost.
    """
    if _CACHE_CONTROL_KEY not in bytes(replaced) or "cache_control" in block:
        return block
    nested_lifetimes = list_breakpoint_ttls(decode_json_fields(replaced).get("content"))
    if not nested_lifetimes or list_breakpoint_ttls(encode_json(block.get("content"))):
        return block
    return block | {"cache_control": _build_cache_control(nested_lifetimes[-1])}


def _encode_block_with_breakpoint(block: dict[str, Raw] | dict[str, str], lifetime: str) -> bytes:
    return encode_json({**block, "cache_control": _build_cache_control(lifetime)})


def _build_cache_control(lifetime: str) -> dict[str, str]:
    # Five minutes is the default. Without a ``ttl`` the marker is also valid for servers that do not know the field.
    if lifetime == "5m":
        return {"type": "ephemeral"}
    return {"type": "ephemeral", "ttl": lifetime}


# -- planned breakpoints -----------------------------------------------------------------------------------------------

_SETUP_POSITION = -1
"""Stands for the setup (tools and system prompt) among the positions of messages."""


def place_planned_breakpoints(
    fields: Mapping[str, Raw], groups: list[list[JsonBytes]], options: PlanOptions
) -> dict[str, bytes]:
    """Add the planned breakpoints to ``groups`` in place; return the setup fields that got one, encoded anew.

    ``groups`` are the encoded elements of each message, and ``fields`` the other fields of the body. The planner orders
    its positions by worth: the first one is placed first, then the one on the setup, then the others, until the request
    has as many as the API takes, those of the client included.
    """
    # Converted once: each conversion of a ``Raw`` copies the message.
    encoded_groups = [[bytes(element) for element in group] for group in groups]
    used_count = len(list_setup_breakpoint_ttls(fields))
    for encoded_group in encoded_groups:
        used_count += sum(len(list_message_breakpoint_ttls(element)) for element in encoded_group)
    positions = []
    for position in options.cache_breakpoints:
        if 0 <= position < len(groups) and groups[position]:
            positions.append(position)
    setup_positions = [_SETUP_POSITION] if options.setup_breakpoint else []
    # The API refuses a one-hour breakpoint after a five-minute one. So a new breakpoint that is before the last
    # one-hour breakpoint of the client gets an hour too. An automatic one is after all messages.
    if _get_automatic_ttl(fields) == "1h":
        last_hour_position = len(groups)
    else:
        last_hour_position = _find_last_hour_position(encoded_groups)
    new_fields: dict[str, bytes] = {}
    for position in (*positions[:1], *setup_positions, *positions[1:]):
        if used_count >= MAX_BREAKPOINTS:
            break
        if position == _SETUP_POSITION:
            new_fields = _add_setup_breakpoint(fields, "1h" if last_hour_position >= 0 else "5m")
            used_count += bool(new_fields)
            continue
        old_element = encoded_groups[position][-1]
        part_count: int | None = None
        if options.inner_breakpoint is not None and options.inner_breakpoint[0] == position:
            part_count = options.inner_breakpoint[1]
        lifetime = "1h" if position < last_hour_position else "5m"
        new_element = add_message_breakpoint(old_element, lifetime, part_count)
        used_count += new_element != old_element
        encoded_groups[position][-1] = groups[position][-1] = new_element
    return new_fields


def _find_last_hour_position(groups: Sequence[Sequence[bytes]]) -> int:
    """Return the position of the last message with a one-hour breakpoint, or -1 without one."""
    for position in reversed(range(len(groups))):
        for element in groups[position]:
            if "1h" in list_message_breakpoint_ttls(element):
                return position
    return -1


def _add_setup_breakpoint(fields: Mapping[str, Raw], lifetime: str) -> dict[str, bytes]:
    """Return the last field of the setup with a breakpoint on its last block; empty if that block already has one.

    The system prompt comes after the tools in the prompt, so a breakpoint there covers both; tools are only marked in
    a request without a system prompt.
    """
    for key in ("system", "tools"):
        data = bytes(fields.get(key, Raw(b"")))
        if key == "system" and data.startswith(b'"') and msgspec.json.decode(data).strip():
            data = encode_json([{"type": "text", "text": Raw(data)}])  # a plain string cannot carry a breakpoint
        if not data.startswith(b"["):
            continue
        blocks = _RAW_LIST_DECODER.decode(data)
        if not blocks:
            continue
        if key == "tools" and "1h" in list_breakpoint_ttls(fields.get("system")):
            lifetime = "1h"
        new_blocks = add_breakpoint_to_blocks(blocks, lifetime)
        return {} if new_blocks is None else {key: encode_json(new_blocks)}
    return {}


BREAKPOINTS = BreakpointFormat(place_planned_breakpoints, _keep_newest_beside_setup, _strip_all_breakpoints)
