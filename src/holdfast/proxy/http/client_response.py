"""What a client is sent: a head once, a body in pieces, and signs of life before it.

Of these only until the first piece comes, for until then the wait is ours: a compaction, another try. From there on the
provider's own pace is passed through, its own pings too.
"""

from __future__ import annotations

from asyncio import Lock, get_running_loop, sleep
from collections.abc import AsyncGenerator, Awaitable, Callable, MutableMapping
from contextlib import aclosing, nullcontext
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
"""What an answer may have for a status (RFC 9110, section 15); with any other it is one of a bad gateway."""


def get_keep_alive_bytes(api: str, *, stream: bool) -> bytes:
    """Return the bytes by which a client of ``api`` knows that its answer is still worked on; none without a stream."""
    return API_SPECS[api].answers.keep_alive if stream and api in API_SPECS else b""


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

    Its callbacks (``is_waiting_on_proxy``, ``get_outcome_if_left``) may hold a whole conversation: they are let go
    with the last time that it could be asked.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self._keep_alive_lock = Lock()
        self.status = 0
        """What the client was told, once it was."""
        self.has_keep_alive = False
        """Whether it was told before there was an answer: a stream of events has begun, to keep it waiting."""
        self.is_answered = False
        """Whether a piece of the answer was sent."""
        self.is_waiting_on_proxy: Callable[[], bool] = lambda: True
        """Whether what the client waits for is ours to do, and not its provider's."""
        self.get_outcome_if_left: Callable[[], RequestOutcome] = _return_failed
        """What the request came to if its client leaves now, which some do as soon as they have read the last event."""
        self.on_last_piece: Callable[[], None] = _do_nothing
        """Called before the last of the answer is sent; a client may ask again as soon as it has that."""
        self.before_end: Callable[[], Awaitable[None]] = _do_nothing_async
        """Awaited before the end of the answer is sent, with which its connection may be closed."""
        self._bytes_left = inf
        """Bytes that are still to come of a body that says how many it has."""
        self.state: RequestState = "managed"
        """What the client is told was done, where the engine answers."""
        self.session_key = ""
        """The key of the session that it belongs to, where there is one."""
        self.is_unreached = False
        """Whether no provider answered, which the client is told by us."""
        self.is_ended = False
        """Whether the whole answer was sent."""
        self.first_byte_at: float | None = None
        """When the client was sent the first byte, by the clock of the loop."""

    async def send_piece(self, piece: ResponsePiece) -> None:
        """Send ``piece``; a head behind signs of life is not sent again."""
        if not self.is_answered:
            self.is_answered, self.is_waiting_on_proxy = True, _return_false
            if self.has_keep_alive:
                async with self._keep_alive_lock:  # one that is being sent goes before it, and none comes behind it
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
        final_state = self.get_outcome_if_left()
        self.is_ended, self.get_outcome_if_left = True, lambda: final_state
        self.on_last_piece()
        await self.before_end()
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def send_keep_alives(self, sign: bytes, patience: float) -> None:
        """Send ``sign``, and again after every ``patience`` seconds of a wait that is ours, until the answer comes."""
        while not self.is_answered:
            if self.is_waiting_on_proxy():
                self.has_keep_alive = True
                async with self._keep_alive_lock:
                    await self._send_head(
                        ResponseHead(
                            200,
                            [
                                EVENT_STREAM_HEADER,
                                NO_CACHE_HEADER,
                                *make_holdfast_headers(self.state, self.session_key),
                            ],
                        )
                    )
                    await self._send({"type": "http.response.body", "body": sign, "more_body": True})
            await sleep(patience)

    async def _send_head(self, head: ResponseHead) -> None:
        if not self.status:
            self.status = head.status if head.status in VALID_STATUSES else 502
            self._bytes_left = next((int(value) for name, value in head.headers if _is_length_header(name, value)), inf)
            self.first_byte_at = get_running_loop().time()
            await self._send({"type": "http.response.start", "status": self.status, "headers": head.headers})


def _is_length_header(name: bytes, value: bytes) -> bool:
    """Whether a header tells how many bytes the body has."""
    return name.lower() == b"content-length" and value.isdigit() and len(value) < 19


async def deliver_pieces(
    pieces: AsyncGenerator[ResponsePiece], client_response: ClientResponse, keep_alive: bytes, interval: float
) -> None:
    """Send ``pieces``, and ``keep_alive`` after every ``interval`` seconds before the first; none where either is
    nothing.

    All of ``pieces`` is read in the task that calls, and they are over before anything else is, for what they hold was
    taken last; what they raise, or sending does, comes out as it is.
    """
    has_signs = bool(keep_alive) and interval > 0
    with (
        run_alongside(partial(client_response.send_keep_alives, keep_alive, interval), interval)
        if has_signs
        else nullcontext()
    ):
        async with aclosing(pieces):
            async for piece in pieces:
                await client_response.send_piece(piece)
