"""Items of OpenAI's Responses API as Codex records them.

They are read and written as on the wire (``providers.openai_responses.items``), with four differences: the sized
message keeps the bytes of its items and its parts keep none; a message with an unknown role is an error; an output
can say that it failed; and reasoning without a signature is recorded although no request may hold it.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Raw
from msgspec.structs import replace

from holdfast.errors import FormatError
from holdfast.messages.message import Message, format_part_placeholder
from holdfast.messages.parts import Media, Opaque, Part, Text, Thinking, ToolResult
from holdfast.providers.common.json.raw_json import encode_json
from holdfast.providers.openai_responses import items as responses_items
from holdfast.providers.openai_responses import messages as openai_responses
from holdfast.providers.openai_responses.items import (
    API_NAME,
    ROLE_BY_WIRE_ROLE,
    WireItem,
    decode_item,
    find_message_spans,
    is_model_item,
    split_response_items,
)

__all__ = [
    "API_NAME",
    "WireItem",
    "decode_codex_item",
    "decode_codex_message",
    "decode_codex_messages",
    "decode_item",
    "encode_codex_items",
    "is_model_item",
]


def decode_codex_item(raw: Raw | bytes, model: str = "") -> Message:
    """Return the message that one item, or an array of items, makes; raises ``FormatError`` if it makes none."""
    if bytes(raw).startswith(b'"'):
        return _strip_raw_bytes(responses_items.decode_message(raw))
    return decode_codex_message([(decode_item(item), item) for item in split_response_items(raw)], model)


def decode_codex_message(items: Sequence[tuple[WireItem, Raw]], model: str = "") -> Message:
    """Return the message that ``items`` make: everything the model said in one answer, or one other item.

    Raises ``FormatError`` for a message with an unknown role.
    """
    item = items[0][0] if items else WireItem()
    if item.type == "message" and item.role not in ROLE_BY_WIRE_ROLE:
        raise FormatError(f"the message has the role {item.role!r}; known are user, assistant, developer and system")
    return _strip_raw_bytes(responses_items.build_message_from_items(items, model))


def decode_codex_messages(raws: Sequence[Raw]) -> list[Message]:
    """Return the messages in an array of items; adjacent items of the model are one message."""
    wire_items = [decode_item(raw) for raw in raws]
    items = list(zip(wire_items, raws, strict=True))
    messages = []
    for start, stop in find_message_spans(wire_items):
        messages.append(decode_codex_message(items[start:stop]))
    return messages


def _strip_raw_bytes(message: Message) -> Message:
    """Return ``message`` without the raw bytes of its parts: the sized message keeps those of the items."""
    parts = [_strip_raw_of_part(part) for part in message.parts]
    return Message(message.role, tuple(parts))


def _strip_raw_of_part(part: Part) -> Part:
    if isinstance(part, Opaque):
        return part  # its raw bytes are all there is of it
    if isinstance(part, ToolResult):
        content = [_strip_raw_of_content(inner) for inner in part.content]
        return replace(part, content=tuple(content), raw=None)
    return replace(part, raw=None)


def _strip_raw_of_content(part: Text | Media | Opaque) -> Text | Media | Opaque:
    return part if isinstance(part, Opaque) else replace(part, raw=None)


def encode_codex_items(message: Message) -> list[bytes]:
    """Return ``message`` as items of the Responses API, without ids."""
    items = [encode_json(_encode_call_output(result)) for result in message.results]
    other_parts = []
    for part in message.parts:
        if not isinstance(part, ToolResult):
            other_parts.append(_to_recorded_part(part))
    # A message of results alone must not become an empty message item too.
    if other_parts or not items:
        items += openai_responses.encode_message(Message(message.role, tuple(other_parts)))
    return items


def _to_recorded_part(part: Part) -> Part:
    """Return a part as Codex records it.

    Reasoning that OpenAI did not sign becomes a reasoning item too: the encoder for requests would drop it.
    """
    if not isinstance(part, Thinking):
        return part
    is_signed = part.signature is not None and part.signature.api == API_NAME
    if is_signed:
        return part
    summary = [{"type": "summary_text", "text": part.text}] if part.text else []
    item = {"type": "reasoning", "summary": summary, "encrypted_content": None}
    return Opaque("reasoning", Raw(encode_json(item)))


def _encode_call_output(result: ToolResult) -> dict[str, object]:
    texts = []
    for part in result.content:
        if isinstance(part, Text):
            texts.append(part.text)
        else:
            # Outputs are written as text, so an image becomes a line that names it.
            texts.append(format_part_placeholder(part))
    text = "\n".join(texts)
    output = {"content": text, "success": False} if result.is_error else text
    return {"type": "function_call_output", "call_id": result.call_id, "output": output}
