"""Gemini generateContent: decode one element of ``contents`` into a value, and encode it back.

Field names are read in both spellings that occur (``functionCall``, ``function_call``) and written in camelCase, or as
the part that is edited spelled them. A content of nothing but function responses has the role ``tool``. A
``thoughtSignature`` is the signature of the part that carries it; one on a part without text becomes ``Thinking``
without text. Inline data of plain text, from a user or in a response, becomes ``Text``.

Ids are optional in this API. A call or response without one gets an id made of its function and its number among those
of its content (``ls#1``), for pairing alone: such an id is never sent. ``link_results_to_calls`` ties responses to
calls as the API does: by id, else by name and order. A content of an unknown role becomes one ``Opaque("message",
raw)`` in a ``system`` message.
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

from holdfast.messages.message import Message, Role, format_part_placeholder, replace_all_parts
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


# The API accepts camelCase and snake_case, and SDKs send either. Each field is declared in both spellings, the second
# with an underscore after its name.
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
"""Fields of a part that accompany its payload; others end in ``Metadata`` (google-genai 3.4)."""
_EMPTY_JSON = frozenset({b"null", b'""', b"false"})


# -- from the wire -----------------------------------------------------------------------------------------------------


def decode_message(raw: JsonBytes) -> Message:
    """Decode one element of ``contents``; its parts keep their bytes.

    Raises ``FormatError`` if ``raw`` is not a JSON object, or its ``parts`` are not a list.
    """
    raw = raw if isinstance(raw, Raw) else Raw(raw)
    wire = decode_json(_CONTENT_DECODER, raw, "the content")
    role = _ROLE_BY_WIRE_ROLE.get(wire.role or "")
    if role is None:
        return Message("system", (Opaque("message", raw),))
    parts = _decode_parts(wire.parts or ())
    if role == "user":
        parts = tuple(map(convert_text_document, parts))
        if parts and all(type(part) is ToolResult for part in parts):
            role = "tool"
    return Message(role, parts)


def _decode_parts(raws: Iterable[Raw]) -> tuple[Part, ...]:
    """Decode the parts of a content; calls and responses without ids get generated ones."""
    # Calls and responses are numbered alike, so that the second response of ``ls`` gets the id of the second call.
    call_counts: Counter[str] = Counter()
    result_counts: Counter[str] = Counter()
    parts = [_decode_part(raw) for raw in raws]
    for index, part in enumerate(parts):
        if type(part) is ToolCall and not part.id:
            call_counts[part.name] += 1
            parts[index] = replace(part, id=f"{part.name}#{call_counts[part.name]}")
        elif type(part) is ToolResult and not part.call_id:
            result_counts[part.name] += 1
            parts[index] = replace(part, call_id=f"{part.name}#{result_counts[part.name]}")
    return tuple(parts)


def _decode_part(raw: Raw) -> Part:
    """Decode one part; a call or response without an id has an empty one here."""
    try:
        return _read_part(_PART_DECODER.decode(raw), raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return Opaque("unknown", raw)


def _read_part(part: _WirePart, raw: Raw) -> Part:
    """Read the one payload field of a part; a part with two is invalid and stays uninterpreted."""
    signature = _build_signature(part.signature or part.signature_)
    call = part.call or part.call_
    result = part.result or part.result_
    media = part.blob or part.blob_ or part.file or part.file_
    payloads = []
    for value in (part.text or None, call, result, media):
        if value is not None:
            payloads.append(value)
    if len(payloads) > 1:
        return Opaque("unknown", raw, signature)
    if call is not None:
        return ToolCall(
            call.id or "",
            call.name or "",
            _read_arguments(call.args),
            signature,
            raw,
        )
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
    """Read a part with text, with a payload that Holdfast does not interpret, or without any payload."""
    if part.text is None:
        payload_field = _find_payload_field(raw)
        if payload_field:
            return Opaque(payload_field, raw, signature)
    if part.text and part.thought:
        # Without a signature of its own, an empty one still marks the API that may read the thought.
        return Thinking(part.text, signature or ProviderSignature(API_NAME, "", ""), raw)
    if signature is not None and not part.text:
        return Thinking("", signature, raw)
    return Text(part.text or "", signature, raw)


def _find_payload_field(raw: Raw) -> str:
    """Return the name of the payload field of a part in camelCase; empty for a part without one."""
    for key, value in decode_json_fields(raw).items():
        name = _to_camel_case(key)
        is_metadata = name in _METADATA_FIELDS or name.endswith("Metadata")
        if bytes(value) != b"null" and not is_metadata:
            return name
    return ""


def _to_camel_case(key: str) -> str:
    first, *rest = key.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _read_function_response(result: _FunctionResponse, raw: Raw) -> ToolResult:
    text, is_error = _read_response_text(result.response)
    inner: list[Text | Media | Opaque] = [Text(text)] if text else []
    if not bytes(result.response).startswith(b"{"):
        # Invalid: a response must be an object. The opaque part keeps it visible to the rules of the API.
        inner.append(Opaque("functionResponse", result.response))
    inner += [_decode_response_part(raw_part) for raw_part in result.parts or ()]
    return ToolResult(result.id or "", result.name or "", tuple(inner), is_error, raw)


def _read_response_text(response: Raw) -> tuple[str, bool]:
    """Return the text of a ``response`` and whether it is an error.

    The text is the value of ``output``, ``result`` or ``error`` if only one of them is set, else the whole object as
    JSON. Blank text counts as no text, since a function may have nothing to say.
    """
    try:
        raw_fields = _FIELDS_DECODER.decode(response)
    except msgspec.ValidationError:
        return _format_response_value(response), False
    filled_fields = {}
    for key, value in raw_fields.items():
        if bytes(value) not in _EMPTY_JSON:
            filled_fields[key] = value
    is_error = "error" in filled_fields
    if not filled_fields:
        return "", is_error
    if len(filled_fields) == 1 and filled_fields.keys() <= {"output", "result", "error"}:
        return _format_response_value(*filled_fields.values()), is_error
    return _format_response_value(response), is_error


def _format_response_value(value: Raw) -> str:
    data = bytes(value)
    if data == b"null":
        return ""
    is_string = data.startswith(b'"')
    if is_string:
        text = _STRING_DECODER.decode(data)
    else:
        text = msgspec.json.format(data, indent=-1).decode()
    return text if text.strip() else ""


def _decode_response_part(raw: Raw) -> Text | Media | Opaque:
    """Decode one part inside a function response."""
    part = _decode_part(raw)
    if isinstance(part, Media):
        return convert_text_document(part)
    return part if isinstance(part, Opaque) else Opaque("unknown", raw)


def _read_media(blob: _InlineData, raw: Raw) -> Media:
    mime = blob.mime or blob.mime_ or ""
    name = blob.name or blob.name_ or ""
    kind = mime.partition("/")[0]
    if kind not in ("image", "audio", "video"):
        kind = "document"
    if isinstance(blob, _FileData):
        uri = blob.uri or blob.uri_ or ""
        is_web_address = uri.startswith(("https://", "http://")) and _GEMINI_FILES_HOST not in uri
        return Media(kind, mime, 0, name, uri, raw, "url" if is_web_address else "file")
    # Gemini accepts URL-safe base64 too; other APIs and our own readers want the standard alphabet.
    data = (blob.data or "").replace("-", "+").replace("_", "/")
    return Media(kind, mime, count_base64_bytes(data), name, data, raw, "base64")


_GEMINI_FILES_HOST = "generativelanguage.googleapis.com/"
"""The host of files uploaded to Gemini. Such an address works like an id: only its owner can read it."""


# -- to the wire -------------------------------------------------------------------------------------------------------


def encode_message(message: Message, base: Raw | None = None) -> list[bytes]:
    """Encode ``message`` as one content, or none if nothing in it can be sent.

    A part with ``raw`` is sent as those bytes. One without is written anew, and keeps the spelling and the fields that
    it does not describe of the part it replaces in ``base``. Other fields of ``base`` stay. Thinking of another API is
    left out, media without a form here are replaced by a placeholder.
    """
    if len(message.parts) == 1:
        part = message.parts[0]
        if type(part) is Opaque and part.kind == "message":
            return [] if part.raw is None else [bytes(part.raw)]
    if base is None:
        old_content = _WireContent()
    else:
        old_content = decode_json(_CONTENT_DECODER, base, "the base content")
    parts = _encode_parts(message.parts, old_content.parts or [])
    if message.parts and not parts:
        return []
    new_fields: dict[str, Any] = {}
    role = "model" if message.role == "assistant" else "user"
    # A user's content may leave out its role, and an empty one its parts. An edit does not add them.
    if base is None or old_content.role or role == "model":
        new_fields["role"] = role
    if base is None or old_content.parts is not None or parts:
        new_fields["parts"] = parts
    return [encode_json(overlay_fields(base, new_fields))]


def _encode_parts(parts: Sequence[Part], old: Sequence[Raw]) -> list[Any]:
    """Encode the parts of a content over the ones they replace."""
    old_parts = align_parts_with_blocks(parts, old, _decode_parts)
    encoded_parts = []
    for index, part in enumerate(parts):
        encoded_part = _encode_part(part, old_parts.get(index))
        if encoded_part is not None:
            encoded_parts.append(encoded_part)
    return encoded_parts


def _encode_part(part: Part, old_part: Raw | None = None) -> Raw | dict[str, Any] | None:
    """Encode one part over the one it replaces, or return None if this API has no form for it."""
    if part.raw is not None:
        return part.raw
    # A part of another type took this place, and has no use for the old fields.
    if old_part is not None and type(_decode_part(old_part)) is not type(part):
        old_part = None
    if isinstance(part, ToolResult):
        return _overlay_in_spelling(old_part, {"functionResponse": _build_function_response(part, old_part)})
    new_fields = _build_part(part)
    if new_fields is None:
        return None
    return _overlay_in_spelling(old_part, new_fields)


def _build_part(part: Part) -> dict[str, Any] | None:
    """Return the fields of a new part, or None if this API has no form for it."""
    if isinstance(part, Text):
        return {"text": part.text} | _build_signature_field(part.signature)
    if isinstance(part, ToolCall):
        call = {"id": part.id, "name": part.name, "args": wrap_call_arguments(part.arguments)}
        if _is_generated_id(part.id, part.name):
            del call["id"]
        return {"functionCall": call} | _build_signature_field(part.signature)
    if isinstance(part, Thinking) and part.signature is not None and part.signature.api == API_NAME:
        thought_field = {"thought": True} if part.text else {}
        return {"text": part.text} | thought_field | _build_signature_field(part.signature)
    if isinstance(part, Media):
        return _build_media_part(part) or {"text": format_part_placeholder(part)}
    return None


def _build_signature_field(signature: ProviderSignature | None) -> dict[str, str]:
    if signature is None or signature.api != API_NAME or not signature.data:
        return {}
    return {"thoughtSignature": signature.data}


def _is_generated_id(id_: str, name: str) -> bool:
    """Return whether ``decode_message`` made ``id_`` for the function ``name``, or for any function if it is empty."""
    if not id_:
        return True
    head, mark, number = id_.rpartition("#")
    return mark == "#" and number.isdecimal() and head == (name or head)


def _build_function_response(part: ToolResult, old_part: Raw | None) -> dict[str, Any]:
    old_response = None if old_part is None else _decode_function_response(old_part)
    old_name = "" if old_response is None else old_response.name
    # A response must carry the name of its function. Results of other APIs often have none.
    name = part.name or old_name or _GENERATED_ID_SUFFIX.sub("", part.call_id)
    if _is_generated_id(part.call_id, name):
        function_response: dict[str, Any] = {}
    else:
        function_response = {"id": part.call_id}
    function_response["name"] = name
    function_response["response"] = _build_response(part, old_response)
    media: list[Any] = []
    opaque: list[Any] = []
    inline_texts: list[Any] = []
    for inner in part.content:
        if isinstance(inner, Media):
            media.append(inner.raw or _build_media_part(inner))
        elif isinstance(inner, Opaque):
            if inner.kind != "functionResponse":
                opaque.append(inner.raw)
        elif _is_inline_text(inner):
            inline_texts.append(inner.raw)
    inner_parts = []
    for inner_part in (*media, *opaque, *inline_texts):
        if inner_part is not None:
            inner_parts.append(inner_part)
    if inner_parts:
        function_response["parts"] = inner_parts
    return function_response


_GENERATED_ID_SUFFIX = re.compile(r"#\d+\Z")


def _decode_function_response(old_part: Raw) -> _FunctionResponse | None:
    part = _PART_DECODER.decode(old_part)
    return part.result or part.result_


def _build_response(part: ToolResult, old_response: _FunctionResponse | None) -> Raw | dict[str, str]:
    """Build ``response``: the old one if its text is unchanged, else the new text under the old key."""
    texts = [_get_result_part_text(inner) for inner in part.content]
    text = "\n".join([inner_text for inner_text in texts if inner_text])
    if old_response is None or not bytes(old_response.response).startswith(b"{"):
        return {"error" if part.is_error else "output": text}
    # Only the media or the id changed: the old object may have fields that its text does not show.
    if _read_response_text(old_response.response) == (text, part.is_error):
        return old_response.response
    if "result" in decode_json_fields(old_response.response):
        key = "result"
    else:
        key = "output"
    return {"error" if part.is_error else key: text}


def _get_result_part_text(part: Text | Media | Opaque) -> str:
    """Return the text that ``response`` contains for a part of a result; empty for parts that are sent on their own."""
    if isinstance(part, Text):
        return "" if _is_inline_text(part) else part.text
    if isinstance(part, Media) and part.raw is None and _build_media_part(part) is None:
        return format_part_placeholder(part)
    return ""


def _is_inline_text(part: Text | Media | Opaque) -> bool:
    """Return whether a text of a result was sent as inline data."""
    return isinstance(part, Text) and part.raw is not None and isinstance(_decode_part(part.raw), Media)


def _build_media_part(part: Media) -> dict[str, Any] | None:
    """Build a part that shows ``part``, or return None if Gemini has no form for it."""
    mime_fields = {"mimeType": part.mime} if part.mime else {}
    data = encode_media_base64(part)
    if data:
        if part.mime:
            return {"inlineData": mime_fields | {"data": data}}
        return None
    if part.source.startswith(("https://", "http://", "gs://")):
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
"""Fields that describe the old content of a part; they are dropped when the content changes."""


def _overlay_in_spelling(base: Raw | None, new: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of ``base`` with ``new`` put over them, in the spelling of ``base``."""
    if base is None:
        return new
    old_fields = decode_json_fields(base)
    spelling = {_to_camel_case(key): key for key in old_fields}
    merged: dict[str, Any] = {}
    for key, old_value in old_fields.items():
        name = _to_camel_case(key)
        if name in new or name not in _PAYLOAD_FIELDS:
            merged[key] = old_value
    for name, value in new.items():
        key = spelling.get(name, name)
        old = old_fields.get(key) if name in spelling else None
        is_object = isinstance(value, dict) and old is not None and bytes(old).startswith(b"{")
        if is_object and name != "response":  # the caller has merged ``response`` already
            merged[key] = _overlay_in_spelling(old, value)
        else:
            merged[key] = value
    return merged


# -- which response answers which call ---------------------------------------------------------------------------------


def link_results_to_calls(messages: Sequence[Message]) -> list[Message]:
    """Return ``messages`` with the name of its call in every result, and the call's id if either lacks one.

    A response answers the call with its id, else the first open call of its name in the content before it. A message in
    which nothing is missing stays the same object; parts keep their bytes.
    """
    linked = list(messages)
    assistant_indexes = [index for index, message in enumerate(messages) if message.role == "assistant"]
    for index, next_index in pairwise([*assistant_indexes, len(messages)]):
        if messages[index].calls:
            linked[index + 1 : next_index] = _link_answers(messages[index].calls, messages[index + 1 : next_index])
    return linked


def _link_answers(calls: Sequence[ToolCall], answers: Sequence[Message]) -> list[Message]:
    """Return the messages that follow ``calls`` with their results tied to them."""
    sent_ids: set[str] = set()
    for message in answers:
        for result in message.results:
            if not _has_generated_id(result):
                sent_ids.add(result.call_id)
    calls_by_id = {call.id: call for call in calls if call.id in sent_ids}
    # Calls that no response names by id, in order. Responses without ids take them from here by name.
    waiting = [call for call in calls if call.id not in sent_ids]
    return [_link_message(message, calls_by_id, waiting) for message in answers]


def _link_message(message: Message, calls_by_id: Mapping[str, ToolCall], waiting: list[ToolCall]) -> Message:
    parts: list[Part] = list(message.parts)
    for index, part in enumerate(parts):
        if type(part) is ToolResult:
            parts[index] = _link_result(part, calls_by_id, waiting)
    return replace_all_parts(message, parts)


def _link_result(result: ToolResult, calls_by_id: Mapping[str, ToolCall], waiting: list[ToolCall]) -> ToolResult:
    """Return ``result`` with id and name of its call; a call found by name is removed from ``waiting``."""
    call = calls_by_id.get(result.call_id)
    if call is None:
        candidates = []
        for candidate in waiting:
            if _can_answer(result, candidate):
                candidates.append(candidate)
        if not candidates:
            return result
        same_id = []
        for candidate in candidates:
            if candidate.id == result.call_id:
                same_id.append(candidate)
        call = same_id[0] if same_id else candidates[0]
        waiting.remove(call)
    name = result.name or call.name
    if (call.id, name) == (result.call_id, result.name):
        return result
    return replace(result, call_id=call.id, name=name)


def _can_answer(result: ToolResult, call: ToolCall) -> bool:
    name = result.name or _GENERATED_ID_SUFFIX.sub("", result.call_id)
    return call.name == name and (_has_generated_id(result) or _is_generated_id(call.id, call.name))


def _has_generated_id(result: ToolResult) -> bool:
    return _is_generated_id(result.call_id, result.name)
