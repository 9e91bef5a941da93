"""Items of OpenAI's Responses API, as Codex records them, to values and back.

They are read and written as on the wire (``wire.responses_items``). What differs: a slot keeps the bytes of its items
and its parts keep none; a message of a role that is not known is no item; an output may say that it failed; reasoning
that nobody can send is recorded all the same.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Raw
from msgspec.structs import replace

from holdfast.errors import FormatError
from holdfast.messages.message import Message, format_part_placeholder
from holdfast.messages.parts import Opaque, Part, Text, Thinking, ToolResult
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
    """Return one item, or a list of items that make one message, as values; ``FormatError`` if they are neither."""
    if bytes(raw).startswith(b'"'):
        return _strip_raw_bytes(responses_items.decode_message(raw))
    return decode_codex_message([(decode_item(item), item) for item in split_response_items(raw)], model)


def decode_codex_message(items: Sequence[tuple[WireItem, Raw]], model: str = "") -> Message:
    """Return items that make one message: all that the model said in one answer, or one other item."""
    item = items[0][0] if items else WireItem()
    if item.type == "message" and item.role not in ROLE_BY_WIRE_ROLE:
        raise FormatError(f"the message has the role {item.role!r}; known are user, assistant, developer and system")
    return _strip_raw_bytes(responses_items.build_message_from_items(items, model))


def decode_codex_messages(raws: Sequence[Raw]) -> list[Message]:
    """Return a list of items as messages: what the model said without a break is one."""
    items = [(decode_item(raw), raw) for raw in raws]
    return [decode_codex_message(items[start:stop]) for start, stop in find_message_spans([item for item, _ in items])]


def _strip_raw_bytes(message: Message) -> Message:
    """Return ``message`` without the bytes of its parts, except where they are all there is."""
    return Message(message.role, tuple([_strip_raw_of_part(part) for part in message.parts]))


def _strip_raw_of_part(part: Part) -> Part:
    if isinstance(part, Opaque):
        return part
    if isinstance(part, ToolResult):
        inner = tuple(
            [
                inner_part if isinstance(inner_part, Opaque) else replace(inner_part, raw=None)
                for inner_part in part.content
            ]
        )
        return replace(part, content=inner, raw=None)
    return replace(part, raw=None)


def encode_codex_items(message: Message) -> list[bytes]:
    """Return ``message`` as items of the Responses API, without ids."""
    results = [_encode_call_output(result) for result in message.results]
    other_parts = tuple([_to_recorded_part(part) for part in message.parts if not isinstance(part, ToolResult)])
    message_items = (
        openai_responses.encode_message(Message(message.role, other_parts)) if other_parts or not results else []
    )
    return [encode_json(output) for output in results] + message_items


def _to_recorded_part(part: Part) -> Part:
    """Return a part as it is recorded: reasoning that was sealed by nobody, or by another API, is an item too."""
    is_signed = isinstance(part, Thinking) and part.signature is not None and part.signature.api == API_NAME
    if not isinstance(part, Thinking) or is_signed:
        return part
    summary = [{"type": "summary_text", "text": part.text}] if part.text else []
    return Opaque("reasoning", Raw(encode_json({"type": "reasoning", "summary": summary, "encrypted_content": None})))


def _encode_call_output(result: ToolResult) -> dict[str, object]:
    words = "\n".join(
        [part.text if isinstance(part, Text) else format_part_placeholder(part) for part in result.content]
    )
    output = {"content": words, "success": False} if result.is_error else words
    return {"type": "function_call_output", "call_id": result.call_id, "output": output}
