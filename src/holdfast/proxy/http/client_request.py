"""A request as it comes in: its address and headers, its body to the end, and its client leaving before that."""

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
"""[H] Seconds that a client may say nothing in the middle of its request: as web servers wait."""
DEADLINE_STEP = 1.0
"""[H] Seconds by which the wait may be shorter: to move a deadline makes a timer, and a body has many pieces."""


LINGER_SECONDS = 5.0
"""[H] Seconds that the end of an answer waits for the rest of a body that nobody wants: as web servers linger."""


class ClientLeft(Exception):
    """The client left."""


def is_client_left_error(error: BaseException | None) -> bool:
    """Whether an error came of it that the client left in the middle of its body."""
    while error is not None and not isinstance(error, ClientLeft):
        error = error.__cause__ or error.__context__
    return error is not None


class BodyStalled(BadBody):
    """The rest of a body does not come."""

    def __init__(self) -> None:
        super().__init__(f"{CLIENT_TIMEOUT:g} s went by without the rest of the body; send the request again", 408)


class ClientRequest(Struct, frozen=True):
    """What a request says before its body."""

    method: str
    route: Route
    raw_headers: Sequence[HeaderPair]
    headers: dict[str, str]
    """By their names in lower case."""

    @property
    def closes_connection(self) -> bool:
        """Whether the connection ends with the answer, as the client wants it."""
        return "close" in self.headers.get("connection", "").lower()

    @classmethod
    def from_scope(cls, scope: Scope) -> ClientRequest:
        """Return what an ASGI ``scope`` says."""
        headers = headers_to_dict(scope["headers"])
        path = scope.get("raw_path") or scope["path"].encode()
        parsed_route = parse_route(
            scope["method"], path.decode("latin-1"), scope["query_string"].decode("latin-1"), headers
        )
        return cls(scope["method"], parsed_route, scope["headers"], headers)


class UploadProgress:
    """How far the body of a request has been taken from its client, where it is sent on while it comes in."""

    def __init__(self) -> None:
        self.is_started = False
        """Whether somebody began to take it; where its server cannot be reached nobody does."""
        self.unwanted = Event()
        """Set when nobody asks for the body any more: at its end, or when its server has refused it."""
        self.complete = Event()
        """Set when all of the body was taken, also what was thrown away."""


async def wait_for_body_end(progress: UploadProgress) -> None:
    """Wait until all of a body was taken from its client, or it takes too long.

    A connection that is closed with something unread takes along what its client has not read yet, so the client would
    see a connection that broke and no answer.
    """
    if not progress.is_started:
        progress.unwanted.set()
    with move_on_after(LINGER_SECONDS):
        await progress.complete.wait()


class BodyReceiver:
    """Receives what a client sends, and knows when that was all of its body: behind it only its leaving comes."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self.is_complete = False

    async def __call__(self) -> MutableMapping[str, Any]:
        """Return the next message."""
        message = await self._receive()
        self.is_complete = not message.get("more_body", False)
        return message


async def discard_body_rest(receive: BodyReceiver) -> None:
    """Take the rest of a body that nobody wants, for the same reason, where nobody else takes it."""
    with move_on_after(LINGER_SECONDS):
        while not receive.is_complete:
            await receive()


async def iter_body_pieces(receive: Receive, progress: UploadProgress) -> AsyncIterator[bytes]:
    """Yield the body as it comes; ``ClientLeft`` where the client leaves before its end.

    ``BodyStalled`` where it says nothing for long.
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
    except GeneratorExit:  # its server has refused it
        progress.unwanted.set()
        raise
    progress.unwanted.set()


def _parse_body_message(message: Mapping[str, Any]) -> tuple[bytes, bool]:
    """Return what ``message`` brings of the body, and whether more comes; ``ClientLeft`` where the client left."""
    if message["type"] == "http.disconnect":
        raise ClientLeft
    return message.get("body", b""), message.get("more_body", False)


async def watch_client(receive: Receive, is_ended: Callable[[], bool], progress: UploadProgress | None = None) -> None:
    """Raise ``ClientLeft`` when the client leaves before the answer ``is_ended``.

    Its body was read to the end. With ``progress`` somebody else reads it, and what they no longer want is thrown away:
    many clients read no answer before they have sent everything.
    """
    if progress is not None:
        await progress.unwanted.wait()
    while (message := await receive())["type"] != "http.disconnect":
        if progress is not None and not message.get("more_body"):
            progress.complete.set()
    if not is_ended():
        raise ClientLeft


async def read_whole_body(receive: Receive, max_bytes: int, content_length: str = "") -> bytes:
    """Return the whole body; ``BodyTooLarge`` as soon as it is over ``max_bytes`` bytes, ``ClientLeft`` where the
    client leaves.

    ``BodyStalled`` where it says nothing for long. ``content_length`` is how long it says it will be.
    """
    chunks, size, has_more = [], 0, True
    if content_length.isdecimal() and int(content_length[:18]) > max_bytes:
        raise BodyTooLarge(max_bytes)
    clock = get_running_loop().time
    until = clock() + CLIENT_TIMEOUT
    try:
        async with timeout_at(until) as waiting:
            while has_more:
                piece, has_more = _parse_body_message(await receive())
                size += len(piece)
                if size > max_bytes:
                    raise BodyTooLarge(max_bytes)
                chunks.append(piece)
                if clock() + CLIENT_TIMEOUT > until + DEADLINE_STEP:
                    until = clock() + CLIENT_TIMEOUT
                    waiting.reschedule(until)
    except TimeoutError:
        raise BodyStalled from None
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)
