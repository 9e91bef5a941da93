"""Put an answer of Chat Completions into the form of a server: reasoning, usage, further fields."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.testing.provider.dialects.server_dialect import AnswerForm, ReasoningForm

REASONING_FIELD = "reasoning_content"
"""The field in which the encoder of Chat Completions puts reasoning, from where it moves to the server's."""
_DATA = b"data: "


def adapt_answer_document(document: dict[str, Any], form: AnswerForm, reasoning: ReasoningForm) -> dict[str, Any]:
    """Return a completion, or a chunk of one, in the form of the server."""
    adapted = dict(document)
    choices = []
    for choice in document.get("choices", []):
        adapted_choice = dict(choice)
        for field in ("message", "delta"):
            if field in choice:
                adapted_choice[field] = move_reasoning(choice[field], reasoning)
        choices.append(adapted_choice)
    adapted["choices"] = choices
    if isinstance(document.get("usage"), dict):
        adapted["usage"] = form.adapt_usage(dict(document["usage"]))
    return adapted | dict(form.extra_fields)


def adapt_stream_event(event: bytes, form: AnswerForm, reasoning: ReasoningForm) -> bytes:
    """Return an event of a stream in the form of the server; the final mark stays as it is."""
    if not event.startswith(_DATA + b"{"):
        return event
    chunk = msgspec.json.decode(event[len(_DATA) :])
    return _DATA + msgspec.json.encode(adapt_answer_document(chunk, form, reasoning)) + b"\n\n"


def move_reasoning(message: dict[str, Any], reasoning: ReasoningForm) -> dict[str, Any]:
    """Move the reasoning of a message or delta to where the server has it."""
    if REASONING_FIELD not in message or reasoning == "reasoning_content":
        return message
    moved = {key: value for key, value in message.items() if key != REASONING_FIELD}
    text = message[REASONING_FIELD]
    if reasoning == "reasoning":
        moved["reasoning"] = text
    elif reasoning == "details":
        moved["reasoning"] = text
        moved["reasoning_details"] = [{"type": "reasoning.text", "text": text, "format": "unknown", "index": 0}]
    elif reasoning == "thinking-chunks":
        chunk = {"type": "thinking", "thinking": [{"type": "text", "text": text}], "closed": True}
        words = message.get("content")
        moved["content"] = [chunk, {"type": "text", "text": words}] if words else [chunk]
    return moved
