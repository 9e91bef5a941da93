"""Malformed and unusual answers: they are passed on as they are, or become one complete error."""

from __future__ import annotations

import asyncio
from functools import partial

import anyio
import httpx2
import pytest
import socket_proxy

from holdfast.engine.upstream import replies
from holdfast.errors import StoreReadOnly
from holdfast.providers.common.sse import SseReader
from holdfast.proxy import server as serving
from holdfast.state.entries import AnswerEntry
from holdfast.store.memory import MemoryStore

APIS = list(socket_proxy.PATHS)


@pytest.fixture(scope="module")
def running():
    """A proxy for all of these tests."""
    with socket_proxy.run_proxy() as proxy:
        yield proxy


@pytest.fixture
def proxy(running):
    """The proxy; when the test is over it must be healthy and idle."""
    running.upstream.requests.clear()
    yield running
    assert running.send(socket_proxy.build_request("/livez", method="GET")).json["troubles"] == []
    running.wait_idle()


def make_responder(head, body=b"", *, cut=False):
    """Return a responder that sends these bytes, and closes the connection if ``cut``."""

    async def respond(connection, response):
        await connection.send(head + b"\r\n\r\n" + body)
        if cut:
            connection.close()

    return respond


def encode_request(api, words, *, stream=False):
    """Build the bytes of a request of one turn."""
    path = (socket_proxy.STREAM_PATHS if stream else socket_proxy.PATHS)[api]
    return socket_proxy.build_request(path, socket_proxy.build_body(api, words, stream=stream))


# -- refusals ----------------------------------------------------------------------------------------------------------

TIMED_OUT = b'{"error":{"message":"the connection to the model timed out","type":"timeout"}}'
REFUSALS = {
    "a gateway's timeout": (b"504 Gateway Timeout", TIMED_OUT),
    "a client's timeout": (b"408 Request Timeout", TIMED_OUT),
    "a timeout of a status of its own": (b"524 A Timeout Occurred", b"<html>error code: 524</html>"),
    "no words": (b"401 Unauthorized", b""),
    "another address": (b"307 Temporary Redirect", b""),
}


@pytest.mark.parametrize("what", REFUSALS)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("api", APIS)
def test_proxy_returns_refusals_unchanged(api, stream, what, proxy):
    """Status, headers and bytes are the provider's whatever the refusal, and a redirect leads through the proxy to the
    same provider.
    """
    status, body = REFUSALS[what]
    before = proxy.stats()["requests"]["all"]
    fields = b"\r\nx-request-id: req_1\r\nlocation: /v2/elsewhere\r\ncontent-length: %d" % len(body)
    proxy.upstream.respond = make_responder(b"HTTP/1.1 " + status + fields, body)
    reply = proxy.send(encode_request(api, what, stream=stream))
    assert (reply.status, reply.body, reply.complete) == (int(status[:3]), body, True)
    place = f"/u/http://127.0.0.1:{proxy.upstream.port}/v2/elsewhere" if reply.status == 307 else "/v2/elsewhere"
    assert (reply.headers["x-request-id"], reply.headers["location"]) == ("req_1", place)
    after = proxy.stats()["requests"]["all"]
    assert (after["managed"] - before["managed"], after["failed"] - before["failed"]) == (1, 0)


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/files"])
def test_proxy_maps_an_invalid_status_to_502(path, proxy):
    """The HTTP server cannot send a status of 600 or more, so its body is returned under 502."""
    proxy.upstream.respond = make_responder(b"HTTP/1.1 999 Denied\r\ncontent-length: 2", b"no")
    reply = proxy.send(socket_proxy.build_request(path, socket_proxy.build_body("anthropic", "a status that is none")))
    assert (reply.status, reply.body, reply.complete) == (502, b"no", True)


@pytest.mark.parametrize("coding", ["br", "zstd", "gzip, br", "none-such"])
@pytest.mark.parametrize("status", [b"200 OK", b"400 Bad Request"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens", "/v1/files"])
def test_proxy_returns_answers_in_unknown_codings_with_their_coding(path, stream, status, coding, proxy):
    """An answer the proxy cannot decompress is returned unchanged with its content-encoding."""
    packed = b"\x8b\x03\x80kelp\x03"
    kind = b"text/event-stream" if stream else b"application/json"
    fields = b"\r\ncontent-type: " + kind + b"\r\ncontent-length: 8\r\ncontent-encoding: " + coding.encode()
    proxy.upstream.respond = make_responder(b"HTTP/1.1 " + status + fields, packed)
    reply = proxy.send(
        socket_proxy.build_request(path, socket_proxy.build_body("anthropic", f"packed as {coding}", stream=stream))
    )
    assert (reply.status, reply.body, reply.complete) == (int(status[:3]), packed, True)
    assert reply.headers["content-encoding"] == coding
    assert len(proxy.upstream.requests) == 1


def test_proxy_reports_an_invalid_host_name_with_502(proxy):
    """An invalid host name is an error of the address, not a trouble of the proxy."""
    reply = proxy.send(socket_proxy.build_request("/u/http://xn--a/v1/models", method="GET"))
    assert reply.status == 502
    assert "xn--a" in str(reply.json["error"])


def test_proxy_ignores_content_length_beside_chunks(proxy):
    """With both, the chunks count (RFC 9112, 6.3), so the length is not passed to the client."""
    both = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-length: 3"
    proxy.upstream.respond = make_responder(both, b"8\r\nholdfast\r\n0\r\n\r\n", cut=True)
    reply = proxy.send(socket_proxy.build_request("/v1/files", method="GET"))
    assert (reply.status, reply.body, reply.complete) == (200, b"holdfast", True)


@pytest.mark.parametrize("api", ["anthropic", "openai-chat", "openai-responses"])
def test_oversized_event_before_any_text_gives_an_error(api, proxy, monkeypatch):
    """An event that exceeds the limit before anything was passed on gives a complete error."""
    monkeypatch.setattr(replies, "SseReader", partial(SseReader, limit=2_000))

    async def respond(connection, response):
        await connection.send(response.head + response.chunks[0])
        await connection.send(b"%x\r\ndata: %s\r\n0\r\n\r\n" % (4_006, b"k" * 4_000))

    proxy.upstream.respond = respond
    reply = proxy.send(encode_request(api, "an event that never ends", stream=True))
    assert (reply.status, reply.complete) == (502, True)
    assert "2,000 bytes" in str(reply.json["error"])


@pytest.mark.parametrize(
    "body", [b"<!doctype html><title>Sign in</title>", b"out of order", b""], ids=["page", "text", "empty"]
)
@pytest.mark.parametrize("kind", [b"text/html; charset=utf-8", b"text/plain", b"application/json"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("api", APIS)
def test_proxy_returns_html_and_text_pages_unchanged(api, stream, kind, body, proxy):
    """A gateway's page under a status of success is returned with its status, type and bytes, and does not count as
    failed.
    """
    before = proxy.stats()["requests"]["all"]["failed"]
    proxy.upstream.respond = make_responder(
        b"HTTP/1.1 200 OK\r\ncontent-type: %s\r\ncontent-length: %d" % (kind, len(body)), body
    )
    reply = proxy.send(encode_request(api, f"a page {kind} {len(body)}", stream=stream))
    assert (reply.status, reply.body, reply.complete) == (200, body, True)
    assert reply.headers["content-type"] == kind.decode()
    assert len(proxy.upstream.requests) == 1
    assert proxy.stats()["requests"]["all"]["failed"] == before


EARLY_STREAM_ENDS = {"a part of it": slice(0, -1), "nothing but its beginning": slice(0, 1)}
"""The pieces after which a provider ends an answer, always without the final event that completes it."""


@pytest.mark.parametrize("observe", [False, True], ids=["managed", "observed"])
@pytest.mark.parametrize("part", EARLY_STREAM_ENDS)
@pytest.mark.parametrize("api", APIS)
def test_stream_without_its_final_event_ends_as_it_arrived(api, part, observe):
    """A body that ended properly is passed on unchanged, though its final event is missing."""

    async def respond(connection, response):
        cut = response._replace(pieces=response.pieces[EARLY_STREAM_ENDS[part]])
        bodies.append(b"".join(cut.pieces))
        await connection.send(b"".join([cut.head, *cut.chunks, cut.end]))

    bodies: list[bytes] = []
    with socket_proxy.run_proxy(observe=observe) as proxy:
        proxy.upstream.respond = respond
        reply = proxy.send(encode_request(api, part, stream=True))
        assert (reply.status, reply.body, reply.complete) == (200, bodies[-1], True)
        assert proxy.stats()["requests"]["all"]["failed"] == 0
        proxy.wait_idle()


FAILED = b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}\n\n'


def test_error_event_inside_a_stream_is_passed_on(proxy):
    """The client gets the provider's error event and a complete body."""

    async def respond(connection, response):
        pieces = response._replace(pieces=(*response.pieces[:5], FAILED))
        await connection.send(b"".join([response.head, *pieces.chunks, response.end]))

    proxy.upstream.respond = respond
    reply = proxy.send(encode_request("anthropic", "an error inside", stream=True))
    assert reply.body.endswith(FAILED)
    assert reply.complete


def test_proxy_returns_204_unchanged(proxy):
    """A successful answer without a body is returned unchanged."""
    proxy.upstream.respond = make_responder(b"HTTP/1.1 204 No Content")
    reply = proxy.send(encode_request("anthropic", "nothing"))
    assert (reply.status, reply.body) == (204, b"")


@pytest.mark.parametrize("api", APIS)
def test_content_type_of_a_stream_is_case_insensitive(api, proxy):
    """A stream whose content type is in capitals is read event by event and recorded."""

    async def respond(connection, response):
        await connection.send(response.head.replace(b"text/event-stream", b"Text/Event-Stream; Charset=UTF-8"))
        await connection.send(b"".join([*response.chunks, response.end]))

    proxy.upstream.respond = respond
    reply = proxy.send(encode_request(api, "in capitals", stream=True))
    assert (reply.status, reply.complete) == (200, True)
    assert "Kelp holds on" in str(proxy.sessions()[reply.headers["x-holdfast-session"]])


KINDS = [
    "text/plain; charset=utf-8",
    "application/octet-stream",
    "application/x-ndjson",
    "application/jsonl",
    "application/json",
    "",
]
"""Content types under which local servers send a stream of events."""


def split_into_json_lines(response):
    """Return the response with its events as JSON objects, one on each line."""
    data = [line[6:] for line in b"".join(response.pieces).splitlines() if line.startswith(b"data: {")]
    return response._replace(pieces=tuple(line + b"\n" for line in data))


async def read_in_halves(proxy, data, half):
    """Return the answer to ``data``; ``half`` is set once the client has the first part."""
    reader, writer = await asyncio.open_connection(socket_proxy.LOOPBACK, proxy.port)
    with anyio.fail_after(socket_proxy.TIMEOUT):
        writer.write(data)
        received = b""
        while len(received) < 400:
            received += await reader.read(65_536)
        half.set()
        received += await reader.read()
    writer.close()
    return socket_proxy.parse_response(received)


@pytest.mark.parametrize("form", [lambda response: response, split_into_json_lines], ids=["events", "lines"])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.partition(";")[0] or "none")
@pytest.mark.parametrize("api", APIS)
def test_stream_with_any_content_type_is_passed_on_and_recorded(api, kind, form, proxy):
    """Events or JSON lines under any content type are passed on while they arrive, unchanged, and are recorded."""
    if form is split_into_json_lines and kind == "application/json":
        return  # its content type says that it is not a stream
    pieces, half = [], asyncio.Event()
    name = b"content-type: " + kind.encode() + b"\r\n" if kind else b""

    async def respond(connection, response):
        response = form(response)
        pieces[:] = response.pieces
        await connection.send(
            response.head.replace(b"content-type: text/event-stream\r\n", name) + b"".join(response.chunks[:-2])
        )
        await half.wait()
        await connection.send(b"".join([*response.chunks[-2:], response.end]))

    proxy.upstream.respond = respond
    reply = proxy.call(lambda: read_in_halves(proxy, encode_request(api, f"called {kind} {form}", stream=True), half))
    assert (reply.status, reply.body, reply.complete) == (200, b"".join(pieces), True)
    assert reply.headers.get("content-type", "") == kind
    assert [
        entry.body.stop_reason for entry in proxy.sessions()[reply.headers["x-holdfast-session"]] if is_answer(entry)
    ] == ["end"]
    assert socket_proxy.ANSWER in str(proxy.sessions()[reply.headers["x-holdfast-session"]])


def is_answer(entry):
    """Whether an entry records how an answer ended."""
    return isinstance(entry.body, AnswerEntry)


@pytest.mark.parametrize("kind", ["application/json", "text/plain", ""], ids=lambda kind: kind or "none")
@pytest.mark.parametrize("api", APIS)
def test_unstreamed_answer_to_a_streamed_request_is_recorded(api, kind, proxy):
    """Some servers never stream and mislabel their JSON; the answer is recorded all the same."""
    name = b"content-type: " + kind.encode() + b"\r\n" if kind else b""

    async def respond(connection, response):
        whole = proxy.upstream.build_response(connection.request._replace(path=socket_proxy.PATHS[api], body=b"{}"))
        head = whole.head.replace(b"content-type: application/json\r\n", name)
        await socket_proxy.send_response(connection, whole._replace(head=head))

    proxy.upstream.respond = respond
    reply = proxy.send(encode_request(api, f"whole {kind}", stream=True))
    assert (reply.status, reply.complete) == (200, True)
    assert socket_proxy.ANSWER in str(proxy.sessions()[reply.headers["x-holdfast-session"]])


@pytest.mark.parametrize("api", APIS)
def test_unstreamed_answer_labelled_as_a_stream_is_recorded(api, proxy):
    """Some gateways label every answer a stream; where none was requested, JSON is read as JSON."""

    async def respond(connection, response):
        await socket_proxy.send_response(
            connection, response._replace(head=response.head.replace(b"application/json", b"text/event-stream"))
        )

    proxy.upstream.respond = respond
    reply = proxy.send(encode_request(api, "called a stream"))
    assert (reply.status, reply.complete) == (200, True)
    assert socket_proxy.ANSWER in str(proxy.sessions()[reply.headers["x-holdfast-session"]])


@pytest.mark.parametrize("address", ["example.com:443", "/v1/messages"])
def test_proxy_refuses_connect(address, proxy):
    """A client that uses the proxy as a forward proxy gets a 405, and nothing is sent upstream."""
    reply = proxy.send(socket_proxy.build_request(address, method="CONNECT", x_api_key="k", content_length="-"))
    assert reply.status == 405
    assert proxy.upstream.requests == []


def test_proxy_without_httptools_answers_the_same_bytes(proxy, monkeypatch):
    """Where httptools has no wheels h11 parses requests and answers, and no byte differs."""
    sent = [encode_request(api, "hello", stream=stream) for api in APIS for stream in (True, False)]
    sent.append(socket_proxy.build_request("example.com:443", method="CONNECT", x_api_key="k", content_length="-"))
    proxy.upstream.respond = socket_proxy.send_response
    fast = [proxy.send(data) for data in sent]
    monkeypatch.setattr(serving, "has_httptools", lambda: False)
    with socket_proxy.run_proxy() as slow_proxy:
        slow = [slow_proxy.send(data) for data in sent]
        slow_proxy.wait_idle()
    assert [(reply.status, reply.body, reply.complete) for reply in slow] == [
        (reply.status, reply.body, reply.complete) for reply in fast
    ]
    assert [reply.status for reply in fast] == [*[200] * (len(sent) - 1), 405]


# -- failures while an answer is recorded ------------------------------------------------------------------------------


class DiskFillingUpstream(httpx2.AsyncBaseTransport):
    """A provider during whose answer the store's disk gets full."""

    def __init__(self, upstream, store) -> None:
        self._inner, self._store = upstream.inner, store

    async def handle_async_request(self, request):
        """Make the store fail, then answer."""

        def full(*_, **__):
            raise StoreReadOnly("the disk is full; free some space")

        self._store.append_entries = self._store.import_entries = full
        return await self._inner.handle_async_request(request)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("api", ["anthropic", "openai-chat", "openai-responses"])
def test_answer_is_completed_when_the_store_fails_during_it(
    api, stream, open_client, make_chat, make_strict_upstream, capfd
):
    """The answer was already passed on, so the client gets its end too, and the failure is reported."""
    upstream, chat, store = make_strict_upstream(), make_chat(api, stream=stream), MemoryStore()
    chat.add_user_text("Does it hold?")
    upstream.inner = DiskFillingUpstream(upstream, store)

    async def scenario():
        async with open_client(upstream, store) as client:
            reply = await client.post(chat.path, chat.body())
            return reply, (await client.web.get("/livez")).json(), (await client.web.get("/stats")).json()

    reply, livez, stats = anyio.run(scenario)
    assert (reply.status_code, reply.content) == (200, upstream.answers[-1])
    assert (livez["status"], stats["requests"]["all"]["unrecorded"]) == ("degraded", 1)
    assert capfd.readouterr().err.count("not recorded") == 1
