"""How an API writes its errors: statuses, error types, and the body and stream event around them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct


class ErrorForm(Struct, frozen=True):
    """How an API writes one kind of error: status, type, code, and a default text."""

    status: int
    type: str
    code: str | None = None
    text: str = ""


def encode_error_json(value: Any) -> bytes:
    """Encode ``value`` as compact UTF-8 JSON. Lone surrogates are escaped with a backslash."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "backslashreplace")


def render_data_event(body: dict[str, Any], _sequence_number: int) -> bytes:
    """Render the body of an error as a server-sent event without a name."""
    return b"data: " + encode_error_json(body) + b"\n\n"


class ErrorFormat(Struct, frozen=True):
    """How an API writes errors."""

    forms: Mapping[str, ErrorForm]
    """Forms by kind of error, with statuses and types from the API's documentation."""
    word_overflow: Callable[[str, int | None, int | None, int | None], str]
    """Words an overflow, from its kind, the limit, the requested tokens and the requested output; numbers may be None.

    Clients parse these texts and act on them (compaction, retry with less), so they follow the provider's own wording.
    """
    build_body: Callable[[ErrorForm, str, bool], dict[str, Any]]
    """Builds the response body from a form, the text, and whether the error is an overflow."""
    render_event: Callable[[dict[str, Any], int], bytes] = render_data_event
    """Renders that body as the last event of a stream; the number is the event's sequence number."""
    sends_overflow_as_event: bool = False
    """Whether clients that asked for a stream only understand an overflow as a stream event, after HTTP 200."""


def format_token_sum(limit: int | None, requested_tokens: int | None, output: int | None) -> str:
    """Format "requested + output > limit", or as much of it as is known."""
    if limit is not None and requested_tokens is not None:
        output_text = "max_tokens" if output is None else str(output)
        return f"{requested_tokens} + {output_text} > {limit}"
    if limit is not None:
        return f"at most {limit} tokens"
    if requested_tokens is not None:
        return f"input has {requested_tokens} tokens"
    return ""
