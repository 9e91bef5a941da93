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
from holdfast.messages.parts import Media, MediaForm, Opaque, Part, Seal, Text, Thinking, ToolCall, ToolResult
from holdfast.providers.common.json.raw_json import Bytes, decoded_size, fields, read, unpacked_url, write
from holdfast.providers.common.media import as_words

API = "openai-responses"


# -- the shapes on the wire --------------------------------------------------------------------------------------------


class Item(Struct, gc=False):
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


class _Sound(Struct, gc=False):
    data: str = ""
    format: str = ""


class _Piece(Struct, gc=False):
    type: str = "unknown"
    text: str | None = None
    refusal: str | None = None
    image_url: str | None = None
    file_id: str | None = None
    file_data: str | None = None
    file_url: str | None = None
    filename: str | None = None
    input_audio: _Sound | None = None
    stdout: str | None = None
    stderr: str | None = None


class _Wrapped(Struct, gc=False):
    content: Raw = Raw(b'""')
    success: bool | None = None


class _Kind(Struct, gc=False):
    type: str | None = None


_ITEM = Decoder(Item)
_PIECE = Decoder(_Piece)
_WRAPPED = Decoder(_Wrapped)
_KIND = Decoder(_Kind)
_LIST = Decoder(list[Raw])
_STRING = Decoder(str)
_CONTENT: Decoder[str | list[Raw] | None] = Decoder(str | list[Raw] | None)
_BAD = (msgspec.DecodeError, UnicodeDecodeError)
_TEXT_FIELDS = ("type", "role", "id", "call_id", "name", "encrypted_content")
_RAW_FIELDS = ("content", "summary", "arguments", "input", "action", "operation", "output")

CALLS = {
    "function_call": "arguments",
    "custom_tool_call": "input",
    "local_shell_call": "action",
    "shell_call": "action",
    "apply_patch_call": "operation",
}
"""Calls that the client answers, and the field that holds what they ask for."""
RESULTS = frozenset(f"{kind}_output" for kind in CALLS)
"""What answers them. Calls that the server answers, and a computer's screenshots, are not interpreted."""
_CLIENT = frozenset(
    {"item_reference", "additional_tools", "configuration_update", "mcp_approval_response", "compaction_trigger"}
)
"""Items beside messages and outputs that the client makes (SDK 3.54)."""
TEXTS = frozenset({"input_text", "output_text", "text", "summary_text", "reasoning_text"})
ROLES: dict[str, Role] = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
INNER = "content."
"""How the kind of an opaque piece begins that stands inside an assistant's message item."""


# -- groups ------------------------------------------------------------------------------------------------------------


def items_of(raw: Bytes) -> list[Raw]:
    """Return the items in ``raw``: one item, several with commas between, or a list of them."""
    data = bytes(raw)
    return read(_LIST, data if data.startswith(b"[") else b"[" + data + b"]", "the items")


def item_of(raw: Bytes) -> Item:
    """Return the fields of one item; a field of another type than expected counts as absent.

    Raises ``FormatError`` for what is no JSON object.
    """
    try:
        return _ITEM.decode(raw)
    except _BAD:
        found = fields(raw, "the item")
    values: dict[str, Any] = {key: found[key] for key in _RAW_FIELDS if key in found}
    for key in _TEXT_FIELDS:
        if key in found and (text := _text(found[key])) is not None:
            values[key] = text
    return Item(**values)


def _text(raw: Raw) -> str | None:
    try:
        return _STRING.decode(raw)
    except _BAD:
        return None


def is_answer(item: Item) -> bool:
    """Return whether the model made this item."""
    return speaker(item) == "assistant"


def speaker(item: Item) -> Role:
    """Return the role of the message that an item is, or is a part of."""
    kind = item.type
    if kind in CALLS:
        return "assistant"
    if kind == "message" or (not kind and item.role):
        return ROLES.get(item.role, "system")
    if kind.endswith("_output"):
        return "tool"
    return "system" if kind in _CLIENT or not kind else "assistant"


def runs(items: Sequence[Item]) -> list[tuple[int, int]]:
    """Return where each message begins and ends in a list of items."""
    return _runs([speaker(item) for item in items])


def _runs(speakers: Sequence[Role]) -> list[tuple[int, int]]:
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


def groups(raws: Sequence[Raw], model: str = "") -> list[tuple[int, int, Message]]:
    """Return each message in a list of items, and where it begins and ends; ``FormatError`` names what is no item."""
    try:
        items = [_ITEM.decode(raw) for raw in raws]
    except _BAD:
        items = [_numbered(raw, index) for index, raw in enumerate(raws)]
    pairs = list(zip(items, raws, strict=True))
    speakers = [speaker(item) for item in items]
    found = [(start, stop, _message(speakers[start], pairs[start:stop], model)) for start, stop in _runs(speakers)]
    shells = {item.id: item.call_id for item in items if item.type == "local_shell_call" and item.id and item.call_id}
    return [(start, stop, _of_shell(one, items[start], shells)) for start, stop, one in found] if shells else found


def _of_shell(message: Message, item: Item, shells: Mapping[str, str]) -> Message:
    """Return the output of a local shell under the ``call_id`` of its call, whose ``id`` it may name instead."""
    if item.type != "local_shell_call_output" or not message.results or item.call_id in shells.values():
        return message
    result = message.results[0]
    known = result.call_id not in shells or result.call_id in shells.values()
    return message if known else Message("tool", (replace(result, call_id=shells[result.call_id]),))


def _numbered(raw: Raw, index: int) -> Item:
    try:
        return item_of(raw)
    except FormatError as error:
        raise FormatError(f"$.input[{index}]: {error}") from None


def listed(raw: Raw) -> Bytes:
    """Return the bytes of a slot as they stand in a list: without brackets of their own, a string as a user's words."""
    first = bytes(memoryview(raw)[:1])
    if first == b"[":
        data = bytes(raw)
        return data[1 : data.rindex(b"]")].strip()
    return write({"role": "user", "content": raw}) if first == b'"' else raw


# -- from the wire -----------------------------------------------------------------------------------------------------


def decode(raw: Bytes, model: str = "") -> Message:
    """Return one group, one other item, or a plain string as values; ``model`` made what is sealed, if it is known.

    Raises ``FormatError`` when ``raw`` is none of these.
    """
    if bytes(raw).startswith(b'"'):
        return Message("user", (Text(read(_STRING, raw, "the input")),))
    return message_of([(item_of(one), one) for one in items_of(raw)], model)


def message_of(items: Sequence[tuple[Item, Raw]], model: str = "") -> Message:
    """Return items that make one message: all that the model said in one answer, or one other item."""
    if not items:
        raise FormatError("the group has no item; give at least one")
    return _message(speaker(items[0][0]), items, model)


def _message(role: Role, items: Sequence[tuple[Item, Raw]], model: str) -> Message:
    item, raw = items[0]
    if role == "assistant":
        return Message(role, tuple([part for item, raw in items for part in said(item, raw, model)]))
    if item.type in RESULTS and (found := _result(item, raw)) is not None:
        return Message("tool", (found,))
    content = _content(item.content) if item.role in ROLES and item.type in ("message", "") else None
    if content is not None:
        return Message(role, tuple(map(as_words, content)) if role == "user" else content)
    screen = item.call_id if item.type == "computer_call_output" else None
    return Message(role, (Opaque("message", raw, Seal(API, "", screen) if screen else None),))


def said(item: Item, raw: Raw, model: str = "") -> tuple[Part, ...]:
    """Return the parts of one item that the model made."""
    if item.type in ("message", ""):
        return _spoken(item, raw)
    if item.type == "reasoning":
        words = _words(item)
        sealed = item.encrypted_content or item.id
        return (Thinking(words, Seal(API, model, sealed) if sealed else None, raw),)
    field = CALLS.get(item.type)
    id_ = item.call_id or (item.id if item.type == "local_shell_call" else None)
    if field is None or not id_:
        asked_id = item.call_id if item.type == "computer_call" else None
        return (Opaque(item.type, raw, Seal(API, "", asked_id) if asked_id else None),)
    asked = _asked(getattr(item, field), as_text=field == "arguments")
    return (ToolCall(id_, item.type.removesuffix("_call") if item.name is None else item.name, asked, None, raw),)


def _spoken(item: Item, raw: Raw) -> tuple[Part, ...]:
    """Return what a message item of the model's says: a single piece has the bytes of the item."""
    parts = _content(item.content)
    if not parts:
        return (Opaque("message", raw),)
    if len(parts) == 1 and type(parts[0]) is Text:
        return (Text(parts[0].text, None, raw),)
    return tuple([_inside(part) for part in parts])


def _inside(part: Part) -> Part:
    """Return a piece among several of one item: what only users may say there is not interpreted."""
    if isinstance(part, Text):
        return part
    return Opaque(INNER + (part.kind if isinstance(part, Opaque) else "media"), part.raw)


def _words(item: Item) -> str:
    """Return the words of reasoning: its summary, then what it shows of itself."""
    parts = (*(_content(item.summary) or ()), *(_content(item.content) or ()))
    return "\n".join([part.text for part in parts if isinstance(part, Text)])


def _asked(raw: Raw, *, as_text: bool) -> str:
    """Return what a call asks for as JSON text: out of its string, or as it stands."""
    return _STRING.decode(raw) if as_text and bytes(memoryview(raw)[:1]) == b'"' else bytes(raw).decode()


def _result(item: Item, raw: Raw) -> ToolResult | None:
    """Return the output of a call; nothing when it cannot be read."""
    output, failed = item.output, False
    if bytes(memoryview(output)[:1]) == b"{":
        try:
            wrapped = _WRAPPED.decode(output)
        except _BAD:
            return None
        output, failed = wrapped.content, wrapped.success is False
    content = _content(output) if output else ()
    if content is None:
        return None
    inner = tuple([one for one in map(as_words, content) if isinstance(one, Text | Media | Opaque)])
    return ToolResult(item.call_id or item.id or "", item.name or "", inner, failed, raw)


def _content(raw: Raw) -> tuple[Part, ...] | None:
    """Return a ``content``, text or a list of pieces, as parts; nothing when it is neither."""
    if not raw:
        return ()
    try:
        found = _CONTENT.decode(raw)
        if found is None or isinstance(found, str):
            return () if found is None else (Text(found),)
        return tuple([piece_of(one) for one in found])
    except _BAD:
        return None


def piece_of(raw: Raw) -> Part:
    """Return one element of a ``content`` list as a part."""
    try:
        piece = _PIECE.decode(raw)
    except _BAD:
        return _opaque(raw)
    if piece.type in TEXTS and piece.text is not None:
        return Text(piece.text, None, raw)
    if piece.type == "refusal" and piece.refusal is not None:
        return Text(piece.refusal, None, raw)
    if piece.type == "unknown" and piece.stdout is not None:
        return Text(piece.stdout + (piece.stderr or ""), None, raw)
    look = _LOOKS.get(piece.type)
    return Opaque(piece.type, raw) if look is None else look(piece, raw)


def _opaque(raw: Raw) -> Opaque:
    try:
        return Opaque(_KIND.decode(raw).type or "unknown", raw)
    except _BAD:
        return Opaque("unknown", raw)


def _image(piece: _Piece, raw: Raw) -> Media:
    mime, data = unpacked_url(piece.image_url or "")
    form: MediaForm = "base64" if mime else "url" if data else "file"
    return Media("image", mime, decoded_size(data) if mime else 0, "", data or piece.file_id or "", raw, form)


def _file(piece: _Piece, raw: Raw) -> Media:
    mime, data = unpacked_url(piece.file_data or "")
    where = data or piece.file_url or piece.file_id or ""
    form: MediaForm = "base64" if data else "url" if piece.file_url else "file"
    return Media("document", mime, decoded_size(data) if data else 0, piece.filename or "", where, raw, form)


def _audio(piece: _Piece, raw: Raw) -> Media:
    sound = piece.input_audio or _Sound()
    return Media("audio", f"audio/{sound.format}", decoded_size(sound.data), "", sound.data, raw)


_LOOKS: dict[str, Callable[[_Piece, Raw], Media]] = {"input_image": _image, "input_file": _file, "input_audio": _audio}


def grouped(raws: Sequence[Raw]) -> list[Message]:
    """Return a list of items as messages: what the model said without a break is one."""
    return [message for _, _, message in groups(raws)]
