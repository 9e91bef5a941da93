"""The proxy between a client and the strict provider, without sockets: what goes up and comes down is kept."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager

import httpx2
import pytest

from holdfast.proxy.server import open_proxy
from holdfast.proxy.settings import Settings
from holdfast.store.memory import MemoryStore
from holdfast.testing.provider import Provider
from holdfast.testing.provider import ProviderSettings as Strict
from holdfast.testing.provider.client import STRICTEST_MODELS
from holdfast.testing.provider.server.app import make_provider_app

PATHS = {
    "anthropic": "/v1/messages",
    "openai-chat": "/v1/chat/completions",
    "openai-responses": "/v1/responses",
    "gemini": f"/v1beta/models/{STRICTEST_MODELS['gemini']}:generateContent",
}


class _Bytes(httpx2.AsyncByteStream):
    """A body in one piece, to be read once."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    async def __aiter__(self):
        yield self._data


class Upstream(httpx2.AsyncBaseTransport):
    """The strict provider, and what it was sent and answered; in front of it somebody takes ``most`` bytes."""

    def __init__(self, provider: Provider, faults=(), most=0) -> None:
        self.provider, self.most = provider, most
        self.sent: list[httpx2.Request] = []
        self.bodies: list[bytes] = []
        self.answers: list[bytes] = []
        self.inner = httpx2.ASGITransport(make_provider_app(provider, faults))

    async def handle_async_request(self, request):
        """Answer as the provider does, and keep both."""
        self.sent.append(request)
        body = await request.aread()
        self.bodies.append(body)
        if self.most and len(body) > self.most:
            self.answers.append(b"<html><title>413 Request Entity Too Large</title></html>")
            return httpx2.Response(413, headers={"content-type": "text/html"}, stream=_Bytes(self.answers[-1]))
        reply = await self.inner.handle_async_request(request)
        self.answers.append(await reply.aread())
        return httpx2.Response(reply.status_code, headers=reply.headers, stream=_Bytes(self.answers[-1]))


class Proxied:
    """A client of the proxy that talks on and on."""

    def __init__(self, web: httpx2.AsyncClient, upstream: Upstream) -> None:
        self.web, self.upstream = web, upstream

    async def post(self, path, body, headers=()):
        """Return the answer to ``body``."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await self.web.post(path, content=data, headers={"content-type": "application/json", **dict(headers)})


class Talk:
    """A conversation by one API, as a client without a memory of its own keeps it."""

    def __init__(self, api, *, stream=False, window=0) -> None:
        self.api, self.stream = api, stream
        self.said: list[dict] = []
        self.fields = {"anthropic": {"max_tokens": 400}}.get(api, {})

    @property
    def path(self):
        """Where it is sent."""
        return PATHS[self.api]

    def body(self):
        """Return the next request."""
        if self.api == "gemini":
            return {"contents": self.said}
        field = "input" if self.api == "openai-responses" else "messages"
        stream = {"stream": True} if self.stream else {}
        return {"model": STRICTEST_MODELS[self.api], field: self.said, **self.fields, **stream}

    def say(self, text):
        """Say something."""
        one = {"role": "user", "content": text}
        self.said.append({"role": "user", "parts": [{"text": text}]} if self.api == "gemini" else one)

    def hear(self, answer):
        """Take the whole answer to the last request into the conversation."""
        told = json.loads(answer)
        if self.api == "anthropic":
            self.said.append({"role": "assistant", "content": told["content"]})
        elif self.api == "openai-chat":
            self.said.append({"role": "assistant", "content": told["choices"][0]["message"]["content"]})
        elif self.api == "openai-responses":
            self.said += told["output"]
        else:
            self.said.append(told["candidates"][0]["content"])

    async def turn(self, proxied, text, headers=()):
        """Say ``text`` and return what came back; a whole answer is heard."""
        self.say(text)
        reply = await proxied.post(self.path, self.body(), headers)
        if reply.status_code == 200:
            self.hear(reply.content)
        return reply


@asynccontextmanager
async def through(upstream, store=None, *, reopen=None, bypass=None, known=None, **given):
    """Yield a client of the proxy in front of ``upstream``."""
    told = Settings(anthropic="http://up", openai="http://up/v1", gemini="http://up", **given)
    store = MemoryStore() if store is None else store
    async with (
        open_proxy(
            told, store, reopen=reopen, transport=upstream, bypass_file=bypass, loaded_configuration=known
        ) as proxy,
        httpx2.AsyncClient(transport=httpx2.ASGITransport(proxy), base_url="http://127.0.0.1:8642") as web,
    ):
        yield Proxied(web, upstream)


@pytest.fixture
def proxied():
    """Return ``through``, ``Upstream`` and ``Talk``: all that a test of the whole proxy needs."""
    return through, Upstream, Talk


@pytest.fixture
def strict():
    """Return what makes the strict provider with a window."""
    return lambda window=32_000, **given: Upstream(Provider(Strict(window=window, **given)))
