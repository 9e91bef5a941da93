"""Gemini generateContent: one candidate, whole or in chunks, as events or as one JSON array."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from holdfast.messages.parts import Part, Text, Thinking, ToolCall
from holdfast.testing.provider.calls import Answered, Asked, Refusal, Used
from holdfast.testing.provider.voices.voice import Stream, Voice, nothing, pieces, sse

STOPS = {
    "end": "STOP",
    "tool": "STOP",
    "length": "MAX_TOKENS",
    "window": "MAX_TOKENS",
    "compaction": "STOP",
    "refusal": "SAFETY",
}
"""``finishReason`` for why an answer ended; a call is no reason of its own."""
_RETRY = "type.googleapis.com/google.rpc.RetryInfo"
_HEAD, _TAIL = len(b"data: "), len(b"\n\n")


def whole(asked: Asked, answered: Answered) -> dict[str, Any]:
    """Return the response with its one candidate."""
    del asked
    return _chunk(answered, [_part(part) for part in answered.parts], last=True)


def _chunk(answered: Answered, parts: list[Any], *, last: bool) -> dict[str, Any]:
    candidate: dict[str, Any] = {"content": {"parts": parts, "role": "model"}}
    if last:
        candidate["finishReason"] = STOPS.get(answered.stop, answered.stop)
    usage = _usage(answered.usage) if last else _prompt(answered.usage)
    about = {"modelVersion": answered.model, "responseId": answered.id}
    return {"candidates": [candidate | {"index": 0}], "usageMetadata": usage} | about


def _part(part: Part) -> Any:
    """Return a part as it stands in a candidate; an id that was only made up (``name#0``) is not told."""
    if part.raw is not None:
        return part.raw
    assert isinstance(part, Text | Thinking | ToolCall)
    sealed = {"thoughtSignature": part.seal.data} if part.seal else {}
    if isinstance(part, ToolCall):
        ident = {"id": part.id} if part.id and "#" not in part.id else {}
        return {"functionCall": ident | {"name": part.name, "args": Raw(part.arguments.encode())}} | sealed
    return {"text": part.text} | ({"thought": True} if isinstance(part, Thinking) else {}) | sealed


def _prompt(used: Used) -> dict[str, Any]:
    cached = {"cachedContentTokenCount": used.cache_read} if used.cache_read else {}
    return {"promptTokenCount": used.counted, "totalTokenCount": used.counted} | cached


def _usage(used: Used) -> dict[str, Any]:
    """Return the usage; the prompt includes what was cached, the candidates leave out what was thought."""
    thought = {"thoughtsTokenCount": used.reasoning} if used.reasoning else {}
    said = {"candidatesTokenCount": used.output - used.reasoning, "totalTokenCount": used.counted + used.output}
    return _prompt(used) | said | thought


# -- events ------------------------------------------------------------------------------------------------------------


def stream(asked: Asked, answered: Answered) -> Stream:
    """Return the chunks of the answer; the one with the last words tells why it ended and what it used."""
    del asked
    parts = [piece for part in answered.parts for piece in _told(_part(part))] or [{"text": ""}]
    chunks = [_chunk(answered, [part], last=False) for part in parts[:-1]]
    return Stream((*map(sse, chunks), sse(_chunk(answered, parts[-1:], last=True))), closing=1)


def _told(part: Any) -> Iterator[Any]:
    """Yield a part in pieces: a text word by word, its signature with the last piece; a call whole."""
    value = msgspec.json.decode(part) if isinstance(part, Raw) else part
    words = pieces(value["text"]) if "text" in value else []
    if len(words) < 2:
        yield part
        return
    unsigned = {key: held for key, held in value.items() if key != "thoughtSignature"}
    yield from (unsigned | {"text": word} for word in words[:-1])
    yield value | {"text": words[-1]}


def array(stream: Stream, before: int = 0) -> Stream:
    """Return the same chunks as one JSON array, which is what a client gets without ``alt=sse``.

    ``before`` chunks of it were sent already.
    """
    chunks = [event[_HEAD:-_TAIL] for event in stream.events]
    opened = [(b"[" if index == 0 else b",\r\n") + chunk for index, chunk in enumerate(chunks, before)]
    return replace(stream, events=(*opened, b"]"), closing=stream.closing + 1)


# -- errors and counts -------------------------------------------------------------------------------------------------


def refused(refusal: Refusal, ticket: str) -> dict[str, Any]:
    """Return an error: the status as a number and as a word, the message, when to come again."""
    del ticket
    error: dict[str, Any] = {"code": refusal.status, "message": refusal.message, "status": refusal.code}
    if refusal.retry_after is not None:
        error["details"] = [{"@type": _RETRY, "retryDelay": f"{refusal.retry_after:g}s"}]
    return {"error": error}


def late(asked: Asked, refusal: Refusal, ticket: str, before: int) -> tuple[bytes, ...]:
    """Return the error as an event."""
    del asked, before
    return (sse(refused(refusal, ticket)),)


def counted(tokens: int) -> dict[str, Any]:
    """Return the answer of ``countTokens``."""
    return {"totalTokens": tokens}


VOICE = Voice(whole, stream, refused, late, counted, nothing, nothing, "x-request-id")
