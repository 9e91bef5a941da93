"""Uploads that their server refuses before it has read them: the client gets the server's answer unchanged."""

from __future__ import annotations

import asyncio
import contextlib
import time

import pytest
import socket_proxy

from holdfast.proxy.http import client_request as incoming

SIZE = 12 << 20
"""More than the buffers between a client and a server hold."""
ANSWER = b'{"type":"error","error":{"type":"request_too_large","message":"413 of the server"}}'
PATHS = {"passed through": "/v1/files?purpose=batch", "read": "/v1/messages"}


@pytest.fixture(scope="module")
def running():
    """A proxy for all of these tests."""
    with socket_proxy.run_proxy(keepalive=0.0, drain=1.0) as proxy:
        yield proxy


@pytest.fixture
def proxy(running):
    """The proxy; when the test is over nothing is left running."""
    yield running
    running.wait_idle()


def make_refusing_server(status, *, interim=b"", closes=True):
    """Return a server that answers after reading only the head, and then closes the connection."""

    async def serve(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        head = f"{interim.decode()}HTTP/1.1 {status} No\r\nX-Server: kelp\r\nContent-Length: {len(ANSWER)}\r\n\r\n"
        writer.write(head.encode() + ANSWER)
        if not closes:
            await reader.read()
        writer.close()

    return serve


def upload(proxy, serve, kind, *, chunked=False, **headers):
    """Send a whole upload before reading anything, and return the response."""

    async def scenario():
        server = await asyncio.start_server(serve, socket_proxy.LOOPBACK, 0)
        port = server.sockets[0].getsockname()[1]
        path = f"/u/http://{socket_proxy.LOOPBACK}:{port}{PATHS[kind]}"
        framing = {"transfer_encoding": "chunked", "content_length": "-"} if chunked else {"content_length": str(SIZE)}
        piece = b"x" * 65_536
        part = b"%x\r\n%s\r\n" % (len(piece), piece) if chunked else piece
        head = socket_proxy.build_request(path, **(framing | headers))
        try:
            return await proxy.send_pieces(head, *[part] * (SIZE // len(piece)), b"0\r\n\r\n" if chunked else b"")
        finally:
            server.close()

    return proxy.call(scenario)


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("status", [401, 413, 429])
@pytest.mark.parametrize("kind", PATHS)
def test_early_refusal_of_an_upload_reaches_the_client(kind, status, chunked, proxy):
    """Status, headers and body are the server's, however the body is framed, though the server closes the
    connection.
    """
    found = upload(proxy, make_refusing_server(status), kind, chunked=chunked)
    assert (found.status, found.headers.get("x-server"), found.body) == (status, "kelp", ANSWER)


def test_early_refusal_reaches_a_client_with_expect_100(proxy):
    """``Expect: 100-continue`` does not keep the refusal from the client."""
    found = upload(proxy, make_refusing_server(413), "passed through", expect="100-continue")
    assert (found.status, found.body) == (413, ANSWER)


def test_early_refusal_after_100_continue_reaches_the_client(proxy):
    """100 Continue is not the answer; the refusal after it is."""
    found = upload(proxy, make_refusing_server(413, interim=b"HTTP/1.1 100 Continue\r\n\r\n"), "passed through")
    assert (found.status, found.body) == (413, ANSWER)


def test_early_refusal_counts_while_the_connection_stays_open(proxy):
    """The client gets the refusal without waiting until the server closes the connection."""
    found = upload(proxy, make_refusing_server(429, closes=False), "passed through")
    assert (found.status, found.body) == (429, ANSWER)


def test_early_success_does_not_end_the_upload(proxy):
    """Only a refusal ends an upload, because a successful answer may begin while the server still reads."""
    received = []

    async def serve(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(ANSWER))
        with contextlib.suppress(asyncio.IncompleteReadError):
            received.append(len(await reader.readexactly(SIZE)))
        writer.write(ANSWER)
        writer.close()

    found = upload(proxy, serve, "passed through")
    assert (found.status, found.body, received) == (200, ANSWER, [SIZE])


def test_upload_closed_without_an_answer_is_502(proxy):
    """Where the server closes without an answer, the client gets a 502 that says so."""

    async def serve(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.close()

    found = upload(proxy, serve, "passed through")
    assert found.status == 502
    assert b"no answer came from" in found.body


@pytest.mark.parametrize(
    "request_bytes",
    [
        socket_proxy.build_request("/v1/messages", b"no gzip at all", content_encoding="gzip"),
        socket_proxy.build_request("/u/http://[v1.x]:9/v1/files", b"whatever"),
    ],
    ids=["damaged", "unreachable host"],
)
def test_refusal_of_a_complete_body_does_not_linger(request_bytes, monkeypatch):
    """A client whose body is complete gets the end of the connection at once."""
    monkeypatch.setattr(incoming, "LINGER_SECONDS", 60.0)
    with socket_proxy.run_proxy() as proxy:
        began = time.monotonic()
        assert proxy.send(request_bytes).status >= 400
        assert time.monotonic() - began < 10
