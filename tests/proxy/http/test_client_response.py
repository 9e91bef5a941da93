"""What is sent to the client and when: keep-alives until the first piece, then pieces as they arrive, and errors."""

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

KEEP_ALIVE = b": keep-alive\n\n"
HEAD = ResponseHead(201, [(b"x-kelp", b"1")])


class TimedResponse:
    """Pieces or errors, each after its seconds; records what the client is sent, and when."""

    def __init__(self, *timed_pieces, keep_alive=KEEP_ALIVE, patience=10.0, send_seconds=0.0, breaks_at=None):
        self.timed_pieces, self.keep_alive, self.patience = timed_pieces, keep_alive, patience
        self.send_seconds, self.breaks_at = send_seconds, breaks_at
        self.sent, self.requested_count, self.closed_at = [], 0, None

    async def pieces(self):
        try:
            for seconds, piece in self.timed_pieces:
                self.requested_count += 1
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
        await anyio.sleep(self.send_seconds)

    async def deliver(self):
        await outgoing.deliver_pieces(self.pieces(), outgoing.ClientResponse(self.send), self.keep_alive, self.patience)
        return self.sent


def deliver(*timed_pieces, **options):
    return run_on_fake_clock(TimedResponse(*timed_pieces, **options).deliver)


# -- timing ------------------------------------------------------------------------------------------------------------


def test_deliver_pieces_sends_keep_alives_until_the_first_piece():
    """A keep-alive is sent every ``patience`` seconds, after a head of its own, until the first piece and never after
    it.
    """
    keep_alives = [(10, 200), (10, KEEP_ALIVE), (20, KEEP_ALIVE), (30, KEEP_ALIVE)]
    assert deliver((35, HEAD), (0, b"a"), (100, b"b")) == [*keep_alives, (35, b"a"), (135, b"b")]


def test_deliver_pieces_sends_no_keep_alive_for_a_quick_answer():
    """An answer within the patience is sent as it is, with its own head."""
    assert deliver((9.9, HEAD), (30, b"a")) == [(9.9, 201), (39.9, b"a")]


@pytest.mark.parametrize("options", [{"keep_alive": b""}, {"patience": 0}, {"patience": -1}])
def test_deliver_pieces_without_keep_alive_or_patience_only_waits(options):
    """An unstreamed answer has no keep-alive, and a patience of 0 or less switches them off."""
    assert deliver((35, HEAD), (1, b"a"), **options) == [(35, 201), (36, b"a")]


@given(st.lists(st.integers(0, 40), max_size=6), st.integers(1, 15))
def test_deliver_pieces_never_changes_order_or_times(waits, patience):
    """Keep-alives change neither the pieces nor their order nor their times."""
    found = deliver(*((seconds, b"%d" % number) for number, seconds in enumerate(waits)), patience=patience)
    pieces = [(at, body) for at, body in found if body not in (KEEP_ALIVE, 200)]
    assert pieces == [(sum(waits[: number + 1]), b"%d" % number) for number in range(len(waits))]
    assert len(found) - len(pieces) <= (waits[0] // patience + 1 if waits else 0)


def test_deliver_pieces_finishes_a_keep_alive_before_the_piece():
    """A keep-alive that is being sent to a slow client ends before the piece; no two messages are sent at once."""
    found = deliver((12, HEAD), (0, b"a"), send_seconds=5)
    assert found == [(10, 200), (15, KEEP_ALIVE), (20, b"a")]


def test_deliver_pieces_never_reads_ahead():
    """The next piece is requested only when the client has taken the last, so that a slow client slows the provider."""
    response = TimedResponse((0, HEAD), (0, b"a"), (0, b"b"), send_seconds=60)
    requested_counts = []

    async def slowly():
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(response.deliver)
            for _ in range(3):
                await anyio.sleep(59)
                requested_counts.append(response.requested_count)
                await anyio.sleep(1)

    run_on_fake_clock(slowly)
    assert requested_counts == [1, 2, 3]


# -- errors ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wait", [0, 25])
@pytest.mark.parametrize("before", [(), ((1, HEAD),)])
@pytest.mark.parametrize("keep_alive", [KEEP_ALIVE, b""])
def test_deliver_pieces_raises_the_error_of_the_source(wait, before, keep_alive):
    """An error of the source is raised as the same object, not in an exception group."""
    error = UpstreamError("no answer came", "network")
    response = TimedResponse(*before, (wait, error), keep_alive=keep_alive)
    with pytest.raises(UpstreamError) as raised:
        run_on_fake_clock(response.deliver)
    assert raised.value is error
    assert response.closed_at is not None


@pytest.mark.parametrize("breaks_at", [0, 1, 2, 3, 4])
def test_deliver_pieces_raises_the_error_of_sending(breaks_at):
    """A failed send raises its own error at once, also for a keep-alive, and closes the source."""
    response = TimedResponse((25, HEAD), (0, b"a"), (0, b"b"), breaks_at=breaks_at)
    with pytest.raises(ConnectionResetError):
        run_on_fake_clock(response.deliver)
    assert response.closed_at == (10, 10, 20, 25, 25)[breaks_at]


@pytest.mark.parametrize("seconds", [5, 15, 40])
def test_deliver_pieces_closes_the_source_when_cancelled(seconds):
    """Cancellation closes the source before the first keep-alive, between them and after the first piece."""
    response = TimedResponse((35, HEAD), (1_000, b"b"))

    async def cancelled():
        with anyio.move_on_after(seconds) as scope:
            await response.deliver()
        return scope.cancelled_caught, get_loop_time()

    assert run_on_fake_clock(cancelled) == (True, seconds)
    assert response.closed_at == seconds


# -- references --------------------------------------------------------------------------------------------------------


def test_client_response_releases_the_wait_predicate():
    """After the first piece the predicate that says whose wait it is, and everything it refers to, is released."""

    async def answered():
        response = outgoing.ClientResponse(TimedResponse().send)
        waited_for = TimedResponse()
        response.is_waiting_on_proxy = partial(bool, waited_for)
        reference = weakref.ref(waited_for)
        del waited_for
        before = reference() is not None
        await response.send_piece(HEAD)
        return before, reference()

    assert run_on_fake_clock(answered) == (True, None)


# -- the last piece ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "then"),
    [
        ([(b"Content-Length", b"6")], [(0, 201), (0, b"one"), (1, b"two"), (1, b"")]),
        ([(b"content-length", b"many")], [(0, 201), (0, b"one"), (0, b"two"), (1, b"")]),
        ([], [(0, 201), (0, b"one"), (0, b"two"), (1, b"")]),
    ],
    ids=["a length", "an invalid length", "none"],
)
def test_client_response_signals_the_last_piece_before_sending_it(headers, then):
    """``on_last_piece`` is called before the last piece is sent, because a client may send its next request as soon as
    it has everything.
    """
    signals, sent = [], []

    async def send(message):
        sent.append((min(1, len(signals)), message.get("body", message.get("status"))))

    async def answered():
        response = outgoing.ClientResponse(send)
        response.on_last_piece = partial(signals.append, "last piece")
        for piece in (ResponseHead(201, headers), b"one", b"two"):
            await response.send_piece(piece)
        await response.send_end()

    run_on_fake_clock(answered)
    assert sent == then
