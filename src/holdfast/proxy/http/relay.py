"""Onward: a request to the provider it was meant for, and what comes back, as it came."""

from __future__ import annotations

from asyncio import get_running_loop
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import lru_cache
from typing import NamedTuple, TypeAlias, cast
from urllib.parse import urljoin, urlsplit

import httpx2
from msgspec import Struct

from holdfast.engine.upstream.connections import ANSWER_BEGAN
from holdfast.engine.upstream.redact import find_secrets
from holdfast.engine.upstream.upstream import Reply, UpstreamRequest
from holdfast.errors import UpstreamError
from holdfast.proxy.http.headers import HeaderPair, filter_response_headers, has_readable_encoding, headers_to_dict

_LOCATION = b"location"
_DEFAULT_PORTS = {"http": 80, "https": 443}

Headers: TypeAlias = Sequence[tuple[bytes, bytes]]
MAX_CACHED_URLS = 64
"""[H] Addresses that are read once: a client asks a handful."""
QUICK_FAILURE_SECONDS = 2.0
"""[H] Seconds in which a connection that had ended shows it: a provider that takes longer was at work."""
_RAW_BETA_HEADER = b"anthropic-beta"
_CONTENT_ENCODING = "content-encoding"
_FRAMING_HEADERS = frozenset({b"host", b"content-length", b"transfer-encoding"})
"""What says where a request goes, and how long its body is."""
_CONNECT_STEP, _SEND_STEP = "connection.connect_tcp.started", "http11.send_request_headers.started"


class ResponseHead(Struct, frozen=True):
    """Status and headers of an answer."""

    status: int
    headers: list[tuple[bytes, bytes]]


ResponsePiece: TypeAlias = ResponseHead | bytes
"""What a client is sent: the head once, then the body in pieces."""


class UpstreamRelay:
    """The upstream of one request: its own address and headers, over connections that all requests share.

    With a ``body`` of its own that one goes out, whatever is asked of it.
    """

    def __init__(
        self, client: httpx2.AsyncClient, url: str, headers: Headers, method: str = "POST", body: bytes | None = None
    ) -> None:
        self.client, self.url, self.headers, self.method, self.body = client, url, headers, method, body

    def with_body(self, body: bytes) -> UpstreamRelay:
        """Return the same with ``body`` as its own."""
        return UpstreamRelay(self.client, self.url, self.headers, self.method, body)

    def send(self, upstream_request: UpstreamRequest) -> AbstractAsyncContextManager[Reply]:
        """Return the reply to ``upstream_request`` as it comes; ``UpstreamError`` of kind ``network`` where none
        does.
        """
        return self._open_reply(
            upstream_request.body,
            _add_beta_features(self.headers, upstream_request.headers.get(_RAW_BETA_HEADER.decode(), "")),
        )

    async def relay(
        self, body: bytes | AsyncIterable[bytes], *, as_it_came: bool = False
    ) -> AsyncGenerator[ResponsePiece]:
        """Yield what answers ``body``, packed or not ``as_it_came``; ``UpstreamError`` where nothing does."""
        async with self._open_reply(body, self.headers, as_it_came=as_it_came) as reply:
            yield make_response_head(reply.status, reply.raw_headers, keeps_encoding=as_it_came)
            async for chunk in reply.chunks:
                yield chunk

    @asynccontextmanager
    async def _open_reply(
        self, body: bytes | AsyncIterable[bytes], headers: Headers, *, as_it_came: bool = False
    ) -> AsyncIterator[Reply]:
        """Return what answers ``body``, open as long as the block lasts; packed or not ``as_it_came``.

        ``UpstreamError`` of kind ``network`` where none comes, or where it breaks off in the block.
        """
        try:
            answer = await self._send_with_retry(body, headers)
            try:
                raw = rewrite_redirects(answer.status_code, answer.headers.raw, self.url)
                reply_headers = headers_to_dict(raw)
                is_read = _CONTENT_ENCODING in reply_headers and has_readable_encoding(raw) and not as_it_came
                chunks = answer.aiter_bytes() if is_read else aiter(cast("httpx2.AsyncByteStream", answer.stream))
                yield Reply(answer.status_code, reply_headers, chunks, raw, _find_relay_secrets(headers, self.url))
            finally:
                await answer.aclose()
        except (httpx2.HTTPError, httpx2.InvalidURL, httpx2.StreamError, UnicodeError) as error:
            raise _make_unreached_error(self.url, error) from error

    async def _send_with_retry(self, body: bytes | AsyncIterable[bytes], headers: Headers) -> httpx2.Response:
        """Return the response, of which the head is there; a request that met the end of a kept connection goes again.

        A provider may end one that lay idle while the request is on its way to it, which shows at once. It goes again
        once: a provider that fails over the request itself ends every connection that it comes on. Where an answer has
        begun it does not go again: the provider has taken it.
        """
        way, began, body = _ConnectionTrace(), get_running_loop().time(), body if self.body is None else self.body
        try:
            return await self._send_once(body, headers, way)
        except (httpx2.RemoteProtocolError, httpx2.ReadError, httpx2.WriteError):
            is_at_once = get_running_loop().time() - began < QUICK_FAILURE_SECONDS
            if not (way.is_kept and isinstance(body, bytes) and is_at_once) or ANSWER_BEGAN in way.request.extensions:
                raise
        return await self._send_once(body, headers, _ConnectionTrace())

    async def _send_once(
        self, body: bytes | AsyncIterable[bytes], headers: Headers, way: _ConnectionTrace
    ) -> httpx2.Response:
        """Return the response to ``body``; ``way`` notes the connection that it goes out on."""
        way.request = request = build_http_request(self.method, _parse_url(self.url), headers, body)
        request.extensions["trace"] = way.note_step
        return await self.client.send(request, stream=True)


class _ConnectionTrace:
    """The connection that a request went out on."""

    request: httpx2.Request

    def __init__(self) -> None:
        self.is_kept = False
        """Whether one was taken that had been kept."""
        self._is_new = False

    async def note_step(self, step: str, _about: Mapping[str, object]) -> None:
        """Note a step of the request, by the names that httpcore gives them; behind its head none is asked for."""
        self._is_new |= step == _CONNECT_STEP
        if step == _SEND_STEP:
            self.is_kept = not self._is_new
            self.request.extensions.pop("trace", None)


@lru_cache(MAX_CACHED_URLS)
def _parse_url(url: str) -> httpx2.URL:
    return httpx2.URL(url)


def build_http_request(
    method: str, url: httpx2.URL, headers: Headers, body: bytes | AsyncIterable[bytes]
) -> httpx2.Request:
    """Return a request whose headers are ``headers``, between those that the connection and the body give it.

    The HTTP client makes the same of ``content``, and reads the headers some ten times for it.
    """
    if not (isinstance(body, bytes) and body and _FRAMING_HEADERS.isdisjoint([name.lower() for name, _ in headers])):
        return httpx2.Request(method, url, headers=[*headers], content=body)
    all_headers = [(b"Host", url.netloc), *headers, (b"Content-Length", b"%d" % len(body))]
    return httpx2.Request(method, url, headers=all_headers, stream=httpx2.ByteStream(body))


def make_response_head(status: int, headers: Headers, *, keeps_encoding: bool = False) -> ResponseHead:
    """Return the head that a client gets for a provider's."""
    return ResponseHead(status, filter_response_headers(headers, keeps_encoding=keeps_encoding))


def _find_relay_secrets(headers: Headers, url: str) -> tuple[str, ...]:
    """Return what a request goes out with that must stand in no log."""
    return find_secrets([(name.decode("latin-1"), value.decode(errors="replace")) for name, value in headers], url)


def _add_beta_features(headers: Headers, features: str) -> Headers:
    """Return ``headers`` with further features asked for, where there are any."""
    if not features:
        return headers
    feature_values = [value for name, value in headers if name.lower() == _RAW_BETA_HEADER]
    other_headers = [(name, value) for name, value in headers if name.lower() != _RAW_BETA_HEADER]
    return [*other_headers, (_RAW_BETA_HEADER, b",".join([*feature_values, features.encode()]))]


def _make_unreached_error(url: str, error: Exception) -> UpstreamError:
    place = urlsplit(url).netloc
    cause = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return UpstreamError(f"no answer came from {place} ({cause}); check the address and the connection", "network")


# Where a provider sends a client on to: by way of the proxy, where it is to ask the same provider again.
#
# A client takes a place without a host for one of the proxy that it asked: that would ask somebody else there, with a
# key that is not meant for them. And a whole address leads past the proxy.
def rewrite_redirects(status: int, headers: Sequence[HeaderPair], url: str) -> Sequence[HeaderPair]:
    """Return the ``headers`` of what ``url`` answers; one that sends on to the same server names it in our own way.

    To another server, or from TLS to none, a client sends no key by itself: such a place stays as it is.
    """
    if not 300 <= status < 400:
        return headers
    return [(name, _rewrite_location(value, url) if name.lower() == _LOCATION else value) for name, value in headers]


def _rewrite_location(place: bytes, url: str) -> bytes:
    try:
        whole = urljoin(url, place.decode("ascii")).partition("#")[0]
        here, there = _parse_server(url), _parse_server(whole)
    except ValueError:
        return place
    is_upgrade = (here, there) == (("http", here.host, 80), ("https", here.host, 443))
    return f"/u/{whole}".encode() if here == there or is_upgrade else place


class _ServerAddress(NamedTuple):
    scheme: str
    host: str
    port: int


def _parse_server(url: str) -> _ServerAddress:
    """Return who is asked by ``url``; ``ValueError`` where that is nobody, or somebody is named as who asks."""
    parts = urlsplit(url)
    if parts.scheme not in _DEFAULT_PORTS or not parts.hostname or "@" in parts.netloc:
        raise ValueError(url)
    return _ServerAddress(parts.scheme, parts.hostname, parts.port or _DEFAULT_PORTS[parts.scheme])
