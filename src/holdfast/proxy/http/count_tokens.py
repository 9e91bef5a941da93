"""A request inside of another: what a count is asked of, where Gemini's is told a whole request to come."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from holdfast.errors import FormatError
from holdfast.providers.common.json.raw_json import fields, spliced
from holdfast.proxy.http.routes import Route

INSIDE = "generateContentRequest"
"""The field of ``countTokens`` that holds a request with its system instruction and tools."""


def unwrapped(body: bytes, route: Route) -> tuple[bytes, Callable[[bytes], bytes]]:
    """Return the request that ``body`` is about, and what puts another one in its place: itself, for most."""
    if route.api == "gemini" and route.endpoint == "count" and INSIDE.encode() in body:
        with suppress(FormatError):
            found = fields(body)
            inner = bytes(found[INSIDE]) if INSIDE in found else body
            if inner is not body:
                return inner, lambda other: body if other is inner else spliced(body, found, {INSIDE: other})
    return body, lambda other: other
