"""A Chat Completions request as its rules read it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from holdfast.providers.rules.envelope import Envelope


class Chat(Envelope):
    """A Chat request; messages that are no objects are left out of the views."""

    messages: list[Any]
    objects: list[tuple[int, Mapping[str, Any], str]]
    """Messages that are objects: where they stand, what they are, their role."""
    calls: list[tuple[int, int, Mapping[str, Any]]]
    """Calls of the assistant: message, place in it, call."""
    parts: list[tuple[int, int, Any, str]]
    """Parts of contents that are lists: message, place in it, part, the message's role."""

    def results(self) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """Yield the tool messages."""
        for at, message, role in self.objects:
            if role == "tool":
                yield at, message


def view(known: Envelope) -> Chat:
    """Return a body as rules read it, each message looked at once."""
    request = Chat(known.body, known.size, known.betas, known.model, known.listed("messages"), [], [], [])
    for at, message in enumerate(request.messages):
        if isinstance(message, dict):
            role = message.get("role")
            _view_message(request, at, message, role if isinstance(role, str) else "")
    return request


def _view_message(request: Chat, at: int, message: Mapping[str, Any], role: str) -> None:
    request.objects.append((at, message, role))
    content, calls = message.get("content"), message.get("tool_calls")
    if isinstance(content, list):
        request.parts += [(at, index, part, role) for index, part in enumerate(content)]
    if role == "assistant" and isinstance(calls, list):
        request.calls += [(at, index, call if isinstance(call, dict) else {}) for index, call in enumerate(calls)]


def ids_of(message: Mapping[str, Any], role: str) -> list[str]:
    """Return the ids of a message's calls, as text whatever they are."""
    calls = message.get("tool_calls") if role == "assistant" else None
    return [str(call.get("id")) for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
