"""Encode replies as OpenAI Responses: output items with their own events, inside the life of a response."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Raw

from holdfast.messages.parts import Part, Text, Thinking, ToolCall
from holdfast.testing.provider.apis import openai_common as openai
from holdfast.testing.provider.apis.encoder import (
    FIXED_TIME,
    ApiEncoder,
    EventStream,
    decode_request_fields,
    encode_typed_events,
    split_into_deltas,
)
from holdfast.testing.provider.calls import CompactReply, IncomingRequest, ModelAnswer, RefusalReply

_INCOMPLETE_REASONS = {"length": "max_output_tokens", "window": "max_output_tokens"}
"""Reasons of an ``incomplete`` response by our stop reason; with any other the response is ``completed``."""
# A stop reason outside of these comes from the fault "unknown", and is sent as the status.
_KNOWN_RESPONSES_STOPS = frozenset({"end", "tool", "length", "window", "compaction", "refusal"})
_ECHOED_FIELDS = {
    "instructions": None,
    "max_output_tokens": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "prompt_cache_key": None,
    "reasoning": {"effort": None, "summary": None},
    "store": True,
    "temperature": 1.0,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "top_p": 1.0,
    "truncation": "disabled",
}
"""Fields of a request that its response repeats, with their defaults."""
_UNFINISHED_FIELDS: dict[str, Any] = {
    "status": "in_progress",
    "completed_at": None,
    "error": None,
    "incomplete_details": None,
    "output": [],
    "usage": None,
}
"""Fields that are set only at the end of a response."""

ResponseEvent = dict[str, Any]


def encode_responses_answer(request: IncomingRequest, model_answer: ModelAnswer) -> dict[str, Any]:
    """Encode an answer as a response."""
    response = _make_started_response(request, model_answer.id, model_answer.model)
    return response | _make_end_fields(model_answer, _encode_output_items(model_answer))


def _make_started_response(request: IncomingRequest, response_id: str, model: str) -> dict[str, Any]:
    """Return a response that has just begun, with the options of its request."""
    options = decode_request_fields(request)
    response = {"id": response_id, "object": "response", "created_at": FIXED_TIME, "model": model}
    response |= _UNFINISHED_FIELDS
    for key, default in _ECHOED_FIELDS.items():
        response[key] = default if options.get(key) is None else options[key]
    tools = options.get("tools")
    response["tools"] = [_echo_tool(tool) for tool in tools] if isinstance(tools, list) else []
    return response


def _echo_tool(tool: Any) -> Any:
    """Return a tool as a response repeats it, with the defaults filled in."""
    if isinstance(tool, dict) and tool.get("type") == "function":
        return {"description": None, "parameters": None, "strict": True} | tool
    return tool


def _make_end_fields(model_answer: ModelAnswer, items: list[Any]) -> dict[str, Any]:
    """Return the fields that change at the end of a response."""
    incomplete_reason = _INCOMPLETE_REASONS.get(model_answer.stop)
    if incomplete_reason:
        status = "incomplete"
    elif model_answer.stop in _KNOWN_RESPONSES_STOPS:
        status = "completed"
    else:
        status = model_answer.stop  # the fault "unknown"
    fields: dict[str, Any] = {
        "status": status,
        "output": items,
        "usage": openai.encode_responses_usage(model_answer.usage),
    }
    if incomplete_reason:
        fields["incomplete_details"] = {"reason": incomplete_reason}
    else:
        fields["completed_at"] = FIXED_TIME
    if model_answer.dropped_blocks:
        transformations = []
        for item_id, reason in model_answer.dropped_blocks:
            transformations.append({"type": "reasoning", "action": "removed", "id": item_id, "reason": reason})
        fields["input_transformations"] = transformations
    return fields


# -- items -------------------------------------------------------------------------------------------------------------


def _encode_output_items(model_answer: ModelAnswer) -> list[Any]:
    # Ids of items are made from the id of the response, so they are stable and unique in the conversation.
    stem = model_answer.id.removeprefix("resp_")
    items = []
    for index, part in enumerate(model_answer.parts):
        items.append(_encode_output_item(part, f"{stem}{index:02}", model_answer.stop))
    return items


def _encode_output_item(part: Part, id_suffix: str, stop: str) -> Any:
    """Encode a part as an output item; one without raw JSON gets an id made of ``id_suffix``."""
    if part.raw is not None:
        return part.raw
    if isinstance(part, Text):
        status = "incomplete" if stop in _INCOMPLETE_REASONS else "completed"
        content = [_make_text_content(part.text, is_refusal=stop == "refusal")]
        return {"id": f"msg_{id_suffix}", "type": "message", "status": status, "role": "assistant", "content": content}
    if isinstance(part, Thinking):
        summary = [{"type": "summary_text", "text": part.text}] if part.text else []
        signature = part.signature.data if part.signature else None
        return {"id": f"rs_{id_suffix}", "type": "reasoning", "summary": summary, "encrypted_content": signature}
    assert isinstance(part, ToolCall)
    return {
        "id": f"fc_{id_suffix}",
        "type": "function_call",
        "status": "completed",
        "call_id": part.id,
        "name": part.name,
        "arguments": part.arguments,
    }


def _make_text_content(text: str, *, is_refusal: bool) -> dict[str, Any]:
    if is_refusal:
        return {"type": "refusal", "refusal": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


# -- events ------------------------------------------------------------------------------------------------------------


def encode_responses_stream(request: IncomingRequest, model_answer: ModelAnswer) -> EventStream:
    """Encode an answer as events, numbered from 0."""
    return EventStream(_number_events(_iterate_responses_events(request, model_answer)), closing_events=1)


def _number_events(events: Iterator[ResponseEvent], start: int = 0) -> tuple[bytes, ...]:
    return encode_typed_events(event | {"sequence_number": number} for number, event in enumerate(events, start))


def _iterate_responses_events(request: IncomingRequest, model_answer: ModelAnswer) -> Iterator[ResponseEvent]:
    response = _make_started_response(request, model_answer.id, model_answer.model)
    yield {"type": "response.created", "response": response}
    yield {"type": "response.in_progress", "response": response}
    items = _encode_output_items(model_answer)
    for index, item in enumerate(items):
        value = msgspec.json.decode(item) if isinstance(item, Raw) else item
        yield from _iterate_item_events(value, item, index)
    final_fields = _make_end_fields(model_answer, items)
    kind = "response.completed"
    if final_fields["status"] == "incomplete":
        kind = "response.incomplete"
    yield {"type": kind, "response": response | final_fields}


def _iterate_item_events(item: dict[str, Any], final_item: Any, index: int) -> Iterator[ResponseEvent]:
    """Yield the events of one item: added while empty, filled, done."""
    make_start, fill = _ITEM_STREAMERS.get(item["type"], (_keep_item, _iterate_no_events))
    place = {"item_id": item.get("id", ""), "output_index": index}
    yield {"type": "response.output_item.added", "output_index": index, "item": make_start(item)}
    yield from fill(item, place)
    yield {"type": "response.output_item.done", "output_index": index, "item": final_item}


def _keep_item(item: dict[str, Any]) -> dict[str, Any]:
    return item


def _iterate_no_events(item: dict[str, Any], position: ResponseEvent) -> Iterator[ResponseEvent]:
    del item, position
    yield from ()


def _make_empty_message_item(item: dict[str, Any]) -> dict[str, Any]:
    return item | {"status": "in_progress", "content": []}


def _iterate_message_events(item: dict[str, Any], position: ResponseEvent) -> Iterator[ResponseEvent]:
    for index, part in enumerate(item["content"]):
        part_position = position | {"content_index": index}
        extra: ResponseEvent
        if part["type"] == "refusal":
            field, name, extra = "refusal", "response.refusal", {}
        else:
            field, name, extra = "text", "response.output_text", {"logprobs": []}
        yield {"type": "response.content_part.added", "part": part | {field: ""}} | part_position
        for delta in split_into_deltas(part[field]):
            yield {"type": f"{name}.delta", "delta": delta} | part_position | extra
        yield {"type": f"{name}.done", field: part[field]} | part_position | extra
        yield {"type": "response.content_part.done", "part": part} | part_position


def _make_empty_call_item(item: dict[str, Any]) -> dict[str, Any]:
    return item | {"status": "in_progress", "arguments": ""}


def _iterate_call_events(item: dict[str, Any], position: ResponseEvent) -> Iterator[ResponseEvent]:
    name = "response.function_call_arguments"
    for delta in split_into_deltas(item["arguments"]):
        yield {"type": f"{name}.delta", "delta": delta} | position
    yield {"type": f"{name}.done", "name": item["name"], "arguments": item["arguments"]} | position


def _make_empty_reasoning_item(item: dict[str, Any]) -> dict[str, Any]:
    empty_item = item | {"summary": []}
    if item.get("encrypted_content"):
        empty_item["encrypted_content"] = ""  # complete only in `output_item.done`, as OpenAI documents it
    return empty_item


def _iterate_reasoning_events(item: dict[str, Any], position: ResponseEvent) -> Iterator[ResponseEvent]:
    name = "response.reasoning_summary"
    for index, part in enumerate(item["summary"]):
        part_position = position | {"summary_index": index}
        yield {"type": f"{name}_part.added", "part": part | {"text": ""}} | part_position
        for delta in split_into_deltas(part["text"]):
            yield {"type": f"{name}_text.delta", "delta": delta} | part_position
        yield {"type": f"{name}_text.done", "text": part["text"]} | part_position
        yield {"type": f"{name}_part.done", "part": part} | part_position


_ITEM_STREAMERS = {
    "message": (_make_empty_message_item, _iterate_message_events),
    "function_call": (_make_empty_call_item, _iterate_call_events),
    "reasoning": (_make_empty_reasoning_item, _iterate_reasoning_events),
}
"""By the type of an item: its empty beginning, and the events that fill it. Other items are complete at once."""


# -- errors and compaction ---------------------------------------------------------------------------------------------


def encode_responses_late_error(
    request: IncomingRequest,
    refusal: RefusalReply,
    ticket: str,
    before: int,
) -> tuple[bytes, ...]:
    """Encode a failed response as events; after other events of the response, only an event ``error``."""
    error = openai.make_openai_error_object(refusal)
    if before:
        # The event has a type of its own.
        del error["type"]
        return _number_events(iter([{"type": "error"} | error]), before)
    model = decode_request_fields(request).get("model") or request.model
    response = _make_started_response(request, f"resp_{ticket.removeprefix('req_')}", model)
    failure = {"status": "failed", "error": {"code": error["code"] or "server_error", "message": error["message"]}}
    events = [
        {"type": "response.created", "response": response},
        {"type": "response.in_progress", "response": response},
        {"type": "response.failed", "response": response | failure},
    ]
    return _number_events(iter(events))


def encode_compact_response(compaction: CompactReply) -> dict[str, Any]:
    """Encode the reply to ``/responses/compact``; its ``output`` is the next request's input."""
    return {
        "id": compaction.id,
        "object": "response.compaction",
        "created_at": FIXED_TIME,
        "output": [_expand_item(item) for item in compaction.items],
        "usage": openai.encode_responses_usage(compaction.usage),
    }


def _expand_item(item: bytes) -> Any:
    """Return an item in its full form; a message may have been sent in the short form, which outputs never have."""
    value = msgspec.json.decode(item)
    if not isinstance(value, dict) or "role" not in value:
        return Raw(item)
    content = value.get("content")
    parts = [{"type": "input_text", "text": content}] if isinstance(content, str) else content
    return {"type": "message", "status": "completed"} | value | {"content": parts}


RESPONSES_ENCODER = ApiEncoder(
    encode_responses_answer,
    encode_responses_stream,
    openai.encode_openai_error,
    encode_responses_late_error,
    openai.encode_openai_count,
    encode_compact_response,
    openai.make_openai_retry_headers,
    "x-request-id",
)
