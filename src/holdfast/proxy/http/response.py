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

from holdfast.proxy.concurrent import beside
from holdfast.proxy.http.headers import State, ours
from holdfast.proxy.http.relay import Head, Piece
from holdfast.proxy.metrics.health import Ended

Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
EVENTS = (b"content-type", b"text/event-stream")
UNKEPT = (b"cache-control", b"no-cache")
STATUSES = range(200, 600)
"""What an answer may have for a status (RFC 9110, section 15); with any other it is one of a bad gateway."""
_PING = b'event: ping\ndata: {"type": "ping"}\n\n'
_COMMENT = b": keep-alive\n\n"
_BLANK = b"\n\n"
_SIGNS = {"anthropic": _PING, "openai-chat": _COMMENT, "openai-responses": _COMMENT, "gemini": _BLANK}
"""What the clients of an API read over. [M] google-genai 3.4 takes every line that is neither blank nor ``data:`` for
JSON and dies of a comment; a blank line it skips."""


def sign_of(api: str, *, stream: bool) -> bytes:
    """Return the bytes by which a client of ``api`` knows that its answer is still worked on; none without a stream."""
    return _SIGNS.get(api, b"") if stream else b""


def _no() -> bool:
    return False


def _failed() -> Ended:
    return "failed"


def _nothing() -> None:
    return


async def _at_once() -> None:
    return


class Outgoing:
    """The answer to one request, on its way to the client.

    What it asks somebody (``is_wait_ours``, ``if_left``) may hold a whole conversation: it is let go with the last
    time that it could be asked.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self._signing = Lock()
        self.status = 0
        """What the client was told, once it was."""
        self.has_signs = False
        """Whether it was told before there was an answer: a stream of events has begun, to keep it waiting."""
        self.is_answered = False
        """Whether a piece of the answer was sent."""
        self.is_wait_ours: Callable[[], bool] = lambda: True
        """Whether what the client waits for is ours to do, and not its provider's."""
        self.if_left: Callable[[], Ended] = _failed
        """What the request came to if its client leaves now, which some do as soon as they have read the last event."""
        self.when_told: Callable[[], None] = _nothing
        """Called before the last of the answer is sent; a client may ask again as soon as it has that."""
        self.before_end: Callable[[], Awaitable[None]] = _at_once
        """Awaited before the end of the answer is sent, with which its connection may be closed."""
        self._left = inf
        """Bytes that are still to come of a body that says how many it has."""
        self.state: State = "managed"
        """What the client is told was done, where the engine answers."""
        self.session = ""
        """The key of the session that it belongs to, where there is one."""
        self.is_unreached = False
        """Whether no provider answered, which the client is told by us."""
        self.is_ended = False
        """Whether the whole answer was sent."""
        self.first_byte_at: float | None = None
        """When the client was sent the first byte, by the clock of the loop."""

    async def give(self, piece: Piece) -> None:
        """Send ``piece``; a head behind signs of life is not sent again."""
        if not self.is_answered:
            self.is_answered, self.is_wait_ours = True, _no
            if self.has_signs:
                async with self._signing:  # one that is being sent goes before it, and none comes behind it
                    pass
        if isinstance(piece, Head):
            await self._begin(piece)
        elif piece:
            self._left -= len(piece)
            if self._left <= 0:
                self.when_told()
            await self._send({"type": "http.response.body", "body": piece, "more_body": True})

    async def end(self) -> None:
        """Send the end of the body."""
        ended = self.if_left()
        self.is_ended, self.if_left = True, lambda: ended
        self.when_told()
        await self.before_end()
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def keep_alive(self, sign: bytes, patience: float) -> None:
        """Send ``sign``, and again after every ``patience`` seconds of a wait that is ours, until the answer comes."""
        while not self.is_answered:
            if self.is_wait_ours():
                self.has_signs = True
                async with self._signing:
                    await self._begin(Head(200, [EVENTS, UNKEPT, *ours(self.state, self.session)]))
                    await self._send({"type": "http.response.body", "body": sign, "more_body": True})
            await sleep(patience)

    async def _begin(self, head: Head) -> None:
        if not self.status:
            self.status = head.status if head.status in STATUSES else 502
            self._left = next((int(value) for name, value in head.headers if _is_length(name, value)), inf)
            self.first_byte_at = get_running_loop().time()
            await self._send({"type": "http.response.start", "status": self.status, "headers": head.headers})


def _is_length(name: bytes, value: bytes) -> bool:
    """Whether a header tells how many bytes the body has."""
    return name.lower() == b"content-length" and value.isdigit() and len(value) < 19


async def deliver(pieces: AsyncGenerator[Piece], outgoing: Outgoing, sign: bytes, patience: float) -> None:
    """Send ``pieces``, and ``sign`` after every ``patience`` seconds before the first; none where either is nothing.

    All of ``pieces`` is read in the task that calls, and they are over before anything else is, for what they hold was
    taken last; what they raise, or sending does, comes out as it is.
    """
    has_signs = bool(sign) and patience > 0
    with beside(partial(outgoing.keep_alive, sign, patience), patience) if has_signs else nullcontext():
        async with aclosing(pieces):
            async for piece in pieces:
                await outgoing.give(piece)
