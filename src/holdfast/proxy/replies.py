"""Answers of the proxy's own: what it tells of itself, and what it refuses, in the words of the API that was asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import msgspec
from msgspec.structs import replace

from holdfast.providers.overflow import KINDS, Kind, Verdict
from holdfast.providers.overflow.native_errors import render
from holdfast.proxy.http.decompress import BadBody
from holdfast.proxy.http.headers import State, ours
from holdfast.proxy.http.relay import Head, Piece
from holdfast.proxy.http.response import Outgoing
from holdfast.proxy.metrics.health import Health
from holdfast.proxy.metrics.prometheus import CONTENT_TYPE

BAD_GATEWAY = 502
TOO_LARGE = 413
JSON = (b"content-type", b"application/json")
TEXT = (b"content-type", CONTENT_TYPE.encode())


def about(place: str, health: Health) -> list[Piece] | None:
    """Return what the proxy tells of itself at ``place``; nothing where it tells nothing."""
    if place == "/metrics":
        return [Head(200, [TEXT]), health.metrics().encode()]
    if place not in _TELLING:
        return None
    return [Head(200, [JSON]), msgspec.json.encode(_TELLING[place](health))]


_TELLING: Mapping[str, Callable[[Health], dict[str, Any]]] = {
    "/": lambda _: {"proxy": "holdfast"},
    "/livez": Health.livez,
    "/stats": Health.stats,
}


def error_reply(api: str, what: str | Verdict, message: str, *, status: int = 0) -> list[Piece]:
    """Return an error as ``api`` says it, in OpenAI's way where none is known; ``status`` over its own.

    ``what`` is a verdict, or its kind alone; one that nobody knows is the server's.
    """
    verdict = what if isinstance(what, Verdict) else Verdict(cast("Kind", what) if what in KINDS else "server")
    native = render(api or "openai-chat", verdict, message=message, status=status)
    headers = [(name.encode(), value.encode()) for name, value in native.headers.items()]
    return [Head(native.status, headers), native.body]


def labelled(piece: Piece, state: State, session: str = "", request: str = "") -> Piece:
    """Return ``piece``, a head with headers of ours that it has not yet."""
    if not isinstance(piece, Head):
        return piece
    known = {name for name, _ in piece.headers}
    more = [one for one in ours(state, session, request) if one[0] not in known]
    return replace(piece, headers=[*piece.headers, *more])


async def send_whole(outgoing: Outgoing, pieces: list[Piece]) -> None:
    """Send a whole answer of ours."""
    for piece in pieces:
        await outgoing.give(piece)
    await outgoing.end()


async def refuse(outgoing: Outgoing, pieces: list[Piece]) -> State:
    """Send a refusal of ours, whose head says that it is."""
    await send_whole(outgoing, [labelled(piece, "refused") for piece in pieces])
    return "refused"


async def refuse_body(outgoing: Outgoing, why: BadBody, api: str) -> State:
    """Send why a body was not read to its end."""
    kind = "request_bytes" if why.status == TOO_LARGE else "invalid_request"
    return await refuse(outgoing, error_reply(api, kind, str(why), status=why.status))
