"""How the errors of an API look: its statuses, its names for them, and the body and the event around them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct


class ErrorForm(Struct, frozen=True):
    """How an API says one kind: the status, the names that go with it, and a text when none is given."""

    status: int
    type: str
    code: str | None = None
    text: str = ""


def encode_error_json(value: Any) -> bytes:
    """Return ``value`` as compact JSON in UTF-8; half characters are written with a backslash."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "backslashreplace")


def render_data_event(body: dict[str, Any], _sequence_number: int) -> bytes:
    """Return the body of an error as a server-sent event without a name."""
    return b"data: " + encode_error_json(body) + b"\n\n"


class ErrorFormat(Struct, frozen=True):
    """How an API says errors."""

    forms: Mapping[str, ErrorForm]
    """Statuses and names by kind of error, as the documentation of the API has them."""
    word_overflow: Callable[[str, int | None, int | None, int | None], str]
    """What is said of a prompt that does not fit, from the kind, the limit, the tokens requested and the output asked
    for; a number that is not known is None."""
    build_body: Callable[[ErrorForm, str, bool], dict[str, Any]]
    """The body of a response from a form, the text, and whether the prompt does not fit."""
    render_event: Callable[[dict[str, Any], int], bytes] = render_data_event
    """The last event of a stream that ends with the error in this body, and the number of the event."""
    sends_overflow_as_event: bool = False
    """Whether clients understand an overflow from the events of a stream alone, where they asked for one."""


def format_token_sum(limit: int | None, requested_tokens: int | None, output: int | None) -> str:
    """Return the sum as far as it is known."""
    if limit is not None and requested_tokens is not None:
        return f"{requested_tokens} + {'max_tokens' if output is None else output} > {limit}"
    if limit is not None:
        return f"at most {limit} tokens"
    return f"input has {requested_tokens} tokens" if requested_tokens is not None else ""
