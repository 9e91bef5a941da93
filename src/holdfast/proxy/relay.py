"""Onward: a request to the provider it was meant for, and what comes back, as it came."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import lru_cache
from typing import TypeAlias
from urllib.parse import urlsplit

import httpx2
from anyio import current_time
from msgspec import Struct

from holdfast.errors import UpstreamError
from holdfast.proxy.headers import downward, is_unpacked, named
from holdfast.runtime.redacting import secrets
from holdfast.runtime.upstream import Reply, Sent

Headers: TypeAlias = Sequence[tuple[bytes, bytes]]
PLACES = 64
"""[H] Addresses that are read once: a client asks a handful."""
AT_ONCE = 2.0
"""[H] Seconds in which a connection that had ended shows it: a provider that takes longer was at work."""
_FEATURES = b"anthropic-beta"
_PACKED = "content-encoding"
_CONNECTS, _SENDS = "connection.connect_tcp.started", "http11.send_request_headers.started"


class Head(Struct, frozen=True):
    """Status and headers of an answer."""

    status: int
    headers: list[tuple[bytes, bytes]]


Piece: TypeAlias = Head | bytes
"""What a client is sent: the head once, then the body in pieces."""


class Onward:
    """The upstream of one request: its own address and headers, over connections that all requests share."""

    def __init__(self, client: httpx2.AsyncClient, url: str, headers: Headers, method: str = "POST") -> None:
        self.client, self.url, self.headers, self.method = client, url, headers, method

    @asynccontextmanager
    async def send(self, sent: Sent) -> AsyncIterator[Reply]:
        """Return the reply to ``sent`` as it comes; ``UpstreamError`` of kind ``network`` where none does."""
        async with self.response(sent.body, _with(self.headers, sent.headers.get(_FEATURES.decode(), ""))) as reply:
            keys = secrets(reply.request.headers.items(), self.url)
            yield Reply(reply.status_code, named(reply.headers.raw), _body(reply), reply.headers.raw, keys)

    async def relay(self, body: bytes | AsyncIterable[bytes], *, as_it_came: bool = False) -> AsyncGenerator[Piece]:
        """Yield what answers ``body``, packed or not ``as_it_came``; ``UpstreamError`` where nothing does."""
        async with self.response(body, self.headers) as reply:
            yield head(reply.status_code, reply.headers.raw, as_it_came=as_it_came)
            async for chunk in _body(reply, as_it_came=as_it_came):
                yield chunk

    @asynccontextmanager
    async def response(self, body: bytes | AsyncIterable[bytes], headers: Headers) -> AsyncIterator[httpx2.Response]:
        """Return the response to ``body``, open as long as the block lasts.

        ``UpstreamError`` of kind ``network`` where none comes, or where it breaks off in the block.
        """
        try:
            reply = await self._asked(body, headers)
            try:
                yield reply
            finally:
                await reply.aclose()
        except (httpx2.HTTPError, httpx2.InvalidURL, httpx2.StreamError, UnicodeError) as error:
            raise _unreached(self.url, error) from error

    async def _asked(self, body: bytes | AsyncIterable[bytes], headers: Headers) -> httpx2.Response:
        """Return the response, of which the head is there; a request that met the end of a kept connection goes again.

        A provider may end one that lay idle while the request is on its way to it, which shows at once. It goes again
        once: a provider that fails over the request itself ends every connection that it comes on.
        """
        way, began = _Way(), current_time()
        try:
            return await self._sent(body, headers, way)
        except (httpx2.RemoteProtocolError, httpx2.ReadError, httpx2.WriteError):
            if not (way.is_kept and isinstance(body, bytes) and current_time() - began < AT_ONCE):
                raise
        return await self._sent(body, headers, _Way())

    async def _sent(self, body: bytes | AsyncIterable[bytes], headers: Headers, way: _Way) -> httpx2.Response:
        """Return the response to ``body``; ``way`` notes the connection that it goes out on."""
        told = {"trace": way.noted}
        request = httpx2.Request(self.method, _place(self.url), headers=[*headers], content=body, extensions=told)
        return await self.client.send(request, stream=True)


class _Way:
    """The connection that a request went out on."""

    def __init__(self) -> None:
        self.is_kept = False
        """Whether one was taken that had been kept."""
        self._is_new = False

    async def noted(self, step: str, _about: Mapping[str, object]) -> None:
        """Note a step of the request, by the names that httpcore gives them."""
        self._is_new |= step == _CONNECTS
        self.is_kept |= step == _SENDS and not self._is_new


@lru_cache(PLACES)
def _place(url: str) -> httpx2.URL:
    return httpx2.URL(url)


def head(status: int, headers: Headers, *, as_it_came: bool = False) -> Head:
    """Return the head that a client gets for a provider's."""
    return Head(status, downward(headers, as_it_came=as_it_came))


def _body(reply: httpx2.Response, *, as_it_came: bool = False) -> AsyncIterator[bytes]:
    """Return the body as it comes, unpacked where it was packed unless ``as_it_came``."""
    is_unread = as_it_came or _PACKED not in reply.headers or not is_unpacked(reply.headers.raw)
    return reply.aiter_raw() if is_unread else reply.aiter_bytes()


def _with(headers: Headers, features: str) -> Headers:
    """Return ``headers`` with further features asked for, where there are any."""
    if not features:
        return headers
    told = [value for name, value in headers if name.lower() == _FEATURES]
    kept = [(name, value) for name, value in headers if name.lower() != _FEATURES]
    return [*kept, (_FEATURES, b",".join([*told, features.encode()]))]


def _unreached(url: str, error: Exception) -> UpstreamError:
    place = urlsplit(url).netloc
    what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return UpstreamError(f"no answer came from {place} ({what}); check the address and the connection", "network")
