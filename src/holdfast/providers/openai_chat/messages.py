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

from holdfast.messages.message import Message, Role, format_part_placeholder
from holdfast.messages.parts import (
    Media,
    MediaForm,
    Opaque,
    Part,
    ProviderSignature,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
)
from holdfast.providers.common.json.raw_json import (
    JsonBytes,
    count_base64_bytes,
    decode_json,
    decode_json_fields,
    encode_json,
    overlay_fields,
    split_data_url,
)
from holdfast.providers.common.media import build_data_url, convert_text_document, format_text_document

API_NAME = "openai-chat"

__all__ = [
    "API_NAME",
    "build_media_part",
    "decode_message",
    "encode_message",
]


# -- the shapes on the wire --------------------------------------------------------------------------------------------


class _WireMessage(Struct, gc=False):
    role: str
    content: str | list[Raw] | None = None
    tool_calls: list[Raw] | None = None
    tool_call_id: str | None = None
    name: str | None = None


class _SimpleWireMessage(_WireMessage, gc=False, forbid_unknown_fields=True):
    """A message that has no other fields."""


class _FunctionWithText(Struct, gc=False):
    name: str = ""
    arguments: str = ""


class _SimpleCall(Struct, gc=False):
    """A call whose arguments are a text, as they should be."""

    function: _FunctionWithText
    id: str | None = None
    custom: None = None


class _FunctionWithRaw(Struct, gc=False):
    name: str = ""
    arguments: Raw = Raw(b"")


class _CustomTool(Struct, gc=False):
    name: str = ""
    input: str = ""


class _WireCall(Struct, gc=False):
    id: str | None = None
    function: _FunctionWithRaw | None = None
    custom: _CustomTool | None = None


class _TextPart(Struct, gc=False, tag_field="type", tag="text"):
    text: str


class _ImageUrl(Struct, gc=False):
    url: str


class _ImagePart(Struct, gc=False, tag_field="type", tag="image_url"):
    image_url: _ImageUrl


class _AudioData(Struct, gc=False):
    data: str = ""
    format: str = ""


class _AudioPart(Struct, gc=False, tag_field="type", tag="input_audio"):
    input_audio: _AudioData


class _FileData(Struct, gc=False):
    file_data: str = ""
    file_id: str = ""
    filename: str = ""


class _FilePart(Struct, gc=False, tag_field="type", tag="file"):
    file: _FileData


class _PartType(Struct, gc=False):
    type: str = "unknown"


_MESSAGE_DECODER = Decoder(_WireMessage)
_SIMPLE_MESSAGE_DECODER = Decoder(_SimpleWireMessage)
_SIMPLE_CALL_DECODER = Decoder(_SimpleCall)
_CALL_DECODER = Decoder(_WireCall)
_CONTENT_PART_DECODER = Decoder(_TextPart | _ImagePart | _AudioPart | _FilePart)
_PART_TYPE_DECODER = Decoder(_PartType)
_STRING_DECODER = Decoder(str)
_DECODE_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What reading one piece may raise: another shape, text that is no UTF-8, too deep."""

_INTERPRETED_FIELDS = frozenset({"role", "content", "tool_calls", "tool_call_id"})
_REASONING_FIELDS = ("reasoning_content", "reasoning")
"""Fields in which compatible servers send reasoning and want it back (DeepSeek, OpenRouter)."""
_EMPTY_JSON = frozenset({b"null", b"[]", b"{}", b'""'})


# -- from the wire -----------------------------------------------------------------------------------------------------


def decode_message(raw: JsonBytes) -> Message:
    """Return one wire message as values; its parts keep their bytes.

    Raises ``FormatError`` when ``raw`` is no JSON object with a ``role`` and a ``content`` of text, parts or null.
    """
    raw = raw if isinstance(raw, Raw) else Raw(raw)
    plain = _decode_simple_message(raw)
    wire = decode_json(_MESSAGE_DECODER, raw, "the message") if plain is None else plain
    if plain is not None and plain.role in _SIMPLE_ROLES and not plain.name:
        return Message(
            _SIMPLE_ROLES[plain.role], (*_decode_message_content(plain), *map(_decode_call, plain.tool_calls or ()))
        )
    if wire.role == "tool":
        inner = tuple(map(_to_result_part, _decode_content(wire.content)))
        return Message("tool", (ToolResult(wire.tool_call_id or "", wire.name or "", inner, raw=raw),))
    role = _ROLE_BY_WIRE_ROLE.get(wire.role)
    if role is None:
        return Message("tool" if wire.role == "function" else "system", (Opaque("message", raw),))
    other_fields = [
        pair
        for pair in decode_json_fields(raw).items()
        if pair[0] not in _INTERPRETED_FIELDS and bytes(pair[1]) not in _EMPTY_JSON
    ]
    parts: list[Part] = [_read_reasoning(key, value) for key, value in other_fields if key in _REASONING_FIELDS]
    parts += _decode_message_content(wire)
    parts += [_decode_call(call) for call in wire.tool_calls or ()]
    parts += [Opaque(f"message.{key}", value) for key, value in other_fields if key not in _REASONING_FIELDS]
    if wire.role == "developer":
        parts.append(Opaque("message.role", Raw(b'"developer"')))
    return Message(role, tuple(parts))


_ROLE_BY_WIRE_ROLE: dict[str, Role] = {
    "user": "user",
    "assistant": "assistant",
    "system": "system",
    "developer": "system",
}


_SIMPLE_ROLES: dict[str, Role] = {"user": "user", "assistant": "assistant", "system": "system"}


def _decode_simple_message(raw: Raw) -> _SimpleWireMessage | None:
    """Return a message that has no other fields than most have; they are looked at once."""
    try:
        return _SIMPLE_MESSAGE_DECODER.decode(raw)
    except _DECODE_ERRORS:
        return None


def _decode_message_content(message: _WireMessage) -> tuple[Part, ...]:
    """Return the content of a message; only a user may show a file, so that elsewhere none is taken for words."""
    parts = _decode_content(message.content)
    return tuple(map(convert_text_document, parts)) if message.role == "user" else parts


def _decode_content(content: str | list[Raw] | None) -> tuple[Part, ...]:
    if isinstance(content, str):
        return (Text(content),)
    return () if content is None else tuple(map(_decode_content_part, content))


def _decode_content_part(raw: Raw) -> Part:
    """Return one element of a ``content`` list as a part."""
    try:
        piece = _CONTENT_PART_DECODER.decode(raw)
    except _DECODE_ERRORS:
        return _build_opaque(raw)
    if isinstance(piece, _TextPart):
        return Text(piece.text, None, raw)
    if isinstance(piece, _ImagePart):
        mime, data = split_data_url(piece.image_url.url)
        return Media("image", mime, count_base64_bytes(data) if mime else 0, "", data, raw, "base64" if mime else "url")
    if isinstance(piece, _AudioPart):
        sound = piece.input_audio
        return Media("audio", f"audio/{sound.format}", count_base64_bytes(sound.data), "", sound.data, raw, "base64")
    mime, data = split_data_url(piece.file.file_data)
    form: MediaForm = "base64" if data else "file"
    return Media("document", mime, count_base64_bytes(data), piece.file.filename, data or piece.file.file_id, raw, form)


def _to_result_part(part: Part) -> Text | Media | Opaque:
    return part if isinstance(part, (Text, Media, Opaque)) else Opaque("unknown", part.raw)


def _build_opaque(raw: Raw) -> Opaque:
    try:
        return Opaque(_PART_TYPE_DECODER.decode(raw).type, raw)
    except _DECODE_ERRORS:
        return Opaque("unknown", raw)


def _decode_call(raw: Raw) -> Part:
    """Return one element of ``tool_calls`` as a part; the free text of a custom tool becomes a JSON string."""
    try:
        usual = _SIMPLE_CALL_DECODER.decode(raw)
    except _DECODE_ERRORS:
        return _decode_unusual_call(raw)
    return ToolCall(usual.id or "", usual.function.name, usual.function.arguments, None, raw)


def _decode_unusual_call(raw: Raw) -> Part:
    """Return a call without a function, of a custom tool, or whose arguments are JSON and no text."""
    try:
        return _read_call(_CALL_DECODER.decode(raw), raw)
    except _DECODE_ERRORS:
        return Opaque("tool_call", raw)


def _read_call(call: _WireCall, raw: Raw) -> ToolCall:
    if call.custom is not None:
        return ToolCall(call.id or "", call.custom.name, encode_json(call.custom.input).decode(), None, raw)
    function = call.function or _FunctionWithRaw()
    return ToolCall(call.id or "", function.name, bytes(function.arguments).decode(), None, raw)


def _read_reasoning(key: str, raw: Raw) -> Part:
    if not bytes(raw).startswith(b'"'):
        return Opaque(f"message.{key}", raw)
    return Thinking(decode_json(_STRING_DECODER, raw, f"the field {key}"), ProviderSignature(API_NAME, "", key), raw)


# -- to the wire -------------------------------------------------------------------------------------------------------


def encode_message(message: Message, base: Raw | None = None) -> list[bytes]:
    """Return ``message`` as wire messages: one for each tool result, then one for all the rest, if there is any.

    A part with ``raw`` goes out as those bytes, one without is written anew. ``base`` gives the order of the fields,
    the ones that are empty, and the extra fields of a call or result that was edited. What Chat has no form for
    (another API's thinking, media in a result) is left out or named by a placeholder.
    """
    if len(message.parts) == 1 and type(message.parts[0]) is Opaque and message.parts[0].kind == "message":
        return [bytes(message.parts[0].raw)] if message.parts[0].raw is not None else []
    results = message.results
    out = [_encode_result(result, base) for result in results]
    other_parts = tuple(part for part in message.parts if type(part) is not ToolResult) if results else message.parts
    if other_parts or not results:
        out.append(_encode_rest(message.role, other_parts, None if results else base))
    return out


def _encode_result(result: ToolResult, base: Raw | None) -> bytes:
    """Return a tool result as a ``tool`` message."""
    if result.raw is not None:
        return bytes(result.raw)
    inner = [
        Text(format_text_document(inner_part) or format_part_placeholder(inner_part))
        if isinstance(inner_part, Media)
        else inner_part
        for inner_part in result.content
    ]
    new = {"role": "tool", "tool_call_id": result.call_id, "content": _encode_content(inner, None, media=False) or ""}
    stood = base is not None and decode_json(_MESSAGE_DECODER, base, "the base message").tool_call_id == result.call_id
    return encode_json(overlay_fields(base if stood else None, new))


def _encode_rest(role: Role, parts: Sequence[Part], base: Raw | None) -> bytes:
    """Return everything but results as one message."""
    stood = None if base is None else decode_json(_MESSAGE_DECODER, base, "the base message")
    content = [part for part in parts if _is_content_part(part)]
    calls = [part for part in parts if isinstance(part, ToolCall) or _is_opaque_kind(part, "tool_call")]
    new: dict[str, Any] = {"role": "user" if role == "tool" else role}
    new["content"] = _encode_content(content, stood, media=role == "user")
    if new["content"] is None and (role != "assistant" or not calls):
        new["content"] = None if role == "assistant" else ""
    if calls:
        new["tool_calls"] = _encode_calls(calls, stood)
    new |= dict(_iter_extra_fields(parts))
    keep = (
        {} if base is None else {key: raw for key, raw in decode_json_fields(base).items() if bytes(raw) in _EMPTY_JSON}
    )
    order = () if base is None else decode_json_fields(base)
    all_fields = keep | new
    return encode_json({key: all_fields[key] for key in dict.fromkeys((*order, *all_fields)) if key in all_fields})


def _is_opaque_kind(part: Part, kind: str) -> bool:
    return isinstance(part, Opaque) and part.kind == kind


def _is_content_part(part: Part) -> bool:
    if isinstance(part, Opaque):
        return part.raw is not None and part.kind not in ("message", "tool_call") and part.kind[:8] != "message."
    return isinstance(part, Text | Media)


def _encode_content(parts: Sequence[Part], old_message: _WireMessage | None, *, media: bool) -> Any:
    """Return ``content``: a string where one plain text stands alone, a list of parts, or nothing."""
    old = old_message.content if old_message is not None else None
    if len(parts) == 1 and type(parts[0]) is Text and parts[0].raw is None and not isinstance(old, list):
        return parts[0].text
    places = old if isinstance(old, list) and len(old) == len(parts) else [None] * len(parts)
    return [_encode_content_part(part, place, media=media) for part, place in zip(parts, places, strict=True)] or None


def _encode_content_part(part: Part, old_part: Raw | None, *, media: bool) -> Any:
    if part.raw is not None:
        return part.raw
    if isinstance(part, Text):
        stood = old_part if old_part is not None and isinstance(_decode_content_part(old_part), Text) else None
        return overlay_fields(stood, {"type": "text", "text": part.text})
    if isinstance(part, Media):
        form = build_media_part(part) if media else None
        return form or {"type": "text", "text": format_text_document(part) or format_part_placeholder(part)}
    return {"type": "text", "text": format_part_placeholder(part)} if isinstance(part, Opaque) else {}


def build_media_part(part: Media) -> dict[str, Any] | None:
    """Return a content part that shows ``part``, or nothing where Chat has no form for it but words."""
    url = build_data_url(part) or (part.source if part.form == "url" else "")
    if part.kind == "image":
        return {"type": "image_url", "image_url": {"url": url}} if url else None
    if part.kind == "audio" and part.form == "base64":
        format_ = _AUDIO_FORMATS.get(part.mime, part.mime.partition("/")[2])
        return {"type": "input_audio", "input_audio": {"data": part.source, "format": format_}}
    if part.kind != "document" or part.form == "url" or format_text_document(part) is not None:
        return None
    key = {"file_data": url} if part.form == "base64" else {"file_id": part.source}
    return {"type": "file", "file": key | ({"filename": part.name} if part.name else {})} if part.source else None


_AUDIO_FORMATS = {"audio/mpeg": "mp3", "audio/x-wav": "wav", "audio/wave": "wav"}
"""Types of sound whose format Chat calls by another name."""


def _encode_calls(calls: Sequence[Part], old_message: _WireMessage | None) -> list[Any]:
    """Return ``tool_calls``; a call written anew keeps the extra fields of the old call with its id."""
    old = [(_decode_call(raw), raw) for raw in (old_message.tool_calls or ())] if old_message is not None else []
    by_id = {call.id: raw for call, raw in old if isinstance(call, ToolCall)}
    out: list[Any] = []
    for call in calls:
        if call.raw is not None or not isinstance(call, ToolCall):
            out.append(call.raw)
            continue
        function = {"name": call.name, "arguments": call.arguments}
        new = {"id": call.id, "type": "function", "function": function}
        out.append(overlay_fields(by_id.get(call.id), new, ("custom",)))
    return out


def _iter_extra_fields(parts: Sequence[Part]) -> Iterator[tuple[str, Any]]:
    """Yield the fields beside ``content`` that parts stand for."""
    for part in parts:
        if isinstance(part, Opaque) and part.kind[:8] == "message." and part.raw is not None:
            yield part.kind[8:], part.raw
        elif isinstance(part, Thinking) and part.signature is not None and part.signature.api == API_NAME:
            yield part.signature.data, part.text if part.raw is None else part.raw
