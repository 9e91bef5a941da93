"""Answers of the proxy's own: what it tells of itself, and what it refuses, in the words of the API that was asked."""

from __future__ import annotations

from typing import cast

import msgspec
from msgspec.structs import replace

from holdfast.proxy.exposition import CONTENT_TYPE
from holdfast.proxy.headers import State, ours
from holdfast.proxy.health import Health
from holdfast.proxy.incoming import Incoming
from holdfast.proxy.outgoing import Outgoing
from holdfast.proxy.relay import Head, Piece
from holdfast.proxy.unpacking import BadBody
from holdfast.wire.native_errors import render
from holdfast.wire.overflow import KINDS, Kind, Verdict

BAD_GATEWAY = 502
FAILED = 300
"""The first status that is no success."""
TOO_LARGE = 413
JSON = (b"content-type", b"application/json")
TEXT = (b"content-type", CONTENT_TYPE.encode())


def about(place: str, health: Health) -> list[Piece] | None:
    """Return what the proxy tells of itself at ``place``; nothing where it tells nothing."""
    if place == "/metrics":
        return [Head(200, [TEXT]), health.metrics().encode()]
    if place not in {"/livez", "/stats"}:
        return None
    told = health.livez() if place == "/livez" else health.stats()
    return [Head(200, [JSON]), msgspec.json.encode(told)]


def no_provider(incoming: Incoming) -> list[Piece]:
    """Return the answer to what no provider is known for: a key is sent to nobody whom it may not be for."""
    if incoming.route.place == "/" and incoming.method in {"GET", "HEAD"}:
        return [Head(200, [JSON]), b'{"proxy":"holdfast"}' if incoming.method == "GET" else b""]
    why = f"nobody is known who answers {incoming.method} {incoming.route.place[:200]}; name them: /u/https://HOST/PATH"
    return error_reply("", "invalid_request", why, status=404)


def error_reply(api: str, kind: str, message: str, verdict: Verdict | None = None, *, status: int = 0) -> list[Piece]:
    """Return an error as ``api`` says it, in OpenAI's way where none is known; ``status`` over its own."""
    known = verdict or Verdict(cast("Kind", kind) if kind in KINDS else "server")
    native = render(api or "openai-chat", known, message=message, status=status)
    headers = [(name.encode(), value.encode()) for name, value in native.headers.items()]
    return [Head(native.status, headers), native.body]


def is_error(pieces: list[Piece]) -> bool:
    """Whether an answer says that something went wrong."""
    return any(isinstance(piece, Head) and piece.status >= FAILED for piece in pieces)


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
