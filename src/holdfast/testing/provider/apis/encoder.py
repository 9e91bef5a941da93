"""The interface of an API's encoder, and helpers that several of them share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import ceil
from typing import Any

import msgspec
from msgspec import Struct

from holdfast.providers.common.json.raw_json import encode_json
from holdfast.testing.provider.calls import CompactReply, IncomingRequest, ModelAnswer, RefusalReply

FIXED_TIME = 1_780_000_000
"""The creation time in all answers (2026-05-28): without a clock, equal requests have equal answers."""
# Four characters are about one token, as real streams have it. The limit keeps tests with long texts fast.
DELTA_CHARACTERS, MAX_DELTAS = 4, 64
"""Characters in one delta, and the largest number of deltas of a text; a long text has larger ones."""
EVENT_STREAM_TYPE, JSON_TYPE = "text/event-stream; charset=utf-8", "application/json"


class EventStream(Struct, frozen=True):
    """An answer as the encoded events of a stream."""

    events: tuple[bytes, ...]
    closing_events: int
    """Number of events at the end that come after all content: stop reason, usage, end marks."""


class ApiEncoder(Struct, frozen=True):
    """The functions that encode replies for one API. They return values to be encoded as JSON, or events as bytes."""

    encode_answer: Callable[[IncomingRequest, ModelAnswer], Any]
    """Encodes an answer as one document."""
    encode_stream: Callable[[IncomingRequest, ModelAnswer], EventStream]
    """Encodes an answer as events."""
    encode_error: Callable[[RefusalReply, str], Any]
    """Encodes an error for a body; the string is the request id."""
    encode_late_error: Callable[[IncomingRequest, RefusalReply, str, int], tuple[bytes, ...]]
    """Encodes an error as events of a stream with HTTP 200; the number is that of the events before it."""
    encode_count: Callable[[int], Any]
    """Encodes a count of tokens."""
    encode_compaction: Callable[[CompactReply], Any]
    """Encodes a compaction, if the API has an endpoint for it."""
    make_retry_headers: Callable[[RefusalReply], dict[str, str]]
    """Returns the headers that say when to try again."""
    request_id_header: str
    """Name of the header with the request id."""


def encode_sse_event(value: Any, name: str = "") -> bytes:
    """Encode a server-sent event with ``value`` as JSON, and with a name if the API names its events."""
    head = f"event: {name}\n".encode() if name else b""
    return head + b"data: " + encode_json(value) + b"\n\n"


def encode_typed_events(values: Iterable[dict[str, Any]]) -> tuple[bytes, ...]:
    """Encode events that are named by their field ``type``."""
    return tuple([encode_sse_event(value, value["type"]) for value in values])


def split_into_deltas(text: str) -> list[str]:
    """Split a text into deltas, which joined are the text again."""
    size = max(DELTA_CHARACTERS, ceil(len(text) / MAX_DELTAS))
    return [text[start : start + size] for start in range(0, len(text), size)]


def decode_request_fields(request: IncomingRequest) -> dict[str, Any]:
    """Return the fields of the request's body, or an empty dict if it is not a JSON object."""
    try:
        body_fields = msgspec.json.decode(request.body)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return {}
    return body_fields if isinstance(body_fields, dict) else {}


def make_empty_fields(_: object) -> dict[str, Any]:
    """Return no fields; used for the replies and headers that an API does not have."""
    return {}
