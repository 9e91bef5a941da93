"""The proxy between a client and the strict provider, without sockets: what is sent and answered is kept."""

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


class _SinglePieceStream(httpx2.AsyncByteStream):
    """A body in one piece, to be read once."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    async def __aiter__(self):
        yield self._data


class Upstream(httpx2.AsyncBaseTransport):
    """The strict provider behind a gateway that takes ``max_bytes``; keeps the requests and the answers."""

    def __init__(self, provider: Provider, faults=(), max_bytes=0) -> None:
        self.provider, self.max_bytes = provider, max_bytes
        self.sent: list[httpx2.Request] = []
        self.bodies: list[bytes] = []
        self.answers: list[bytes] = []
        self.inner = httpx2.ASGITransport(make_provider_app(provider, faults))

    async def handle_async_request(self, request):
        """Answer as the provider does, and keep both."""
        self.sent.append(request)
        body = await request.aread()
        self.bodies.append(body)
        if self.max_bytes and len(body) > self.max_bytes:
            self.answers.append(b"<html><title>413 Request Entity Too Large</title></html>")
            stream = _SinglePieceStream(self.answers[-1])
            return httpx2.Response(413, headers={"content-type": "text/html"}, stream=stream)
        reply = await self.inner.handle_async_request(request)
        self.answers.append(await reply.aread())
        return httpx2.Response(reply.status_code, headers=reply.headers, stream=_SinglePieceStream(self.answers[-1]))


class ProxyClient:
    """An HTTP client of the proxy, with the upstream behind it."""

    def __init__(self, web: httpx2.AsyncClient, upstream: Upstream) -> None:
        self.web, self.upstream = web, upstream

    async def post(self, path, body, headers=()):
        """Return the answer to ``body``, bytes or a value to be encoded as JSON."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await self.web.post(path, content=data, headers={"content-type": "application/json", **dict(headers)})


class Chat:
    """A conversation in one API's form, as a client without a memory of its own keeps it."""

    def __init__(self, api, *, stream=False) -> None:
        self.api, self.stream = api, stream
        self.messages: list[dict] = []
        self.fields = {"anthropic": {"max_tokens": 400}}.get(api, {})

    @property
    def path(self):
        """The path that requests are posted to."""
        return PATHS[self.api]

    def body(self):
        """Return the next request."""
        if self.api == "gemini":
            return {"contents": self.messages}
        field = "input" if self.api == "openai-responses" else "messages"
        stream = {"stream": True} if self.stream else {}
        return {"model": STRICTEST_MODELS[self.api], field: self.messages, **self.fields, **stream}

    def add_user_text(self, text):
        """Append a user message."""
        message = {"role": "user", "content": text}
        self.messages.append({"role": "user", "parts": [{"text": text}]} if self.api == "gemini" else message)

    def add_answer(self, answer):
        """Append the message of an unstreamed answer."""
        value = json.loads(answer)
        if self.api == "anthropic":
            self.messages.append({"role": "assistant", "content": value["content"]})
        elif self.api == "openai-chat":
            self.messages.append({"role": "assistant", "content": value["choices"][0]["message"]["content"]})
        elif self.api == "openai-responses":
            self.messages += value["output"]
        else:
            self.messages.append(value["candidates"][0]["content"])

    async def send_turn(self, client, text, headers=()):
        """Send ``text`` as the next user message and return the reply; a successful one is appended."""
        self.add_user_text(text)
        reply = await client.post(self.path, self.body(), headers)
        if reply.status_code == 200:
            self.add_answer(reply.content)
        return reply


@asynccontextmanager
async def open_proxy_client(upstream, store=None, *, reopen=None, bypass=None, **settings):
    """Yield a client of a proxy with these settings in front of ``upstream``."""
    addresses = {"anthropic": "http://up", "openai": "http://up/v1", "gemini": "http://up"}
    values = Settings(**(addresses | settings))
    store = MemoryStore() if store is None else store
    async with (
        open_proxy(values, store, reopen=reopen, transport=upstream, bypass_file=bypass) as proxy,
        httpx2.AsyncClient(transport=httpx2.ASGITransport(proxy), base_url="http://127.0.0.1:8642") as web,
    ):
        yield ProxyClient(web, upstream)


@pytest.fixture
def open_client():
    """Return the context manager that opens a proxy in front of an upstream and yields its client."""
    return open_proxy_client


@pytest.fixture
def make_upstream():
    """Return the class of an upstream around a given provider."""
    return Upstream


@pytest.fixture
def make_chat():
    """Return the class of a conversation by one API."""
    return Chat


@pytest.fixture
def make_strict_upstream():
    """Return a function that makes an upstream of the strict provider with a window."""
    return lambda window=32_000, **settings: Upstream(Provider(Strict(window=window, **settings)))
