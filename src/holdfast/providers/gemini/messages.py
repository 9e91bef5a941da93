"""Gemini generateContent: one element of ``contents`` to values and back.

Field names are read in both spellings that occur (``functionCall``, ``function_call``) and written in camelCase, or as
the part that is edited spelled them. A content with nothing but function responses has the role ``tool``. A
``thoughtSignature`` is the seal of the part that carries it; one on no words at all is ``Thinking`` without text.
Inline data of plain words, of a user or in a response, are ``Text``.

Ids are optional here. A call or response without one is named after its function and its place among those of its
content (``ls#1``), for pairing alone: such an id is never written. ``link_results_to_calls`` ties responses to calls as
the API does, by id, else by name and order. A content of an unknown role is one ``Opaque("message", raw)`` in a
``system`` message.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import msgspec
from msgspec import Raw, Struct
from msgspec.json import Decoder
from msgspec.structs import replace

from holdfast.messages.message import Message, Role, format_part_placeholder
from holdfast.messages.parts import Media, Opaque, Part, ProviderSignature, Text, Thinking, ToolCall, ToolResult
from holdfast.providers.common.block_alignment import align_parts_with_blocks
from holdfast.providers.common.json.raw_json import (
    JsonBytes,
    count_base64_bytes,
    decode_json,
    decode_json_fields,
    encode_json,
    overlay_fields,
    wrap_call_arguments,
)
from holdfast.providers.common.media import convert_text_document, encode_media_base64

API_NAME = "gemini"

__all__ = [
    "API_NAME",
    "decode_message",
    "encode_message",
    "link_results_to_calls",
]


# -- the shapes on the wire --------------------------------------------------------------------------------------------


class _WireContent(Struct, gc=False):
    role: str | None = None
    parts: list[Raw] | None = None


class _FunctionCall(Struct, gc=False):
    name: str | None = None
    id: str | None = None
    args: Raw = Raw(b"{}")


class _FunctionResponse(Struct, gc=False):
    name: str | None = None
    id: str | None = None
    response: Raw = Raw(b"{}")
    parts: list[Raw] | None = None


class _InlineData(
    Struct, gc=False, rename={"mime": "mimeType", "mime_": "mime_type", "name": "displayName", "name_": "display_name"}
):
    mime: str | None = None
    mime_: str | None = None
    name: str | None = None
    name_: str | None = None
    data: str | None = None


class _FileData(_InlineData, gc=False, rename={"uri": "fileUri", "uri_": "file_uri"}):
    uri: str | None = None
    uri_: str | None = None


_WIRE_NAMES = {
    "signature": "thoughtSignature",
    "signature_": "thought_signature",
    "call": "functionCall",
    "call_": "function_call",
    "result": "functionResponse",
    "result_": "function_response",
    "blob": "inlineData",
    "blob_": "inline_data",
    "file": "fileData",
    "file_": "file_data",
}


class _WirePart(Struct, gc=False, rename=_WIRE_NAMES):
    text: str | None = None
    thought: bool | None = None
    signature: str | None = None
    signature_: str | None = None
    call: _FunctionCall | None = None
    call_: _FunctionCall | None = None
    result: _FunctionResponse | None = None
    result_: _FunctionResponse | None = None
    blob: _InlineData | None = None
    blob_: _InlineData | None = None
    file: _FileData | None = None
    file_: _FileData | None = None


_CONTENT_DECODER = Decoder(_WireContent)
_PART_DECODER = Decoder(_WirePart)
_FIELDS_DECODER = Decoder(dict[str, Raw])
_STRING_DECODER = Decoder(str)

_ROLE_BY_WIRE_ROLE: dict[str, Role] = {"user": "user", "model": "assistant", "": "user"}
_METADATA_FIELDS = frozenset({"thought", "thoughtSignature", "mediaResolution", "mediaProcessing", "partMetadata"})
"""Fields beside the data of a part that say nothing themselves; others end in ``Metadata`` (google-genai 3.4)."""
_EMPTY_JSON = frozenset({b"null", b'""', b"false"})


# -- from the wire -----------------------------------------------------------------------------------------------------


def decode_message(raw: JsonBytes) -> Message:
    """Return one element of ``contents`` as values; its parts keep their bytes.

    Raises ``FormatError`` when ``raw`` is no JSON object, or its ``parts`` are no list.
    """
    raw = raw if isinstance(raw, Raw) else Raw(raw)
    wire = decode_json(_CONTENT_DECODER, raw, "the content")
    role = _ROLE_BY_WIRE_ROLE.get(wire.role or "")
    if role is None:
        return Message("system", (Opaque("message", raw),))
    parts = _decode_parts(wire.parts or ())
    parts = tuple(map(convert_text_document, parts)) if role == "user" else parts
    if role == "user" and parts and all(type(part) is ToolResult for part in parts):
        role = "tool"
    return Message(role, parts)


def _decode_parts(raws: Iterable[Raw]) -> tuple[Part, ...]:
    """Return the parts of a content, those that have no id named by their place."""
    counts: Counter[tuple[type, str]] = Counter()
    parts = [_decode_part(raw) for raw in raws]
    for index, part in enumerate(parts):
        if type(part) is ToolCall and not part.id:
            counts[ToolCall, part.name] += 1
            parts[index] = replace(part, id=f"{part.name}#{counts[ToolCall, part.name]}")
        elif type(part) is ToolResult and not part.call_id:
            counts[ToolResult, part.name] += 1
            parts[index] = replace(part, call_id=f"{part.name}#{counts[ToolResult, part.name]}")
    return tuple(parts)


def _decode_part(raw: Raw) -> Part:
    """Return one part as a value; a call or result without an id has none yet."""
    try:
        return _read_part(_PART_DECODER.decode(raw), raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return Opaque("unknown", raw)


def _read_part(part: _WirePart, raw: Raw) -> Part:
    """Return what the one field of a part that holds data says; two of them are more than may stand there."""
    signature = _build_signature(part.signature or part.signature_)
    call, result = part.call or part.call_, part.result or part.result_
    media = part.blob or part.blob_ or part.file or part.file_
    if sum(value is not None for value in (part.text or None, call, result, media)) > 1:
        return Opaque("unknown", raw, signature)
    if call is not None:
        return ToolCall(call.id or "", call.name or "", _read_arguments(call.args), signature, raw)
    if result is not None:
        return _read_function_response(result, raw)
    if media is not None:
        return _read_media(media, raw)
    return _read_text_part(part, signature, raw)


def _build_signature(signature: str | None) -> ProviderSignature | None:
    return ProviderSignature(API_NAME, "", signature) if signature else None


def _read_arguments(args: Raw) -> str:
    text = bytes(args).decode()
    return "{}" if text == "null" else text


def _read_text_part(part: _WirePart, signature: ProviderSignature | None, raw: Raw) -> Part:
    """Return a part with text or with nothing that Holdfast reads."""
    if part.text is None and (kind := _find_payload_field(raw)):
        return Opaque(kind, raw, signature)
    if part.text and part.thought:
        return Thinking(part.text, signature or ProviderSignature(API_NAME, "", ""), raw)
    return (
        Thinking("", signature, raw)
        if signature is not None and not part.text
        else Text(part.text or "", signature, raw)
    )


def _find_payload_field(raw: Raw) -> str:
    """Return the name of the field that holds what a part says, or nothing when it says nothing."""
    names = (_to_camel_case(key) for key, value in decode_json_fields(raw).items() if bytes(value) != b"null")
    return next((name for name in names if name not in _METADATA_FIELDS and not name.endswith("Metadata")), "")


def _to_camel_case(key: str) -> str:
    first, *rest = key.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _read_function_response(result: _FunctionResponse, raw: Raw) -> ToolResult:
    """Return a function response as a result; beside the words of one that is no object stands what is wrong."""
    text, is_error = _read_response_text(result.response)
    inner: list[Text | Media | Opaque] = [Text(text)] if text else []
    if not bytes(result.response).startswith(b"{"):
        inner.append(Opaque("functionResponse", result.response))
    inner += [_decode_response_part(raw_part) for raw_part in result.parts or ()]
    return ToolResult(result.id or "", result.name or "", tuple(inner), is_error, raw)


def _read_response_text(response: Raw) -> tuple[str, bool]:
    """Return the words of a ``response`` and whether they are an error: one known key's, or the whole as JSON.

    Blank words are none: a function may have nothing to say.
    """
    try:
        raw_fields = _FIELDS_DECODER.decode(response)
    except msgspec.ValidationError:
        return _format_response_value(response), False
    filled_fields = {key: value for key, value in raw_fields.items() if bytes(value) not in _EMPTY_JSON}
    if len(filled_fields) == 1 and filled_fields.keys() <= {"output", "result", "error"}:
        return _format_response_value(*filled_fields.values()), "error" in filled_fields
    return _format_response_value(response) if filled_fields else "", "error" in filled_fields


def _format_response_value(value: Raw) -> str:
    data = bytes(value)
    text = _STRING_DECODER.decode(data) if data.startswith(b'"') else msgspec.json.format(data, indent=-1).decode()
    return text if text.strip() and data != b"null" else ""


def _decode_response_part(raw: Raw) -> Text | Media | Opaque:
    """Return one part inside a function response."""
    part = _decode_part(raw)
    if isinstance(part, Media):
        return convert_text_document(part)
    return part if isinstance(part, Opaque) else Opaque("unknown", raw)


def _read_media(blob: _InlineData, raw: Raw) -> Media:
    mime, name = blob.mime or blob.mime_ or "", blob.name or blob.name_ or ""
    kind = mime.partition("/")[0]
    kind = kind if kind in ("image", "audio", "video") else "document"
    if isinstance(blob, _FileData):
        uri = blob.uri or blob.uri_ or ""
        is_file = _GEMINI_FILES_HOST in uri or not uri.startswith(("https://", "http://"))
        return Media(kind, mime, 0, name, uri, raw, "file" if is_file else "url")
    data = (blob.data or "").replace("-", "+").replace("_", "/")
    return Media(kind, mime, count_base64_bytes(data), name, data, raw, "base64")


_GEMINI_FILES_HOST = "generativelanguage.googleapis.com/"
"""Where Gemini keeps files that were given to it: such an address is an id, only its owner may read it."""


# -- to the wire -------------------------------------------------------------------------------------------------------


def encode_message(message: Message, base: Raw | None = None) -> list[bytes]:
    """Return ``message`` as one content, or none when nothing in it can be sent.

    A part with ``raw`` goes out as those bytes. A part without is written anew; of the part that stood in its place in
    ``base`` it keeps the spelling and the fields that it does not say itself. Other fields of ``base`` stay.
    Thinking of another API and media that cannot be shown are left out or named by a placeholder.
    """
    if len(message.parts) == 1 and type(message.parts[0]) is Opaque and message.parts[0].kind == "message":
        return [bytes(message.parts[0].raw)] if message.parts[0].raw is not None else []
    stood = _WireContent() if base is None else decode_json(_CONTENT_DECODER, base, "the base content")
    parts = _encode_parts(message.parts, stood.parts or [])
    if message.parts and not parts:
        return []
    role = "model" if message.role == "assistant" else "user"
    role_fields = {"role": role} if base is None or stood.role or role == "model" else {}
    parts_fields = {"parts": parts} if parts or base is None or stood.parts is not None else {}
    return [encode_json(overlay_fields(base, role_fields | parts_fields))]


def _encode_parts(parts: Sequence[Part], old: Sequence[Raw]) -> list[Any]:
    """Return the parts of a content."""
    stand = align_parts_with_blocks(parts, old, _decode_parts)
    wires = (_encode_part(part, stand.get(index)) for index, part in enumerate(parts))
    return [wire for wire in wires if wire is not None]


def _encode_part(part: Part, old_part: Raw | None = None) -> Raw | dict[str, Any] | None:
    """Return one part as it is written, or nothing when this API has no form for it."""
    if part.raw is not None:
        return part.raw
    stood = None if old_part is None or type(_decode_part(old_part)) is not type(part) else old_part
    if isinstance(part, ToolResult):
        return _overlay_in_spelling(stood, {"functionResponse": _build_function_response(part, stood)})
    new = _build_part(part)
    return None if new is None else _overlay_in_spelling(stood, new)


def _build_part(part: Part) -> dict[str, Any] | None:
    """Return the fields of a part that says what ``part`` says."""
    if isinstance(part, Text):
        return {"text": part.text} | _build_signature_field(part.signature)
    if isinstance(part, ToolCall):
        call = {"id": part.id, "name": part.name, "args": wrap_call_arguments(part.arguments)}
        if _is_generated_id(part.id, part.name):
            del call["id"]
        return {"functionCall": call} | _build_signature_field(part.signature)
    if isinstance(part, Thinking) and part.signature is not None and part.signature.api == API_NAME:
        return {"text": part.text} | ({"thought": True} if part.text else {}) | _build_signature_field(part.signature)
    return _build_media_part(part) or {"text": format_part_placeholder(part)} if isinstance(part, Media) else None


def _build_signature_field(signature: ProviderSignature | None) -> dict[str, str]:
    return (
        {"thoughtSignature": signature.data}
        if signature is not None and signature.api == API_NAME and signature.data
        else {}
    )


def _is_generated_id(id_: str, name: str) -> bool:
    """Return whether ``decode_message`` made ``id_`` for the function ``name`` (any, where it is not known)."""
    head, mark, number = id_.rpartition("#")
    return not id_ or (mark == "#" and number.isdecimal() and head == (name or head))


def _build_function_response(part: ToolResult, old_part: Raw | None) -> dict[str, Any]:
    stood = None if old_part is None else _decode_function_response(old_part)
    name = part.name or (stood.name if stood else "") or _GENERATED_ID_SUFFIX.sub("", part.call_id)
    response: dict[str, Any] = {} if _is_generated_id(part.call_id, name) else {"id": part.call_id}
    response |= {"name": name, "response": _build_response(part, stood)}
    media_parts = [
        inner_part.raw or _build_media_part(inner_part) for inner_part in part.content if isinstance(inner_part, Media)
    ]
    media_parts += [
        inner_part.raw
        for inner_part in part.content
        if isinstance(inner_part, Opaque) and inner_part.kind != "functionResponse"
    ]
    media_parts += [inner_part.raw for inner_part in part.content if _is_inline_text(inner_part)]
    media_parts = [inner_part for inner_part in media_parts if inner_part is not None]
    return response | ({"parts": media_parts} if media_parts else {})


_GENERATED_ID_SUFFIX = re.compile(r"#\d+\Z")


def _decode_function_response(old_part: Raw) -> _FunctionResponse | None:
    part = _PART_DECODER.decode(old_part)
    return part.result or part.result_


def _build_response(part: ToolResult, old_response: _FunctionResponse | None) -> Raw | dict[str, str]:
    """Return ``response``: the old one where it says the same, else the words under their key."""
    text = "\n".join(word for word in map(_get_result_part_text, part.content) if word)
    if old_response is None or not bytes(old_response.response).startswith(b"{"):
        return {"error" if part.is_error else "output": text}
    if _read_response_text(old_response.response) == (text, part.is_error):
        return old_response.response
    key = "result" if "result" in decode_json_fields(old_response.response) else "output"
    return {"error" if part.is_error else key: text}


def _get_result_part_text(part: Text | Media | Opaque) -> str:
    """Return what is said of a part of a result in words: all of a text, and media that cannot be shown."""
    if isinstance(part, Text):
        return "" if _is_inline_text(part) else part.text
    return (
        format_part_placeholder(part)
        if isinstance(part, Media) and part.raw is None and _build_media_part(part) is None
        else ""
    )


def _is_inline_text(part: Text | Media | Opaque) -> bool:
    """Return whether a text of a result stands there as inline data."""
    return isinstance(part, Text) and part.raw is not None and isinstance(_decode_part(part.raw), Media)


def _build_media_part(part: Media) -> dict[str, Any] | None:
    """Return a part that shows ``part``, or nothing where Gemini has no form for it."""
    mime_fields = {"mimeType": part.mime} if part.mime else {}
    data = encode_media_base64(part)
    if data and part.mime:
        return {"inlineData": mime_fields | {"data": data}}
    if not data and part.source.startswith(("https://", "http://", "gs://")):
        return {"fileData": mime_fields | {"fileUri": part.source}}
    return None


_PAYLOAD_FIELDS = _METADATA_FIELDS - {"partMetadata"} | {
    "text",
    "functionCall",
    "functionResponse",
    "inlineData",
    "fileData",
    "videoMetadata",
    "parts",
    "id",
    "displayName",
    "partialArgs",
}
"""Fields that belong to what a part said; they go when it says something else."""


def _overlay_in_spelling(base: Raw | None, new: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of ``base`` with those of ``new`` put over them as ``base`` spells them."""
    if base is None:
        return new
    stood = decode_json_fields(base)
    spelling = {_to_camel_case(key): key for key in stood}
    new_fields: dict[str, Any] = {
        key: old
        for key, old in stood.items()
        if _to_camel_case(key) in new or _to_camel_case(key) not in _PAYLOAD_FIELDS
    }
    for key, value in new.items():
        old = stood.get(spelling.get(key, ""))
        is_nested = isinstance(value, dict) and key != "response" and old is not None and bytes(old).startswith(b"{")
        new_fields[spelling.get(key, key)] = _overlay_in_spelling(old, value) if is_nested else value
    return new_fields


# -- which response answers which call ---------------------------------------------------------------------------------


def link_results_to_calls(messages: Sequence[Message]) -> list[Message]:
    """Return ``messages`` with every result tied to its call: its name, and the call's id where one of them had none.

    A response answers the call of its id, else the first open one of its name in the content before it. A message in
    which nothing is missing stays the same object; parts keep their bytes.
    """
    out = list(messages)
    assistant_indexes = [index for index, message in enumerate(messages) if message.role == "assistant"]
    for at, end in pairwise([*assistant_indexes, len(messages)]):
        if messages[at].calls:
            out[at + 1 : end] = _link_answers(messages[at].calls, messages[at + 1 : end])
    return out


def _link_answers(calls: Sequence[ToolCall], answers: Sequence[Message]) -> list[Message]:
    """Return the messages that follow ``calls`` with their results tied to them."""
    ids = {result.call_id for message in answers for result in message.results if not _has_generated_id(result)}
    waiting = [call for call in calls if call.id not in ids]
    calls_by_id = {call.id: call for call in calls if call.id in ids}
    return [_link_message(message, calls_by_id, waiting) for message in answers]


def _link_message(message: Message, calls_by_id: Mapping[str, ToolCall], waiting: list[ToolCall]) -> Message:
    parts = [_link_result(part, calls_by_id, waiting) if type(part) is ToolResult else part for part in message.parts]
    is_unchanged = all(new is old for new, old in zip(parts, message.parts, strict=True))
    return message if is_unchanged else Message(message.role, tuple(parts))


def _link_result(result: ToolResult, calls_by_id: Mapping[str, ToolCall], waiting: list[ToolCall]) -> ToolResult:
    """Return ``result`` with id and name of its call; one that was found by name is taken off ``waiting``."""
    call = calls_by_id.get(result.call_id)
    if call is None:
        fits = [candidate for candidate in waiting if _can_answer(result, candidate)]
        call = next((candidate for candidate in fits if candidate.id == result.call_id), fits[0] if fits else None)
        if call is None:
            return result
        waiting.remove(call)
    name = result.name or call.name
    is_unchanged = (call.id, name) == (result.call_id, result.name)
    return result if is_unchanged else replace(result, call_id=call.id, name=name)


def _can_answer(result: ToolResult, call: ToolCall) -> bool:
    name = result.name or _GENERATED_ID_SUFFIX.sub("", result.call_id)
    return call.name == name and (_has_generated_id(result) or _is_generated_id(call.id, call.name))


def _has_generated_id(result: ToolResult) -> bool:
    return _is_generated_id(result.call_id, result.name)
