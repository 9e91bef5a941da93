"""Translate messages that mix the forms of several APIs: each piece is read by the reader of its own API.

Converters and frameworks put one API's images into another's messages, and the calls of one beside the texts of
another.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec import Raw, Struct
from msgspec.structs import replace

from holdfast.errors import FormatError
from holdfast.messages.message import Message, Role
from holdfast.messages.parts import Media, Opaque, Part, Text, Thinking, ToolResult
from holdfast.messages.strip_foreign import strip_foreign_content
from holdfast.providers.api_spec import ApiSpec
from holdfast.providers.common.content_kinds import CALL_KIND, RESULT_KIND, THINKING_KIND
from holdfast.providers.common.json.json_path import get_json_first_char
from holdfast.providers.common.json.lenient_json import read_json_items, read_json_text
from holdfast.providers.common.json.raw_json import decode_json_fields, decode_json_value, encode_json
from holdfast.providers.fix.blocks import (
    encode_raw,
    iter_replacement_blocks,
    render_foreign_block,
    reshape_tool_output,
    wrap_in_list,
)
from holdfast.providers.fix.lost_text import CONTENT_FIELDS
from holdfast.providers.fix.message_shapes import stringify_numeric_ids
from holdfast.providers.foreign.convert_request import iter_part_losses
from holdfast.providers.foreign.foreign_blocks import BlockOrigin, ForeignBlock, classify_foreign_block
from holdfast.providers.gemini import messages as gemini
from holdfast.providers.openai_chat.spec import OPENAI_CHAT_SPEC
from holdfast.providers.registry import API_SPECS, have_one_provider

_CHAT_API = OPENAI_CHAT_SPEC.api
"""The API that puts the calls of an answer beside its content, not into it."""
_NULL = Raw(b"null")
_ROLE_BY_NAME: dict[str, Role] = {
    "assistant": "assistant", "model": "assistant", "ai": "assistant", "bot": "assistant",
    "system": "system", "developer": "system", "tool": "tool", "function": "tool",
}  # fmt: skip
"""Role names of all APIs and frameworks; any name that is not here is taken for a user's."""


class TranslatedMessage(Struct):
    """A message decoded from any mixture of forms."""

    message: Message
    raw: Raw | None = None
    """Its bytes, if nothing in it is foreign; they are sent as they are."""
    losses: tuple[str, ...] = ()
    """A note on each piece that has no place in the target API."""
    base: Raw | None = None
    """The original message, if only blocks in its content are foreign: its other fields are kept when it is encoded."""


# -- one message -------------------------------------------------------------------------------------------------------


def translate_message(raw: Raw, spec: ApiSpec, foreign_blocks: Sequence[ForeignBlock]) -> TranslatedMessage:
    """Decode one element of the list of messages, in which ``foreign_blocks`` were found.

    An element that cannot be read keeps its bytes, with an empty message in its place.
    """
    try:
        if not foreign_blocks:
            return TranslatedMessage(spec.decode_message(raw), raw)
        translated = _rebuild_message(raw, spec)
    except FormatError:
        return TranslatedMessage(Message("system"), raw)
    has_own_fields = spec.supports_cache_control and all(path.startswith(".content[") for path, _ in foreign_blocks)
    if not has_own_fields:
        return translated
    return replace(translated, base=_set_message_role(raw, translated.message.role))


def _set_message_role(raw: Raw, role: Role) -> Raw:
    # Only for Anthropic (the API with cache_control), where results are a user's blocks.
    return encode_raw({**decode_json_fields(raw), "role": "user" if role == "tool" else role})


def _rebuild_message(raw: Raw, spec: ApiSpec) -> TranslatedMessage:
    """Decode a message that has foreign pieces, or a single item or block in the place of a message."""
    raw_fields = decode_json_fields(raw)
    lone_origin = None if "role" in raw_fields else _classify_raw_block(raw)
    if lone_origin is not None:
        if lone_origin.content_kind in (CALL_KIND, THINKING_KIND):
            role: Role = "assistant"
        else:
            role = "user"
        decoded = _decode_mixed_blocks([raw], spec, role)
        return TranslatedMessage(Message(role, decoded.parts), losses=decoded.losses)
    role = _ROLE_BY_NAME.get(read_json_text(raw_fields.get("role")).lower(), "user")
    if role == "tool" and "parts" not in raw_fields:
        output_blocks = _list_tool_output_blocks(raw_fields.get("content", _NULL), spec)
        decoded = _decode_mixed_blocks(output_blocks, spec, role)
        result_parts = _build_tool_result_parts(raw_fields, decoded.parts)
        return TranslatedMessage(Message(role, result_parts), losses=decoded.losses)
    blocks: list[Raw] = []
    for key in CONTENT_FIELDS:
        blocks += wrap_in_list(raw_fields.get(key, _NULL))
    decoded = _decode_mixed_blocks(blocks, spec, role)
    side_parts = _decode_side_fields(raw_fields, spec)
    # Thinking comes before the content and calls after it, as the model wrote them.
    thinking = tuple(part for part in side_parts if isinstance(part, Thinking))
    parts = (*thinking, *decoded.parts, *side_parts[len(thinking) :])
    return TranslatedMessage(Message(role, parts), losses=decoded.losses)


def _list_tool_output_blocks(content: Raw, spec: ApiSpec) -> list[Raw]:
    """Return the blocks in a tool message of Chat: whole results as they are, or the reshaped output of the tool."""
    blocks = wrap_in_list(content)
    for block in blocks:
        origin = _classify_raw_block(block)
        if origin is not None and origin.content_kind == RESULT_KIND:
            return blocks
    return wrap_in_list(reshape_tool_output(content, spec))


def _build_tool_result_parts(fields: Mapping[str, Raw], parts: tuple[Part, ...]) -> tuple[Part, ...]:
    """Return the results that a tool message of Chat holds, or else one result made of the message itself."""
    if any(isinstance(part, ToolResult) for part in parts):
        return parts
    content = tuple(part for part in parts if isinstance(part, Text | Media | Opaque))
    if len(content) == 1 and isinstance(content[0], Text):
        content = (Text(content[0].text),)  # without its raw block, so that it is written as a plain text
    fields_with_text_ids = stringify_numeric_ids(dict(fields))
    call_id = read_json_text(fields_with_text_ids.get("tool_call_id"))
    name = read_json_text(fields.get("name"))
    return (ToolResult(call_id, name, content),)


def _decode_side_fields(fields: Mapping[str, Raw], spec: ApiSpec) -> tuple[Part, ...]:
    """Decode the fields beside the content of a message, thinking first.

    If the target is not Chat these are Chat's calls; all other fields beside a content mean nothing elsewhere.
    """
    if spec.blocks.call_fields:
        side_fields: dict[str, Any] = {}
        for key, raw in fields.items():
            if key not in CONTENT_FIELDS:
                side_fields[key] = raw
        if read_json_text(fields.get("role")) not in ("user", "assistant", "system", "developer"):
            side_fields["role"] = "assistant"
        return spec.decode_message(encode_json(side_fields)).parts
    calls = read_json_items(fields.get("tool_calls"))
    if get_json_first_char(fields.get("function_call")) == "{":
        name = read_json_text(decode_json_fields(fields["function_call"]).get("name"))
        # The old form has no ids. An id of this shape counts as none: the result is tied to the call by its name.
        calls.append(encode_raw({"id": f"{name}#1", "type": "function", "function": fields["function_call"]}))
    chat_message = API_SPECS[_CHAT_API].decode_message(encode_json({"role": "assistant", "tool_calls": calls}))
    keeps_file_ids = have_one_provider(spec.api, _CHAT_API)
    return strip_foreign_content(chat_message, spec.api, keeps_file_ids=keeps_file_ids).parts


def split_results_from_answer(translated: TranslatedMessage) -> list[TranslatedMessage]:
    """Split an assistant message that holds tool results: the results become a message of their own after it.

    Some frameworks keep a call and its result in one message; no API takes a result from the assistant.
    """
    results = translated.message.results
    if translated.raw is not None or translated.message.role != "assistant" or not results:
        return [translated]
    other_parts = tuple(part for part in translated.message.parts if not isinstance(part, ToolResult))
    if not other_parts:
        return [TranslatedMessage(Message("tool", results), losses=translated.losses)]
    answer = replace(translated, message=Message("assistant", other_parts))
    return [answer, TranslatedMessage(Message("tool", results))]


# -- its pieces --------------------------------------------------------------------------------------------------------


class _DecodedParts(NamedTuple):
    parts: tuple[Part, ...]
    losses: tuple[str, ...] = ()
    """A note on each piece that has no place in the target API."""


class _OwnedBlock(NamedTuple):
    api: str
    """The API whose reader decodes the block."""
    raw: Raw


def _decode_mixed_blocks(blocks: Sequence[Raw], spec: ApiSpec, role: Role) -> _DecodedParts:
    """Decode the blocks of a content, each by its own API's reader, and convert the parts to the target API."""
    owned_blocks: list[_OwnedBlock] = []
    for block in blocks:
        owned_blocks += _iter_owned_blocks(block, spec, role)
    indexes_by_api: dict[str, list[int]] = {}
    for index, owned_block in enumerate(owned_blocks):
        indexes_by_api.setdefault(owned_block.api, []).append(index)
    parts_by_block: list[tuple[Part, ...]] = [()] * len(owned_blocks)
    losses: list[str] = []
    # All blocks of one API are decoded in one go, since readers name pieces without an id by their position.
    for api, indexes in indexes_by_api.items():
        raws = [owned_blocks[index].raw for index in indexes]
        decoded_blocks = _decode_blocks_of_api(raws, api)
        for index, block_parts in zip(indexes, decoded_blocks, strict=True):
            converted = _convert_parts(block_parts, api, spec)
            parts_by_block[index] = converted.parts
            losses += converted.losses
    all_parts: list[Part] = []
    for block_parts in parts_by_block:
        all_parts += block_parts
    return _DecodedParts(tuple(all_parts), tuple(losses))


def _iter_owned_blocks(block: Raw, spec: ApiSpec, role: Role) -> Iterator[_OwnedBlock]:
    """Yield a block with the API that reads it, prepared for its reader.

    A call outside of an assistant's message becomes text, because nobody else may make one.
    """
    origin = _classify_raw_block(block)
    is_misplaced_call = origin is not None and origin.content_kind == CALL_KIND and role != "assistant"
    if origin is None or is_misplaced_call:
        for own_block in iter_replacement_blocks(block, spec, role):
            yield _OwnedBlock(spec.api, own_block)
    else:
        reading_api = _get_reading_api(origin, spec)
        yield _OwnedBlock(reading_api, _prepare_block(block, API_SPECS[reading_api]))


def _classify_raw_block(raw: Raw) -> BlockOrigin | None:
    return classify_foreign_block(decode_json_value(raw))


def _get_reading_api(origin: BlockOrigin, spec: ApiSpec) -> str:
    """Return the API with the reader for a block: the target's if it knows the form, else the first that does."""
    return spec.api if spec.api in origin.apis else origin.apis[0]


def _prepare_block(block: Raw, spec: ApiSpec) -> Raw:
    """Repair the small faults of a block that its reader would stumble over: outputs, ids and image addresses.

    A block without such faults keeps its bytes.
    """
    raw_fields = decode_json_fields(block)
    new_fields = stringify_numeric_ids(raw_fields)
    if spec.shape.image_url_is_object and get_json_first_char(new_fields.get("image_url")) == '"':
        new_fields["image_url"] = encode_raw({"url": new_fields["image_url"]})
    for key in ("content", "output"):
        if key in new_fields:
            new_fields[key] = reshape_tool_output(new_fields[key], spec)
    return block if new_fields == raw_fields else encode_raw(new_fields)


def _decode_blocks_of_api(raws: Sequence[Raw], api: str) -> list[tuple[Part, ...]]:
    """Decode blocks of one API; the result has the parts of each block, in the same order."""
    spec = API_SPECS[api]
    if spec.group_items is None:
        message = spec.decode_message(encode_json({"role": "user", spec.shape.content_field: raws}))
        return [(part,) for part in message.parts]
    parts_by_block = []
    for raw in raws:
        # Calls, results and reasoning of Responses are items of the list; everything else is a block of a message.
        if _is_responses_item(raw):
            item = raw
        else:
            item = encode_raw({"role": "user", "content": [raw]})
        parts_by_block.append(spec.decode_message(item).parts)
    return parts_by_block


def _is_responses_item(raw: Raw) -> bool:
    origin = _classify_raw_block(raw)
    return origin is not None and origin.content_kind in (CALL_KIND, RESULT_KIND, THINKING_KIND)


def _convert_parts(parts: Sequence[Part], api: str, spec: ApiSpec) -> _DecodedParts:
    """Convert parts that were read by ``api``'s reader to parts that the target API may send."""
    losses: list[str] = []
    own_parts = []
    for part in parts:
        own_part, part_losses = _convert_result_content(part, spec)
        own_parts.append(own_part)
        losses += part_losses
    if api == spec.api:
        return _DecodedParts(tuple(own_parts), tuple(losses))
    message = Message("user", tuple(map(_render_unreadable_part, own_parts)))
    converted = strip_foreign_content(message, spec.api, keeps_file_ids=have_one_provider(spec.api, api))
    losses += iter_part_losses(message, converted)
    return _DecodedParts(converted.parts, tuple(losses))


def _render_unreadable_part(part: Part) -> Part:
    """Turn a call or result that its reader could not decode into text; return any other part as it is."""
    if not isinstance(part, Opaque) or part.raw is None:
        return part
    origin = _classify_raw_block(part.raw)
    if origin is None or origin.content_kind not in (CALL_KIND, RESULT_KIND):
        return part
    return Text(render_foreign_block(decode_json_fields(part.raw)))


def _convert_result_content(part: Part, spec: ApiSpec) -> tuple[Part, list[str]]:
    """Convert the content of a result, piece by piece, and return it with notes on losses; keep any other part."""
    if not isinstance(part, ToolResult):
        return part, []
    content: list[Text | Media | Opaque] = []
    losses: list[str] = []
    for inner_part in part.content:
        converted = _convert_inner_part(inner_part, spec)
        for new_part in converted.parts:
            if isinstance(new_part, Text | Media | Opaque):
                content.append(new_part)
        losses += converted.losses
    if tuple(content) == part.content:
        return part, losses
    return replace(part, content=tuple(content), raw=None), losses


def _convert_inner_part(part: Text | Media | Opaque, spec: ApiSpec) -> _DecodedParts:
    """Convert one part of a result's content."""
    if isinstance(part, Opaque) and part.kind == "functionResponse" and spec.api != gemini.API_NAME:
        return _DecodedParts(())  # Gemini's reader adds it only to say that the text beside it was not an object
    raw = part.raw if isinstance(part, Opaque) else None
    if raw is None or get_json_first_char(raw) != "{":
        return _DecodedParts((part,))
    origin = _classify_raw_block(raw)
    if origin is None:
        text = read_json_text(decode_json_fields(raw).get("text"))
        return _DecodedParts((Text(text) if text else part,))
    reading_api = _get_reading_api(origin, spec)
    return _convert_parts(_decode_blocks_of_api([raw], reading_api)[0], reading_api, spec)
