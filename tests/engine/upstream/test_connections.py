"""Connections that listen while they are written to: nothing of an answer is lost, nothing more is held than needed."""

from __future__ import annotations

from itertools import pairwise

import anyio
import httpcore2
import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.engine.upstream.connections import (
    MAX_EARLY_ANSWER_BYTES,
    READ_SIZE,
    UNLISTENED_BYTES,
    FullDuplexStream,
    FullDuplexTransport,
    make_full_duplex_mounts,
)

LARGE = b"x" * (UNLISTENED_BYTES + 1)
REFUSALS = [
    b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno",
    b"HTTP/1.1 100 Continue\r\nX-A: b\r\n\r\nHTTP/1.1 103 Early\r\n\r\nHTTP/1.0 401 No\r\n\r\n",
    b"HTTP/1.1 307 Elsewhere\r\nLocation: /b\r\n\r\n",
]
NO_REFUSALS = [b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 200 OK\r\nX-A: 1\r\n\r\n", b"HTTP/1.1 4", b"SSH-2.0 413"]


class Wire(httpcore2.AsyncNetworkStream):
    """A connection whose other side says ``pieces`` and then takes what is sent, or not."""

    def __init__(self, pieces, *, takes=True, fails=False):
        self.pieces, self.takes, self.fails = list(pieces), takes, fails
        self.sent, self.reads = b"", 0

    async def read(self, max_bytes, timeout=None):  # noqa: ASYNC109 -- as it is called
        self.reads += 1
        await anyio.lowlevel.checkpoint()
        if not self.pieces:
            await anyio.sleep_forever()
        return self.pieces.pop(0)

    async def write(self, buffer, timeout=None):  # noqa: ASYNC109
        for _ in range(20):
            await anyio.lowlevel.checkpoint()
        if self.fails and len(buffer) >= len(LARGE):
            raise httpcore2.WriteError("reset")
        if not self.takes and len(buffer) >= len(LARGE):
            await anyio.sleep_forever()
        self.sent += buffer

    def get_extra_info(self, info):
        return info == "is_readable" and bool(self.pieces)


def sent(wire, *, reads=0):
    """Return whether a head and a large body were sent without an error, and the bytes that reads get then."""

    async def go():
        stream = FullDuplexStream(wire)
        await stream.write(b"head")
        try:
            await stream.write(LARGE)
            fine = True
        except httpcore2.WriteError:
            fine = False
        got = b""
        while len(got) < reads:
            got += await stream.read(3)
        return fine, got

    return anyio.run(go)


def cut(told, places):
    """Return ``told`` in pieces."""
    edges = sorted({0, len(told), *(place % len(told) for place in places)})
    return [told[one:two] for one, two in pairwise(edges)]


@given(st.sampled_from(REFUSALS), st.lists(st.integers(0, 99), max_size=4))
def test_a_refusal_ends_the_sending_and_all_of_it_is_read(told, places):
    """However it is cut: a server that takes nothing more is waited for no longer."""
    assert sent(Wire(cut(told, places), takes=False), reads=len(told)) == (False, told)


@given(st.sampled_from(NO_REFUSALS), st.lists(st.integers(0, 99), max_size=4))
def test_what_is_no_refusal_ends_nothing(told, places):
    """All of the request is sent, and what came meanwhile is read behind that."""
    wire = Wire(cut(told, places))
    assert sent(wire, reads=len(told)) == (True, told)
    assert wire.sent == b"head" + LARGE


def test_an_answer_is_heard_though_the_write_fails():
    """A connection that breaks while it is written to has said before why."""
    assert sent(Wire([REFUSALS[0]], fails=True), reads=len(REFUSALS[0])) == (False, REFUSALS[0])


def test_what_a_server_says_at_length_is_not_all_held():
    """Memory stays bounded while a request is sent, whatever comes back meanwhile."""
    wire = Wire([b"y" * READ_SIZE] * 40)
    stream = FullDuplexStream(wire)

    async def go():
        await stream.write(b"head")
        for _ in range(20):
            await stream.write(LARGE)

    anyio.run(go)
    assert 40 - len(wire.pieces) <= MAX_EARLY_ANSWER_BYTES // READ_SIZE + 1


def test_a_small_request_is_sent_without_listening():
    """Most requests are small: they cost what they cost before."""
    wire = Wire([])

    async def go():
        stream = FullDuplexStream(wire)
        for _ in range(3):
            await stream.write(b"x" * 9_999)

    anyio.run(go)
    assert wire.reads == 0


def test_a_proxy_of_the_network_is_left_to_the_http_client(monkeypatch):
    """``ALL_PROXY`` would be passed by otherwise."""
    monkeypatch.setenv("all_proxy", "http://127.0.0.1:9")
    assert make_full_duplex_mounts() == {}


@pytest.mark.parametrize("port", [9, 1])
def test_errors_are_those_of_the_http_client(port):
    """Who sends over these connections sees no other library's errors."""

    async def go():
        async with httpx2.AsyncClient(transport=FullDuplexTransport(httpx2.Limits())) as web:
            with pytest.raises(httpx2.ConnectError):
                await web.get(f"http://127.0.0.1:{port}/")

    anyio.run(go)
