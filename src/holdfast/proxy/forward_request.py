"""Forward requests that the engine does not manage, and relay their answers, byte for byte."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from functools import partial

from holdfast.errors import UpstreamError
from holdfast.providers.errors.render import render_error_event
from holdfast.providers.errors.report import Verdict
from holdfast.proxy.exchange import Exchange
from holdfast.proxy.http.client_request import (
    ClientLeft,
    Receive,
    UploadProgress,
    iter_body_pieces,
    wait_for_body_end,
    watch_client,
)
from holdfast.proxy.http.client_response import deliver_pieces
from holdfast.proxy.http.decompress import BadBody
from holdfast.proxy.http.headers import RequestState
from holdfast.proxy.http.relay import ResponseHead, ResponsePiece
from holdfast.proxy.local_responses import (
    BAD_GATEWAY,
    add_holdfast_headers,
    make_error_reply,
    send_body_refusal,
    send_pieces,
)
from holdfast.proxy.run_alongside import run_alongside

FIRST_REFUSAL_STATUS = 300
"""The first status that is no success; redirects count as refusals here."""


async def forward_body(exchange: Exchange, body: bytes, state: RequestState) -> RequestState:
    """Forward ``body`` and relay the answer, labelled with ``state``, which is returned."""
    return await relay_answer(exchange.relay.relay(body), exchange, state)


async def pass_request_through(exchange: Exchange, receive: Receive, state: RequestState) -> RequestState:
    """Forward a request while its body is still arriving, and relay the answer as it arrives; return ``state``."""
    outgoing = exchange.client_response
    progress: UploadProgress | None = None
    body: bytes | AsyncIterator[bytes] = b""
    if {"content-length", "transfer-encoding"} & exchange.client_request.headers.keys():
        progress = UploadProgress()
        body = iter_body_pieces(receive, progress)
        # Otherwise the reset of the connection could overtake the answer.
        if exchange.client_request.closes_connection:
            outgoing.before_end = partial(wait_for_body_end, progress)
    try:
        with run_alongside(partial(watch_client, receive, lambda: outgoing.is_ended, progress)):
            await relay_answer(exchange.relay.relay(body, as_it_came=True), exchange, state)
    except BadBody as why:
        # The rest will not come, so the end of the answer must not wait for it.
        if progress is not None:
            progress.complete.set()
        # Too late for an error of ours: only breaking off tells the client.
        if outgoing.is_answered:
            raise ClientLeft from why
        return await send_body_refusal(outgoing, why, exchange.api)
    return state


async def relay_answer(pieces: AsyncGenerator[ResponsePiece], exchange: Exchange, state: RequestState) -> RequestState:
    """Send ``pieces`` to the client and return ``state``.

    If no provider answers, the client gets an error in the words of its API. If an answer breaks off, the client's
    connection breaks off too: a made-up end would pass for a whole answer.
    """
    outgoing = exchange.client_response
    try:
        await deliver_pieces(_label_answer(pieces, exchange, state), outgoing, b"", 0)
        await outgoing.send_end()
    except UpstreamError as why:
        if not outgoing.is_answered:
            outgoing.is_unreached = True
            error_pieces = make_error_reply(exchange.api, why.kind, str(why), status=BAD_GATEWAY)
            await send_pieces(outgoing, [add_holdfast_headers(piece, state) for piece in error_pieces])
    return state


async def _label_answer(
    pieces: AsyncGenerator[ResponsePiece],
    exchange: Exchange,
    state: RequestState,
) -> AsyncGenerator[ResponsePiece]:
    """Yield ``pieces`` with Holdfast's headers added to the head.

    Once keep-alives were sent the client has a status of 200 and an event stream, so an error becomes an event in it.
    """
    async for piece in pieces:
        has_begun_stream = exchange.client_response.has_begun_stream
        if has_begun_stream and isinstance(piece, ResponseHead) and piece.status >= FIRST_REFUSAL_STATUS:
            message = f"the provider answered with HTTP {piece.status}"
            yield render_error_event(exchange.api, Verdict("server"), message=message)
            return
        yield add_holdfast_headers(piece, state)
