"""Decode the items of OpenAI's Responses API, on the wire and in recorded sessions.

Neighbouring items that the model made form one assistant message: a *group*. Each output of a call is a ``tool``
message of its own, each message of a user, a developer or the system is one message, and a plain string is a user
message.

Within a group a part keeps the bytes of its item; if one message item has several content parts, each keeps its own
bytes. A plain-text file of a user, or in an output, becomes ``Text``. Reasoning becomes ``Thinking`` signed with its
encrypted content, or with its id if the server stores the item.

Items that Holdfast does not interpret become ``Opaque`` parts of a group if the model made them. If the client did,
they become one ``Opaque("message", raw)`` in a ``system`` message (in a ``tool`` message for outputs of unknown calls):
they start no turn, answer no call, and are sent byte for byte.
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
    """The interpreted fields of an item; its type decides which of them are set."""

    type: str = ""
    role: str = ""
    id: str | None = None
    call_id: str | None = None
    name: str | None = None
    content: Raw = Raw()
    summary: Raw = Raw()
    encrypted_content: str | None = None
    approval_request_id: str | None = None
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
_TEXT_FIELDS = ("type", "role", "id", "call_id", "name", "encrypted_content", "approval_request_id")
_RAW_FIELDS = ("content", "summary", "arguments", "input", "action", "operation", "output")

ARGUMENT_FIELD_BY_CALL = {
    "function_call": "arguments",
    "custom_tool_call": "input",
    "local_shell_call": "action",
    "shell_call": "action",
    "apply_patch_call": "operation",
}
"""Types of calls that the client answers, and the field with their arguments."""
OUTPUT_TYPES = frozenset(f"{kind}_output" for kind in ARGUMENT_FIELD_BY_CALL)
"""Types of items that answer these calls. Calls that the server answers, and screenshots, are not interpreted."""
_CLIENT_ITEM_TYPES = frozenset(
    {"item_reference", "additional_tools", "configuration_update", "mcp_approval_response", "compaction_trigger"}
)
"""Further items that the client makes, beside messages and outputs (SDK 3.54)."""
TEXT_PART_TYPES = frozenset({"input_text", "output_text", "text", "summary_text", "reasoning_text"})
ROLE_BY_WIRE_ROLE: dict[str, Role] = {
    "user": "user",
    "assistant": "assistant",
    "system": "system",
    "developer": "system",
}
INNER_KIND_PREFIX = "content."
"""Beginning of the kind of an opaque part that is one content part of an assistant's message item."""


# -- groups ------------------------------------------------------------------------------------------------------------


def split_response_items(raw: JsonBytes) -> list[Raw]:
    """Split ``raw`` into its items: one item, several joined by commas, or a list of them."""
    data = bytes(raw)
    if not data.startswith(b"["):
        data = b"[" + data + b"]"
    return decode_json(_RAW_LIST_DECODER, data, "the items")


def decode_item(raw: JsonBytes) -> WireItem:
    """Decode the fields of one item; a field of an unexpected type counts as absent.

    Raises ``FormatError`` if ``raw`` is not a JSON object.
    """
    try:
        return _ITEM_DECODER.decode(raw)
    except _DECODE_ERRORS:  # a field has another type, or is not UTF-8; the others can still be read
        raw_fields = decode_json_fields(raw, "the item")
    values: dict[str, Any] = {key: raw_fields[key] for key in _RAW_FIELDS if key in raw_fields}
    for key in _TEXT_FIELDS:
        text = _try_decode_string(raw_fields[key]) if key in raw_fields else None
        if text is not None:
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
    """Return the role of the message that an item belongs to; an unknown type is taken for the model's."""
    kind = item.type
    if kind in ARGUMENT_FIELD_BY_CALL:
        return "assistant"
    if kind == "message" or (not kind and item.role):
        return ROLE_BY_WIRE_ROLE.get(item.role, "system")
    if kind.endswith("_output"):
        return "tool"
    if not kind or kind in _CLIENT_ITEM_TYPES:
        return "system"
    return "assistant"


def find_message_spans(items: Sequence[WireItem]) -> list[tuple[int, int]]:
    """Return start and stop index of each message in a list of items."""
    return _find_spans_by_role([get_item_role(item) for item in items])


def _find_spans_by_role(roles: Sequence[Role]) -> list[tuple[int, int]]:
    """Return start and stop index of each message in a list of items, from the roles of the items."""
    spans: list[tuple[int, int]] = []
    previous_role = ""
    for index, role in enumerate(roles):
        if role == previous_role == "assistant":
            start, _ = spans[-1]
            spans[-1] = start, index + 1
        else:
            spans.append((index, index + 1))
        previous_role = role
    return spans


def group_items_by_message(raws: Sequence[Raw], model: str = "") -> list[tuple[int, int, Message]]:
    """Decode a list of items into messages, each with start and stop index of its items.

    Raises ``FormatError`` with the index of an element that is not an item.
    """
    try:
        items = [_ITEM_DECODER.decode(raw) for raw in raws]
    except _DECODE_ERRORS:
        items = [_decode_item_at(raw, index) for index, raw in enumerate(raws)]
    pairs = list(zip(items, raws, strict=True))
    roles = [get_item_role(item) for item in items]
    shell_call_ids: dict[str, str] = {}  # usually empty, which saves the second look at every message
    for item in items:
        if item.type == "local_shell_call" and item.id and item.call_id:
            shell_call_ids[item.id] = item.call_id
    groups = []
    for start, stop in _find_spans_by_role(roles):
        message = _build_message_of_role(roles[start], pairs[start:stop], model)
        if shell_call_ids:
            message = _link_shell_output(message, items[start], shell_call_ids)
        groups.append((start, stop, message))
    return groups


def _link_shell_output(message: Message, item: WireItem, shell_call_ids: Mapping[str, str]) -> Message:
    """Return the output of a local shell with the ``call_id`` of its call.

    The output may name its call by the call's ``id`` instead. ``shell_call_ids`` maps each ``id`` to its ``call_id``.
    """
    if item.type != "local_shell_call_output" or not message.results or item.call_id in shell_call_ids.values():
        return message
    result = message.results[0]
    if result.call_id not in shell_call_ids or result.call_id in shell_call_ids.values():
        return message
    return Message("tool", (replace(result, call_id=shell_call_ids[result.call_id]),))


def _decode_item_at(raw: Raw, index: int) -> WireItem:
    try:
        return decode_item(raw)
    except FormatError as error:
        raise FormatError(f"$.input[{index}]: {error}") from None


def strip_list_brackets(raw: Raw) -> JsonBytes:
    """Return the bytes of a message as elements of a list: without brackets, and a plain string as a user message."""
    first_byte = bytes(memoryview(raw)[:1])
    if first_byte == b"[":
        data = bytes(raw)
        return data[1 : data.rindex(b"]")].strip()
    if first_byte == b'"':
        return encode_json({"role": "user", "content": raw})
    return raw


# -- from the wire -----------------------------------------------------------------------------------------------------


def decode_message(raw: JsonBytes, model: str = "") -> Message:
    """Decode one group, one other item, or a plain string; signatures are those of ``model``, if it is known.

    Raises ``FormatError`` for any other JSON.
    """
    if bytes(raw).startswith(b'"'):
        return Message("user", (Text(decode_json(_STRING_DECODER, raw, "the input")),))
    items = [(decode_item(raw_item), raw_item) for raw_item in split_response_items(raw)]
    return build_message_from_items(items, model)


def build_message_from_items(items: Sequence[tuple[WireItem, Raw]], model: str = "") -> Message:
    """Build one message from its items: all items of one answer, or a single other item."""
    if not items:
        raise FormatError("the group has no item; give at least one")
    return _build_message_of_role(get_item_role(items[0][0]), items, model)


def _build_message_of_role(role: Role, items: Sequence[tuple[WireItem, Raw]], model: str) -> Message:
    if role == "assistant":
        parts: list[Part] = []
        for item, raw in items:
            parts += decode_model_item(item, raw, model)
        return Message(role, tuple(parts))
    item, raw = items[0]
    if item.type in OUTPUT_TYPES:
        result = _decode_output(item, raw)
        if result is not None:
            return Message("tool", (result,))
    if item.role in ROLE_BY_WIRE_ROLE and item.type in ("message", ""):
        content = _decode_content(item.content)
        if content is not None:
            if role == "user":
                content = tuple(map(convert_text_document, content))
            return Message(role, content)
    # Not interpreted. A screenshot is signed with the id of its call, and an approval with that of its request, so that
    # the two stay together.
    signature = None
    if item.type == "computer_call_output" and item.call_id:
        signature = ProviderSignature(API_NAME, "", item.call_id)
    elif item.type == "mcp_approval_response" and item.approval_request_id:
        signature = ProviderSignature(API_NAME, "", item.approval_request_id)
    return Message(role, (Opaque("message", raw, signature),))


def decode_model_item(item: WireItem, raw: Raw, model: str = "") -> tuple[Part, ...]:
    """Decode one item that the model made into parts."""
    if item.type in ("message", ""):
        return _decode_message_item(item, raw)
    if item.type == "reasoning":
        # With ``store: false`` the encrypted content carries the reasoning; a stored item is found by its id.
        signature_data = item.encrypted_content or item.id
        if signature_data:
            signature = ProviderSignature(API_NAME, model, signature_data)
        else:
            signature = None
        return (Thinking(_get_reasoning_text(item), signature, raw),)
    argument_field = ARGUMENT_FIELD_BY_CALL.get(item.type)
    call_id = item.call_id
    if not call_id and item.type == "local_shell_call":
        call_id = item.id
    if argument_field is None or not call_id:
        signature = None
        if item.type == "computer_call" and item.call_id:
            signature = ProviderSignature(API_NAME, "", item.call_id)
        elif item.type == "mcp_approval_request" and item.id:
            signature = ProviderSignature(API_NAME, "", item.id)
        return (Opaque(item.type, raw, signature),)
    arguments = _read_call_arguments(getattr(item, argument_field), as_text=argument_field == "arguments")
    name = item.type.removesuffix("_call") if item.name is None else item.name
    return (ToolCall(call_id, name, arguments, None, raw),)


def _decode_message_item(item: WireItem, raw: Raw) -> tuple[Part, ...]:
    """Decode a message item of the model; a single text gets the bytes of the whole item."""
    parts = _decode_content(item.content)
    if not parts:
        return (Opaque("message", raw),)
    if len(parts) == 1 and type(parts[0]) is Text:
        return (Text(parts[0].text, None, raw),)
    return tuple([_to_inner_part(part) for part in parts])


def _to_inner_part(part: Part) -> Part:
    """Return one content part among several of an item; anything but text is not interpreted in an answer."""
    if isinstance(part, Text):
        return part
    kind = part.kind if isinstance(part, Opaque) else "media"
    return Opaque(INNER_KIND_PREFIX + kind, part.raw)


def _get_reasoning_text(item: WireItem) -> str:
    """Return the readable text of reasoning: its summary, then its content as far as it is shown."""
    parts = (*(_decode_content(item.summary) or ()), *(_decode_content(item.content) or ()))
    return "\n".join([part.text for part in parts if isinstance(part, Text)])


def _read_call_arguments(raw: Raw, *, as_text: bool) -> str:
    """Return the arguments of a call as JSON text; with ``as_text``, a JSON string is taken to contain it."""
    is_string = bytes(memoryview(raw)[:1]) == b'"'
    if as_text and is_string:
        return _STRING_DECODER.decode(raw)
    return bytes(raw).decode()


def _decode_output(item: WireItem, raw: Raw) -> ToolResult | None:
    """Decode the output of a call, or return None if it cannot be read."""
    output, is_error = item.output, False
    if bytes(memoryview(output)[:1]) == b"{":
        # Recorded sessions of Codex may hold the output as an object with content and a success flag.
        try:
            wrapper = _WRAPPED_OUTPUT_DECODER.decode(output)
        except _DECODE_ERRORS:
            return None
        output, is_error = wrapper.content, wrapper.success is False
    content = _decode_content(output) if output else ()
    if content is None:
        return None
    parts = []
    for part in map(convert_text_document, content):
        if isinstance(part, Text | Media | Opaque):
            parts.append(part)
    return ToolResult(
        item.call_id or item.id or "",
        item.name or "",
        tuple(parts),
        is_error,
        raw,
    )


def _decode_content(raw: Raw) -> tuple[Part, ...] | None:
    """Decode a ``content``, text or a list of content parts, or return None if it is neither."""
    if not raw:
        return ()
    try:
        content = _CONTENT_DECODER.decode(raw)
        if content is None:
            return ()
        if isinstance(content, str):
            return (Text(content),)
        return tuple([decode_content_part(part) for part in content])
    except _DECODE_ERRORS:
        return None


def decode_content_part(raw: Raw) -> Part:
    """Decode one element of a ``content`` list."""
    try:
        part = _CONTENT_PART_DECODER.decode(raw)
    except _DECODE_ERRORS:
        return _build_opaque(raw)
    if part.type in TEXT_PART_TYPES and part.text is not None:
        return Text(part.text, None, raw)
    if part.type == "refusal" and part.refusal is not None:
        return Text(part.refusal, None, raw)
    if part.type == "unknown" and part.stdout is not None:  # a chunk of a shell's output has no type
        return Text(part.stdout + (part.stderr or ""), None, raw)
    read_media = _MEDIA_READERS.get(part.type)
    if read_media is None:
        return Opaque(part.type, raw)
    return read_media(part, raw)


def _build_opaque(raw: Raw) -> Opaque:
    try:
        return Opaque(_PART_TYPE_DECODER.decode(raw).type or "unknown", raw)
    except _DECODE_ERRORS:
        return Opaque("unknown", raw)


def _read_image(part: _WirePart, raw: Raw) -> Media:
    mime, data = split_data_url(part.image_url or "")
    if mime:
        return Media(
            "image",
            mime,
            count_base64_bytes(data),
            "",
            data or part.file_id or "",
            raw,
            "base64",
        )
    if data:  # the URL itself
        return Media("image", "", 0, "", data, raw, "url")
    return Media("image", "", 0, "", part.file_id or "", raw, "file")


def _read_file(part: _WirePart, raw: Raw) -> Media:
    mime, data = split_data_url(part.file_data or "")
    name = part.filename or ""
    if data:
        return Media(
            "document",
            mime,
            count_base64_bytes(data),
            name,
            data,
            raw,
            "base64",
        )
    form: MediaForm = "url" if part.file_url else "file"
    return Media(
        "document",
        mime,
        0,
        name,
        part.file_url or part.file_id or "",
        raw,
        form,
    )


def _read_audio(part: _WirePart, raw: Raw) -> Media:
    audio = part.input_audio or _AudioData()
    return Media(
        "audio",
        f"audio/{audio.format}",
        count_base64_bytes(audio.data),
        "",
        audio.data,
        raw,
    )


_MEDIA_READERS: dict[str, Callable[[_WirePart, Raw], Media]] = {
    "input_image": _read_image,
    "input_file": _read_file,
    "input_audio": _read_audio,
}


def decode_items(raws: Sequence[Raw]) -> list[Message]:
    """Decode a list of items into messages; neighbouring items of the model form one."""
    return [message for _, _, message in group_items_by_message(raws)]
