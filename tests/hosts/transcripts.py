"""Transcripts as Claude Code hands them to a plugin, built from our own messages."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from holdfast.messages.message import Message, get_result_text
from holdfast.messages.parts import Text, ToolCall, ToolResult


def build_transcript(messages: Sequence[Message], **fields: Any) -> dict[str, Any]:
    """Return the input of ``compact --stdin`` for ``messages``; each has its index as its handle."""
    host_messages = [_build_host_message(message, f"h{index}") for index, message in enumerate(messages)]
    return {"messages": host_messages, **fields}


def _build_host_message(message: Message, handle: str) -> dict[str, Any]:
    texts: list[str] = []
    calls: list[dict[str, Any]] = []
    results: list[dict[str, Any]] = []
    for part in message.parts:
        if isinstance(part, Text):
            texts.append(part.text)
        elif isinstance(part, ToolCall):
            calls.append({"tool_use_id": part.id, "tool": part.name, "input": json.loads(part.arguments)})
        elif isinstance(part, ToolResult):
            text = get_result_text(part)
            results.append({"tool_use_id": part.call_id, "text": text, "isError": part.is_error})
    role = "assistant" if message.role == "assistant" else "user"
    host_message: dict[str, Any] = {"role": role, "text": "\n".join(texts), "toolUses": calls, "handle": handle}
    if results:
        host_message["toolResults"] = results
    return host_message


def list_call_ids(messages: Sequence[dict[str, Any]]) -> list[str]:
    """Return the ids of the calls in messages of a transcript."""
    return [call["tool_use_id"] for message in messages for call in message["toolUses"]]


def list_result_ids(messages: Sequence[dict[str, Any]]) -> list[str]:
    """Return the ids that results in messages of a transcript name."""
    return [result["tool_use_id"] for message in messages for result in message.get("toolResults", [])]
