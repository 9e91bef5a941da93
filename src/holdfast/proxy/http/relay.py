"""Send a request to its provider, and relay the answer as it comes."""

from __future__ import annotations

from asyncio import CancelledError, get_running_loop
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, cast
from urllib.parse import urljoin, urlsplit

import httpx2
from msgspec import Struct
from msgspec.structs import replace

from holdfast.engine.upstream.ask_server import ask_over_http
from holdfast.engine.upstream.connections import ANSWER_BEGAN
from holdfast.engine.upstream.redact import find_secrets
from holdfast.engine.upstream.upstream import Reply, UpstreamRequest
from holdfast.errors import UpstreamError
from holdfast.proxy.http.headers import HeaderPair, filter_response_headers, has_readable_encoding, headers_to_dict

if TYPE_CHECKING:
    from holdfast.telemetry.model_call import ModelCall
    from holdfast.telemetry.telemetry import Telemetry

_LOCATION = b"location"
_DEFAULT_PORTS = {"http": 80, "https": 443}

Headers: TypeAlias = Sequence[tuple[bytes, bytes]]
MAX_CACHED_URLS = 64
"""Parsed addresses that are cached; a client uses a handful."""
QUICK_FAILURE_SECONDS = 2.0
"""Seconds within which a kept connection that the provider had closed shows it.

A provider that fails later was working on the request, and sending it again might do the work twice. Chosen by
judgement.
"""
_RAW_BETA_HEADER = b"anthropic-beta"
_RAW_VERSION_HEADER = b"anthropic-version"
_CONTENT_ENCODING = "content-encoding"
_TRACE_HEADERS = frozenset({b"traceparent", b"tracestate"})
"""Headers that say which span of a trace a request belongs to."""
_FRAMING_HEADERS = frozenset({b"host", b"content-length", b"transfer-encoding"})
"""Headers about the address of a request and the length of its body."""
_CONNECT_STEP = "connection.connect_tcp.started"
"""Name that httpcore gives to the step of opening a connection."""
_SEND_STEP = "http11.send_request_headers.started"
"""Name that httpcore gives to the step of sending the head of a request."""


class ResponseHead(Struct, frozen=True):
    """Status and headers of an answer."""

    status: int
    headers: list[tuple[bytes, bytes]]


ResponsePiece: TypeAlias = ResponseHead | bytes
"""A piece of an answer: the head once, then the body in pieces."""


class RelayedCall(Struct, frozen=True):
    """What is known of a request to a model that is relayed, for its span."""

    telemetry: Telemetry
    api: str
    provider: str
    model: str = ""

    def start_span(self, url: str) -> ModelCall:
        """Start the span of the request to ``url``."""
        return self.telemetry.start_call(api=self.api, model=self.model, provider=self.provider, address=url)


class UpstreamRelay:
    """The upstream of one request, with its own address and headers, over connections that all requests share.

    With a ``body`` of its own it always sends that one, whatever body it is asked to send. ``relayed_call`` describes
    what ``relay`` sends, if that has to have a span; requests of ``send`` have those of the engine.
    """

    def __init__(
        self,
        client: httpx2.AsyncClient,
        url: str,
        headers: Headers,
        method: str = "POST",
        body: bytes | None = None,
        relayed_call: RelayedCall | None = None,
    ) -> None:
        self.client = client
        self.url = url
        self.headers = headers
        self.method = method
        self.body = body
        self.relayed_call = relayed_call

    @property
    def betas(self) -> tuple[str, ...]:
        """The beta features that the client asks for."""
        features: list[str] = []
        for name, value in self.headers:
            if name.lower() == _RAW_BETA_HEADER:
                features += [feature.strip() for feature in value.decode("latin-1").split(",")]
        return tuple([feature for feature in features if feature])

    @property
    def version(self) -> str:
        """The version of the API that the client asks for, or an empty string."""
        for name, value in self.headers:
            if name.lower() == _RAW_VERSION_HEADER:
                return value.decode("latin-1").strip()
        return ""

    def with_body(self, body: bytes) -> UpstreamRelay:
        """Return the same upstream, but one that always sends ``body``."""
        return UpstreamRelay(self.client, self.url, self.headers, self.method, body, self.relayed_call)

    def note_model(self, model: str) -> None:
        """Note the model that the body names, for the span of a request that is relayed."""
        if self.relayed_call is not None:
            self.relayed_call = replace(self.relayed_call, model=model or self.relayed_call.model)

    def send(self, upstream_request: UpstreamRequest) -> AbstractAsyncContextManager[Reply]:
        """Open the reply to ``upstream_request``; raise ``UpstreamError`` of kind ``network`` without one."""
        beta_features = upstream_request.headers.get(_RAW_BETA_HEADER.decode(), "")
        headers = _add_beta_features(self.headers, beta_features)
        if upstream_request.refused_betas:
            headers = _remove_beta_features(headers, upstream_request.refused_betas)
        headers = _replace_trace_headers(headers, upstream_request.headers)
        return self._open_reply(upstream_request.body, headers)

    async def ask_server(self, method: str, url: str, body: bytes, seconds: float) -> bytes:
        """Return the server's answer to a plain question, asked without the client's headers; empty if it has none."""
        return await ask_over_http(self.client, method, url, body, seconds)

    async def relay(
        self,
        body: bytes | AsyncIterable[bytes],
        *,
        as_it_came: bool = False,
    ) -> AsyncGenerator[ResponsePiece]:
        """Yield the answer to ``body``, decompressed unless ``as_it_came``; raise ``UpstreamError`` if none comes."""
        call = None
        headers = self.headers
        if self.relayed_call is not None:
            call = self.relayed_call.start_span(self.url)
            headers = _replace_trace_headers(headers, call.make_headers())
        try:
            async with self._open_reply(body, headers, as_it_came=as_it_came) as reply:
                if call is not None and not reply.is_success:
                    call.set_error(str(reply.status))
                yield make_response_head(reply.status, reply.raw_headers, keeps_encoding=as_it_came)
                async for chunk in reply.chunks:
                    yield chunk
        except UpstreamError as error:
            if call is not None:
                call.set_error(error.kind)
            raise
        except (GeneratorExit, CancelledError):
            if call is not None:
                call.set_error("cancelled")
            raise
        finally:
            if call is not None:
                call.end()

    @asynccontextmanager
    async def _open_reply(
        self,
        body: bytes | AsyncIterable[bytes],
        headers: Headers,
        *,
        as_it_came: bool = False,
    ) -> AsyncIterator[Reply]:
        """Open the reply to ``body`` for the duration of the block; with ``as_it_came`` it is not decompressed.

        Raises ``UpstreamError`` of kind ``network`` if there is no reply, or if it breaks off in the block.
        """
        try:
            answer = await self._send_with_retry(body, headers)
            try:
                raw = rewrite_redirects(answer.status_code, answer.headers.raw, self.url)
                reply_headers = headers_to_dict(raw)
                is_compressed = _CONTENT_ENCODING in reply_headers
                is_decompressed = is_compressed and has_readable_encoding(raw) and not as_it_came
                chunks: AsyncIterator[bytes]
                # Without httpx2's decoders in between, a piece is passed on as it arrived.
                if is_decompressed:
                    chunks = answer.aiter_bytes()
                else:
                    chunks = aiter(cast("httpx2.AsyncByteStream", answer.stream))
                yield Reply(
                    answer.status_code,
                    reply_headers,
                    chunks,
                    raw,
                    _find_relay_secrets(headers, self.url),
                )
            finally:
                await answer.aclose()
        except (httpx2.HTTPError, httpx2.InvalidURL, httpx2.StreamError, UnicodeError) as error:
            raise _make_unreached_error(self.url, error) from error

    async def _send_with_retry(self, body: bytes | AsyncIterable[bytes], headers: Headers) -> httpx2.Response:
        """Send a request and return the response once its head is here.

        A provider may close an idle connection just while we send on it. Such a request is sent once more, if all of
        these hold: it was sent on a kept connection, it failed at once, the body can be sent again, and no answer had
        begun. Only once: if the request itself makes the provider fail, the provider closes the new connection too.
        """
        if self.body is not None:
            body = self.body
        trace = _ConnectionTrace()
        started_at = get_running_loop().time()
        try:
            return await self._send_once(body, headers, trace)
        except (httpx2.RemoteProtocolError, httpx2.ReadError, httpx2.WriteError):
            is_quick_failure = get_running_loop().time() - started_at < QUICK_FAILURE_SECONDS
            can_send_again = trace.is_kept and isinstance(body, bytes) and is_quick_failure
            if not can_send_again or ANSWER_BEGAN in trace.request.extensions:
                raise
        return await self._send_once(body, headers, _ConnectionTrace())

    async def _send_once(
        self,
        body: bytes | AsyncIterable[bytes],
        headers: Headers,
        trace: _ConnectionTrace,
    ) -> httpx2.Response:
        """Send a request; ``trace`` notes whether its connection is new."""
        trace.request = request = build_http_request(self.method, _parse_url(self.url), headers, body)
        request.extensions["trace"] = trace.note_step
        return await self.client.send(request, stream=True)


class _ConnectionTrace:
    """Notes whether a request was sent on a new connection or a kept one."""

    request: httpx2.Request

    def __init__(self) -> None:
        self.is_kept = False
        """Whether the connection had been used before."""
        self._is_new = False

    async def note_step(self, step: str, _about: Mapping[str, object]) -> None:
        """Note a step of the request, by httpcore's name; once the head is sent no further steps are asked for."""
        self._is_new |= step == _CONNECT_STEP
        if step == _SEND_STEP:
            self.is_kept = not self._is_new
            self.request.extensions.pop("trace", None)


@lru_cache(MAX_CACHED_URLS)
def _parse_url(url: str) -> httpx2.URL:
    return httpx2.URL(url)


def build_http_request(
    method: str,
    url: httpx2.URL,
    headers: Headers,
    body: bytes | AsyncIterable[bytes],
) -> httpx2.Request:
    """Build a request with exactly ``headers``, between the host and the content-length.

    httpx2 would build the same, but it reads the headers some ten times to do so.
    """
    names = {name.lower() for name, _ in headers}
    has_framing_headers = not _FRAMING_HEADERS.isdisjoint(names)
    if not isinstance(body, bytes) or not body or has_framing_headers:
        return httpx2.Request(method, url, headers=[*headers], content=body)
    all_headers = [(b"Host", url.netloc), *headers, (b"Content-Length", b"%d" % len(body))]
    return httpx2.Request(method, url, headers=all_headers, stream=httpx2.ByteStream(body))


def make_response_head(status: int, headers: Headers, *, keeps_encoding: bool = False) -> ResponseHead:
    """Return the head for the client of a provider's answer with that ``status`` and ``headers``."""
    return ResponseHead(status, filter_response_headers(headers, keeps_encoding=keeps_encoding))


def _find_relay_secrets(headers: Headers, url: str) -> tuple[str, ...]:
    """Return the secrets in a request's headers and address, which no log may contain."""
    text_headers: list[tuple[str, str]] = []
    for name, value in headers:
        text_headers.append((name.decode("latin-1"), value.decode(errors="replace")))
    return find_secrets(text_headers, url)


def _add_beta_features(headers: Headers, features: str) -> Headers:
    """Return ``headers`` with beta ``features`` added to those that the client asked for."""
    if not features:
        return headers
    feature_values: list[bytes] = []
    other_headers: list[HeaderPair] = []
    for name, value in headers:
        if name.lower() == _RAW_BETA_HEADER:
            feature_values.append(value)
        else:
            other_headers.append((name, value))
    feature_values.append(features.encode())
    return [*other_headers, (_RAW_BETA_HEADER, b",".join(feature_values))]


def _remove_beta_features(headers: Headers, refused: Sequence[str]) -> Headers:
    """Return ``headers`` without the beta features that the server ``refused``; a header without any left goes."""
    kept_headers: list[HeaderPair] = []
    for name, value in headers:
        if name.lower() != _RAW_BETA_HEADER:
            kept_headers.append((name, value))
            continue
        features = [feature.strip() for feature in value.decode("latin-1").split(",")]
        kept_features = [feature for feature in features if feature and feature not in refused]
        if kept_features:
            kept_headers.append((name, ",".join(kept_features).encode("latin-1")))
    return kept_headers


def _replace_trace_headers(headers: Headers, trace_headers: Mapping[str, str]) -> Headers:
    """Return ``headers`` with those of ``trace_headers`` that name a span, in place of the client's own."""
    own_headers = [(name.encode(), value.encode()) for name, value in trace_headers.items()]
    own_headers = [(name, value) for name, value in own_headers if name in _TRACE_HEADERS]
    if not own_headers:
        return headers
    return [*[header for header in headers if header[0].lower() not in _TRACE_HEADERS], *own_headers]


def _make_unreached_error(url: str, error: Exception) -> UpstreamError:
    server = urlsplit(url).netloc
    cause = type(error).__name__
    if str(error):
        cause = f"{cause}: {error}"
    return UpstreamError(f"no answer came from {server} ({cause}); check the address and the connection", "network")


# Redirects. A client resolves a location without a host against the address of the proxy, and would send the next
# request to the default provider, with a key that is not meant for it. A location with a host would lead past the
# proxy. So a redirect to the same server is rewritten to a path of ours that names that server.
def rewrite_redirects(status: int, headers: Sequence[HeaderPair], url: str) -> Sequence[HeaderPair]:
    """Return ``headers`` of the answer from ``url``, with a redirect to the same server led through the proxy.

    A redirect to another server, or from TLS to none, is left alone: clients send no key there by themselves.
    """
    if not 300 <= status < 400:
        return headers
    rewritten_headers: list[HeaderPair] = []
    for name, value in headers:
        if name.lower() == _LOCATION:
            rewritten_headers.append((name, _rewrite_location(value, url)))
        else:
            rewritten_headers.append((name, value))
    return rewritten_headers


def _rewrite_location(location: bytes, url: str) -> bytes:
    try:
        target_url = urljoin(url, location.decode("ascii")).partition("#")[0]
        origin = _parse_server(url)
        target = _parse_server(target_url)
    except ValueError:
        return location
    is_tls_upgrade = (origin, target) == (("http", origin.host, 80), ("https", origin.host, 443))
    if origin != target and not is_tls_upgrade:
        return location
    return f"/u/{target_url}".encode()


class _ServerAddress(NamedTuple):
    scheme: str
    host: str
    port: int


def _parse_server(url: str) -> _ServerAddress:
    """Return the server of ``url``; raise ``ValueError`` if it has no server, or has a user name."""
    parts = urlsplit(url)
    if parts.scheme not in _DEFAULT_PORTS or not parts.hostname or "@" in parts.netloc:
        raise ValueError(url)
    return _ServerAddress(parts.scheme, parts.hostname, parts.port or _DEFAULT_PORTS[parts.scheme])
