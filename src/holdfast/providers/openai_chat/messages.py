"""OpenAI Chat Completions: decode one wire message into a value, and encode it back.

``developer`` becomes a system message. A user's file of plain text becomes ``Text``. A ``tool`` message becomes one
``ToolResult`` with the whole message as its ``raw``. Reasoning that compatible servers put beside the content
(``reasoning_content``, ``reasoning``) becomes ``Thinking`` signed with the field's name.

Fields that Holdfast does not interpret (``name``, ``refusal``, ``function_call``, ``audio``, the role ``developer``)
become ``Opaque("message.<field>", raw)`` parts at the end of the message, so that they are counted and survive without
a base message. A message with an unknown role becomes one ``Opaque("message", raw)`` in a ``system`` message; with the
legacy role ``function``, in a ``tool`` message.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from msgspec import Raw, Struct
from msgspec.json import Decoder

from holdfast.messages.equality import DEVELOPER_ROLE_KIND
from holdfast.messages.message import Message, Role, format_part_placeholder
from holdfast.messages.parts import (
    Media,
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
    "INTERPRETED_FIELDS",
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
    """A message without any other fields, decoded in one step."""


class _FunctionWithText(Struct, gc=False):
    name: str = ""
    arguments: str = ""


class _SimpleCall(Struct, gc=False):
    """A function call with arguments as a string, as the API specifies them."""

    function: _FunctionWithText
    id: str | None = None
    custom: None = None


class _FunctionWithRaw(Struct, gc=False):
    """A function with arguments of any type: some servers send an object in place of a string."""

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
"""Errors from decoding one piece: another shape, invalid UTF-8, nested too deeply."""

INTERPRETED_FIELDS = frozenset({"role", "content", "tool_calls", "tool_call_id"})
"""Fields of a message that become something else than ``Opaque("message.<field>")`` parts, beside its reasoning."""
_REASONING_FIELDS = ("reasoning_content", "reasoning")
"""Fields in which compatible servers send reasoning and want it back (DeepSeek; OpenRouter)."""
_EMPTY_JSON = frozenset({b"null", b"[]", b"{}", b'""'})


# -- from the wire -----------------------------------------------------------------------------------------------------


def decode_message(raw: JsonBytes) -> Message:
    """Decode one wire message; its parts keep their bytes.

    Raises ``FormatError`` if ``raw`` is not a JSON object with a ``role`` and a ``content`` of text, parts or null.
    """
    raw = raw if isinstance(raw, Raw) else Raw(raw)
    simple = _decode_simple_message(raw)
    # Nearly all messages have no fields but the interpreted ones. Those are decoded once; only the others are decoded
    # again as raw fields, to find the rest.
    if simple is not None and simple.role in _SIMPLE_ROLES and not simple.name:
        calls = map(_decode_call, simple.tool_calls or ())
        return Message(_SIMPLE_ROLES[simple.role], (*_decode_message_content(simple), *calls))
    if simple is None:
        wire = decode_json(_MESSAGE_DECODER, raw, "the message")
    else:
        wire = simple
    if wire.role == "tool":
        content = tuple(map(_to_result_part, _decode_content(wire.content)))
        return Message(
            "tool",
            (
                ToolResult(
                    wire.tool_call_id or "",
                    wire.name or "",
                    content,
                    raw=raw,
                ),
            ),
        )
    role = _ROLE_BY_WIRE_ROLE.get(wire.role)
    if role is None:
        return Message("tool" if wire.role == "function" else "system", (Opaque("message", raw),))
    return Message(role, tuple(_decode_parts_with_fields(wire, raw)))


def _decode_parts_with_fields(wire: _WireMessage, raw: Raw) -> list[Part]:
    """Decode a message with further fields: reasoning first, then content and calls, then all other fields."""
    reasoning: list[Part] = []
    other_fields: list[Part] = []
    for key, value in decode_json_fields(raw).items():
        if key in INTERPRETED_FIELDS:
            continue
        if bytes(value) in _EMPTY_JSON and not _is_empty_reasoning(key, value):
            continue
        if key in _REASONING_FIELDS:
            reasoning.append(_read_reasoning(key, value))
        else:
            other_fields.append(Opaque(f"message.{key}", value))
    if wire.role == "developer":
        # The value has no such role. This part brings it back when the message is encoded.
        other_fields.append(Opaque(DEVELOPER_ROLE_KIND, Raw(b'"developer"')))
    calls = map(_decode_call, wire.tool_calls or ())
    return [*reasoning, *_decode_message_content(wire), *calls, *other_fields]


def _is_empty_reasoning(key: str, value: Raw) -> bool:
    """Return whether a field is reasoning without text: DeepSeek wants it back with each answer, and takes it empty."""
    return key in _REASONING_FIELDS and bytes(value) == b'""'


_ROLE_BY_WIRE_ROLE: dict[str, Role] = {
    "user": "user",
    "assistant": "assistant",
    "system": "system",
    "developer": "system",
}


_SIMPLE_ROLES: dict[str, Role] = {"user": "user", "assistant": "assistant", "system": "system"}


def _decode_simple_message(raw: Raw) -> _SimpleWireMessage | None:
    """Decode a message with the usual fields only, or return None if it has others."""
    try:
        return _SIMPLE_MESSAGE_DECODER.decode(raw)
    except _DECODE_ERRORS:
        return None


def _decode_message_content(message: _WireMessage) -> tuple[Part, ...]:
    """Decode the content of a message.

    Only users may show files. A file elsewhere is invalid and stays media, so that the rules of the API can refuse it.
    """
    parts = _decode_content(message.content)
    if message.role != "user":
        return parts
    return tuple(map(convert_text_document, parts))


def _decode_content(content: str | list[Raw] | None) -> tuple[Part, ...]:
    if content is None:
        return ()
    if isinstance(content, str):
        return (Text(content),)
    return tuple(map(_decode_content_part, content))


def _decode_content_part(raw: Raw) -> Part:
    """Decode one element of a ``content`` list."""
    try:
        part = _CONTENT_PART_DECODER.decode(raw)
    except _DECODE_ERRORS:
        return _build_opaque(raw)
    if isinstance(part, _TextPart):
        return Text(part.text, None, raw)
    if isinstance(part, _ImagePart):
        return _read_image(part.image_url.url, raw)
    if isinstance(part, _AudioPart):
        audio = part.input_audio
        size = count_base64_bytes(audio.data)
        return Media(
            "audio",
            f"audio/{audio.format}",
            size,
            "",
            audio.data,
            raw,
            "base64",
        )
    return _read_file(part.file, raw)


def _read_image(url: str, raw: Raw) -> Media:
    mime, data = split_data_url(url)
    if not mime:
        return Media("image", "", 0, "", data, raw, "url")
    return Media("image", mime, count_base64_bytes(data), "", data, raw, "base64")


def _read_file(file: _FileData, raw: Raw) -> Media:
    mime, data = split_data_url(file.file_data)
    size = count_base64_bytes(data)
    if not data:
        return Media("document", mime, size, file.filename, file.file_id, raw, "file")
    return Media("document", mime, size, file.filename, data, raw, "base64")


def _to_result_part(part: Part) -> Text | Media | Opaque:
    if isinstance(part, (Text, Media, Opaque)):
        return part
    return Opaque("unknown", part.raw)


def _build_opaque(raw: Raw) -> Opaque:
    try:
        return Opaque(_PART_TYPE_DECODER.decode(raw).type, raw)
    except _DECODE_ERRORS:
        return Opaque("unknown", raw)


def _decode_call(raw: Raw) -> Part:
    """Decode one element of ``tool_calls``."""
    try:
        usual = _SIMPLE_CALL_DECODER.decode(raw)
    except _DECODE_ERRORS:
        return _decode_unusual_call(raw)
    return ToolCall(
        usual.id or "",
        usual.function.name,
        usual.function.arguments,
        None,
        raw,
    )


def _decode_unusual_call(raw: Raw) -> Part:
    """Decode a call of a custom tool, one without a function, or one with arguments that are not a string."""
    try:
        return _read_call(_CALL_DECODER.decode(raw), raw)
    except _DECODE_ERRORS:
        return Opaque("tool_call", raw)


def _read_call(call: _WireCall, raw: Raw) -> ToolCall:
    if call.custom is not None:
        # A custom tool takes free text. As a JSON string it fits ``arguments``, which is JSON for every call.
        arguments = encode_json(call.custom.input).decode()
        return ToolCall(call.id or "", call.custom.name, arguments, None, raw)
    function = call.function or _FunctionWithRaw()
    arguments = bytes(function.arguments).decode()
    return ToolCall(call.id or "", function.name, arguments, None, raw)


def _read_reasoning(key: str, raw: Raw) -> Part:
    if not bytes(raw).startswith(b'"'):
        return Opaque(f"message.{key}", raw)
    text = decode_json(_STRING_DECODER, raw, f"the field {key}")
    return Thinking(text, ProviderSignature(API_NAME, "", key), raw)


# -- to the wire -------------------------------------------------------------------------------------------------------


def encode_message(message: Message, base: Raw | None = None) -> list[bytes]:
    """Encode ``message`` as wire messages: one for each tool result, then one for everything else, if there is more.

    A part with ``raw`` is sent as those bytes, one without is written anew. ``base`` is the message it was edited
    from: it provides the order of the fields, the empty ones, and extra fields of edited calls and results. Parts
    without a form in Chat (another API's thinking, media in a result) are dropped or replaced by a placeholder.
    """
    if len(message.parts) == 1:
        part = message.parts[0]
        if type(part) is Opaque and part.kind == "message":
            return [] if part.raw is None else [bytes(part.raw)]
    results = message.results
    wire_messages = [_encode_result(result, base) for result in results]
    other_parts = message.parts
    if results:
        other_parts = tuple(part for part in message.parts if type(part) is not ToolResult)
    if other_parts or not results:
        wire_messages.append(_encode_rest(message.role, other_parts, None if results else base))
    return wire_messages


def _encode_result(result: ToolResult, base: Raw | None) -> bytes:
    """Encode a tool result as a ``tool`` message."""
    if result.raw is not None:
        return bytes(result.raw)
    content: list[Text | Opaque] = []
    for part in result.content:
        if isinstance(part, Media):  # a tool message takes nothing but text
            content.append(Text(format_text_document(part) or format_part_placeholder(part)))
        else:
            content.append(part)
    new_fields = {
        "role": "tool",
        "tool_call_id": result.call_id,
        "content": _encode_content(content, None, media=False) or "",
    }
    if base is not None:
        # A result that was moved here must not inherit the fields of another one.
        base_call_id = decode_json(_MESSAGE_DECODER, base, "the base message").tool_call_id
        if base_call_id != result.call_id:
            base = None
    return encode_json(overlay_fields(base, new_fields))


def _encode_rest(role: Role, parts: Sequence[Part], base: Raw | None) -> bytes:
    """Encode everything but results as one message."""
    old_message = None
    if base is not None:
        old_message = decode_json(_MESSAGE_DECODER, base, "the base message")
        if old_message.role == "tool":
            # What became of a result must not keep its fields: servers refuse ``tool_call_id`` on a user's message.
            base = old_message = None
    content_parts = [part for part in parts if _is_content_part(part)]
    calls = []
    for part in parts:
        if isinstance(part, ToolCall) or _is_opaque_kind(part, "tool_call"):
            calls.append(part)
    content = _encode_content(content_parts, old_message, media=role == "user")
    if content is None and role != "assistant":
        content = ""  # only an assistant may have null content
    new_fields: dict[str, Any] = {"role": "user" if role == "tool" else role, "content": content}
    if calls:
        new_fields["tool_calls"] = _encode_calls(calls, old_message)
    new_fields.update(_iter_extra_fields(parts))
    if base is None:
        return encode_json(new_fields)
    return encode_json(_order_like_base(new_fields, decode_json_fields(base)))


def _order_like_base(new_fields: dict[str, Any], base_fields: dict[str, Raw]) -> dict[str, Any]:
    """Return the new fields in the order of the old ones, with the old fields that were empty.

    Empty fields (``"refusal": null``) decode to no part, so without this they would vanish with the first edit.
    """
    ordered: dict[str, Any] = {}
    for key, raw in base_fields.items():
        if key in new_fields:
            ordered[key] = new_fields[key]
        elif bytes(raw) in _EMPTY_JSON and not _is_empty_reasoning(key, raw):
            ordered[key] = raw
    return ordered | new_fields


def _is_opaque_kind(part: Part, kind: str) -> bool:
    return isinstance(part, Opaque) and part.kind == kind


def _is_content_part(part: Part) -> bool:
    if isinstance(part, Opaque):
        if part.raw is None or part.kind in ("message", "tool_call"):
            return False
        return not part.kind.startswith("message.")
    return isinstance(part, Text | Media)


def _encode_content(parts: Sequence[Part], old_message: _WireMessage | None, *, media: bool) -> Any:
    """Encode ``content``: a string for one plain text, a list of parts for anything else, None for no parts."""
    old = old_message.content if old_message is not None else None
    if len(parts) == 1 and not isinstance(old, list):
        only_part = parts[0]
        if type(only_part) is Text and only_part.raw is None:
            return only_part.text
    old_parts: Sequence[Raw | None] = [None] * len(parts)
    if isinstance(old, list) and len(old) == len(parts):
        old_parts = old
    encoded = []
    for part, old_part in zip(parts, old_parts, strict=True):
        encoded.append(_encode_content_part(part, old_part, media=media))
    return encoded or None


def _encode_content_part(part: Part, old_part: Raw | None, *, media: bool) -> Any:
    if part.raw is not None:
        return part.raw
    if isinstance(part, Text):
        is_edited_text = old_part is not None and isinstance(_decode_content_part(old_part), Text)
        return overlay_fields(old_part if is_edited_text else None, {"type": "text", "text": part.text})
    if isinstance(part, Media):
        media_part = build_media_part(part) if media else None
        if media_part:
            return media_part
        return {"type": "text", "text": format_text_document(part) or format_part_placeholder(part)}
    if isinstance(part, Opaque):
        return {"type": "text", "text": format_part_placeholder(part)}
    return {}


def build_media_part(part: Media) -> dict[str, Any] | None:
    """Build a content part that shows ``part``, or return None if Chat can only show it as text."""
    url = build_data_url(part) or (part.source if part.form == "url" else "")
    if part.kind == "image":
        if url:
            return {"type": "image_url", "image_url": {"url": url}}
        return None
    if part.kind == "audio" and part.form == "base64":
        audio_format = _AUDIO_FORMATS.get(part.mime, part.mime.partition("/")[2])
        return {"type": "input_audio", "input_audio": {"data": part.source, "format": audio_format}}
    # Documents of plain text are sent as text, which every server reads.
    is_text = format_text_document(part) is not None
    if part.kind != "document" or part.form == "url" or is_text or not part.source:
        return None
    file = {"file_data": url} if part.form == "base64" else {"file_id": part.source}
    if part.name:
        file["filename"] = part.name
    return {"type": "file", "file": file}


_AUDIO_FORMATS = {"audio/mpeg": "mp3", "audio/x-wav": "wav", "audio/wave": "wav"}
"""MIME types of audio whose subtype is not the name that Chat has for the format."""


def _encode_calls(calls: Sequence[Part], old_message: _WireMessage | None) -> list[Any]:
    """Encode ``tool_calls``; a call written anew keeps the extra fields of the old call with its id."""
    old_by_id: dict[str, Raw] = {}
    if old_message is not None:
        for raw in old_message.tool_calls or ():
            old_call = _decode_call(raw)
            if isinstance(old_call, ToolCall):
                old_by_id[old_call.id] = raw
    encoded: list[Any] = []
    for call in calls:
        if call.raw is not None or not isinstance(call, ToolCall):
            encoded.append(call.raw)
            continue
        function = {"name": call.name, "arguments": call.arguments}
        new_fields = {"id": call.id, "type": "function", "function": function}
        # An edited custom call is written as a function call: its free text is a JSON string in ``arguments`` now.
        encoded.append(overlay_fields(old_by_id.get(call.id), new_fields, ("custom",)))
    return encoded


def _iter_extra_fields(parts: Sequence[Part]) -> Iterator[tuple[str, Any]]:
    """Yield the message fields that opaque parts and reasoning were decoded from."""
    reasoning_by_field = _group_reasoning(parts)
    for part in parts:
        if isinstance(part, Opaque):
            if part.kind.startswith("message.") and part.raw is not None:
                yield part.kind.removeprefix("message."), part.raw
        elif isinstance(part, Thinking) and part.signature is not None:
            # Reasoning of another API has no field here and is dropped.
            field = part.signature.data
            same_field = reasoning_by_field.pop(field, []) if part.signature.api == API_NAME else []
            if len(same_field) == 1:
                yield field, part.text if part.raw is None else part.raw
            elif same_field:
                yield field, "\n\n".join([thinking.text for thinking in same_field if thinking.text])


def _group_reasoning(parts: Sequence[Part]) -> dict[str, list[Thinking]]:
    """Return the reasoning of Chat by the field that it goes into. Merged answers have several of one field."""
    reasoning_by_field: dict[str, list[Thinking]] = {}
    for part in parts:
        if isinstance(part, Thinking) and part.signature is not None and part.signature.api == API_NAME:
            reasoning_by_field.setdefault(part.signature.data, []).append(part)
    return reasoning_by_field
