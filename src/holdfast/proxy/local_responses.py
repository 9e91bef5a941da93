"""Answers of the proxy's own: what it tells of itself, and what it refuses, in the words of the API that was asked."""

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


def render_proxy_endpoint(place: str, health: Health) -> list[ResponsePiece] | None:
    """Return what the proxy tells of itself at ``place``; nothing where it tells nothing."""
    if place == "/metrics":
        return [ResponseHead(200, [PROMETHEUS_HEADER]), health.build_metrics().encode()]
    if place not in _OWN_ENDPOINTS:
        return None
    return [ResponseHead(200, [JSON_HEADER]), msgspec.json.encode(_OWN_ENDPOINTS[place](health))]


_OWN_ENDPOINTS: Mapping[str, Callable[[Health], dict[str, Any]]] = {
    "/": lambda _: {"proxy": "holdfast"},
    "/livez": Health.build_livez,
    "/stats": Health.build_stats,
}


def make_error_reply(api: str, problem: str | Verdict, message: str, *, status: int = 0) -> list[ResponsePiece]:
    """Return an error as ``api`` says it, in OpenAI's way where none is known; ``status`` over its own.

    ``problem`` is a verdict, or its kind alone; one that nobody knows is the server's.
    """
    verdict = (
        problem
        if isinstance(problem, Verdict)
        else Verdict(cast("VerdictKind", problem) if problem in VERDICT_KINDS else "server")
    )
    native = render_error_response(api or DEFAULT_API, verdict, message=message, status=status)
    headers = [(name.encode(), value.encode()) for name, value in native.headers.items()]
    return [ResponseHead(native.status, headers), native.body]


def add_holdfast_headers(
    piece: ResponsePiece, state: RequestState, session: str = "", request: str = ""
) -> ResponsePiece:
    """Return ``piece``, a head with headers of ours that it has not yet."""
    if not isinstance(piece, ResponseHead):
        return piece
    header_names = {name for name, _ in piece.headers}
    new_headers = [header for header in make_holdfast_headers(state, session, request) if header[0] not in header_names]
    return replace(piece, headers=[*piece.headers, *new_headers])


async def send_pieces(client_response: ClientResponse, pieces: list[ResponsePiece]) -> None:
    """Send a whole answer of ours."""
    for piece in pieces:
        await client_response.send_piece(piece)
    await client_response.send_end()


async def send_refusal(client_response: ClientResponse, pieces: list[ResponsePiece]) -> RequestState:
    """Send a refusal of ours, whose head says that it is."""
    await send_pieces(client_response, [add_holdfast_headers(piece, "refused") for piece in pieces])
    return "refused"


async def send_body_refusal(client_response: ClientResponse, why: BadBody, api: str) -> RequestState:
    """Send why a body was not read to its end."""
    kind = "request_bytes" if why.status == TOO_LARGE else "invalid_request"
    return await send_refusal(client_response, make_error_reply(api, kind, str(why), status=why.status))
