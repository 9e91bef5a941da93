"""An incoming request: address, headers, body, and the client that may leave at any time."""

from __future__ import annotations

from asyncio import get_running_loop, timeout_at
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping, Sequence
from typing import Any, TypeAlias

from anyio import Event, move_on_after
from msgspec import Struct

from holdfast.proxy.http.decompress import BadBody, BodyTooLarge
from holdfast.proxy.http.headers import HeaderPair, headers_to_dict
from holdfast.proxy.http.routes import Route, parse_route

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]

CLIENT_TIMEOUT = 60.0
"""Seconds that a client may be silent in the middle of its request; the usual value of web servers."""
DEADLINE_STEP = 1.0
"""Seconds by which that may be shorter. Moving a deadline creates a timer, so it is not moved for every piece."""
LINGER_SECONDS = 5.0
"""Seconds that the end of an answer waits for the rest of an unwanted body, as web servers linger."""


class ClientLeft(Exception):
    """The client closed its connection."""


def is_client_left_error(error: BaseException | None) -> bool:
    """Return whether ``error`` was caused by the client leaving."""
    while error is not None and not isinstance(error, ClientLeft):
        error = error.__cause__ or error.__context__
    return error is not None


class BodyStalled(BadBody):
    """The rest of a body did not come in time."""

    def __init__(self) -> None:
        super().__init__(f"no more of the body came for {CLIENT_TIMEOUT:g} s; send the request again", 408)


class ClientRequest(Struct, frozen=True):
    """Address and headers of a request."""

    method: str
    route: Route
    raw_headers: Sequence[HeaderPair]
    headers: dict[str, str]
    """Headers by name in lower case."""

    @property
    def closes_connection(self) -> bool:
        """Whether the client wants the connection to end with the answer."""
        return "close" in self.headers.get("connection", "").lower()

    @classmethod
    def from_scope(cls, scope: Scope) -> ClientRequest:
        """Build a request from an ASGI ``scope``."""
        method = scope["method"]
        headers = headers_to_dict(scope["headers"])
        # The path as received, because a decoded one cannot be passed on byte for byte.
        path = scope.get("raw_path") or scope["path"].encode()
        query = scope["query_string"]
        parsed_route = parse_route(method, path.decode("latin-1"), query.decode("latin-1"), headers)
        return cls(method, parsed_route, scope["headers"], headers)


class UploadProgress:
    """How far a request's body was taken from its client, while it is forwarded as it comes."""

    def __init__(self) -> None:
        self.is_started = False
        """Whether reading began; it does not if the server cannot be reached."""
        self.unwanted = Event()
        """Set once nobody reads the body any more: at its end, or when the server refused it."""
        self.complete = Event()
        """Set once the whole body was received, including what was thrown away."""


async def wait_for_body_end(progress: UploadProgress) -> None:
    """Wait until the whole body was received, at most ``LINGER_SECONDS``.

    Closing a connection with unread bytes makes the operating system reset it, and the client may never see the answer
    that was already on its way.
    """
    if not progress.is_started:
        progress.unwanted.set()
    with move_on_after(LINGER_SECONDS):
        await progress.complete.wait()


class BodyReceiver:
    """Receives a request and knows when its body is complete. After that only the client's leaving can come."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self.is_complete = False

    async def __call__(self) -> MutableMapping[str, Any]:
        """Return the next ASGI message."""
        message = await self._receive()
        self.is_complete = not message.get("more_body", False)
        return message


async def discard_body_rest(receive: BodyReceiver) -> None:
    """Receive the rest of a body that nobody wants, for the reason that ``wait_for_body_end`` gives."""
    with move_on_after(LINGER_SECONDS):
        while not receive.is_complete:
            await receive()


async def iter_body_pieces(receive: Receive, progress: UploadProgress) -> AsyncIterator[bytes]:
    """Yield the body as it comes.

    Raises ``ClientLeft`` if the client leaves before its end, ``BodyStalled`` if it is silent for too long.
    """
    has_more = progress.is_started = True
    try:
        while has_more:
            piece = b""
            with move_on_after(CLIENT_TIMEOUT) as waiting:
                piece, has_more = _parse_body_message(await receive())
            if waiting.cancelled_caught:
                raise BodyStalled
            if not has_more:
                progress.complete.set()
            if piece:
                yield piece
    except GeneratorExit:
        # The server refused the request and reads no more of it.
        progress.unwanted.set()
        raise
    progress.unwanted.set()


def _parse_body_message(message: Mapping[str, Any]) -> tuple[bytes, bool]:
    """Return the bytes in ``message`` and whether more follow; raise ``ClientLeft`` if the client left."""
    if message["type"] == "http.disconnect":
        raise ClientLeft
    return message.get("body", b""), message.get("more_body", False)


async def watch_client(receive: Receive, is_ended: Callable[[], bool], progress: UploadProgress | None = None) -> None:
    """Raise ``ClientLeft`` if the client leaves before ``is_ended`` returns true.

    Without ``progress`` the body was read completely. With it somebody else reads the body, and this function throws
    away the rest once they stop: many clients read no answer before they have sent everything.
    """
    if progress is not None:
        await progress.unwanted.wait()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            break
        if progress is not None and not message.get("more_body"):
            progress.complete.set()
    if not is_ended():
        raise ClientLeft


async def read_whole_body(receive: Receive, max_bytes: int, content_length: str = "") -> bytes:
    """Return the whole body.

    Raises ``BodyTooLarge`` as soon as it exceeds ``max_bytes`` (by ``content_length`` already, if the client sent one),
    ``ClientLeft`` if the client leaves, ``BodyStalled`` if it is silent for too long.
    """
    chunks: list[bytes] = []
    size = 0
    has_more = True
    # Refused at once if the client says how long its body is: a client that is told late has sent everything for
    # nothing.
    if content_length.isdecimal() and int(content_length[:18]) > max_bytes:
        raise BodyTooLarge(max_bytes)
    clock = get_running_loop().time
    deadline = clock() + CLIENT_TIMEOUT
    try:
        # The time limit is for silence, not for the whole body: a slow upload that goes on is fine.
        async with timeout_at(deadline) as waiting:
            while has_more:
                piece, has_more = _parse_body_message(await receive())
                size += len(piece)
                if size > max_bytes:
                    raise BodyTooLarge(max_bytes)
                chunks.append(piece)
                new_deadline = clock() + CLIENT_TIMEOUT
                if new_deadline > deadline + DEADLINE_STEP:
                    deadline = new_deadline
                    waiting.reschedule(deadline)
    except TimeoutError:
        raise BodyStalled from None
    # One piece is returned as it is, because a copy of a large body takes time.
    if len(chunks) == 1:
        return chunks[0]
    return b"".join(chunks)
