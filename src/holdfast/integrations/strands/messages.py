"""Messages of Strands in our terms, and what a request shows of them in Strands'."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

from msgspec import Raw

from holdfast.integrations.common.agent_history import GivenMessage
from holdfast.integrations.common.parts import match_kept_parts
from holdfast.messages.message import Message
from holdfast.messages.parts import Media, Opaque, Part, Text, Thinking, ToolCall, ToolResult
from holdfast.state.entries import Usage

MEDIA_BLOCKS = ("image", "document", "video", "audio")
"""Names of content blocks with pictures, documents and sound."""


def read_messages(messages: Sequence[Any]) -> list[GivenMessage]:
    """Return messages of Strands in our terms: one part for each block."""
    tool_names: dict[str, str] = {}
    given_messages: list[GivenMessage] = []
    for message in messages:
        parts = tuple(_read_block(block, tool_names) for block in _list_blocks(message))
        tool_names.update({part.id: part.name for part in parts if isinstance(part, ToolCall)})
        if message["role"] == "assistant":
            given_messages.append(GivenMessage(Message("assistant", parts), _read_usage(message)))
        elif parts and all(isinstance(part, ToolResult) for part in parts):
            given_messages.append(GivenMessage(Message("tool", parts)))
        else:
            given_messages.append(GivenMessage(Message("user", parts)))
    return given_messages


def _list_blocks(message: Any) -> list[Any]:
    """Return the blocks of a message but for marks of the prompt cache, which are no content."""
    return [block for block in message["content"] if "cachePoint" not in block]


def _read_block(block: Any, tool_names: Mapping[str, str]) -> Part:
    if "toolUse" in block:
        call = block["toolUse"]
        arguments = json.dumps(call["input"], ensure_ascii=False, default=encode_bytes)
        return ToolCall(call["toolUseId"], call["name"], arguments)
    if "toolResult" in block:
        result = block["toolResult"]
        content = tuple(_read_content_block(inner) for inner in result["content"])
        call_id = result["toolUseId"]
        return ToolResult(call_id, tool_names.get(call_id, ""), content, result.get("status") == "error")
    if "reasoningText" in block.get("reasoningContent", {}):
        return Thinking(block["reasoningContent"]["reasoningText"].get("text") or "")
    return _read_content_block(block)


def _read_content_block(block: Any) -> Text | Media | Opaque:
    """Return a block that may also stand in a tool result."""
    kind = next(iter(block), "unknown")
    if kind == "text":
        return Text(block["text"] or "")
    if kind == "json":
        return Text(json.dumps(block["json"], ensure_ascii=False, default=encode_bytes))
    if kind == "guardContent" and "text" in block[kind]:
        return Text(block[kind]["text"]["text"])
    if kind == "citationsContent":
        return Text("".join(content.get("text", "") for content in block[kind].get("content", ())))
    if kind in MEDIA_BLOCKS:
        media = block[kind]
        source = json.dumps(media, default=encode_bytes, sort_keys=True)
        digest = blake2b(source.encode()).hexdigest()
        return Media(kind, f"{kind}/{media.get('format', '')}", len(source), media.get("name", ""), digest)
    # With its content, so that its size counts.
    return Opaque(kind, Raw(json.dumps(block, default=encode_bytes).encode()))


def encode_bytes(value: Any) -> str:
    """Write what JSON has no form for: the data of pictures, and what a tool returned in place of JSON."""
    return b64encode(value).decode() if isinstance(value, bytes) else str(value)


def _read_usage(message: Any) -> Usage | None:
    usage = message.get("metadata", {}).get("usage")
    if not usage:
        return None
    cache_read = usage.get("cacheReadInputTokens") or 0
    cache_write = usage.get("cacheWriteInputTokens") or 0
    prompt_tokens = usage["inputTokens"]
    if prompt_tokens + usage["outputTokens"] != usage["totalTokens"]:
        # Some providers count the cached tokens apart; the total tells which.
        prompt_tokens += cache_read + cache_write
    return Usage(prompt_tokens, usage["outputTokens"], cache_read, cache_write)


def write_own_message(original: Any, given: Message, shown: Message) -> Any:
    """Return ``original`` with the texts that ``shown`` has in place of its own; itself if there are none."""
    if shown == given:
        return original
    content = _write_blocks(given.parts, shown.parts, _list_blocks(original))
    cache_points = [block for block in original["content"] if "cachePoint" in block]
    return {**original, "content": [*content, *cache_points]}


def _write_blocks(given: Sequence[Part], shown: Sequence[Part], blocks: Sequence[Any]) -> list[Any]:
    """Return the content that ``shown`` stands for: Strands' own blocks where a part is as it was, else texts."""
    content: list[Any] = []
    for part, place in match_kept_parts(given, shown):
        if place is not None:
            content.append(blocks[place])
        elif isinstance(part, Text):
            content.append({"text": part.text})
        elif isinstance(part, ToolResult):
            content.append(_write_result(given, part, blocks))
    return content


def _write_result(given: Sequence[Part], shown: ToolResult, blocks: Sequence[Any]) -> Any:
    """Return the block of a tool result with the texts that ``shown`` has in place of its own."""
    for given_part, block in zip(given, blocks, strict=True):
        if isinstance(given_part, ToolResult) and given_part.call_id == shown.call_id:
            result = block["toolResult"]
            content = _write_blocks(given_part.content, shown.content, result["content"])
            return {"toolResult": {**result, "content": content}}
    return _write_new_result(shown)


def write_new_message(message: Message) -> Any:
    """Return a message that Strands does not have: an extract, or what takes the place of older messages."""
    content: list[Any] = []
    for part in message.parts:
        if isinstance(part, Text):
            content.append({"text": part.text})
        elif isinstance(part, ToolCall):
            call = {"toolUseId": part.id, "name": part.name, "input": json.loads(part.arguments)}
            content.append({"toolUse": call})
        elif isinstance(part, ToolResult):
            content.append(_write_new_result(part))
    return {"role": "assistant" if message.role == "assistant" else "user", "content": content}


def _write_new_result(result: ToolResult) -> Any:
    texts = [{"text": part.text} for part in result.content if isinstance(part, Text)]
    status = "error" if result.is_error else "success"
    return {"toolResult": {"toolUseId": result.call_id, "content": texts, "status": status}}
