"""Use an official SDK's client as an upstream: its transport, keys and base URL, with bodies made here.

No SDK is imported; a client is recognized by the name of its class. The SDK's retries, its exceptions for statuses and
its typed answers are bypassed: a refusal is a reply like any other, and recovery decides about it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from math import inf
from threading import Lock
from typing import Any, NamedTuple, TypeAlias, TypeGuard, TypeVar
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
"""Makes the SDKs of Anthropic and OpenAI return an unread response, as ``with_streaming_response`` does."""
_CONNECTION_ERRORS = frozenset({"APIConnectionError", "APITimeoutError"})
"""Names of the SDKs' errors for a request that got no answer."""
_TRANSPORT_PACKAGES = frozenset({"httpx", "httpx2", "httpcore", "httpcore2", "aiohttp"})
"""Packages whose errors come from the connection."""


class _OpenReply(Struct, frozen=True):
    """A reply whose body is still to be read."""

    status: int
    headers: Mapping[str, str]
    chunks: AsyncIterator[bytes]
    close: Callable[[], Awaitable[object]]
    secrets: Sequence[str] = ()
    """Keys that must not reach a log."""
    byte_timeout: float = inf
    """Seconds without a byte after which reading fails; finite only if the client itself has no timeout."""


_Opener: TypeAlias = Callable[[Any, UpstreamRequest, str], Awaitable[_OpenReply]]
"""Sends a request through a client to a path."""


class _SdkClient(NamedTuple):
    """The APIs that a client speaks, and how to send a request through it."""

    apis: tuple[str, ...]
    opener: _Opener


class SdkUpstream:
    """A client of an official SDK as an upstream. It stays the caller's, and open."""

    def __init__(
        self,
        client: Any,
        name: str,
        apis: tuple[str, ...],
        opener: _Opener,
    ) -> None:
        self.apis = apis
        self._client = client
        self._name = name
        self._open_reply = opener

    @property
    def base_url(self) -> str:
        """The address of the client; empty if it has none."""
        return str(getattr(self._client, "base_url", "") or "")

    @asynccontextmanager
    async def send(self, request: UpstreamRequest) -> AsyncIterator[Reply]:
        """Send ``request`` and return the reply.

        Raises ``UpstreamError`` if no reply comes, ``FormatError`` if the client does not speak the API of ``request``,
        or the API has no such endpoint.
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
        """Return the request's path below the client's base URL."""
        spec = API_SPECS.get(upstream_request.api)
        path = ""
        if spec is not None:
            path = spec.endpoints.get_path(upstream_request.endpoint, stream=upstream_request.stream)
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
            # An SDK raises for a refusal; the reply is inside of the exception.
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


# -- exceptions of an SDK ----------------------------------------------------------------------------------------------


def _reply_from_error(error: Exception) -> _OpenReply | None:
    """Return the reply that an SDK made ``error`` from, or None if it was not made from a reply."""
    response = getattr(error, "response", None)
    if response is None or type(error).__name__ in _CONNECTION_ERRORS:
        return None
    body = getattr(response, "content", None)
    if not isinstance(body, bytes):
        body = msgspec.json.encode(getattr(error, "details", {}), enc_hook=str)
    return _OpenReply(
        _get_status(response),
        _get_headers(response),
        _iter_once(body),
        _close_nothing,
        _find_request_secrets(response),
    )


def _make_no_answer_error(name: str, error: Exception) -> UpstreamError:
    """Build the error for a request without a reply: lost on its way, or not sent because of the client's settings."""
    text = type(error).__name__
    if str(error):
        text += f": {error}"
    # The SDKs wrap the transport's error in one that says only "Connection error."
    if error.__cause__ is not None and str(error.__cause__):
        text += f" ({error.__cause__})"
    text = redact_text(text, _find_request_secrets(error))
    if _is_connection_error(error):
        return UpstreamError(f"no answer came to {name} ({text}); check its address and the connection", "network")
    return UpstreamError(f"{name} did not send the request ({text}); check how it was made", "config")


def _is_connection_error(error: BaseException) -> bool:
    if type(error).__name__ in _CONNECTION_ERRORS:
        # A RuntimeError inside is how a client says that it was closed.
        return type(error.__cause__) is not RuntimeError
    package = type(error).__module__.partition(".")[0]
    return package in _TRANSPORT_PACKAGES or isinstance(error, OSError)


async def _iter_once(body: bytes) -> AsyncIterator[bytes]:
    yield body


async def _close_nothing() -> None:
    """Do nothing: the reply was read already."""


# -- clients of Anthropic and OpenAI -----------------------------------------------------------------------------------


def _build_post_arguments(upstream_request: UpstreamRequest, path: str) -> dict[str, Any]:
    """Return the arguments for ``client.post``."""
    options = {"headers": {**_RAW_RESPONSE_HEADER, **upstream_request.headers}, "max_retries": 0}
    return {"path": path, "cast_to": object, "content": upstream_request.body, "options": options}


async def _post_async(client: Any, upstream_request: UpstreamRequest, path: str) -> _OpenReply:
    response = (await client.post(**_build_post_arguments(upstream_request, path))).http_response
    return _OpenReply(
        response.status_code,
        _get_headers(response),
        response.aiter_bytes(),
        response.aclose,
        _find_request_secrets(response),
    )


async def _post_in_thread(client: Any, upstream_request: UpstreamRequest, path: str) -> _OpenReply:
    """Send a request through a synchronous client: every step of it runs in a worker thread."""
    threaded_request = _ThreadedRequest(partial(client.post, **_build_post_arguments(upstream_request, path)))
    try:
        response = await threaded_request.run_step(threaded_request.send)
    except BaseException:
        await threaded_request.close()
        raise
    return _OpenReply(
        response.status_code,
        _get_headers(response),
        threaded_request.iter_chunks(),
        threaded_request.close,
        _find_request_secrets(response),
    )


async def _post_azure_async(client: Any, upstream_request: UpstreamRequest, path: str) -> _OpenReply:
    return await _post_async(client, upstream_request, _get_azure_path(client, upstream_request, path))


async def _post_azure_in_thread(client: Any, upstream_request: UpstreamRequest, path: str) -> _OpenReply:
    return await _post_in_thread(client, upstream_request, _get_azure_path(client, upstream_request, path))


def _get_azure_path(client: Any, upstream_request: UpstreamRequest, path: str) -> str:
    """Return ``path`` as Azure has it: for Chat Completions below a deployment, by default named like the model.

    The SDK adds the deployment to bodies that it builds itself, and these bodies are not.
    """
    if upstream_request.api != OPENAI_CHAT_SPEC.api or "/deployments" in client.base_url.path:
        return path
    return f"/deployments/{quote(upstream_request.model, safe='')}{path}"


class _ThreadedRequest:
    """One request of a synchronous client. If it is abandoned during a step, it is closed when the step ends."""

    def __init__(self, post: Callable[[], Any]) -> None:
        self._post = post
        self._response: Any = None
        self._chunks: Iterator[bytes] = iter(())
        self._step_lock = Lock()
        self._is_abandoned = False
        # A limiter of its own: a step may block for minutes, and must not take a slot from other worker threads.
        self._limiter = CapacityLimiter(1)

    def send(self) -> Any:
        """Send the request and return the response, unread."""
        self._response = self._post().http_response
        self._chunks = self._response.iter_bytes()
        return self._response

    async def iter_chunks(self) -> AsyncIterator[bytes]:
        """Yield the body."""
        while True:
            chunk = await self.run_step(lambda: next(self._chunks, None))
            if chunk is None:
                return
            yield chunk

    async def run_step(self, work: Callable[[], T]) -> T:
        """Run ``work`` in a worker thread and return its result; a cancelled caller does not wait for its end."""
        return await to_thread.run_sync(self._run_locked, work, abandon_on_cancel=True, limiter=self._limiter)

    def _run_locked(self, work: Callable[[], T]) -> T:
        try:
            with self._step_lock:
                return work()
        finally:
            if self._is_abandoned:
                self._close_response()

    async def close(self) -> None:
        """Close the response now, or at the end of the step that is still running."""
        self._is_abandoned = True
        if self._step_lock.acquire(blocking=False):
            self._step_lock.release()
            with CancelScope(shield=True):
                await to_thread.run_sync(self._close_response)

    def _close_response(self) -> None:
        if self._response is not None:
            self._response.close()


# -- clients of Google -------------------------------------------------------------------------------------------------


async def _generate_by_google(client: Any, upstream_request: UpstreamRequest, path: str) -> _OpenReply:
    """Send a request through Google's client.

    Its public methods take typed values only; the private ones used here are those that take bytes.
    """
    api_client = client._api_client  # noqa: SLF001 -- see above
    model_path = _get_google_model_path(api_client, upstream_request.model)
    request = api_client._build_request("post", path.format(model=model_path), {})  # noqa: SLF001
    request.headers.update(upstream_request.headers)
    request.data = upstream_request.body
    byte_timeout = READ_TIMEOUT if request.timeout is None else inf
    with fail_after(byte_timeout):
        raw_response = await api_client._async_request_once(request, stream=True, implicit_retry=False)  # noqa: SLF001
    response = raw_response.response_stream
    return _OpenReply(
        _get_status(response),
        _get_headers(response),
        _iter_response_bytes(response),
        partial(_close_google_response, response),
        _find_request_secrets(response),
        byte_timeout,
    )


def _get_google_model_path(api_client: Any, model: str) -> str:
    """Return the model's name as a URL path: on Vertex with its publisher."""
    has_folder = model.startswith(("models/", "tunedModels/", "publishers/", "projects/"))
    if not has_folder:
        model = ("publishers/google/models/" if api_client.vertexai else "models/") + model
    return quote(model, safe="/")


def _iter_response_bytes(response: Any) -> AsyncIterator[bytes]:
    """Return the chunks of a response of httpx, or of aiohttp, which Google's client uses if it is installed."""
    if hasattr(response, "aiter_bytes"):
        chunks = response.aiter_bytes()
    else:
        chunks = response.content.iter_any()
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
    """Return the secrets of the request that ``thing``, a response or a connection error, belongs to."""
    request = getattr(thing, "request", None) or getattr(thing, "request_info", None)
    if request is None:
        return ()
    return find_secrets(request.headers.items(), str(request.url))


# -- recognizing a client ----------------------------------------------------------------------------------------------

_OPENAI = (OPENAI_CHAT_SPEC.api, OPENAI_RESPONSES_SPEC.api)
_SDK_CLIENTS: Mapping[str, _SdkClient] = {
    "anthropic.AsyncAnthropic": _SdkClient((ANTHROPIC_SPEC.api,), _post_async),
    "anthropic.Anthropic": _SdkClient((ANTHROPIC_SPEC.api,), _post_in_thread),
    "openai.AsyncOpenAI": _SdkClient(_OPENAI, _post_async),
    "openai.OpenAI": _SdkClient(_OPENAI, _post_in_thread),
    "openai.AsyncAzureOpenAI": _SdkClient(_OPENAI, _post_azure_async),
    "openai.AzureOpenAI": _SdkClient(_OPENAI, _post_azure_in_thread),
    "google.genai.Client": _SdkClient((GEMINI_SPEC.api,), _generate_by_google),
    "google.genai.AsyncClient": _SdkClient((GEMINI_SPEC.api,), _generate_by_google),
}
"""Supported clients by package and class; a subclass counts as the first of its bases that is listed."""


def wrap_upstream(client: object, api: str = "") -> Upstream:
    """Return a client of anthropic, openai or google.genai as an upstream; an upstream is returned as it is.

    ``api`` limits it to one API: OpenAI's clients speak Chat Completions and Responses, and without ``api`` each
    request names its own. Raises ``ConfigError`` for any other object, and for an API that the client does not speak.
    """
    if _is_upstream(client):
        if isinstance(client, HttpUpstream):
            _check_api(f"the upstream at {client.base_url}", (client.api,), api)
        return client
    for kind in type(client).__mro__:
        name = _find_client_name(kind)
        if name:
            sdk_client = _SDK_CLIENTS[name]
            return SdkUpstream(client, name, _check_api(name, sdk_client.apis, api), sdk_client.opener)
    raise ConfigError(
        f"{type(client).__module__}.{type(client).__qualname__} is not a supported client; give one of"
        f" {', '.join(_SDK_CLIENTS)}, or holdfast.HttpUpstream(base_url, api)"
    )


def _is_upstream(thing: object) -> TypeGuard[Upstream]:
    """Return whether ``thing`` is an `Upstream`; plain HTTP clients have a ``send`` too, for their own requests."""
    package = type(thing).__module__.partition(".")[0]
    if isinstance(thing, type) or package in _TRANSPORT_PACKAGES:
        return False
    return callable(getattr(thing, "send", None))


def _find_client_name(kind: type) -> str:
    """Return the key of ``_SDK_CLIENTS`` for a class, or "" if it is not listed."""
    for name in _SDK_CLIENTS:
        package, _, class_name = name.rpartition(".")
        if kind.__name__ == class_name and f"{kind.__module__}.".startswith(f"{package}."):
            return name
    return ""


def _check_api(name: str, apis: tuple[str, ...], api: str) -> tuple[str, ...]:
    """Return ``apis``, limited to ``api`` if that is given. Raises ``ConfigError`` if it is not among them."""
    if api and api not in apis:
        raise ConfigError(f"{name} does not speak {api!r}; it speaks {', '.join(apis)}: name one of those")
    return (api,) if api else apis
