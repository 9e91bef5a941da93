"""A message in several APIs' forms, read piece by piece, each by whose it is.

People put one API's pictures into another's messages, and the calls of one beside the words of another.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

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
"""The API whose calls stand beside the content of an answer."""
_NULL = Raw(b"null")
_ROLE_BY_NAME: dict[str, Role] = {
    "assistant": "assistant", "model": "assistant", "ai": "assistant", "bot": "assistant",
    "system": "system", "developer": "system", "tool": "tool", "function": "tool",
}  # fmt: skip
"""Roles of all APIs, and whose they are; all others are the user's."""


class TranslatedMessage(Struct):
    """A message as values, its bytes where nothing in it is foreign, and a note on each thing that was left behind."""

    message: Message
    raw: Raw | None = None
    losses: tuple[str, ...] = ()
    base: Raw | None = None
    """The message that it is written over, where what stands beside the blocks is this API's own."""


# -- one message -------------------------------------------------------------------------------------------------------


def translate_message(raw: Raw, spec: ApiSpec, foreign_blocks: Sequence[ForeignBlock]) -> TranslatedMessage:
    """Return one element of a list of messages, in which ``foreign_blocks`` are foreign; of an unreadable one its
    bytes.
    """
    try:
        if not foreign_blocks:
            return TranslatedMessage(spec.decode_message(raw), raw)
        new = _rebuild_message(raw, spec)
        own = spec.supports_cache_control and all(path.startswith(".content[") for path, _ in foreign_blocks)
        return replace(new, base=_set_message_role(raw, new.message.role)) if own else new
    except FormatError:
        return TranslatedMessage(Message("system"), raw)


def _set_message_role(raw: Raw, role: Role) -> Raw:
    return Raw(encode_json({**decode_json_fields(raw), "role": "user" if role == "tool" else role}))


def _rebuild_message(raw: Raw, spec: ApiSpec) -> TranslatedMessage:
    """Return a message in which something is foreign, or an item or a block that stands in the place of one."""
    raw_fields = decode_json_fields(raw)
    alone = None if "role" in raw_fields else _classify_raw_block(raw)
    if alone is not None:
        role: Role = "assistant" if alone.content_kind in (CALL_KIND, THINKING_KIND) else "user"
        parts, losses = _decode_mixed_blocks([raw], spec, role)
        return TranslatedMessage(Message(role, parts), losses=losses)
    role = _ROLE_BY_NAME.get(read_json_text(raw_fields.get("role")).lower(), "user")
    if role == "tool" and "parts" not in raw_fields:
        parts, losses = _decode_mixed_blocks(
            _list_tool_output_blocks(raw_fields.get("content", _NULL), spec), spec, role
        )
        return TranslatedMessage(Message(role, _build_tool_result_parts(raw_fields, parts)), losses=losses)
    parts, losses = _decode_mixed_blocks(
        [element for key in CONTENT_FIELDS for element in wrap_in_list(raw_fields.get(key, _NULL))], spec, role
    )
    beside = _decode_side_fields(raw_fields, spec)
    thought = tuple(part for part in beside if isinstance(part, Thinking))
    return TranslatedMessage(Message(role, (*thought, *parts, *beside[len(thought) :])), losses=losses)


def _list_tool_output_blocks(content: Raw, spec: ApiSpec) -> list[Raw]:
    """Return what a tool message of Chat holds: results that stand in it as they are, or what the tool gave back."""
    blocks = wrap_in_list(content)
    kinds = [kind.content_kind for kind in map(_classify_raw_block, blocks) if kind is not None]
    return blocks if RESULT_KIND in kinds else wrap_in_list(reshape_tool_output(content, spec))


def _build_tool_result_parts(fields: Mapping[str, Raw], parts: tuple[Part, ...]) -> tuple[Part, ...]:
    """Return what a tool message of Chat holds: results that stand in it, or itself as one."""
    if any(isinstance(part, ToolResult) for part in parts):
        return parts
    inner = tuple(part for part in parts if isinstance(part, Text | Media | Opaque))
    if len(inner) == 1 and isinstance(inner[0], Text):
        inner = (Text(inner[0].text),)
    return (
        ToolResult(
            read_json_text(stringify_numeric_ids(dict(fields)).get("tool_call_id")),
            read_json_text(fields.get("name")),
            inner,
        ),
    )


def _decode_side_fields(fields: Mapping[str, Raw], spec: ApiSpec) -> tuple[Part, ...]:
    """Return what stands beside the content of a message of Chat, thinking first; elsewhere that is its calls."""
    chat = API_SPECS[_CHAT_API]
    if spec.blocks.call_fields:
        side_fields = {key: raw for key, raw in fields.items() if key not in CONTENT_FIELDS}
        has_known_role = read_json_text(fields.get("role")) in ("user", "assistant", "system", "developer")
        return spec.decode_message(
            encode_json(side_fields if has_known_role else {**side_fields, "role": "assistant"})
        ).parts
    calls = read_json_items(fields.get("tool_calls"))
    if get_json_first_char(fields.get("function_call")) == "{":
        name = read_json_text(decode_json_fields(fields["function_call"]).get("name"))
        calls.append(Raw(encode_json({"id": f"{name}#1", "type": "function", "function": fields["function_call"]})))
    return strip_foreign_content(
        chat.decode_message(encode_json({"role": "assistant", "tool_calls": calls})),
        spec.api,
        keeps_file_ids=have_one_provider(spec.api, _CHAT_API),
    ).parts


def split_results_from_answer(translated: TranslatedMessage) -> list[TranslatedMessage]:
    """Return a message, and behind it as one of its own what tools gave back that stood in an answer."""
    results = translated.message.results
    if translated.raw is not None or translated.message.role != "assistant" or not results:
        return [translated]
    other_parts = tuple(part for part in translated.message.parts if not isinstance(part, ToolResult))
    result_message = TranslatedMessage(Message("tool", results), losses=() if other_parts else translated.losses)
    return (
        [replace(translated, message=Message("assistant", other_parts)), result_message]
        if other_parts
        else [result_message]
    )


# -- its pieces --------------------------------------------------------------------------------------------------------


def _decode_mixed_blocks(blocks: Sequence[Raw], spec: ApiSpec, role: Role) -> tuple[tuple[Part, ...], tuple[str, ...]]:
    """Return the elements of a content as parts, and a note on each that could not be brought along.

    All of one API's are read together, for what has no id is named by its place among them.
    """
    owned_blocks = [pair for block in blocks for pair in _iter_with_owner(block, spec, role)]
    block_parts: list[tuple[Part, ...]] = [()] * len(owned_blocks)
    losses: list[str] = []
    for api in dict.fromkeys(owner for owner, _ in owned_blocks):
        places = [index for index, (owner, _) in enumerate(owned_blocks) if owner == api]
        for index, parts in zip(
            places, _decode_blocks_of_api([owned_blocks[index][1] for index in places], api), strict=True
        ):
            block_parts[index], new_losses = _convert_parts(parts, api, spec)
            losses += new_losses
    return tuple(part for parts in block_parts for part in parts), tuple(losses)


def _iter_with_owner(block: Raw, spec: ApiSpec, role: Role) -> Iterator[tuple[str, Raw]]:
    """Yield whose an element is, and itself; a call that nobody but the assistant may make is told in words."""
    kind = _classify_raw_block(block)
    if kind is None or (kind.content_kind == CALL_KIND and role != "assistant"):
        yield from ((spec.api, own_block) for own_block in iter_replacement_blocks(block, spec, role))
    else:
        owner = _get_reading_api(kind, spec)
        yield owner, _prepare_block(block, API_SPECS[owner])


def _classify_raw_block(raw: Raw) -> BlockOrigin | None:
    return classify_foreign_block(decode_json_value(raw))


def _get_reading_api(kind: BlockOrigin, spec: ApiSpec) -> str:
    """Return the API whose reader takes what is of this kind: this one's, where it knows it."""
    return spec.api if spec.api in kind.apis else kind.apis[0]


def _prepare_block(block: Raw, spec: ApiSpec) -> Raw:
    """Return an element with what a tool gave back as text or blocks, ids that are strings, addresses in an object.

    One that has all that already keeps its bytes.
    """
    stood = decode_json_fields(block)
    new_fields = stringify_numeric_ids(dict(stood))
    if spec.shape.image_url_is_object and get_json_first_char(new_fields.get("image_url")) == '"':
        new_fields["image_url"] = Raw(encode_json({"url": new_fields["image_url"]}))
    new_fields |= {
        key: reshape_tool_output(new_fields[key], spec) for key in ("content", "output") if key in new_fields
    }
    return block if new_fields == stood else Raw(encode_json(new_fields))


def _decode_blocks_of_api(raws: Sequence[Raw], api: str) -> list[tuple[Part, ...]]:
    """Return the parts that each of some elements of one API's is; an item of Responses stands for itself."""
    spec = API_SPECS[api]
    if spec.group_items is not None:
        items = [
            raw if _is_responses_item(raw) else Raw(encode_json({"role": "user", "content": [raw]})) for raw in raws
        ]
        return [spec.decode_message(item).parts for item in items]
    message = encode_json({"role": "user", spec.shape.content_field: raws})
    return [(part,) for part in spec.decode_message(message).parts]


def _is_responses_item(raw: Raw) -> bool:
    kind = _classify_raw_block(raw)
    return kind is not None and kind.content_kind in (CALL_KIND, RESULT_KIND, THINKING_KIND)


def _convert_parts(parts: Sequence[Part], api: str, spec: ApiSpec) -> tuple[tuple[Part, ...], list[str]]:
    """Return parts of one API as another may say them, and a note on each thing that it may not."""
    conversions = [_convert_result_content(part, spec) for part in parts]
    losses = [note for _, notes in conversions for note in notes]
    message = Message("user", tuple(part for part, _ in conversions))
    if api == spec.api:
        return message.parts, losses
    message = Message("user", tuple(map(_render_unreadable_part, message.parts)))
    new = strip_foreign_content(message, spec.api, keeps_file_ids=have_one_provider(spec.api, api))
    return new.parts, [*losses, *iter_part_losses(message, new)]


def _render_unreadable_part(part: Part) -> Part:
    """Return a call or a result that cannot be read as what it says; any other part as it is."""
    kind = _classify_raw_block(part.raw) if isinstance(part, Opaque) and part.raw is not None else None
    if kind is None or part.raw is None or kind.content_kind not in (CALL_KIND, RESULT_KIND):
        return part
    return Text(render_foreign_block(decode_json_fields(part.raw)))


def _convert_result_content(part: Part, spec: ApiSpec) -> tuple[Part, list[str]]:
    """Return a result with each thing in it read by its own API's reader, and notes; any other part as it is."""
    if not isinstance(part, ToolResult):
        return part, []
    conversions = [_convert_inner_part(inner_part, spec) for inner_part in part.content]
    content = tuple(
        inner_part for parts, _ in conversions for inner_part in parts if isinstance(inner_part, Text | Media | Opaque)
    )
    is_unchanged = content == part.content
    return (part if is_unchanged else replace(part, content=content, raw=None)), [
        note for _, notes in conversions for note in notes
    ]


def _convert_inner_part(part: Text | Media | Opaque, spec: ApiSpec) -> tuple[tuple[Part, ...], list[str]]:
    if isinstance(part, Opaque) and part.kind == "functionResponse" and spec.api != gemini.API_NAME:
        return (), []  # it only tells that the words beside it were no object
    raw = part.raw if isinstance(part, Opaque) else None
    if raw is None or get_json_first_char(raw) != "{":
        return (part,), []
    kind = _classify_raw_block(raw)
    if kind is None:
        text = read_json_text(decode_json_fields(raw).get("text"))
        return ((Text(text),) if text else (part,)), []
    owner = _get_reading_api(kind, spec)
    return _convert_parts(_decode_blocks_of_api([raw], owner)[0], owner, spec)
