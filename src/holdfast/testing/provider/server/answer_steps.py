"""An answer as the steps of a server, and what a fault makes of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

from msgspec import Struct

from holdfast.testing.provider.faults.faults import Fault

GARBAGE_BYTES = b"\x00\xff\xfe{]}\x1b[0m\r\xf0\x28\x8c\x28 \x00data\x00: ]["
"""Bytes that are neither an event, nor JSON, nor UTF-8."""
INVALID_UTF8 = b"\xe2\x28\xa1\xff"
"""Bytes that no UTF-8 holds."""
TLS_ALERT = b"\x15\x03\x03\x00\x02\x02\x28"
"""An alert of TLS, sent where HTTP is spoken."""
DRIP_BYTES = 7
"""Bytes that a dripping answer sends at once: less than an event, and it splits characters."""
DOCUMENT_PIECES = 4
"""Pieces of an answer in one document, so that a fault can strike between them."""


class OutgoingResponse(Struct, frozen=True):
    """What is to be sent: status, headers, and the body in pieces (the events of a stream)."""

    status: int
    headers: Mapping[str, str]
    pieces: tuple[bytes, ...]
    closing: int = 1
    """How many of the last pieces end the answer."""
    is_stream: bool = False


class HeadStep(Struct, frozen=True):
    """Status line and headers are sent."""

    status: int
    headers: Mapping[str, str]


class WaitStep(Struct, frozen=True):
    """Nothing is sent for some seconds, or until the client leaves."""

    seconds: float


class CloseStep(Struct, frozen=True):
    """The connection is closed, or reset; what was not sent never will be."""

    reset: bool = False


class RawBytesStep(Struct, frozen=True):
    """Bytes are sent beside HTTP, and the connection is closed."""

    data: bytes


ServerStep: TypeAlias = HeadStep | bytes | WaitStep | CloseStep | RawBytesStep
"""What a server does next; bytes are a piece of the body. After the last step the body is complete."""
_SENDING_FAULTS = frozenset(
    {"reset", "cut", "stall", "drip", "protocol", "unfinished", "error", "garbage", "utf8", "blank"}
)
"""Faults that change how an answer is sent; the others are told in its place."""
LateEvents: TypeAlias = Callable[[int], Sequence[bytes]]
"""The events of an error that comes behind so many events."""


def make_document_response(status: int, headers: Mapping[str, str], body: bytes) -> OutgoingResponse:
    """Return an answer in one document, cut so that a fault can strike inside."""
    size = max(1, -(-len(body) // DOCUMENT_PIECES))
    return OutgoingResponse(status, headers, tuple([body[start : start + size] for start in range(0, len(body), size)]))


def plan_server_steps(
    response: OutgoingResponse, fault: Fault | None = None, late: LateEvents = lambda _: ()
) -> list[ServerStep]:
    """Return what the server does to send ``response``, with ``fault`` (a ``checked`` one) striking.

    A fault that is told in place of an answer, or while the request comes in, changes nothing here.
    """
    if fault is None or fault.stage == "body" or fault.kind not in _SENDING_FAULTS:
        return [_make_head(response, has_length=not response.is_stream), *response.pieces]
    whole: list[ServerStep] = [_make_head(response), *response.pieces]
    index = find_fault_position(response, fault)
    return [*whole[:index], *_apply_fault(fault, whole[index:], late(max(0, index - 1)))]


def _make_head(response: OutgoingResponse, *, has_length: bool = False) -> HeadStep:
    """Return the head; its length is told only where nothing will strike."""
    length = {"content-length": str(sum(map(len, response.pieces)))} if has_length else {}
    return HeadStep(response.status, {**response.headers, **length})


def find_fault_position(response: OutgoingResponse, fault: Fault) -> int:
    """Return how many steps are done before ``fault`` strikes; the first of them is the head."""
    pieces = len(response.pieces)
    if fault.kind == "error" and not response.is_stream:
        return 1
    places = {"first": 0, "middle": pieces // 2, "end": max(0, pieces - response.closing)}
    return 1 + places.get(fault.stage, -1)


def _apply_fault(fault: Fault, remaining_steps: list[ServerStep], late: Sequence[bytes]) -> list[ServerStep]:
    """Return what is done from the place on where the fault strikes; ``remaining_steps`` is what would have been."""
    match fault.kind:
        case "reset" | "cut":
            return [CloseStep(reset=fault.kind == "reset")]
        case "stall":
            return [WaitStep(fault.seconds or 0), *remaining_steps]
        case "drip":
            return list(_drip_bytes(remaining_steps, fault.seconds or 0))
        case "protocol":
            return [RawBytesStep(TLS_ALERT)]
        case "unfinished":
            return []
        case "error":
            return [*late]
        case "garbage":
            return [GARBAGE_BYTES, *remaining_steps]
        case "utf8":
            return [*_insert_invalid_utf8(remaining_steps)]
        case _:
            return remaining_steps[:1]


def _drip_bytes(remaining_steps: Sequence[ServerStep], seconds: float) -> Iterator[ServerStep]:
    whole = b"".join([step for step in remaining_steps if isinstance(step, bytes)])
    for start in range(0, len(whole), DRIP_BYTES):
        yield whole[start : start + DRIP_BYTES]
        yield WaitStep(seconds)


def _insert_invalid_utf8(remaining_steps: list[ServerStep]) -> Iterator[ServerStep]:
    """Yield the pieces with broken bytes in the middle of the first one."""
    first = remaining_steps[0] if remaining_steps and isinstance(remaining_steps[0], bytes) else b""
    half = len(first) // 2
    yield first[:half] + INVALID_UTF8 + first[half:]
    yield from remaining_steps[1:]
