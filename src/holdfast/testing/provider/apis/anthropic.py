"""Encode replies as the Anthropic Messages API: content blocks, their events, typed errors."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from math import ceil
from typing import Any

import msgspec
from msgspec import Raw

from holdfast.messages.parts import Part, Text, Thinking, ToolCall
from holdfast.testing.provider.apis.encoder import (
    ApiEncoder,
    EventStream,
    encode_typed_events,
    make_empty_fields,
    split_into_deltas,
)
from holdfast.testing.provider.calls import IncomingRequest, ModelAnswer, RefusalReply, TokenUse

ANTHROPIC_STOPS = {
    "end": "end_turn",
    "tool": "tool_use",
    "length": "max_tokens",
    "window": "model_context_window_exceeded",
}
"""``stop_reason`` by our stop reason; one that is not here has the same name in both."""
_RETRYABLE_STATUSES = (408, 409, 429)
"""Statuses under 500 that clients may retry, as the header ``x-should-retry`` tells them."""
_DROP_REASONS = {"prefix_mismatch": "prefix_binding_mismatch", "model_mismatch": "model_binding_mismatch"}


def encode_anthropic_answer(request: IncomingRequest, model_answer: ModelAnswer) -> dict[str, Any]:
    """Encode an answer as a message."""
    del request
    return _make_empty_message(model_answer) | {
        "content": [_encode_answer_block(part) for part in model_answer.parts],
        "stop_reason": ANTHROPIC_STOPS.get(model_answer.stop, model_answer.stop),
        "usage": _encode_answer_usage(model_answer),
        **_encode_container(model_answer),
    }


def _encode_container(model_answer: ModelAnswer) -> dict[str, Any]:
    """Return the field that names the container, if a code execution in the answer waits for the client."""
    waiting_ids = set()
    for part in model_answer.parts:
        block = _encode_answer_block(part)
        if isinstance(block, Raw):
            block = msgspec.json.decode(block)
        if block.get("type") == "server_tool_use" and block.get("name") == "code_execution":
            waiting_ids.add(block.get("id"))
        waiting_ids.discard(block.get("tool_use_id"))
    if not waiting_ids:
        return {}
    return {"container": {"id": f"container_{model_answer.id}", "expires_at": "2030-01-01T00:00:00Z"}}


def check_container(body: Mapping[str, Any], expired: Collection[str]) -> RefusalReply | None:
    """Return the refusal of a request that names one of the ``expired`` containers, or None.

    The page "Code execution tool" (2026-08-21) says that such a request is refused, not in which words; these are ours.
    """
    container = body.get("container")
    id_ = container.get("id") if isinstance(container, dict) else container
    if not isinstance(id_, str) or id_ not in expired:
        return None
    return RefusalReply(400, "invalid_request_error", f"container: Container {id_} not found or expired")


def _make_empty_message(model_answer: ModelAnswer) -> dict[str, Any]:
    """Return a message without content, as ``message_start`` has it."""
    message: dict[str, Any] = {
        "id": model_answer.id,
        "type": "message",
        "role": "assistant",
        "model": model_answer.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
    }
    if model_answer.dropped_blocks:
        transformations = []
        for path, reason in model_answer.dropped_blocks:
            transformations.append({"type": "thinking_dropped", "path": path, "reason": _DROP_REASONS[reason]})
        message["input_transformations"] = transformations
    return message


def _encode_answer_block(part: Part) -> Any:
    """Encode a part as a content block."""
    if part.raw is not None:
        return part.raw
    if isinstance(part, Text):
        return {"type": "text", "text": part.text}
    if isinstance(part, Thinking):
        signature = part.signature.data if part.signature else ""
        return {"type": "thinking", "thinking": part.text, "signature": signature}
    assert isinstance(part, ToolCall)
    return {"type": "tool_use", "id": part.id, "name": part.name, "input": Raw(part.arguments.encode())}


def _encode_answer_usage(model_answer: ModelAnswer) -> dict[str, Any]:
    """Encode the usage; the usage of a compaction is only in ``iterations``, as with Anthropic."""
    usage = _encode_token_use(model_answer.usage) | {"service_tier": "standard"}
    if model_answer.usage.reasoning:
        usage["output_tokens_details"] = {"thinking_tokens": model_answer.usage.reasoning}
    if model_answer.compaction is not None:
        iterations = [{"type": "compaction"} | _encode_token_use(model_answer.compaction)]
        if model_answer.stop != "compaction":
            iterations.append({"type": "message"} | _encode_token_use(model_answer.usage))
        usage["iterations"] = iterations
    return usage


def _encode_token_use(usage: TokenUse) -> dict[str, Any]:
    return {
        "input_tokens": usage.input,
        "cache_creation_input_tokens": usage.cache_write,
        "cache_read_input_tokens": usage.cache_read,
        "cache_creation": {
            "ephemeral_5m_input_tokens": usage.cache_write - usage.cache_write_1h,
            "ephemeral_1h_input_tokens": usage.cache_write_1h,
        },
        "output_tokens": usage.output,
    }


# -- events ------------------------------------------------------------------------------------------------------------


def encode_anthropic_stream(request: IncomingRequest, model_answer: ModelAnswer) -> EventStream:
    """Encode an answer as events: start, blocks, stop reason with the usage, stop."""
    del request
    return EventStream(encode_typed_events(_iterate_anthropic_events(model_answer)), closing_events=2)


def _iterate_anthropic_events(model_answer: ModelAnswer) -> Iterator[dict[str, Any]]:
    usage = _encode_answer_usage(model_answer)
    start_usage = {key: usage[key] for key in (*_encode_token_use(model_answer.usage), "service_tier")}
    start_usage["output_tokens"] = 1  # the real count is not known before the end
    yield {"type": "message_start", "message": _make_empty_message(model_answer) | {"usage": start_usage}}
    for index, part in enumerate(model_answer.parts):
        start_block, deltas = _split_block(part)
        yield {"type": "content_block_start", "index": index, "content_block": start_block}
        if index == 0:
            yield {"type": "ping"}
        for delta in deltas:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    stop: dict[str, Any] = {
        "stop_reason": ANTHROPIC_STOPS.get(model_answer.stop, model_answer.stop),
        "stop_sequence": None,
    }
    stop |= _encode_container(model_answer)
    # The last usage repeats the counts, but not these two fields of the first one.
    end_usage = dict(usage)
    del end_usage["cache_creation"]
    del end_usage["service_tier"]
    yield {"type": "message_delta", "delta": stop, "usage": end_usage}
    yield {"type": "message_stop"}


def _split_block(part: Part) -> tuple[Any, list[dict[str, Any]]]:
    """Split a block into its empty beginning and the deltas that complete it."""
    block = _encode_answer_block(part)
    if isinstance(part, ToolCall):
        start_block = {"type": "tool_use", "id": part.id, "name": part.name, "input": {}}
        # Anthropic begins the arguments of every call with an empty delta.
        json_pieces = ["", *split_into_deltas(part.arguments)]
        return start_block, [{"type": "input_json_delta", "partial_json": piece} for piece in json_pieces]
    if isinstance(block, Raw):
        block = msgspec.json.decode(block)
    return _DELTA_MAKERS.get(block["type"], _split_nothing)(block)


def _split_text(block: dict[str, Any]) -> tuple[Any, list[dict[str, Any]]]:
    deltas = [{"type": "text_delta", "text": piece} for piece in split_into_deltas(block["text"])]
    return block | {"text": ""}, deltas


def _split_thinking(block: dict[str, Any]) -> tuple[Any, list[dict[str, Any]]]:
    deltas = [{"type": "thinking_delta", "thinking": piece} for piece in split_into_deltas(block["thinking"])]
    # The signature comes last, and in one piece.
    deltas.append({"type": "signature_delta", "signature": block["signature"]})
    return block | {"thinking": "", "signature": ""}, deltas


def _split_compaction(block: dict[str, Any]) -> tuple[Any, list[dict[str, Any]]]:
    filled_fields = {key: block[key] for key in ("content", "encrypted_content") if key in block}
    return block | dict.fromkeys(filled_fields), [{"type": "compaction_delta"} | filled_fields]


def _split_nothing(block: dict[str, Any]) -> tuple[Any, list[dict[str, Any]]]:
    return block, []


_DELTA_MAKERS = {"text": _split_text, "thinking": _split_thinking, "compaction": _split_compaction}
"""Splitters by the type of a block; blocks of other types are complete at their start."""


# -- errors and counts -------------------------------------------------------------------------------------------------


def encode_anthropic_error(refusal: RefusalReply, ticket: str) -> dict[str, Any]:
    """Encode an error with its type, message, details and the request id."""
    error: dict[str, Any] = {"type": refusal.code, "message": refusal.message}
    if refusal.details:
        error["details"] = dict(refusal.details)
    return {"type": "error", "error": error, "request_id": ticket}


def encode_anthropic_late_error(
    request: IncomingRequest,
    refusal: RefusalReply,
    ticket: str,
    before: int,
) -> tuple[bytes, ...]:
    """Encode an error as an event of a stream."""
    del request, before
    return encode_typed_events([encode_anthropic_error(refusal, ticket)])


def make_anthropic_retry_headers(refusal: RefusalReply) -> dict[str, str]:
    """Return the headers that say whether to retry, and after how many whole seconds."""
    headers = {}
    if refusal.retry_after is not None:
        headers["retry-after"] = str(ceil(refusal.retry_after))
    is_retryable = refusal.status in _RETRYABLE_STATUSES or refusal.status >= 500
    headers["x-should-retry"] = "true" if is_retryable else "false"
    return headers


def encode_anthropic_count(tokens: int) -> dict[str, Any]:
    """Encode the reply to ``count_tokens``."""
    return {"input_tokens": tokens}


ANTHROPIC_ENCODER = ApiEncoder(
    encode_anthropic_answer,
    encode_anthropic_stream,
    encode_anthropic_error,
    encode_anthropic_late_error,
    encode_anthropic_count,
    make_empty_fields,
    make_anthropic_retry_headers,
    "request-id",
)
