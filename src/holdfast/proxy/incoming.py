"""A request as it comes in: its address and headers, its body to the end, and its client leaving before that."""

from __future__ import annotations

from asyncio import get_running_loop, timeout_at
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping, Sequence
from typing import Any, TypeAlias

from anyio import Event, move_on_after
from msgspec import Struct

from holdfast.proxy.headers import Pair, named
from holdfast.proxy.routes import Route, route
from holdfast.proxy.unpacking import BadBody, TooLarge

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]

SILENT = 60.0
"""[H] Seconds that a client may say nothing in the middle of its request: as web servers wait."""
COARSE = 1.0
"""[H] Seconds by which the wait may be shorter: to move a deadline makes a timer, and a body has many pieces."""


class Gone(Exception):
    """The client left."""


def has_left(error: BaseException | None) -> bool:
    """Whether an error came of it that the client left in the middle of its body."""
    while error is not None and not isinstance(error, Gone):
        error = error.__cause__ or error.__context__
    return error is not None


class Stalled(BadBody):
    """The rest of a body does not come."""

    def __init__(self) -> None:
        super().__init__(f"{SILENT:g} s went by without the rest of the body; send the request again", 408)


class Incoming(Struct, frozen=True):
    """What a request says before its body."""

    method: str
    route: Route
    pairs: Sequence[Pair]
    headers: dict[str, str]
    """By their names in lower case."""

    @classmethod
    def of(cls, scope: Scope) -> Incoming:
        """Return what an ASGI ``scope`` says."""
        headers = named(scope["headers"])
        path = scope.get("raw_path") or scope["path"].encode()
        asked = route(scope["method"], path.decode("latin-1"), scope["query_string"].decode("latin-1"), headers)
        return cls(scope["method"], asked, scope["headers"], headers)


async def body_pieces(receive: Receive, heard: Event | None = None) -> AsyncIterator[bytes]:
    """Yield the body as it comes, and set ``heard`` at its end; ``Gone`` where the client leaves before.

    ``Stalled`` where it says nothing for long.
    """
    more = True
    while more:
        piece = b""
        with move_on_after(SILENT) as waiting:
            piece, more = _told(await receive())
        if waiting.cancelled_caught:
            raise Stalled
        if piece:
            yield piece
    if heard is not None:
        heard.set()


def _told(message: Mapping[str, Any]) -> tuple[bytes, bool]:
    """Return what ``message`` brings of the body, and whether more comes; ``Gone`` where the client left."""
    if message["type"] == "http.disconnect":
        raise Gone
    return message.get("body", b""), message.get("more_body", False)


async def watch_client(receive: Receive, is_ended: Callable[[], bool], heard: Event | None = None) -> None:
    """Raise ``Gone`` when the client leaves before the answer ``is_ended``.

    Its body is read to the end, or will be when it is ``heard``.
    """
    if heard is not None:
        await heard.wait()
    while (await receive())["type"] != "http.disconnect":
        pass
    if not is_ended():
        raise Gone


async def whole_body(receive: Receive, most: int, announced: str = "") -> bytes:
    """Return the whole body; ``TooLarge`` as soon as it is over ``most`` bytes, ``Gone`` where the client leaves.

    ``Stalled`` where it says nothing for long. ``announced`` is how long it says it will be.
    """
    held, size, more = [], 0, True
    if announced.isdecimal() and int(announced[:18]) > most:
        raise TooLarge(most)
    clock = get_running_loop().time
    until = clock() + SILENT
    try:
        async with timeout_at(until) as waiting:
            while more:
                piece, more = _told(await receive())
                size += len(piece)
                if size > most:
                    raise TooLarge(most)
                held.append(piece)
                if clock() + SILENT > until + COARSE:
                    until = clock() + SILENT
                    waiting.reschedule(until)
    except TimeoutError:
        raise Stalled from None
    return held[0] if len(held) == 1 else b"".join(held)
