"""DirectTransport gives the answers that httpx2's own transport makes of the same bytes."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import asynccontextmanager
from functools import partial

import httpx2
import pytest

from holdfast.engine.upstream.connections import FullDuplexTransport
from holdfast.proxy.http.direct_transport import MAX_HELD_BYTES, DirectTransport, ServerOrigin
from holdfast.proxy.server import _make_provider_client
from holdfast.proxy.settings import Settings

LOOPBACK = "127.0.0.1"
OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
CHUNKS = b"5\r\nkelp \r\n4\r\nrock\r\n0\r\n\r\n"
ANSWERS = {
    "chunks": CHUNKED + CHUNKS,
    "a length": OK + b"Content-Length: 4\r\nX-Kelp:  a \r\nx-kelp: b\r\n\r\nkelp",
    "until the end": OK + b"X-Kelp: a\r\n\r\nkelp",
    "HTTP/1.0": b"HTTP/1.0 200 OK\r\n\r\nkelp",
    "nothing": b"HTTP/1.1 204 No Content\r\n\r\n",
    "not modified": b"HTTP/1.1 304 Not Modified\r\nContent-Length: 4\r\n\r\n",
    "no reason": b"HTTP/1.1 200\r\nContent-Length: 4\r\n\r\nkelp",
    "continue first": b"HTTP/1.1 100 Continue\r\n\r\n" + CHUNKED + CHUNKS,
    "hints first": b"HTTP/1.1 103 Early Hints\r\nLink: </kelp>\r\n\r\n" + CHUNKED + CHUNKS,
    "trailers": CHUNKED + b"4\r\nkelp\r\n0\r\nX-Sum: 1\r\n\r\n",
    "chunks with names": CHUNKED + b"4;kelp=1\r\nkelp\r\n0\r\n\r\n",
    "chunks with spaces": CHUNKED + b"4 \r\nkelp\r\n0\r\n\r\n",
    "chunks and a length": OK + b"Content-Length: 9\r\nTransfer-Encoding: chunked\r\n\r\n" + CHUNKS,
    "bare line ends": b"HTTP/1.1 200 OK\nContent-Length: 4\n\nkelp",
    "closes": OK + b"Connection: close\r\nContent-Length: 4\r\n\r\nkelp",
    "no answer": b"",
    "half a head": b"HTTP/1.1 200 OK\r\nContent-",
    "half a chunk": CHUNKED + b"5\r\nke",
    "no last chunk": CHUNKED + b"4\r\nkelp\r\n",
    "too short": OK + b"Content-Length: 9\r\n\r\nkelp",
    "another protocol": b"SSH-2.0-OpenSSH_9.6\r\n",
    "no length": OK + b"Content-Length: kelp\r\n\r\nkelp",
    "two lengths": OK + b"Content-Length: 4\r\nContent-Length: 5\r\n\r\nkelp!",
    "a length twice": OK + b"Content-Length: 4\r\nContent-Length: 4\r\n\r\nkelp",
    "a length listed twice": OK + b"Content-Length: 4, 4\r\n\r\nkelp",
    "a coding below chunks": OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n" + CHUNKS,
    "a coding below chunks that end early": OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n4\r\nkelp\r\n",
    "a coding above chunks": OK + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: gzip\r\n\r\n" + CHUNKS,
    "chunks in chunks": OK + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n" + CHUNKS,
    "a coding without chunks": OK + b"Transfer-Encoding: gzip\r\n\r\nkelp",
    "chunks with a weight": OK + b"Transfer-Encoding: chunked;q=1\r\n\r\n" + CHUNKS,
    "chunks in HTTP/1.0": b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + CHUNKS,
    "hints with a length": b"HTTP/1.1 110 Odd\r\nContent-Length: 4\r\n\r\n" + CHUNKED + CHUNKS,
    "hints with a body": b"HTTP/1.1 110 Odd\r\nContent-Length: 4\r\n\r\nrock" + CHUNKED + CHUNKS,
    "hints that close": b"HTTP/1.1 103 Early Hints\r\nConnection: close\r\n\r\n" + CHUNKED + CHUNKS,
    "HTTP/1.2": b"HTTP/1.2 200 OK\r\nContent-Length: 4\r\n\r\nkelp",
    "a folded header": OK + b"X-Kelp: a\r\n b\r\nContent-Length: 4\r\n\r\nkelp",
    "a folded length": OK + b"Content-Length:\r\n 4\r\n\r\nkelp",
    "a control character": OK + b"X-Kelp: a\x01b\r\nContent-Length: 4\r\n\r\nkelp",
    "letters of Latin-1": b"HTTP/1.1 200 \xe4\r\nX-Kelp: \xe4\xff\r\nContent-Length: 4\r\n\r\nkelp",
    "many cookies": OK + b"Set-Cookie: a=1\r\nSET-COOKIE: b=2\r\nContent-Length: 4\r\n\r\nkelp",
    "status 0": b"HTTP/1.1 000 Kelp\r\nContent-Length: 4\r\n\r\nkelp",
    "a chunk that is a byte short": CHUNKED + b"5\r\nkelp\r\n0\r\n\r\n",
    "a chunk that ends a byte early": CHUNKED + b"4\r\nkelp\n0\r\n\r\n",
    "bare line ends everywhere": b"HTTP/1.1 200 OK\nTransfer-Encoding: chunked\n\n4\nkelp\n0\n\n",
    "a blank line first": b"\r\n" + OK + b"Content-Length: 4\r\n\r\nkelp",
    "a protocol of streams": b"RTSP/1.0 200 OK\r\nContent-Length: 4\r\n\r\nkelp",
    "an unrequested upgrade": b"HTTP/1.1 101 Go\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n",
    "an upgrade that is offered": OK + b"Connection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 4\r\n\r\nkelp",
    "trailers without end": CHUNKED + b"4\r\nkelp\r\n0\r\nX-Kelp: " + b"k" * 600_000 + b"\r\n\r\n",
    "names of a chunk without end": CHUNKED + b"4;" + b"k" * 600_000 + b"\r\nkelp\r\n0\r\n\r\n",
    "a header without end": OK + b"X-Kelp: " + b"k" * 200_000,
}


@asynccontextmanager
async def run_server(serve, **options):
    """Yield the URL of a server that calls ``serve`` for each connection, and the list of connections."""
    connections = []

    async def handle(reader, writer):
        connections.append(writer)
        try:
            await serve(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    listening = await asyncio.start_server(handle, LOOPBACK, 0, **options)
    async with listening:
        yield f"http://{LOOPBACK}:{listening.sockets[0].getsockname()[1]}/v1?a=b", connections


async def read_request(reader):
    """Read a request without a body."""
    return await reader.readuntil(b"\r\n\r\n")


async def answer_once(pieces, reader, writer):
    """Answer one request with ``pieces``, and end the connection."""
    await read_request(reader)
    for piece in pieces:
        writer.write(piece)
        await writer.drain()
        await asyncio.sleep(0)


async def answer_each(data, reader, writer):
    """Answer each request with ``data``."""
    while await read_request(reader):
        writer.write(data)


def make_request(url, method="GET", content=None, **headers):
    """Build a request with timeouts of a few seconds."""
    extensions = {"timeout": {"connect": 5, "read": 5, "write": 5, "pool": 5}}
    return httpx2.Request(method, url, content=content, headers=headers, extensions=extensions)


async def read_answer(transport, request):
    """Send a request; return the status, the headers, the body so far, and the type of the error."""
    body, reply = b"", None
    try:
        reply = await transport.handle_async_request(request)
        async for piece in reply.stream:
            body += piece
    except httpx2.TransportError as error:
        return reply and reply.status_code, reply and reply.headers.raw, body, type(error)
    finally:
        if reply is not None:
            await reply.aclose()
    return reply.status_code, reply.headers.raw, body, None


def split_start(data, size):
    """Return the first 400 bytes of ``data`` in pieces of this size, and the rest."""
    first = data[: 400 // size * size]
    return [*(first[at : at + size] for at in range(0, len(first), size)), data[len(first) :]]


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.parametrize("size", [1, 7, 1_000_000])
def test_direct_transport_matches_httpx2(name, method, size):
    """Status, headers, body and error are those of httpx2's own transport, however the bytes are split."""

    async def both():
        async with run_server(partial(answer_once, split_start(ANSWERS[name], size))) as (url, _):
            found = []
            for kind in (partial(httpx2.AsyncHTTPTransport, verify=False), partial(DirectTransport, 8, 60.0)):
                async with kind() as transport:
                    found.append(await read_answer(transport, make_request(url, method)))
            return found

    theirs, ours = asyncio.run(both())
    assert ours == theirs


def run(serve, use, **options):
    """Return what ``use`` returns for a transport, a server's URL and the list of its connections."""

    async def scenario():
        async with run_server(serve, **options) as (url, connections), DirectTransport(2, 60.0) as transport:
            return await asyncio.wait_for(use(transport, url, connections), 20)

    return asyncio.run(scenario())


def test_direct_transport_joins_chunks_that_arrived_together():
    """A hundred chunks that are already buffered are one piece."""
    data = CHUNKED + b"4\r\nkelp\r\n" * 100 + b"0\r\n\r\n"

    async def scenario(transport, url, connections):
        reply = await transport.handle_async_request(make_request(url))
        await asyncio.sleep(0.05)
        return [piece async for piece in reply.stream]

    assert run(partial(answer_once, [data]), scenario) == [b"kelp" * 100]


@pytest.mark.parametrize("name", ["chunks", "a length", "nothing", "not modified", "hints first"])
def test_direct_transport_reuses_connections(name):
    """A connection is reused as long as its answers are complete."""

    async def scenario(transport, url, connections):
        found = [await read_answer(transport, make_request(url)) for _ in range(3)]
        return found[1:] == found[:-1], len(connections)

    assert run(partial(answer_each, ANSWERS[name]), scenario) == (True, 1)


@pytest.mark.parametrize("name", ["closes", "HTTP/1.0"])
def test_direct_transport_opens_a_new_connection_after_close(name):
    """After an answer that closes its connection the next request opens another one."""

    async def scenario(transport, url, connections):
        for _ in range(2):
            assert (await read_answer(transport, make_request(url)))[2:] == (b"kelp", None)
        return len(connections)

    assert run(partial(answer_once, [ANSWERS[name]]), scenario) == 2


def test_direct_transport_closes_after_an_unread_answer():
    """The unread rest would come before the next answer."""

    async def scenario(transport, url, connections):
        reply = await transport.handle_async_request(make_request(url))
        await reply.aclose()
        assert (await read_answer(transport, make_request(url)))[2] == b"kelp rock"
        return len(connections)

    async def serve(reader, writer):
        await read_request(reader)
        writer.write(CHUNKED + CHUNKS[:10])
        await asyncio.sleep(0.05)
        writer.write(CHUNKS[10:])
        await writer.drain()

    assert run(serve, scenario) == 2


@pytest.mark.parametrize("kind", [partial(DirectTransport, 8, 60.0), partial(FullDuplexTransport, httpx2.Limits())])
@pytest.mark.parametrize("name", ["a length", "chunks"])
def test_transport_drops_an_unsolicited_second_answer(name, kind):
    """A connection on which an unsolicited answer arrives is not used again, because the next request may be another
    user's.
    """

    async def scenario(_, url, connections):
        async with kind() as transport:
            found = [(await read_answer(transport, make_request(url)))[2] for _ in range(2)]
            return found[0] == found[1], len(connections)

    twice = ANSWERS[name] + OK + b"Content-Length: 4\r\n\r\nrock"
    assert run(partial(answer_each, twice), scenario) == (True, 2)
    assert run(partial(answer_each, ANSWERS[name]), scenario) == (True, 1)


@pytest.mark.parametrize(
    ("method", "data"),
    [
        ("HEAD", OK + b"Content-Length: 60\r\n\r\nHTTP"),
        ("GET", ANSWERS["chunks and a length"]),
        ("GET", b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n" + CHUNKS),
        ("GET", ANSWERS["a length twice"]),
    ],
    ids=["a body behind HEAD", "two lengths", "chunks in HTTP/1.0", "an odd head"],
)
def test_direct_transport_never_reuses_ambiguous_connections(method, data):
    """Where the end of an answer is ambiguous, its rest could come before the next answer."""

    async def scenario(transport, url, connections):
        for _ in range(2):
            assert (await read_answer(transport, make_request(url, method)))[3] is None
        return len(connections)

    assert run(partial(answer_each, data), scenario) == 2


def test_direct_transport_ignores_bytes_that_arrive_before_an_upload():
    """A kept connection on which bytes arrive before a slow upload starts is not used for it."""

    async def serve(reader, writer):
        await read_request(reader)
        writer.write(ANSWERS["a length"])
        await asyncio.sleep(0.02)
        writer.write(OK + b"Content-Length: 4\r\n\r\nrock")
        await reader.read()

    async def slowly():
        await asyncio.sleep(0.1)
        yield b"mine"

    async def scenario(transport, url, connections):
        found = [(await read_answer(transport, make_request(url, "POST", body)))[2] for body in (b"first", slowly())]
        return found, len(connections)

    assert run(serve, scenario) == ([b"kelp", b"kelp"], 2)


async def answer_with_number(reader, writer):
    """Answer each request of a connection with its number."""
    number = 0
    while await read_request(reader):
        number += 1
        writer.write(OK + b"Content-Length: 5\r\n\r\nuser%d" % number)


def test_closed_answer_reads_nothing_of_the_next():
    """Reading on from a closed answer raises, because the connection may serve another user by then."""

    async def scenario(transport, url, connections):
        first = await transport.handle_async_request(make_request(url))
        pieces = aiter(first.stream)
        assert await anext(pieces) == b"user1"
        await first.aclose()
        second = await transport.handle_async_request(make_request(url))
        with pytest.raises(httpx2.StreamClosed):
            await anext(pieces)
        return [piece async for piece in second.stream], len(connections)

    assert run(answer_with_number, scenario) == ([b"user2"], 1)


def test_reader_of_a_closed_answer_does_not_block_the_next():
    """The next request on the connection gets its own wake-up, also when a reader still waits for the closed answer."""

    async def serve(reader, writer):
        await read_request(reader)
        writer.write(CHUNKED + b"4\r\nkelp\r\n")
        await asyncio.sleep(0.02)
        writer.write(b"0\r\n\r\n")
        await read_request(reader)
        await asyncio.sleep(0.02)
        writer.write(ANSWERS["a length"])

    async def scenario(transport, url, connections):
        first = await transport.handle_async_request(make_request(url))
        pieces = aiter(first.stream)
        await anext(pieces)
        (connection,) = transport._open
        waiting = asyncio.ensure_future(anext(pieces))
        while not connection._is_complete:  # noqa: ASYNC110 -- stops in the step in which it completes, before the reader wakes
            await asyncio.sleep(0)
        await first.aclose()
        async with asyncio.timeout(2):
            second = await transport.handle_async_request(make_request(url))
        await asyncio.wait([waiting])
        return [piece async for piece in second.stream], type(waiting.exception()), len(connections)

    assert run(serve, scenario) == ([b"kelp"], httpx2.StreamClosed, 1)


def test_direct_transport_drops_connections_with_unsolicited_bytes():
    """A connection on which bytes arrive between two answers takes no further request."""

    async def serve(reader, writer):
        while await read_request(reader):
            writer.write(ANSWERS["a length"])
            await asyncio.sleep(0.02)
            writer.write(b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n")

    async def scenario(transport, url, connections):
        found = []
        for _ in range(2):
            found.append((await read_answer(transport, make_request(url)))[2])
            await asyncio.sleep(0.05)
        return found, len(connections)

    assert run(serve, scenario) == ([b"kelp", b"kelp"], 2)


def test_direct_transport_raises_read_error_on_immediate_close():
    """A connection closed by the server before anything was sent on it is an error, not a wait."""

    async def scenario(transport, url, connections):
        connect = transport._connect

        async def connected(*given):
            connection = await connect(*given)
            await asyncio.sleep(0.05)
            return connection

        transport._connect = connected
        return (await read_answer(transport, make_request(url)))[3]

    async def leaves(reader, writer):
        return

    assert run(leaves, scenario) is httpx2.ReadError


def test_direct_transport_closes_idle_connections():
    """Idle connections are closed when there are more than are kept, when they expire and when their server closes
    them.
    """

    async def scenario(transport, url, connections):
        replies = [await transport.handle_async_request(make_request(url)) for _ in range(4)]
        for reply in replies:
            assert [piece async for piece in reply.stream] == [b"kelp"]
            await reply.aclose()
        kept = len(transport._open)
        connections[-1].close()
        await asyncio.sleep(0.05)
        assert (await read_answer(transport, make_request(url)))[2] == b"kelp"
        for connection in transport._idle:
            connection.idle_until = 0.0
        assert (await read_answer(transport, make_request(url)))[2] == b"kelp"
        return kept, len(connections), len(transport._open)

    assert run(partial(answer_each, ANSWERS["a length"]), scenario) == (2, 5, 1)


def test_direct_transport_read_timeout_counts_silence_only():
    """The read timeout starts anew with each byte, so a slow server is not cut off."""

    async def scenario(transport, url, connections):
        request = make_request(url)
        request.extensions["timeout"]["read"] = 0.2
        return await read_answer(transport, request)

    async def slow(reader, writer):
        await read_request(reader)
        for at in range(len(ANSWERS["a length"])):
            await asyncio.sleep(0.005)
            writer.write(ANSWERS["a length"][at : at + 1])

    async def silent(reader, writer):
        await read_request(reader)
        writer.write(CHUNKED + b"4\r\nkelp\r\n")
        await reader.read()

    assert run(slow, scenario)[2:] == (b"kelp", None)
    assert run(silent, scenario)[2:] == (b"kelp", httpx2.ReadTimeout)


def test_direct_transport_times_out_in_an_answer_without_length():
    """Silence in an answer that ends with its connection is a timeout, not the end."""

    async def scenario(transport, url, connections):
        request = make_request(url)
        request.extensions["timeout"]["read"] = 0.1
        return (await read_answer(transport, request))[2:]

    async def silent(reader, writer):
        await read_request(reader)
        writer.write(OK + b"\r\nkelp")
        await reader.read()

    assert run(silent, scenario) == (b"kelp", httpx2.ReadTimeout)


def test_direct_transport_applies_the_write_timeout():
    """A server that reads nothing is a write timeout, not a read timeout."""

    async def scenario(transport, url, connections):
        request = make_request(url, "POST", iter_pieces(*[bytes(1_000_000)] * 40))
        request.extensions["timeout"]["write"] = 0.1
        return (await read_answer(transport, request))[3]

    async def waits(reader, writer):
        await read_request(reader)
        await asyncio.sleep(1)

    assert run(waits, scenario) is httpx2.WriteTimeout


def test_direct_transport_limits_held_bytes():
    """A slow reader pauses the server: only a bounded part of the answer is held, and all of it arrives."""
    size = 20_000_000

    async def serve(reader, writer):
        await read_request(reader)
        writer.write(OK + b"Content-Length: %d\r\n\r\n" % size + bytes(size))
        await writer.drain()

    async def scenario(transport, url, connections):
        reply = await transport.handle_async_request(make_request(url))
        (connection,) = transport._open
        held, count = [], 0
        async for piece in reply.stream:
            count += len(piece)
            await asyncio.sleep(0.001)
            held.append(connection._held_bytes)
        return max(held), count

    held, count = run(serve, scenario)
    assert held <= 2 * MAX_HELD_BYTES
    assert count == size


async def iter_pieces(*pieces):
    """Yield ``pieces``."""
    for piece in pieces:
        await asyncio.sleep(0)
        yield piece


def test_direct_transport_streams_request_bodies():
    """A body without a length is sent in chunks, one with a length as it is."""
    received = []

    async def serve(reader, writer):
        received.append(await read_request(reader) + await reader.read(100))
        writer.write(ANSWERS["closes"])

    async def scenario(transport, url, connections):
        for more in ({}, {"content-length": "8"}):
            sent = make_request(url, "POST", iter_pieces(b"kelp", b"", b"rock"), **more)
            assert (await read_answer(transport, sent))[2] == b"kelp"

    async def serve_slowly(reader, writer):
        await asyncio.sleep(0.05)
        await serve(reader, writer)

    run(serve_slowly, scenario)
    assert received[0].endswith(b"\r\n\r\n4\r\nkelp\r\n4\r\nrock\r\n0\r\n\r\n")
    assert received[1].endswith(b"\r\n\r\nkelprock")


@pytest.mark.parametrize("length", ["4", "9"])
def test_direct_transport_rejects_a_body_of_the_wrong_length(length):
    """The server would wait for the rest, or take it for the next request."""

    async def scenario(transport, url, connections):
        sent = make_request(url, "POST", iter_pieces(b"kelp", b"k"), **{"content-length": length})
        with pytest.raises(httpx2.LocalProtocolError):
            await transport.handle_async_request(sent)
        return len(transport._open)

    async def waits(reader, writer):
        await reader.read()

    assert run(waits, scenario) == 0


def test_direct_transport_returns_a_refusal_during_the_upload():
    """A server that stops reading and refuses is heard."""

    async def serve(reader, writer):
        await read_request(reader)
        writer.write(b"HTTP/1.1 413 Too Large\r\nConnection: close\r\nContent-Length: 4\r\n\r\nkelp")
        await writer.drain()
        await asyncio.sleep(0.2)

    async def scenario(transport, url, connections):
        found = await read_answer(transport, make_request(url, "POST", iter_pieces(*[bytes(1_000_000)] * 40)))
        return found[0], found[2], len(transport._open)

    assert run(serve, scenario) == (413, b"kelp", 0)


def test_direct_transport_ends_a_refusal_at_end_of_file():
    """A refusal without a length ends when the server stops sending, however much is still to be uploaded."""

    async def serve(reader, writer):
        await read_request(reader)
        writer.write(b"HTTP/1.1 413 Too Large\r\n\r\nkelp")
        writer.write_eof()
        await asyncio.sleep(5)

    async def scenario(transport, url, connections):
        async with asyncio.timeout(4):
            return (await read_answer(transport, make_request(url, "POST", bytes(40_000_000))))[2:]

    assert run(serve, scenario) == (b"kelp", None)


@pytest.mark.parametrize(
    "headers",
    [
        {"content-length": "kelp"},
        {"content-length": "1_0"},
        {"content-length": "4", "transfer-encoding": "chunked"},
    ],
)
def test_direct_transport_refuses_ambiguous_request_framing(headers):
    """The server might take the rest of the body for another request."""

    async def scenario(transport, url, connections):
        request = make_request(url, "POST", iter_pieces(b"kelp"))
        request.headers = httpx2.Headers(headers)
        with pytest.raises(httpx2.LocalProtocolError):
            await transport.handle_async_request(request)
        return len(connections)

    assert run(partial(answer_once, [ANSWERS["chunks"]]), scenario) == 0


def test_direct_transport_rejects_a_method_with_a_line_break():
    """A line break would start another request."""

    async def scenario(transport, url, connections):
        request = make_request(url)
        request.method = "GET / HTTP/1.1\r\nX-Kelp:"
        with pytest.raises(httpx2.LocalProtocolError):
            await transport.handle_async_request(request)
        return len(connections)

    assert run(partial(answer_once, [ANSWERS["chunks"]]), scenario) == 0


@pytest.mark.parametrize(
    "header", [("x-kelp", "a\r\nx-rock: b"), ("x-kelp: a\n", "b"), ("", "b"), ("x kelp", "b"), ("x-kelp:", "b")]
)
def test_direct_transport_rejects_malformed_headers(header):
    """A line break would start another header or another request."""

    async def scenario(transport, url, connections):
        request = make_request(url)
        request.headers = httpx2.Headers([*request.headers.raw, (header[0].encode(), header[1].encode())])
        with pytest.raises(httpx2.LocalProtocolError):
            await transport.handle_async_request(request)

    run(partial(answer_once, [ANSWERS["chunks"]]), scenario)


def test_cancelled_request_closes_its_connection():
    """Nothing reads the answer of a cancelled request, so its connection is closed."""

    async def scenario(transport, url, connections):
        waiting = asyncio.ensure_future(transport.handle_async_request(make_request(url)))
        await asyncio.sleep(0.05)
        assert len(transport._open) == 1
        waiting.cancel()
        await asyncio.wait([waiting])
        return waiting.cancelled(), len(transport._open)

    async def waits(reader, writer):
        await reader.read()

    assert run(waits, scenario) == (True, 0)


def test_request_cancelled_at_any_step_leaves_no_connection():
    """A request cancelled at any step of the loop leaves no open connection, also in the step that creates it."""

    async def scenario(transport, url, connections):
        for steps in range(25):
            waiting = asyncio.ensure_future(transport.handle_async_request(make_request(url)))
            for _ in range(steps):
                await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.wait([waiting])
            assert waiting.cancelled()
            assert not transport._open, steps

    async def waits(reader, writer):
        await reader.read()

    run(waits, scenario)


def test_server_origin_keeps_port_zero():
    """Port 0 is not the scheme's default port."""
    assert ServerOrigin.from_url(httpx2.URL("http://kelp:0/")).port == 0
    assert ServerOrigin.from_url(httpx2.URL("https://kelp/")).port == 443


@pytest.mark.parametrize("url", [f"http://{LOOPBACK}:1/", "http://kelp.invalid/", "ftp://127.0.0.1/"])
def test_direct_transport_raises_httpx2_connect_errors(url):
    """An unreachable server raises the error types that httpx2 has for it."""

    async def scenario():
        async with DirectTransport(2, 60.0) as transport:
            return (await read_answer(transport, make_request(url)))[3]

    assert asyncio.run(scenario()) is (httpx2.UnsupportedProtocol if url.startswith("ftp") else httpx2.ConnectError)


# -- TLS ---------------------------------------------------------------------------------------------------------------

# For a server called localhost, self-signed, valid until the year 2126.
CERTIFICATE = """\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgnCpPDVp0r5ZknLaS
rUlwmEJttwutHYfPeFB+KnLG64mhRANCAATxP3btDTOnMgCAINO2hDVtlBaQYnCx
iGC13p4ArMulLpc3KEVZAR1etttIBFjUViRUlZJQwE//46wFd03hjXI/
-----END PRIVATE KEY-----
-----BEGIN CERTIFICATE-----
MIIBlTCCATugAwIBAgIUKqDZVrXIHxJzI9U9yj1pRQZuEQswCgYIKoZIzj0EAwIw
FDESMBAGA1UEAwwJbG9jYWxob3N0MCAXDTI2MTEyNzE3NTgzM1oYDzIxMjYxMTAz
MTc1ODMzWjAUMRIwEAYDVQQDDAlsb2NhbGhvc3QwWTATBgcqhkjOPQIBBggqhkjO
PQMBBwNCAATxP3btDTOnMgCAINO2hDVtlBaQYnCxiGC13p4ArMulLpc3KEVZAR1e
tttIBFjUViRUlZJQwE//46wFd03hjXI/o2kwZzAdBgNVHQ4EFgQUUC8zwNXKzV6W
PjhCITkMhalPsWowHwYDVR0jBBgwFoAUUC8zwNXKzV6WPjhCITkMhalPsWowDwYD
VR0TAQH/BAUwAwEB/zAUBgNVHREEDTALgglsb2NhbGhvc3QwCgYIKoZIzj0EAwID
SAAwRQIhANjQwD9dHY/UUwuLFxitoW1RUn6V6q25DhejqRKsDWa2AiApuUzGQeNm
XbDxFG4DRxeQ1EyNqdKEsoY53RmteJE+sQ==
-----END CERTIFICATE-----
"""


@pytest.mark.parametrize(("host", "error"), [("localhost", None), (LOOPBACK, httpx2.ConnectError)])
def test_direct_transport_verifies_the_host_of_the_certificate(host, error, tmp_path, monkeypatch):
    """A server whose certificate names another host gets no request and no key."""
    place = tmp_path / "kelp.pem"
    place.write_text(CERTIFICATE)
    monkeypatch.setenv("SSL_CERT_FILE", str(place))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(place)
    received = []

    async def serve(reader, writer):
        received.append(await read_request(reader))
        writer.write(ANSWERS["until the end"])

    async def scenario(transport, url, connections):
        return await read_answer(transport, make_request(url.replace("http", "https").replace(LOOPBACK, host)))

    found = run(serve, scenario, ssl=context)
    assert found[2:] == ((b"kelp", None) if error is None else (b"", error))
    assert len(received) == (error is None)


# -- network proxies ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variable", ["http_proxy", "all_proxy", "no_proxy"])
def test_provider_client_honours_proxy_variables(variable, monkeypatch):
    """A network proxy from the environment is used for every server but those of this machine."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    received = []

    async def serve(reader, writer):
        received.append((await read_request(reader)).split(b" ")[1])
        writer.write(ANSWERS["closes"])

    async def scenario():
        async with run_server(serve) as (url, _):
            monkeypatch.setenv(variable, url.partition("/v1")[0])
            async with _make_provider_client(Settings(), None) as web:
                await web.get(url)
                if variable != "no_proxy":
                    await web.get("http://kelp.invalid/v1")

    asyncio.run(scenario())
    assert received == [b"/v1?a=b", b"http://kelp.invalid/v1"][: 1 + (variable != "no_proxy")]
