"""Media in tool results, for an API whose results hold words alone: a user shows them behind the results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from msgspec.structs import replace

from holdfast.model.messages import Message, placeholder, with_parts
from holdfast.model.parts import Media, Opaque, Part, Text, ToolResult

Inner: TypeAlias = Text | Media | Opaque


def carried(messages: Sequence[Message], shows: Callable[[Media], bool]) -> tuple[list[Message], int]:
    """Return the messages with what ``shows`` takes of their results' media behind each batch, and how many moved.

    A batch is all results up to the next answer; nothing stands between them. A line in the result names what moved.
    """
    out: list[Message] = []
    moved, start = 0, 0
    names: dict[str, str] = {}
    for index, message in enumerate([*messages, None]):
        if message is None or message.role == "assistant":
            batch, count = _batch(messages[start:index], shows, names)
            out += batch if message is None else [*batch, message]
            moved, start = moved + count, index + 1
            names |= {} if message is None else {call.id: call.name for call in message.calls}
    return out, moved


def _batch(
    messages: Sequence[Message], shows: Callable[[Media], bool], names: dict[str, str]
) -> tuple[list[Message], int]:
    """Return the messages between two answers, with their media behind the last result."""
    shown: list[Part] = []
    for result in [result for message in messages for result in message.results]:
        media = [part for part in result.content if isinstance(part, Media) and shows(part)]
        tool = result.name or names.get(result.call_id) or "a tool"
        shown += [Text(f"(from the result of {tool})"), *media] if media else []
    if not shown:
        return list(messages), 0
    last = max(index for index, message in enumerate(messages) if message.results)
    out = [_worded(message, shows) for message in messages]
    rest = [part for part in out[last].parts if not isinstance(part, ToolResult)]
    out[last : last + 1] = [Message("tool", out[last].results), Message("user", (*shown, *rest))]
    return out, sum(isinstance(part, Media) for part in shown)


def _worded(message: Message, shows: Callable[[Media], bool]) -> Message:
    """Return the message with a line in its results for each of their media that moves."""
    return with_parts(
        message, [_named(part, shows) if isinstance(part, ToolResult) else part for part in message.parts]
    )


def _named(part: ToolResult, shows: Callable[[Media], bool]) -> ToolResult:
    content = tuple(_line(inner, shows) for inner in part.content)
    return part if content == part.content else replace(part, content=content, raw=None)


def _line(part: Inner, shows: Callable[[Media], bool]) -> Inner:
    return Text(placeholder(part)) if isinstance(part, Media) and shows(part) else part
