"""Encode a reply of the provider as an HTTP response of its API: status, headers, body."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from holdfast.providers.common.json.raw_json import encode_json
from holdfast.testing.provider.apis import API_ENCODERS
from holdfast.testing.provider.apis.encoder import (
    EVENT_STREAM_TYPE,
    JSON_TYPE,
    EventStream,
    decode_request_fields,
    encode_sse_event,
)
from holdfast.testing.provider.apis.gemini import convert_to_json_array
from holdfast.testing.provider.calls import (
    CompactReply,
    Endpoint,
    IncomingRequest,
    ProviderReply,
    RefusalReply,
    TokenCountReply,
)
from holdfast.testing.provider.dialects.adapt_answer import adapt_answer_document, adapt_stream_event
from holdfast.testing.provider.dialects.judge import adapt_refusal, encode_stream_error
from holdfast.testing.provider.dialects.registry import find_server
from holdfast.testing.provider.dialects.server_dialect import ReasoningForm, ServerDialect
from holdfast.testing.provider.dialects.server_request import ServerRequest
from holdfast.testing.provider.faults.fault_replies import make_stream_error
from holdfast.testing.provider.faults.faults import Fault
from holdfast.testing.provider.server.answer_steps import OutgoingResponse, make_document_response


class ApiCall(Struct, frozen=True):
    """The facts about one request that its response depends on."""

    api: str
    endpoint: Endpoint
    request_id: str
    fault: Fault | None = None
    model: str = ""
    stream: bool | None = None
    """Whether the address asks for a stream; None if that is in the body."""
    as_json_array: bool = False
    """Whether the stream is one JSON array (Gemini without ``alt=sse``)."""
    server: str = ""
    """The server whose form the answer has (``ProviderSettings.server``)."""


def encode_reply(call: ApiCall, request: IncomingRequest, reply: ProviderReply) -> OutgoingResponse:
    """Encode ``reply`` as a response, with its body in pieces."""
    encoder = API_ENCODERS[call.api]
    headers = {"content-type": JSON_TYPE, encoder.request_id_header: call.request_id}
    if isinstance(reply, RefusalReply):
        return _encode_refusal(call, request, reply, headers)
    if isinstance(reply, TokenCountReply):
        return make_document_response(200, headers, encode_json(encoder.encode_count(reply.tokens)))
    if isinstance(reply, CompactReply):
        return make_document_response(200, headers, encode_json(encoder.encode_compaction(reply)))
    if request.stream:
        return _encode_stream(call, _adapt_server_stream(call, request, encoder.encode_stream(request, reply)), headers)
    document = encoder.encode_answer(request, reply)
    server = find_server(call.server)
    if server is not None and call.api == "openai-chat":
        document = adapt_answer_document(document, server.answers, find_reasoning_form(server, request))
    return make_document_response(200, headers, encode_json(document))


def _adapt_server_stream(call: ApiCall, request: IncomingRequest, stream: EventStream) -> EventStream:
    """Return the events of Chat Completions in the form of the server, if the provider is one."""
    server = find_server(call.server)
    if server is None or call.api != "openai-chat":
        return stream
    reasoning = find_reasoning_form(server, request)
    events = [adapt_stream_event(event, server.answers, reasoning) for event in stream.events]
    return EventStream(tuple(events), stream.closing_events)


def find_reasoning_form(server: ServerDialect, request: IncomingRequest) -> ReasoningForm:
    """Return where an answer of ``server`` has its reasoning."""
    body = decode_request_fields(request)
    model = str(request.model or body.get("model") or server.default_model).lower()
    server_request = ServerRequest(request.api, body, model, request.stream)
    return server.answers.get_reasoning_form(server_request)


def _encode_refusal(
    call: ApiCall,
    request: IncomingRequest,
    reply: RefusalReply,
    headers: Mapping[str, str],
) -> OutgoingResponse:
    encoder = API_ENCODERS[call.api]
    server = find_server(call.server)
    # A refusal for a fault comes without a judge, and so in the form of the API.
    if server is not None and not reply.in_stream:
        reply = adapt_refusal(server, reply)
    if reply.in_stream and request.stream:
        error_events = encoder.encode_late_error(request, reply, call.request_id, 0)
        return _encode_stream(call, EventStream(error_events, closing_events=1), headers)
    body = reply.body or encode_json(encoder.encode_error(reply, call.request_id))
    if call.fault and call.fault.kind == "413-empty":
        body = b""
    error_headers = {**headers, "content-type": _guess_content_type(body), **encoder.make_retry_headers(reply)}
    return make_document_response(reply.status, error_headers, body)


def _guess_content_type(body: bytes) -> str:
    """Return the content type of an error's body by its first character."""
    return {b"{": JSON_TYPE, b"[": JSON_TYPE, b"<": "text/html"}.get(body[:1], "text/plain; charset=utf-8")


def _encode_stream(call: ApiCall, stream: EventStream, headers: Mapping[str, str]) -> OutgoingResponse:
    content_type = f"{JSON_TYPE}; charset=UTF-8" if call.as_json_array else EVENT_STREAM_TYPE
    stream = _adapt_events(call, stream)
    return OutgoingResponse(
        200,
        {**headers, "content-type": content_type, "cache-control": "no-cache"},
        stream.events,
        stream.closing_events,
        is_stream=True,
    )


def _adapt_events(call: ApiCall, stream: EventStream, before: int = 0) -> EventStream:
    """Return the stream in the form that the call asks for, after ``before`` events that were sent already."""
    return convert_to_json_array(stream, before) if call.as_json_array else stream


def encode_late_error(
    call: ApiCall,
    request: IncomingRequest,
    response: OutgoingResponse,
    before: int,
) -> Sequence[bytes]:
    """Encode an error inside of an answer of which ``before`` events were sent already."""
    encoder = API_ENCODERS[call.api]
    error = make_stream_error(call.api)
    server = find_server(call.server)
    if server is not None and call.api == "openai-chat":
        document = encode_stream_error(server, error)
        return (encode_sse_event(document) if response.is_stream else encode_json(document),)
    if not response.is_stream:
        return (encode_json(encoder.encode_error(error, call.request_id)),)
    error_events = encoder.encode_late_error(request, error, call.request_id, before)
    return _adapt_events(call, EventStream(error_events, closing_events=1), before).events
