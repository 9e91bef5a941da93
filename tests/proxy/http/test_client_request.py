"""The body of a request as it comes in: whole, in time, and no larger than it may be."""

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

LEFT = {"type": "http.disconnect"}


class Client:
    """Says each message after so many seconds, and then nothing more."""

    def __init__(self, *told):
        self.told = list(told)

    async def receive(self):
        if not self.told:
            await anyio.sleep_forever()
        seconds, message = self.told.pop(0)
        await anyio.sleep(seconds)
        return message


def said(*pieces, ends=True):
    """Return pieces, each with the seconds before it, as ASGI has them."""
    last = len(pieces) - 1 if ends else -1
    return [
        (seconds, {"type": "http.request", "body": body, "more_body": at != last})
        for at, (seconds, body) in enumerate(pieces)
    ]


def whole(*told, most=1_000):
    return run_on_fake_clock(lambda: read_whole_body(Client(*told).receive, most))


async def _streamed(*told):
    return [piece async for piece in iter_body_pieces(Client(*told).receive, UploadProgress())]


def streamed(*told):
    return run_on_fake_clock(lambda: _streamed(*told))


@given(st.lists(st.tuples(st.floats(0, CLIENT_TIMEOUT - 1), st.binary(max_size=9)), min_size=1, max_size=20))
def test_request_body_may_be_slow(pieces):
    """However slow a body is, all of it is received as long as something arrives within the timeout."""
    body = b"".join(piece for _, piece in pieces)
    assert whole(*said(*pieces)) == body
    assert b"".join(streamed(*said(*pieces))) == body


@pytest.mark.parametrize("before", [0, 1, 3])
def test_read_whole_body_times_out_with_408(before):
    """A body that stops arriving raises ``BodyStalled`` with 408 after the timeout."""

    async def waited():
        with pytest.raises(BodyStalled) as raised:
            await read_whole_body(Client(*said(*[(50, b"ab")] * before, ends=False)).receive, 1_000)
        return raised.value.status, get_loop_time()

    assert run_on_fake_clock(waited) == (408, before * 50 + CLIENT_TIMEOUT)


@pytest.mark.parametrize("before", [0, 2])
def test_iter_body_pieces_times_out(before):
    """A streamed body that stops raises ``BodyStalled`` too, so that its provider does not wait."""
    with pytest.raises(BodyStalled):
        streamed(*said(*[(50, b"ab")] * before, ends=False))


@pytest.mark.parametrize("read", [whole, streamed])
def test_request_body_raises_client_left(read):
    """A client that disconnects in the middle of its body raises ``ClientLeft``."""
    with pytest.raises(ClientLeft):
        read(*said((0, b"ab"), ends=False), (5, LEFT))


def test_read_whole_body_stops_at_the_limit():
    """A body over the limit is refused as soon as it exceeds it; one of exactly that size is accepted."""
    assert whole(*said((0, b"abc"), (0, b"de")), most=5) == b"abcde"
    with pytest.raises(BodyTooLarge):
        whole(*said((0, b"abc"), (0, b"def"), (0, b"ghi"), ends=False), most=5)
