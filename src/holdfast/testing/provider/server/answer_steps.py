"""Plan the steps with which a server sends an answer, and change them as a fault demands."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import ceil
from typing import TypeAlias

from msgspec import Struct

from holdfast.testing.provider.faults.faults import Fault

GARBAGE_BYTES = b"\x00\xff\xfe{]}\x1b[0m\r\xf0\x28\x8c\x28 \x00data\x00: ]["
"""Bytes that are neither an event, nor JSON, nor UTF-8."""
INVALID_UTF8 = b"\xe2\x28\xa1\xff"
"""Bytes that are not valid UTF-8."""
TLS_ALERT = b"\x15\x03\x03\x00\x02\x02\x28"
"""A TLS alert, as a client receives it that speaks HTTP to a TLS port."""
# Less than any event, and odd, so that multi-byte characters are split too.
DRIP_BYTES = 7
"""Bytes that a dripping answer sends at once."""
DOCUMENT_PIECES = 4
"""Pieces of a body that is one document, so that a fault can strike between them."""


class OutgoingResponse(Struct, frozen=True):
    """A response to send: status, headers, and the body in pieces (the events of a stream)."""

    status: int
    headers: Mapping[str, str]
    pieces: tuple[bytes, ...]
    closing: int = 1
    """Number of pieces at the end that come after all content."""
    is_stream: bool = False


class HeadStep(Struct, frozen=True):
    """Send status line and headers."""

    status: int
    headers: Mapping[str, str]


class WaitStep(Struct, frozen=True):
    """Send nothing for some seconds, or until the client leaves."""

    seconds: float


class CloseStep(Struct, frozen=True):
    """Close or reset the connection; later steps are not done."""

    reset: bool = False


class RawBytesStep(Struct, frozen=True):
    """Send bytes that are not part of an HTTP response, and close the connection."""

    data: bytes


ServerStep: TypeAlias = HeadStep | bytes | WaitStep | CloseStep | RawBytesStep
"""One step of a server; bytes are a piece of the body. After the last step the body is complete."""
_SENDING_FAULTS = frozenset(
    {"reset", "cut", "stall", "drip", "protocol", "unfinished", "error", "garbage", "utf8", "blank"}
)
"""Faults that change how an answer is sent; the others change or replace the answer."""
LateEvents: TypeAlias = Callable[[int], Sequence[bytes]]
"""Returns the events of an error that comes after a number of events."""


def make_document_response(status: int, headers: Mapping[str, str], body: bytes) -> OutgoingResponse:
    """Build a response with one document as its body, in pieces so that a fault can strike between them."""
    size = max(1, ceil(len(body) / DOCUMENT_PIECES))
    pieces = tuple([body[start : start + size] for start in range(0, len(body), size)])
    return OutgoingResponse(status, headers, pieces)


def plan_server_steps(
    response: OutgoingResponse,
    fault: Fault | None = None,
    late: LateEvents = lambda _: (),
) -> list[ServerStep]:
    """Return the steps that send ``response`` while ``fault``, completed by ``complete_fault``, strikes.

    Faults that replace the answer, or strike while the request is received, change nothing here.
    """
    if fault is None or fault.stage == "body" or fault.kind not in _SENDING_FAULTS:
        return [_make_head(response, has_length=not response.is_stream), *response.pieces]
    steps: list[ServerStep] = [_make_head(response), *response.pieces]
    position = find_fault_position(response, fault)
    error_events = late(max(0, position - 1))
    return [*steps[:position], *_apply_fault(fault, steps[position:], error_events)]


def _make_head(response: OutgoingResponse, *, has_length: bool = False) -> HeadStep:
    """Build the head; it must not announce a length if a fault changes the body."""
    headers = dict(response.headers)
    if has_length:
        headers["content-length"] = str(sum(map(len, response.pieces)))
    return HeadStep(response.status, headers)


def find_fault_position(response: OutgoingResponse, fault: Fault) -> int:
    """Return the number of steps that are done before ``fault`` strikes; the first of them is the head."""
    if fault.kind == "error" and not response.is_stream:
        # In place of the document, which cannot go on with an error.
        return 1
    piece_count = len(response.pieces)
    match fault.stage:
        case "first":
            return 1
        case "middle":
            return 1 + piece_count // 2
        case "end":
            return 1 + max(0, piece_count - response.closing)
        case _:
            return 0


def _apply_fault(fault: Fault, remaining_steps: list[ServerStep], error_events: Sequence[bytes]) -> list[ServerStep]:
    """Return the steps from the position of the fault on, in place of ``remaining_steps``."""
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
            return [*error_events]
        case "garbage":
            return [GARBAGE_BYTES, *remaining_steps]
        case "utf8":
            return [*_insert_invalid_utf8(remaining_steps)]
        case _:  # "blank": it always strikes at position 0, so the first of the remaining steps is the head
            return remaining_steps[:1]


def _drip_bytes(remaining_steps: Sequence[ServerStep], seconds: float) -> Iterator[ServerStep]:
    body = b"".join([step for step in remaining_steps if isinstance(step, bytes)])
    for start in range(0, len(body), DRIP_BYTES):
        yield body[start : start + DRIP_BYTES]
        yield WaitStep(seconds)


def _insert_invalid_utf8(remaining_steps: list[ServerStep]) -> Iterator[ServerStep]:
    """Yield the pieces, the first with invalid bytes in its middle."""
    first_piece = b""
    if remaining_steps and isinstance(remaining_steps[0], bytes):
        first_piece = remaining_steps[0]
    middle = len(first_piece) // 2
    yield first_piece[:middle] + INVALID_UTF8 + first_piece[middle:]
    yield from remaining_steps[1:]
