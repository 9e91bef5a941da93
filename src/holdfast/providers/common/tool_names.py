"""Map tool names that an API does not accept to names it does, the same way in every place and without collisions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import blake2b

from msgspec.structs import replace

from holdfast.messages.message import Message, replace_all_parts
from holdfast.messages.parts import Part, ToolCall, ToolResult
from holdfast.normalize.parts import encode_wire_tool_name
from holdfast.state.dialect import Dialect


def map_invalid_tool_names(names: Iterable[str], dialect: Dialect) -> dict[str, str]:
    """Map each name that ``dialect`` does not accept to one that it accepts and that no other tool has."""
    unique_names = [name for name in dict.fromkeys(names) if name]
    used_names = {name for name in unique_names if encode_wire_tool_name(name, dialect) == name}
    new_names: dict[str, str] = {}
    for name in unique_names:
        if name in used_names:
            continue
        new_names[name] = _make_unique_name(name, used_names.union(new_names.values()), dialect)
    return new_names


def _make_unique_name(name: str, used_names: set[str], dialect: Dialect) -> str:
    """Return the nearest free name: ``name`` in the API's alphabet, with a digest of ``name`` appended if taken.

    The digest depends on the name alone, so requests that list the tools in another order map them the same way.
    """
    new_name = encode_wire_tool_name(name, dialect)
    while new_name in used_names:
        digest = blake2b(f"{new_name} {name}".encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()
        # Nine characters: the underscore and eight of the digest.
        new_name = f"{encode_wire_tool_name(name, dialect)[: dialect.name_max - 9]}_{digest}"
    return new_name


def rename_message_tools(message: Message, names: Mapping[str, str]) -> Message:
    """Return ``message`` with calls and results under their new names; the same object if no name changes."""
    return replace_all_parts(message, [_rename_part_tool(part, names) for part in message.parts])


def _rename_part_tool(part: Part, names: Mapping[str, str]) -> Part:
    if isinstance(part, ToolCall | ToolResult) and part.name in names:
        return replace(part, name=names[part.name], raw=None)
    return part
