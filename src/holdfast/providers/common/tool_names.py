"""Names of tools on their way to an API that takes fewer: no two become one, and every place says the same."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import blake2b

from msgspec.structs import replace

from holdfast.messages.message import Message, replace_all_parts
from holdfast.messages.parts import Part, ToolCall, ToolResult
from holdfast.normalize.parts import encode_wire_tool_name
from holdfast.state.dialect import Dialect


def map_invalid_tool_names(names: Iterable[str], dialect: Dialect) -> dict[str, str]:
    """Return, for each name that ``dialect`` does not take, one that it takes and that no other tool has."""
    unique_names = [name for name in dict.fromkeys(names) if name]
    used_names = {name for name in unique_names if encode_wire_tool_name(name, dialect) == name}
    out: dict[str, str] = {}
    for name in unique_names:
        if name not in used_names:
            out[name] = _make_unique_name(name, used_names | set(out.values()), dialect)
    return out


def _make_unique_name(name: str, used_names: set[str], dialect: Dialect) -> str:
    """Return the nearest name that is free: as it is written there, or with a digest of the whole name behind it."""
    new = encode_wire_tool_name(name, dialect)
    while new in used_names:
        mark = blake2b(f"{new} {name}".encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()
        new = f"{encode_wire_tool_name(name, dialect)[: dialect.name_max - 9]}_{mark}"
    return new


def rename_message_tools(message: Message, names: Mapping[str, str]) -> Message:
    """Return the message with its calls and results under the new names; the same object when none has one."""
    return replace_all_parts(message, [_rename_part_tool(part, names) for part in message.parts])


def _rename_part_tool(part: Part, names: Mapping[str, str]) -> Part:
    if isinstance(part, ToolCall | ToolResult) and part.name in names:
        return replace(part, name=names[part.name], raw=None)
    return part
