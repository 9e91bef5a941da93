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

from holdfast.engine.upstream.connections import mount_listening
from holdfast.engine.upstream.redact import redacted, secrets
from holdfast.errors import ConfigError, FormatError, UpstreamError
from holdfast.providers.registry import form_of

PATIENCE = 600.0
"""Seconds without a byte after which a provider counts as gone: the SDKs of Anthropic and OpenAI wait as long."""
CONNECT = 15.0
"""Seconds that connecting may take."""
LAST_PORT = 65_535
"""The largest number that a port can have."""
Endpoint: TypeAlias = Literal["generate", "compact", "count"]
"""An answer, a compaction (an address of its own on Responses alone), or a count of the prompt's tokens."""
_PATHS: dict[tuple[str, Endpoint], str] = {
    ("anthropic", "generate"): "/v1/messages",
    ("anthropic", "count"): "/v1/messages/count_tokens",
    ("openai-chat", "generate"): "/v1/chat/completions",
    ("openai-responses", "generate"): "/v1/responses",
    ("openai-responses", "compact"): "/v1/responses/compact",
    ("openai-responses", "count"): "/v1/responses/input_tokens",
    ("gemini", "generate"): "/v1beta/models/{model}:generateContent",
    ("gemini", "count"): "/v1beta/models/{model}:countTokens",
}
_STREAMED = "/v1beta/models/{model}:streamGenerateContent?alt=sse"
"""Gemini says in the address whether it streams; the others say it in the body."""
_USUAL: Mapping[str, Mapping[str, str]] = {"anthropic": {"anthropic-version": "2023-06-01"}}
"""Headers that an API wants of every request, as it is spoken here; those that are given take their places."""
_FEATURES = "anthropic-beta"
"""The header that lists the beta features asked for."""
_VERSION = re.compile(r"/v\d\w*$")
"""A base address that names a version of its own (``…/v1``, ``…/paas/v4``) gets none of ours."""


class Sent(Struct, frozen=True):
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
        self.raw = raw
        """The headers as they came, where somebody relays them."""
        self.secrets = secrets
        """What the request was sent with that must stand in no log, also where the reply repeats it."""

    @property
    def is_fine(self) -> bool:
        """Whether the status tells of no error."""
        return 200 <= self.status < 300

    async def read(self) -> bytes:
        """Return the rest of the body."""
        return b"".join([chunk async for chunk in self.chunks])


class Upstream(Protocol):
    """Whoever answers requests: a provider over HTTP, an SDK's client, or one of your own."""

    def send(self, sent: Sent) -> AbstractAsyncContextManager[Reply]:
        """Return the reply to ``sent``, whatever its status, open as long as the block lasts.

        ``UpstreamError`` of kind ``network`` where none came, or where it breaks off while its chunks are read.
        """


class Http:
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
        self.api = form_of(api).api
        self.base_url = _checked(base_url).rstrip("/")
        try:
            known = httpx2.Headers({"content-type": "application/json", **_USUAL.get(self.api, {})})
            known.update(headers)  # in any case of letters
            self._client = httpx2.AsyncClient(
                headers=known,
                timeout=httpx2.Timeout(PATIENCE, connect=CONNECT),
                transport=transport,
                mounts=mount_listening() if transport is None else None,
            )
        except (TypeError, ValueError) as error:
            why = f"{type(error).__name__}; their names and values are texts of ASCII letters"
            raise ConfigError(f"these headers cannot be sent ({why}); look for a key that was copied badly") from None

    def address(self, sent: Sent) -> str:
        """Return where ``sent`` goes; ``FormatError`` where its API has no such endpoint."""
        known = _PATHS.get((sent.api, sent.endpoint))
        if known is None:
            raise FormatError(f"{sent.api} has no address for {sent.endpoint!r}; ask it for an answer")
        streamed = sent.api == "gemini" and sent.endpoint == "generate" and sent.stream
        path = (_STREAMED if streamed else known).format(model=quote(sent.model.removeprefix("models/"), safe=""))
        if _VERSION.search(self.base_url):
            path = "/" + path.split("/", 2)[2]
        return self.base_url + path

    @asynccontextmanager
    async def send(self, sent: Sent) -> AsyncIterator[Reply]:
        """Return the reply to ``sent`` as it comes; ``UpstreamError`` of kind ``network`` where none does."""
        if self._client.is_closed:
            raise UpstreamError(f"the upstream at {self.base_url} was closed; make another for this engine", "config")
        try:
            async with self._client.stream(
                "POST", self.address(sent), content=sent.body, headers=self._headers(sent)
            ) as reply:
                keys = secrets(reply.request.headers.items())
                yield Reply(reply.status_code, dict(reply.headers), self._read(reply), secrets=keys)
        except (httpx2.HTTPError, httpx2.InvalidURL, httpx2.StreamError) as error:
            why = redacted(_unreached(self.base_url, error), secrets(self._client.headers.items()))
            raise UpstreamError(why, "network") from error

    def _headers(self, sent: Sent) -> dict[str, str]:
        """Return the headers of one request; a list of features is added to ours and does not replace it."""
        own = self._client.headers.get(_FEATURES, "")
        added = sent.headers.get(_FEATURES, "")
        return {**sent.headers, _FEATURES: f"{own},{added}"} if own and added else dict(sent.headers)

    async def _read(self, reply: httpx2.Response) -> AsyncIterator[bytes]:
        try:
            async for chunk in reply.aiter_bytes():
                yield chunk
        except (httpx2.HTTPError, httpx2.StreamError) as error:
            raise UpstreamError(_unreached(self.base_url, error), "network") from error

    async def close(self) -> None:
        """Close every connection; the upstream cannot be used afterwards."""
        await self._client.aclose()

    async def __aenter__(self) -> Self:
        """Return the upstream; it is closed at the end of the block."""
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _checked(base_url: str) -> str:
    """Return an address that something can be sent to; ``ConfigError`` for any other."""
    try:
        url = httpx2.URL(base_url)
    except (httpx2.InvalidURL, TypeError, ValueError):
        url = httpx2.URL("")
    if url.scheme not in {"http", "https"} or not url.host or (url.port or 0) > LAST_PORT:
        raise ConfigError(f"{base_url!r} is no address of a provider; give one such as https://api.anthropic.com")
    return base_url


def _unreached(place: str, error: Exception) -> str:
    what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return f"no answer came from {place} ({what}); check the address and the connection, then try again"
