"""The answer on its way to a client: a head, a body in pieces, and keep-alives before it.

Keep-alives are sent only until the first piece comes. Until then the client waits for us (a compaction, a retry); after
that the provider's own pace is passed through, including its own pings.
"""

from __future__ import annotations

from asyncio import Lock, get_running_loop, sleep
from collections.abc import AsyncGenerator, Awaitable, Callable, MutableMapping
from contextlib import AbstractContextManager, aclosing, nullcontext
from functools import partial
from math import inf
from typing import Any, TypeAlias

from holdfast.providers.registry import API_SPECS
from holdfast.proxy.http.headers import RequestState, make_holdfast_headers
from holdfast.proxy.http.relay import ResponseHead, ResponsePiece
from holdfast.proxy.metrics.health import RequestOutcome
from holdfast.proxy.run_alongside import run_alongside

Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
EVENT_STREAM_HEADER = (b"content-type", b"text/event-stream")
NO_CACHE_HEADER = (b"cache-control", b"no-cache")
VALID_STATUSES = range(200, 600)
"""Statuses that an answer may have (RFC 9110, section 15). A provider's answer with any other becomes a 502."""


def get_keep_alive_bytes(api: str, *, stream: bool) -> bytes:
    """Return the bytes that tell a client of ``api`` that its answer is still worked on; empty without a stream."""
    if not stream or api not in API_SPECS:
        return b""
    return API_SPECS[api].answers.keep_alive


def _return_false() -> bool:
    return False


def _return_failed() -> RequestOutcome:
    return "failed"


def _do_nothing() -> None:
    return


async def _do_nothing_async() -> None:
    return


class ClientResponse:
    """The answer to one request, on its way to the client.

    Its callbacks (``is_waiting_on_proxy``, ``get_outcome_if_left``) may refer to a whole conversation, so they are
    replaced once they can no longer be called.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self._keep_alive_lock = Lock()
        self.status = 0
        """The status that the client was sent, or 0."""
        self.has_begun_stream = False
        """Whether keep-alives were sent before the answer: the client then has status 200 and the beginning of an event
        stream, so that an error can only be an event in this stream."""
        self.is_answered = False
        """Whether a piece of the answer itself was sent."""
        self.is_waiting_on_proxy: Callable[[], bool] = lambda: True
        """Returns whether the client waits for our work and not for its provider."""
        self.get_outcome_if_left: Callable[[], RequestOutcome] = _return_failed
        """Returns the request's outcome if its client leaves now; some leave as soon as they read the last event."""
        self.on_last_piece: Callable[[], None] = _do_nothing
        """Called before the last piece is sent, since a client may send its next request as soon as it has that."""
        self.before_end: Callable[[], Awaitable[None]] = _do_nothing_async
        """Awaited before the end is sent, with which the connection may be closed."""
        self._bytes_left = inf
        """Bytes still to come of a body with a content-length."""
        self.state: RequestState = "managed"
        """What the client is told was done with its request."""
        self.session_key = ""
        """Key of the session that the request belongs to, if any."""
        self.is_unreached = False
        """Whether no provider answered and the client got an error of ours."""
        self.is_ended = False
        """Whether the whole answer was sent."""
        self.first_byte_at: float | None = None
        """When the first byte was sent, by the clock of the event loop."""

    async def send_piece(self, piece: ResponsePiece) -> None:
        """Send ``piece``; a head is sent only once, so that of an answer after keep-alives is dropped."""
        if not self.is_answered:
            self.is_answered = True
            self.is_waiting_on_proxy = _return_false
            # A keep-alive that is being sent must be complete before the first piece, and no other may follow.
            if self.has_begun_stream:
                async with self._keep_alive_lock:
                    pass
        if isinstance(piece, ResponseHead):
            await self._send_head(piece)
        elif piece:
            self._bytes_left -= len(piece)
            if self._bytes_left <= 0:
                self.on_last_piece()
            await self._send({"type": "http.response.body", "body": piece, "more_body": True})

    async def send_end(self) -> None:
        """Send the end of the body."""
        # The callback may hold a whole conversation; only its result is kept.
        final_state = self.get_outcome_if_left()
        self.is_ended = True
        self.get_outcome_if_left = lambda: final_state
        self.on_last_piece()
        await self.before_end()
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def send_keep_alives(self, keep_alive: bytes, interval: float) -> None:
        """Send ``keep_alive`` now and after every ``interval`` seconds of waiting for us, until the answer comes."""
        while not self.is_answered:
            if self.is_waiting_on_proxy():
                self.has_begun_stream = True
                headers = [
                    EVENT_STREAM_HEADER,
                    NO_CACHE_HEADER,
                    *make_holdfast_headers(self.state, self.session_key),
                ]
                async with self._keep_alive_lock:
                    await self._send_head(ResponseHead(200, headers))
                    await self._send({"type": "http.response.body", "body": keep_alive, "more_body": True})
            await sleep(interval)

    async def _send_head(self, head: ResponseHead) -> None:
        if self.status:
            return
        self.status = 502
        if head.status in VALID_STATUSES:
            self.status = head.status
        for name, value in head.headers:
            if _is_length_header(name, value):
                self._bytes_left = int(value)
                break
        self.first_byte_at = get_running_loop().time()
        await self._send({"type": "http.response.start", "status": self.status, "headers": head.headers})


def _is_length_header(name: bytes, value: bytes) -> bool:
    """Return whether a header is a valid content-length; more than 18 digits are no length of any body."""
    return name.lower() == b"content-length" and value.isdigit() and len(value) < 19


async def deliver_pieces(
    pieces: AsyncGenerator[ResponsePiece],
    client_response: ClientResponse,
    keep_alive: bytes,
    interval: float,
) -> None:
    """Send ``pieces``; until the first one comes, send ``keep_alive`` every ``interval`` seconds (empty or 0: never).

    ``pieces`` is iterated in the calling task and closed before anything else ends, because the resources it holds were
    acquired last. What it raises, or sending raises, is raised unchanged.
    """
    keep_alives: AbstractContextManager[None] = nullcontext()
    if keep_alive and interval > 0:
        keep_alives = run_alongside(partial(client_response.send_keep_alives, keep_alive, interval), interval)
    with keep_alives:
        async with aclosing(pieces):
            async for piece in pieces:
                await client_response.send_piece(piece)
