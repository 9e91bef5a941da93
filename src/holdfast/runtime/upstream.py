"""Upstreams: one request to a provider, one reply. Nothing is judged here and nothing is tried again."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Protocol, Self
from urllib.parse import quote

import httpx2
from msgspec import Struct

from holdfast.errors import UpstreamError
from holdfast.wire.apis import form_of

PATIENCE = 600.0
"""Seconds without a byte after which a provider counts as gone: the SDKs of Anthropic and OpenAI wait as long."""
CONNECT = 15.0
"""Seconds that connecting may take."""
_PATHS = {
    "anthropic": "/v1/messages",
    "openai-chat": "/v1/chat/completions",
    "openai-responses": "/v1/responses",
    "gemini": "/v1beta/models/{model}:generateContent",
}
_VERSION = re.compile(r"/v\d\w*$")
"""A base address that names a version of its own (``…/v1``, ``…/paas/v4``) gets none of ours."""


class Reply(Struct, frozen=True):
    """What came back: names of ``headers`` are in lower case, ``body`` is whole and not compressed."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Upstream(Protocol):
    """Whoever answers requests: a provider over HTTP, or one of your own."""

    async def send(self, body: bytes, model: str) -> Reply:
        """Return the reply to ``body``, whatever its status; ``UpstreamError`` where none came."""


class Http:
    """A provider at ``base_url`` that speaks ``api``; ``headers`` carry its key. Use it as ``async with``."""

    def __init__(
        self,
        base_url: str,
        api: str,
        headers: Mapping[str, str] = MappingProxyType({}),
        *,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        self.api = form_of(api).api
        self.base_url = base_url.rstrip("/")
        self._client = httpx2.AsyncClient(
            headers={"content-type": "application/json", **headers},
            timeout=httpx2.Timeout(PATIENCE, connect=CONNECT),
            transport=transport,
        )

    def address(self, model: str) -> str:
        """Return where requests for ``model`` go."""
        path = _PATHS[self.api].format(model=quote(model.removeprefix("models/"), safe=""))
        if _VERSION.search(self.base_url):
            path = "/" + path.split("/", 2)[2]
        return self.base_url + path

    async def send(self, body: bytes, model: str) -> Reply:
        """Return the reply to ``body``; ``UpstreamError`` of kind ``network`` where none came."""
        try:
            reply = await self._client.post(self.address(model), content=body)
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise UpstreamError(_unreached(self.base_url, error), "network") from error
        return Reply(reply.status_code, dict(reply.headers), reply.content)

    async def close(self) -> None:
        """Close every connection; the upstream cannot be used afterwards."""
        await self._client.aclose()

    async def __aenter__(self) -> Self:
        """Return the upstream; it is closed at the end of the block."""
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _unreached(place: str, error: Exception) -> str:
    what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return f"no answer came from {place} ({what}); check the address and the connection, then try again"
