"""Encode replies as Gemini's generateContent: one candidate, complete or in chunks, as events or one JSON array."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from holdfast.messages.parts import Part, Text, Thinking, ToolCall
from holdfast.testing.provider.apis.encoder import (
    ApiEncoder,
    EventStream,
    encode_sse_event,
    make_empty_fields,
    split_into_deltas,
)
from holdfast.testing.provider.calls import IncomingRequest, ModelAnswer, RefusalReply, TokenUse

GEMINI_STOPS = {
    "end": "STOP",
    "tool": "STOP",
    "length": "MAX_TOKENS",
    "window": "MAX_TOKENS",
    "compaction": "STOP",
    "refusal": "SAFETY",
}
"""``finishReason`` by our stop reason; Gemini has none of its own for calls."""
_RETRY_INFO_TYPE = "type.googleapis.com/google.rpc.RetryInfo"
_EVENT_HEAD_LENGTH, _EVENT_TAIL_LENGTH = len(b"data: "), len(b"\n\n")


def encode_gemini_answer(request: IncomingRequest, model_answer: ModelAnswer) -> dict[str, Any]:
    """Encode an answer as a response with one candidate."""
    del request
    return _make_chunk(model_answer, [_encode_candidate_part(part) for part in model_answer.parts], last=True)


def _make_chunk(model_answer: ModelAnswer, parts: list[Any], *, last: bool) -> dict[str, Any]:
    candidate: dict[str, Any] = {"content": {"parts": parts, "role": "model"}}
    # Chunks before the last one count the prompt alone.
    usage = _encode_prompt_usage(model_answer.usage)
    if last:
        candidate["finishReason"] = GEMINI_STOPS.get(model_answer.stop, model_answer.stop)
        usage = _encode_full_usage(model_answer.usage)
    return {
        "candidates": [candidate | {"index": 0}],
        "usageMetadata": usage,
        "modelVersion": model_answer.model,
        "responseId": model_answer.id,
    }


def _encode_candidate_part(part: Part) -> Any:
    """Encode a part of a candidate; an id that the provider made up (``name#0``) is left out."""
    if part.raw is not None:
        return part.raw
    assert isinstance(part, Text | Thinking | ToolCall)
    fields: dict[str, Any]
    if isinstance(part, ToolCall):
        id_field = {"id": part.id} if part.id and "#" not in part.id else {}
        fields = {"functionCall": id_field | {"name": part.name, "args": Raw(part.arguments.encode())}}
    else:
        fields = {"text": part.text}
        if isinstance(part, Thinking):
            fields["thought"] = True
    if part.signature:
        fields["thoughtSignature"] = part.signature.data
    return fields


def _encode_prompt_usage(usage: TokenUse) -> dict[str, Any]:
    counts = {"promptTokenCount": usage.total_input, "totalTokenCount": usage.total_input}
    if usage.cache_read:
        counts["cachedContentTokenCount"] = usage.cache_read
    return counts


def _encode_full_usage(usage: TokenUse) -> dict[str, Any]:
    """Encode the usage; Gemini's prompt count includes cached tokens, its candidate count excludes thinking."""
    counts = _encode_prompt_usage(usage)
    counts["candidatesTokenCount"] = usage.output - usage.reasoning
    counts["totalTokenCount"] = usage.total_input + usage.output
    if usage.reasoning:
        counts["thoughtsTokenCount"] = usage.reasoning
    return counts


# -- events ------------------------------------------------------------------------------------------------------------


def encode_gemini_stream(request: IncomingRequest, model_answer: ModelAnswer) -> EventStream:
    """Encode an answer as chunks; the last chunk with content also has the finish reason and the usage."""
    del request
    pieces: list[Any] = []
    for part in model_answer.parts:
        pieces += _split_part(_encode_candidate_part(part))
    # An empty answer still needs a chunk for its finish reason.
    pieces = pieces or [{"text": ""}]
    chunks = [_make_chunk(model_answer, [piece], last=False) for piece in pieces[:-1]]
    chunks.append(_make_chunk(model_answer, pieces[-1:], last=True))
    return EventStream(tuple(map(encode_sse_event, chunks)), closing_events=1)


def _split_part(part: Any) -> Iterator[Any]:
    """Yield a text in deltas, with its signature on the last one, and any other part as a whole."""
    fields = msgspec.json.decode(part) if isinstance(part, Raw) else part
    deltas = split_into_deltas(fields["text"]) if "text" in fields else []
    if len(deltas) < 2:
        yield part
        return
    unsigned_fields = {key: value for key, value in fields.items() if key != "thoughtSignature"}
    for delta in deltas[:-1]:
        yield unsigned_fields | {"text": delta}
    yield fields | {"text": deltas[-1]}


def convert_to_json_array(stream: EventStream, before: int = 0) -> EventStream:
    """Convert the events of a stream to pieces of one JSON array, as clients get without ``alt=sse``.

    ``before`` is the number of chunks that were sent already.
    """
    pieces = []
    for index, event in enumerate(stream.events, before):
        separator = b"[" if index == 0 else b",\r\n"
        pieces.append(separator + event[_EVENT_HEAD_LENGTH:-_EVENT_TAIL_LENGTH])
    return replace(stream, events=(*pieces, b"]"), closing_events=stream.closing_events + 1)


# -- errors and counts -------------------------------------------------------------------------------------------------


def encode_gemini_error(refusal: RefusalReply, ticket: str) -> dict[str, Any]:
    """Encode an error: the status as number and word, the message, and the retry delay in its details."""
    del ticket
    error: dict[str, Any] = {"code": refusal.status, "message": refusal.message, "status": refusal.code}
    if refusal.retry_after is not None:
        error["details"] = [{"@type": _RETRY_INFO_TYPE, "retryDelay": f"{refusal.retry_after:g}s"}]
    return {"error": error}


def encode_gemini_late_error(
    request: IncomingRequest,
    refusal: RefusalReply,
    ticket: str,
    before: int,
) -> tuple[bytes, ...]:
    """Encode an error as an event of a stream."""
    del request, before
    return (encode_sse_event(encode_gemini_error(refusal, ticket)),)


def encode_gemini_count(tokens: int) -> dict[str, Any]:
    """Encode the reply to ``countTokens``."""
    return {"totalTokens": tokens}


GEMINI_ENCODER = ApiEncoder(
    encode_gemini_answer,
    encode_gemini_stream,
    encode_gemini_error,
    encode_gemini_late_error,
    encode_gemini_count,
    make_empty_fields,
    make_empty_fields,
    "x-request-id",
)
