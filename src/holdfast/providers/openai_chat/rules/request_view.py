"""A Chat Completions request as its rules read it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from holdfast.providers.rules.envelope import RequestView


class ChatView(RequestView):
    """A Chat request; messages that are no objects are left out of the views."""

    messages: list[Any]
    message_objects: list[tuple[int, Mapping[str, Any], str]]
    """Messages that are objects: where they stand, what they are, their role."""
    calls: list[tuple[int, int, Mapping[str, Any]]]
    """Calls of the assistant: message, place in it, call."""
    parts: list[tuple[int, int, Any, str]]
    """Parts of contents that are lists: message, place in it, part, the message's role."""

    def iter_results(self) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """Yield the tool messages."""
        for at, message, role in self.message_objects:
            if role == "tool":
                yield at, message


def build_chat_view(envelope: RequestView) -> ChatView:
    """Return a body as rules read it, each message looked at once."""
    request = ChatView(
        envelope.body, envelope.body_bytes, envelope.betas, envelope.model, envelope.get_list("messages"), [], [], []
    )
    for at, message in enumerate(request.messages):
        if isinstance(message, dict):
            role = message.get("role")
            _add_message_to_view(request, at, message, role if isinstance(role, str) else "")
    return request


def _add_message_to_view(request: ChatView, message_index: int, message: Mapping[str, Any], role: str) -> None:
    request.message_objects.append((message_index, message, role))
    content, calls = message.get("content"), message.get("tool_calls")
    if isinstance(content, list):
        request.parts += [(message_index, index, part, role) for index, part in enumerate(content)]
    if role == "assistant" and isinstance(calls, list):
        request.calls += [
            (message_index, index, call if isinstance(call, dict) else {}) for index, call in enumerate(calls)
        ]


def get_call_ids(message: Mapping[str, Any], role: str) -> list[str]:
    """Return the ids of a message's calls, as text whatever they are."""
    calls = message.get("tool_calls") if role == "assistant" else None
    return [str(call.get("id")) for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
