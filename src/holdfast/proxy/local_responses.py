"""Answers that the proxy gives itself: its status and metrics, and errors in the words of the requested API."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import msgspec
from msgspec.structs import replace

from holdfast.providers.errors.render import render_error_response
from holdfast.providers.errors.report import VERDICT_KINDS, Verdict, VerdictKind
from holdfast.providers.registry import DEFAULT_API
from holdfast.proxy.http.client_response import ClientResponse
from holdfast.proxy.http.decompress import BadBody
from holdfast.proxy.http.headers import RequestState, make_holdfast_headers
from holdfast.proxy.http.relay import ResponseHead, ResponsePiece
from holdfast.proxy.metrics.health import METRICS_CONTENT_TYPE, Health

BAD_GATEWAY = 502
TOO_LARGE = 413
JSON_HEADER = (b"content-type", b"application/json")
PROMETHEUS_HEADER = (b"content-type", METRICS_CONTENT_TYPE.encode())


def render_proxy_endpoint(path: str, health: Health) -> list[ResponsePiece] | None:
    """Return the proxy's own answer at ``path``, or None if it has none there."""
    if path == "/metrics":
        return [ResponseHead(200, [PROMETHEUS_HEADER]), health.build_metrics().encode()]
    if path not in _OWN_ENDPOINTS:
        return None
    return [ResponseHead(200, [JSON_HEADER]), msgspec.json.encode(_OWN_ENDPOINTS[path](health))]


_OWN_ENDPOINTS: Mapping[str, Callable[[Health], dict[str, Any]]] = {
    "/": lambda _: {"proxy": "holdfast"},
    "/livez": Health.build_livez,
    "/stats": Health.build_stats,
}


def make_error_reply(
    api: str,
    problem: str | Verdict,
    message: str,
    *,
    status: int = 0,
) -> list[ResponsePiece]:
    """Build an error response in the words of ``api``, or of OpenAI if it is unknown.

    ``problem`` is a verdict or the kind of one; an unknown kind becomes a server error. ``status`` overrides the API's
    own status for that kind.
    """
    if isinstance(problem, Verdict):
        verdict = problem
    elif problem in VERDICT_KINDS:
        verdict = Verdict(cast("VerdictKind", problem))
    else:
        verdict = Verdict("server")
    native = render_error_response(api or DEFAULT_API, verdict, message=message, status=status)
    headers = [(name.encode(), value.encode()) for name, value in native.headers.items()]
    return [ResponseHead(native.status, headers), native.body]


def add_holdfast_headers(
    piece: ResponsePiece,
    state: RequestState,
    session: str = "",
    request: str = "",
) -> ResponsePiece:
    """Add Holdfast's headers that ``piece`` lacks, if it is the head of a response; return other pieces unchanged."""
    if not isinstance(piece, ResponseHead):
        return piece
    header_names = {name for name, _ in piece.headers}
    headers = list(piece.headers)
    for name, value in make_holdfast_headers(state, session, request):
        if name not in header_names:
            headers.append((name, value))
    return replace(piece, headers=headers)


async def send_pieces(client_response: ClientResponse, pieces: list[ResponsePiece]) -> None:
    """Send a whole answer."""
    for piece in pieces:
        await client_response.send_piece(piece)
    await client_response.send_end()


async def send_refusal(client_response: ClientResponse, pieces: list[ResponsePiece]) -> RequestState:
    """Send a refusal, with a header that says it is one of ours."""
    await send_pieces(client_response, [add_holdfast_headers(piece, "refused") for piece in pieces])
    return "refused"


async def send_body_refusal(client_response: ClientResponse, why: BadBody, api: str) -> RequestState:
    """Refuse a request because its body could not be read."""
    kind = "invalid_request"
    if why.status == TOO_LARGE:
        kind = "request_bytes"
    return await send_refusal(client_response, make_error_reply(api, kind, str(why), status=why.status))
