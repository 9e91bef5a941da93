"""OpenAI Chat Completions: one wire message to values and back.

``developer`` is a system message. A user's file of plain words is ``Text``. A ``tool`` message is one ``ToolResult``
whose ``raw`` is the whole message. Reasoning that compatible servers put beside the content (``reasoning_content``,
``reasoning``) is ``Thinking`` sealed with the field's name. Fields of a message that Holdfast does not interpret
(``name``, ``refusal``, ``function_call``, ``audio``, the role ``developer``) are ``Opaque("message.<field>", raw)``
parts at its end, so they are counted and survive without a base; a message with an unknown role is one
``Opaque("message", raw)`` in a ``system`` message, the legacy role ``function`` the same in a ``tool`` message.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from msgspec import Raw, Struct
from msgspec.json import Decoder

from holdfast.messages.message import Message, Role, placeholder
from holdfast.messages.parts import Media, MediaForm, Opaque, Part, Seal, Text, Thinking, ToolCall, ToolResult
from holdfast.providers.common.foreign import foreign_messages as strangers
from holdfast.providers.common.json.raw_json import Bytes, decoded_size, fields, overlay, read, unpacked_url, write
from holdfast.providers.common.media import as_words, data_url, told
from holdfast.providers.models import chat_dialect as dialect

API = "openai-chat"

__all__ = ["API", "as_seen", "decode", "dialect", "dicts", "encode", "messages"]


# -- the shapes on the wire --------------------------------------------------------------------------------------------


class _Wire(Struct, gc=False):
    role: str
    content: str | list[Raw] | None = None
    tool_calls: list[Raw] | None = None
    tool_call_id: str | None = None
    name: str | None = None


class _Plain(_Wire, gc=False, forbid_unknown_fields=True):
    """A message that has no other fields."""


class _Texted(Struct, gc=False):
    name: str = ""
    arguments: str = ""


class _Usual(Struct, gc=False):
    """A call whose arguments are a text, as they should be."""

    function: _Texted
    id: str | None = None
    custom: None = None


class _Function(Struct, gc=False):
    name: str = ""
    arguments: Raw = Raw(b"")


class _Custom(Struct, gc=False):
    name: str = ""
    input: str = ""


class _Call(Struct, gc=False):
    id: str | None = None
    function: _Function | None = None
    custom: _Custom | None = None


class _Text(Struct, gc=False, tag_field="type", tag="text"):
    text: str


class _Url(Struct, gc=False):
    url: str


class _Image(Struct, gc=False, tag_field="type", tag="image_url"):
    image_url: _Url


class _Sound(Struct, gc=False):
    data: str = ""
    format: str = ""


class _Audio(Struct, gc=False, tag_field="type", tag="input_audio"):
    input_audio: _Sound


class _Paper(Struct, gc=False):
    file_data: str = ""
    file_id: str = ""
    filename: str = ""


class _File(Struct, gc=False, tag_field="type", tag="file"):
    file: _Paper


class _Kind(Struct, gc=False):
    type: str = "unknown"


_WIRE = Decoder(_Wire)
_PLAIN = Decoder(_Plain)
_USUAL = Decoder(_Usual)
_CALL = Decoder(_Call)
_PIECE = Decoder(_Text | _Image | _Audio | _File)
_KIND = Decoder(_Kind)
_STRING = Decoder(str)
_DICT = Decoder(dict[str, Any])
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What reading one piece may raise: another shape, text that is no UTF-8, too deep."""

_KNOWN = frozenset({"role", "content", "tool_calls", "tool_call_id"})
_REASONING = ("reasoning_content", "reasoning")
"""Fields in which compatible servers send reasoning and want it back (DeepSeek, OpenRouter)."""
_NOTHING = frozenset({b"null", b"[]", b"{}", b'""'})


# -- from the wire -----------------------------------------------------------------------------------------------------


def decode(raw: Bytes) -> Message:
    """Return one wire message as values; its parts keep their bytes.

    Raises ``FormatError`` when ``raw`` is no JSON object with a ``role`` and a ``content`` of text, parts or null.
    """
    raw = raw if isinstance(raw, Raw) else Raw(raw)
    plain = _plain(raw)
    wire = read(_WIRE, raw, "the message") if plain is None else plain
    if plain is not None and plain.role in _PLAIN_ROLES and not plain.name:
        return Message(_PLAIN_ROLES[plain.role], (*_spoken(plain), *map(_call, plain.tool_calls or ())))
    if wire.role == "tool":
        inner = tuple(map(_inner, _content(wire.content)))
        return Message("tool", (ToolResult(wire.tool_call_id or "", wire.name or "", inner, raw=raw),))
    role = _ROLES.get(wire.role)
    if role is None:
        return Message("tool" if wire.role == "function" else "system", (Opaque("message", raw),))
    others = [pair for pair in fields(raw).items() if pair[0] not in _KNOWN and bytes(pair[1]) not in _NOTHING]
    parts: list[Part] = [_reasoning(key, value) for key, value in others if key in _REASONING]
    parts += _spoken(wire)
    parts += [_call(call) for call in wire.tool_calls or ()]
    parts += [Opaque(f"message.{key}", value) for key, value in others if key not in _REASONING]
    if wire.role == "developer":
        parts.append(Opaque("message.role", Raw(b'"developer"')))
    return Message(role, tuple(parts))


_ROLES: dict[str, Role] = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}


_PLAIN_ROLES: dict[str, Role] = {"user": "user", "assistant": "assistant", "system": "system"}


def _plain(raw: Raw) -> _Plain | None:
    """Return a message that has no other fields than most have; they are looked at once."""
    try:
        return _PLAIN.decode(raw)
    except _UNREADABLE:
        return None


def _spoken(wire: _Wire) -> tuple[Part, ...]:
    """Return the content of a message; only a user may show a file, so that elsewhere none is taken for words."""
    parts = _content(wire.content)
    return tuple(map(as_words, parts)) if wire.role == "user" else parts


def _content(content: str | list[Raw] | None) -> tuple[Part, ...]:
    if isinstance(content, str):
        return (Text(content),)
    return () if content is None else tuple(map(_piece, content))


def _piece(raw: Raw) -> Part:
    """Return one element of a ``content`` list as a part."""
    try:
        piece = _PIECE.decode(raw)
    except _UNREADABLE:
        return _opaque(raw)
    if isinstance(piece, _Text):
        return Text(piece.text, None, raw)
    if isinstance(piece, _Image):
        mime, data = unpacked_url(piece.image_url.url)
        return Media("image", mime, decoded_size(data) if mime else 0, "", data, raw, "base64" if mime else "url")
    if isinstance(piece, _Audio):
        sound = piece.input_audio
        return Media("audio", f"audio/{sound.format}", decoded_size(sound.data), "", sound.data, raw, "base64")
    mime, data = unpacked_url(piece.file.file_data)
    form: MediaForm = "base64" if data else "file"
    return Media("document", mime, decoded_size(data), piece.file.filename, data or piece.file.file_id, raw, form)


def _inner(part: Part) -> Text | Media | Opaque:
    return part if isinstance(part, (Text, Media, Opaque)) else Opaque("unknown", part.raw)


def _opaque(raw: Raw) -> Opaque:
    try:
        return Opaque(_KIND.decode(raw).type, raw)
    except _UNREADABLE:
        return Opaque("unknown", raw)


def _call(raw: Raw) -> Part:
    """Return one element of ``tool_calls`` as a part; the free text of a custom tool becomes a JSON string."""
    try:
        usual = _USUAL.decode(raw)
    except _UNREADABLE:
        return _odd_call(raw)
    return ToolCall(usual.id or "", usual.function.name, usual.function.arguments, None, raw)


def _odd_call(raw: Raw) -> Part:
    """Return a call without a function, of a custom tool, or whose arguments are JSON and no text."""
    try:
        return _asked(_CALL.decode(raw), raw)
    except _UNREADABLE:
        return Opaque("tool_call", raw)


def _asked(call: _Call, raw: Raw) -> ToolCall:
    if call.custom is not None:
        return ToolCall(call.id or "", call.custom.name, write(call.custom.input).decode(), None, raw)
    function = call.function or _Function()
    return ToolCall(call.id or "", function.name, bytes(function.arguments).decode(), None, raw)


def _reasoning(key: str, raw: Raw) -> Part:
    if not bytes(raw).startswith(b'"'):
        return Opaque(f"message.{key}", raw)
    return Thinking(read(_STRING, raw, f"the field {key}"), Seal(API, "", key), raw)


# -- to the wire -------------------------------------------------------------------------------------------------------


def encode(message: Message, base: Raw | None = None) -> list[bytes]:
    """Return ``message`` as wire messages: one for each tool result, then one for all the rest, if there is any.

    A part with ``raw`` goes out as those bytes, one without is written anew. ``base`` gives the order of the fields,
    the ones that are empty, and the extra fields of a call or result that was edited. What Chat has no form for
    (another API's thinking, media in a result) is left out or named by a placeholder.
    """
    if len(message.parts) == 1 and type(message.parts[0]) is Opaque and message.parts[0].kind == "message":
        return [bytes(message.parts[0].raw)] if message.parts[0].raw is not None else []
    results = message.results
    out = [_result(result, base) for result in results]
    rest = tuple(part for part in message.parts if type(part) is not ToolResult) if results else message.parts
    if rest or not results:
        out.append(_message(message.role, rest, None if results else base))
    return out


def _result(result: ToolResult, base: Raw | None) -> bytes:
    """Return a tool result as a ``tool`` message."""
    if result.raw is not None:
        return bytes(result.raw)
    inner = [Text(told(one) or placeholder(one)) if isinstance(one, Media) else one for one in result.content]
    new = {"role": "tool", "tool_call_id": result.call_id, "content": _written(inner, None, media=False) or ""}
    stood = base is not None and read(_WIRE, base, "the base message").tool_call_id == result.call_id
    return write(overlay(base if stood else None, new))


def _message(role: Role, parts: Sequence[Part], base: Raw | None) -> bytes:
    """Return everything but results as one message."""
    stood = None if base is None else read(_WIRE, base, "the base message")
    content = [part for part in parts if _in_content(part)]
    calls = [part for part in parts if isinstance(part, ToolCall) or _is(part, "tool_call")]
    new: dict[str, Any] = {"role": "user" if role == "tool" else role}
    new["content"] = _written(content, stood, media=role == "user")
    if new["content"] is None and (role != "assistant" or not calls):
        new["content"] = None if role == "assistant" else ""
    if calls:
        new["tool_calls"] = _calls(calls, stood)
    new |= dict(_extras(parts))
    keep = {} if base is None else {key: raw for key, raw in fields(base).items() if bytes(raw) in _NOTHING}
    order = () if base is None else fields(base)
    merged = keep | new
    return write({key: merged[key] for key in dict.fromkeys((*order, *merged)) if key in merged})


def _is(part: Part, kind: str) -> bool:
    return isinstance(part, Opaque) and part.kind == kind


def _in_content(part: Part) -> bool:
    if isinstance(part, Opaque):
        return part.raw is not None and part.kind not in ("message", "tool_call") and part.kind[:8] != "message."
    return isinstance(part, Text | Media)


def _written(parts: Sequence[Part], stood: _Wire | None, *, media: bool) -> Any:
    """Return ``content``: a string where one plain text stands alone, a list of parts, or nothing."""
    old = stood.content if stood is not None else None
    if len(parts) == 1 and type(parts[0]) is Text and parts[0].raw is None and not isinstance(old, list):
        return parts[0].text
    places = old if isinstance(old, list) and len(old) == len(parts) else [None] * len(parts)
    return [_new_piece(part, place, media=media) for part, place in zip(parts, places, strict=True)] or None


def _new_piece(part: Part, place: Raw | None, *, media: bool) -> Any:
    if part.raw is not None:
        return part.raw
    if isinstance(part, Text):
        stood = place if place is not None and isinstance(_piece(place), Text) else None
        return overlay(stood, {"type": "text", "text": part.text})
    if isinstance(part, Media):
        form = as_seen(part) if media else None
        return form or {"type": "text", "text": told(part) or placeholder(part)}
    return {"type": "text", "text": placeholder(part)} if isinstance(part, Opaque) else {}


def as_seen(part: Media) -> dict[str, Any] | None:
    """Return a content part that shows ``part``, or nothing where Chat has no form for it but words."""
    url = data_url(part) or (part.source if part.form == "url" else "")
    if part.kind == "image":
        return {"type": "image_url", "image_url": {"url": url}} if url else None
    if part.kind == "audio" and part.form == "base64":
        format_ = _SOUNDS.get(part.mime, part.mime.partition("/")[2])
        return {"type": "input_audio", "input_audio": {"data": part.source, "format": format_}}
    if part.kind != "document" or part.form == "url" or told(part) is not None:
        return None
    key = {"file_data": url} if part.form == "base64" else {"file_id": part.source}
    return {"type": "file", "file": key | ({"filename": part.name} if part.name else {})} if part.source else None


_SOUNDS = {"audio/mpeg": "mp3", "audio/x-wav": "wav", "audio/wave": "wav"}
"""Types of sound whose format Chat calls by another name."""


def _calls(calls: Sequence[Part], stood: _Wire | None) -> list[Any]:
    """Return ``tool_calls``; a call written anew keeps the extra fields of the old call with its id."""
    old = [(_call(raw), raw) for raw in (stood.tool_calls or ())] if stood is not None else []
    by_id = {call.id: raw for call, raw in old if isinstance(call, ToolCall)}
    out: list[Any] = []
    for call in calls:
        if call.raw is not None or not isinstance(call, ToolCall):
            out.append(call.raw)
            continue
        function = {"name": call.name, "arguments": call.arguments}
        new = {"id": call.id, "type": "function", "function": function}
        out.append(overlay(by_id.get(call.id), new, ("custom",)))
    return out


def _extras(parts: Sequence[Part]) -> Iterator[tuple[str, Any]]:
    """Yield the fields beside ``content`` that parts stand for."""
    for part in parts:
        if isinstance(part, Opaque) and part.kind[:8] == "message." and part.raw is not None:
            yield part.kind[8:], part.raw
        elif isinstance(part, Thinking) and part.seal is not None and part.seal.api == API:
            yield part.seal.data, part.text if part.raw is None else part.raw


# -- whole lists, for callers who hold dicts ---------------------------------------------------------------------------


def messages(wire: Sequence[Any]) -> list[Message]:
    """Return ``messages`` of a request, as dicts or objects of an SDK, as values.

    Raises ``FormatError`` with the JSON path of what cannot be read or belongs to another API.
    """
    return strangers.read_all(wire, API, decode)


def dicts(values: Sequence[Message]) -> list[Any]:
    """Return values as the ``messages`` of a request, as dicts.

    Raises ``FormatError`` where a field holds a number that Python has no value for (``1e999``).
    """
    return [read(_DICT, wire, "the message") for message in strangers.values(values, API) for wire in encode(message)]
