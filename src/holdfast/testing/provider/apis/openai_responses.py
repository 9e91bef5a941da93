"""OpenAI Responses: output items, each told by its own events, inside the life of a response."""

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
"""Why a response is ``incomplete``; the other ends are ``completed``."""
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
"""Fields of a request that its response repeats, with the values they have where they are not sent."""
_UNFINISHED_FIELDS: dict[str, Any] = {
    "status": "in_progress",
    "completed_at": None,
    "error": None,
    "incomplete_details": None,
    "output": [],
    "usage": None,
}
"""What only the end of a response tells."""

ResponseEvent = dict[str, Any]


def encode_responses_answer(request: IncomingRequest, model_answer: ModelAnswer) -> dict[str, Any]:
    """Return the response."""
    return _make_started_response(request, model_answer.id, model_answer.model) | _make_end_fields(
        model_answer, _encode_output_items(model_answer)
    )


def _make_started_response(request: IncomingRequest, ident: str, model: str) -> dict[str, Any]:
    """Return a response that has only begun."""
    options = decode_request_fields(request)
    head = {"id": ident, "object": "response", "created_at": FIXED_TIME, "model": model}
    echo = {key: default if options.get(key) is None else options[key] for key, default in _ECHOED_FIELDS.items()}
    tools = options["tools"] if isinstance(options.get("tools"), list) else []
    return head | _UNFINISHED_FIELDS | echo | {"tools": [_echo_tool(tool) for tool in tools]}


def _echo_tool(tool: Any) -> Any:
    """Return a tool as a response repeats it, with its defaults."""
    if isinstance(tool, dict) and tool.get("type") == "function":
        return {"description": None, "parameters": None, "strict": True} | tool
    return tool


def _make_end_fields(model_answer: ModelAnswer, items: list[Any]) -> dict[str, Any]:
    """Return the fields that the end of a response changes."""
    reason = _INCOMPLETE_REASONS.get(model_answer.stop)
    status = (
        "incomplete" if reason else "completed" if model_answer.stop in _KNOWN_RESPONSES_STOPS else model_answer.stop
    )
    response: dict[str, Any] = {
        "status": status,
        "output": items,
        "usage": openai.encode_responses_usage(model_answer.usage),
    }
    response |= {"incomplete_details": {"reason": reason}} if reason else {"completed_at": FIXED_TIME}
    removal = {"type": "reasoning", "action": "removed"}
    transformations = [removal | {"id": ident, "reason": why} for ident, why in model_answer.dropped_blocks]
    return response | ({"input_transformations": transformations} if transformations else {})


# -- items -------------------------------------------------------------------------------------------------------------


def _encode_output_items(model_answer: ModelAnswer) -> list[Any]:
    stem = model_answer.id.removeprefix("resp_")
    return [
        _encode_output_item(part, f"{stem}{index:02}", model_answer.stop)
        for index, part in enumerate(model_answer.parts)
    ]


def _encode_output_item(part: Part, ident: str, stop: str) -> Any:
    """Return a part as an output item; one that has no bytes of its own gets an id made of ``ident``."""
    if part.raw is not None:
        return part.raw
    if isinstance(part, Text):
        status = "incomplete" if stop in _INCOMPLETE_REASONS else "completed"
        content = [_make_text_content(part.text, refusing=stop == "refusal")]
        return {"id": f"msg_{ident}", "type": "message", "status": status, "role": "assistant", "content": content}
    if isinstance(part, Thinking):
        summary = [{"type": "summary_text", "text": part.text}] if part.text else []
        signature = part.signature.data if part.signature else None
        return {"id": f"rs_{ident}", "type": "reasoning", "summary": summary, "encrypted_content": signature}
    assert isinstance(part, ToolCall)
    named_ = {"call_id": part.id, "name": part.name, "arguments": part.arguments}
    return {"id": f"fc_{ident}", "type": "function_call", "status": "completed"} | named_


def _make_text_content(text: str, *, refusing: bool) -> dict[str, Any]:
    if refusing:
        return {"type": "refusal", "refusal": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


# -- events ------------------------------------------------------------------------------------------------------------


def encode_responses_stream(request: IncomingRequest, model_answer: ModelAnswer) -> EventStream:
    """Return the events of the answer, numbered from 0."""
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
    kind = "response.incomplete" if final_fields["status"] == "incomplete" else "response.completed"
    yield {"type": kind, "response": response | final_fields}


def _iterate_item_events(item: dict[str, Any], final_item: Any, index: int) -> Iterator[ResponseEvent]:
    """Yield the events of one item: added empty, filled, done."""
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
    for number, part in enumerate(item["content"]):
        at = position | {"content_index": number}
        field = "refusal" if part["type"] == "refusal" else "text"
        name = "response.refusal" if field == "refusal" else "response.output_text"
        extra: ResponseEvent = {} if field == "refusal" else {"logprobs": []}
        yield {"type": "response.content_part.added", "part": part | {field: ""}} | at
        yield from ({"type": f"{name}.delta", "delta": piece} | at | extra for piece in split_into_deltas(part[field]))
        yield {"type": f"{name}.done", field: part[field]} | at | extra
        yield {"type": "response.content_part.done", "part": part} | at


def _make_empty_call_item(item: dict[str, Any]) -> dict[str, Any]:
    return item | {"status": "in_progress", "arguments": ""}


def _iterate_call_events(item: dict[str, Any], position: ResponseEvent) -> Iterator[ResponseEvent]:
    name, text = "response.function_call_arguments", item["arguments"]
    yield from ({"type": f"{name}.delta", "delta": piece} | position for piece in split_into_deltas(text))
    yield {"type": f"{name}.done", "name": item["name"], "arguments": text} | position


def _make_empty_reasoning_item(item: dict[str, Any]) -> dict[str, Any]:
    return item | {"summary": []} | ({"encrypted_content": ""} if item.get("encrypted_content") else {})


def _iterate_reasoning_events(item: dict[str, Any], position: ResponseEvent) -> Iterator[ResponseEvent]:
    for number, part in enumerate(item["summary"]):
        at = position | {"summary_index": number}
        name = "response.reasoning_summary"
        yield {"type": f"{name}_part.added", "part": part | {"text": ""}} | at
        yield from ({"type": f"{name}_text.delta", "delta": piece} | at for piece in split_into_deltas(part["text"]))
        yield {"type": f"{name}_text.done", "text": part["text"]} | at
        yield {"type": f"{name}_part.done", "part": part} | at


_ITEM_STREAMERS = {
    "message": (_make_empty_message_item, _iterate_message_events),
    "function_call": (_make_empty_call_item, _iterate_call_events),
    "reasoning": (_make_empty_reasoning_item, _iterate_reasoning_events),
}
"""How an item begins and what fills it; all others come whole at once."""


# -- errors and compaction ---------------------------------------------------------------------------------------------


def encode_responses_late_error(
    request: IncomingRequest, refusal: RefusalReply, ticket: str, before: int
) -> tuple[bytes, ...]:
    """Return the events of a response that fails; behind other events of it, the error alone."""
    error = openai.make_openai_error_object(refusal)
    if before:
        del error["type"]
        return _number_events(iter([{"type": "error"} | error]), before)
    response = _make_started_response(
        request, f"resp_{ticket.removeprefix('req_')}", decode_request_fields(request).get("model") or request.model
    )
    failure = {"status": "failed", "error": {"code": error["code"] or "server_error", "message": error["message"]}}
    events = [
        {"type": "response.created", "response": response},
        {"type": "response.in_progress", "response": response},
        {"type": "response.failed", "response": response | failure},
    ]
    return _number_events(iter(events))


def encode_compact_response(compaction: CompactReply) -> dict[str, Any]:
    """Return the answer of ``/responses/compact``, whose ``output`` is the next input."""
    head = {"id": compaction.id, "object": "response.compaction", "created_at": FIXED_TIME}
    return head | {
        "output": [_expand_item(item) for item in compaction.items],
        "usage": openai.encode_responses_usage(compaction.usage),
    }


def _expand_item(item: bytes) -> Any:
    """Return an item in its full form; a message may have been sent in the short one, which is no output."""
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
