"""Encode replies as OpenAI Chat Completions: one message, or chunks of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from holdfast.messages.parts import Text, Thinking, ToolCall
from holdfast.testing.provider.apis import openai_common as openai
from holdfast.testing.provider.apis.encoder import (
    FIXED_TIME,
    ApiEncoder,
    EventStream,
    decode_request_fields,
    encode_sse_event,
    make_empty_fields,
    split_into_deltas,
)
from holdfast.testing.provider.calls import IncomingRequest, ModelAnswer, RefusalReply

CHAT_STOPS = {"tool": "tool_calls", "length": "length", "window": "length"}
"""``finish_reason`` by our stop reason; it is ``stop`` for those that are not here."""
_KNOWN_CHAT_STOPS = frozenset({"end", "tool", "length", "window", "compaction", "refusal"})
DONE_EVENT = b"data: [DONE]\n\n"
"""The final event of a stream."""


def encode_chat_answer(request: IncomingRequest, model_answer: ModelAnswer) -> dict[str, Any]:
    """Encode an answer as a completion with one choice."""
    del request
    choice = {
        "index": 0,
        "message": _encode_chat_message(model_answer),
        "logprobs": None,
        "finish_reason": _get_finish_reason(model_answer),
    }
    usage = {"usage": openai.encode_chat_usage(model_answer.usage)}
    return _make_chat_head(model_answer, "chat.completion") | {"choices": [choice]} | usage


def _make_chat_head(model_answer: ModelAnswer, kind: str) -> dict[str, Any]:
    return {
        "id": model_answer.id,
        "object": kind,
        "created": FIXED_TIME,
        "model": model_answer.model,
        "service_tier": "default",
    }


def _get_finish_reason(model_answer: ModelAnswer) -> str:
    # The fault "unknown" has a stop reason that is not one of ours; it is sent as it is.
    default = "stop" if model_answer.stop in _KNOWN_CHAT_STOPS else model_answer.stop
    return CHAT_STOPS.get(model_answer.stop, default)


def _join_answer_text(model_answer: ModelAnswer) -> str:
    return "".join([part.text for part in model_answer.parts if isinstance(part, Text)])


def _encode_chat_message(model_answer: ModelAnswer) -> dict[str, Any]:
    text = _join_answer_text(model_answer)
    is_refusal = model_answer.stop == "refusal"
    message: dict[str, Any] = {
        "role": "assistant",
        "content": None if is_refusal else text or None,
        "refusal": text if is_refusal else None,
    }
    for field, texts in _group_reasoning(model_answer).items():
        message[field] = "".join(texts)
    calls = [_encode_chat_call(part) for part in _list_calls(model_answer)]
    if calls:
        message["tool_calls"] = calls
    elif not is_refusal:
        message["content"] = text  # null content is only for messages with calls
    message["annotations"] = []
    return message


def _group_reasoning(model_answer: ModelAnswer) -> dict[str, list[str]]:
    """Return the reasoning by the field for it (the signature's data); OpenAI sends none, compatible servers do."""
    texts_by_field: dict[str, list[str]] = {}
    for part in model_answer.parts:
        if isinstance(part, Thinking) and part.signature is not None:
            texts_by_field.setdefault(part.signature.data, []).append(part.text)
    return texts_by_field


def _list_calls(model_answer: ModelAnswer) -> list[ToolCall]:
    return [part for part in model_answer.parts if isinstance(part, ToolCall)]


def _encode_chat_call(call: ToolCall) -> Any:
    return call.raw if call.raw is not None else _make_call_object(call, call.arguments)


def _make_call_object(call: ToolCall, arguments: str = "") -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


def encode_chat_stream(request: IncomingRequest, model_answer: ModelAnswer) -> EventStream:
    """Encode an answer as chunks, with one more chunk for the usage if the request asks for it."""
    head = _make_chat_head(model_answer, "chat.completion.chunk")
    has_usage = _is_usage_requested(request)
    # With the option set, every chunk has the field, and all but the last have null in it.
    empty_usage = {"usage": None} if has_usage else {}
    chunks = []
    for delta in _iterate_chat_deltas(model_answer):
        chunks.append(head | {"choices": [_make_choice(delta)]} | empty_usage)
    closing_chunks = [head | {"choices": [_make_choice({}, _get_finish_reason(model_answer))]} | empty_usage]
    if has_usage:
        closing_chunks.append(head | {"choices": [], "usage": openai.encode_chat_usage(model_answer.usage)})
    events = [encode_sse_event(chunk) for chunk in (*chunks, *closing_chunks)]
    return EventStream((*events, DONE_EVENT), closing_events=len(closing_chunks) + 1)


def _is_usage_requested(request: IncomingRequest) -> bool:
    options = decode_request_fields(request).get("stream_options")
    return isinstance(options, dict) and options.get("include_usage") is True


def _make_choice(delta: dict[str, Any], stop: str | None = None) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": stop}


def _iterate_chat_deltas(model_answer: ModelAnswer) -> Iterator[dict[str, Any]]:
    is_refusal = model_answer.stop == "refusal"
    calls = _list_calls(model_answer)
    text = _join_answer_text(model_answer)
    has_no_content = is_refusal or (calls and not text)
    yield {"role": "assistant", "content": None if has_no_content else "", "refusal": None}
    for field, texts in _group_reasoning(model_answer).items():
        for piece in split_into_deltas("".join(texts)):
            yield {field: piece}
    for piece in split_into_deltas(text):
        yield {"refusal" if is_refusal else "content": piece}
    for index, call in enumerate(calls):
        yield {"tool_calls": [{"index": index} | _make_call_object(call)]}
        for piece in split_into_deltas(call.arguments):
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


def encode_chat_late_error(
    request: IncomingRequest,
    refusal: RefusalReply,
    ticket: str,
    before: int,
) -> tuple[bytes, ...]:
    """Encode an error as an event of a stream."""
    del request, before
    return (encode_sse_event(openai.encode_openai_error(refusal, ticket)),)


CHAT_ENCODER = ApiEncoder(
    encode_chat_answer,
    encode_chat_stream,
    openai.encode_openai_error,
    encode_chat_late_error,
    openai.encode_openai_count,
    make_empty_fields,
    openai.make_openai_retry_headers,
    "x-request-id",
)
