"""Connections to providers that read the answer while the request is still being sent.

A server may refuse a large request before it has read all of it: it answers 413, 401 or 429 and closes the connection.
An HTTP client reads the answer only after its own write has failed, and by then the operating system has discarded the
answer together with the connection. The connections made here read while they write, and stop writing at a refusal.
They use the extension points that httpcore2 documents: a network backend, and the streams that it opens.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Self, cast
from urllib.request import getproxies

import httpcore2
import httpx2
from anyio import CancelScope, Event, create_task_group, move_on_after

# The buffers of any connection hold as much, so the write cannot block on a server that has stopped reading. Most
# requests are smaller, and cost nothing more than a plain write. Chosen by judgement.
UNLISTENED_BYTES = 65_536
"""Bytes of a request that are written without reading at the same time."""
# A refusal is far smaller. The bound keeps memory flat if a server sends a long answer before it has read the request.
# Chosen by judgement.
MAX_EARLY_ANSWER_BYTES = 262_144
"""Bytes of an answer that are kept while its request is being sent."""
ANSWER_BEGAN = "holdfast.answer_began"
"""Extension of a request whose answer broke off after its first byte: the server has accepted it, so that sending it
again would call the model twice. Set by the transports of this project."""
_CURRENT_REQUEST: ContextVar[httpx2.Request | None] = ContextVar("request", default=None)
"""The request whose response is awaited. httpcore2 does not tell a stream which request it carries."""
READ_SIZE = 65_536
"""Bytes that are read at a time: as many as httpcore2 asks for."""
# On an encrypted connection the bytes may not belong to an answer at all (a session ticket), so the wait must be short.
# Chosen by judgement: many times what the event loop needs.
SETTLE_SECONDS = 0.05
"""Seconds to wait for bytes that have arrived to come through the event loop."""
REFUSAL_PATTERN = re.compile(rb"(?:HTTP/1\.\d 1\d\d[^\n]*\n(?:[^\r\n][^\n]*\n)*\r?\n)*HTTP/1\.\d [345]\d\d")
"""Matches the beginning of an answer that is no success, after any interim responses such as 100 Continue.

A server that has begun a success may still be reading, so it is sent the rest of the request."""


class FullDuplexStream(httpcore2.AsyncNetworkStream):
    """A connection that reads while it is written to, and keeps the bytes for the next ``read``."""

    def __init__(self, stream: httpcore2.AsyncNetworkStream) -> None:
        self._stream = stream
        self._written_bytes = 0
        """Bytes written since the last read, which are those of the request being sent."""
        self._early_bytes = b""
        """Bytes that arrived while the request was being sent."""
        self.is_spoiled = False
        """Whether more was read than the answer: the next answer on this connection would begin with those bytes."""

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109 -- as it is called
        """Return the bytes that arrived while the request was sent, then those that arrive now; b"" at the end."""
        self._written_bytes = 0
        if self._early_bytes:
            data = self._early_bytes[:max_bytes]
            self._early_bytes = self._early_bytes[max_bytes:]
        else:
            data = await self._stream.read(max_bytes, timeout)
        request = _CURRENT_REQUEST.get()
        if data and request is not None:
            request.extensions[ANSWER_BEGAN] = True
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109
        """Send ``buffer``. Raises ``WriteError`` if the other side refused the request or closed the connection.

        httpcore2 takes a ``WriteError`` as the reason to stop sending and to read the answer.
        """
        # The first write is the head of the request: nothing can have been answered before it.
        is_first_write = not self._written_bytes
        self._written_bytes += len(buffer)
        has_arrived = not is_first_write and self._stream.get_extra_info("is_readable")
        fits_buffers = self._written_bytes <= UNLISTENED_BYTES and not has_arrived
        if is_first_write or fits_buffers:
            await self._stream.write(buffer, timeout)
            return
        failure: Exception | None = None
        writing, data_arrived, listening_ended = CancelScope(), Event(), Event()
        async with create_task_group() as tasks:
            tasks.start_soon(self._listen, writing, data_arrived, listening_ended)
            try:
                with writing:
                    if has_arrived:
                        # If the server has closed its side, this write is what makes the operating system discard the
                        # answer: read it first.
                        with move_on_after(SETTLE_SECONDS):
                            await data_arrived.wait()
                    await self._stream.write(buffer, timeout)
            except Exception as error:  # noqa: BLE001 -- raised below: the task group would wrap it in a group
                failure = error
                # The listener may still be about to read the answer that explains the failure.
                with move_on_after(SETTLE_SECONDS):
                    await listening_ended.wait()
            tasks.cancel_scope.cancel()
        if failure is not None:
            raise failure
        if writing.cancelled_caught:
            raise httpcore2.WriteError("the request was refused before all of it was sent")

    async def _listen(
        self,
        writing: CancelScope,
        data_arrived: Event,
        listening_ended: Event,
    ) -> None:
        """Keep the bytes that arrive until the connection ends; a refusal cancels ``writing``."""
        try:
            while len(self._early_bytes) < MAX_EARLY_ANSWER_BYTES:
                data = await self._stream.read(READ_SIZE)
                if not data:
                    return
                self._early_bytes += data
                if REFUSAL_PATTERN.match(self._early_bytes):
                    writing.cancel()
                    return
                data_arrived.set()
        except httpcore2.ReadError:
            return  # the next read raises it again
        finally:
            data_arrived.set()
            listening_ended.set()

    async def aclose(self) -> None:
        """Close the connection."""
        await self._stream.aclose()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> httpcore2.AsyncNetworkStream:
        """Return the same connection, encrypted."""
        return FullDuplexStream(await self._stream.start_tls(ssl_context, server_hostname, timeout))

    def get_extra_info(self, info: str) -> Any:
        """Return information about the connection; it counts as readable if it has early or surplus bytes.

        The pool takes a connection that is readable before a request as closed, and opens another.
        """
        if info == "is_readable" and (self._early_bytes or self.is_spoiled):
            return True
        return self._stream.get_extra_info(info)


class FullDuplexBackend(httpcore2.AsyncNetworkBackend):
    """Opens full-duplex connections."""

    def __init__(self) -> None:
        self._network = httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """Connect to ``port`` of ``host``."""
        stream = await self._network.connect_tcp(
            host,
            port,
            timeout,
            local_address,
            socket_options,
        )
        return FullDuplexStream(stream)

    async def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,  # noqa: ASYNC109
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """Connect to the socket at ``path``."""
        return FullDuplexStream(await self._network.connect_unix_socket(path, timeout, socket_options))

    async def sleep(self, seconds: float) -> None:
        """Wait between two tries to connect."""
        await self._network.sleep(seconds)


class FullDuplexTransport(httpx2.AsyncBaseTransport):
    """A transport for ``httpx2.AsyncClient`` over full-duplex connections."""

    def __init__(self, limits: httpx2.Limits) -> None:
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=httpx2.create_ssl_context(),
            max_connections=limits.max_connections,
            max_keepalive_connections=limits.max_keepalive_connections,
            keepalive_expiry=limits.keepalive_expiry,
            network_backend=FullDuplexBackend(),
        )

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send ``request`` and return the response, its body not read yet."""
        url = httpcore2.URL(
            scheme=request.url.raw_scheme,
            host=request.url.raw_host,
            port=request.url.port,
            target=request.url.raw_path,
        )
        pool_request = httpcore2.Request(
            request.method,
            url,
            headers=request.headers.raw,
            content=request.stream,
            extensions=request.extensions,
        )
        token = _CURRENT_REQUEST.set(request)
        try:
            with _translate_errors():
                answer = await self._pool.handle_async_request(pool_request)
        finally:
            _CURRENT_REQUEST.reset(token)
        return httpx2.Response(
            answer.status,
            headers=answer.headers,
            stream=_ResponseStream(answer),
            extensions=answer.extensions,
        )

    async def aclose(self) -> None:
        """Close all connections."""
        await self._pool.aclose()

    async def __aenter__(self) -> Self:
        """Return the transport; it is closed at the end of the block."""
        return self


class _ResponseStream(httpx2.AsyncByteStream):
    """The body of a response, as httpx2 reads it."""

    def __init__(self, answer: httpcore2.Response) -> None:
        self._answer = answer

    async def __aiter__(self) -> AsyncIterator[bytes]:
        with _translate_errors():
            async for piece in self._answer.aiter_stream():
                yield piece

    async def aclose(self) -> None:
        connection = self._answer.extensions.get("network_stream")
        if isinstance(connection, FullDuplexStream) and _has_read_too_much(self._answer):
            connection.is_spoiled = True
        await self._answer.aclose()


def _has_read_too_much(answer: httpcore2.Response) -> bool:
    """Return whether the parser holds bytes after ``answer``: httpcore2 2.16 would begin the next answer with them.

    httpcore2 has no public name for them. If its private names change, this returns True, and no connection is reused:
    slower, but never wrong.
    """
    try:
        data, _ = cast("Any", answer.stream)._stream._connection._h11_state.trailing_data  # noqa: SLF001 -- see above
    except AttributeError:
        return True
    return bool(data)


def _map_error_classes() -> dict[type[Exception], type[Exception]]:
    """Return the error of httpx2 for each error of httpcore2; they have the same names."""
    classes: dict[type[Exception], type[Exception]] = {}
    for name in httpcore2.__all__:
        error = getattr(httpcore2, name)
        is_error = isinstance(error, type) and issubclass(error, Exception)
        if is_error and hasattr(httpx2, name):
            classes[error] = getattr(httpx2, name)
    return classes


_ERROR_CLASSES = _map_error_classes()


@contextmanager
def _translate_errors() -> Iterator[None]:
    try:
        yield
    except tuple(_ERROR_CLASSES) as error:
        raise _ERROR_CLASSES[type(error)](str(error)) from error


def make_full_duplex_mounts(limits: httpx2.Limits = httpx2.Limits()) -> dict[str, httpx2.AsyncBaseTransport | None]:
    """Return ``mounts`` that make an ``httpx2.AsyncClient`` use full-duplex connections.

    Connections through a network proxy (``HTTPS_PROXY``, ``ALL_PROXY``) stay those of httpx2.
    """
    if getproxies().get("all"):
        return {}
    return {"all://": FullDuplexTransport(limits)}
