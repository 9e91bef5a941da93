"""Answers that no provider should give, some do and all may: they come as they are, or are said to be none."""

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
    with socket_proxy.proxied() as proxy:
        yield proxy


@pytest.fixture
def proxy(running):
    """The proxy; when the test is over it is as well as before."""
    running.upstream.heard.clear()
    yield running
    assert running.send(socket_proxy.request("/livez", method="GET")).json["troubles"] == []
    running.at_rest()


def saying(head, body=b"", *, cut=False):
    """Return what answers with these bytes, and ends the connection where it is ``cut``."""

    async def play(line, told):
        await line.say(head + b"\r\n\r\n" + body)
        if cut:
            line.cut()

    return play


def asked(api, words, *, stream=False):
    """Return the bytes of a request."""
    path = (socket_proxy.STREAMED if stream else socket_proxy.PATHS)[api]
    return socket_proxy.request(path, socket_proxy.body(api, words, stream=stream))


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
    proxy.upstream.play = saying(b"HTTP/1.1 " + status + fields, body)
    told = proxy.send(asked(api, what, stream=stream))
    assert (told.status, told.body, told.complete) == (int(status[:3]), body, True)
    place = f"/u/http://127.0.0.1:{proxy.upstream.port}/v2/elsewhere" if told.status == 307 else "/v2/elsewhere"
    assert (told.headers["x-request-id"], told.headers["location"]) == ("req_1", place)
    after = proxy.stats()["requests"]["all"]
    assert (after["managed"] - before["managed"], after["failed"] - before["failed"]) == (1, 0)


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/files"])
def test_proxy_maps_an_invalid_status_to_502(path, proxy):
    """The HTTP server cannot send a status of 600 or more, so its body is returned under 502."""
    proxy.upstream.play = saying(b"HTTP/1.1 999 Denied\r\ncontent-length: 2", b"no")
    told = proxy.send(socket_proxy.request(path, socket_proxy.body("anthropic", "a status that is none")))
    assert (told.status, told.body, told.complete) == (502, b"no", True)


@pytest.mark.parametrize("coding", ["br", "zstd", "gzip, br", "none-such"])
@pytest.mark.parametrize("status", [b"200 OK", b"400 Bad Request"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens", "/v1/files"])
def test_proxy_returns_answers_in_unknown_codings_with_their_coding(path, stream, status, coding, proxy):
    """An answer the proxy cannot decompress is returned unchanged with its content-encoding."""
    packed = b"\x8b\x03\x80kelp\x03"
    kind = b"text/event-stream" if stream else b"application/json"
    fields = b"\r\ncontent-type: " + kind + b"\r\ncontent-length: 8\r\ncontent-encoding: " + coding.encode()
    proxy.upstream.play = saying(b"HTTP/1.1 " + status + fields, packed)
    told = proxy.send(socket_proxy.request(path, socket_proxy.body("anthropic", f"packed as {coding}", stream=stream)))
    assert (told.status, told.body, told.complete) == (int(status[:3]), packed, True)
    assert told.headers["content-encoding"] == coding
    assert len(proxy.upstream.heard) == 1


def test_proxy_reports_an_invalid_host_name_with_502(proxy):
    """An invalid host name is an error of the address, not a trouble of the proxy."""
    told = proxy.send(socket_proxy.request("/u/http://xn--a/v1/models", method="GET"))
    assert told.status == 502
    assert "xn--a" in str(told.json["error"])


def test_proxy_ignores_content_length_beside_chunks(proxy):
    """With both, the chunks count (RFC 9112, 6.3), so the length is not passed to the client."""
    both = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-length: 3"
    proxy.upstream.play = saying(both, b"8\r\nholdfast\r\n0\r\n\r\n", cut=True)
    told = proxy.send(socket_proxy.request("/v1/files", method="GET"))
    assert (told.status, told.body, told.complete) == (200, b"holdfast", True)


@pytest.mark.parametrize("api", ["anthropic", "openai-chat", "openai-responses"])
def test_oversized_event_before_any_text_gives_an_error(api, proxy, monkeypatch):
    """An event that exceeds the limit before anything was passed on gives a complete error."""
    monkeypatch.setattr(replies, "SseReader", partial(SseReader, limit=2_000))

    async def play(line, told):
        await line.say(told.head + told.chunks[0])
        await line.say(b"%x\r\ndata: %s\r\n0\r\n\r\n" % (4_006, b"k" * 4_000))

    proxy.upstream.play = play
    told = proxy.send(asked(api, "an event that never ends", stream=True))
    assert (told.status, told.complete) == (502, True)
    assert "2,000 bytes" in str(told.json["error"])


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
    proxy.upstream.play = saying(b"HTTP/1.1 200 OK\r\ncontent-type: %s\r\ncontent-length: %d" % (kind, len(body)), body)
    told = proxy.send(asked(api, f"a page {kind} {len(body)}", stream=stream))
    assert (told.status, told.body, told.complete) == (200, body, True)
    assert told.headers["content-type"] == kind.decode()
    assert len(proxy.upstream.heard) == 1
    assert proxy.stats()["requests"]["all"]["failed"] == before


LAST = {"a part of it": slice(0, -1), "nothing but its beginning": slice(0, 1)}
"""Pieces of an answer behind which a provider may end it: there the last event is not, which says that it is whole."""


@pytest.mark.parametrize("observe", [False, True], ids=["managed", "observed"])
@pytest.mark.parametrize("part", LAST)
@pytest.mark.parametrize("api", APIS)
def test_stream_without_its_final_event_ends_as_it_arrived(api, part, observe, proxied):
    """A body that ended properly is passed on unchanged, though its final event is missing."""

    async def play(line, told):
        cut = told._replace(pieces=told.pieces[LAST[part]])
        said.append(b"".join(cut.pieces))
        await line.say(b"".join([cut.head, *cut.chunks, cut.end]))

    said: list[bytes] = []
    with socket_proxy.proxied(observe=observe) as proxy:
        proxy.upstream.play = play
        told = proxy.send(asked(api, part, stream=True))
        assert (told.status, told.body, told.complete) == (200, said[-1], True)
        assert proxy.stats()["requests"]["all"]["failed"] == 0
        proxy.at_rest()


FAILED = b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}\n\n'


def test_error_event_inside_a_stream_is_passed_on(proxy):
    """The client gets the provider's error event and a complete body."""

    async def play(line, told):
        pieces = told._replace(pieces=(*told.pieces[:5], FAILED))
        await line.say(b"".join([told.head, *pieces.chunks, told.end]))

    proxy.upstream.play = play
    told = proxy.send(asked("anthropic", "an error inside", stream=True))
    assert told.body.endswith(FAILED)
    assert told.complete


def test_proxy_returns_204_unchanged(proxy):
    """A successful answer without a body is returned unchanged."""
    proxy.upstream.play = saying(b"HTTP/1.1 204 No Content")
    told = proxy.send(asked("anthropic", "nothing"))
    assert (told.status, told.body) == (204, b"")


@pytest.mark.parametrize("api", APIS)
def test_content_type_of_a_stream_is_case_insensitive(api, proxy):
    """A stream whose content type is in capitals is read event by event and recorded."""

    async def play(line, told):
        await line.say(told.head.replace(b"text/event-stream", b"Text/Event-Stream; Charset=UTF-8"))
        await line.say(b"".join([*told.chunks, told.end]))

    proxy.upstream.play = play
    told = proxy.send(asked(api, "in capitals", stream=True))
    assert (told.status, told.complete) == (200, True)
    assert "Kelp holds on" in str(proxy.sessions()[told.headers["x-holdfast-session"]])


KINDS = [
    "text/plain; charset=utf-8",
    "application/octet-stream",
    "application/x-ndjson",
    "application/jsonl",
    "application/json",
    "",
]
"""What servers of one's own call a stream of events."""


def lines(told):
    """Return the events of an answer as one JSON object on each line."""
    data = [line[6:] for line in b"".join(told.pieces).splitlines() if line.startswith(b"data: {")]
    return told._replace(pieces=tuple(line + b"\n" for line in data))


async def halfway(proxy, data, half):
    """Return the answer to ``data``, of which the other ``half`` was said when the client had the first."""
    reader, writer = await asyncio.open_connection(socket_proxy.LOOPBACK, proxy.port)
    with anyio.fail_after(socket_proxy.SOON):
        writer.write(data)
        came = b""
        while len(came) < 400:
            came += await reader.read(65_536)
        half.set()
        came += await reader.read()
    writer.close()
    return socket_proxy.got(came)


@pytest.mark.parametrize("form", [lambda told: told, lines], ids=["events", "lines"])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.partition(";")[0] or "none")
@pytest.mark.parametrize("api", APIS)
def test_stream_with_any_content_type_is_passed_on_and_recorded(api, kind, form, proxy):
    """Events or JSON lines under any content type are passed on while they arrive, unchanged, and are recorded."""
    if form is lines and kind == "application/json":
        return  # that is a whole answer, says who sends it
    pieces, half = [], asyncio.Event()
    name = b"content-type: " + kind.encode() + b"\r\n" if kind else b""

    async def play(line, told):
        told = form(told)
        pieces[:] = told.pieces
        await line.say(told.head.replace(b"content-type: text/event-stream\r\n", name) + b"".join(told.chunks[:-2]))
        await half.wait()
        await line.say(b"".join([*told.chunks[-2:], told.end]))

    proxy.upstream.play = play
    told = proxy.call(lambda: halfway(proxy, asked(api, f"called {kind} {form}", stream=True), half))
    assert (told.status, told.body, told.complete) == (200, b"".join(pieces), True)
    assert told.headers.get("content-type", "") == kind
    assert [
        entry.body.stop_reason for entry in proxy.sessions()[told.headers["x-holdfast-session"]] if is_answer(entry)
    ] == ["end"]
    assert socket_proxy.ANSWER in str(proxy.sessions()[told.headers["x-holdfast-session"]])


def is_answer(entry):
    """Whether an entry tells how an answer ended."""
    return isinstance(entry.body, AnswerEntry)


@pytest.mark.parametrize("kind", ["application/json", "text/plain", ""], ids=lambda kind: kind or "none")
@pytest.mark.parametrize("api", APIS)
def test_unstreamed_answer_to_a_streamed_request_is_recorded(api, kind, proxy):
    """Some servers never stream and mislabel their JSON; the answer is recorded all the same."""
    name = b"content-type: " + kind.encode() + b"\r\n" if kind else b""

    async def play(line, told):
        whole = proxy.upstream.told(line.heard._replace(path=socket_proxy.PATHS[api], body=b"{}"))
        head = whole.head.replace(b"content-type: application/json\r\n", name)
        await socket_proxy.well(line, whole._replace(head=head))

    proxy.upstream.play = play
    told = proxy.send(asked(api, f"whole {kind}", stream=True))
    assert (told.status, told.complete) == (200, True)
    assert socket_proxy.ANSWER in str(proxy.sessions()[told.headers["x-holdfast-session"]])


@pytest.mark.parametrize("api", APIS)
def test_unstreamed_answer_labelled_as_a_stream_is_recorded(api, proxy):
    """Some gateways label every answer a stream; where none was requested, JSON is read as JSON."""

    async def play(line, told):
        await socket_proxy.well(line, told._replace(head=told.head.replace(b"application/json", b"text/event-stream")))

    proxy.upstream.play = play
    told = proxy.send(asked(api, "called a stream"))
    assert (told.status, told.complete) == (200, True)
    assert socket_proxy.ANSWER in str(proxy.sessions()[told.headers["x-holdfast-session"]])


@pytest.mark.parametrize("address", ["example.com:443", "/v1/messages"])
def test_proxy_refuses_connect(address, proxy):
    """A client that uses the proxy as a forward proxy gets a 405, and nothing is sent upstream."""
    told = proxy.send(socket_proxy.request(address, method="CONNECT", x_api_key="k", content_length="-"))
    assert told.status == 405
    assert proxy.upstream.heard == []


def test_proxy_without_httptools_answers_the_same_bytes(proxy, monkeypatch):
    """Where httptools has no wheels h11 parses requests and answers, and no byte differs."""
    sent = [asked(api, "hello", stream=stream) for api in APIS for stream in (True, False)]
    sent.append(socket_proxy.request("example.com:443", method="CONNECT", x_api_key="k", content_length="-"))
    proxy.upstream.play = socket_proxy.well
    fast = [proxy.send(data) for data in sent]
    monkeypatch.setattr(serving, "has_httptools", lambda: False)
    with socket_proxy.proxied() as slow_proxy:
        slow = [slow_proxy.send(data) for data in sent]
        slow_proxy.at_rest()
    assert [(one.status, one.body, one.complete) for one in slow] == [
        (one.status, one.body, one.complete) for one in fast
    ]
    assert [one.status for one in fast] == [*[200] * (len(sent) - 1), 405]


# -- what goes wrong behind them ---------------------------------------------------------------------------------------


class Filling(httpx2.AsyncBaseTransport):
    """A provider whose answer is on its way when the disk gets full."""

    def __init__(self, upstream, store) -> None:
        self._inner, self._store = upstream.inner, store

    async def handle_async_request(self, request):
        """Answer, with the disk full."""

        def full(*_, **__):
            raise StoreReadOnly("the disk is full; free some space")

        self._store.append_entries = self._store.import_entries = full
        return await self._inner.handle_async_request(request)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("api", ["anthropic", "openai-chat", "openai-responses"])
def test_answer_is_completed_when_the_store_fails_during_it(api, stream, proxied, strict, capfd):
    """The answer was already passed on, so the client gets its end too, and the failure is reported."""
    through, _, talking = proxied
    upstream, talk, store = strict(), talking(api, stream=stream), MemoryStore()
    talk.say("Does it hold?")
    upstream.inner = Filling(upstream, store)

    async def go():
        async with through(upstream, store) as client:
            reply = await client.post(talk.path, talk.body())
            return reply, (await client.web.get("/livez")).json(), (await client.web.get("/stats")).json()

    reply, livez, stats = anyio.run(go)
    assert (reply.status_code, reply.content) == (200, upstream.answers[-1])
    assert (livez["status"], stats["requests"]["all"]["unrecorded"]) == ("degraded", 1)
    assert capfd.readouterr().err.count("not recorded") == 1
