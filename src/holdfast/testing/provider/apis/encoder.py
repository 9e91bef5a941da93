"""What it takes to speak an API: the shape of its answers, its events, its errors."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import ceil
from typing import Any

import msgspec
from msgspec import Struct

from holdfast.providers.common.json.raw_json import encode_json
from holdfast.testing.provider.calls import CompactReply, IncomingRequest, ModelAnswer, RefusalReply

FIXED_TIME = 1_780_000_000
"""The time that every answer tells (2026-05-28): the provider has no clock, so equal requests have equal answers."""
DELTA_CHARACTERS, MAX_DELTAS = 4, 64
"""Characters in one delta, and the most deltas of one text: a long text comes in larger ones."""
EVENT_STREAM_TYPE, JSON_TYPE = "text/event-stream; charset=utf-8", "application/json"


class EventStream(Struct, frozen=True):
    """An answer in events."""

    events: tuple[bytes, ...]
    closing_events: int
    """How many of the last events end the answer; all words were said before them."""


class ApiEncoder(Struct, frozen=True):
    """How one API says things. What the functions return is JSON, or events as bytes."""

    encode_answer: Callable[[IncomingRequest, ModelAnswer], Any]
    """The answer in one document."""
    encode_stream: Callable[[IncomingRequest, ModelAnswer], EventStream]
    """The answer in events."""
    encode_error: Callable[[RefusalReply, str], Any]
    """The body of an error; the text is the request's id."""
    encode_late_error: Callable[[IncomingRequest, RefusalReply, str, int], tuple[bytes, ...]]
    """The events that tell an error after HTTP 200; the number is how many events came before."""
    encode_count: Callable[[int], Any]
    """The answer to a count of tokens."""
    encode_compaction: Callable[[CompactReply], Any]
    """The answer to a compaction, where it has an endpoint of its own."""
    make_retry_headers: Callable[[RefusalReply], dict[str, str]]
    """The headers that tell when to come again."""
    request_id_header: str
    """The header that tells the request's id."""


def encode_sse_event(value: Any, name: str = "") -> bytes:
    """Return a server-sent event that carries ``value`` as JSON, with ``name`` where the API names its events."""
    head = f"event: {name}\n".encode() if name else b""
    return head + b"data: " + encode_json(value) + b"\n\n"


def encode_typed_events(values: Iterable[dict[str, Any]]) -> tuple[bytes, ...]:
    """Return events that are called as their ``type`` says."""
    return tuple([encode_sse_event(value, value["type"]) for value in values])


def split_into_deltas(text: str) -> list[str]:
    """Return ``text`` cut into deltas; joined they are the text."""
    size = max(DELTA_CHARACTERS, ceil(len(text) / MAX_DELTAS))
    return [text[start : start + size] for start in range(0, len(text), size)]


def decode_request_fields(request: IncomingRequest) -> dict[str, Any]:
    """Return the fields of the request; nothing for a body that is no JSON object."""
    try:
        body_fields = msgspec.json.decode(request.body)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return {}
    return body_fields if isinstance(body_fields, dict) else {}


def make_empty_fields(_: object) -> dict[str, Any]:
    """Return no fields: what an API has nothing to say to."""
    return {}
