"""What goes out and when: signs until the first piece, pieces as they come, errors as they are."""

from __future__ import annotations

import weakref
from functools import partial

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import UpstreamError
from holdfast.proxy.http import client_response as outgoing
from holdfast.proxy.http.relay import ResponseHead
from holdfast.testing.clock import get_loop_time, run_on_fake_clock

SIGN = b": keep-alive\n\n"
HEAD = ResponseHead(201, [(b"x-kelp", b"1")])


class Line:
    """Pieces, each after so many seconds, an error raised in its place; and what the client is sent, and when."""

    def __init__(self, *told, sign=SIGN, patience=10.0, takes=0.0, breaks_at=None):
        self.told, self.sign, self.patience = told, sign, patience
        self.takes, self.breaks_at = takes, breaks_at
        self.sent, self.asked, self.closed_at = [], 0, None

    async def pieces(self):
        try:
            for seconds, piece in self.told:
                self.asked += 1
                await anyio.sleep(seconds)
                if isinstance(piece, BaseException):
                    raise piece
                yield piece
        finally:
            self.closed_at = get_loop_time()

    async def send(self, message):
        if len(self.sent) == self.breaks_at:
            raise ConnectionResetError
        self.sent.append((get_loop_time(), message.get("body", message.get("status"))))
        await anyio.sleep(self.takes)

    async def deliver(self):
        await outgoing.deliver_pieces(self.pieces(), outgoing.ClientResponse(self.send), self.sign, self.patience)
        return self.sent


def sent(*told, **terms):
    return run_on_fake_clock(Line(*told, **terms).deliver)


# -- when they come ----------------------------------------------------------------------------------------------------


def test_deliver_pieces_sends_keep_alives_until_the_first_piece():
    """A keep-alive is sent every ``patience`` seconds, after a head of its own, until the first piece and never after
    it.
    """
    signs = [(10, 200), (10, SIGN), (20, SIGN), (30, SIGN)]
    assert sent((35, HEAD), (0, b"a"), (100, b"b")) == [*signs, (35, b"a"), (135, b"b")]


def test_deliver_pieces_sends_no_keep_alive_for_a_quick_answer():
    """An answer within the patience is sent as it is, with its own head."""
    assert sent((9.9, HEAD), (30, b"a")) == [(9.9, 201), (39.9, b"a")]


@pytest.mark.parametrize("terms", [{"sign": b""}, {"patience": 0}, {"patience": -1}])
def test_deliver_pieces_without_keep_alive_or_patience_only_waits(terms):
    """An unstreamed answer has no keep-alive, and a patience of 0 or less switches them off."""
    assert sent((35, HEAD), (1, b"a"), **terms) == [(35, 201), (36, b"a")]


@given(st.lists(st.integers(0, 40), max_size=6), st.integers(1, 15))
def test_deliver_pieces_never_changes_order_or_times(waits, patience):
    """Keep-alives change neither the pieces nor their order nor their times."""
    found = sent(*((seconds, b"%d" % number) for number, seconds in enumerate(waits)), patience=patience)
    pieces = [(at, body) for at, body in found if body not in (SIGN, 200)]
    assert pieces == [(sum(waits[: number + 1]), b"%d" % number) for number in range(len(waits))]
    assert len(found) - len(pieces) <= (waits[0] // patience + 1 if waits else 0)


def test_deliver_pieces_finishes_a_keep_alive_before_the_piece():
    """A keep-alive that is being sent to a slow client ends before the piece; no two messages are sent at once."""
    found = sent((12, HEAD), (0, b"a"), takes=5)
    assert found == [(10, 200), (15, SIGN), (20, b"a")]


def test_deliver_pieces_never_reads_ahead():
    """The next piece is requested only when the client has taken the last, so that a slow client slows the provider."""
    line = Line((0, HEAD), (0, b"a"), (0, b"b"), takes=60)
    asked = []

    async def slowly():
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(line.deliver)
            for _ in range(3):
                await anyio.sleep(59)
                asked.append(line.asked)
                await anyio.sleep(1)

    run_on_fake_clock(slowly)
    assert asked == [1, 2, 3]


# -- what goes wrong ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wait", [0, 25])
@pytest.mark.parametrize("before", [(), ((1, HEAD),)])
@pytest.mark.parametrize("sign", [SIGN, b""])
def test_deliver_pieces_raises_the_error_of_the_source(wait, before, sign):
    """An error of the source is raised as the same object, not in an exception group."""
    error = UpstreamError("no answer came", "network")
    line = Line(*before, (wait, error), sign=sign)
    with pytest.raises(UpstreamError) as raised:
        run_on_fake_clock(line.deliver)
    assert raised.value is error
    assert line.closed_at is not None


@pytest.mark.parametrize("breaks_at", [0, 1, 2, 3, 4])
def test_deliver_pieces_raises_the_error_of_sending(breaks_at):
    """A failed send raises its own error at once, also for a keep-alive, and closes the source."""
    line = Line((25, HEAD), (0, b"a"), (0, b"b"), breaks_at=breaks_at)
    with pytest.raises(ConnectionResetError):
        run_on_fake_clock(line.deliver)
    assert line.closed_at == (10, 10, 20, 25, 25)[breaks_at]


@pytest.mark.parametrize("seconds", [5, 15, 40])
def test_deliver_pieces_closes_the_source_when_cancelled(seconds):
    """Cancellation closes the source before the first keep-alive, between them and after the first piece."""
    line = Line((35, HEAD), (1_000, b"b"))

    async def cancelled():
        with anyio.move_on_after(seconds) as scope:
            await line.deliver()
        return scope.cancelled_caught, get_loop_time()

    assert run_on_fake_clock(cancelled) == (True, seconds)
    assert line.closed_at == seconds


# -- what is held ------------------------------------------------------------------------------------------------------


def test_client_response_releases_the_wait_predicate():
    """After the first piece the predicate that says whose wait it is, and everything it refers to, is released."""

    async def answered():
        line = outgoing.ClientResponse(Line().send)
        waited_for = Line()
        line.is_waiting_on_proxy = partial(bool, waited_for)
        held = weakref.ref(waited_for)
        del waited_for
        before = held() is not None
        await line.send_piece(HEAD)
        return before, held()

    assert run_on_fake_clock(answered) == (True, None)


# -- when it is told ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "then"),
    [
        ([(b"Content-Length", b"6")], [(0, 201), (0, b"one"), (1, b"two"), (1, b"")]),
        ([(b"content-length", b"many")], [(0, 201), (0, b"one"), (0, b"two"), (1, b"")]),
        ([], [(0, 201), (0, b"one"), (0, b"two"), (1, b"")]),
    ],
    ids=["a length", "no length that is one", "none"],
)
def test_client_response_signals_the_last_piece_before_sending_it(headers, then):
    """``on_last_piece`` is called before the last piece is sent, because a client may send its next request as soon as
    it has everything.
    """
    told, sent = [], []

    async def send(message):
        sent.append((min(1, len(told)), message.get("body", message.get("status"))))

    async def answered():
        line = outgoing.ClientResponse(send)
        line.on_last_piece = partial(told.append, "told")
        for piece in (ResponseHead(201, headers), b"one", b"two"):
            await line.send_piece(piece)
        await line.send_end()

    run_on_fake_clock(answered)
    assert sent == then
