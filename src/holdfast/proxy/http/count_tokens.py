"""Token counts that are asked for a whole request inside another body (Gemini's ``generateContentRequest``)."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.errors import FormatError
from holdfast.providers.common.json.raw_json import decode_json_fields, replace_json_fields
from holdfast.providers.registry import API_SPECS
from holdfast.proxy.http.routes import Route


def unwrap_count_tokens_body(body: bytes, route: Route) -> tuple[bytes, Callable[[bytes], bytes]]:
    """Return the request inside ``body``, and a function that puts another one in its place.

    For most APIs and bodies that is ``body`` itself. Putting the very same bytes back returns the same object, so an
    unchanged request stays unchanged.
    """
    wrapper_field = ""
    if route.api in API_SPECS:
        wrapper_field = API_SPECS[route.api].endpoints.count_wrapper_field
    # A search for the name is cheaper than parsing a large body that does not contain it.
    if not wrapper_field or route.endpoint != "count" or wrapper_field.encode() not in body:
        return body, _return_new_body
    try:
        body_fields = decode_json_fields(body)
    except FormatError:
        return body, _return_new_body
    if wrapper_field not in body_fields:
        return body, _return_new_body
    inner_body = bytes(body_fields[wrapper_field])

    def replace_inner_body(new_body: bytes) -> bytes:
        if new_body is inner_body:
            return body
        return replace_json_fields(body, body_fields, {wrapper_field: new_body})

    return inner_body, replace_inner_body


def _return_new_body(new_body: bytes) -> bytes:
    return new_body
