"""A request inside of another: what a count is asked of, where Gemini's is told a whole request to come."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from holdfast.errors import FormatError
from holdfast.providers.common.json.raw_json import decode_json_fields, replace_json_fields
from holdfast.proxy.http.routes import Route

INNER_REQUEST_FIELD = "generateContentRequest"
"""The field of ``countTokens`` that holds a request with its system instruction and tools."""


def unwrap_count_tokens_body(body: bytes, route: Route) -> tuple[bytes, Callable[[bytes], bytes]]:
    """Return the request that ``body`` is about, and what puts another one in its place: itself, for most."""
    if route.api == "gemini" and route.endpoint == "count" and INNER_REQUEST_FIELD.encode() in body:
        with suppress(FormatError):
            body_fields = decode_json_fields(body)
            inner = bytes(body_fields[INNER_REQUEST_FIELD]) if INNER_REQUEST_FIELD in body_fields else body
            if inner is not body:
                return (
                    inner,
                    lambda new_body: (
                        body
                        if new_body is inner
                        else replace_json_fields(body, body_fields, {INNER_REQUEST_FIELD: new_body})
                    ),
                )
    return body, lambda new_body: new_body
