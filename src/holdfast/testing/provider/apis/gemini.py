"""Gemini generateContent: one candidate, whole or in chunks, as events or as one JSON array."""

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
"""``finishReason`` for why an answer ended; a call is no reason of its own."""
_RETRY_INFO_TYPE = "type.googleapis.com/google.rpc.RetryInfo"
_EVENT_HEAD_LENGTH, _EVENT_TAIL_LENGTH = len(b"data: "), len(b"\n\n")


def encode_gemini_answer(request: IncomingRequest, model_answer: ModelAnswer) -> dict[str, Any]:
    """Return the response with its one candidate."""
    del request
    return _make_chunk(model_answer, [_encode_candidate_part(part) for part in model_answer.parts], last=True)


def _make_chunk(model_answer: ModelAnswer, parts: list[Any], *, last: bool) -> dict[str, Any]:
    candidate: dict[str, Any] = {"content": {"parts": parts, "role": "model"}}
    if last:
        candidate["finishReason"] = GEMINI_STOPS.get(model_answer.stop, model_answer.stop)
    usage = _encode_full_usage(model_answer.usage) if last else _encode_prompt_usage(model_answer.usage)
    about = {"modelVersion": model_answer.model, "responseId": model_answer.id}
    return {"candidates": [candidate | {"index": 0}], "usageMetadata": usage} | about


def _encode_candidate_part(part: Part) -> Any:
    """Return a part as it stands in a candidate; an id that was only made up (``name#0``) is not told."""
    if part.raw is not None:
        return part.raw
    assert isinstance(part, Text | Thinking | ToolCall)
    signature_field = {"thoughtSignature": part.signature.data} if part.signature else {}
    if isinstance(part, ToolCall):
        ident = {"id": part.id} if part.id and "#" not in part.id else {}
        return {"functionCall": ident | {"name": part.name, "args": Raw(part.arguments.encode())}} | signature_field
    return {"text": part.text} | ({"thought": True} if isinstance(part, Thinking) else {}) | signature_field


def _encode_prompt_usage(used: TokenUse) -> dict[str, Any]:
    cached = {"cachedContentTokenCount": used.cache_read} if used.cache_read else {}
    return {"promptTokenCount": used.total_input, "totalTokenCount": used.total_input} | cached


def _encode_full_usage(used: TokenUse) -> dict[str, Any]:
    """Return the usage; the prompt includes what was cached, the candidates leave out what was thought."""
    thought = {"thoughtsTokenCount": used.reasoning} if used.reasoning else {}
    output_counts = {
        "candidatesTokenCount": used.output - used.reasoning,
        "totalTokenCount": used.total_input + used.output,
    }
    return _encode_prompt_usage(used) | output_counts | thought


# -- events ------------------------------------------------------------------------------------------------------------


def encode_gemini_stream(request: IncomingRequest, model_answer: ModelAnswer) -> EventStream:
    """Return the chunks of the answer; the one with the last words tells why it ended and what it used."""
    del request
    parts = [piece for part in model_answer.parts for piece in _split_part(_encode_candidate_part(part))] or [
        {"text": ""}
    ]
    chunks = [_make_chunk(model_answer, [part], last=False) for part in parts[:-1]]
    return EventStream(
        (*map(encode_sse_event, chunks), encode_sse_event(_make_chunk(model_answer, parts[-1:], last=True))),
        closing_events=1,
    )


def _split_part(part: Any) -> Iterator[Any]:
    """Yield a part in pieces: a text word by word, its signature with the last piece; a call whole."""
    value = msgspec.json.decode(part) if isinstance(part, Raw) else part
    words = split_into_deltas(value["text"]) if "text" in value else []
    if len(words) < 2:
        yield part
        return
    plain_part = {key: field_value for key, field_value in value.items() if key != "thoughtSignature"}
    yield from (plain_part | {"text": word} for word in words[:-1])
    yield value | {"text": words[-1]}


def convert_to_json_array(stream: EventStream, before: int = 0) -> EventStream:
    """Return the same chunks as one JSON array, which is what a client gets without ``alt=sse``.

    ``before`` chunks of it were sent already.
    """
    chunks = [event[_EVENT_HEAD_LENGTH:-_EVENT_TAIL_LENGTH] for event in stream.events]
    array_pieces = [(b"[" if index == 0 else b",\r\n") + chunk for index, chunk in enumerate(chunks, before)]
    return replace(stream, events=(*array_pieces, b"]"), closing_events=stream.closing_events + 1)


# -- errors and counts -------------------------------------------------------------------------------------------------


def encode_gemini_error(refusal: RefusalReply, ticket: str) -> dict[str, Any]:
    """Return an error: the status as a number and as a word, the message, when to come again."""
    del ticket
    error: dict[str, Any] = {"code": refusal.status, "message": refusal.message, "status": refusal.code}
    if refusal.retry_after is not None:
        error["details"] = [{"@type": _RETRY_INFO_TYPE, "retryDelay": f"{refusal.retry_after:g}s"}]
    return {"error": error}


def encode_gemini_late_error(
    request: IncomingRequest, refusal: RefusalReply, ticket: str, before: int
) -> tuple[bytes, ...]:
    """Return the error as an event."""
    del request, before
    return (encode_sse_event(encode_gemini_error(refusal, ticket)),)


def encode_gemini_count(tokens: int) -> dict[str, Any]:
    """Return the answer of ``countTokens``."""
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
