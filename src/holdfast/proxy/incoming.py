"""A request as it comes in: its address and headers, its body to the end, and its client leaving before that."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping, Sequence
from typing import Any, TypeAlias

from anyio import Event
from msgspec import Struct

from holdfast.proxy.bodies import TooLarge
from holdfast.proxy.headers import Pair, named
from holdfast.proxy.routes import Route, route

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]


class Gone(Exception):
    """The client left."""


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


async def chunks(receive: Receive, heard: Event | None = None) -> AsyncIterator[bytes]:
    """Yield the body as it comes, and set ``heard`` at its end; ``Gone`` where the client leaves before."""
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Gone
        more = message.get("more_body", False)
        if message.get("body"):
            yield message["body"]
    if heard is not None:
        heard.set()


async def left(receive: Receive, is_ended: Callable[[], bool], heard: Event | None = None) -> None:
    """Raise ``Gone`` when the client leaves before the answer ``is_ended``.

    Its body is read to the end, or will be when it is ``heard``.
    """
    if heard is not None:
        await heard.wait()
    while (await receive())["type"] != "http.disconnect":
        pass
    if not is_ended():
        raise Gone


async def received(receive: Receive, most: int, announced: str = "") -> bytes:
    """Return the whole body; ``TooLarge`` as soon as it is over ``most`` bytes, ``Gone`` where the client leaves.

    ``announced`` is how long it says it will be.
    """
    held, size = [], 0
    if announced.isdecimal() and int(announced[:18]) > most:
        raise TooLarge(most)
    async for chunk in chunks(receive):
        size += len(chunk)
        if size > most:
            raise TooLarge(most)
        held.append(chunk)
    return held[0] if len(held) == 1 else b"".join(held)
