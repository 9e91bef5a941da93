"""Messages of LangChain in our terms, and what a request shows of them in LangChain's."""

from __future__ import annotations

import json
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.messages.tool import default_tool_parser
from msgspec import Raw

from holdfast.hosts.given_conversation import ShownMessage
from holdfast.integrations.common.agent_history import GivenMessage
from holdfast.integrations.common.parts import match_kept_parts
from holdfast.messages.message import Message, Role, get_result_text
from holdfast.messages.parts import Media, Opaque, Part, Text, Thinking, ToolCall, ToolResult
from holdfast.state.entries import Usage

MEDIA_BLOCKS = frozenset({"image", "image_url", "input_image", "file", "document", "input_file", "audio", "video"})
"""Types of content blocks with pictures and documents."""
THINKING_BLOCKS = frozenset({"thinking", "reasoning", "redacted_thinking"})
CALL_BLOCKS = frozenset({"tool_use", "tool_call", "function_call"})
"""Types of content blocks that repeat ``AIMessage.tool_calls``."""


def read_message(message: BaseMessage) -> GivenMessage:
    """Return a message of LangChain in our terms: one part for each block of its content, then its calls."""
    if isinstance(message, ToolMessage):
        content = tuple(_read_result_block(block) for block in _list_blocks(message))
        is_error = message.status == "error"
        return GivenMessage(Message("tool", (ToolResult(message.tool_call_id, message.name or "", content, is_error),)))
    parts: list[Part] = [_read_block(block) for block in _list_blocks(message) if not _is_call_block(block)]
    if not isinstance(message, AIMessage):
        return GivenMessage(Message(_get_role(message), tuple(parts)))
    for call in message.tool_calls:
        parts.append(ToolCall(call["id"] or "", call["name"], json.dumps(call["args"], default=str)))
    # LangChain sends these too, and answers each with an error.
    for invalid_call in message.invalid_tool_calls:
        arguments = invalid_call["args"] or ""
        parts.append(ToolCall(invalid_call["id"] or "", invalid_call["name"] or "", arguments))
    return GivenMessage(Message("assistant", tuple(parts)), _read_usage(message))


def _get_role(message: BaseMessage) -> Role:
    return "system" if isinstance(message, SystemMessage) else "user"


def _list_blocks(message: BaseMessage) -> list[Any]:
    """Return the blocks of a message's content; a plain text is one."""
    if isinstance(message.content, str):
        return [message.content] if message.content else []
    return list(message.content)


def _is_call_block(block: Any) -> bool:
    return isinstance(block, dict) and block.get("type") in CALL_BLOCKS


def _read_block(block: Any) -> Text | Thinking | Media | Opaque:
    if isinstance(block, str):
        return Text(block)
    kind = str(block.get("type", ""))
    if kind in {"text", "input_text", "output_text"}:
        return Text(str(block.get("text", "")))
    if kind in THINKING_BLOCKS:
        return Thinking(str(block.get("thinking") or block.get("reasoning") or block.get("text") or ""))
    if kind in MEDIA_BLOCKS:
        media_kind = "image" if "image" in kind else "document"
        source = json.dumps(block, default=str, sort_keys=True)
        return Media(media_kind, str(block.get("mime_type", "")), len(source), "", blake2b(source.encode()).hexdigest())
    # With its content, so that its size counts.
    return Opaque(kind or "unknown", Raw(json.dumps(block, default=str).encode()))


def _read_result_block(block: Any) -> Text | Media | Opaque:
    part = _read_block(block)
    return Text(part.text) if isinstance(part, Thinking) else part


def _read_usage(message: AIMessage) -> Usage | None:
    usage = message.usage_metadata
    if not usage:
        return None
    details = usage.get("input_token_details") or {}
    return Usage(
        usage["input_tokens"],
        usage["output_tokens"],
        details.get("cache_read") or 0,
        details.get("cache_creation") or 0,
    )


def write_view(
    originals: Sequence[AnyMessage], given_messages: Sequence[GivenMessage], shown_messages: Sequence[ShownMessage]
) -> list[AnyMessage]:
    """Return what a request shows of ``originals``: LangChain's own messages wherever nothing is left out.

    ``given_messages`` are the same messages in our terms.
    """
    messages: list[AnyMessage] = []
    for shown in shown_messages:
        if shown.index is None:
            messages += _write_new_message(shown.message)
        else:
            given = given_messages[shown.index].message
            messages.append(_write_own_message(originals[shown.index], given, shown.message))
    return messages


def forget_response_ids(messages: Sequence[AnyMessage]) -> list[AnyMessage]:
    """Return ``messages`` without the ids by which a provider would add what it has of the conversation itself."""
    plain_messages: list[AnyMessage] = []
    for message in messages:
        if isinstance(message, AIMessage) and "id" in message.response_metadata:
            metadata = {name: value for name, value in message.response_metadata.items() if name != "id"}
            plain_messages.append(message.model_copy(update={"response_metadata": metadata}))
        else:
            plain_messages.append(message)
    return plain_messages


def _write_own_message(original: AnyMessage, given: Message, shown: Message) -> AnyMessage:
    """Return ``original``, which is ``given`` in our terms, with the texts that ``shown`` has in place of its own.

    The original itself if there are none.
    """
    if shown == given:
        return original
    blocks = _list_blocks(original)
    if isinstance(original, ToolMessage):
        content = _write_blocks(given.results[0].content, shown.results[0].content, blocks)
    else:
        own_blocks = [block for block in blocks if not _is_call_block(block)]
        call_blocks = [block for block in blocks if _is_call_block(block)]
        content = [*_write_blocks(_list_content(given), _list_content(shown), own_blocks), *call_blocks]
    if isinstance(original.content, str) and all(isinstance(block, str) for block in content):
        return original.model_copy(update={"content": "\n".join(content)})
    return original.model_copy(update={"content": content})


def _list_content(message: Message) -> list[Part]:
    return [part for part in message.parts if not isinstance(part, ToolCall)]


def _write_blocks(given: Sequence[Part], shown: Sequence[Part], blocks: Sequence[Any]) -> list[Any]:
    """Return the content that ``shown`` stands for: LangChain's own blocks where a part is as it was, else texts."""
    content: list[Any] = []
    for part, place in match_kept_parts(given, shown):
        if place is not None:
            content.append(blocks[place])
        elif isinstance(part, Text):
            content.append({"type": "text", "text": part.text} if _has_typed_blocks(blocks) else part.text)
    return content


def _has_typed_blocks(blocks: Sequence[Any]) -> bool:
    return any(isinstance(block, dict) for block in blocks)


def _write_new_message(message: Message) -> list[AnyMessage]:
    """Return a message that LangChain does not have: an extract, or what takes the place of older messages."""
    if message.role == "assistant":
        raw_calls = []
        for call in message.calls:
            raw_calls.append({"id": call.id, "function": {"name": call.name, "arguments": call.arguments}})
        calls, invalid_calls = default_tool_parser(raw_calls)
        return [AIMessage(content=message.text, tool_calls=calls, invalid_tool_calls=invalid_calls)]
    messages: list[AnyMessage] = []
    for result in message.results:
        messages.append(ToolMessage(content=get_result_text(result), tool_call_id=result.call_id, name=result.name))
    if message.text:
        messages.append(HumanMessage(content=message.text))
    return messages
