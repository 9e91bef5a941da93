"""A Chat Completions request in the form that its rules read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from holdfast.providers.rules.envelope import RequestView


class ChatView(RequestView):
    """A Chat request. Messages that are not objects are missing from the lists below, but not from ``messages``."""

    messages: list[Any]
    message_objects: list[tuple[int, Mapping[str, Any], str]]
    """Messages that are objects: index, message, role."""
    calls: list[tuple[int, int, Mapping[str, Any]]]
    """Calls of the assistant: index of the message, index in it, call."""
    parts: list[tuple[int, int, Any, str]]
    """Parts of contents that are lists: index of the message, index in it, part, role of the message."""

    def iter_results(self) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """Yield the tool messages."""
        for at, message, role in self.message_objects:
            if role == "tool":
                yield at, message


def build_chat_view(envelope: RequestView) -> ChatView:
    """Build the view of a body in one pass over its messages."""
    request = ChatView(
        envelope.body,
        envelope.body_bytes,
        envelope.betas,
        envelope.model,
        envelope.version,
        envelope.get_list("messages"),
        [],
        [],
        [],
    )
    for at, message in enumerate(request.messages):
        if isinstance(message, dict):
            role = message.get("role")
            _add_message_to_view(request, at, message, role if isinstance(role, str) else "")
    return request


def _add_message_to_view(
    request: ChatView,
    message_index: int,
    message: Mapping[str, Any],
    role: str,
) -> None:
    request.message_objects.append((message_index, message, role))
    content = message.get("content")
    if isinstance(content, list):
        for index, part in enumerate(content):
            request.parts.append((message_index, index, part, role))
    calls = message.get("tool_calls")
    if role == "assistant" and isinstance(calls, list):
        for index, call in enumerate(calls):
            request.calls.append((message_index, index, call if isinstance(call, dict) else {}))


def get_call_ids(message: Mapping[str, Any], role: str) -> list[str]:
    """Return the ids of the calls in an assistant message, converted to text; empty for other messages."""
    calls = message.get("tool_calls") if role == "assistant" else None
    if not isinstance(calls, list):
        return []
    return [str(call.get("id")) for call in calls if isinstance(call, dict)]
