"""OpenAI Responses: the messages of ``input`` to values and back.

How items become parts is told in ``responses_items``. An item's ``id`` names what the server made: it goes out with
the bytes it came in, and goes when the item is written anew or the reasoning before it is gone. What Responses has no
form for is left out (another API's thinking) or named by a placeholder.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw, Struct
from msgspec.json import Decoder
from msgspec.structs import replace

from holdfast.messages.message import Message, Role, placeholder
from holdfast.messages.parts import Media, Opaque, Part, Text, Thinking, ToolCall, ToolResult
from holdfast.normalize.pairing import is_made_up
from holdfast.providers.common.foreign import foreign_messages as strangers
from holdfast.providers.common.json.raw_json import Bytes, fields, overlay, read, write
from holdfast.providers.common.media import data_url, told
from holdfast.providers.models import responses_dialect as dialect
from holdfast.providers.openai_responses.items import (
    API,
    CALLS,
    INNER,
    TEXTS,
    decode,
    grouped,
    groups,
    item_of,
    items_of,
    listed,
    message_of,
    said,
    speaker,
)

__all__ = ["API", "answering", "decode", "dialect", "dicts", "encode", "groups", "listed", "messages"]

_CONTENT: Decoder[str | list[Raw] | None] = Decoder(str | list[Raw] | None)
_OTHERS = frozenset(CALLS) - {"function_call"}


class _Kind(Struct):
    type: str = ""
    call_id: str | None = None


_KIND = Decoder(_Kind)


class _Place(NamedTuple):
    """Where a part stood: item ``number`` of the group it came in."""

    number: int
    item: Raw
    part: Part


def encode(message: Message, base: Raw | None = None) -> list[bytes]:
    """Return ``message`` as items, or none when nothing in it can be sent.

    A part with ``raw`` goes out as those bytes. One without is written anew over the item that stood in its place in
    ``base``: the fields that it does not say itself stay, its ``id`` goes.
    """
    if len(message.parts) == 1 and type(message.parts[0]) is Opaque and message.parts[0].kind == "message":
        return [bytes(message.parts[0].raw)] if message.parts[0].raw is not None else []
    if base is not None and decode(base) == message:
        return [bytes(raw) for raw in items_of(listed(base))]
    stood = [] if base is None else _stood(base)
    if message.role == "assistant":
        return list(_answer(message.parts, stood))
    results = message.results
    places = _places(results, [place for place in stood if type(place.part) is ToolResult])
    out = [_result(result, place) for result, place in zip(results, places, strict=True)]
    rest = [part for part in message.parts if type(part) is not ToolResult]
    if rest or not results:
        out.append(_words(message.role, rest, None if results or not stood else base))
    return out


# -- where parts stood -------------------------------------------------------------------------------------------------


def _stood(base: Raw) -> list[_Place]:
    """Return the parts of a group and the items they came in."""
    out: list[_Place] = []
    for number, raw in enumerate(items_of(listed(base))):
        item = item_of(raw)
        parts = said(item, raw) if speaker(item) == "assistant" else message_of([(item, raw)]).parts
        out += [_Place(number, raw, part) for part in parts]
    return out


def _places(parts: Sequence[Part], stood: Sequence[_Place]) -> list[_Place | None]:
    """Return for each part where it stood: by its order if as many stood there, else by its bytes or its id."""
    if len(parts) == len(stood):
        return list(stood)
    known: dict[object, list[_Place]] = defaultdict(list)
    for place in reversed(stood):
        known[_key(place.part, named=False)].append(place)
        known[_key(place.part, named=True)].append(place)
    out: list[_Place | None] = []
    for part in parts:
        found = known.get(_key(part, named=part.raw is None))
        out.append(found.pop() if found else None)
    return out


def _key(part: Part, *, named: bool) -> object:
    if not named:
        return bytes(part.raw) if part.raw is not None else None
    if type(part) is ToolCall:
        return ToolCall, part.id
    return (ToolResult, part.call_id) if type(part) is ToolResult else None


# -- what the model said -----------------------------------------------------------------------------------------------


def _answer(parts: Sequence[Part], stood: Sequence[_Place]) -> Iterator[bytes]:
    """Yield the items of an assistant's message; neighbouring pieces of one message item stay together."""
    places = _places(parts, stood)
    loose = _loose(parts, stood)
    pairs = [(part, place) for part, place in zip(parts, places, strict=True) if _is_sent(part)]
    numbered = [(_owner(part, place, index), part, place) for index, (part, place) in enumerate(pairs)]
    for (spoken, _), run in groupby(numbered, key=lambda one: one[0]):
        found = [(part, place) for _, part, place in run]
        part, place = found[0]
        if spoken:
            yield _spoken(found, stood, loose)
        elif part.raw is not None:
            yield _kept(part.raw, loose=place is not None and place.number in loose)
        else:
            yield write(_new_item(part, place))


def _is_sent(part: Part) -> bool:
    """Return whether this API has a form for ``part`` in an answer."""
    if isinstance(part, Thinking) and part.raw is None:
        return part.seal is not None and part.seal.api == API and bool(part.seal.data)
    return part.raw is not None if isinstance(part, Opaque) else not isinstance(part, ToolResult)


def _owner(part: Part, place: _Place | None, index: int) -> tuple[bool, int]:
    """Return whether ``part`` is a piece of a message item, and what it belongs to: the item that stood, or nothing."""
    spoken = isinstance(part, Text | Media) or (isinstance(part, Opaque) and part.kind.startswith(INNER))
    if spoken and part.raw is not None and _is_item(part.raw):
        return False, index
    same = place is not None and _is_item(place.item)
    return spoken, place.number if spoken and place is not None and same else -1 if spoken else index


def _is_item(raw: Raw) -> bool:
    """Return whether ``raw`` is a whole message item, not a piece of one."""
    try:
        kind = _KIND.decode(raw).type
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    return kind in ("message", "")


def _loose(parts: Sequence[Part], stood: Sequence[_Place]) -> frozenset[int]:
    """Return the numbers of the items that follow reasoning which is gone: their ids name a unit that is broken."""
    kept = {bytes(part.raw) for part in parts if type(part) is Thinking and part.raw is not None}
    out: set[int] = set()
    gone = thinking = False
    for place in stood:
        if type(place.part) is Thinking:
            gone = (gone and thinking) or place.part.raw is None or bytes(place.part.raw) not in kept
        elif gone:
            out.add(place.number)
        thinking = type(place.part) is Thinking
    return frozenset(out)


def _kept(raw: Raw, *, loose: bool) -> bytes:
    """Return an item as it stood, without its id when that names a broken unit."""
    if not loose or b'"id"' not in bytes(raw):
        return bytes(raw)
    return write({key: value for key, value in fields(raw).items() if key != "id"})


def _spoken(pairs: Sequence[tuple[Part, _Place | None]], stood: Sequence[_Place], loose: frozenset[int]) -> bytes:
    """Return a message item with these pieces: the one that stood, if they are all of it, as they were."""
    place = next((place for _, place in pairs if place is not None), None)
    if place is None or not _is_item(place.item):
        return write({"type": "message", "role": "assistant", "content": [_piece(part, None) for part, _ in pairs]})
    old = [one.part.raw for one in stood if one.number == place.number]
    if [part.raw for part, _ in pairs] == old and None not in old:
        return _kept(place.item, loose=place.number in loose)
    content = fields(place.item).get("content", Raw(b"[]"))
    first = pairs[0][0]
    if bytes(content).startswith(b'"') and len(pairs) == 1 and isinstance(first, Text):
        said_: Any = first.text
    else:
        pieces = _pieces(content)
        alone = pieces[0] if len(pieces) == 1 else None
        said_ = [_piece(part, alone or (None if spot is None else spot.part.raw)) for part, spot in pairs]
    return write(_unnamed(overlay(place.item, {"content": said_})))


def _pieces(content: Raw) -> list[Raw]:
    found = read(_CONTENT, content, "the content")
    return found if isinstance(found, list) else []


def _unnamed(item: dict[str, Any]) -> dict[str, Any]:
    item.pop("id", None)
    return item


def _piece(part: Part, place: Raw | None) -> Any:
    """Return a piece of a message item of the assistant's."""
    if part.raw is not None:
        return part.raw
    text = part.text if isinstance(part, Text) else placeholder(part) if isinstance(part, Media | Opaque) else ""
    if place is None or _kind_at(place) not in TEXTS:
        return {"type": "output_text", "text": text}
    return overlay(place, {"text": text}, ("annotations", "logprobs"))


def _new_item(part: Part, place: _Place | None) -> dict[str, Any]:
    """Return the fields of an item that says what ``part`` says, over those of the item that stood in its place."""
    if isinstance(part, ToolCall):
        stood = place.item if place is not None and isinstance(place.part, ToolCall) else None
        return _call(part, stood)
    seal = part.seal.data if isinstance(part, Thinking) and part.seal is not None else ""
    summary = [{"type": "summary_text", "text": part.text}] if isinstance(part, Thinking) and part.text else []
    sealed = {"id": seal} if seal.startswith("rs_") else {"encrypted_content": seal}
    return {"type": "reasoning", **sealed, "summary": summary}


def _call(part: ToolCall, stood: Raw | None) -> dict[str, Any]:
    new: dict[str, Any] = {"type": "function_call", "call_id": part.id, "name": part.name, "arguments": part.arguments}
    if stood is None:
        return new
    old = fields(stood)
    kind = _KIND.decode(stood).type
    field = CALLS.get(kind, "arguments")
    if kind != "function_call":
        new = {"type": kind, "call_id": part.id, field: _asked(part.arguments, as_text=field == "input")}
        new |= {"name": part.name} if "name" in old else {}
    return _unnamed(old | new)


def _asked(arguments: str, *, as_text: bool) -> Raw:
    """Return what a call of another kind asks for: the JSON it is, or a string."""
    try:
        value = msgspec.json.decode(arguments)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return Raw(write(arguments))
    return Raw(arguments.encode()) if isinstance(value, str) or not as_text else Raw(write(arguments))


# -- what others said --------------------------------------------------------------------------------------------------


def _words(role: Role, parts: Sequence[Part], base: Raw | None) -> bytes:
    """Return everything but results as one message item, over the one that stood there."""
    old = {} if base is None else fields(items_of(listed(base))[0])
    content = old.get("content", Raw(b"[]"))
    if bytes(content).startswith(b'"') and len(parts) == 1 and isinstance(parts[0], Text) and parts[0].raw is None:
        return write(old | {"content": parts[0].text})
    pieces = _pieces(content)
    places = pieces if len(pieces) == len(parts) else [None] * len(parts)
    shown = [_shown(part, place) for part, place in zip(parts, places, strict=True)]
    if old:
        return write(old | {"content": [one for one in shown if one is not None]})
    role_ = "developer" if role == "system" else "user"
    return write({"type": "message", "role": role_, "content": [one for one in shown if one is not None]})


def _shown(part: Part, place: Raw | None = None) -> Any:
    """Return a piece that users and tools may send, or nothing."""
    if part.raw is not None:
        return part.raw
    if isinstance(part, Text):
        kind = _kind_at(place)
        stood = place if kind in TEXTS else None
        return overlay(stood, {"type": kind if kind in TEXTS else "input_text", "text": part.text})
    if isinstance(part, Media):
        return _new_media(part) or {"type": "input_text", "text": placeholder(part)}
    return {"type": "input_text", "text": placeholder(part)} if isinstance(part, Opaque) else None


def _kind_at(place: Raw | None) -> str:
    """Return the type of the piece that stood at a place, empty where there was none that has one."""
    try:
        return "" if place is None else _KIND.decode(place).type
    except (msgspec.ValidationError, UnicodeDecodeError):
        return ""


def _new_media(part: Media) -> dict[str, Any] | None:
    """Return a piece that shows ``part``, or nothing where Responses has no form for it."""
    packed = data_url(part) or part.source
    if part.kind == "image":
        return {"type": "input_image", "file_id" if part.form == "file" else "image_url": packed}
    if part.kind != "document" or (words := told(part)) is not None:
        return {"type": "input_text", "text": words} if part.kind == "document" and words else None
    if part.form != "base64":
        return {"type": "input_file", "file_url" if part.form == "url" else "file_id": packed}
    return {"type": "input_file", "filename": part.name or "document", "file_data": packed}


def _result(result: ToolResult, place: _Place | None) -> bytes:
    """Return the output of a call, over the one that stood there."""
    if result.raw is not None:
        return bytes(result.raw)
    stood = None if place is None else place.item
    old = {} if stood is None else fields(stood)
    if b"stdout" in bytes(old.get("output", Raw(b""))):
        return write(old | {"call_id": result.call_id, "output": _shell(result, _outcome(old["output"]))})
    name = "id" if old and "call_id" not in old else "call_id"
    new = {"type": "function_call_output", name: result.call_id, "output": _output(result.content)}
    return write(new if not old else old | {key: value for key, value in new.items() if key != "type"})


def _output(content: Sequence[Text | Media | Opaque]) -> Any:
    if not content or (len(content) == 1 and isinstance(content[0], Text) and content[0].raw is None):
        return content[0].text if content and isinstance(content[0], Text) else ""
    return [_shown(part) for part in content]


def _outcome(output: Raw) -> Raw | None:
    """Return how the last command of a shell's output ended."""
    chunks = _pieces(output)
    return fields(chunks[-1]).get("outcome") if chunks else None


def _shell(result: ToolResult, outcome: Raw | None = None) -> list[dict[str, Any]]:
    """Return the output of a shell: one chunk with all its words, and how it ended."""
    words = "\n".join([part.text if isinstance(part, Text) else placeholder(part) for part in result.content])
    ended = outcome or {"type": "exit", "exit_code": int(result.is_error)}
    return [{"stdout": words, "stderr": "", "outcome": ended}]


# -- outputs of other kinds of calls -----------------------------------------------------------------------------------


def answering(groups: list[list[Bytes]]) -> list[list[Bytes]]:
    """Return the items of messages with every ``function_call_output`` in the form that its call asks for.

    An output made from values (bytes; what came over the wire is ``Raw``) does not know the kind of its call; beside
    functions there are custom tools and shells.
    """
    if not any(_is_new_output(wire) for group in groups for wire in group):
        return groups
    kinds: dict[str, str] = {}
    out = []
    for group in groups:
        for wire in group:
            kinds |= dict(_kinds(bytes(wire)))
        out.append([_fitted(bytes(wire), kinds) if kinds and _is_new_output(wire) else wire for wire in group])
    return out


def _is_new_output(wire: Bytes) -> bool:
    return isinstance(wire, bytes) and b'"function_call_output"' in wire


def _kinds(wire: bytes) -> Iterator[tuple[str, str]]:
    known = any(kind.encode() in wire for kind in _OTHERS)
    for item in map(item_of, items_of(wire) if known else ()):
        if item.type in _OTHERS and (item.call_id or item.id):
            yield item.call_id or item.id or "", item.type


def _fitted(wire: bytes, kinds: Mapping[str, str]) -> bytes:
    try:
        item = item_of(wire)
    except ValueError:
        return wire
    kind = kinds.get(item.call_id or "")
    if item.type != "function_call_output" or kind is None:
        return wire
    old = fields(wire) | {"type": f"{kind}_output"}
    result = message_of([(item, Raw(wire))]).results[0]
    if kind == "local_shell_call":
        return write({"id" if key == "call_id" else key: value for key, value in old.items()})
    if kind == "shell_call":
        return write(old | {"output": _shell(replace(result, is_error=is_made_up(result)))})
    return write(old | {"status": "failed"} if kind == "apply_patch_call" else old)


# -- whole lists, for callers who hold dicts ---------------------------------------------------------------------------


def messages(wire: str | Sequence[Any]) -> list[Message]:
    """Return the ``input`` of a request, a string, dicts or objects of an SDK, as values.

    Raises ``FormatError`` with the JSON path of what cannot be read or belongs to another API.
    """
    if isinstance(wire, str):
        return [Message.of("user", wire)]
    return grouped([Raw(one) for one in strangers.written(wire, API)])


def dicts(values: Sequence[Message]) -> list[Any]:
    """Return values as the ``input`` of a request, as dicts."""
    return [
        msgspec.json.decode(wire)
        for group in answering([[*encode(value)] for value in strangers.values(values, API)])
        for wire in group
    ]
