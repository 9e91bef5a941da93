"""An answer as the steps of a server, and what a fault makes of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

from msgspec import Struct

from holdfast.testing.provider.faults.faults import Fault

GARBAGE = b"\x00\xff\xfe{]}\x1b[0m\r\xf0\x28\x8c\x28 \x00data\x00: ]["
"""Bytes that are neither an event, nor JSON, nor UTF-8."""
BROKEN = b"\xe2\x28\xa1\xff"
"""Bytes that no UTF-8 holds."""
ALERT = b"\x15\x03\x03\x00\x02\x02\x28"
"""An alert of TLS, sent where HTTP is spoken."""
BITE = 7
"""Bytes that a dripping answer sends at once: less than an event, and it splits characters."""
PARTS = 4
"""Pieces of an answer in one document, so that a fault can strike between them."""


class Outgoing(Struct, frozen=True):
    """What is to be sent: status, headers, and the body in pieces (the events of a stream)."""

    status: int
    headers: Mapping[str, str]
    pieces: tuple[bytes, ...]
    closing: int = 1
    """How many of the last pieces end the answer."""
    streamed: bool = False


class Head(Struct, frozen=True):
    """Status line and headers are sent."""

    status: int
    headers: Mapping[str, str]


class Wait(Struct, frozen=True):
    """Nothing is sent for some seconds, or until the client leaves."""

    seconds: float


class Leave(Struct, frozen=True):
    """The connection is closed, or reset; what was not sent never will be."""

    reset: bool = False


class Bare(Struct, frozen=True):
    """Bytes are sent beside HTTP, and the connection is closed."""

    data: bytes


Step: TypeAlias = Head | bytes | Wait | Leave | Bare
"""What a server does next; bytes are a piece of the body. After the last step the body is complete."""
_STRIKING = frozenset({"reset", "cut", "stall", "drip", "protocol", "unfinished", "error", "garbage", "utf8", "blank"})
"""Faults that change how an answer is sent; the others are told in its place."""
Late: TypeAlias = Callable[[int], Sequence[bytes]]
"""The events of an error that comes behind so many events."""


def document(status: int, headers: Mapping[str, str], body: bytes) -> Outgoing:
    """Return an answer in one document, cut so that a fault can strike inside."""
    size = max(1, -(-len(body) // PARTS))
    return Outgoing(status, headers, tuple([body[start : start + size] for start in range(0, len(body), size)]))


def steps(spoken: Outgoing, fault: Fault | None = None, late: Late = lambda _: ()) -> list[Step]:
    """Return what the server does to send ``spoken``, with ``fault`` (a ``checked`` one) striking.

    A fault that is told in place of an answer, or while the request comes in, changes nothing here.
    """
    if fault is None or fault.stage == "body" or fault.kind not in _STRIKING:
        return [_head(spoken, sized=not spoken.streamed), *spoken.pieces]
    whole: list[Step] = [_head(spoken), *spoken.pieces]
    cut = place(spoken, fault)
    return [*whole[:cut], *_struck(fault, whole[cut:], late(max(0, cut - 1)))]


def _head(spoken: Outgoing, *, sized: bool = False) -> Head:
    """Return the head; its length is told only where nothing will strike."""
    length = {"content-length": str(sum(map(len, spoken.pieces)))} if sized else {}
    return Head(spoken.status, {**spoken.headers, **length})


def place(spoken: Outgoing, fault: Fault) -> int:
    """Return how many steps are done before ``fault`` strikes; the first of them is the head."""
    pieces = len(spoken.pieces)
    if fault.kind == "error" and not spoken.streamed:
        return 1
    places = {"first": 0, "middle": pieces // 2, "end": max(0, pieces - spoken.closing)}
    return 1 + places.get(fault.stage, -1)


def _struck(fault: Fault, after: list[Step], late: Sequence[bytes]) -> list[Step]:
    """Return what is done from the place on where the fault strikes; ``after`` is what would have been."""
    match fault.kind:
        case "reset" | "cut":
            return [Leave(reset=fault.kind == "reset")]
        case "stall":
            return [Wait(fault.seconds or 0), *after]
        case "drip":
            return list(_dripping(after, fault.seconds or 0))
        case "protocol":
            return [Bare(ALERT)]
        case "unfinished":
            return []
        case "error":
            return [*late]
        case "garbage":
            return [GARBAGE, *after]
        case "utf8":
            return [*_broken(after)]
        case _:
            return after[:1]


def _dripping(after: Sequence[Step], seconds: float) -> Iterator[Step]:
    whole = b"".join([step for step in after if isinstance(step, bytes)])
    for start in range(0, len(whole), BITE):
        yield whole[start : start + BITE]
        yield Wait(seconds)


def _broken(after: list[Step]) -> Iterator[Step]:
    """Yield the pieces with broken bytes in the middle of the first one."""
    first = after[0] if after and isinstance(after[0], bytes) else b""
    half = len(first) // 2
    yield first[:half] + BROKEN + first[half:]
    yield from after[1:]
