"""Answer a request that a fault may strike; shared by the server and the upstream without sockets."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from msgspec import Struct

from holdfast.state.codec.reading import get_decoder
from holdfast.testing.provider.apis.encode_reply import ApiCall
from holdfast.testing.provider.calls import IncomingRequest, ModelAnswer, ProviderReply
from holdfast.testing.provider.faults.fault_replies import add_unknown_block, make_empty_answer, make_fault_refusal
from holdfast.testing.provider.faults.faults import FAULT_KINDS, Fault


class _StreamField(Struct):
    stream: bool = False


def answer_with_faults(
    answer: Callable[[IncomingRequest], ProviderReply],
    call: ApiCall,
    request: IncomingRequest,
) -> ProviderReply:
    """Return the reply of ``answer``, changed or replaced by the fault of the call if there is one."""
    if call.fault and is_status_fault(call.fault):
        return make_fault_refusal(call.fault, call.api)
    reply = answer(request)
    if call.fault and isinstance(reply, ModelAnswer):
        if call.fault.kind == "empty":
            return make_empty_answer(reply)
        if call.fault.kind == "unknown":
            return add_unknown_block(reply, call.api)
    return reply


def is_status_fault(fault: Fault) -> bool:
    """Return whether the fault is an error status that is sent in place of an answer."""
    return FAULT_KINDS[fault.kind].group == "status"


def is_stream_requested(body: bytes) -> bool:
    """Return whether the body asks for a stream; for Gemini, the address says so instead."""
    try:
        return get_decoder(_StreamField).decode(body).stream
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return False
