"""A request heard and judged while a fault may strike: the same over HTTP and without any transport."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from msgspec import Struct

from holdfast.state.codec.reading import decoder
from holdfast.testing.provider.calls import Answered, Asked, Reply
from holdfast.testing.provider.faults.faults import KINDS, Fault
from holdfast.testing.provider.faults.mishaps import refusal, silent, strange
from holdfast.testing.provider.voices.speaking import Call


class _Wish(Struct):
    stream: bool = False


def judged(answer: Callable[[Asked], Reply], call: Call, asked: Asked) -> Reply:
    """Return the judge's answer, unless a fault comes before it; some faults change it."""
    if call.fault and is_told(call.fault):
        return refusal(call.fault, call.api)
    reply = answer(asked)
    if call.fault and isinstance(reply, Answered) and call.fault.kind in ("empty", "unknown"):
        return silent(reply) if call.fault.kind == "empty" else strange(reply, call.api)
    return reply


def is_told(fault: Fault) -> bool:
    """Return whether the fault is a status, told in place of an answer."""
    return KINDS[fault.kind].group == "status"


def wants_events(body: bytes) -> bool:
    """Return whether the body asks for a stream (Gemini's address does)."""
    try:
        return decoder(_Wish).decode(body).stream
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return False
