"""A request that is not the engine's to answer: it is sent on, and its answer back, as either came."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial

from anyio import Event

from holdfast.errors import UpstreamError
from holdfast.proxy.beside import beside
from holdfast.proxy.exchange import Exchange
from holdfast.proxy.headers import State, named
from holdfast.proxy.incoming import Gone, Receive, body_pieces, watch_client
from holdfast.proxy.outgoing import deliver
from holdfast.proxy.relay import Head, Piece
from holdfast.proxy.replies import BAD_GATEWAY, error_reply, labelled, refuse_body, send_whole
from holdfast.proxy.unpacking import BadBody
from holdfast.wire.native_errors import stream_event
from holdfast.wire.overflow import ErrorReport, Verdict, classify

REFUSED_FROM = 300
"""The first status that is no success."""

LONGEST = 1 << 16
"""[H] Bytes of a refusal that are looked at before any is given back: none that tells of an overflow has more."""


class Overflowed(Exception):
    """What was sent on is refused as too large, and nothing of that was given back."""


async def forward(exchange: Exchange, body: bytes, state: State) -> State:
    """Send ``body`` on and its answer back, which says that this is the ``state`` of the request."""
    await _give_back(exchange.onward.relay(body), exchange, state)
    return state


async def forward_if_taken(exchange: Exchange, body: bytes, state: State) -> bool:
    """Send ``body`` on and its answer back, unless that refuses it as too large; return whether it was given back."""
    try:
        await _give_back(_unless_too_large(exchange.onward.relay(body), exchange.api), exchange, state)
    except Overflowed:
        return False
    return True


async def pass_through(exchange: Exchange, receive: Receive, state: State) -> State:
    """Send a request on while it comes in, whatever it holds, and its answer back as it comes."""
    outgoing, heard = exchange.outgoing, Event()
    has_body = {"content-length", "transfer-encoding"} & exchange.incoming.headers.keys()
    body = body_pieces(receive, heard) if has_body else b""
    try:
        with beside(partial(watch_client, receive, lambda: outgoing.is_ended, heard if has_body else None)):
            await _give_back(exchange.onward.relay(body, as_it_came=True), exchange, state)
    except BadBody as why:
        if outgoing.is_answered:
            raise Gone from why
        return await refuse_body(outgoing, why, exchange.api)
    return state


async def _give_back(pieces: AsyncGenerator[Piece], exchange: Exchange, state: State) -> None:
    """Give ``pieces`` to the client; what never came is said in its API's words, what broke off breaks off."""
    outgoing = exchange.outgoing
    try:
        await deliver(_told(pieces, exchange, state), outgoing, b"", 0)
        await outgoing.end()
    except UpstreamError as why:
        if not outgoing.is_answered:
            outgoing.is_unreached = True
            await send_whole(outgoing, error_reply(exchange.api, why.kind, str(why), status=BAD_GATEWAY))


async def _unless_too_large(pieces: AsyncGenerator[Piece], api: str) -> AsyncGenerator[Piece]:
    """Yield ``pieces``; ``Overflowed`` before the first where they refuse a request as too large."""
    async with aclosing(pieces):
        first = await anext(pieces)
        body = b""
        if isinstance(first, Head) and first.status >= REFUSED_FROM:
            async for piece in pieces:
                body += piece if isinstance(piece, bytes) else b""
                if len(body) > LONGEST:
                    break
            if classify(ErrorReport(api, status=first.status, headers=named(first.headers), body=body)).is_overflow:
                raise Overflowed
        yield first
        yield body
        async for piece in pieces:
            yield piece


async def _told(pieces: AsyncGenerator[Piece], exchange: Exchange, state: State) -> AsyncGenerator[Piece]:
    """Yield ``pieces``, the head with what was done; an error behind signs of life is an event of their stream."""
    async for piece in pieces:
        if isinstance(piece, Head) and exchange.outgoing.has_signs and piece.status >= REFUSED_FROM:
            told = f"the provider answered with HTTP {piece.status}"
            yield stream_event(exchange.api, Verdict("server"), message=told)
            return
        yield labelled(piece, state)
