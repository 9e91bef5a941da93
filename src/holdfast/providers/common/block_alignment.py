"""Find the old block that a rewritten part replaces, so that it keeps the block's other fields."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from msgspec import Raw

from holdfast.messages.parts import Part, ToolCall, ToolResult


def align_parts_with_blocks(
    parts: Sequence[Part], old: Sequence[Raw], decode_blocks: Callable[[Sequence[Raw]], Iterable[Part]]
) -> dict[int, Raw]:
    """Map the index of each part without bytes of its own to the old block it replaces.

    With as many blocks as parts, that is the block at the same place; else the block of the same call or result.
    ``decode_blocks`` decodes the old blocks, and is only called if their ids are needed.
    """
    bare_indexes = [index for index, part in enumerate(parts) if part.raw is None]
    if not bare_indexes:
        return {}
    if len(old) == len(parts):
        return {index: old[index] for index in bare_indexes if bytes(old[index]).startswith(b"{")}
    old_by_identity: dict[tuple[type, str], Raw] = {}
    for old_part, raw in zip(decode_blocks(old), old, strict=True):
        identity = get_call_identity(old_part)
        if identity is not None:
            old_by_identity[identity] = raw
    blocks_by_index: dict[int, Raw] = {}
    for index in bare_indexes:
        identity = get_call_identity(parts[index])
        if identity is not None and identity in old_by_identity:
            blocks_by_index[index] = old_by_identity[identity]
    return blocks_by_index


def get_call_identity(part: Part) -> tuple[type, str] | None:
    """Return type and id of a call, or of the call that a result answers; None for other parts."""
    if type(part) is ToolCall:
        return ToolCall, part.id
    if type(part) is ToolResult:
        return ToolResult, part.call_id
    return None
