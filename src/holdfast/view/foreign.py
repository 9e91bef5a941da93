"""A message that came over one API, made ready for another: what is sealed stays behind in the log."""

from __future__ import annotations

from holdfast.model.messages import Message, placeholder
from holdfast.model.parts import Media, Opaque, Part, Text, Thinking, ToolCall, ToolResult


def native(message: Message, api: str) -> Message:
    """Return ``message`` with nothing of another API's wire in it: no bytes, no seals, no parts only that API reads.

    What ``api`` itself sealed stays sealed.
    Thinking goes; an opaque part leaves its placeholder, except the fields of a message, which have no place elsewhere.
    """
    parts = (_part(part, api) for part in message.parts)
    return Message(message.role, tuple(part for part in parts if part is not None))


def _part(part: Part, api: str) -> Part | None:
    if isinstance(part, Thinking):
        return Thinking(part.text, part.seal) if part.seal is not None and part.seal.api == api else None
    if isinstance(part, ToolCall):
        seal = part.seal if part.seal is not None and part.seal.api == api else None
        return ToolCall(part.id, part.name, part.arguments, seal)
    if isinstance(part, ToolResult):
        content = tuple(_inner(inner) for inner in part.content)
        return ToolResult(part.call_id, part.name, content, part.is_error)
    if isinstance(part, Opaque) and (part.kind == "message" or part.kind.startswith("message.")):
        return None
    return _inner(part)


def _inner(part: Text | Media | Opaque) -> Text | Media:
    if isinstance(part, Media):
        return Media(part.kind, part.mime, part.size, part.name, part.source)
    return Text(placeholder(part)) if isinstance(part, Opaque) else Text(part.text)
