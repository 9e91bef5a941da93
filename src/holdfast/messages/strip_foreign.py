"""A message that came over one API, made ready for another: what is sealed stays behind in the log."""

from __future__ import annotations

import msgspec
from msgspec import Raw, Struct

from holdfast.messages.message import Message, placeholder
from holdfast.messages.parts import Media, Opaque, Part, Text, Thinking, ToolCall, ToolResult

_HOUSES = {"openai-chat": "openai", "openai-responses": "openai"}
"""APIs of one provider, who knows the same files by the same ids."""


class _Words(Struct):
    text: str = ""


class _Found(Struct):
    title: str = ""
    source: str = ""
    content: list[_Words] = []


class _Summary(Struct):
    content: str = ""


class _Refusal(Struct):
    refusal: str = ""


_FOUND = msgspec.json.Decoder(_Found)
_SUMMARY = msgspec.json.Decoder(_Summary)
_REFUSAL = msgspec.json.Decoder(_Refusal)
_STRING = msgspec.json.Decoder(str)


def native(message: Message, api: str, of: str = "") -> Message:
    """Return ``message`` with nothing of another API's wire in it: no bytes, no seals, no parts only that API reads.

    What ``api`` itself sealed stays sealed. ``of`` is the API it came over, where that is known.
    Thinking goes, and the ids of files at another provider; an opaque part leaves its words or its placeholder, except
    the fields of a message, of which only a refusal says something elsewhere.
    """
    files = bool(of) and _HOUSES.get(of, of) == _HOUSES.get(api, api)
    parts = (_part(part, api, files=files) for part in message.parts)
    return Message(message.role, tuple(part for part in parts if part is not None))


def may_think(raw: Raw) -> bool:
    """Return whether a message in these bytes, of the Messages API, may hold thinking."""
    return b'thinking"' in bytes(raw)


def _part(part: Part, api: str, *, files: bool) -> Part | None:
    if isinstance(part, Thinking):
        return Thinking(part.text, part.seal) if part.seal is not None and part.seal.api == api else None
    if isinstance(part, ToolCall):
        seal = part.seal if part.seal is not None and part.seal.api == api else None
        return ToolCall(part.id, part.name, part.arguments, seal)
    if isinstance(part, ToolResult):
        content = tuple(_inner(inner, files=files) for inner in part.content)
        return ToolResult(part.call_id, part.name, content, part.is_error)
    if isinstance(part, Opaque) and is_of_message(part):
        return Text(said) if (said := words_of(part)) else None
    return _inner(part, files=files)


def _inner(part: Text | Media | Opaque, *, files: bool) -> Text | Media:
    if isinstance(part, Text):
        return Text(part.text)
    if isinstance(part, Opaque):
        return Text(words_of(part) or placeholder(part))
    if part.form == "file" and not files:
        return Text(placeholder(part))
    return Media(part.kind, part.mime, part.size, part.name, part.source, None, part.form)


def is_of_message(part: Opaque) -> bool:
    """Return whether ``part`` is a whole message or a field of one: without words it says nothing elsewhere."""
    return part.kind in ("message", "options") or part.kind.startswith("message.")


def words_of(part: Opaque) -> str:
    """Return what an opaque part says in plain words: what a search found, a summary, a refusal; nothing of others."""
    try:
        return _words(part.kind, part.raw) if part.raw is not None else ""
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""


def _words(kind: str, raw: Raw) -> str:
    if kind == "compaction":
        return _SUMMARY.decode(raw).content
    if kind == "message.refusal":
        return _STRING.decode(raw)
    if kind == "refusal":
        return _REFUSAL.decode(raw).refusal
    if kind != "search_result":
        return ""
    found = _FOUND.decode(raw)
    texts = [one.text for one in found.content if one.text.strip()]
    return "\n".join([line for line in (found.title, found.source, *texts) if line]) if texts else ""
