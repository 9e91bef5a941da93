"""Full-duplex connections: an early answer is read while the request is sent, within bounded memory."""

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
OTHER_ANSWERS = [b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 200 OK\r\nX-A: 1\r\n\r\n", b"HTTP/1.1 4", b"SSH-2.0 413"]


class FakeStream(httpcore2.AsyncNetworkStream):
    """A connection whose peer sends ``pieces`` and accepts large writes, blocks them or fails them."""

    def __init__(self, pieces, *, accepts_large=True, fails_on_large=False):
        self.pieces, self.accepts_large, self.fails_on_large = list(pieces), accepts_large, fails_on_large
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
        if self.fails_on_large and len(buffer) >= len(LARGE):
            raise httpcore2.WriteError("reset")
        if not self.accepts_large and len(buffer) >= len(LARGE):
            await anyio.sleep_forever()
        self.sent += buffer

    def get_extra_info(self, info):
        return info == "is_readable" and bool(self.pieces)


def send_large_request(fake_stream, *, read_bytes=0):
    """Return whether a head and a large body were written without an error, and the bytes read afterwards."""

    async def run_scenario():
        connection = FullDuplexStream(fake_stream)
        await connection.write(b"head")
        try:
            await connection.write(LARGE)
            is_written = True
        except httpcore2.WriteError:
            is_written = False
        received = b""
        while len(received) < read_bytes:
            received += await connection.read(3)
        return is_written, received

    return anyio.run(run_scenario)


def split_bytes(data, positions):
    """Return ``data`` in pieces, split at ``positions``."""
    edges = sorted({0, len(data), *(position % len(data) for position in positions)})
    return [data[start:stop] for start, stop in pairwise(edges)]


@given(st.sampled_from(REFUSALS), st.lists(st.integers(0, 99), max_size=4))
def test_full_duplex_stream_stops_writing_at_a_refusal(refusal, positions):
    """However it is split, a refusal ends the write to a server that accepts no more, and is read completely."""
    assert send_large_request(
        FakeStream(split_bytes(refusal, positions), accepts_large=False), read_bytes=len(refusal)
    ) == (False, refusal)


@given(st.sampled_from(OTHER_ANSWERS), st.lists(st.integers(0, 99), max_size=4))
def test_full_duplex_stream_writes_on_at_any_other_answer(answer, positions):
    """The complete request is sent, and everything received meanwhile is read afterwards."""
    fake_stream = FakeStream(split_bytes(answer, positions))
    assert send_large_request(fake_stream, read_bytes=len(answer)) == (True, answer)
    assert fake_stream.sent == b"head" + LARGE


def test_full_duplex_stream_reads_a_refusal_after_a_failed_write():
    """A connection that breaks during a write has often sent the reason before."""
    assert send_large_request(FakeStream([REFUSALS[0]], fails_on_large=True), read_bytes=len(REFUSALS[0])) == (
        False,
        REFUSALS[0],
    )


def test_full_duplex_stream_bounds_the_early_answer():
    """While a request is sent, at most MAX_EARLY_ANSWER_BYTES of the answer are kept in memory."""
    fake_stream = FakeStream([b"y" * READ_SIZE] * 40)
    stream = FullDuplexStream(fake_stream)

    async def run_scenario():
        await stream.write(b"head")
        for _ in range(20):
            await stream.write(LARGE)

    anyio.run(run_scenario)
    assert 40 - len(fake_stream.pieces) <= MAX_EARLY_ANSWER_BYTES // READ_SIZE + 1


def test_full_duplex_stream_does_not_read_during_a_small_request():
    """Most requests are small, and cost no additional reads."""
    fake_stream = FakeStream([])

    async def run_scenario():
        stream = FullDuplexStream(fake_stream)
        for _ in range(3):
            await stream.write(b"x" * 9_999)

    anyio.run(run_scenario)
    assert fake_stream.reads == 0


def test_make_full_duplex_mounts_leaves_proxies_to_the_http_client(monkeypatch):
    """Own mounts would bypass ``ALL_PROXY``."""
    monkeypatch.setenv("all_proxy", "http://127.0.0.1:9")
    assert make_full_duplex_mounts() == {}


@pytest.mark.parametrize("port", [9, 1])
def test_full_duplex_transport_raises_errors_of_httpx2(port):
    """Errors of the underlying library do not reach the caller."""

    async def run_scenario():
        async with httpx2.AsyncClient(transport=FullDuplexTransport(httpx2.Limits())) as web:
            with pytest.raises(httpx2.ConnectError):
                await web.get(f"http://127.0.0.1:{port}/")

    anyio.run(run_scenario)
