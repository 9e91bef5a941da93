"""Connections to providers: HTTP/1.1 over asyncio, parsed by httptools, as a transport of httpx2.

Why it is written by hand: bytes are parsed when they arrive, and all that arrived before somebody reads on is one
piece. httpx2's own transport pays for each piece of a stream with a timer, a cancel scope, a parser in Python and six
generators. Processor time of this proxy for 1,000 events, one by one and all at once, as measured by bench/proxy.py:

- this file: 141 and 13 ms (LiteLLM's pass-through: 215 and 62 ms)
- aiohttp 3.14.5 in its place: 169 and 13 ms
- ``engine/upstream/connections.py`` (httpcore2) in its place: 270 and 40 ms

aiohttp is fast enough. It was tried and dropped, because tests of this file hold what it does not:

- An answer that arrives on an idle connection is given to the next request on it, maybe another user's. A connection
  is also used again after bytes of a body that follow an answer to HEAD, and after chunks in HTTP/1.0.
- A chunk that is a byte short ends as a whole answer; a coding below the chunks is ignored.
- Answers that repeat their Content-Length, or have one beside chunks, or use HTTP/1.2, are refused.
- A refusal by a server that has shut down its side and reads no more is noticed when the server closes, not at once.
- Bytes of a header that are not UTF-8 are dropped, an empty query too; there is no time limit for writing.

This transport connects to servers directly, over TCP or TLS. Network proxies (``HTTPS_PROXY``) are left to httpx2's own
transport, and without httptools ``engine/upstream/connections.py`` does the same on httpcore2. Both notice a refusal
while they still send, and neither uses a connection again that has unexpected bytes after an answer. A head that
httptools refuses is parsed by h11 (``lenient_parser.py``), so that everything httpx2 accepts is accepted here.
"""

from __future__ import annotations

import re
import select
import socket
import ssl
from asyncio import Future, Protocol, TimerHandle, Transport, get_running_loop, sleep, timeout
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from typing import NamedTuple, cast

import anyio
import h11
import httptools
import httpx2
from anyio.abc import SocketAttribute

from holdfast.engine.upstream.connections import ANSWER_BEGAN
from holdfast.proxy.http.lenient_parser import LenientParser

MAX_HEAD_BYTES = 100 * 1024
"""Bytes of an answer's head, or between two pieces of its body (chunk extensions, trailers), as in h11 and httpx2."""
MAX_HELD_BYTES = 256 * 1024
"""Bytes of an answer that are held for a slow client before reading pauses: one full read of uvloop's."""
FIRST_REFUSAL_STATUS = 300
"""The first status that is no success. After a success that began early the rest of the request is still sent."""
TURNS_TO_READ = 3
"""Turns of the event loop after which bytes that have arrived were read: asyncio needs two, uvloop one."""
DEFAULT_PORTS = {"http": 80, "https": 443}
_TOKEN_PATTERN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
"""Characters of a method or a header's name (RFC 9110, 5.6.2)."""
_LINE_BREAK = re.compile(rb"[\0\r\n]")
"""Bytes that would end a header too early."""
_TARGET_BREAK = re.compile(rb"[\0-\x20\x7f]")
"""Bytes that would end the target of a request too early."""
_BODY_HEADERS = frozenset({b"content-length", b"transfer-encoding"})
"""Headers that say where a body ends."""


class ServerOrigin(NamedTuple):
    """A server; requests to the same one may share a connection."""

    scheme: str
    host: str
    port: int

    @classmethod
    def from_url(cls, url: httpx2.URL) -> ServerOrigin:
        """Return the server of ``url``; raise ``UnsupportedProtocol`` for anything but HTTP."""
        if url.scheme not in DEFAULT_PORTS:
            raise httpx2.UnsupportedProtocol(f"{url.scheme or 'no scheme'}:// is not supported; use http or https")
        port = url.port
        if port is None:
            port = DEFAULT_PORTS[url.scheme]
        return cls(url.scheme, url.raw_host.decode("ascii"), port)


class DirectTransport(httpx2.AsyncBaseTransport):
    """Sends requests directly to their servers, and keeps up to ``max_idle`` connections for later requests."""

    def __init__(self, max_idle: int, idle_seconds: float) -> None:
        self._max_idle = max_idle
        self._idle_seconds = idle_seconds
        self._idle: list[HttpConnection] = []
        """The most recently used is last."""
        self._open: set[HttpConnection] = set()
        self._tls: ssl.SSLContext | None = None

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send ``request`` and return its response once the head has arrived.

        The ``trace`` extension is called as httpcore calls it, but only when a connection is made and when the head is
        sent.
        """
        timeouts = request.extensions.get("timeout", {})
        trace = request.extensions.get("trace")
        origin = ServerOrigin.from_url(request.url)
        async with aclosing(_pieces_to_write(request)) as pieces:
            # The first piece may take its time to come from the client. No connection is taken until it is here, so
            # that nothing that arrives on a kept connection meanwhile can pass for the answer.
            first = await anext(pieces)
            connection = self._take_idle(origin)
            if connection is None:
                if trace is not None:
                    await trace("connection.connect_tcp.started", {})
                connection = await self._connect(origin, timeouts.get("connect"))
            try:
                if trace is not None:
                    await trace("http11.send_request_headers.started", {})
                await connection.send_request(request.method, first, pieces, timeouts)
            except BaseException:
                connection.abort()
                if connection.has_begun_to_answer:
                    request.extensions[ANSWER_BEGAN] = True
                raise
        return httpx2.Response(connection.status, headers=connection.headers, stream=_AnswerBody(connection, self))

    def release(self, connection: HttpConnection) -> None:
        """Keep ``connection`` for the next request to the same server if it can take one, else close it."""
        if not connection.can_be_kept():
            connection.abort()
            return
        connection.stop_timer()
        connection.idle_until = get_running_loop().time() + self._idle_seconds
        self._idle.append(connection)
        if len(self._idle) > self._max_idle:
            self._idle.pop(0).abort()

    async def aclose(self) -> None:
        """Close all connections."""
        for connection in [*self._open]:
            connection.abort()
        self._idle.clear()

    def _take_idle(self, origin: ServerOrigin) -> HttpConnection | None:
        """Return the most recently used idle connection to ``origin``, or None; close those that were idle too long.

        A server may have closed one just now, in bytes that nobody has read yet, so that is checked too.
        """
        now = get_running_loop().time()
        idle_connection = None
        # The most recently used first: it is the least likely to have been closed by the server.
        for connection in [*reversed(self._idle)]:
            if connection.is_lost or connection.idle_until <= now:
                self._idle.remove(connection)
                connection.abort()
            elif idle_connection is None and connection.origin == origin:
                self._idle.remove(connection)
                if connection.has_unread_bytes():
                    connection.abort()
                else:
                    idle_connection = connection
        return idle_connection

    async def _connect(self, origin: ServerOrigin, seconds: float | None) -> HttpConnection:
        """Return a new connection; raise ``ConnectError`` or ``ConnectTimeout`` if that fails."""
        connection = HttpConnection(origin, self._open)
        tls = None
        tls_name = None
        if origin.scheme == "https":
            tls = self._tls_context()
            tls_name = origin.host
        try:
            async with timeout(seconds):
                # anyio tries the addresses of a host side by side (RFC 8305), which uvloop cannot. Its stream is closed
                # again; the connection lives on in a second handle.
                stream = await anyio.connect_tcp(origin.host, origin.port)
                async with stream:
                    await get_running_loop().create_connection(
                        lambda: connection,
                        sock=_second_handle(stream.extra(SocketAttribute.raw_socket)),  # noqa: S610 -- no Django
                        ssl=tls,
                        server_hostname=tls_name,
                    )
        except TimeoutError as error:
            if connection in self._open:
                connection.abort()
            raise httpx2.ConnectTimeout(str(error) or f"no connection within {seconds:g} s") from error
        except OSError as error:
            # This includes unknown names and failed TLS.
            raise httpx2.ConnectError(str(error)) from error
        except BaseException:
            # The connection may have been made just when the request was cancelled.
            if connection in self._open:
                connection.abort()
            raise
        return connection

    def _tls_context(self) -> ssl.SSLContext:
        """Return the TLS settings of httpx2; reading certificates takes a while, so they are read once."""
        if self._tls is None:
            self._tls = httpx2.create_ssl_context()
            self._tls.set_alpn_protocols(["http/1.1"])
        return self._tls


def _second_handle(sock: socket.socket) -> socket.socket:
    """Return another socket for the same connection, which stays open when ``sock`` is closed."""
    second = socket.fromfd(sock.fileno(), sock.family, socket.SOCK_STREAM)
    second.setblocking(False)  # noqa: FBT003 -- it takes no name
    return second


class HttpConnection(Protocol):
    """One connection, on which requests are sent and answered one after the other."""

    def __init__(self, origin: ServerOrigin, siblings: set[HttpConnection]) -> None:
        self.origin = origin
        self._siblings = siblings
        """All open connections; this one is among them while it is open."""
        self.idle_until = 0.0
        """When to close it if no request uses it, by the clock of the event loop."""
        self.is_lost = False
        """Whether either side closed it."""
        self.status = 0
        """Status of the answer, once its head has arrived."""
        self.headers: list[tuple[bytes, bytes]] = []
        self._pieces: list[bytes] = []
        """Pieces of the body that arrived and were not read yet."""
        self._held_bytes = 0
        """Their size."""
        self._request_count = 0
        """Number of requests sent. A reader of an earlier answer must get nothing of a later one."""
        self._method = ""
        self._head: list[bytes] = []
        """Bytes of the head that arrived, in case another parser has to read it."""
        self._overhead_bytes = 0
        """Bytes that arrived of the head, or since the last piece of the body."""
        self._is_complete = True
        """Whether the last answer is complete; true before the first request."""
        self._has_sent_first = True
        """Whether any of the last request was sent; anything that arrives before is no answer to it."""
        self._is_sent = True
        """Whether the last request was sent to its end."""
        self._keeps_alive = True
        """Whether the server accepts another request on this connection, by its last answer."""
        self._is_informational = False
        """Whether the answer being parsed has status 1xx, so that the final one follows."""
        self._error: httpx2.TransportError | None = None
        """Why the answer ends early."""
        self._is_reading_paused = self._is_writing_paused = False
        self._waiter: Future[None] | None = None
        self._waits_since = 0.0
        self._timeout: float | None = None
        """Seconds that may pass without a byte."""
        self._timer: TimerHandle | None = None

    @property
    def has_begun_to_answer(self) -> bool:
        """Whether anything came that answers the request, which its server then has taken."""
        return bool(self.status or self._head)

    # -- the request ---------------------------------------------------------------------------------------------------

    async def send_request(
        self,
        method: str,
        first: tuple[bytes, ...],
        remaining_pieces: AsyncIterator[tuple[bytes, ...]],
        timeouts: Mapping[str, float | None],
    ) -> None:
        """Send ``first`` and ``remaining_pieces``; return once ``status`` and ``headers`` of the answer are here.

        Raises httpx2's errors if the server closes the connection, does not speak HTTP, accepts no bytes for
        ``timeouts["write"]`` seconds, or sends none for ``timeouts["read"]``.
        """
        self._request_count += 1
        self._method = method
        self._timeout = timeouts.get("write")
        self.status = 0
        self.headers = []
        self._head = []
        self._overhead_bytes = 0
        self._error = None
        self._is_complete = self._has_sent_first = self._is_sent = self._is_informational = False
        if self.is_lost:
            raise httpx2.ReadError("the server closed the connection before the request was sent")
        self._parser: httptools.HttpResponseParser | LenientParser = httptools.HttpResponseParser(self)
        # h11 accepts such spaces too. Other leniencies would let a chunk that is a byte short pass for a whole one.
        self._parser.set_dangerous_leniencies(lenient_spaces_after_chunk_size=True)
        await self._write_request(first, remaining_pieces)
        self.stop_timer()
        self._timeout = timeouts.get("read")
        while not self.status:
            if self._error is not None:
                raise self._error
            await self._wait_for_change()

    async def _write_request(
        self,
        first: tuple[bytes, ...],
        remaining_pieces: AsyncIterator[tuple[bytes, ...]],
    ) -> None:
        """Write a request; stop early if the server is gone or has refused it."""
        self._has_sent_first = True
        self._transport.writelines(first)
        async for piece in remaining_pieces:
            if not await self._wait_until_writable():
                return
            self._transport.writelines(piece)
        self._is_sent = True

    async def _wait_until_writable(self) -> bool:
        """Wait until more can be written; return False if the server reads no more of this request.

        Bytes that have arrived are handled first. They may be a refusal, which a write to a connection that its server
        has closed would lose.
        """
        for _ in range(TURNS_TO_READ):
            if self.is_lost or not self.has_unread_bytes():
                break
            await sleep(0)
        while self._is_writing_paused and self._error is None and self.status < FIRST_REFUSAL_STATUS:
            await self._wait_for_change()
        is_open = self._error is None and not self.is_lost and not self._transport.is_closing()
        return is_open and self.status < FIRST_REFUSAL_STATUS

    # -- the answer ----------------------------------------------------------------------------------------------------

    async def iter_body(self) -> AsyncIterator[bytes]:
        """Yield the body, everything that arrived meanwhile as one piece; then raise the error that ended it, if any.

        Raises ``StreamClosed`` if the connection has gone on to another request.
        """
        number = self._request_count
        while True:
            if self._request_count != number:
                raise httpx2.StreamClosed
            if self._pieces:
                yield self._take_pieces()
            elif self._is_complete:
                return
            elif self._error is not None:
                raise self._error
            else:
                await self._wait_for_change()

    def _take_pieces(self) -> bytes:
        """Return everything of the body that arrived and was not read yet, and go on reading if that was paused."""
        # One piece is returned as it is, without a copy.
        if len(self._pieces) == 1:
            body = self._pieces[0]
        else:
            body = b"".join(self._pieces)
        self._pieces.clear()
        self._held_bytes = 0
        if self._is_reading_paused and not (self.is_lost or self._transport.is_closing()):
            self._is_reading_paused = False
            self._transport.resume_reading()
        return body

    async def _wait_for_change(self) -> None:
        """Return when something happened, whatever it was."""
        loop = get_running_loop()
        waiter: Future[None] = loop.create_future()
        self._waiter = waiter
        self._waits_since = loop.time()
        if self._timer is None and self._timeout is not None:
            self._timer = loop.call_later(self._timeout, self._check_timeout)
        try:
            await waiter
        finally:
            # Another one is there if the next request waits already.
            if self._waiter is waiter:
                self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _check_timeout(self) -> None:
        """Fail the answer if nothing happened for too long. One timer serves a whole answer, not each piece of it."""
        self._timer = None
        # The client is slow, not the server. The next wait begins another timer.
        if self._waiter is None or self._timeout is None:
            return
        loop = get_running_loop()
        remaining_seconds = self._waits_since + self._timeout - loop.time()
        if remaining_seconds > 0:
            self._timer = loop.call_later(remaining_seconds, self._check_timeout)
        else:
            message = f"the server was silent for {self._timeout:g} s"
            if self._is_sent:
                self._fail_answer(httpx2.ReadTimeout(message))
            else:
                self._fail_answer(httpx2.WriteTimeout(message))

    def _fail_answer(self, fault: httpx2.TransportError) -> None:
        """End the answer with ``fault``, unless it is complete, and close the connection."""
        if not self._is_complete and self._error is None:
            self._error = fault
        self.abort()
        self._wake()

    # -- keeping and closing the connection ----------------------------------------------------------------------------

    def can_be_kept(self) -> bool:
        """Return whether another request can be sent on this connection: it is idle, and its server keeps it open."""
        if self.is_lost or not self._keeps_alive:
            return False
        has_written_all = self._is_sent and not self._transport.get_write_buffer_size()
        return has_written_all and self._is_complete and not self._pieces

    def stop_timer(self) -> None:
        """Cancel the timeout."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def has_unread_bytes(self) -> bool:
        """Return whether something arrived, such as the connection's end, that the event loop has not reported yet."""
        poll = select.poll()
        poll.register(self._transport.get_extra_info("socket").fileno(), select.POLLIN)
        return bool(poll.poll(0))

    def abort(self) -> None:
        """Close the connection at once."""
        self.is_lost = True
        self._siblings.discard(self)
        self.stop_timer()
        self._transport.abort()

    # -- called by the event loop --------------------------------------------------------------------------------------

    def connection_made(self, transport: object) -> None:
        """Receive the transport."""
        self._transport = cast("Transport", transport)
        self._siblings.add(self)

    def data_received(self, data: bytes) -> None:
        """Parse bytes that arrived."""
        # Nobody asked for these bytes, and the next answer would begin with them.
        if self._is_complete:
            self.abort()
            return
        if not self._has_sent_first:
            self._fail_answer(httpx2.ReadError("the server answered before a request was sent"))
            return
        if not self.status:
            # Left over from something else, and httptools would skip it.
            if not self._head and not data.startswith(b"H"):
                self._fail_answer(httpx2.RemoteProtocolError("the answer does not begin with HTTP"))
                return
            self._head.append(data)
        self._overhead_bytes += len(data)
        self._parse(data)
        if self.status:
            self._head = []
        if self._overhead_bytes > MAX_HEAD_BYTES:
            message = f"more than {MAX_HEAD_BYTES:,} bytes of headers, or between two pieces of the body"
            self._fail_answer(httpx2.RemoteProtocolError(message))
        if self._held_bytes > MAX_HELD_BYTES and not self._is_reading_paused and not self.is_lost:
            self._is_reading_paused = True
            self._transport.pause_reading()
        self._wake()

    def _parse(self, data: bytes) -> None:
        """Parse ``data``. A head that httptools refuses is parsed again from its beginning by h11, as httpx2 does."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._fail_answer(httpx2.RemoteProtocolError("the server switched to another protocol without being asked"))
        except h11.RemoteProtocolError as error:
            self._fail_answer(httpx2.RemoteProtocolError(str(error)))
        except httptools.HttpParserError as error:
            if self.status:
                self._fail_answer(httpx2.RemoteProtocolError(str(error)))
                return
            # The head is parsed from its beginning once more, so nothing of it may be kept.
            self.headers = []
            self._is_informational = False
            self._parser = LenientParser(self, self._method, MAX_HEAD_BYTES)
            self._parse(b"".join(self._head))

    def eof_received(self) -> None:
        """End the answer: no more of it comes, even if the request is still being sent."""
        self._end_answer(None)
        self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        """End the answer, because the connection was lost."""
        self._end_answer(error)

    def _end_answer(self, error: Exception | None) -> None:
        """End the answer: one without a declared length is complete now, any other one was broken off."""
        self.is_lost = True
        self._siblings.discard(self)
        is_ended = self._is_complete or self._error is not None
        if not is_ended and error is not None:
            self._error = httpx2.ReadError(str(error))
        elif not is_ended and self.status and not self._has_body_length():
            self._is_complete = True
            self._keeps_alive = False
        elif not is_ended:
            message = "the server closed the connection before the end of its answer"
            self._error = httpx2.RemoteProtocolError(message)
        self._wake()

    def _has_body_length(self) -> bool:
        return any(name.lower() in _BODY_HEADERS for name, _ in self.headers)

    def pause_writing(self) -> None:
        """Stop writing until the server has read more."""
        self._is_writing_paused = True

    def resume_writing(self) -> None:
        """Continue writing."""
        self._is_writing_paused = False
        self._wake()

    # -- called by the parser ------------------------------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        """Receive a header; those after the body (trailers) are dropped."""
        if not self.status:
            self.headers.append((name, value.strip(b" \t")))

    def on_headers_complete(self) -> None:
        """Receive the end of a head."""
        status = self._parser.get_status_code()
        if self._is_complete:
            return
        is_informational = 100 <= status < 200
        if not isinstance(self._parser, LenientParser) and self._is_odd_head(status):
            raise _OddHeadError
        if is_informational:
            self._is_informational = True
            return
        self.status = status
        self._overhead_bytes = 0
        if self._method == "HEAD":
            self._complete_answer()

    def _is_odd_head(self, status: int) -> bool:
        """Return whether h11 must decide about a head, because it does not say clearly where the body ends.

        httptools takes other codings for chunks, and accepts chunks in HTTP/1.0, where a server in between may not see
        them (RFC 9112, 6.1).
        """
        if status < 100:
            return True
        lengths: list[tuple[bytes, bytes]] = []
        for name, value in self.headers:
            if name.lower() in _BODY_HEADERS:
                lengths.append((name.lower(), value.lower()))
        if not lengths:
            return False
        # An informational answer has no body, so a length beside it belongs to something else.
        if status < 200:
            return True
        if all(name == b"content-length" for name, _ in lengths):
            return False
        is_chunked = lengths == [(b"transfer-encoding", b"chunked")]
        return not is_chunked or self._parser.get_http_version() != "1.1"

    def on_body(self, piece: bytes) -> None:
        """Receive a piece of the body; bytes after an answer to HEAD may be half of another answer."""
        if self._is_complete:
            self._keeps_alive = False
            return
        self._pieces.append(piece)
        self._held_bytes += len(piece)
        self._overhead_bytes = 0

    def on_message_complete(self) -> None:
        """Receive the end of an answer; after an informational one another follows."""
        if self._is_informational:
            self._is_informational = False
            self.headers = []
        elif not self._is_complete:
            self._complete_answer()

    def on_message_begin(self) -> None:
        """Do not keep a connection on which a second answer follows the requested one."""
        if self._is_complete:
            self._keeps_alive = False

    def _complete_answer(self) -> None:
        self._is_complete = True
        self._keeps_alive = self._parser.should_keep_alive()


class _OddHeadError(Exception):
    """A head that httptools accepts, but whose body it may end at another place than others do; h11 decides."""


class _AnswerBody(httpx2.AsyncByteStream):
    """The body of an answer, as it arrives."""

    def __init__(self, connection: HttpConnection, transport: DirectTransport) -> None:
        self._connection = connection
        self._transport = transport
        self._is_closed = False

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._connection.iter_body()

    async def aclose(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._transport.release(self._connection)


async def _pieces_to_write(request: httpx2.Request) -> AsyncGenerator[tuple[bytes, ...]]:
    """Yield the bytes to write for ``request``, its head together with the first piece of its body.

    Raises ``LocalProtocolError`` if it cannot be sent.
    """
    head = _request_head(request)
    is_begun = False
    async with aclosing(_framed_body(request)) as body:
        async for piece in body:
            if is_begun:
                yield piece
            else:
                yield (head, *piece)
            is_begun = True
    if not is_begun:
        yield (head,)


def _request_head(request: httpx2.Request) -> bytes:
    """Return the request line and the headers; raise ``LocalProtocolError`` if one contains a line break."""
    method = request.method.encode()
    target = request.url.raw_path
    if not _TOKEN_PATTERN.fullmatch(method) or _TARGET_BREAK.search(target):
        raise httpx2.LocalProtocolError(f"{method!r} {target!r} cannot be sent: it has characters that end the line")
    lines = [method + b" " + target + b" HTTP/1.1\r\n"]
    for name, value in request.headers.raw:
        if not _TOKEN_PATTERN.fullmatch(name) or _LINE_BREAK.search(value):
            raise httpx2.LocalProtocolError(f"the header {name!r} cannot be sent: it has invalid characters")
        lines.append(name + b": " + value + b"\r\n")
    return b"".join([*lines, b"\r\n"])


def _parse_body_length(request: httpx2.Request) -> int | None:
    """Return the length of the body by its headers, or None if it is sent in chunks."""
    # Two ways to tell where a body ends are how requests are smuggled past a proxy.
    lengths = {(name.lower(), value) for name, value in request.headers.raw if name.lower() in _BODY_HEADERS}
    if len(lengths) > 1:
        raise httpx2.LocalProtocolError("the headers give the length of the body in two ways")
    if not lengths:
        return 0
    name, value = lengths.pop()
    if name == b"transfer-encoding":
        return None
    if not value.isdigit():
        raise httpx2.LocalProtocolError(f"{value!r} is not a content-length")
    return int(value)


async def _framed_body(request: httpx2.Request) -> AsyncGenerator[tuple[bytes, ...]]:
    """Yield the body framed in chunks or by its length; raise ``LocalProtocolError`` if it has another length."""
    length = _parse_body_length(request)
    is_chunked = length is None
    remaining_bytes = length or 0
    pieces = aiter(cast("httpx2.AsyncByteStream", request.stream))
    async with aclosing(cast("AsyncGenerator[bytes]", pieces)):
        async for piece in pieces:
            remaining_bytes -= len(piece)
            if remaining_bytes < 0 and not is_chunked:
                raise httpx2.LocalProtocolError("the body has more bytes than its content-length says")
            # An empty chunk would end the body.
            if not piece:
                continue
            if is_chunked:
                yield (b"%x\r\n" % len(piece), piece, b"\r\n")
            else:
                yield (piece,)
    if is_chunked:
        yield (b"0\r\n\r\n",)
    elif remaining_bytes:
        raise httpx2.LocalProtocolError("the body has fewer bytes than its content-length says")
