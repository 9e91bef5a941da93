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

from holdfast.engine.upstream.redact import find_secrets, redact_text
from holdfast.engine.upstream.upstream import READ_TIMEOUT, HttpUpstream, Reply, Upstream, UpstreamRequest
from holdfast.errors import ConfigError, FormatError, UpstreamError
from holdfast.providers.anthropic.spec import ANTHROPIC_SPEC
from holdfast.providers.gemini.spec import GEMINI_SPEC
from holdfast.providers.openai_chat.spec import OPENAI_CHAT_SPEC
from holdfast.providers.openai_responses.spec import OPENAI_RESPONSES_SPEC
from holdfast.providers.registry import API_SPECS

T = TypeVar("T")

_RAW_RESPONSE_HEADER = {"x-stainless-raw-response": "stream"}
"""The header by which the SDKs of Anthropic and OpenAI return an answer unread (their ``with_streaming_response``)."""
_CONNECTION_ERRORS = frozenset({"APIConnectionError", "APITimeoutError"})
"""What the SDKs call a request that got no answer."""
_TRANSPORT_PACKAGES = frozenset({"httpx", "httpx2", "httpcore", "httpcore2", "aiohttp"})
"""Packages whose errors come from the connection."""


class _OpenReply(Struct, frozen=True):
    """A reply whose body is still to be read."""

    status: int
    headers: Mapping[str, str]
    chunks: AsyncIterator[bytes]
    close: Callable[[], Awaitable[object]]
    secrets: Sequence[str] = ()
    """What must stand in no log."""
    byte_timeout: float = inf
    """Seconds that may pass without a byte, where the client itself waits for ever."""


_Opener: TypeAlias = Callable[[Any, UpstreamRequest, str], Awaitable[_OpenReply]]
"""Sends a request by a client to an address of its own."""


class SdkUpstream:
    """A client of an official SDK as an upstream; it stays yours, and open."""

    def __init__(self, client: Any, name: str, apis: tuple[str, ...], opening: _Opener) -> None:
        self.apis = apis
        self._client = client
        self._name = name
        self._open_reply = opening

    @asynccontextmanager
    async def send(self, request: UpstreamRequest) -> AsyncIterator[Reply]:
        """Return the reply to ``request`` as it comes; ``UpstreamError`` where none does.

        ``FormatError`` where the client does not speak the API of ``request``, or the API has no such endpoint.
        """
        open_reply = await self._open(request, self._get_path(request))
        try:
            yield Reply(
                open_reply.status, open_reply.headers, self._read_chunks(open_reply), secrets=open_reply.secrets
            )
        finally:
            with CancelScope(shield=True):
                await open_reply.close()

    def _get_path(self, upstream_request: UpstreamRequest) -> str:
        spec = API_SPECS.get(upstream_request.api)
        path = (
            "" if spec is None else spec.endpoints.get_path(upstream_request.endpoint, stream=upstream_request.stream)
        )
        if spec is None or not path or upstream_request.api not in self.apis:
            raise FormatError(
                f"{self._name} has no address for {upstream_request.endpoint!r} of {upstream_request.api}; it "
                f"speaks {', '.join(self.apis)}"
            )
        return path.removeprefix(spec.endpoints.sdk_base)

    async def _open(self, upstream_request: UpstreamRequest, path: str) -> _OpenReply:
        try:
            return await self._open_reply(self._client, upstream_request, path)
        except Exception as error:
            refusal = _reply_from_error(error)
            if refusal is None:
                raise _make_no_answer_error(self._name, error) from error
            return refusal

    async def _read_chunks(self, open_reply: _OpenReply) -> AsyncIterator[bytes]:
        while True:
            try:
                with fail_after(open_reply.byte_timeout):
                    chunk = await anext(open_reply.chunks, None)
            except Exception as error:
                raise _make_no_answer_error(self._name, error) from error
            if chunk is None:
                return
            yield chunk


# -- what an SDK raises ------------------------------------------------------------------------------------------------


def _reply_from_error(error: Exception) -> _OpenReply | None:
    """Return the reply that ``error`` was made of, if it was."""
    response = getattr(error, "response", None)
    if response is None or type(error).__name__ in _CONNECTION_ERRORS:
        return None
    body = getattr(response, "content", None)
    if not isinstance(body, bytes):
        body = msgspec.json.encode(getattr(error, "details", {}), enc_hook=str)
    return _OpenReply(
        _get_status(response), _get_headers(response), _iter_once(body), _close_nothing, _find_request_secrets(response)
    )


def _make_no_answer_error(name: str, error: Exception) -> UpstreamError:
    """Return the error of a request without an answer: lost on its way, or not sent for what the client lacks."""
    error_text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    why = f"{error_text} ({error.__cause__})" if error.__cause__ is not None and str(error.__cause__) else error_text
    why = redact_text(why, _find_request_secrets(error))
    if _is_connection_error(error):
        return UpstreamError(f"no answer came to {name} ({why}); check its address and the connection", "network")
    return UpstreamError(f"{name} did not send the request ({why}); check how it was made", "config")


def _is_connection_error(error: BaseException) -> bool:
    package = type(error).__module__.partition(".")[0]
    if type(error).__name__ in _CONNECTION_ERRORS:
        return type(error.__cause__) is not RuntimeError  # that is how a client says that it was closed
    return package in _TRANSPORT_PACKAGES or isinstance(error, OSError)


async def _iter_once(body: bytes) -> AsyncIterator[bytes]:
    yield body


async def _close_nothing() -> None:
    """Return: there is nothing to close."""


# -- clients of Anthropic and OpenAI -----------------------------------------------------------------------------------


def _build_post_arguments(upstream_request: UpstreamRequest, path: str) -> dict[str, Any]:
    """Return how ``client.post`` is called."""
    options = {"headers": {**_RAW_RESPONSE_HEADER, **upstream_request.headers}, "max_retries": 0}
    return {"path": path, "cast_to": object, "content": upstream_request.body, "options": options}


async def _post_async(client: Any, upstream_request: UpstreamRequest, path: str) -> _OpenReply:
    response = (await client.post(**_build_post_arguments(upstream_request, path))).http_response
    chunks, keys = response.aiter_bytes(), _find_request_secrets(response)
    return _OpenReply(response.status_code, _get_headers(response), chunks, response.aclose, keys)


async def _post_in_thread(client: Any, upstream_request: UpstreamRequest, path: str) -> _OpenReply:
    """Return the reply to a client that waits: every step of it is done in a worker thread."""
    beside = _ThreadedRequest(partial(client.post, **_build_post_arguments(upstream_request, path)))
    try:
        response = await beside.run_step(beside.send)
    except BaseException:
        await beside.close()
        raise
    return _OpenReply(
        response.status_code,
        _get_headers(response),
        beside.iter_chunks(),
        beside.close,
        _find_request_secrets(response),
    )


async def _post_azure_async(client: Any, upstream_request: UpstreamRequest, path: str) -> _OpenReply:
    return await _post_async(client, upstream_request, _get_azure_path(client, upstream_request, path))


async def _post_azure_in_thread(client: Any, upstream_request: UpstreamRequest, path: str) -> _OpenReply:
    return await _post_in_thread(client, upstream_request, _get_azure_path(client, upstream_request, path))


def _get_azure_path(client: Any, upstream_request: UpstreamRequest, path: str) -> str:
    """Return where Azure has ``path``: on Chat Completions at a deployment, which is called like the model if unsaid.

    The SDK reads that off a body that it wrote itself.
    """
    if upstream_request.api != OPENAI_CHAT_SPEC.api or "/deployments" in client.base_url.path:
        return path
    return f"/deployments/{quote(upstream_request.model, safe='')}{path}"


class _ThreadedRequest:
    """One request of a client that waits. Given up in the middle of a step, it is closed when the step ends."""

    def __init__(self, post: Callable[[], Any]) -> None:
        self._post = post
        self._response: Any = None
        self._chunks: Iterator[bytes] = iter(())
        self._step, self._left = Lock(), False
        self._limiter = CapacityLimiter(1)

    def send(self) -> Any:
        """Return the response, unread."""
        self._response = self._post().http_response
        self._chunks = self._response.iter_bytes()
        return self._response

    async def iter_chunks(self) -> AsyncIterator[bytes]:
        """Yield the body."""
        while (chunk := await self.run_step(lambda: next(self._chunks, None))) is not None:
            yield chunk

    async def run_step(self, work: Callable[[], T]) -> T:
        """Return what ``work`` returns, done in a worker thread; who gives up does not wait for its end."""
        return await to_thread.run_sync(self._run_locked, work, abandon_on_cancel=True, limiter=self._limiter)

    def _run_locked(self, work: Callable[[], T]) -> T:
        try:
            with self._step:
                return work()
        finally:
            if self._left:
                self._close_response()

    async def close(self) -> None:
        """Close the response now; where a step is still under way, at its end."""
        self._left = True
        if self._step.acquire(blocking=False):
            self._step.release()
            with CancelScope(shield=True):
                await to_thread.run_sync(self._close_response)

    def _close_response(self) -> None:
        if self._response is not None:
            self._response.close()


# -- clients of Google -------------------------------------------------------------------------------------------------


async def _generate_by_google(client: Any, upstream_request: UpstreamRequest, path: str) -> _OpenReply:
    """Return the reply to Google's client, by the one door of it that takes bytes."""
    inside = client._api_client  # noqa: SLF001 -- the public methods take no body of ours
    request = inside._build_request(  # noqa: SLF001
        "post", path.format(model=_get_google_model_path(inside, upstream_request.model)), {}
    )
    request.headers.update(upstream_request.headers)
    request.data = upstream_request.body
    patience = READ_TIMEOUT if request.timeout is None else inf
    with fail_after(patience):
        raw_response = await inside._async_request_once(request, stream=True, implicit_retry=False)  # noqa: SLF001
    response = raw_response.response_stream
    keys, close = _find_request_secrets(response), partial(_close_google_response, response)
    return _OpenReply(
        _get_status(response), _get_headers(response), _iter_response_bytes(response), close, keys, patience
    )


def _get_google_model_path(inside: Any, model: str) -> str:
    """Return the model's name as an address has it: on Vertex with its publisher."""
    folder = "publishers/google/models/" if inside.vertexai else "models/"
    is_whole = model.startswith(("models/", "tunedModels/", "publishers/", "projects/"))
    return quote(model if is_whole else folder + model, safe="/")


def _iter_response_bytes(response: Any) -> AsyncIterator[bytes]:
    """Return the chunks of a response of httpx, or of aiohttp where that is installed."""
    chunks = response.aiter_bytes() if hasattr(response, "aiter_bytes") else response.content.iter_any()
    return aiter(chunks)


async def _close_google_response(response: Any) -> None:
    if hasattr(response, "aclose"):
        await response.aclose()
    else:
        response.close()


def _get_status(response: Any) -> int:
    return int(response.status_code if hasattr(response, "status_code") else response.status)


def _get_headers(response: Any) -> dict[str, str]:
    return {str(name).lower(): str(value) for name, value in response.headers.items()}


def _find_request_secrets(thing: Any) -> tuple[str, ...]:
    """Return the keys of the request that a response, or an error of the connection, belongs to."""
    request = getattr(thing, "request", None) or getattr(thing, "request_info", None)
    return () if request is None else find_secrets(request.headers.items(), str(request.url))


# -- which client it is ------------------------------------------------------------------------------------------------

_OPENAI = (OPENAI_CHAT_SPEC.api, OPENAI_RESPONSES_SPEC.api)
_SDK_CLIENTS: Mapping[str, tuple[tuple[str, ...], _Opener]] = {
    "anthropic.AsyncAnthropic": ((ANTHROPIC_SPEC.api,), _post_async),
    "anthropic.Anthropic": ((ANTHROPIC_SPEC.api,), _post_in_thread),
    "openai.AsyncOpenAI": (_OPENAI, _post_async),
    "openai.OpenAI": (_OPENAI, _post_in_thread),
    "openai.AsyncAzureOpenAI": (_OPENAI, _post_azure_async),
    "openai.AzureOpenAI": (_OPENAI, _post_azure_in_thread),
    "google.genai.Client": ((GEMINI_SPEC.api,), _generate_by_google),
    "google.genai.AsyncClient": ((GEMINI_SPEC.api,), _generate_by_google),
}
"""Clients by package and class, with what they speak and how they are asked; subclasses count as what they extend."""


def wrap_upstream(client: object, api: str = "") -> Upstream:
    """Return ``client`` as an upstream: one of anthropic, openai or google.genai, async or not; an upstream as it is.

    ``api`` says what it is to speak: OpenAI's clients speak Chat Completions and Responses, and without it each request
    says which. ``ConfigError`` for any other object, and for an API that the client does not speak.
    """
    if _is_upstream(client):
        if isinstance(client, HttpUpstream):
            _check_api(f"the upstream at {client.base_url}", (client.api,), api)
        return client
    name = next(filter(None, map(_find_client_name, type(client).__mro__)), "")
    if name:
        apis, opening = _SDK_CLIENTS[name]
        return SdkUpstream(client, name, _check_api(name, apis, api), opening)
    raise ConfigError(
        f"{type(client).__module__}.{type(client).__qualname__} is no client known here; give one of"
        f" {', '.join(_SDK_CLIENTS)}, or holdfast.HttpUpstream(base_url, api)"
    )


def _is_upstream(thing: object) -> TypeGuard[Upstream]:
    """Return whether ``thing`` sends requests of ours; clients of plain HTTP send others."""
    package = type(thing).__module__.partition(".")[0]
    return callable(getattr(thing, "send", None)) and not isinstance(thing, type) and package not in _TRANSPORT_PACKAGES


def _find_client_name(kind: type) -> str:
    """Return what a class is called here, or nothing."""
    for name in _SDK_CLIENTS:
        package, _, own = name.rpartition(".")
        if kind.__name__ == own and f"{kind.__module__}.".startswith(f"{package}."):
            return name
    return ""


def _check_api(name: str, apis: tuple[str, ...], api: str) -> tuple[str, ...]:
    if api and api not in apis:
        raise ConfigError(f"{name} does not speak {api!r}; it speaks {', '.join(apis)}: name one of those")
    return (api,) if api else apis
