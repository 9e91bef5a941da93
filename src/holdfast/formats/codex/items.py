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
from holdfast.messages.message import Message, placeholder
from holdfast.messages.parts import Opaque, Part, Text, Thinking, ToolResult
from holdfast.providers.common.json.raw_json import write
from holdfast.providers.openai_responses import items as responses_items
from holdfast.providers.openai_responses import messages as openai_responses
from holdfast.providers.openai_responses.items import API, ROLES, Item, is_answer, item_of, items_of, runs

__all__ = ["API", "Item", "decode_item", "encode_items", "grouped", "is_answer", "item_of", "message_of"]


def decode_item(raw: Raw | bytes, model: str = "") -> Message:
    """Return one item, or a list of items that make one message, as values; ``FormatError`` if they are neither."""
    if bytes(raw).startswith(b'"'):
        return _bare(responses_items.decode(raw))
    return message_of([(item_of(one), one) for one in items_of(raw)], model)


def message_of(items: Sequence[tuple[Item, Raw]], model: str = "") -> Message:
    """Return items that make one message: all that the model said in one answer, or one other item."""
    item = items[0][0] if items else Item()
    if item.type == "message" and item.role not in ROLES:
        raise FormatError(f"the message has the role {item.role!r}; known are user, assistant, developer and system")
    return _bare(responses_items.message_of(items, model))


def grouped(raws: Sequence[Raw]) -> list[Message]:
    """Return a list of items as messages: what the model said without a break is one."""
    items = [(item_of(raw), raw) for raw in raws]
    return [message_of(items[start:stop]) for start, stop in runs([item for item, _ in items])]


def _bare(message: Message) -> Message:
    """Return ``message`` without the bytes of its parts, except where they are all there is."""
    return Message(message.role, tuple([_without_bytes(part) for part in message.parts]))


def _without_bytes(part: Part) -> Part:
    if isinstance(part, Opaque):
        return part
    if isinstance(part, ToolResult):
        inner = tuple([one if isinstance(one, Opaque) else replace(one, raw=None) for one in part.content])
        return replace(part, content=inner, raw=None)
    return replace(part, raw=None)


def encode_items(message: Message) -> list[bytes]:
    """Return ``message`` as items of the Responses API, without ids."""
    results = [_output(result) for result in message.results]
    rest = tuple([_recorded(part) for part in message.parts if not isinstance(part, ToolResult)])
    said = openai_responses.encode(Message(message.role, rest)) if rest or not results else []
    return [write(output) for output in results] + said


def _recorded(part: Part) -> Part:
    """Return a part as it is recorded: reasoning that was sealed by nobody, or by another API, is an item too."""
    sealed = isinstance(part, Thinking) and part.seal is not None and part.seal.api == API
    if not isinstance(part, Thinking) or sealed:
        return part
    summary = [{"type": "summary_text", "text": part.text}] if part.text else []
    return Opaque("reasoning", Raw(write({"type": "reasoning", "summary": summary, "encrypted_content": None})))


def _output(result: ToolResult) -> dict[str, object]:
    words = "\n".join([part.text if isinstance(part, Text) else placeholder(part) for part in result.content])
    output = {"content": words, "success": False} if result.is_error else words
    return {"type": "function_call_output", "call_id": result.call_id, "output": output}
