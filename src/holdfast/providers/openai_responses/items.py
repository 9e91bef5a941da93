"""The items of OpenAI's Responses API as values, on the wire and in recorded sessions.

All neighbouring items that the model made are one assistant message: its *group*. Each output of a call is a ``tool``
message of its own, each message of a user, a developer or a system is one message, and a plain string is a user's.
Inside a group a part keeps the bytes of its item; where one message item holds several pieces, each piece keeps its
own. A file of plain words, of a user or in an output, is ``Text``. Reasoning is ``Thinking`` sealed with its encrypted
content, or with its id when the server keeps the item. Items
that Holdfast does not interpret are ``Opaque`` parts of a group if the model made them; if the client did, they are
one ``Opaque("message", raw)`` in a ``system`` message (in a ``tool`` message for outputs of calls not known here):
they start no turn, answer no call, and go out byte for byte.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Raw, Struct
from msgspec.json import Decoder
from msgspec.structs import replace

from holdfast.errors import FormatError
from holdfast.messages.message import Message, Role
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
    split_data_url,
)
from holdfast.providers.common.media import convert_text_document

API_NAME = "openai-responses"


# -- the shapes on the wire --------------------------------------------------------------------------------------------


class WireItem(Struct, gc=False):
    """The fields of an item that are read; which are there depends on its type."""

    type: str = ""
    role: str = ""
    id: str | None = None
    call_id: str | None = None
    name: str | None = None
    content: Raw = Raw()
    summary: Raw = Raw()
    encrypted_content: str | None = None
    arguments: Raw = Raw(b'"{}"')
    input: Raw = Raw(b'""')
    action: Raw = Raw(b"{}")
    operation: Raw = Raw(b"{}")
    output: Raw = Raw()


class _AudioData(Struct, gc=False):
    data: str = ""
    format: str = ""


class _WirePart(Struct, gc=False):
    type: str = "unknown"
    text: str | None = None
    refusal: str | None = None
    image_url: str | None = None
    file_id: str | None = None
    file_data: str | None = None
    file_url: str | None = None
    filename: str | None = None
    input_audio: _AudioData | None = None
    stdout: str | None = None
    stderr: str | None = None


class _WrappedOutput(Struct, gc=False):
    content: Raw = Raw(b'""')
    success: bool | None = None


class _PartType(Struct, gc=False):
    type: str | None = None


_ITEM_DECODER = Decoder(WireItem)
_CONTENT_PART_DECODER = Decoder(_WirePart)
_WRAPPED_OUTPUT_DECODER = Decoder(_WrappedOutput)
_PART_TYPE_DECODER = Decoder(_PartType)
_RAW_LIST_DECODER = Decoder(list[Raw])
_STRING_DECODER = Decoder(str)
_CONTENT_DECODER: Decoder[str | list[Raw] | None] = Decoder(str | list[Raw] | None)
_DECODE_ERRORS = (msgspec.DecodeError, UnicodeDecodeError)
_TEXT_FIELDS = ("type", "role", "id", "call_id", "name", "encrypted_content")
_RAW_FIELDS = ("content", "summary", "arguments", "input", "action", "operation", "output")

ARGUMENT_FIELD_BY_CALL = {
    "function_call": "arguments",
    "custom_tool_call": "input",
    "local_shell_call": "action",
    "shell_call": "action",
    "apply_patch_call": "operation",
}
"""Calls that the client answers, and the field that holds what they ask for."""
OUTPUT_TYPES = frozenset(f"{kind}_output" for kind in ARGUMENT_FIELD_BY_CALL)
"""What answers them. Calls that the server answers, and a computer's screenshots, are not interpreted."""
_CLIENT_ITEM_TYPES = frozenset(
    {"item_reference", "additional_tools", "configuration_update", "mcp_approval_response", "compaction_trigger"}
)
"""Items beside messages and outputs that the client makes (SDK 3.54)."""
TEXT_PART_TYPES = frozenset({"input_text", "output_text", "text", "summary_text", "reasoning_text"})
ROLE_BY_WIRE_ROLE: dict[str, Role] = {
    "user": "user",
    "assistant": "assistant",
    "system": "system",
    "developer": "system",
}
INNER_KIND_PREFIX = "content."
"""How the kind of an opaque piece begins that stands inside an assistant's message item."""


# -- groups ------------------------------------------------------------------------------------------------------------


def split_response_items(raw: JsonBytes) -> list[Raw]:
    """Return the items in ``raw``: one item, several with commas between, or a list of them."""
    data = bytes(raw)
    return decode_json(_RAW_LIST_DECODER, data if data.startswith(b"[") else b"[" + data + b"]", "the items")


def decode_item(raw: JsonBytes) -> WireItem:
    """Return the fields of one item; a field of another type than expected counts as absent.

    Raises ``FormatError`` for what is no JSON object.
    """
    try:
        return _ITEM_DECODER.decode(raw)
    except _DECODE_ERRORS:
        raw_fields = decode_json_fields(raw, "the item")
    values: dict[str, Any] = {key: raw_fields[key] for key in _RAW_FIELDS if key in raw_fields}
    for key in _TEXT_FIELDS:
        if key in raw_fields and (text := _try_decode_string(raw_fields[key])) is not None:
            values[key] = text
    return WireItem(**values)


def _try_decode_string(raw: Raw) -> str | None:
    try:
        return _STRING_DECODER.decode(raw)
    except _DECODE_ERRORS:
        return None


def is_model_item(item: WireItem) -> bool:
    """Return whether the model made this item."""
    return get_item_role(item) == "assistant"


def get_item_role(item: WireItem) -> Role:
    """Return the role of the message that an item is, or is a part of."""
    kind = item.type
    if kind in ARGUMENT_FIELD_BY_CALL:
        return "assistant"
    if kind == "message" or (not kind and item.role):
        return ROLE_BY_WIRE_ROLE.get(item.role, "system")
    if kind.endswith("_output"):
        return "tool"
    return "system" if kind in _CLIENT_ITEM_TYPES or not kind else "assistant"


def find_message_spans(items: Sequence[WireItem]) -> list[tuple[int, int]]:
    """Return where each message begins and ends in a list of items."""
    return _find_spans_by_role([get_item_role(item) for item in items])


def _find_spans_by_role(speakers: Sequence[Role]) -> list[tuple[int, int]]:
    """Return where each message begins and ends in a list of items, told by who speaks."""
    out: list[tuple[int, int]] = []
    before = ""
    for index, role in enumerate(speakers):
        if role == before == "assistant":
            out[-1] = out[-1][0], index + 1
        else:
            out.append((index, index + 1))
        before = role
    return out


def group_items_by_message(raws: Sequence[Raw], model: str = "") -> list[tuple[int, int, Message]]:
    """Return each message in a list of items, and where it begins and ends; ``FormatError`` names what is no item."""
    try:
        items = [_ITEM_DECODER.decode(raw) for raw in raws]
    except _DECODE_ERRORS:
        items = [_decode_item_at(raw, index) for index, raw in enumerate(raws)]
    pairs = list(zip(items, raws, strict=True))
    speakers = [get_item_role(item) for item in items]
    messages = [
        (start, stop, _build_message_of_role(speakers[start], pairs[start:stop], model))
        for start, stop in _find_spans_by_role(speakers)
    ]
    shells = {item.id: item.call_id for item in items if item.type == "local_shell_call" and item.id and item.call_id}
    return (
        [(start, stop, _link_shell_output(message, items[start], shells)) for start, stop, message in messages]
        if shells
        else messages
    )


def _link_shell_output(message: Message, item: WireItem, shells: Mapping[str, str]) -> Message:
    """Return the output of a local shell under the ``call_id`` of its call, whose ``id`` it may name instead."""
    if item.type != "local_shell_call_output" or not message.results or item.call_id in shells.values():
        return message
    result = message.results[0]
    has_call_id = result.call_id not in shells or result.call_id in shells.values()
    return message if has_call_id else Message("tool", (replace(result, call_id=shells[result.call_id]),))


def _decode_item_at(raw: Raw, index: int) -> WireItem:
    try:
        return decode_item(raw)
    except FormatError as error:
        raise FormatError(f"$.input[{index}]: {error}") from None


def strip_list_brackets(raw: Raw) -> JsonBytes:
    """Return the bytes of a slot as they stand in a list: without brackets of their own, a string as a user's words."""
    first = bytes(memoryview(raw)[:1])
    if first == b"[":
        data = bytes(raw)
        return data[1 : data.rindex(b"]")].strip()
    return encode_json({"role": "user", "content": raw}) if first == b'"' else raw


# -- from the wire -----------------------------------------------------------------------------------------------------


def decode_message(raw: JsonBytes, model: str = "") -> Message:
    """Return one group, one other item, or a plain string as values; ``model`` made what is sealed, if it is known.

    Raises ``FormatError`` when ``raw`` is none of these.
    """
    if bytes(raw).startswith(b'"'):
        return Message("user", (Text(decode_json(_STRING_DECODER, raw, "the input")),))
    return build_message_from_items(
        [(decode_item(raw_item), raw_item) for raw_item in split_response_items(raw)], model
    )


def build_message_from_items(items: Sequence[tuple[WireItem, Raw]], model: str = "") -> Message:
    """Return items that make one message: all that the model said in one answer, or one other item."""
    if not items:
        raise FormatError("the group has no item; give at least one")
    return _build_message_of_role(get_item_role(items[0][0]), items, model)


def _build_message_of_role(role: Role, items: Sequence[tuple[WireItem, Raw]], model: str) -> Message:
    item, raw = items[0]
    if role == "assistant":
        return Message(role, tuple([part for item, raw in items for part in decode_model_item(item, raw, model)]))
    if item.type in OUTPUT_TYPES and (result := _decode_output(item, raw)) is not None:
        return Message("tool", (result,))
    content = _decode_content(item.content) if item.role in ROLE_BY_WIRE_ROLE and item.type in ("message", "") else None
    if content is not None:
        return Message(role, tuple(map(convert_text_document, content)) if role == "user" else content)
    screen = item.call_id if item.type == "computer_call_output" else None
    return Message(role, (Opaque("message", raw, ProviderSignature(API_NAME, "", screen) if screen else None),))


def decode_model_item(item: WireItem, raw: Raw, model: str = "") -> tuple[Part, ...]:
    """Return the parts of one item that the model made."""
    if item.type in ("message", ""):
        return _decode_message_item(item, raw)
    if item.type == "reasoning":
        words = _get_reasoning_text(item)
        seal_data = item.encrypted_content or item.id
        return (Thinking(words, ProviderSignature(API_NAME, model, seal_data) if seal_data else None, raw),)
    field = ARGUMENT_FIELD_BY_CALL.get(item.type)
    id_ = item.call_id or (item.id if item.type == "local_shell_call" else None)
    if field is None or not id_:
        asked_id = item.call_id if item.type == "computer_call" else None
        return (Opaque(item.type, raw, ProviderSignature(API_NAME, "", asked_id) if asked_id else None),)
    arguments = _read_call_arguments(getattr(item, field), as_text=field == "arguments")
    return (ToolCall(id_, item.type.removesuffix("_call") if item.name is None else item.name, arguments, None, raw),)


def _decode_message_item(item: WireItem, raw: Raw) -> tuple[Part, ...]:
    """Return what a message item of the model's says: a single piece has the bytes of the item."""
    parts = _decode_content(item.content)
    if not parts:
        return (Opaque("message", raw),)
    if len(parts) == 1 and type(parts[0]) is Text:
        return (Text(parts[0].text, None, raw),)
    return tuple([_to_inner_part(part) for part in parts])


def _to_inner_part(part: Part) -> Part:
    """Return a piece among several of one item: what only users may say there is not interpreted."""
    if isinstance(part, Text):
        return part
    return Opaque(INNER_KIND_PREFIX + (part.kind if isinstance(part, Opaque) else "media"), part.raw)


def _get_reasoning_text(item: WireItem) -> str:
    """Return the words of reasoning: its summary, then what it shows of itself."""
    parts = (*(_decode_content(item.summary) or ()), *(_decode_content(item.content) or ()))
    return "\n".join([part.text for part in parts if isinstance(part, Text)])


def _read_call_arguments(raw: Raw, *, as_text: bool) -> str:
    """Return what a call asks for as JSON text: out of its string, or as it stands."""
    return _STRING_DECODER.decode(raw) if as_text and bytes(memoryview(raw)[:1]) == b'"' else bytes(raw).decode()


def _decode_output(item: WireItem, raw: Raw) -> ToolResult | None:
    """Return the output of a call; nothing when it cannot be read."""
    output, is_error = item.output, False
    if bytes(memoryview(output)[:1]) == b"{":
        try:
            wrapper = _WRAPPED_OUTPUT_DECODER.decode(output)
        except _DECODE_ERRORS:
            return None
        output, is_error = wrapper.content, wrapper.success is False
    content = _decode_content(output) if output else ()
    if content is None:
        return None
    inner = tuple([piece for piece in map(convert_text_document, content) if isinstance(piece, Text | Media | Opaque)])
    return ToolResult(item.call_id or item.id or "", item.name or "", inner, is_error, raw)


def _decode_content(raw: Raw) -> tuple[Part, ...] | None:
    """Return a ``content``, text or a list of pieces, as parts; nothing when it is neither."""
    if not raw:
        return ()
    try:
        content = _CONTENT_DECODER.decode(raw)
        if content is None or isinstance(content, str):
            return () if content is None else (Text(content),)
        return tuple([decode_content_part(piece) for piece in content])
    except _DECODE_ERRORS:
        return None


def decode_content_part(raw: Raw) -> Part:
    """Return one element of a ``content`` list as a part."""
    try:
        piece = _CONTENT_PART_DECODER.decode(raw)
    except _DECODE_ERRORS:
        return _build_opaque(raw)
    if piece.type in TEXT_PART_TYPES and piece.text is not None:
        return Text(piece.text, None, raw)
    if piece.type == "refusal" and piece.refusal is not None:
        return Text(piece.refusal, None, raw)
    if piece.type == "unknown" and piece.stdout is not None:
        return Text(piece.stdout + (piece.stderr or ""), None, raw)
    look = _MEDIA_READERS.get(piece.type)
    return Opaque(piece.type, raw) if look is None else look(piece, raw)


def _build_opaque(raw: Raw) -> Opaque:
    try:
        return Opaque(_PART_TYPE_DECODER.decode(raw).type or "unknown", raw)
    except _DECODE_ERRORS:
        return Opaque("unknown", raw)


def _read_image(piece: _WirePart, raw: Raw) -> Media:
    mime, data = split_data_url(piece.image_url or "")
    form: MediaForm = "base64" if mime else "url" if data else "file"
    return Media("image", mime, count_base64_bytes(data) if mime else 0, "", data or piece.file_id or "", raw, form)


def _read_file(piece: _WirePart, raw: Raw) -> Media:
    mime, data = split_data_url(piece.file_data or "")
    where = data or piece.file_url or piece.file_id or ""
    form: MediaForm = "base64" if data else "url" if piece.file_url else "file"
    return Media("document", mime, count_base64_bytes(data) if data else 0, piece.filename or "", where, raw, form)


def _read_audio(piece: _WirePart, raw: Raw) -> Media:
    sound = piece.input_audio or _AudioData()
    return Media("audio", f"audio/{sound.format}", count_base64_bytes(sound.data), "", sound.data, raw)


_MEDIA_READERS: dict[str, Callable[[_WirePart, Raw], Media]] = {
    "input_image": _read_image,
    "input_file": _read_file,
    "input_audio": _read_audio,
}


def decode_items(raws: Sequence[Raw]) -> list[Message]:
    """Return a list of items as messages: what the model said without a break is one."""
    return [message for _, _, message in group_items_by_message(raws)]
