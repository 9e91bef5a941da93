"""Anthropic Messages: content blocks, their events, errors with a type."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil
from typing import Any

import msgspec
from msgspec import Raw

from holdfast.messages.parts import Part, Text, Thinking, ToolCall
from holdfast.testing.provider.calls import Answered, Asked, Refusal, Used
from holdfast.testing.provider.voices.voice import Stream, Voice, named, nothing, pieces

STOPS = {
    "end": "end_turn",
    "tool": "tool_use",
    "length": "max_tokens",
    "window": "model_context_window_exceeded",
}
"""``stop_reason`` for why an answer ended; the others are called as they are."""
_RETRIED = (408, 409, 429)
"""Statuses under 500 after which a client may try again; the header ``x-should-retry`` says so."""
_REASONS = {"prefix_mismatch": "prefix_binding_mismatch", "model_mismatch": "model_binding_mismatch"}


def whole(asked: Asked, answered: Answered) -> dict[str, Any]:
    """Return the message."""
    del asked
    return _message(answered) | {
        "content": [_block(part) for part in answered.parts],
        "stop_reason": STOPS.get(answered.stop, answered.stop),
        "usage": _usage(answered),
    }


def _message(answered: Answered) -> dict[str, Any]:
    """Return a message that says nothing yet."""
    message: dict[str, Any] = {
        "id": answered.id,
        "type": "message",
        "role": "assistant",
        "model": answered.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
    }
    dropped = [{"type": "thinking_dropped", "path": path, "reason": _REASONS[why]} for path, why in answered.dropped]
    return message | ({"input_transformations": dropped} if dropped else {})


def _block(part: Part) -> Any:
    """Return a part as a content block."""
    if part.raw is not None:
        return part.raw
    if isinstance(part, Text):
        return {"type": "text", "text": part.text}
    if isinstance(part, Thinking):
        return {"type": "thinking", "thinking": part.text, "signature": part.seal.data if part.seal else ""}
    assert isinstance(part, ToolCall)
    return {"type": "tool_use", "id": part.id, "name": part.name, "input": Raw(part.arguments.encode())}


def _usage(answered: Answered) -> dict[str, Any]:
    """Return the usage; a compaction's own stands in ``iterations`` alone."""
    usage = _tokens(answered.usage) | {"service_tier": "standard"}
    if answered.usage.reasoning:
        usage["output_tokens_details"] = {"thinking_tokens": answered.usage.reasoning}
    if answered.compaction is not None:
        answer = [] if answered.stop == "compaction" else [{"type": "message"} | _tokens(answered.usage)]
        usage["iterations"] = [{"type": "compaction"} | _tokens(answered.compaction), *answer]
    return usage


def _tokens(used: Used) -> dict[str, Any]:
    hour = used.cache_write_1h
    return {
        "input_tokens": used.input,
        "cache_creation_input_tokens": used.cache_write,
        "cache_read_input_tokens": used.cache_read,
        "cache_creation": {"ephemeral_5m_input_tokens": used.cache_write - hour, "ephemeral_1h_input_tokens": hour},
        "output_tokens": used.output,
    }


# -- events ------------------------------------------------------------------------------------------------------------


def stream(asked: Asked, answered: Answered) -> Stream:
    """Return the events of the answer: start, blocks, stop reason with the output's usage, stop."""
    del asked
    return Stream(named(_events(answered)), closing=2)


def _events(answered: Answered) -> Iterator[dict[str, Any]]:
    usage = _usage(answered)
    first = {key: usage[key] for key in (*_tokens(answered.usage), "service_tier")}
    yield {"type": "message_start", "message": _message(answered) | {"usage": first | {"output_tokens": 1}}}
    for index, part in enumerate(answered.parts):
        begun, deltas = _told(part)
        yield {"type": "content_block_start", "index": index, "content_block": begun}
        if not index:
            yield {"type": "ping"}
        for delta in deltas:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    stop = {"stop_reason": STOPS.get(answered.stop, answered.stop), "stop_sequence": None}
    late = {key: value for key, value in usage.items() if key not in ("cache_creation", "service_tier")}
    yield {"type": "message_delta", "delta": stop, "usage": late}
    yield {"type": "message_stop"}


def _told(part: Part) -> tuple[Any, list[dict[str, Any]]]:
    """Return a block as it begins, and the deltas that make it whole."""
    block = _block(part)
    if isinstance(part, ToolCall):
        begun = {"type": "tool_use", "id": part.id, "name": part.name, "input": {}}
        told = ["", *pieces(part.arguments)]
        return begun, [{"type": "input_json_delta", "partial_json": piece} for piece in told]
    if isinstance(block, Raw):
        block = msgspec.json.decode(block)
    return _TOLD.get(block["type"], _at_once)(block)


def _text(block: dict[str, Any]) -> tuple[Any, list[dict[str, Any]]]:
    return block | {"text": ""}, [{"type": "text_delta", "text": piece} for piece in pieces(block["text"])]


def _thinking(block: dict[str, Any]) -> tuple[Any, list[dict[str, Any]]]:
    told = [{"type": "thinking_delta", "thinking": piece} for piece in pieces(block["thinking"])]
    return block | {"thinking": "", "signature": ""}, [
        *told,
        {"type": "signature_delta", "signature": block["signature"]},
    ]


def _compaction(block: dict[str, Any]) -> tuple[Any, list[dict[str, Any]]]:
    late = {key: block[key] for key in ("content", "encrypted_content") if key in block}
    return block | dict.fromkeys(late), [{"type": "compaction_delta"} | late]


def _at_once(block: dict[str, Any]) -> tuple[Any, list[dict[str, Any]]]:
    return block, []


_TOLD = {"text": _text, "thinking": _thinking, "compaction": _compaction}
"""How a block is told; all others come whole at their start."""


# -- errors and counts -------------------------------------------------------------------------------------------------


def refused(refusal: Refusal, ticket: str) -> dict[str, Any]:
    """Return an error: its type and message, details where there are some, the request's id."""
    error: dict[str, Any] = {"type": refusal.code, "message": refusal.message}
    if refusal.details:
        error["details"] = dict(refusal.details)
    return {"type": "error", "error": error, "request_id": ticket}


def late(asked: Asked, refusal: Refusal, ticket: str, before: int) -> tuple[bytes, ...]:
    """Return the error as an event."""
    del asked, before
    return named([refused(refusal, ticket)])


def waiting(refusal: Refusal) -> dict[str, str]:
    """Return when to come again, in whole seconds, and whether at all."""
    again = refusal.status in _RETRIED or refusal.status >= 500
    after = {} if refusal.retry_after is None else {"retry-after": str(ceil(refusal.retry_after))}
    return after | {"x-should-retry": "true" if again else "false"}


def counted(tokens: int) -> dict[str, Any]:
    """Return the answer of ``count_tokens``."""
    return {"input_tokens": tokens}


VOICE = Voice(whole, stream, refused, late, counted, nothing, waiting, "request-id")
