"""A minimal client for tests of a provider: it sends back everything it received, unchanged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.messages.parts import Text, Thinking, ToolCall
from holdfast.testing.provider.apis.encode_reply import find_reasoning_form
from holdfast.testing.provider.calls import ModelAnswer, ProviderReply
from holdfast.testing.provider.dialects.adapt_answer import REASONING_FIELD, move_reasoning
from holdfast.testing.provider.provider import Provider

STRICTEST_MODELS = {
    "anthropic": "claude-opus-5-5",
    "openai-chat": "gpt-5.5",
    "openai-responses": "gpt-5.5",
    "gemini": "gemini-3-pro",
}
"""For each API, a model that enforces the most rules."""
_HISTORY_FIELDS = {
    "anthropic": "messages",
    "openai-chat": "messages",
    "openai-responses": "input",
    "gemini": "contents",
}


class ProviderClient:
    """A conversation with a provider in one API; ``body`` is the next request, which tests may change."""

    def __init__(
        self,
        provider: Provider,
        api: str,
        *,
        tools: Sequence[str] = (),
        model: str = "",
        **fields: Any,
    ) -> None:
        """Start an empty conversation with ``tools`` by name and further ``fields`` of the body."""
        self.provider = provider
        self.api = api
        self.model = model or STRICTEST_MODELS[api]
        self.body: dict[str, Any] = {} if api == "gemini" else {"model": self.model}
        if api == "anthropic":
            self.body["max_tokens"] = 1_000  # the only API that requires it
        if tools:
            self.body["tools"] = _encode_tools(api, tools)
        self.body |= {_HISTORY_FIELDS[api]: [], **fields}

    @property
    def history(self) -> list[Any]:
        """The messages, items or contents of the next request."""
        messages: list[Any] = self.body[_HISTORY_FIELDS[self.api]]
        return messages

    def send_history(self, endpoint: Any = "generate", **headers: str) -> ProviderReply:
        """Send the conversation as it is and return the reply; an answer is added to the history."""
        header_fields = {name.replace("_", "-"): value for name, value in headers.items()}
        # Gemini's address names the model; the bodies of the other APIs do.
        model = self.model if self.api == "gemini" else ""
        reply = self.provider.answer_body(
            self.api,
            self.body,
            endpoint=endpoint,
            model=model,
            headers=header_fields,
        )
        if isinstance(reply, ModelAnswer) and self.api == "openai-chat":
            self.history.extend(self._encode_chat_history(reply))
        elif isinstance(reply, ModelAnswer):
            self.history.extend(_encode_answer_history(self.api, reply))
        return reply

    def _encode_chat_history(self, reply: ModelAnswer) -> list[dict[str, Any]]:
        """Encode an answer of Chat Completions as the message that a client sends back, with its reasoning."""
        messages = _encode_answer_history(self.api, reply)
        server = self.provider.server
        thinking = "".join([part.text for part in reply.parts if isinstance(part, Thinking)])
        if server is None or not thinking or not messages:
            return messages
        request = self.provider.requests[-1].incoming
        message = messages[0] | {REASONING_FIELD: thinking}
        return [move_reasoning(message, find_reasoning_form(server, request))]

    def send_user_text(self, text: str, **headers: str) -> ProviderReply:
        """Add a user message, send the conversation and return the reply."""
        self.history.append(_encode_user_text(self.api, text))
        return self.send_history(**headers)

    def send_results(self, reply: ModelAnswer, text: str = "done", **headers: str) -> ProviderReply:
        """Add a result with ``text`` for each call of ``reply``, send the conversation and return the reply."""
        calls = [part for part in reply.parts if isinstance(part, ToolCall)]
        self.history.extend(_encode_results(self.api, calls, text))
        return self.send_history(**headers)


def _encode_tools(api: str, names: Sequence[str]) -> list[dict[str, Any]]:
    schema = {"type": "object", "properties": {}}
    if api == "anthropic":
        return [{"name": name, "input_schema": schema} for name in names]
    if api == "gemini":
        return [{"functionDeclarations": [{"name": name, "parameters": schema} for name in names]}]
    functions = [{"name": name, "parameters": schema} for name in names]
    if api == "openai-chat":
        return [{"type": "function", "function": function} for function in functions]
    return [{"type": "function", **function} for function in functions]


def _encode_user_text(api: str, text: str) -> dict[str, Any]:
    if api == "gemini":
        return {"role": "user", "parts": [{"text": text}]}
    return {"role": "user", "content": text}


def _encode_answer_history(api: str, reply: ModelAnswer) -> list[dict[str, Any]]:
    """Encode an answer as messages or items of the next request."""
    raws = [msgspec.json.decode(part.raw) for part in reply.parts if part.raw is not None]
    if api == "openai-responses":
        return raws
    if api == "anthropic":
        return [{"role": "assistant", "content": raws}] if raws else []
    if api == "gemini":
        return [{"role": "model", "parts": raws}] if raws else []
    text = "".join([part.text for part in reply.parts if isinstance(part, Text)])
    if not text and not raws:
        return []
    message: dict[str, Any] = {"role": "assistant", "content": text or None}
    if raws:
        message["tool_calls"] = raws
    return [message]


def _encode_results(api: str, calls: Sequence[ToolCall], text: str) -> list[dict[str, Any]]:
    if api == "openai-responses":
        return [{"type": "function_call_output", "call_id": call.id, "output": text} for call in calls]
    if api == "openai-chat":
        return [{"role": "tool", "tool_call_id": call.id, "content": text} for call in calls]
    if api == "gemini":
        response = {"output": text}
        parts = [{"functionResponse": {"name": call.name, "response": response}} for call in calls]
        return [{"role": "user", "parts": parts}]
    blocks = [{"type": "tool_result", "tool_use_id": call.id, "content": text} for call in calls]
    return [{"role": "user", "content": blocks}]
