"""Items of OpenAI's Responses API, as Codex records them, to values and back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Raw, Struct
from msgspec.json import Decoder

from holdfast.errors import FormatError
from holdfast.formats.lines import UNREADABLE, Shape
from holdfast.model.messages import Message, Role, placeholder
from holdfast.model.parts import Media, Opaque, Part, Seal, Text, Thinking, ToolCall, ToolResult
from holdfast.wire.splice import decoded_size, write

API = "openai-responses"


class Item(Struct):
    """The fields of an item; which are there depends on its type."""

    type: str = ""
    id: str | None = None
    role: str = ""
    content: Raw = Raw(b"[]")
    summary: Raw = Raw(b"[]")
    encrypted_content: str | None = None
    name: str = ""
    arguments: Raw = Raw(b'"{}"')
    call_id: str | None = None
    input: Raw = Raw(b'""')
    action: Raw = Raw(b"{}")
    output: Raw = Raw(b'""')


class _Piece(Struct):
    type: str = "unknown"
    text: str | None = None
    refusal: str | None = None
    image_url: str | None = None


class _Wrapped(Struct):
    content: Raw = Raw(b'""')
    success: bool | None = None


ITEM = Shape(Item)
_PIECE, _WRAPPED = Shape(_Piece), Shape(_Wrapped)
_LIST = Decoder(list[Raw])
_STRING = Decoder(str)
_CONTENT: Decoder[str | list[Raw] | None] = Decoder(str | list[Raw] | None)


def decode_item(raw: Raw | bytes, model: str = "") -> Message:
    """Return one item, or a list of items that make one message, as values; ``FormatError`` if they are neither."""
    try:
        raws = _LIST.decode(raw) if bytes(raw).startswith(b"[") else [Raw(bytes(raw))]
        return message_of([(ITEM.fit(one), one) for one in raws], model)
    except UNREADABLE as error:
        raise FormatError(f"the item cannot be read: {error}") from None


def is_answer(item: Item) -> bool:
    """Return whether the model made this item."""
    return item.role == "assistant" if item.type == "message" else not item.type.endswith("_output")


def message_of(items: Sequence[tuple[Item, Raw]], model: str = "") -> Message:
    """Return items that make one message: all that the model said in one answer, or one other item."""
    item = items[0][0]
    if is_answer(item):
        return Message("assistant", tuple([part for item, raw in items for part in _said(item, raw, model)]))
    if item.type != "message":
        return Message("tool", (_result(item),))
    role = _ROLES.get(item.role)
    if role is None:
        raise FormatError(f"the message has the role {item.role!r}; known are user, assistant, developer and system")
    return Message(role, _content(item.content))


_ROLES: dict[str, Role] = {"user": "user", "developer": "system", "system": "system"}


def grouped(raws: Iterable[Raw]) -> list[Message]:
    """Return a list of items as messages: what the model said without a break is one."""
    out: list[list[tuple[Item, Raw]]] = []
    for raw in raws:
        item = ITEM.fit(raw)
        if out and is_answer(item) and is_answer(out[-1][0][0]):
            out[-1].append((item, raw))
        else:
            out.append([(item, raw)])
    return [message_of(items) for items in out]


def _said(item: Item, raw: Raw, model: str) -> Iterable[Part]:
    """Yield the parts of one item of the model's."""
    if item.type == "message":
        yield from _content(item.content)
    elif item.type == "reasoning":
        parts = (*_content(item.summary), *_content(item.content))
        words = "\n".join(part.text for part in parts if isinstance(part, Text))
        seal = Seal(API, model, item.encrypted_content) if item.encrypted_content else None
        yield Thinking(words, seal)
    elif item.type == "function_call" and item.call_id:
        yield ToolCall(item.call_id, item.name, _text(item.arguments))
    elif item.type == "custom_tool_call" and item.call_id:
        yield ToolCall(item.call_id, item.name, bytes(item.input).decode())
    elif item.type == "local_shell_call" and (item.call_id or item.id):
        yield ToolCall(item.call_id or item.id or "", "local_shell", bytes(item.action).decode())
    else:
        yield Opaque(item.type or "unknown", raw)


def _text(raw: Raw) -> str:
    """Return a JSON string's text; other JSON as it stands."""
    text = bytes(raw)
    return _STRING.decode(text) if text.startswith(b'"') else text.decode()


def _result(item: Item) -> ToolResult:
    output, failed = item.output, False
    if bytes(output).startswith(b"{"):
        wrapped = _WRAPPED.of(output)
        output, failed = wrapped.content, wrapped.success is False
    inner = tuple([part for part in _content(output) if isinstance(part, Text | Media | Opaque)])
    return ToolResult(item.call_id or item.id or "", "", inner, failed)


def _content(content: Raw) -> tuple[Part, ...]:
    """Return a ``content``, text or a list of pieces, as parts."""
    found = _CONTENT.decode(content)
    if found is None or isinstance(found, str):
        return (Text(found),) if found else ()
    return tuple([_piece(raw) for raw in found])


def _piece(raw: Raw) -> Part:
    piece = _PIECE.of(raw)
    if piece.type in ("input_text", "output_text", "text", "summary_text", "reasoning_text") and piece.text is not None:
        return Text(piece.text)
    if piece.type == "refusal" and piece.refusal is not None:
        return Text(piece.refusal)
    if piece.type == "input_image" and piece.image_url is not None:
        head, comma, data = piece.image_url.partition(",")
        if comma and head.startswith("data:"):
            return Media("image", head[5:].partition(";")[0], decoded_size(data), "", data)
        return Media("image", "", 0, "", piece.image_url)
    return Opaque(piece.type, raw)


# -- to items ----------------------------------------------------------------------------------------------------------


def encode_items(message: Message) -> list[bytes]:
    """Return ``message`` as items of the Responses API, without ids."""
    if message.role == "assistant":
        return [write(item) for item in _answered(message)]
    out: list[object] = [_output(result) for result in message.results]
    rest = [part for part in message.parts if not isinstance(part, ToolResult)]
    if rest or not out:
        role = "developer" if message.role == "system" else "user"
        pieces = [piece for piece in map(_new_piece, rest) if piece is not None]
        out.append({"type": "message", "role": role, "content": pieces})
    return [write(item) for item in out]


def _answered(message: Message) -> Iterable[object]:
    words: list[dict[str, Any]] = []
    for part in message.parts:
        if isinstance(part, Text):
            words.append({"type": "output_text", "text": part.text})
            continue
        item = _new_item(part)
        if item is not None:
            yield from _spoken(words)
            words = []
            yield item
    yield from _spoken(words)


def _spoken(words: list[dict[str, Any]]) -> Iterable[object]:
    if words:
        yield {"type": "message", "role": "assistant", "content": words}


def _new_item(part: Part) -> object:
    if isinstance(part, ToolCall):
        return {"type": "function_call", "name": part.name, "arguments": part.arguments, "call_id": part.id}
    if isinstance(part, Thinking):
        summary = [{"type": "summary_text", "text": part.text}] if part.text else []
        sealed = part.seal.data if part.seal is not None and part.seal.api == API else None
        return {"type": "reasoning", "summary": summary, "encrypted_content": sealed}
    return part.raw if isinstance(part, Opaque) else None


def _output(result: ToolResult) -> dict[str, Any]:
    words = "\n".join(part.text if isinstance(part, Text) else placeholder(part) for part in result.content)
    output = {"content": words, "success": False} if result.is_error else words
    return {"type": "function_call_output", "call_id": result.call_id, "output": output}


def _new_piece(part: Part) -> object:
    if isinstance(part, Text):
        return {"type": "input_text", "text": part.text}
    if isinstance(part, Media) and part.kind == "image":
        packed = f"data:{part.mime};base64,{part.source}" if part.size else part.source
        return {"type": "input_image", "image_url": packed}
    return {"type": "input_text", "text": placeholder(part)} if isinstance(part, Media) else getattr(part, "raw", None)
