"""Read the headers of a gateway's request, and write its answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.proxy.gateway.compress_messages import CompressedMessages
from holdfast.proxy.http.headers import TOKEN_HEADER, RequestState
from holdfast.proxy.http.relay import ResponseHead, ResponsePiece
from holdfast.proxy.local_responses import JSON_HEADER, add_holdfast_headers

_TOKEN_HEADER = TOKEN_HEADER.decode()
_GATEWAY_TOKEN_HEADER = "x-headroom-proxy-token"  # noqa: S105 -- the name of a header
_BYPASS_HEADER = "x-headroom-bypass"


def take_gateway_token(headers: Mapping[str, str]) -> Mapping[str, str]:
    """Return ``headers`` with the token that a gateway sends in place of the proxy's, unless they have that.

    Gateways send the key of the service as their login, or in a header of that service. No provider is asked at these
    endpoints, so neither can be meant for one.
    """
    if _TOKEN_HEADER in headers:
        return headers
    scheme, _, key = headers.get("authorization", "").partition(" ")
    token = headers.get(_GATEWAY_TOKEN_HEADER, "")
    if not token and scheme.lower() == "bearer":
        token = key
    return {**headers, _TOKEN_HEADER: token.strip()}


def wants_bypass(headers: Mapping[str, str]) -> bool:
    """Return whether the gateway's client asks to leave its messages alone."""
    return headers.get(_BYPASS_HEADER, "").lower() == "true"


def write_compressed(answer: CompressedMessages, state: RequestState, session_key: str) -> list[ResponsePiece]:
    """Return the answer of ``POST /v1/compress``."""
    head = add_holdfast_headers(ResponseHead(200, [JSON_HEADER]), state, session_key)
    return [head, answer.encode()]


def write_retrieved(answer: Mapping[str, Any]) -> list[ResponsePiece]:
    """Return the answer of ``GET /v1/retrieve/HASH``."""
    return [ResponseHead(200, [JSON_HEADER]), msgspec.json.encode(answer)]
