"""An official SDK's client as an upstream: its transport, its keys and its base address, our bytes.

Nothing of an SDK is imported here; a client is known by the name of its class. What the SDK does around a request of
its own (retries, errors for statuses, typed answers) is left out: a refusal is a reply like any other.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from math import inf
from threading import Lock
from typing import Any, TypeAlias, TypeGuard, TypeVar
from urllib.parse import quote

import msgspec
from anyio import CancelScope, CapacityLimiter, fail_after, to_thread
from msgspec import Struct

from holdfast.engine.upstream.redact import redacted, secrets
from holdfast.engine.upstream.upstream import PATIENCE, Endpoint, Http, Reply, Sent, Upstream
from holdfast.errors import ConfigError, FormatError, UpstreamError

T = TypeVar("T")

_RAW = {"x-stainless-raw-response": "stream"}
"""The header by which the SDKs of Anthropic and OpenAI return an answer unread (their ``with_streaming_response``)."""
_PATHS: Mapping[tuple[str, Endpoint], str] = {
    ("anthropic", "generate"): "/v1/messages",
    ("anthropic", "count"): "/v1/messages/count_tokens",
    ("openai-chat", "generate"): "/chat/completions",
    ("openai-responses", "generate"): "/responses",
    ("openai-responses", "compact"): "/responses/compact",
    ("openai-responses", "count"): "/responses/input_tokens",
    ("gemini", "generate"): "{model}:generateContent",
    ("gemini", "count"): "{model}:countTokens",
}
"""Addresses as the SDKs name them, behind their own base address."""
_STREAMED = "{model}:streamGenerateContent?alt=sse"
_LOST = frozenset({"APIConnectionError", "APITimeoutError"})
"""What the SDKs call a request that got no answer."""
_TRANSPORTS = frozenset({"httpx", "httpx2", "httpcore", "httpcore2", "aiohttp"})
"""Packages whose errors come from the connection."""


class _Opened(Struct, frozen=True):
    """A reply whose body is still to be read."""

    status: int
    headers: Mapping[str, str]
    chunks: AsyncIterator[bytes]
    close: Callable[[], Awaitable[object]]
    secrets: Sequence[str] = ()
    """What must stand in no log."""
    patience: float = inf
    """Seconds that may pass without a byte, where the client itself waits for ever."""


_Opening: TypeAlias = Callable[[Any, Sent, str], Awaitable[_Opened]]
"""Sends a request by a client to an address of its own."""


class Sdk:
    """A client of an official SDK as an upstream; it stays yours, and open."""

    def __init__(self, client: Any, name: str, apis: tuple[str, ...], opening: _Opening) -> None:
        self.apis = apis
        self._client = client
        self._name = name
        self._opening = opening

    @asynccontextmanager
    async def send(self, sent: Sent) -> AsyncIterator[Reply]:
        """Return the reply to ``sent`` as it comes; ``UpstreamError`` where none does.

        ``FormatError`` where the client does not speak the API of ``sent``, or the API has no such endpoint.
        """
        opened = await self._opened(sent, self._path(sent))
        try:
            yield Reply(opened.status, opened.headers, self._read(opened), secrets=opened.secrets)
        finally:
            with CancelScope(shield=True):
                await opened.close()

    def _path(self, sent: Sent) -> str:
        path = _PATHS.get((sent.api, sent.endpoint))
        if path is None or sent.api not in self.apis:
            raise FormatError(
                f"{self._name} has no address for {sent.endpoint!r} of {sent.api}; it speaks {', '.join(self.apis)}"
            )
        return _STREAMED if sent.stream and path == _PATHS["gemini", "generate"] else path

    async def _opened(self, sent: Sent, path: str) -> _Opened:
        try:
            return await self._opening(self._client, sent, path)
        except Exception as error:
            refused = _refused(error)
            if refused is None:
                raise _unanswered(self._name, error) from error
            return refused

    async def _read(self, opened: _Opened) -> AsyncIterator[bytes]:
        while True:
            try:
                with fail_after(opened.patience):
                    chunk = await anext(opened.chunks, None)
            except Exception as error:
                raise _unanswered(self._name, error) from error
            if chunk is None:
                return
            yield chunk


# -- what an SDK raises ------------------------------------------------------------------------------------------------


def _refused(error: Exception) -> _Opened | None:
    """Return the reply that ``error`` was made of, if it was."""
    response = getattr(error, "response", None)
    if response is None or type(error).__name__ in _LOST:
        return None
    body = getattr(response, "content", None)
    if not isinstance(body, bytes):
        body = msgspec.json.encode(getattr(error, "details", {}), enc_hook=str)
    return _Opened(_status(response), _headers(response), _once(body), _nothing, _secrets(response))


def _unanswered(name: str, error: Exception) -> UpstreamError:
    """Return the error of a request without an answer: lost on its way, or not sent for what the client lacks."""
    said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    why = f"{said} ({error.__cause__})" if error.__cause__ is not None and str(error.__cause__) else said
    why = redacted(why, _secrets(error))
    if _is_lost(error):
        return UpstreamError(f"no answer came to {name} ({why}); check its address and the connection", "network")
    return UpstreamError(f"{name} did not send the request ({why}); check how it was made", "config")


def _is_lost(error: BaseException) -> bool:
    package = type(error).__module__.partition(".")[0]
    if type(error).__name__ in _LOST:
        return type(error.__cause__) is not RuntimeError  # that is how a client says that it was closed
    return package in _TRANSPORTS or isinstance(error, OSError)


async def _once(body: bytes) -> AsyncIterator[bytes]:
    yield body


async def _nothing() -> None:
    """Return: there is nothing to close."""


# -- clients of Anthropic and OpenAI -----------------------------------------------------------------------------------


def _asked(sent: Sent, path: str) -> dict[str, Any]:
    """Return how ``client.post`` is called."""
    options = {"headers": {**_RAW, **sent.headers}, "max_retries": 0}
    return {"path": path, "cast_to": object, "content": sent.body, "options": options}


async def _posted(client: Any, sent: Sent, path: str) -> _Opened:
    response = (await client.post(**_asked(sent, path))).http_response
    chunks, keys = response.aiter_bytes(), _secrets(response)
    return _Opened(response.status_code, _headers(response), chunks, response.aclose, keys)


async def _posted_beside(client: Any, sent: Sent, path: str) -> _Opened:
    """Return the reply to a client that waits: every step of it is done in a worker thread."""
    beside = _Beside(partial(client.post, **_asked(sent, path)))
    try:
        response = await beside.run(beside.open)
    except BaseException:
        await beside.leave()
        raise
    return _Opened(response.status_code, _headers(response), beside.chunks(), beside.leave, _secrets(response))


async def _deployed(client: Any, sent: Sent, path: str) -> _Opened:
    return await _posted(client, sent, _place_on_azure(client, sent, path))


async def _deployed_beside(client: Any, sent: Sent, path: str) -> _Opened:
    return await _posted_beside(client, sent, _place_on_azure(client, sent, path))


def _place_on_azure(client: Any, sent: Sent, path: str) -> str:
    """Return where Azure has ``path``: on Chat Completions at a deployment, which is called like the model if unsaid.

    The SDK reads that off a body that it wrote itself.
    """
    if sent.api != "openai-chat" or "/deployments" in client.base_url.path:
        return path
    return f"/deployments/{quote(sent.model, safe='')}{path}"


class _Beside:
    """One request of a client that waits. Given up in the middle of a step, it is closed when the step ends."""

    def __init__(self, post: Callable[[], Any]) -> None:
        self._post = post
        self._response: Any = None
        self._chunks: Iterator[bytes] = iter(())
        self._step, self._left = Lock(), False
        self._limiter = CapacityLimiter(1)

    def open(self) -> Any:
        """Return the response, unread."""
        self._response = self._post().http_response
        self._chunks = self._response.iter_bytes()
        return self._response

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body."""
        while (chunk := await self.run(lambda: next(self._chunks, None))) is not None:
            yield chunk

    async def run(self, work: Callable[[], T]) -> T:
        """Return what ``work`` returns, done in a worker thread; who gives up does not wait for its end."""
        return await to_thread.run_sync(self._done, work, abandon_on_cancel=True, limiter=self._limiter)

    def _done(self, work: Callable[[], T]) -> T:
        try:
            with self._step:
                return work()
        finally:
            if self._left:
                self._close()

    async def leave(self) -> None:
        """Close the response now; where a step is still under way, at its end."""
        self._left = True
        if self._step.acquire(blocking=False):
            self._step.release()
            with CancelScope(shield=True):
                await to_thread.run_sync(self._close)

    def _close(self) -> None:
        if self._response is not None:
            self._response.close()


# -- clients of Google -------------------------------------------------------------------------------------------------


async def _generated(client: Any, sent: Sent, path: str) -> _Opened:
    """Return the reply to Google's client, by the one door of it that takes bytes."""
    inside = client._api_client  # noqa: SLF001 -- the public methods take no body of ours
    request = inside._build_request("post", path.format(model=_place(inside, sent.model)), {})  # noqa: SLF001
    request.headers.update(sent.headers)
    request.data = sent.body
    patience = PATIENCE if request.timeout is None else inf
    with fail_after(patience):
        told = await inside._async_request_once(request, stream=True, implicit_retry=False)  # noqa: SLF001
    response = told.response_stream
    keys, close = _secrets(response), partial(_closed, response)
    return _Opened(_status(response), _headers(response), _bytes(response), close, keys, patience)


def _place(inside: Any, model: str) -> str:
    """Return the model's name as an address has it: on Vertex with its publisher."""
    folder = "publishers/google/models/" if inside.vertexai else "models/"
    is_whole = model.startswith(("models/", "tunedModels/", "publishers/", "projects/"))
    return quote(model if is_whole else folder + model, safe="/")


def _bytes(response: Any) -> AsyncIterator[bytes]:
    """Return the chunks of a response of httpx, or of aiohttp where that is installed."""
    chunks = response.aiter_bytes() if hasattr(response, "aiter_bytes") else response.content.iter_any()
    return aiter(chunks)


async def _closed(response: Any) -> None:
    if hasattr(response, "aclose"):
        await response.aclose()
    else:
        response.close()


def _status(response: Any) -> int:
    return int(response.status_code if hasattr(response, "status_code") else response.status)


def _headers(response: Any) -> dict[str, str]:
    return {str(name).lower(): str(value) for name, value in response.headers.items()}


def _secrets(thing: Any) -> tuple[str, ...]:
    """Return the keys of the request that a response, or an error of the connection, belongs to."""
    request = getattr(thing, "request", None) or getattr(thing, "request_info", None)
    return () if request is None else secrets(request.headers.items(), str(request.url))


# -- which client it is ------------------------------------------------------------------------------------------------

_OPENAI = ("openai-chat", "openai-responses")
_CLIENTS: Mapping[str, tuple[tuple[str, ...], _Opening]] = {
    "anthropic.AsyncAnthropic": (("anthropic",), _posted),
    "anthropic.Anthropic": (("anthropic",), _posted_beside),
    "openai.AsyncOpenAI": (_OPENAI, _posted),
    "openai.OpenAI": (_OPENAI, _posted_beside),
    "openai.AsyncAzureOpenAI": (_OPENAI, _deployed),
    "openai.AzureOpenAI": (_OPENAI, _deployed_beside),
    "google.genai.Client": (("gemini",), _generated),
    "google.genai.AsyncClient": (("gemini",), _generated),
}
"""Clients by package and class, with what they speak and how they are asked; subclasses count as what they extend."""


def as_upstream(client: object, api: str = "") -> Upstream:
    """Return ``client`` as an upstream: one of anthropic, openai or google.genai, async or not; an upstream as it is.

    ``api`` says what it is to speak: OpenAI's clients speak Chat Completions and Responses, and without it each request
    says which. ``ConfigError`` for any other object, and for an API that the client does not speak.
    """
    if _is_upstream(client):
        if isinstance(client, Http):
            _spoken(f"the upstream at {client.base_url}", (client.api,), api)
        return client
    name = next(filter(None, map(_named, type(client).__mro__)), "")
    if name:
        apis, opening = _CLIENTS[name]
        return Sdk(client, name, _spoken(name, apis, api), opening)
    raise ConfigError(
        f"{type(client).__module__}.{type(client).__qualname__} is no client known here; give one of"
        f" {', '.join(_CLIENTS)}, or holdfast.engine.upstream.upstream.Http(base_url, api)"
    )


def _is_upstream(thing: object) -> TypeGuard[Upstream]:
    """Return whether ``thing`` sends requests of ours; clients of plain HTTP send others."""
    package = type(thing).__module__.partition(".")[0]
    return callable(getattr(thing, "send", None)) and not isinstance(thing, type) and package not in _TRANSPORTS


def _named(kind: type) -> str:
    """Return what a class is called here, or nothing."""
    for name in _CLIENTS:
        package, _, own = name.rpartition(".")
        if kind.__name__ == own and f"{kind.__module__}.".startswith(f"{package}."):
            return name
    return ""


def _spoken(name: str, apis: tuple[str, ...], api: str) -> tuple[str, ...]:
    if api and api not in apis:
        raise ConfigError(f"{name} does not speak {api!r}; it speaks {', '.join(apis)}: name one of those")
    return (api,) if api else apis
