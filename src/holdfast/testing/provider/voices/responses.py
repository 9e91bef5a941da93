"""OpenAI Responses: output items, each told by its own events, inside the life of a response."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Raw

from holdfast.messages.parts import Part, Text, Thinking, ToolCall
from holdfast.testing.provider.calls import Answered, Asked, Compacted, Refusal
from holdfast.testing.provider.voices import openai
from holdfast.testing.provider.voices.voice import EPOCH, Stream, Voice, named, pieces, wishes

_INCOMPLETE = {"length": "max_output_tokens", "window": "max_output_tokens"}
"""Why a response is ``incomplete``; the other ends are ``completed``."""
_KNOWN = frozenset({"end", "tool", "length", "window", "compaction", "refusal"})
_ECHOED = {
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
_BEGUN: dict[str, Any] = {
    "status": "in_progress",
    "completed_at": None,
    "error": None,
    "incomplete_details": None,
    "output": [],
    "usage": None,
}
"""What only the end of a response tells."""

Event = dict[str, Any]


def whole(asked: Asked, answered: Answered) -> dict[str, Any]:
    """Return the response."""
    return _response(asked, answered.id, answered.model) | _ended(answered, _items(answered))


def _response(asked: Asked, ident: str, model: str) -> dict[str, Any]:
    """Return a response that has only begun."""
    sent = wishes(asked)
    head = {"id": ident, "object": "response", "created_at": EPOCH, "model": model}
    echo = {key: default if sent.get(key) is None else sent[key] for key, default in _ECHOED.items()}
    tools = sent["tools"] if isinstance(sent.get("tools"), list) else []
    return head | _BEGUN | echo | {"tools": [_tool(tool) for tool in tools]}


def _tool(tool: Any) -> Any:
    """Return a tool as a response repeats it, with its defaults."""
    if isinstance(tool, dict) and tool.get("type") == "function":
        return {"description": None, "parameters": None, "strict": True} | tool
    return tool


def _ended(answered: Answered, items: list[Any]) -> dict[str, Any]:
    """Return the fields that the end of a response changes."""
    reason = _INCOMPLETE.get(answered.stop)
    status = "incomplete" if reason else "completed" if answered.stop in _KNOWN else answered.stop
    ended: dict[str, Any] = {"status": status, "output": items, "usage": openai.responses_usage(answered.usage)}
    ended |= {"incomplete_details": {"reason": reason}} if reason else {"completed_at": EPOCH}
    removed = {"type": "reasoning", "action": "removed"}
    dropped = [removed | {"id": ident, "reason": why} for ident, why in answered.dropped]
    return ended | ({"input_transformations": dropped} if dropped else {})


# -- items -------------------------------------------------------------------------------------------------------------


def _items(answered: Answered) -> list[Any]:
    stem = answered.id.removeprefix("resp_")
    return [_item(part, f"{stem}{index:02}", answered.stop) for index, part in enumerate(answered.parts)]


def _item(part: Part, ident: str, stop: str) -> Any:
    """Return a part as an output item; one that has no bytes of its own gets an id made of ``ident``."""
    if part.raw is not None:
        return part.raw
    if isinstance(part, Text):
        status = "incomplete" if stop in _INCOMPLETE else "completed"
        content = [_said(part.text, refusing=stop == "refusal")]
        return {"id": f"msg_{ident}", "type": "message", "status": status, "role": "assistant", "content": content}
    if isinstance(part, Thinking):
        summary = [{"type": "summary_text", "text": part.text}] if part.text else []
        sealed = part.seal.data if part.seal else None
        return {"id": f"rs_{ident}", "type": "reasoning", "summary": summary, "encrypted_content": sealed}
    assert isinstance(part, ToolCall)
    named_ = {"call_id": part.id, "name": part.name, "arguments": part.arguments}
    return {"id": f"fc_{ident}", "type": "function_call", "status": "completed"} | named_


def _said(text: str, *, refusing: bool) -> dict[str, Any]:
    if refusing:
        return {"type": "refusal", "refusal": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


# -- events ------------------------------------------------------------------------------------------------------------


def stream(asked: Asked, answered: Answered) -> Stream:
    """Return the events of the answer, numbered from 0."""
    return Stream(_numbered(_events(asked, answered)), closing=1)


def _numbered(events: Iterator[Event], start: int = 0) -> tuple[bytes, ...]:
    return named(event | {"sequence_number": number} for number, event in enumerate(events, start))


def _events(asked: Asked, answered: Answered) -> Iterator[Event]:
    begun = _response(asked, answered.id, answered.model)
    yield {"type": "response.created", "response": begun}
    yield {"type": "response.in_progress", "response": begun}
    items = _items(answered)
    for index, item in enumerate(items):
        value = msgspec.json.decode(item) if isinstance(item, Raw) else item
        yield from _told(value, item, index)
    ended = _ended(answered, items)
    kind = "response.incomplete" if ended["status"] == "incomplete" else "response.completed"
    yield {"type": kind, "response": begun | ended}


def _told(item: dict[str, Any], done: Any, index: int) -> Iterator[Event]:
    """Yield the events of one item: added empty, filled, done."""
    begun, fill = _TOLD.get(item["type"], (_as_is, _no_events))
    place = {"item_id": item.get("id", ""), "output_index": index}
    yield {"type": "response.output_item.added", "output_index": index, "item": begun(item)}
    yield from fill(item, place)
    yield {"type": "response.output_item.done", "output_index": index, "item": done}


def _as_is(item: dict[str, Any]) -> dict[str, Any]:
    return item


def _no_events(item: dict[str, Any], place: Event) -> Iterator[Event]:
    del item, place
    yield from ()


def _empty_message(item: dict[str, Any]) -> dict[str, Any]:
    return item | {"status": "in_progress", "content": []}


def _message_events(item: dict[str, Any], place: Event) -> Iterator[Event]:
    for number, part in enumerate(item["content"]):
        at = place | {"content_index": number}
        field = "refusal" if part["type"] == "refusal" else "text"
        name = "response.refusal" if field == "refusal" else "response.output_text"
        extra: Event = {} if field == "refusal" else {"logprobs": []}
        yield {"type": "response.content_part.added", "part": part | {field: ""}} | at
        yield from ({"type": f"{name}.delta", "delta": piece} | at | extra for piece in pieces(part[field]))
        yield {"type": f"{name}.done", field: part[field]} | at | extra
        yield {"type": "response.content_part.done", "part": part} | at


def _empty_call(item: dict[str, Any]) -> dict[str, Any]:
    return item | {"status": "in_progress", "arguments": ""}


def _call_events(item: dict[str, Any], place: Event) -> Iterator[Event]:
    name, text = "response.function_call_arguments", item["arguments"]
    yield from ({"type": f"{name}.delta", "delta": piece} | place for piece in pieces(text))
    yield {"type": f"{name}.done", "name": item["name"], "arguments": text} | place


def _empty_reasoning(item: dict[str, Any]) -> dict[str, Any]:
    return item | {"summary": []} | ({"encrypted_content": ""} if item.get("encrypted_content") else {})


def _reasoning_events(item: dict[str, Any], place: Event) -> Iterator[Event]:
    for number, part in enumerate(item["summary"]):
        at = place | {"summary_index": number}
        name = "response.reasoning_summary"
        yield {"type": f"{name}_part.added", "part": part | {"text": ""}} | at
        yield from ({"type": f"{name}_text.delta", "delta": piece} | at for piece in pieces(part["text"]))
        yield {"type": f"{name}_text.done", "text": part["text"]} | at
        yield {"type": f"{name}_part.done", "part": part} | at


_TOLD = {
    "message": (_empty_message, _message_events),
    "function_call": (_empty_call, _call_events),
    "reasoning": (_empty_reasoning, _reasoning_events),
}
"""How an item begins and what fills it; all others come whole at once."""


# -- errors and compaction ---------------------------------------------------------------------------------------------


def late(asked: Asked, refusal: Refusal, ticket: str, before: int) -> tuple[bytes, ...]:
    """Return the events of a response that fails; behind other events of it, the error alone."""
    error = openai.error(refusal)
    if before:
        del error["type"]
        return _numbered(iter([{"type": "error"} | error]), before)
    begun = _response(asked, f"resp_{ticket.removeprefix('req_')}", wishes(asked).get("model") or asked.model)
    failed = {"status": "failed", "error": {"code": error["code"] or "server_error", "message": error["message"]}}
    told = [
        {"type": "response.created", "response": begun},
        {"type": "response.in_progress", "response": begun},
        {"type": "response.failed", "response": begun | failed},
    ]
    return _numbered(iter(told))


def compacted(done: Compacted) -> dict[str, Any]:
    """Return the answer of ``/responses/compact``, whose ``output`` is the next input."""
    head = {"id": done.id, "object": "response.compaction", "created_at": EPOCH}
    return head | {"output": [_whole_item(item) for item in done.items], "usage": openai.responses_usage(done.usage)}


def _whole_item(item: bytes) -> Any:
    """Return an item in its full form; a message may have been sent in the short one, which is no output."""
    value = msgspec.json.decode(item)
    if not isinstance(value, dict) or "role" not in value:
        return Raw(item)
    content = value.get("content")
    parts = [{"type": "input_text", "text": content}] if isinstance(content, str) else content
    return {"type": "message", "status": "completed"} | value | {"content": parts}


VOICE = Voice(whole, stream, openai.refused, late, openai.counted, compacted, openai.waiting, "x-request-id")
