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

from holdfast.messages.message import Message, Role, format_part_placeholder
from holdfast.messages.parts import Media, Opaque, Part, Text, Thinking, ToolCall, ToolResult
from holdfast.normalize.pairing import is_synthetic_result
from holdfast.providers.common.json.raw_json import (
    JsonBytes,
    decode_json,
    decode_json_fields,
    encode_json,
    overlay_fields,
)
from holdfast.providers.common.media import build_data_url, format_text_document
from holdfast.providers.openai_responses.items import (
    API_NAME,
    ARGUMENT_FIELD_BY_CALL,
    INNER_KIND_PREFIX,
    TEXT_PART_TYPES,
    build_message_from_items,
    decode_item,
    decode_message,
    decode_model_item,
    get_item_role,
    group_items_by_message,
    split_response_items,
    strip_list_brackets,
)

__all__ = [
    "API_NAME",
    "adapt_outputs_to_calls",
    "decode_message",
    "encode_message",
    "group_items_by_message",
    "strip_list_brackets",
]

_CONTENT_DECODER: Decoder[str | list[Raw] | None] = Decoder(str | list[Raw] | None)
_NON_FUNCTION_CALLS = frozenset(ARGUMENT_FIELD_BY_CALL) - {"function_call"}


class _ItemType(Struct):
    type: str = ""
    call_id: str | None = None


_ITEM_TYPE_DECODER = Decoder(_ItemType)


class _OldPart(NamedTuple):
    """Where a part stood: item ``number`` of the group it came in."""

    number: int
    item: Raw
    part: Part


def encode_message(message: Message, base: Raw | None = None) -> list[bytes]:
    """Return ``message`` as items, or none when nothing in it can be sent.

    A part with ``raw`` goes out as those bytes. One without is written anew over the item that stood in its place in
    ``base``: the fields that it does not say itself stay, its ``id`` goes.
    """
    if len(message.parts) == 1 and type(message.parts[0]) is Opaque and message.parts[0].kind == "message":
        return [bytes(message.parts[0].raw)] if message.parts[0].raw is not None else []
    if base is not None and decode_message(base) == message:
        return [bytes(raw) for raw in split_response_items(strip_list_brackets(base))]
    stood = [] if base is None else _decode_base_parts(base)
    if message.role == "assistant":
        return list(_encode_assistant_items(message.parts, stood))
    results = message.results
    places = _match_old_parts(results, [place for place in stood if type(place.part) is ToolResult])
    out = [_encode_output(result, place) for result, place in zip(results, places, strict=True)]
    other_parts = [part for part in message.parts if type(part) is not ToolResult]
    if other_parts or not results:
        out.append(_encode_input_message(message.role, other_parts, None if results or not stood else base))
    return out


# -- where parts stood -------------------------------------------------------------------------------------------------


def _decode_base_parts(base: Raw) -> list[_OldPart]:
    """Return the parts of a group and the items they came in."""
    out: list[_OldPart] = []
    for number, raw in enumerate(split_response_items(strip_list_brackets(base))):
        item = decode_item(raw)
        parts = (
            decode_model_item(item, raw)
            if get_item_role(item) == "assistant"
            else build_message_from_items([(item, raw)]).parts
        )
        out += [_OldPart(number, raw, part) for part in parts]
    return out


def _match_old_parts(parts: Sequence[Part], old_parts: Sequence[_OldPart]) -> list[_OldPart | None]:
    """Return for each part where it stood: by its order if as many stood there, else by its bytes or its id."""
    if len(parts) == len(old_parts):
        return list(old_parts)
    places_by_key: dict[object, list[_OldPart]] = defaultdict(list)
    for place in reversed(old_parts):
        places_by_key[_get_match_key(place.part, by_id=False)].append(place)
        places_by_key[_get_match_key(place.part, by_id=True)].append(place)
    out: list[_OldPart | None] = []
    for part in parts:
        candidates = places_by_key.get(_get_match_key(part, by_id=part.raw is None))
        out.append(candidates.pop() if candidates else None)
    return out


def _get_match_key(part: Part, *, by_id: bool) -> object:
    if not by_id:
        return bytes(part.raw) if part.raw is not None else None
    if type(part) is ToolCall:
        return ToolCall, part.id
    return (ToolResult, part.call_id) if type(part) is ToolResult else None


# -- what the model said -----------------------------------------------------------------------------------------------


def _encode_assistant_items(parts: Sequence[Part], old_parts: Sequence[_OldPart]) -> Iterator[bytes]:
    """Yield the items of an assistant's message; neighbouring pieces of one message item stay together."""
    places = _match_old_parts(parts, old_parts)
    loose = _find_items_without_reasoning(parts, old_parts)
    pairs = [(part, place) for part, place in zip(parts, places, strict=True) if _can_send_in_answer(part)]
    owned_parts = [(_get_owning_item(part, place, index), part, place) for index, (part, place) in enumerate(pairs)]
    for (is_message_piece, _), run in groupby(owned_parts, key=lambda entry: entry[0]):
        run_pairs = [(part, place) for _, part, place in run]
        part, place = run_pairs[0]
        if is_message_piece:
            yield _encode_message_item(run_pairs, old_parts, loose)
        elif part.raw is not None:
            yield _encode_kept_item(part.raw, drop_id=place is not None and place.number in loose)
        else:
            yield encode_json(_build_item(part, place))


def _can_send_in_answer(part: Part) -> bool:
    """Return whether this API has a form for ``part`` in an answer."""
    if isinstance(part, Thinking) and part.raw is None:
        return part.signature is not None and part.signature.api == API_NAME and bool(part.signature.data)
    return part.raw is not None if isinstance(part, Opaque) else not isinstance(part, ToolResult)


def _get_owning_item(part: Part, old_part: _OldPart | None, index: int) -> tuple[bool, int]:
    """Return whether ``part`` is a piece of a message item, and what it belongs to: the item that stood, or nothing."""
    is_message_piece = isinstance(part, Text | Media) or (
        isinstance(part, Opaque) and part.kind.startswith(INNER_KIND_PREFIX)
    )
    if is_message_piece and part.raw is not None and _is_message_item(part.raw):
        return False, index
    has_message_item = old_part is not None and _is_message_item(old_part.item)
    return (
        is_message_piece,
        old_part.number
        if is_message_piece and old_part is not None and has_message_item
        else -1
        if is_message_piece
        else index,
    )


def _is_message_item(raw: Raw) -> bool:
    """Return whether ``raw`` is a whole message item, not a piece of one."""
    try:
        kind = _ITEM_TYPE_DECODER.decode(raw).type
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    return kind in ("message", "")


def _find_items_without_reasoning(parts: Sequence[Part], old_parts: Sequence[_OldPart]) -> frozenset[int]:
    """Return the numbers of the items that follow reasoning which is gone: their ids name a unit that is broken."""
    thinking_bytes = {bytes(part.raw) for part in parts if type(part) is Thinking and part.raw is not None}
    out: set[int] = set()
    has_lost_reasoning = thinking = False
    for place in old_parts:
        if type(place.part) is Thinking:
            has_lost_reasoning = (
                (has_lost_reasoning and thinking)
                or place.part.raw is None
                or bytes(place.part.raw) not in thinking_bytes
            )
        elif has_lost_reasoning:
            out.add(place.number)
        thinking = type(place.part) is Thinking
    return frozenset(out)


def _encode_kept_item(raw: Raw, *, drop_id: bool) -> bytes:
    """Return an item as it stood, without its id when that names a broken unit."""
    if not drop_id or b'"id"' not in bytes(raw):
        return bytes(raw)
    return encode_json({key: value for key, value in decode_json_fields(raw).items() if key != "id"})


def _encode_message_item(
    pairs: Sequence[tuple[Part, _OldPart | None]], old_parts: Sequence[_OldPart], loose: frozenset[int]
) -> bytes:
    """Return a message item with these pieces: the one that stood, if they are all of it, as they were."""
    place = next((place for _, place in pairs if place is not None), None)
    if place is None or not _is_message_item(place.item):
        return encode_json(
            {"type": "message", "role": "assistant", "content": [_encode_answer_part(part, None) for part, _ in pairs]}
        )
    old = [old_part.part.raw for old_part in old_parts if old_part.number == place.number]
    if [part.raw for part, _ in pairs] == old and None not in old:
        return _encode_kept_item(place.item, drop_id=place.number in loose)
    content = decode_json_fields(place.item).get("content", Raw(b"[]"))
    first = pairs[0][0]
    if bytes(content).startswith(b'"') and len(pairs) == 1 and isinstance(first, Text):
        said_: Any = first.text
    else:
        pieces = _decode_content_list(content)
        alone = pieces[0] if len(pieces) == 1 else None
        said_ = [_encode_answer_part(part, alone or (None if spot is None else spot.part.raw)) for part, spot in pairs]
    return encode_json(_drop_item_id(overlay_fields(place.item, {"content": said_})))


def _decode_content_list(content: Raw) -> list[Raw]:
    value = decode_json(_CONTENT_DECODER, content, "the content")
    return value if isinstance(value, list) else []


def _drop_item_id(item: dict[str, Any]) -> dict[str, Any]:
    item.pop("id", None)
    return item


def _encode_answer_part(part: Part, old_part: Raw | None) -> Any:
    """Return a piece of a message item of the assistant's."""
    if part.raw is not None:
        return part.raw
    text = (
        part.text
        if isinstance(part, Text)
        else format_part_placeholder(part)
        if isinstance(part, Media | Opaque)
        else ""
    )
    if old_part is None or _get_part_type(old_part) not in TEXT_PART_TYPES:
        return {"type": "output_text", "text": text}
    return overlay_fields(old_part, {"text": text}, ("annotations", "logprobs"))


def _build_item(part: Part, old_part: _OldPart | None) -> dict[str, Any]:
    """Return the fields of an item that says what ``part`` says, over those of the item that stood in its place."""
    if isinstance(part, ToolCall):
        stood = old_part.item if old_part is not None and isinstance(old_part.part, ToolCall) else None
        return _build_call_item(part, stood)
    seal = part.signature.data if isinstance(part, Thinking) and part.signature is not None else ""
    summary = [{"type": "summary_text", "text": part.text}] if isinstance(part, Thinking) and part.text else []
    seal_fields = {"id": seal} if seal.startswith("rs_") else {"encrypted_content": seal}
    return {"type": "reasoning", **seal_fields, "summary": summary}


def _build_call_item(part: ToolCall, old_item: Raw | None) -> dict[str, Any]:
    new: dict[str, Any] = {"type": "function_call", "call_id": part.id, "name": part.name, "arguments": part.arguments}
    if old_item is None:
        return new
    old = decode_json_fields(old_item)
    kind = _ITEM_TYPE_DECODER.decode(old_item).type
    field = ARGUMENT_FIELD_BY_CALL.get(kind, "arguments")
    if kind != "function_call":
        new = {
            "type": kind,
            "call_id": part.id,
            field: _encode_call_arguments(part.arguments, as_text=field == "input"),
        }
        new |= {"name": part.name} if "name" in old else {}
    return _drop_item_id(old | new)


def _encode_call_arguments(arguments: str, *, as_text: bool) -> Raw:
    """Return what a call of another kind asks for: the JSON it is, or a string."""
    try:
        value = msgspec.json.decode(arguments)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return Raw(encode_json(arguments))
    return Raw(arguments.encode()) if isinstance(value, str) or not as_text else Raw(encode_json(arguments))


# -- what others said --------------------------------------------------------------------------------------------------


def _encode_input_message(role: Role, parts: Sequence[Part], base: Raw | None) -> bytes:
    """Return everything but results as one message item, over the one that stood there."""
    old = {} if base is None else decode_json_fields(split_response_items(strip_list_brackets(base))[0])
    content = old.get("content", Raw(b"[]"))
    if bytes(content).startswith(b'"') and len(parts) == 1 and isinstance(parts[0], Text) and parts[0].raw is None:
        return encode_json(old | {"content": parts[0].text})
    pieces = _decode_content_list(content)
    places = pieces if len(pieces) == len(parts) else [None] * len(parts)
    new_pieces = [_encode_input_part(part, place) for part, place in zip(parts, places, strict=True)]
    if old:
        return encode_json(old | {"content": [piece for piece in new_pieces if piece is not None]})
    wire_role = "developer" if role == "system" else "user"
    return encode_json(
        {"type": "message", "role": wire_role, "content": [piece for piece in new_pieces if piece is not None]}
    )


def _encode_input_part(part: Part, old_part: Raw | None = None) -> Any:
    """Return a piece that users and tools may send, or nothing."""
    if part.raw is not None:
        return part.raw
    if isinstance(part, Text):
        kind = _get_part_type(old_part)
        stood = old_part if kind in TEXT_PART_TYPES else None
        return overlay_fields(stood, {"type": kind if kind in TEXT_PART_TYPES else "input_text", "text": part.text})
    if isinstance(part, Media):
        return _build_media_part(part) or {"type": "input_text", "text": format_part_placeholder(part)}
    return {"type": "input_text", "text": format_part_placeholder(part)} if isinstance(part, Opaque) else None


def _get_part_type(old_part: Raw | None) -> str:
    """Return the type of the piece that stood at a place, empty where there was none that has one."""
    try:
        return "" if old_part is None else _ITEM_TYPE_DECODER.decode(old_part).type
    except (msgspec.ValidationError, UnicodeDecodeError):
        return ""


def _build_media_part(part: Media) -> dict[str, Any] | None:
    """Return a piece that shows ``part``, or nothing where Responses has no form for it."""
    source = build_data_url(part) or part.source
    if part.kind == "image":
        return {"type": "input_image", "file_id" if part.form == "file" else "image_url": source}
    if part.kind != "document" or (words := format_text_document(part)) is not None:
        return {"type": "input_text", "text": words} if part.kind == "document" and words else None
    if part.form != "base64":
        return {"type": "input_file", "file_url" if part.form == "url" else "file_id": source}
    return {"type": "input_file", "filename": part.name or "document", "file_data": source}


def _encode_output(result: ToolResult, old_part: _OldPart | None) -> bytes:
    """Return the output of a call, over the one that stood there."""
    if result.raw is not None:
        return bytes(result.raw)
    stood = None if old_part is None else old_part.item
    old = {} if stood is None else decode_json_fields(stood)
    if b"stdout" in bytes(old.get("output", Raw(b""))):
        return encode_json(
            old | {"call_id": result.call_id, "output": _build_shell_output(result, _get_shell_outcome(old["output"]))}
        )
    name = "id" if old and "call_id" not in old else "call_id"
    new = {"type": "function_call_output", name: result.call_id, "output": _encode_output_content(result.content)}
    return encode_json(new if not old else old | {key: value for key, value in new.items() if key != "type"})


def _encode_output_content(content: Sequence[Text | Media | Opaque]) -> Any:
    if not content or (len(content) == 1 and isinstance(content[0], Text) and content[0].raw is None):
        return content[0].text if content and isinstance(content[0], Text) else ""
    return [_encode_input_part(part) for part in content]


def _get_shell_outcome(output: Raw) -> Raw | None:
    """Return how the last command of a shell's output ended."""
    chunks = _decode_content_list(output)
    return decode_json_fields(chunks[-1]).get("outcome") if chunks else None


def _build_shell_output(result: ToolResult, outcome: Raw | None = None) -> list[dict[str, Any]]:
    """Return the output of a shell: one chunk with all its words, and how it ended."""
    words = "\n".join(
        [part.text if isinstance(part, Text) else format_part_placeholder(part) for part in result.content]
    )
    final_outcome = outcome or {"type": "exit", "exit_code": int(result.is_error)}
    return [{"stdout": words, "stderr": "", "outcome": final_outcome}]


# -- outputs of other kinds of calls -----------------------------------------------------------------------------------


def adapt_outputs_to_calls(groups: list[list[JsonBytes]]) -> list[list[JsonBytes]]:
    """Return the items of messages with every ``function_call_output`` in the form that its call asks for.

    An output made from values (bytes; what came over the wire is ``Raw``) does not know the kind of its call; beside
    functions there are custom tools and shells.
    """
    if not any(_is_new_function_output(wire) for group in groups for wire in group):
        return groups
    kinds: dict[str, str] = {}
    out = []
    for group in groups:
        for wire in group:
            kinds |= dict(_iter_call_types(bytes(wire)))
        out.append(
            [_adapt_output(bytes(wire), kinds) if kinds and _is_new_function_output(wire) else wire for wire in group]
        )
    return out


def _is_new_function_output(encoded_item: JsonBytes) -> bool:
    return isinstance(encoded_item, bytes) and b'"function_call_output"' in encoded_item


def _iter_call_types(encoded_item: bytes) -> Iterator[tuple[str, str]]:
    has_other_kinds = any(kind.encode() in encoded_item for kind in _NON_FUNCTION_CALLS)
    for item in map(decode_item, split_response_items(encoded_item) if has_other_kinds else ()):
        if item.type in _NON_FUNCTION_CALLS and (item.call_id or item.id):
            yield item.call_id or item.id or "", item.type


def _adapt_output(encoded_item: bytes, kinds: Mapping[str, str]) -> bytes:
    try:
        item = decode_item(encoded_item)
    except ValueError:
        return encoded_item
    kind = kinds.get(item.call_id or "")
    if item.type != "function_call_output" or kind is None:
        return encoded_item
    old = decode_json_fields(encoded_item) | {"type": f"{kind}_output"}
    result = build_message_from_items([(item, Raw(encoded_item))]).results[0]
    if kind == "local_shell_call":
        return encode_json({"id" if key == "call_id" else key: value for key, value in old.items()})
    if kind == "shell_call":
        return encode_json(old | {"output": _build_shell_output(replace(result, is_error=is_synthetic_result(result)))})
    return encode_json(old | {"status": "failed"} if kind == "apply_patch_call" else old)
