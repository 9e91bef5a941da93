"""Gemini generateContent: one element of ``contents`` to values and back.

Field names are read in both spellings that occur (``functionCall``, ``function_call``) and written in camelCase, or as
the part that is edited spelled them. A content with nothing but function responses has the role ``tool``. A
``thoughtSignature`` is the seal of the part that carries it; one on no words at all is ``Thinking`` without text.
Inline data of plain words, of a user or in a response, are ``Text``.

Ids are optional here. A call or response without one is named after its function and its place among those of its
content (``ls#1``), for pairing alone: such an id is never written. ``linked`` ties responses to calls as the API does,
by id, else by name and order. A content of an unknown role is one ``Opaque("message", raw)`` in a ``system`` message.
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

from holdfast.messages.message import Message, Role, placeholder
from holdfast.messages.parts import Media, Opaque, Part, Seal, Text, Thinking, ToolCall, ToolResult
from holdfast.providers.common.block_alignment import places
from holdfast.providers.common.foreign import foreign_messages as strangers
from holdfast.providers.common.json.raw_json import Bytes, as_object, decoded_size, fields, overlay, read, write
from holdfast.providers.common.media import as_words, packed
from holdfast.providers.models import gemini_dialect as dialect

API = "gemini"

__all__ = ["API", "decode", "dialect", "dicts", "encode", "linked", "messages"]


# -- the shapes on the wire --------------------------------------------------------------------------------------------


class _Wire(Struct, gc=False):
    role: str | None = None
    parts: list[Raw] | None = None


class _Call(Struct, gc=False):
    name: str | None = None
    id: str | None = None
    args: Raw = Raw(b"{}")


class _Response(Struct, gc=False):
    name: str | None = None
    id: str | None = None
    response: Raw = Raw(b"{}")
    parts: list[Raw] | None = None


class _Blob(
    Struct, gc=False, rename={"mime": "mimeType", "mime_": "mime_type", "name": "displayName", "name_": "display_name"}
):
    mime: str | None = None
    mime_: str | None = None
    name: str | None = None
    name_: str | None = None
    data: str | None = None


class _Where(_Blob, gc=False, rename={"uri": "fileUri", "uri_": "file_uri"}):
    uri: str | None = None
    uri_: str | None = None


_SPELT = {
    "seal": "thoughtSignature",
    "seal_": "thought_signature",
    "call": "functionCall",
    "call_": "function_call",
    "result": "functionResponse",
    "result_": "function_response",
    "blob": "inlineData",
    "blob_": "inline_data",
    "file": "fileData",
    "file_": "file_data",
}


class _Part(Struct, gc=False, rename=_SPELT):
    text: str | None = None
    thought: bool | None = None
    seal: str | None = None
    seal_: str | None = None
    call: _Call | None = None
    call_: _Call | None = None
    result: _Response | None = None
    result_: _Response | None = None
    blob: _Blob | None = None
    blob_: _Blob | None = None
    file: _Where | None = None
    file_: _Where | None = None


_WIRE = Decoder(_Wire)
_PART = Decoder(_Part)
_FIELDS = Decoder(dict[str, Raw])
_DICT = Decoder(dict[str, Any])
_STRING = Decoder(str)

_ROLES: dict[str, Role] = {"user": "user", "model": "assistant", "": "user"}
_ABOUT = frozenset({"thought", "thoughtSignature", "mediaResolution", "mediaProcessing", "partMetadata"})
"""Fields beside the data of a part that say nothing themselves; others end in ``Metadata`` (google-genai 3.4)."""
_NOTHING = frozenset({b"null", b'""', b"false"})


# -- from the wire -----------------------------------------------------------------------------------------------------


def decode(raw: Bytes) -> Message:
    """Return one element of ``contents`` as values; its parts keep their bytes.

    Raises ``FormatError`` when ``raw`` is no JSON object, or its ``parts`` are no list.
    """
    raw = raw if isinstance(raw, Raw) else Raw(raw)
    wire = read(_WIRE, raw, "the content")
    role = _ROLES.get(wire.role or "")
    if role is None:
        return Message("system", (Opaque("message", raw),))
    parts = _parts(wire.parts or ())
    parts = tuple(map(as_words, parts)) if role == "user" else parts
    if role == "user" and parts and all(type(part) is ToolResult for part in parts):
        role = "tool"
    return Message(role, parts)


def _parts(raws: Iterable[Raw]) -> tuple[Part, ...]:
    """Return the parts of a content, those that have no id named by their place."""
    seen: Counter[tuple[type, str]] = Counter()
    parts = [_part(raw) for raw in raws]
    for index, part in enumerate(parts):
        if type(part) is ToolCall and not part.id:
            seen[ToolCall, part.name] += 1
            parts[index] = replace(part, id=f"{part.name}#{seen[ToolCall, part.name]}")
        elif type(part) is ToolResult and not part.call_id:
            seen[ToolResult, part.name] += 1
            parts[index] = replace(part, call_id=f"{part.name}#{seen[ToolResult, part.name]}")
    return tuple(parts)


def _part(raw: Raw) -> Part:
    """Return one part as a value; a call or result without an id has none yet."""
    try:
        return _read(_PART.decode(raw), raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return Opaque("unknown", raw)


def _read(part: _Part, raw: Raw) -> Part:
    """Return what the one field of a part that holds data says; two of them are more than may stand there."""
    seal = _seal(part.seal or part.seal_)
    call, result = part.call or part.call_, part.result or part.result_
    media = part.blob or part.blob_ or part.file or part.file_
    if sum(one is not None for one in (part.text or None, call, result, media)) > 1:
        return Opaque("unknown", raw, seal)
    if call is not None:
        return ToolCall(call.id or "", call.name or "", _arguments(call.args), seal, raw)
    if result is not None:
        return _result(result, raw)
    if media is not None:
        return _media(media, raw)
    return _words(part, seal, raw)


def _seal(signature: str | None) -> Seal | None:
    return Seal(API, "", signature) if signature else None


def _arguments(args: Raw) -> str:
    text = bytes(args).decode()
    return "{}" if text == "null" else text


def _words(part: _Part, seal: Seal | None, raw: Raw) -> Part:
    """Return a part with text or with nothing that Holdfast reads."""
    if part.text is None and (kind := _kind(raw)):
        return Opaque(kind, raw, seal)
    if part.text and part.thought:
        return Thinking(part.text, seal or Seal(API, "", ""), raw)
    return Thinking("", seal, raw) if seal is not None and not part.text else Text(part.text or "", seal, raw)


def _kind(raw: Raw) -> str:
    """Return the name of the field that holds what a part says, or nothing when it says nothing."""
    names = (_camel(key) for key, value in fields(raw).items() if bytes(value) != b"null")
    return next((name for name in names if name not in _ABOUT and not name.endswith("Metadata")), "")


def _camel(key: str) -> str:
    first, *rest = key.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _result(result: _Response, raw: Raw) -> ToolResult:
    """Return a function response as a result; beside the words of one that is no object stands what is wrong."""
    said, failed = _said(result.response)
    inner: list[Text | Media | Opaque] = [Text(said)] if said else []
    if not bytes(result.response).startswith(b"{"):
        inner.append(Opaque("functionResponse", result.response))
    inner += [_inner(one) for one in result.parts or ()]
    return ToolResult(result.id or "", result.name or "", tuple(inner), failed, raw)


def _said(response: Raw) -> tuple[str, bool]:
    """Return the words of a ``response`` and whether they are an error: one known key's, or the whole as JSON.

    Blank words are none: a function may have nothing to say.
    """
    try:
        found = _FIELDS.decode(response)
    except msgspec.ValidationError:
        return _shown(response), False
    told = {key: value for key, value in found.items() if bytes(value) not in _NOTHING}
    if len(told) == 1 and told.keys() <= {"output", "result", "error"}:
        return _shown(*told.values()), "error" in told
    return _shown(response) if told else "", "error" in told


def _shown(value: Raw) -> str:
    data = bytes(value)
    said = _STRING.decode(data) if data.startswith(b'"') else msgspec.json.format(data, indent=-1).decode()
    return said if said.strip() and data != b"null" else ""


def _inner(raw: Raw) -> Text | Media | Opaque:
    """Return one part inside a function response."""
    part = _part(raw)
    if isinstance(part, Media):
        return as_words(part)
    return part if isinstance(part, Opaque) else Opaque("unknown", raw)


def _media(blob: _Blob, raw: Raw) -> Media:
    mime, name = blob.mime or blob.mime_ or "", blob.name or blob.name_ or ""
    kind = mime.partition("/")[0]
    kind = kind if kind in ("image", "audio", "video") else "document"
    if isinstance(blob, _Where):
        uri = blob.uri or blob.uri_ or ""
        is_file = _OURS in uri or not uri.startswith(("https://", "http://"))
        return Media(kind, mime, 0, name, uri, raw, "file" if is_file else "url")
    data = (blob.data or "").replace("-", "+").replace("_", "/")
    return Media(kind, mime, decoded_size(data), name, data, raw, "base64")


_OURS = "generativelanguage.googleapis.com/"
"""Where Gemini keeps files that were given to it: such an address is an id, only its owner may read it."""


# -- to the wire -------------------------------------------------------------------------------------------------------


def encode(message: Message, base: Raw | None = None) -> list[bytes]:
    """Return ``message`` as one content, or none when nothing in it can be sent.

    A part with ``raw`` goes out as those bytes. A part without is written anew; of the part that stood in its place in
    ``base`` it keeps the spelling and the fields that it does not say itself. Other fields of ``base`` stay.
    Thinking of another API and media that cannot be shown are left out or named by a placeholder.
    """
    if len(message.parts) == 1 and type(message.parts[0]) is Opaque and message.parts[0].kind == "message":
        return [bytes(message.parts[0].raw)] if message.parts[0].raw is not None else []
    stood = _Wire() if base is None else read(_WIRE, base, "the base content")
    parts = _written(message.parts, stood.parts or [])
    if message.parts and not parts:
        return []
    role = "model" if message.role == "assistant" else "user"
    said = {"role": role} if base is None or stood.role or role == "model" else {}
    shown = {"parts": parts} if parts or base is None or stood.parts is not None else {}
    return [write(overlay(base, said | shown))]


def _written(parts: Sequence[Part], old: Sequence[Raw]) -> list[Any]:
    """Return the parts of a content."""
    stand = places(parts, old, _parts)
    wires = (_one(part, stand.get(index)) for index, part in enumerate(parts))
    return [wire for wire in wires if wire is not None]


def _one(part: Part, place: Raw | None = None) -> Raw | dict[str, Any] | None:
    """Return one part as it is written, or nothing when this API has no form for it."""
    if part.raw is not None:
        return part.raw
    stood = None if place is None or type(_part(place)) is not type(part) else place
    if isinstance(part, ToolResult):
        return _spelt(stood, {"functionResponse": _new_result(part, stood)})
    new = _new(part)
    return None if new is None else _spelt(stood, new)


def _new(part: Part) -> dict[str, Any] | None:
    """Return the fields of a part that says what ``part`` says."""
    if isinstance(part, Text):
        return {"text": part.text} | _sealed(part.seal)
    if isinstance(part, ToolCall):
        call = {"id": part.id, "name": part.name, "args": as_object(part.arguments)}
        if _made_up(part.id, part.name):
            del call["id"]
        return {"functionCall": call} | _sealed(part.seal)
    if isinstance(part, Thinking) and part.seal is not None and part.seal.api == API:
        return {"text": part.text} | ({"thought": True} if part.text else {}) | _sealed(part.seal)
    return _new_media(part) or {"text": placeholder(part)} if isinstance(part, Media) else None


def _sealed(seal: Seal | None) -> dict[str, str]:
    return {"thoughtSignature": seal.data} if seal is not None and seal.api == API and seal.data else {}


def _made_up(id_: str, name: str) -> bool:
    """Return whether ``decode`` made ``id_`` for the function ``name`` (any, where it is not known)."""
    head, mark, number = id_.rpartition("#")
    return not id_ or (mark == "#" and number.isdecimal() and head == (name or head))


def _new_result(part: ToolResult, place: Raw | None) -> dict[str, Any]:
    stood = None if place is None else _response(place)
    name = part.name or (stood.name if stood else "") or _NUMBER.sub("", part.call_id)
    response: dict[str, Any] = {} if _made_up(part.call_id, name) else {"id": part.call_id}
    response |= {"name": name, "response": _said_anew(part, stood)}
    shown = [one.raw or _new_media(one) for one in part.content if isinstance(one, Media)]
    shown += [one.raw for one in part.content if isinstance(one, Opaque) and one.kind != "functionResponse"]
    shown += [one.raw for one in part.content if _is_file(one)]
    shown = [one for one in shown if one is not None]
    return response | ({"parts": shown} if shown else {})


_NUMBER = re.compile(r"#\d+\Z")


def _response(place: Raw) -> _Response | None:
    part = _PART.decode(place)
    return part.result or part.result_


def _said_anew(part: ToolResult, stood: _Response | None) -> Raw | dict[str, str]:
    """Return ``response``: the old one where it says the same, else the words under their key."""
    said = "\n".join(word for word in map(_words_of, part.content) if word)
    if stood is None or not bytes(stood.response).startswith(b"{"):
        return {"error" if part.is_error else "output": said}
    if _said(stood.response) == (said, part.is_error):
        return stood.response
    key = "result" if "result" in fields(stood.response) else "output"
    return {"error" if part.is_error else key: said}


def _words_of(part: Text | Media | Opaque) -> str:
    """Return what is said of a part of a result in words: all of a text, and media that cannot be shown."""
    if isinstance(part, Text):
        return "" if _is_file(part) else part.text
    return placeholder(part) if isinstance(part, Media) and part.raw is None and _new_media(part) is None else ""


def _is_file(part: Text | Media | Opaque) -> bool:
    """Return whether a text of a result stands there as inline data."""
    return isinstance(part, Text) and part.raw is not None and isinstance(_part(part.raw), Media)


def _new_media(part: Media) -> dict[str, Any] | None:
    """Return a part that shows ``part``, or nothing where Gemini has no form for it."""
    named = {"mimeType": part.mime} if part.mime else {}
    data = packed(part)
    if data and part.mime:
        return {"inlineData": named | {"data": data}}
    if not data and part.source.startswith(("https://", "http://", "gs://")):
        return {"fileData": named | {"fileUri": part.source}}
    return None


_OWN = _ABOUT - {"partMetadata"} | {
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


def _spelt(base: Raw | None, new: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of ``base`` with those of ``new`` put over them as ``base`` spells them."""
    if base is None:
        return new
    stood = fields(base)
    spelling = {_camel(key): key for key in stood}
    kept: dict[str, Any] = {key: old for key, old in stood.items() if _camel(key) in new or _camel(key) not in _OWN}
    for key, value in new.items():
        old = stood.get(spelling.get(key, ""))
        nested = isinstance(value, dict) and key != "response" and old is not None and bytes(old).startswith(b"{")
        kept[spelling.get(key, key)] = _spelt(old, value) if nested else value
    return kept


# -- which response answers which call ---------------------------------------------------------------------------------


def linked(values: Sequence[Message]) -> list[Message]:
    """Return ``values`` with every result tied to its call: its name, and the call's id where one of them had none.

    A response answers the call of its id, else the first open one of its name in the content before it. A message in
    which nothing is missing stays the same object; parts keep their bytes.
    """
    out = list(values)
    asked = [index for index, message in enumerate(values) if message.role == "assistant"]
    for at, end in pairwise([*asked, len(values)]):
        if values[at].calls:
            out[at + 1 : end] = _answering(values[at].calls, values[at + 1 : end])
    return out


def _answering(calls: Sequence[ToolCall], answers: Sequence[Message]) -> list[Message]:
    """Return the messages that follow ``calls`` with their results tied to them."""
    ids = {result.call_id for message in answers for result in message.results if not _nameless(result)}
    waiting = [call for call in calls if call.id not in ids]
    named = {call.id: call for call in calls if call.id in ids}
    return [_tied(message, named, waiting) for message in answers]


def _tied(message: Message, named: Mapping[str, ToolCall], waiting: list[ToolCall]) -> Message:
    parts = [_tied_result(part, named, waiting) if type(part) is ToolResult else part for part in message.parts]
    same = all(new is old for new, old in zip(parts, message.parts, strict=True))
    return message if same else Message(message.role, tuple(parts))


def _tied_result(result: ToolResult, named: Mapping[str, ToolCall], waiting: list[ToolCall]) -> ToolResult:
    """Return ``result`` with id and name of its call; one that was found by name is taken off ``waiting``."""
    call = named.get(result.call_id)
    if call is None:
        fits = [one for one in waiting if _may_answer(result, one)]
        call = next((one for one in fits if one.id == result.call_id), fits[0] if fits else None)
        if call is None:
            return result
        waiting.remove(call)
    name = result.name or call.name
    same = (call.id, name) == (result.call_id, result.name)
    return result if same else replace(result, call_id=call.id, name=name)


def _may_answer(result: ToolResult, call: ToolCall) -> bool:
    name = result.name or _NUMBER.sub("", result.call_id)
    return call.name == name and (_nameless(result) or _made_up(call.id, call.name))


def _nameless(result: ToolResult) -> bool:
    return _made_up(result.call_id, result.name)


# -- whole lists, for callers who hold dicts ---------------------------------------------------------------------------


def messages(wire: Sequence[Any]) -> list[Message]:
    """Return ``contents`` of a request, dicts or objects of an SDK, as values; results carry the ids of their calls.

    Raises ``FormatError`` with the JSON path of what cannot be read or belongs to another API.
    """
    return linked(strangers.read_all(wire, API, decode))


def dicts(values: Sequence[Message]) -> list[Any]:
    """Return values as the ``contents`` of a request, as dicts.

    Raises ``FormatError`` where arguments hold a number that Python has no value for (``1e999``).
    """
    every = linked(strangers.values(values, API))
    return [read(_DICT, wire, "the content") for message in every for wire in encode(message)]
