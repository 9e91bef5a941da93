"""What the judge answered, in the words of the API: status, headers, body."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from holdfast.providers.common.json.raw_json import encode_json
from holdfast.testing.provider.apis import API_ENCODERS
from holdfast.testing.provider.apis.encoder import EVENT_STREAM_TYPE, JSON_TYPE, EventStream
from holdfast.testing.provider.apis.gemini import convert_to_json_array
from holdfast.testing.provider.calls import (
    CompactReply,
    Endpoint,
    IncomingRequest,
    ProviderReply,
    RefusalReply,
    TokenCountReply,
)
from holdfast.testing.provider.faults.fault_replies import make_stream_error
from holdfast.testing.provider.faults.faults import Fault
from holdfast.testing.provider.server.answer_steps import OutgoingResponse, make_document_response


class ApiCall(Struct, frozen=True):
    """One request for an answer, a count or a compaction."""

    api: str
    endpoint: Endpoint
    request_id: str
    fault: Fault | None = None
    model: str = ""
    stream: bool | None = None
    """Whether events are asked for, where the address says it."""
    as_json_array: bool = False
    """Whether the events are to be one JSON array (Gemini without ``alt=sse``)."""


def encode_reply(call: ApiCall, request: IncomingRequest, reply: ProviderReply) -> OutgoingResponse:
    """Return ``reply`` as it is sent: status, headers, and the body in pieces."""
    voice = API_ENCODERS[call.api]
    about = {"content-type": JSON_TYPE, voice.request_id_header: call.request_id}
    if isinstance(reply, RefusalReply):
        return _encode_refusal(call, request, reply, about)
    if isinstance(reply, TokenCountReply):
        return make_document_response(200, about, encode_json(voice.encode_count(reply.tokens)))
    if isinstance(reply, CompactReply):
        return make_document_response(200, about, encode_json(voice.encode_compaction(reply)))
    if request.stream:
        return _encode_stream(call, voice.encode_stream(request, reply), about)
    return make_document_response(200, about, encode_json(voice.encode_answer(request, reply)))


def _encode_refusal(
    call: ApiCall, request: IncomingRequest, reply: RefusalReply, about: Mapping[str, str]
) -> OutgoingResponse:
    voice = API_ENCODERS[call.api]
    if reply.in_stream and request.stream:
        return _encode_stream(call, EventStream(voice.encode_late_error(request, reply, call.request_id, 0), 1), about)
    body = reply.body or encode_json(voice.encode_error(reply, call.request_id))
    if call.fault and call.fault.kind == "413-empty":
        body = b""
    return make_document_response(
        reply.status, {**about, "content-type": _guess_content_type(body), **voice.make_retry_headers(reply)}, body
    )


def _guess_content_type(body: bytes) -> str:
    """Return what kind of text an error's body is, told from its first character."""
    return {b"{": JSON_TYPE, b"[": JSON_TYPE, b"<": "text/html"}.get(body[:1], "text/plain; charset=utf-8")


def _encode_stream(call: ApiCall, stream: EventStream, about: Mapping[str, str]) -> OutgoingResponse:
    mime = f"{JSON_TYPE}; charset=UTF-8" if call.as_json_array else EVENT_STREAM_TYPE
    events = _adapt_events(call, stream)
    return OutgoingResponse(
        200,
        {**about, "content-type": mime, "cache-control": "no-cache"},
        events.events,
        events.closing_events,
        is_stream=True,
    )


def _adapt_events(call: ApiCall, stream: EventStream, before: int = 0) -> EventStream:
    """Return the events as this call wants them; ``before`` of them were sent already."""
    return convert_to_json_array(stream, before) if call.as_json_array else stream


def encode_late_error(
    call: ApiCall, request: IncomingRequest, response: OutgoingResponse, before: int
) -> Sequence[bytes]:
    """Return how an error is told inside an answer of which so many events were sent already."""
    voice, error = API_ENCODERS[call.api], make_stream_error(call.api)
    if not response.is_stream:
        return (encode_json(voice.encode_error(error, call.request_id)),)
    return _adapt_events(
        call, EventStream(voice.encode_late_error(request, error, call.request_id, before), 1), before
    ).events
