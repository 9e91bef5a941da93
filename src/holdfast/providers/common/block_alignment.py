"""Which block of an old message a part stands for that is written anew."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from msgspec import Raw

from holdfast.messages.parts import Part, ToolCall, ToolResult


def places(
    parts: Sequence[Part], old: Sequence[Raw], decoded: Callable[[Sequence[Raw]], Iterable[Part]]
) -> dict[int, Raw]:
    """Return, for each part without bytes of its own, the old block it stands for: same place, or same id.

    ``decoded`` returns blocks as parts, where their ids must be known.
    """
    bare = [index for index, part in enumerate(parts) if part.raw is None]
    if not bare:
        return {}
    if len(old) == len(parts):
        return {index: old[index] for index in bare if bytes(old[index]).startswith(b"{")}
    known = {found: raw for part, raw in zip(decoded(old), old, strict=True) if (found := identity(part))}
    wanted = {index: identity(parts[index]) for index in bare}
    return {index: known[found] for index, found in wanted.items() if found in known}


def identity(part: Part) -> tuple[type, str] | None:
    """Return which call a part makes or answers; nothing for other parts."""
    if type(part) is ToolCall:
        return ToolCall, part.id
    return (ToolResult, part.call_id) if type(part) is ToolResult else None
