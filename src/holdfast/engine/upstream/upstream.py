"""Upstreams: send one request to a provider and return its reply as it comes, without judging or retrying it."""

from __future__ import annotations

import re
from collections.abc import AsyncIterable, AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import MappingProxyType
from typing import Literal, Protocol, Self, TypeAlias
from urllib.parse import quote, urlsplit

import httpx2
from msgspec import Struct

from holdfast.engine.upstream.ask_server import ask_over_http
from holdfast.engine.upstream.connections import make_full_duplex_mounts
from holdfast.engine.upstream.redact import find_secrets, redact_text
from holdfast.errors import ConfigError, FormatError, UpstreamError
from holdfast.providers.registry import API_SPECS, get_api_spec

# As long as the SDKs of Anthropic and OpenAI wait. A model that thinks without streaming sends nothing for minutes.
READ_TIMEOUT = 600.0
"""Seconds without a byte after which a provider counts as gone."""
# Connecting takes well under a second where it works at all; a wrong address should fail while its user is looking.
# Chosen by judgement.
CONNECT_TIMEOUT = 15.0
"""Seconds that connecting may take."""
LARGEST_PORT = 65_535
"""The largest port number."""
Endpoint: TypeAlias = Literal["generate", "compact", "count"]
"""An answer, a compaction (which only Responses has an endpoint for), or a count of the prompt's tokens."""
BETA_HEADER = "anthropic-beta"
"""The header that lists the requested beta features."""
VERSION_HEADER = "anthropic-version"
"""The header that names the version of the API, whose rules differ (2023-06-01, 2026-10-21)."""
_VERSION_SUFFIX_PATTERN = re.compile(r"/v\d\w*$")
"""Matches a base URL that ends with a version (``…/v1``, ``…/paas/v4``); the API's own version is not added to it."""


class UpstreamRequest(Struct, frozen=True):
    """One request: its body, and the parts of its URL and headers that depend on it."""

    api: str
    body: bytes
    model: str = ""
    endpoint: Endpoint = "generate"
    stream: bool = False
    """Whether the answer is to come as events. The body says the same if its API has a field for it."""
    headers: Mapping[str, str] = {}
    refused_betas: tuple[str, ...] = ()
    """Beta features that the server refused: they are not asked for, whatever the upstream's own headers say."""
    version: str = ""
    """The version of the API that the headers of its upstream name (``anthropic-version``); empty if not known."""


class Reply:
    """A reply: ``headers`` have lower-case names, ``chunks`` are the decompressed body as it comes."""

    def __init__(
        self,
        status: int,
        headers: Mapping[str, str],
        chunks: AsyncIterable[bytes],
        raw: Sequence[tuple[bytes, bytes]] = (),
        secrets: Sequence[str] = (),
    ) -> None:
        self.status = status
        self.headers = headers
        self.chunks = chunks
        self.raw_headers = raw
        """The headers as received, for relaying; empty if the upstream does not keep them."""
        self.secrets = secrets
        """Keys that the request was sent with; they must not reach a log, also if the reply repeats them."""

    @property
    def is_success(self) -> bool:
        """Whether the status is 2xx."""
        return 200 <= self.status < 300

    async def read_body(self) -> bytes:
        """Return the rest of the body."""
        return b"".join([chunk async for chunk in self.chunks])


class Upstream(Protocol):
    """Sends requests: to a provider over HTTP, through an SDK's client, or in a way of your own."""

    def send(self, request: UpstreamRequest) -> AbstractAsyncContextManager[Reply]:
        """Send ``request`` and return the reply, whatever its status, open as long as the block lasts.

        Raises ``UpstreamError`` of kind ``network`` if no reply comes, or if it breaks off while its chunks are read.
        """


def get_server_name(upstream: Upstream) -> str:
    """Return the address that ``upstream`` sends to, without anything secret; empty if it does not say."""
    url = getattr(upstream, "base_url", "") or getattr(upstream, "url", "")
    try:
        parts = urlsplit(str(url))
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return ""
    if not parts.hostname:
        return ""
    return f"{parts.scheme}://{parts.hostname}{port}{parts.path.rstrip('/')}"


def list_betas(upstream: Upstream) -> tuple[str, ...]:
    """Return the beta features that ``upstream`` asks for with its own headers."""
    return find_header_betas(upstream) or ()


def find_header_betas(upstream: Upstream) -> tuple[str, ...] | None:
    """Return the beta features that ``upstream`` asks for, or None if it does not tell its headers, as an SDK."""
    betas = getattr(upstream, "betas", None)
    return None if betas is None else tuple(betas)


def find_header_version(upstream: Upstream) -> str:
    """Return the version of the API that ``upstream`` asks for (``anthropic-version``), or "" if it does not tell."""
    return str(getattr(upstream, "version", ""))


class HttpUpstream:
    """A provider at ``base_url`` that speaks ``api``; ``headers`` carry its key. Use it as ``async with``.

    Headers that the API requires (``anthropic-version``) are added if ``headers`` do not name them. Raises
    ``ConfigError`` for a malformed URL, and for headers that cannot be sent.
    """

    def __init__(
        self,
        base_url: str,
        api: str,
        headers: Mapping[str, str] = MappingProxyType({}),
        *,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        self.api = get_api_spec(api).api
        self.base_url = _check_base_url(base_url).rstrip("/")
        try:
            default_headers = httpx2.Headers(
                {"content-type": "application/json", **get_api_spec(api).endpoints.default_headers}
            )
            default_headers.update(headers)  # replaces a default also if it is spelled in another case
            # Kept apart, since a request may have to do without some of them.
            self.betas = tuple(_split_betas(default_headers.pop(BETA_HEADER, "")))
            self.version = default_headers.get(VERSION_HEADER, "")
            self._client = httpx2.AsyncClient(
                headers=default_headers,
                timeout=httpx2.Timeout(READ_TIMEOUT, connect=CONNECT_TIMEOUT),
                transport=transport,
                mounts=make_full_duplex_mounts() if transport is None else None,
            )
        except (TypeError, ValueError) as error:
            # Without the error's own text and cause: both would show the key.
            reason = f"{type(error).__name__}; their names and values are texts of ASCII letters"
            raise ConfigError(
                f"these headers cannot be sent ({reason}); look for a key that was copied badly"
            ) from None

    def build_url(self, upstream_request: UpstreamRequest) -> str:
        """Return the URL for ``upstream_request``. Raises ``FormatError`` if its API has no such endpoint."""
        spec = API_SPECS.get(upstream_request.api)
        path_template = ""
        if spec is not None:
            path_template = spec.endpoints.get_path(upstream_request.endpoint, stream=upstream_request.stream)
        if not path_template:
            raise FormatError(
                f"{upstream_request.api} has no address for {upstream_request.endpoint!r}; ask it for an answer"
            )
        path = path_template.format(model=quote(upstream_request.model.removeprefix("models/"), safe=""))
        if _VERSION_SUFFIX_PATTERN.search(self.base_url):
            path = "/" + path.split("/", 2)[2]  # without the API's own version
        return self.base_url + path

    @asynccontextmanager
    async def send(self, request: UpstreamRequest) -> AsyncIterator[Reply]:
        """Send ``request`` and return the reply. Raises ``UpstreamError`` of kind ``network`` if none comes."""
        if self._client.is_closed:
            raise UpstreamError(f"the upstream at {self.base_url} was closed; make another for this engine", "config")
        try:
            async with self._client.stream(
                "POST",
                self.build_url(request),
                content=request.body,
                headers=self._merge_headers(request),
            ) as reply:
                secrets = find_secrets(reply.request.headers.items())
                yield Reply(
                    reply.status_code,
                    dict(reply.headers),
                    self._read_chunks(reply),
                    secrets=secrets,
                )
        except (httpx2.HTTPError, httpx2.InvalidURL, httpx2.StreamError) as error:
            secrets = find_secrets(self._client.headers.items())
            message = redact_text(_describe_no_answer(self.base_url, error), secrets)
            raise UpstreamError(message, "network") from error

    def _merge_headers(self, upstream_request: UpstreamRequest) -> dict[str, str]:
        """Return the headers of one request; its beta features are added to those of the client."""
        headers = dict(upstream_request.headers)
        betas = [*self.betas, *_split_betas(headers.pop(BETA_HEADER, ""))]
        asked_betas = [beta for beta in betas if beta not in upstream_request.refused_betas]
        if asked_betas:
            headers[BETA_HEADER] = ",".join(asked_betas)
        return headers

    async def _read_chunks(self, reply: httpx2.Response) -> AsyncIterator[bytes]:
        try:
            async for chunk in reply.aiter_bytes():
                yield chunk
        except (httpx2.HTTPError, httpx2.StreamError) as error:
            raise UpstreamError(_describe_no_answer(self.base_url, error), "network") from error

    async def ask_server(self, method: str, url: str, body: bytes, seconds: float) -> bytes:
        """Return the server's answer to a plain question, asked without a key; empty if it has none."""
        return await ask_over_http(self._client, method, url, body, seconds)

    async def close(self) -> None:
        """Close all connections; the upstream cannot be used afterwards."""
        await self._client.aclose()

    async def __aenter__(self) -> Self:
        """Return the upstream; it is closed at the end of the block."""
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _check_base_url(base_url: str) -> str:
    """Return ``base_url``. Raises ``ConfigError`` if nothing can be sent there."""
    try:
        url = httpx2.URL(base_url)
    except (httpx2.InvalidURL, TypeError, ValueError):
        url = httpx2.URL("")
    has_valid_port = (url.port or 0) <= LARGEST_PORT
    if url.scheme not in {"http", "https"} or not url.host or not has_valid_port:
        raise ConfigError(f"{base_url!r} is not the address of a provider; give one such as https://api.anthropic.com")
    return base_url


def _split_betas(value: str) -> list[str]:
    return [beta.strip() for beta in value.split(",") if beta.strip()]


def _describe_no_answer(url: str, error: Exception) -> str:
    if str(error):
        error_text = f"{type(error).__name__}: {error}"
    else:
        error_text = type(error).__name__
    return f"no answer came from {url} ({error_text}); check the address and the connection, then try again"
