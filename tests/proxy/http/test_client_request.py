"""The body of an incoming request: complete, within its timeout, and within its limit."""

from __future__ import annotations

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.proxy.http.client_request import (
    CLIENT_TIMEOUT,
    BodyStalled,
    ClientLeft,
    UploadProgress,
    iter_body_pieces,
    read_whole_body,
)
from holdfast.proxy.http.decompress import BodyTooLarge
from holdfast.testing.clock import get_loop_time, run_on_fake_clock

DISCONNECT = {"type": "http.disconnect"}


class Client:
    """Sends each message after its seconds, and then nothing more."""

    def __init__(self, *timed_messages):
        self.timed_messages = list(timed_messages)

    async def receive(self):
        if not self.timed_messages:
            await anyio.sleep_forever()
        seconds, message = self.timed_messages.pop(0)
        await anyio.sleep(seconds)
        return message


def make_body_messages(*pieces, ends=True):
    """Return ASGI messages of pieces, each with the seconds before it."""
    last = len(pieces) - 1 if ends else -1
    return [
        (seconds, {"type": "http.request", "body": body, "more_body": at != last})
        for at, (seconds, body) in enumerate(pieces)
    ]


def read_body(*timed_messages, limit=1_000):
    return run_on_fake_clock(lambda: read_whole_body(Client(*timed_messages).receive, limit))


async def _iter_body(*timed_messages):
    return [piece async for piece in iter_body_pieces(Client(*timed_messages).receive, UploadProgress())]


def stream_body(*timed_messages):
    return run_on_fake_clock(lambda: _iter_body(*timed_messages))


@given(st.lists(st.tuples(st.floats(0, CLIENT_TIMEOUT - 1), st.binary(max_size=9)), min_size=1, max_size=20))
def test_request_body_may_be_slow(pieces):
    """However slow a body is, all of it is received as long as something arrives within the timeout."""
    body = b"".join(piece for _, piece in pieces)
    assert read_body(*make_body_messages(*pieces)) == body
    assert b"".join(stream_body(*make_body_messages(*pieces))) == body


@pytest.mark.parametrize("before", [0, 1, 3])
def test_read_whole_body_times_out_with_408(before):
    """A body that stops arriving raises ``BodyStalled`` with 408 after the timeout."""

    async def waited():
        with pytest.raises(BodyStalled) as raised:
            await read_whole_body(Client(*make_body_messages(*[(50, b"ab")] * before, ends=False)).receive, 1_000)
        return raised.value.status, get_loop_time()

    assert run_on_fake_clock(waited) == (408, before * 50 + CLIENT_TIMEOUT)


@pytest.mark.parametrize("before", [0, 2])
def test_iter_body_pieces_times_out(before):
    """A streamed body that stops raises ``BodyStalled`` too, so that its provider does not wait."""
    with pytest.raises(BodyStalled):
        stream_body(*make_body_messages(*[(50, b"ab")] * before, ends=False))


@pytest.mark.parametrize("read", [read_body, stream_body])
def test_request_body_raises_client_left(read):
    """A client that disconnects in the middle of its body raises ``ClientLeft``."""
    with pytest.raises(ClientLeft):
        read(*make_body_messages((0, b"ab"), ends=False), (5, DISCONNECT))


def test_read_whole_body_stops_at_the_limit():
    """A body over the limit is refused as soon as it exceeds it; one of exactly that size is accepted."""
    assert read_body(*make_body_messages((0, b"abc"), (0, b"de")), limit=5) == b"abcde"
    with pytest.raises(BodyTooLarge):
        read_body(*make_body_messages((0, b"abc"), (0, b"def"), (0, b"ghi"), ends=False), limit=5)
