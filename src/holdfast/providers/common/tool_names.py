"""Names of tools on their way to an API that takes fewer: no two become one, and every place says the same."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import blake2b

from msgspec.structs import replace

from holdfast.messages.message import Message, with_parts
from holdfast.messages.parts import Part, ToolCall, ToolResult
from holdfast.normalize.parts import wire_name
from holdfast.state.dialect import Dialect


def fitting(names: Iterable[str], dialect: Dialect) -> dict[str, str]:
    """Return, for each name that ``dialect`` does not take, one that it takes and that no other tool has."""
    said = [name for name in dict.fromkeys(names) if name]
    taken = {name for name in said if wire_name(name, dialect) == name}
    out: dict[str, str] = {}
    for name in said:
        if name not in taken:
            out[name] = _free(name, taken | set(out.values()), dialect)
    return out


def _free(name: str, taken: set[str], dialect: Dialect) -> str:
    """Return the nearest name that is free: as it is written there, or with a digest of the whole name behind it."""
    new = wire_name(name, dialect)
    while new in taken:
        mark = blake2b(f"{new} {name}".encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()
        new = f"{wire_name(name, dialect)[: dialect.name_max - 9]}_{mark}"
    return new


def renamed(message: Message, names: Mapping[str, str]) -> Message:
    """Return the message with its calls and results under the new names; the same object when none has one."""
    return with_parts(message, [_renamed(part, names) for part in message.parts])


def _renamed(part: Part, names: Mapping[str, str]) -> Part:
    if isinstance(part, ToolCall | ToolResult) and part.name in names:
        return replace(part, name=names[part.name], raw=None)
    return part
