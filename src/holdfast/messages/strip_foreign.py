"""A message that came over one API, made ready for another: what is sealed stays behind in the log."""

from __future__ import annotations

import msgspec
from msgspec import Raw, Struct

from holdfast.messages.message import Message, format_part_placeholder
from holdfast.messages.parts import Media, Opaque, Part, Text, Thinking, ToolCall, ToolResult


class _ResultTextBlock(Struct):
    text: str = ""


class _SearchResult(Struct):
    title: str = ""
    source: str = ""
    content: list[_ResultTextBlock] = []


class _CompactionBlock(Struct):
    content: str = ""


class _RefusalBlock(Struct):
    refusal: str = ""


_SEARCH_RESULT_DECODER = msgspec.json.Decoder(_SearchResult)
_COMPACTION_DECODER = msgspec.json.Decoder(_CompactionBlock)
_REFUSAL_DECODER = msgspec.json.Decoder(_RefusalBlock)
_STRING_DECODER = msgspec.json.Decoder(str)


def strip_foreign_content(message: Message, api: str, *, keeps_file_ids: bool = False) -> Message:
    """Return ``message`` with nothing of another API's wire in it: no bytes, no seals, no parts only that API reads.

    What ``api`` itself sealed stays sealed. ``keeps_file_ids`` where its provider is the one that the message came
    from, who knows the same files by the same ids; elsewhere they go. Thinking goes; an opaque part leaves its words or
    its placeholder, except the fields of a message, of which only a refusal says something elsewhere.
    """
    parts = (_strip_part(part, api, files=keeps_file_ids) for part in message.parts)
    return Message(message.role, tuple(part for part in parts if part is not None))


def can_contain_thinking(raw: Raw) -> bool:
    """Return whether a message in these bytes, of the Messages API, may hold thinking."""
    return b'thinking"' in bytes(raw)


def _strip_part(part: Part, api: str, *, files: bool) -> Part | None:
    if isinstance(part, Thinking):
        return Thinking(part.text, part.signature) if part.signature is not None and part.signature.api == api else None
    if isinstance(part, ToolCall):
        signature = part.signature if part.signature is not None and part.signature.api == api else None
        return ToolCall(part.id, part.name, part.arguments, signature)
    if isinstance(part, ToolResult):
        content = tuple(_strip_content_part(inner, files=files) for inner in part.content)
        return ToolResult(part.call_id, part.name, content, part.is_error)
    if isinstance(part, Opaque) and is_message_or_field(part):
        return Text(text) if (text := get_opaque_text(part)) else None
    return _strip_content_part(part, files=files)


def _strip_content_part(part: Text | Media | Opaque, *, files: bool) -> Text | Media:
    if isinstance(part, Text):
        return Text(part.text)
    if isinstance(part, Opaque):
        return Text(get_opaque_text(part) or format_part_placeholder(part))
    if part.form == "file" and not files:
        return Text(format_part_placeholder(part))
    return Media(part.kind, part.mime, part.size, part.name, part.source, None, part.form)


def is_message_or_field(part: Opaque) -> bool:
    """Return whether ``part`` is a whole message or a field of one: without words it says nothing elsewhere."""
    return part.kind in ("message", "options") or part.kind.startswith("message.")


def get_opaque_text(part: Opaque) -> str:
    """Return what an opaque part says in plain words: what a search found, a summary, a refusal; nothing of others."""
    try:
        return _decode_opaque_text(part.kind, part.raw) if part.raw is not None else ""
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""


def _decode_opaque_text(kind: str, raw: Raw) -> str:
    if kind == "compaction":
        return _COMPACTION_DECODER.decode(raw).content
    if kind == "message.refusal":
        return _STRING_DECODER.decode(raw)
    if kind == "refusal":
        return _REFUSAL_DECODER.decode(raw).refusal
    if kind != "search_result":
        return ""
    search_result = _SEARCH_RESULT_DECODER.decode(raw)
    texts = [block.text for block in search_result.content if block.text.strip()]
    return "\n".join([line for line in (search_result.title, search_result.source, *texts) if line]) if texts else ""
