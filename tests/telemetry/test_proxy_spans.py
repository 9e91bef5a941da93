"""Spans of the proxy: a client's trace goes on through it to the provider."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager

import anyio
import httpx2
import pytest

pytest.importorskip("opentelemetry.sdk", reason="OpenTelemetry's SDK is not installed (pip install 'holdfast[otel]')")

from opentelemetry.trace import SpanKind, StatusCode
from telemetry_recording import Recording

from holdfast.proxy.http.client_request import ClientRequest
from holdfast.proxy.server import open_proxy
from holdfast.proxy.settings import Settings
from holdfast.store.memory import MemoryStore
from holdfast.testing.provider import Provider, ProviderSettings
from holdfast.testing.provider.faults.faults import Fault
from holdfast.testing.provider.server.app import make_provider_app

TRACE_ID, CLIENT_SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACE_HEADERS = {
    "traceparent": f"00-{TRACE_ID}-{CLIENT_SPAN_ID}-01",
    "tracestate": "congo=t61rcWkgMzE",
    "baggage": "user=kelp",
}
MODEL = "claude-opus-5-5"
SPAN = f"chat {MODEL}"


class KeepingTransport(httpx2.AsyncBaseTransport):
    """The strict provider; keeps the requests that reach it."""

    def __init__(self, faults=()) -> None:
        self.sent: list[httpx2.Request] = []
        self._inner = httpx2.ASGITransport(make_provider_app(Provider(ProviderSettings()), faults))

    async def handle_async_request(self, request):
        self.sent.append(request)
        return await self._inner.handle_async_request(request)


@asynccontextmanager
async def open_client(recording, transport, **settings):
    """Yield a client of a proxy that records into ``recording``, if there is one."""
    addresses = {"anthropic": "http://up.example", "openai": "http://up.example/v1"}
    async with (
        open_proxy(
            Settings(**addresses | settings),
            MemoryStore(),
            transport=transport,
            telemetry=None if recording is None else recording.telemetry,
        ) as proxy,
        httpx2.AsyncClient(transport=httpx2.ASGITransport(proxy), base_url="http://127.0.0.1:8642") as client,
    ):
        yield client


def send(recording, path="/v1/messages", body=None, *, transport=None, headers=TRACE_HEADERS, **settings):
    """Send one request through a proxy; return the response and what reached the provider."""
    transport = transport or KeepingTransport()
    if body is None:
        body = {"model": MODEL, "max_tokens": 99, "messages": [{"role": "user", "content": "Hello"}]}

    async def run_scenario():
        async with open_client(recording, transport, **settings) as client:
            return await client.post(path, content=json.dumps(body).encode(), headers=dict(headers))

    return anyio.run(run_scenario), transport.sent


def get_sent_parent(request):
    """Return the trace and the span that a request names as its parent."""
    return tuple(request.headers["traceparent"].split("-")[1:3])


def test_trace_of_the_client_goes_on_to_the_provider(recording):
    """The proxy's span is a child of the client's, the request to the model one of the proxy's, and the provider's
    spans become children of that. ``tracestate`` and the client's own headers are passed on.
    """
    response, [sent] = send(recording)
    assert response.status_code == 200
    served, call = recording.find_span("POST /v1/messages"), recording.find_span(SPAN)
    assert (f"{served.context.trace_id:032x}", f"{served.parent.span_id:016x}") == (TRACE_ID, CLIENT_SPAN_ID)
    assert served.kind is SpanKind.SERVER
    assert dict(served.attributes) == {
        "http.request.method": "POST",
        "http.route": "/v1/messages",
        "http.response.status_code": 200,
        "holdfast.state": "managed",
    }
    assert call.parent.span_id == served.context.span_id
    assert get_sent_parent(sent) == (TRACE_ID, f"{call.context.span_id:016x}")
    assert sent.headers.get_list("tracestate") == [TRACE_HEADERS["tracestate"]]
    assert sent.headers["baggage"] == TRACE_HEADERS["baggage"]
    assert call.attributes["server.address"] == "up.example"
    assert call.attributes["server.port"] == 80
    assert call.attributes["gen_ai.conversation.id"] == response.headers["x-holdfast-session"]
    assert call.attributes["gen_ai.usage.input_tokens"] > 0


def test_client_without_a_trace_begins_one_at_the_proxy(recording):
    """Without a trace of the client the proxy's span has no parent, and the provider still gets the header."""
    _, [sent] = send(recording, headers={})
    served, call = recording.find_span("POST /v1/messages"), recording.find_span(SPAN)
    assert served.parent is None
    assert get_sent_parent(sent) == (f"{served.context.trace_id:032x}", f"{call.context.span_id:016x}")


@pytest.mark.parametrize(
    ("settings", "state", "model"), [({"bypass": True}, "bypassed", ""), ({"observe": True}, "observed", MODEL)]
)
def test_requests_that_are_only_passed_on_have_spans_too(recording, settings, state, model):
    """A request whose body nobody reads has a span without a model; an observed one has its model and tokens."""
    _, [sent] = send(recording, **settings)
    assert recording.find_span("POST /v1/messages").attributes["holdfast.state"] == state
    call = recording.find_span(f"chat {model}".strip())
    assert ("gen_ai.usage.input_tokens" in call.attributes) is bool(model)
    assert get_sent_parent(sent) == (TRACE_ID, f"{call.context.span_id:016x}")


def test_side_request_has_a_span_with_its_model(recording):
    """A request that is no conversation (``background``) is relayed, in a span that names the model of its body."""
    body = {"model": "gpt-5", "input": "Hello", "background": True}
    send(recording, "/v1/responses", body)
    assert recording.find_span("POST /v1/responses").attributes["holdfast.state"] == "relayed"
    assert recording.find_span("chat gpt-5").attributes["gen_ai.provider.name"] == "openai"


@pytest.mark.parametrize("settings", [{}, {"bypass": True}])
def test_refusal_of_the_provider_is_an_error_of_the_call_alone(recording, settings):
    """A status of 4xx is an error of the request to the model; for the served request the client is at fault."""
    send(recording, transport=KeepingTransport([Fault("401")]), **settings)
    served = recording.find_span("POST /v1/messages")
    call = recording.find_span("chat" if settings else SPAN)
    assert served.attributes["http.response.status_code"] == 401
    assert (served.status.status_code, call.status.status_code) == (StatusCode.UNSET, StatusCode.ERROR)
    assert call.attributes["error.type"] == ("401" if settings else "auth")


def test_unreachable_provider_is_an_error_of_both(recording):
    """Without an answer the call failed by ``network``, and the served request by the 502 that the client got."""

    class NoServer(httpx2.AsyncBaseTransport):
        async def handle_async_request(self, request):
            raise httpx2.ConnectError("All connection attempts failed")

    transport = NoServer()
    transport.sent = []
    send(recording, transport=transport)
    assert recording.find_span("POST /v1/messages").attributes["error.type"] == "502"
    assert recording.find_span(SPAN).attributes["error.type"] == "network"


def test_decisions_for_a_plugin_are_on_the_served_request(recording):
    """``/v1/plan`` asks no provider: what it decides is an event on the span of the request."""
    messages = [
        {"handle": str(number), "role": "user" if number % 2 == 0 else "assistant", "text": "kelp on the rock " * 400}
        for number in range(61)
    ]
    body = {"client": "pi", "session": "one", "model": MODEL, "window": 32_000, "messages": messages}
    response, sent = send(recording, "/v1/plan", body)
    assert (response.status_code, sent) == (200, [])
    served = recording.find_span("POST /v1/plan")
    assert "holdfast.compaction_ended" in [event.name for event in served.events]
    assert recording.sum_counter("holdfast.compactions") == 1


def test_paths_and_made_up_methods_are_not_recorded(recording):
    """What only one request has, such as a path with a server or a made-up method, is in no name of a span."""

    async def run_scenario():
        async with open_client(recording, KeepingTransport()) as client:
            await client.request("KELP", "/u/https://secret.example/v1/files/zanzibar", headers={})
            await client.post("/v1beta/models/zanzibar:generateContent", content=b"{}")

    anyio.run(run_scenario)
    assert {span.name for span in recording.spans if span.kind is SpanKind.SERVER} == {
        "_OTHER",
        "POST /v1beta/models/{model}:generateContent",
    }
    assert not any("files" in text for text in recording.list_texts())


def test_headers_of_a_trace_pass_unchanged_without_telemetry():
    """Without telemetry the provider gets the client's own headers, byte for byte."""
    _, [sent] = send(None)
    assert {name: sent.headers[name] for name in TRACE_HEADERS} == TRACE_HEADERS


def test_client_that_leaves_a_relayed_answer_ends_its_span_as_cancelled(recording):
    """An answer that is passed on, and that nobody reads to its end, is an error of kind ``cancelled``."""

    async def run_scenario():
        async with open_client(recording, KeepingTransport(), bypass=True) as client:
            relay = client._transport.app._make_relay(make_request())
            pieces = relay.relay(b"{}")
            await anext(pieces)
            await pieces.aclose()

    def make_request():
        headers = [(b"content-type", b"application/json")]
        scope = {"method": "POST", "path": "/v1/messages", "query_string": b"", "headers": headers}
        return ClientRequest.from_scope(scope)

    anyio.run(run_scenario)
    assert recording.find_span("chat").attributes["error.type"] == "cancelled"


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/messages", {"max_tokens": 99, "system": "You grow kelp."}),
        ("/v1/messages", {"max_tokens": 99, "system": "You grow kelp.", "stream": True}),
        ("/v1/responses", {"instructions": "You grow kelp."}),
    ],
)
@pytest.mark.parametrize("settings", [{}, {"observe": True}])
def test_words_are_on_the_span_of_a_request_if_asked_for(path, fields, settings):
    """A managed and an observed request have what was said and answered, streamed or not; the proxy has nothing."""
    recording = Recording(records_content=True)
    turns = [{"role": "user", "content": "Hello"}]
    body = {"model": MODEL, "input" if "responses" in path else "messages": turns, **fields}
    response, _ = send(recording, path, body, **settings)
    assert response.status_code == 200
    attributes = recording.find_span(SPAN).attributes
    [said] = json.loads(attributes["gen_ai.input.messages"])
    assert said == {"role": "user", "parts": [{"type": "text", "content": "Hello"}]}
    [answer] = json.loads(attributes["gen_ai.output.messages"])
    assert answer["role"] == "assistant"
    assert answer["parts"][0]["content"] in response.text
    assert json.loads(attributes["gen_ai.system_instructions"]) == [{"type": "text", "content": "You grow kelp."}]
    assert not [name for name in recording.find_span(f"POST {path}").attributes if "content" in name]


def test_request_that_nobody_reads_has_no_words():
    """A plain relay decodes no body for the sake of a span."""
    recording = Recording(records_content=True)
    send(recording, bypass=True)
    assert not [name for name in recording.find_span("chat").attributes if "messages" in name]


@pytest.mark.parametrize(
    "headers",
    [
        {"traceparent": "00-zz"},
        {"traceparent": f"00-{'0' * 32}-{'0' * 16}-01"},
        {"traceparent": f"ff-{TRACE_ID}-{CLIENT_SPAN_ID}-01"},
        {"traceparent": f"00-{TRACE_ID}-{CLIENT_SPAN_ID}-01", "tracestate": "=,;," * 2_000},
        {"tracestate": "congo=1"},
    ],
)
def test_trace_headers_that_are_wrong_fail_no_request(recording, headers):
    """What a client sends as its trace may be anything: the provider gets a valid header all the same."""
    response, [sent] = send(recording, headers=headers)
    assert response.status_code == 200
    call = recording.find_span(SPAN)
    assert get_sent_parent(sent) == (f"{call.context.trace_id:032x}", f"{call.context.span_id:016x}")
