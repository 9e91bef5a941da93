"""Anthropic Messages: one wire message to values and back.

What a block says becomes a part; the block's own JSON stays with it as ``raw``, so that ``cache_control``, citations
and fields of tomorrow survive. A document of plain words and what a search found are ``Text``, where such may stand: in
a user's message, and in a result that is no error. Blocks that Holdfast does not interpret are ``Opaque``. A user
message with nothing but tool results has the role ``tool``. A message of an unknown role is one
``Opaque("message", raw)`` in a ``system`` message: it starts no turn, answers no call, and goes out byte for byte. A
system message without content that sets the options of its turn (``output_config``, of pi 1.6) is one
``Opaque("options", raw)``: it goes out byte for byte too, where a system message may stand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
from msgspec import Raw, Struct
from msgspec.json import Decoder

from holdfast.messages import strip_foreign as foreign
from holdfast.messages.message import Message, placeholder
from holdfast.messages.parts import Media, MediaForm, Opaque, Part, Seal, Text, Thinking, ToolCall, ToolResult
from holdfast.providers.anthropic.cache_control import kept_marks
from holdfast.providers.common.block_alignment import identity, places
from holdfast.providers.common.foreign import foreign_messages as strangers
from holdfast.providers.common.json.raw_json import Bytes, as_object, decoded_size, fields, overlay, read, write
from holdfast.providers.common.media import is_web, titled, words_of
from holdfast.providers.models import anthropic_dialect as dialect

API = "anthropic"

__all__ = ["API", "decode", "dialect", "dicts", "encode", "messages"]


# -- the shapes on the wire --------------------------------------------------------------------------------------------


class _Wire(Struct, gc=False):
    role: str
    content: str | list[Raw] | None = None
    output_config: Raw = Raw(b"")


class _Text(Struct, gc=False, tag_field="type", tag="text"):
    text: str


class _Thinking(Struct, gc=False, tag_field="type", tag="thinking"):
    thinking: str
    signature: str = ""


class _Redacted(Struct, gc=False, tag_field="type", tag="redacted_thinking"):
    data: str


class _Caller(Struct, gc=False):
    tool_id: str = ""


class _Use(Struct, gc=False, tag_field="type", tag="tool_use"):
    id: str
    name: str
    input: Raw = Raw(b"{}")
    caller: _Caller | None = None


class _Result(Struct, gc=False, tag_field="type", tag="tool_result"):
    tool_use_id: str
    content: str | list[Raw] | None = None
    is_error: bool | None = None


class _Words(Struct, gc=False):
    type: str = ""
    text: str = ""


class _Source(Struct, gc=False):
    type: str = ""
    media_type: str = ""
    data: str = ""
    url: str = ""
    file_id: str = ""
    content: str | list[_Words] = ""


class _Image(Struct, gc=False, tag_field="type", tag="image"):
    source: _Source


class _Document(Struct, gc=False, tag_field="type", tag="document"):
    source: _Source
    title: str | None = None
    context: str | None = None


class _Found(Struct, gc=False, tag_field="type", tag="search_result"):
    """What a search found."""


class _Kind(Struct, gc=False):
    type: str = "unknown"
    id: Any = ""
    tool_use_id: Any = ""


_WHOLE_MESSAGE = frozenset({"message", "options"})
"""Kinds of opaque parts whose bytes are a message, and no block of one."""
_WIRE = Decoder(_Wire)
_BLOCK = Decoder(_Text | _Thinking | _Redacted | _Use | _Result | _Image | _Document | _Found)
_INNER = Decoder(_Text | _Image | _Document | _Found)
_KIND = Decoder(_Kind)
_DICT = Decoder(dict[str, Any])
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What reading one block may raise: another shape, text that is no UTF-8, too deep."""


# -- from the wire -----------------------------------------------------------------------------------------------------


def decode(raw: Bytes) -> Message:
    """Return one wire message as values; its blocks keep their bytes.

    Raises ``FormatError`` when ``raw`` is no JSON object with a ``role`` and a ``content`` of text or blocks.
    """
    wire = read(_WIRE, raw, "the message")
    role, content = wire.role, wire.content
    if role not in ("user", "assistant", "system"):
        return Message("system", (Opaque("message", raw if isinstance(raw, Raw) else Raw(raw)),))
    if role == "system" and not content and bytes(wire.output_config) not in (b"", b"null"):
        return Message("system", (Opaque("options", raw if isinstance(raw, Raw) else Raw(raw)),))
    if content is None or isinstance(content, str):
        return Message(role, () if content is None else (Text(content),))  # type: ignore[arg-type]
    parts = tuple(map(_part if role == "user" else _plain, content))
    if role == "user" and {*map(type, parts)} == {ToolResult}:
        return Message("tool", parts)
    return Message(role, parts)  # type: ignore[arg-type]


def _part(raw: Raw) -> Part:
    """Return one block as a part."""
    return _read(_BLOCK, raw, _READ)


def _plain(raw: Raw) -> Part:
    """Return one block as a part, where only text blocks may say words."""
    return _read(_BLOCK, raw, _READ_PLAIN)


def _read(decoder: Decoder[Any], raw: Raw, readers: Mapping[type, Callable[[Any, Raw], Part]]) -> Part:
    try:
        block = decoder.decode(raw)
        return readers[type(block)](block, raw)
    except _UNREADABLE:
        return _opaque(raw)


def _opaque(raw: Raw) -> Opaque:
    """Return a block that is kept as it came; what a server's tool was asked and gave back is sealed with its id."""
    try:
        block = _KIND.decode(raw)
    except _UNREADABLE:
        return Opaque("unknown", raw)
    ids = {"_tool_use": block.id, "_tool_result": block.tool_use_id}
    id_ = next((id_ for end, id_ in ids.items() if block.type.endswith(end)), "")
    return Opaque(block.type, raw, _seal(id_ if isinstance(id_, str) else ""))


def _seal(data: str) -> Seal | None:
    """Return the seal of a block: a signature, or the id of another block that it belongs to."""
    return Seal(API, "", data) if data else None


def _result(block: _Result, raw: Raw) -> ToolResult:
    content = block.content
    inner: tuple[Text | Media | Opaque, ...] = ()
    if isinstance(content, str):
        inner = (Text(content),)
    elif content:
        readers = _READ_PLAIN if block.is_error else _READ
        inner = tuple([_read(_INNER, one, readers) for one in content])  # type: ignore[misc]
    return ToolResult(block.tool_use_id, "", inner, bool(block.is_error), raw)


def _document(block: _Document, raw: Raw) -> Text | Media:
    """Return a document of nothing but words as these, under its title and what is told about it."""
    source = block.source
    blocks = source.content if source.type == "content" and isinstance(source.content, list) else []
    if source.type not in ("text", "content") or any(block.type != "text" for block in blocks):
        return _media(block, raw)
    words = source.data if source.type == "text" else _said(source.content)
    above = [block.context] if block.context else []
    return (
        Text(titled(block.title or "", "\n".join([*above, words])), None, raw) if words.strip() else _media(block, raw)
    )


def _found(_block: _Found, raw: Raw) -> Text | Opaque:
    """Return the words of what a search found; without any it is not interpreted."""
    found = _opaque(raw)
    words = foreign.words_of(found)
    return Text(words, None, raw) if words else found


def _media(block: _Image | _Document, raw: Raw) -> Media:
    source = block.source
    kind, name = ("document", block.title or "") if type(block) is _Document else ("image", "")
    if source.type == "base64":
        return Media(kind, source.media_type, decoded_size(source.data), name, source.data, raw, "base64")
    if source.type == "text" or (source.type == "content" and source.content):
        words = source.data if source.type == "text" else _said(source.content)
        return Media(kind, "text/plain", len(words), name, words, raw, "text")
    form: MediaForm = "url" if source.type == "url" else "file"
    return Media(kind, source.media_type, 0, name, source.url or source.file_id, raw, form)


def _said(content: str | list[_Words]) -> str:
    """Return the words of a document's blocks, and a line for each that has none."""
    if isinstance(content, str):
        return content
    return "\n".join([block.text if block.type == "text" else f"[Attached {block.type}]" for block in content])


_READ: dict[type, Callable[[Any, Raw], Part]] = {
    _Text: lambda block, raw: Text(block.text, None, raw),
    _Thinking: lambda block, raw: Thinking(block.thinking, _seal(block.signature), raw),
    _Redacted: lambda block, raw: Thinking("", _seal(block.data), raw),
    _Use: lambda block, raw: ToolCall(
        block.id, block.name, bytes(block.input).decode(), _seal(block.caller.tool_id if block.caller else ""), raw
    ),
    _Result: _result,
    _Image: _media,
    _Document: _document,
    _Found: _found,
}
_READ_PLAIN = _READ | {_Document: _media, _Found: lambda _, raw: _opaque(raw)}


# -- to the wire -------------------------------------------------------------------------------------------------------


def encode(message: Message, base: Raw | None = None) -> list[bytes]:
    """Return ``message`` as one wire message, or none when nothing in it can be sent.

    A part with ``raw`` goes out as those bytes. A part without is written anew; of the block that stood in its place
    in ``base`` it keeps the fields that it does not say itself (``cache_control``). Other fields of ``base`` stay.
    Thinking without a seal of this API cannot be sent and is left out.
    """
    if len(message.parts) == 1 and type(message.parts[0]) is Opaque and message.parts[0].kind in _WHOLE_MESSAGE:
        return [bytes(message.parts[0].raw)] if message.parts[0].raw is not None else []
    role = "user" if message.role == "tool" else message.role
    stood = None if base is None else read(_WIRE, base, "the base message")
    content = _content(message.parts, None if stood is None else stood.content)
    if message.parts and not content and not isinstance(content, str):
        return []
    same = base if stood is not None and stood.role == role else None  # fields of a role are no other role's
    return [write(overlay(same, {"role": role, "content": content}))]


def _content(parts: Sequence[Part], old: str | list[Raw] | None) -> str | list[Raw]:
    """Return the ``content`` of a message: a string where one plain text stands alone, else blocks."""
    if len(parts) == 1 and type(parts[0]) is Text and parts[0].raw is None and not isinstance(old, list):
        return parts[0].text
    stand = places(parts, old, partial(map, _part)) if isinstance(old, list) else {}
    blocks = (_block(part, stand.get(index)) for index, part in enumerate(parts))
    return [block for block in blocks if block is not None]


_OWN = frozenset({"citations", "content", "is_error", "source", "title", "context"})
"""Fields that belong to what a block said; they go when it says something else."""


def _block(part: Part, place: Raw | None = None) -> Raw | None:
    """Return one part as a block, or nothing when this API has no form for it."""
    if part.raw is not None:
        return part.raw
    new = _new(part)
    if new is None or place is None:
        return None if new is None else Raw(write(new))
    if fields(place).get("type") == Raw(write(new["type"])) and identity(_part(place)) == identity(part):
        gone = _OWN | {"caller"} if type(part) is ToolCall and part.seal is None else _OWN
        return Raw(write(_unmarked(kept_marks(overlay(place, new, gone), place))))
    marked = {key: value for key, value in fields(place).items() if key == "cache_control"}
    return Raw(write(_unmarked(new | marked)))


def _unmarked(block: dict[str, Any]) -> dict[str, Any]:
    """Return ``block`` without a cache breakpoint where none may stand: on thinking and on empty text."""
    text = block.get("text")
    if block.get("type") == "thinking" or (isinstance(text, str) and not text.strip()):
        block.pop("cache_control", None)
    return block


def _new(part: Part) -> dict[str, Any] | None:
    """Return the fields of a block that says what ``part`` says."""
    if isinstance(part, Text):
        return {"type": "text", "text": part.text}
    if isinstance(part, ToolCall):
        return {"type": "tool_use", "id": part.id, "name": part.name, "input": as_object(part.arguments)}
    if isinstance(part, ToolResult):
        return _new_result(part)
    if isinstance(part, Media):
        return _new_media(part) or {"type": "text", "text": placeholder(part)}
    if isinstance(part, Thinking) and part.seal is not None and part.seal.api == API and part.seal.data:
        return {"type": "thinking", "thinking": part.text, "signature": part.seal.data}
    return None


def _new_result(part: ToolResult) -> dict[str, Any]:
    content = part.content
    said: str | list[Raw | None] = [_block(inner) for inner in content if inner.raw or type(inner) is not Opaque]
    if not content or (len(content) == 1 and type(content[0]) is Text and content[0].raw is None):
        said = content[0].text if content and type(content[0]) is Text else ""
    block: dict[str, Any] = {"type": "tool_result", "tool_use_id": part.call_id, "content": said}
    return block | {"is_error": True} if part.is_error else block


def _new_media(part: Media) -> dict[str, Any] | None:
    """Return a block that shows ``part``, or nothing where the Messages API has no form for it."""
    source = _source(part) if part.kind in ("image", "document") else None
    titled = {"title": part.name} if part.name and part.kind == "document" else {}
    return None if source is None else {"type": part.kind, "source": source} | titled


def _source(part: Media) -> dict[str, str] | None:
    words = words_of(part)
    if words is not None:
        return {"type": "text", "media_type": "text/plain", "data": words} if words else None
    if part.form == "base64":
        return {"type": "base64", "media_type": part.mime, "data": part.source} if part.source else None
    if part.form == "file":
        return {"type": "file", "file_id": part.source} if part.source else None
    shown = part.kind == "image" or part.mime in ("", "application/pdf")
    return {"type": "url", "url": part.source} if shown and is_web(part) else None


# -- whole lists, for callers who hold dicts ---------------------------------------------------------------------------


def messages(wire: Sequence[Any]) -> list[Message]:
    """Return ``messages`` of a request, as dicts or objects of an SDK, as values.

    Raises ``FormatError`` with the JSON path of what cannot be read or belongs to another API.
    """
    return strangers.read_all(wire, API, decode)


def dicts(values: Sequence[Message]) -> list[Any]:
    """Return values as the ``messages`` of a request, as dicts.

    Raises ``FormatError`` where arguments hold a number that Python has no value for (``1e999``).
    """
    return [read(_DICT, wire, "the message") for message in strangers.values(values, API) for wire in encode(message)]
