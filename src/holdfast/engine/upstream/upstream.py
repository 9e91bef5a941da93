"""Upstreams: one request to a provider, one reply as it comes. Nothing is judged here and nothing is tried again."""

from __future__ import annotations

import re
from collections.abc import AsyncIterable, AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import MappingProxyType
from typing import Literal, Protocol, Self, TypeAlias
from urllib.parse import quote

import httpx2
from msgspec import Struct

from holdfast.engine.upstream.connections import make_full_duplex_mounts
from holdfast.engine.upstream.redact import find_secrets, redact_text
from holdfast.errors import ConfigError, FormatError, UpstreamError
from holdfast.providers.registry import API_SPECS, get_api_spec

READ_TIMEOUT = 600.0
"""Seconds without a byte after which a provider counts as gone: the SDKs of Anthropic and OpenAI wait as long."""
CONNECT_TIMEOUT = 15.0
"""Seconds that connecting may take."""
LARGEST_PORT = 65_535
"""The largest number that a port can have."""
Endpoint: TypeAlias = Literal["generate", "compact", "count"]
"""An answer, a compaction (an address of its own on Responses alone), or a count of the prompt's tokens."""
_ANTHROPIC_BETA_HEADER = "anthropic-beta"
"""The header that lists the beta features asked for."""
_VERSION_SUFFIX_PATTERN = re.compile(r"/v\d\w*$")
"""A base address that names a version of its own (``…/v1``, ``…/paas/v4``) gets none of ours."""


class UpstreamRequest(Struct, frozen=True):
    """One request: its body, and what the address and the headers say."""

    api: str
    body: bytes
    model: str = ""
    endpoint: Endpoint = "generate"
    stream: bool = False
    """Whether the answer is to come as events; the body says the same where its API has a field for it."""
    headers: Mapping[str, str] = {}


class Reply:
    """What comes back: names of ``headers`` are in lower case, ``chunks`` are the body as it comes, not compressed."""

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
        """The headers as they came, where somebody relays them."""
        self.secrets = secrets
        """What the request was sent with that must stand in no log, also where the reply repeats it."""

    @property
    def is_success(self) -> bool:
        """Whether the status tells of no error."""
        return 200 <= self.status < 300

    async def read_body(self) -> bytes:
        """Return the rest of the body."""
        return b"".join([chunk async for chunk in self.chunks])


class Upstream(Protocol):
    """Whoever answers requests: a provider over HTTP, an SDK's client, or one of your own."""

    def send(self, request: UpstreamRequest) -> AbstractAsyncContextManager[Reply]:
        """Return the reply to ``request``, whatever its status, open as long as the block lasts.

        ``UpstreamError`` of kind ``network`` where none came, or where it breaks off while its chunks are read.
        """


class HttpUpstream:
    """A provider at ``base_url`` that speaks ``api``; ``headers`` carry its key. Use it as ``async with``.

    ``anthropic-version`` is sent where ``headers`` name none.
    ``ConfigError`` for what is no address, and for headers that no request can have.
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
            default_headers.update(headers)  # in any case of letters
            self._client = httpx2.AsyncClient(
                headers=default_headers,
                timeout=httpx2.Timeout(READ_TIMEOUT, connect=CONNECT_TIMEOUT),
                transport=transport,
                mounts=make_full_duplex_mounts() if transport is None else None,
            )
        except (TypeError, ValueError) as error:
            why = f"{type(error).__name__}; their names and values are texts of ASCII letters"
            raise ConfigError(f"these headers cannot be sent ({why}); look for a key that was copied badly") from None

    def build_url(self, upstream_request: UpstreamRequest) -> str:
        """Return where ``upstream_request`` goes; ``FormatError`` where its API has no such endpoint."""
        spec = API_SPECS.get(upstream_request.api)
        path_template = (
            "" if spec is None else spec.endpoints.get_path(upstream_request.endpoint, stream=upstream_request.stream)
        )
        if not path_template:
            raise FormatError(
                f"{upstream_request.api} has no address for {upstream_request.endpoint!r}; ask it for an answer"
            )
        path = path_template.format(model=quote(upstream_request.model.removeprefix("models/"), safe=""))
        if _VERSION_SUFFIX_PATTERN.search(self.base_url):
            path = "/" + path.split("/", 2)[2]
        return self.base_url + path

    @asynccontextmanager
    async def send(self, request: UpstreamRequest) -> AsyncIterator[Reply]:
        """Return the reply to ``request`` as it comes; ``UpstreamError`` of kind ``network`` where none does."""
        if self._client.is_closed:
            raise UpstreamError(f"the upstream at {self.base_url} was closed; make another for this engine", "config")
        try:
            async with self._client.stream(
                "POST", self.build_url(request), content=request.body, headers=self._merge_headers(request)
            ) as reply:
                keys = find_secrets(reply.request.headers.items())
                yield Reply(reply.status_code, dict(reply.headers), self._read_chunks(reply), secrets=keys)
        except (httpx2.HTTPError, httpx2.InvalidURL, httpx2.StreamError) as error:
            why = redact_text(_describe_no_answer(self.base_url, error), find_secrets(self._client.headers.items()))
            raise UpstreamError(why, "network") from error

    def _merge_headers(self, upstream_request: UpstreamRequest) -> dict[str, str]:
        """Return the headers of one request; a list of features is added to ours and does not replace it."""
        own = self._client.headers.get(_ANTHROPIC_BETA_HEADER, "")
        added = upstream_request.headers.get(_ANTHROPIC_BETA_HEADER, "")
        return (
            {**upstream_request.headers, _ANTHROPIC_BETA_HEADER: f"{own},{added}"}
            if own and added
            else dict(upstream_request.headers)
        )

    async def _read_chunks(self, reply: httpx2.Response) -> AsyncIterator[bytes]:
        try:
            async for chunk in reply.aiter_bytes():
                yield chunk
        except (httpx2.HTTPError, httpx2.StreamError) as error:
            raise UpstreamError(_describe_no_answer(self.base_url, error), "network") from error

    async def close(self) -> None:
        """Close every connection; the upstream cannot be used afterwards."""
        await self._client.aclose()

    async def __aenter__(self) -> Self:
        """Return the upstream; it is closed at the end of the block."""
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _check_base_url(base_url: str) -> str:
    """Return an address that something can be sent to; ``ConfigError`` for any other."""
    try:
        url = httpx2.URL(base_url)
    except (httpx2.InvalidURL, TypeError, ValueError):
        url = httpx2.URL("")
    if url.scheme not in {"http", "https"} or not url.host or (url.port or 0) > LARGEST_PORT:
        raise ConfigError(f"{base_url!r} is no address of a provider; give one such as https://api.anthropic.com")
    return base_url


def _describe_no_answer(place: str, error: Exception) -> str:
    error_text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return f"no answer came from {place} ({error_text}); check the address and the connection, then try again"
