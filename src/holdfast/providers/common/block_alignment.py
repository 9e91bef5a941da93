"""Which block of an old message a part stands for that is written anew."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from msgspec import Raw

from holdfast.messages.parts import Part, ToolCall, ToolResult


def align_parts_with_blocks(
    parts: Sequence[Part], old: Sequence[Raw], decode_blocks: Callable[[Sequence[Raw]], Iterable[Part]]
) -> dict[int, Raw]:
    """Return, for each part without bytes of its own, the old block it stands for: same place, or same id.

    ``decode_blocks`` returns blocks as parts, where their ids must be known.
    """
    bare = [index for index, part in enumerate(parts) if part.raw is None]
    if not bare:
        return {}
    if len(old) == len(parts):
        return {index: old[index] for index in bare if bytes(old[index]).startswith(b"{")}
    old_by_id = {
        part_id: raw for part, raw in zip(decode_blocks(old), old, strict=True) if (part_id := get_call_identity(part))
    }
    ids_by_index = {index: get_call_identity(parts[index]) for index in bare}
    return {index: old_by_id[part_id] for index, part_id in ids_by_index.items() if part_id in old_by_id}


def get_call_identity(part: Part) -> tuple[type, str] | None:
    """Return which call a part makes or answers; nothing for other parts."""
    if type(part) is ToolCall:
        return ToolCall, part.id
    return (ToolResult, part.call_id) if type(part) is ToolResult else None
