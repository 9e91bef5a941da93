"""Connections to providers on which an answer is heard while its request is still being sent.

A server may refuse a large request before it has read it: it answers 413, 401 or 429 and closes the connection. The
HTTP client reads the answer only when its own write has failed, and by then the operating system has thrown the answer
away together with the connection. So the connections made here read while they write, and stop writing at a refusal.
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

UNLISTENED_BYTES = 65_536
"""[H] Bytes of a request that are written without listening: the buffers of any connection take as much, so that the
write cannot wait for a server that has stopped reading. Most requests are smaller, and cost nothing more."""
MAX_EARLY_ANSWER_BYTES = 262_144
"""[H] Bytes of an answer that are held while its request is being sent: a refusal is far smaller, and memory stays flat
where a server answers at length before it has read everything."""
ANSWER_BEGAN = "holdfast.answer_began"
"""The extension of a request whose answer broke off after its first byte: the server has taken it, so that sending it
again would have a model called twice. The transports of this project set it."""
_CURRENT_REQUEST: ContextVar[httpx2.Request | None] = ContextVar("request", default=None)
"""The request whose head is waited for, for the stream that it goes over: httpcore2 does not tell which that is."""
READ_SIZE = 65_536
"""Bytes that are read at a time: as many as httpcore2 asks for."""
SETTLE_SECONDS = 0.05
"""[H] Seconds for bytes that have arrived to come through the event loop. On an encrypted connection they may be none
of an answer (a session ticket), so nobody waits longer for one."""
REFUSAL_PATTERN = re.compile(rb"(?:HTTP/1\.\d 1\d\d[^\n]*\n(?:[^\r\n][^\n]*\n)*\r?\n)*HTTP/1\.\d [345]\d\d")
"""The beginning of an answer, behind interim ones such as 100 Continue, that is no success. A server that has begun a
success may still read, so it is sent the rest."""


class FullDuplexStream(httpcore2.AsyncNetworkStream):
    """A connection that keeps what arrives while it is written to, for whoever reads next."""

    def __init__(self, stream: httpcore2.AsyncNetworkStream) -> None:
        self._stream = stream
        self._written_bytes = 0
        """Bytes written since the last read: of the request that is on its way."""
        self._early_bytes = b""
        """What arrived meanwhile."""
        self.is_spoiled = False
        """Whether more was read than the answer that was asked for: the next answer would begin with it."""

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109 -- as it is called
        """Return what arrived while the request was sent, then what arrives now; nothing at the end."""
        self._written_bytes = 0
        if self._early_bytes:
            data, self._early_bytes = self._early_bytes[:max_bytes], self._early_bytes[max_bytes:]
        else:
            data = await self._stream.read(max_bytes, timeout)
        request = _CURRENT_REQUEST.get()
        if data and request is not None:
            request.extensions[ANSWER_BEGAN] = True
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109
        """Send ``buffer``; ``WriteError`` where the other side refused the request or closed the connection.

        httpcore2 takes that as a reason to stop sending, and to read the answer.
        """
        is_first, self._written_bytes = not self._written_bytes, self._written_bytes + len(buffer)
        has_arrived = not is_first and self._stream.get_extra_info("is_readable")
        if is_first or (self._written_bytes <= UNLISTENED_BYTES and not has_arrived):
            await self._stream.write(buffer, timeout)
            return
        failure: Exception | None = None
        writing, something, over = CancelScope(), Event(), Event()
        async with create_task_group() as tasks:
            tasks.start_soon(self._listen, writing, something, over)
            try:
                with writing:
                    if has_arrived:  # to write now may be what closes the connection, with all that it holds
                        with move_on_after(SETTLE_SECONDS):
                            await something.wait()
                    await self._stream.write(buffer, timeout)
            except Exception as error:  # noqa: BLE001 -- it is raised behind the group, which would wrap it
                failure = error
                with move_on_after(SETTLE_SECONDS):
                    await over.wait()
            tasks.cancel_scope.cancel()
        if failure is not None:
            raise failure
        if writing.cancelled_caught:
            raise httpcore2.WriteError("the request was refused before all of it was sent")

    async def _listen(self, writing: CancelScope, something: Event, over: Event) -> None:
        """Keep what arrives until the connection ends; a refusal cancels ``writing``."""
        try:
            while len(self._early_bytes) < MAX_EARLY_ANSWER_BYTES:
                data = await self._stream.read(READ_SIZE)
                if not data:
                    return
                self._early_bytes += data
                if REFUSAL_PATTERN.match(self._early_bytes):
                    writing.cancel()
                    return
                something.set()
        except httpcore2.ReadError:
            return  # whoever reads next is told the same
        finally:
            something.set()
            over.set()

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
        """Return what is asked of the connection; it is readable, too, where something was heard or read too much.

        The pool takes a connection that is readable before a request for one that has ended.
        """
        if info == "is_readable" and (self._early_bytes or self.is_spoiled):
            return True
        return self._stream.get_extra_info(info)


class FullDuplexBackend(httpcore2.AsyncNetworkBackend):
    """Opens connections that listen while they are written to."""

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
        """Return a connection to ``port`` of ``host``."""
        stream = await self._network.connect_tcp(host, port, timeout, local_address, socket_options)
        return FullDuplexStream(stream)

    async def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,  # noqa: ASYNC109
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """Return a connection to the socket at ``path``."""
        return FullDuplexStream(await self._network.connect_unix_socket(path, timeout, socket_options))

    async def sleep(self, seconds: float) -> None:
        """Wait between two tries to connect."""
        await self._network.sleep(seconds)


class FullDuplexTransport(httpx2.AsyncBaseTransport):
    """The transport of an ``httpx2.AsyncClient`` over connections that listen."""

    def __init__(self, limits: httpx2.Limits) -> None:
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=httpx2.create_ssl_context(),
            max_connections=limits.max_connections,
            max_keepalive_connections=limits.max_keepalive_connections,
            keepalive_expiry=limits.keepalive_expiry,
            network_backend=FullDuplexBackend(),
        )

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Return the answer to ``request``, its body not read yet."""
        url = httpcore2.URL(
            scheme=request.url.raw_scheme, host=request.url.raw_host, port=request.url.port, target=request.url.raw_path
        )
        pool_request = httpcore2.Request(
            request.method, url, headers=request.headers.raw, content=request.stream, extensions=request.extensions
        )
        token = _CURRENT_REQUEST.set(request)
        try:
            with _translate_errors():
                answer = await self._pool.handle_async_request(pool_request)
        finally:
            _CURRENT_REQUEST.reset(token)
        return httpx2.Response(
            answer.status, headers=answer.headers, stream=_ResponseStream(answer), extensions=answer.extensions
        )

    async def aclose(self) -> None:
        """Close every connection."""
        await self._pool.aclose()

    async def __aenter__(self) -> Self:
        """Return the transport; it is closed at the end of the block."""
        return self


class _ResponseStream(httpx2.AsyncByteStream):
    """The body of an answer, as httpx2 reads it."""

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
    """Return whether bytes behind ``answer`` lie in its parser, where httpcore2 2.16 begins the next answer with them.

    It has no public name for them. Where its own names change, this is True, and no connection is used twice.
    """
    try:
        data, _ = cast("Any", answer.stream)._stream._connection._h11_state.trailing_data  # noqa: SLF001 -- see above
    except AttributeError:
        return True
    return bool(data)


_ERROR_CLASSES = {
    error: getattr(httpx2, name)
    for name in httpcore2.__all__
    if isinstance(error := getattr(httpcore2, name), type) and issubclass(error, Exception) and hasattr(httpx2, name)
}
"""The errors of httpcore2, and those that httpx2 raises for them: they have the same names."""


@contextmanager
def _translate_errors() -> Iterator[None]:
    try:
        yield
    except tuple(_ERROR_CLASSES) as error:
        raise _ERROR_CLASSES[type(error)](str(error)) from error


def make_full_duplex_mounts(limits: httpx2.Limits = httpx2.Limits()) -> dict[str, httpx2.AsyncBaseTransport | None]:
    """Return the ``mounts`` with which an ``httpx2.AsyncClient`` listens on every connection of its own.

    Connections through a proxy of the network (``HTTPS_PROXY``, ``ALL_PROXY``) stay those of httpx2.
    """
    return {} if getproxies().get("all") else {"all://": FullDuplexTransport(limits)}
