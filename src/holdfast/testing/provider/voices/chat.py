"""OpenAI Chat Completions: one message, or chunks of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from holdfast.messages.parts import Text, Thinking, ToolCall
from holdfast.testing.provider.calls import Answered, Asked, Refusal
from holdfast.testing.provider.voices import openai
from holdfast.testing.provider.voices.voice import EPOCH, Stream, Voice, nothing, pieces, sse, wishes

STOPS = {"tool": "tool_calls", "length": "length", "window": "length"}
"""``finish_reason`` for why an answer ended; nothing here is ``stop``."""
_KNOWN = frozenset({"end", "tool", "length", "window", "compaction", "refusal"})
DONE = b"data: [DONE]\n\n"
"""The last event of a stream."""


def whole(asked: Asked, answered: Answered) -> dict[str, Any]:
    """Return the completion, with its one choice."""
    del asked
    choice = {"index": 0, "message": _message(answered), "logprobs": None, "finish_reason": _stop(answered)}
    usage = {"usage": openai.chat_usage(answered.usage)}
    return _head(answered, "chat.completion") | {"choices": [choice]} | usage


def _head(answered: Answered, kind: str) -> dict[str, Any]:
    return {"id": answered.id, "object": kind, "created": EPOCH, "model": answered.model, "service_tier": "default"}


def _stop(answered: Answered) -> str:
    return STOPS.get(answered.stop, "stop" if answered.stop in _KNOWN else answered.stop)


def _said(answered: Answered) -> str:
    return "".join([part.text for part in answered.parts if isinstance(part, Text)])


def _message(answered: Answered) -> dict[str, Any]:
    text = _said(answered)
    refusing = answered.stop == "refusal"
    message: dict[str, Any] = {"role": "assistant", "content": None if refusing else text or None}
    message["refusal"] = text if refusing else None
    message |= {field: "".join(words) for field, words in _reasoning(answered).items()}
    if calls := [_call(part) for part in _calls(answered)]:
        message["tool_calls"] = calls
    elif not refusing:
        message["content"] = text
    return message | {"annotations": []}


def _reasoning(answered: Answered) -> dict[str, list[str]]:
    """Return reasoning by the field it stands in; OpenAI itself shows none, compatible servers do."""
    found: dict[str, list[str]] = {}
    for part in answered.parts:
        if isinstance(part, Thinking) and part.seal is not None:
            found.setdefault(part.seal.data, []).append(part.text)
    return found


def _calls(answered: Answered) -> list[ToolCall]:
    return [part for part in answered.parts if isinstance(part, ToolCall)]


def _call(call: ToolCall) -> Any:
    return call.raw if call.raw is not None else _begun(call, call.arguments)


def _begun(call: ToolCall, arguments: str = "") -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


def stream(asked: Asked, answered: Answered) -> Stream:
    """Return the chunks; one more tells the usage, where it was asked for."""
    head = _head(answered, "chat.completion.chunk")
    wanted = _wants_usage(asked)
    unused = {"usage": None} if wanted else {}
    deltas = [head | {"choices": [_choice(delta)]} | unused for delta in _deltas(answered)]
    ends = [head | {"choices": [_choice({}, _stop(answered))]} | unused]
    if wanted:
        ends.append(head | {"choices": [], "usage": openai.chat_usage(answered.usage)})
    return Stream((*map(sse, (*deltas, *ends)), DONE), closing=len(ends) + 1)


def _wants_usage(asked: Asked) -> bool:
    options = wishes(asked).get("stream_options")
    return isinstance(options, dict) and options.get("include_usage") is True


def _choice(delta: dict[str, Any], stop: str | None = None) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": stop}


def _deltas(answered: Answered) -> Iterator[dict[str, Any]]:
    refusing, calls = answered.stop == "refusal", _calls(answered)
    text = _said(answered)
    yield {"role": "assistant", "content": None if refusing or (calls and not text) else "", "refusal": None}
    for field, words in _reasoning(answered).items():
        yield from ({field: piece} for piece in pieces("".join(words)))
    yield from ({"refusal" if refusing else "content": piece} for piece in pieces(text))
    for index, call in enumerate(calls):
        yield {"tool_calls": [{"index": index} | _begun(call)]}
        for piece in pieces(call.arguments):
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


def late(asked: Asked, refusal: Refusal, ticket: str, before: int) -> tuple[bytes, ...]:
    """Return the error as an event."""
    del asked, before
    return (sse(openai.refused(refusal, ticket)),)


VOICE = Voice(whole, stream, openai.refused, late, openai.counted, nothing, openai.waiting, "x-request-id")
