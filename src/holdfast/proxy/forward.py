"""A request that is not the engine's to answer: it is sent on, and its answer back, as either came."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from functools import partial

from holdfast.errors import UpstreamError
from holdfast.providers.overflow import Verdict
from holdfast.providers.overflow.native_errors import stream_event
from holdfast.proxy.concurrent import beside
from holdfast.proxy.exchange import Exchange
from holdfast.proxy.http.decompress import BadBody
from holdfast.proxy.http.headers import State
from holdfast.proxy.http.relay import Head, Piece
from holdfast.proxy.http.request import Gone, Receive, UploadProgress, body_pieces, wait_for_rest, watch_client
from holdfast.proxy.http.response import deliver
from holdfast.proxy.replies import BAD_GATEWAY, error_reply, labelled, refuse_body, send_whole

REFUSED_FROM = 300
"""The first status that is no success."""


async def forward(exchange: Exchange, body: bytes, state: State) -> State:
    """Send ``body`` on and its answer back, which says that this is the ``state`` of the request."""
    return await give_back(exchange.onward.relay(body), exchange, state)


async def pass_through(exchange: Exchange, receive: Receive, state: State) -> State:
    """Send a request on while it comes in, whatever it holds, and its answer back as it comes."""
    outgoing = exchange.outgoing
    has_body = {"content-length", "transfer-encoding"} & exchange.incoming.headers.keys()
    progress = UploadProgress() if has_body else None
    body = body_pieces(receive, progress) if progress is not None else b""
    if progress is not None and exchange.incoming.closes:
        outgoing.before_end = partial(wait_for_rest, progress)
    try:
        with beside(partial(watch_client, receive, lambda: outgoing.is_ended, progress)):
            await give_back(exchange.onward.relay(body, as_it_came=True), exchange, state)
    except BadBody as why:
        if progress is not None:
            progress.complete.set()  # the rest does not come, so the end does not wait for it
        if outgoing.is_answered:
            raise Gone from why
        return await refuse_body(outgoing, why, exchange.api)
    return state


async def give_back(pieces: AsyncGenerator[Piece], exchange: Exchange, state: State) -> State:
    """Give ``pieces`` to the client; what never came is said in its API's words, what broke off breaks off."""
    outgoing = exchange.outgoing
    try:
        await deliver(_told(pieces, exchange, state), outgoing, b"", 0)
        await outgoing.end()
    except UpstreamError as why:
        if not outgoing.is_answered:
            outgoing.is_unreached = True
            told = error_reply(exchange.api, why.kind, str(why), status=BAD_GATEWAY)
            await send_whole(outgoing, [labelled(piece, state) for piece in told])
    return state


async def _told(pieces: AsyncGenerator[Piece], exchange: Exchange, state: State) -> AsyncGenerator[Piece]:
    """Yield ``pieces``, the head with what was done; an error behind signs of life is an event of their stream."""
    async for piece in pieces:
        if isinstance(piece, Head) and exchange.outgoing.has_signs and piece.status >= REFUSED_FROM:
            told = f"the provider answered with HTTP {piece.status}"
            yield stream_event(exchange.api, Verdict("server"), message=told)
            return
        yield labelled(piece, state)
