"""Connections that end too early, on either side and at any point: the log is sound and no task is left running."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import anyio
import pytest
import socket_proxy

from holdfast.proxy.server import _open_listener
from holdfast.proxy.settings import Settings

APIS = list(socket_proxy.PATHS)


@pytest.fixture(scope="module")
def running():
    """A proxy for all of these tests."""
    with socket_proxy.run_proxy(keepalive=0.0, drain=1.0) as proxy:
        yield proxy


@pytest.fixture
def proxy(running):
    """The proxy, before an upstream that answers completely; when the test is over nothing is left running."""
    running.upstream.respond = socket_proxy.send_response
    running.upstream.requests.clear()
    yield running
    running.wait_idle()


def encode_request(api, words, *, stream=False):
    """Build the bytes of a request of one turn."""
    path = (socket_proxy.STREAM_PATHS if stream else socket_proxy.PATHS)[api]
    return socket_proxy.build_request(path, socket_proxy.build_body(api, words, stream=stream))


# -- the upstream ------------------------------------------------------------------------------------------------------

EARLY_ENDS = {
    "before the head": lambda response: b"",
    "inside the head": lambda response: response.head[:25],
    "after the head": lambda response: response.head,
    "inside the first event": lambda response: response.head + response.chunks[0][:30],
}
"""Where an answer may end before any of it was passed on."""


def make_breaking_responder(before, *, reset=False):
    """Return a responder that sends the bytes ``before`` and closes the connection."""

    async def respond(connection, response):
        await connection.send(before(response))
        if reset:
            await anyio.sleep(0.02)  # or the bytes before it are lost too
        connection.close(reset=reset)

    return respond


@pytest.mark.parametrize("ends", ["closed", "reset"])
@pytest.mark.parametrize("stage", EARLY_ENDS)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("api", APIS)
def test_upstream_closing_before_the_answer_gives_a_complete_error(api, stream, stage, ends, proxy):
    """When nothing was passed on yet, the client gets one complete error, and its next try gets the answer."""
    words = f"{api} {stream} {stage} {ends}"
    data = encode_request(api, words, stream=stream)
    proxy.upstream.respond = make_breaking_responder(EARLY_ENDS[stage], reset=ends == "reset")
    failed = proxy.send(data)
    assert failed.status >= 500, failed
    assert failed.complete
    assert "error" in failed.json
    proxy.upstream.respond = socket_proxy.send_response
    fine = proxy.send(data)
    assert (fine.status, fine.complete) == (200, True), fine
    assert proxy.upstream.requests[-1].body == socket_proxy.build_body(api, words, stream=stream)
    assert proxy.upstream.requests[-1].body == proxy.upstream.requests[0].body


@pytest.mark.parametrize("ends", ["closed", "reset"])
@pytest.mark.parametrize("api", APIS)
def test_kept_connection_closed_by_the_provider_is_replaced(api, ends, proxy):
    """A request that meets a connection the provider just closed is sent on another connection."""
    data, met = encode_request(api, f"kept {ends}"), []

    async def respond(connection, response):
        met.append(connection.writer)
        if met.count(connection.writer) == 1:
            await socket_proxy.send_response(connection, response)
        else:
            connection.close(reset=ends == "reset")

    proxy.upstream.respond = respond
    for _ in range(3):
        fine = proxy.send(data)
        assert (fine.status, fine.complete) == (200, True), fine
    assert len(met) > len(set(met)) > 2, "no connection was kept"


@pytest.mark.parametrize("stage", ["before the head", "inside the head"])
def test_proxy_sends_a_failing_request_at_most_twice(stage, proxy):
    """However many connections are kept, a failing request is sent at most twice, and once if an answer had begun,
    because each send may be billed.
    """

    async def late(connection, response):
        while proxy.upstream.connections < 4:  # noqa: ASYNC110 -- the server only counts
            await anyio.sleep(0.01)
        await socket_proxy.send_response(connection, response)

    proxy.upstream.respond = late
    with ThreadPoolExecutor(4) as clients:
        for fine in clients.map(proxy.send, [encode_request("anthropic", f"kept {number}") for number in range(4)]):
            assert fine.status == 200, fine
    proxy.upstream.requests.clear()
    proxy.upstream.respond = make_breaking_responder(EARLY_ENDS[stage])
    failed = proxy.send(encode_request("anthropic", f"fails {stage}"))
    assert failed.status >= 500, failed
    assert len(proxy.upstream.requests) == (2 if stage == "before the head" else 1)


@pytest.mark.parametrize("api", ["anthropic", "openai-chat", "openai-responses"])
def test_stream_closing_before_its_first_text_gives_a_complete_error(api, proxy):
    """An event without text is not an answer yet: the head was held back, and the client gets a complete error."""
    proxy.upstream.respond = make_breaking_responder(lambda response: response.head + response.chunks[0])
    failed = proxy.send(encode_request(api, "nothing said", stream=True))
    assert failed.status >= 500, failed
    assert failed.complete
    assert "error" in failed.json


@pytest.mark.parametrize("ends", ["closed", "reset"])
@pytest.mark.parametrize("api", APIS)
def test_truncated_unstreamed_answer_gives_a_complete_error(api, ends, proxy):
    """Half of a JSON value is not an answer, so the client gets an error."""
    proxy.upstream.respond = make_breaking_responder(
        lambda response: response.head + response.pieces[0][:-20], reset=ends == "reset"
    )
    failed = proxy.send(encode_request(api, f"half {ends}"))
    assert failed.status >= 500, failed
    assert failed.complete
    assert "error" in failed.json


@pytest.mark.parametrize("inside", [False, True], ids=["between", "inside"])
@pytest.mark.parametrize("api", APIS)
def test_stream_closing_later_is_cut_for_the_client(api, inside, proxy):
    """What arrived is passed on byte for byte, no end is invented, and the conversation continues afterwards."""
    words, events = f"later {inside}", []

    async def respond(connection, response):
        events[:] = response.pieces
        half = len(response.chunks) // 2
        await connection.send(response.head + b"".join(response.chunks[:half]))
        await anyio.sleep(0.05)
        await connection.send(response.chunks[half][:-9] if inside else b"")
        connection.close()

    proxy.upstream.respond = respond
    broken = proxy.send(encode_request(api, words, stream=True))
    assert broken.status == 200
    assert not broken.complete
    assert b"".join(events).startswith(broken.body)
    assert len(broken.body) >= len(b"".join(events[: len(events) // 2]))
    proxy.upstream.respond = socket_proxy.send_response
    fine = proxy.send(encode_request(api, words, stream=True))
    assert (fine.status, fine.complete) == (200, True)
    assert proxy.upstream.requests[-1].body == socket_proxy.build_body(api, words, stream=True)
    key = fine.headers["x-holdfast-session"]
    assert key == broken.headers["x-holdfast-session"]
    assert key in proxy.sessions()


@pytest.mark.parametrize(
    "data", [b"SSH-2.0-OpenSSH_9.6\r\n", b"\x15\x03\x01\x00\x02\x02\x50", b"HTTP/1.1 nope\r\n\r\n"]
)
def test_upstream_that_speaks_another_protocol_gives_an_error(data, proxy):
    """Bytes of another protocol do not reach the client."""
    proxy.upstream.respond = make_breaking_responder(lambda response: data)
    failed = proxy.send(encode_request("anthropic", repr(data)))
    assert failed.status >= 500
    assert failed.json["type"] == "error"


def test_upstream_that_is_down_gives_502_and_counts_as_failed():
    """When nothing listens upstream every request gets an error in its API's words and counts as failed, whether it was
    managed or relayed.
    """
    with socket_proxy.run_proxy() as proxy:
        proxy.call(lambda: _take_unused_port(proxy))
        for api in APIS:
            for data in (b"{}", socket_proxy.build_body(api, "Is anybody there?")):
                failed = proxy.send(
                    socket_proxy.build_request(
                        f"/u/http://127.0.0.1:{proxy.upstream.port}{socket_proxy.PATHS[api]}", data
                    )
                )
                assert failed.status == 502, failed
                assert "127.0.0.1" in str(failed.json["error"]), failed
                assert failed.json["error"].get("code") == 502 or api != "gemini", failed
        proxy.wait_idle()
        counted = {state: count for state, count in proxy.stats()["requests"]["all"].items() if count}
        assert counted == {"failed": 2 * len(APIS)}


async def _take_unused_port(proxy):
    """Point the upstream to a port on which nothing listens."""
    server = await asyncio.start_server(proxy.upstream.serve_connection, socket_proxy.LOOPBACK, 0)
    proxy.upstream.port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("api", APIS)
def test_slow_upstream_answer_is_complete(api, stream, proxy):
    """An answer that arrives in small pieces is passed on whole."""

    async def respond(connection, response):
        data = b"".join([response.head, *response.chunks, response.end])
        step = max(1, len(data) // 40)
        for at in range(0, len(data), step):
            await connection.send(data[at : at + step])
            await anyio.sleep(0.001)

    fine = proxy.send(encode_request(api, "slowly", stream=stream))
    proxy.upstream.respond = respond
    slow = proxy.send(encode_request(api, "slowly", stream=stream))
    assert (slow.status, slow.complete) == (200, True)
    assert len(slow.body) == len(fine.body)


PING = b'event: ping\ndata: {"type": "ping"}\n\n'
TOO_LONG = '{"type":"invalid_request_error","message":"prompt is too long: 9000 tokens > 6000 maximum"}'
OVERFLOW = f'{{"type":"error","error":{TOO_LONG}}}'.encode()


@pytest.mark.parametrize("is_retry", [True, False], ids=["a retry", "a slow provider"])
def test_keep_alives_are_sent_only_while_the_proxy_retries(is_retry):
    """The client gets keep-alives while the proxy retries; a slow provider sends its own."""
    interval, sent_at = 0.05, []
    with socket_proxy.run_proxy(keepalive=interval) as proxy:

        async def respond(connection, response):
            sent_at.append(time.monotonic())
            if is_retry and len(sent_at) == 1:
                await socket_proxy.send_response(connection, socket_proxy.build_json_response(OVERFLOW, 400))
                return
            await anyio.sleep(0.3)
            await socket_proxy.send_response(connection, response)

        proxy.upstream.respond = respond
        texts = [*("The tide comes in over the rock. " * 200, "It does.") * 3, "Does it?"]
        data = socket_proxy.build_body("anthropic", *texts, stream=True)
        began = time.monotonic()
        late = proxy.send(socket_proxy.build_request(socket_proxy.PATHS["anthropic"], data))
        assert late.complete
        assert late.headers["x-holdfast-state"] == "managed"
        assert late.headers["x-holdfast-session"] in proxy.sessions()
        sent = b"".join(proxy.call(lambda: _build_last_response(proxy)).pieces)
        assert late.body.replace(PING, b"") == sent.replace(PING, b"")
        keep_alive_count = late.body.count(PING) - sent.count(PING)
        assert (
            keep_alive_count > 0 if is_retry else keep_alive_count <= (sent_at[0] - began) / interval
        )  # the proxy also waits before it sends
        proxy.wait_idle()


@pytest.mark.parametrize("api", ["anthropic", "openai-chat", "openai-responses"])
def test_observe_mode_passes_the_first_event_on_at_once(api):
    """In observe mode the first event is passed on before the model says anything, because no retry could replace
    it.
    """
    received = []
    with socket_proxy.run_proxy(observe=True) as proxy:

        async def respond(connection, response):
            await connection.send(response.head + response.chunks[0])
            with anyio.fail_after(socket_proxy.TIMEOUT):
                while not received:  # noqa: ASYNC110 -- the client must get it first
                    await anyio.sleep(0.005)
            await connection.send(b"".join([*response.chunks[1:], response.end]))

        async def client():
            reader, writer = await asyncio.open_connection(socket_proxy.LOOPBACK, proxy.port)
            writer.write(encode_request(api, "looked at", stream=True))
            data = await reader.readuntil(b"\r\n\r\n")
            data += await reader.read(1)
            received.append(data)
            data += await reader.read()
            writer.close()
            return socket_proxy.parse_response(data)

        proxy.upstream.respond = respond
        reply = proxy.call(client)
        assert (reply.status, reply.complete) == (200, True)
        proxy.wait_idle()


def test_keep_alives_are_sent_while_the_first_events_are_held():
    """While events without text are held back the client still gets keep-alives."""
    interval = 0.05
    with socket_proxy.run_proxy(keepalive=interval) as proxy:

        async def respond(connection, response):
            await connection.send(response.head + response.chunks[0])
            await anyio.sleep(0.3)
            await connection.send(b"".join([*response.chunks[1:], response.end]))

        proxy.upstream.respond = respond
        late = proxy.send(encode_request("anthropic", "a slow model", stream=True))
        assert late.complete
        sent = b"".join(proxy.call(lambda: _build_last_response(proxy)).pieces)
        assert late.body.replace(PING, b"") == sent.replace(PING, b"")
        assert late.body.count(PING) - sent.count(PING) >= 2
        proxy.wait_idle()


@pytest.mark.parametrize("form", ["whole", "packed"])
def test_no_keep_alive_is_sent_before_an_unstreamed_answer(form):
    """A streamed request answered with plain JSON, or with a coding the proxy cannot read, gets that answer alone."""
    with socket_proxy.run_proxy(keepalive=0.05) as proxy:

        async def respond(connection, response):
            body = proxy.upstream.build_response(connection.request._replace(body=b"{}")).pieces[0]
            kind = b"application/json" if form == "whole" else b"text/event-stream\r\ncontent-encoding: br"
            await connection.send(
                b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n" % (kind, len(body))
            )
            await anyio.sleep(0.3)
            await connection.send(body)
            bodies.append(body)

        bodies = []
        proxy.upstream.respond = respond
        late = proxy.send(encode_request("anthropic", f"no stream, {form}", stream=True))
        assert (late.status, late.body, late.complete) == (200, bodies[0], True)
        proxy.wait_idle()


async def _build_last_response(proxy):
    return proxy.upstream.build_response(proxy.upstream.requests[-1])


# -- the client --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.99])
@pytest.mark.parametrize("part", ["head", "body"])
def test_incomplete_request_is_neither_sent_nor_logged(part, share, proxy):
    """Half a request reaches neither the provider nor the log."""
    head, _, rest = encode_request("anthropic", "half a request").partition(b"\r\n\r\n")
    sent = head[: int(len(head) * share)] if part == "head" else head + b"\r\n\r\n" + rest[: int(len(rest) * share)]

    async def scenario():
        _, writer = await asyncio.open_connection(socket_proxy.LOOPBACK, proxy.port)
        writer.write(sent)
        await writer.drain()
        await anyio.sleep(0.02)
        writer.close()

    proxy.call(scenario)
    proxy.wait_idle()
    assert proxy.upstream.requests == []
    assert not any("half a request" in str(entries) for entries in proxy.sessions().values())


@pytest.mark.parametrize("managed", [True, False], ids=["managed", "relayed"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("ends", ["closed", "reset"])
def test_client_leaving_before_the_answer_cancels_the_call(ends, stream, managed, proxy):
    """The provider's connection closes at once, so that nobody pays for an unread answer, and the request counts as
    failed.
    """
    words = f"leaving {ends} {stream}"
    before = proxy.stats()["requests"]["all"]["failed"]

    async def scenario():
        gone = anyio.Event()

        async def respond(connection, response):
            await connection.wait_closed()
            gone.set()

        proxy.upstream.respond = respond
        data = encode_request("anthropic", words, stream=stream)
        if not managed:
            data = socket_proxy.build_request("/v1/files", b"{}")
        await _send_and_leave(proxy, data, lambda: len(proxy.upstream.requests) == 1, reset=ends == "reset")
        with anyio.fail_after(socket_proxy.TIMEOUT):
            await gone.wait()

    proxy.call(scenario)
    proxy.wait_idle()
    assert proxy.stats()["requests"]["all"]["failed"] - before == 1
    proxy.upstream.respond = socket_proxy.send_response
    fine = proxy.send(encode_request("anthropic", words, stream=stream))
    assert (fine.status, fine.complete) == (200, True)
    assert proxy.upstream.requests[-1].body == socket_proxy.build_body("anthropic", words, stream=stream)


async def _send_and_leave(proxy, data, is_ready, *, reset=False, read=0):
    """Send ``data``, read ``read`` bytes, and close the connection once ``is_ready``."""
    reader, writer = await asyncio.open_connection(socket_proxy.LOOPBACK, proxy.port)
    writer.write(data)
    await writer.drain()
    if read:
        await reader.readexactly(read)
    await socket_proxy.wait_until(is_ready)
    connection = socket_proxy.UpstreamConnection(socket_proxy.ReceivedRequest("", "", {}, b""), reader, writer)
    connection.close(reset=reset)


@pytest.mark.parametrize("ends", ["closed", "reset"])
@pytest.mark.parametrize("api", APIS)
def test_client_leaving_during_the_answer_cancels_the_call(api, ends, proxy):
    """The provider's connection closes, the log keeps what was sent, and the conversation continues afterwards."""
    words = f"enough {ends}"

    async def scenario():
        gone, half_sent = anyio.Event(), anyio.Event()

        async def respond(connection, response):
            half = len(response.chunks) // 2
            await connection.send(response.head + b"".join(response.chunks[:half]))
            half_sent.set()
            await connection.wait_closed()
            gone.set()

        proxy.upstream.respond = respond
        await _send_and_leave(
            proxy, encode_request(api, words, stream=True), half_sent.is_set, reset=ends == "reset", read=200
        )
        with anyio.fail_after(socket_proxy.TIMEOUT):
            await gone.wait()

    proxy.call(scenario)
    proxy.wait_idle()
    proxy.upstream.respond = socket_proxy.send_response
    fine = proxy.send(encode_request(api, words, stream=True))
    assert (fine.status, fine.complete) == (200, True)
    assert proxy.upstream.requests[-1].body == socket_proxy.build_body(api, words, stream=True)
    entries = proxy.sessions()[fine.headers["x-holdfast-session"]]
    assert sum(words in str(entry) for entry in entries) == 1, "the words were stored twice"


@pytest.mark.parametrize("api", APIS)
def test_client_leaving_after_the_last_event_counts_as_answered(api, proxy):
    """A client that does not wait for the end of the body has a complete answer in the log and counts as managed."""
    before, words = proxy.stats()["requests"]["all"], "all was said"

    async def scenario():
        half_sent, gone = anyio.Event(), anyio.Event()

        async def respond(connection, response):
            await connection.send(response.head + b"".join(response.chunks))
            half_sent.set()
            await connection.wait_closed()
            gone.set()

        proxy.upstream.respond = respond
        data = encode_request(api, words, stream=True)
        await _send_and_leave(proxy, data, half_sent.is_set, read=400)
        with anyio.fail_after(socket_proxy.TIMEOUT):
            await gone.wait()

    proxy.call(scenario)
    proxy.wait_idle()
    after = proxy.stats()["requests"]["all"]
    assert (after["managed"] - before["managed"], after["failed"] - before["failed"]) == (1, 0)


def test_client_that_does_not_read_pauses_the_provider(proxy):
    """Back-pressure reaches the provider: what the client leaves unread is not buffered here."""
    piece = b"data: " + b"x" * 65_000 + b"\n\n"
    most = 2_000  # pieces: 130 MB

    async def scenario():
        sent = 0

        async def respond(connection, response):
            nonlocal sent
            await connection.send(
                b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
            )
            for _ in range(most):
                await connection.send(b"%x\r\n%s\r\n" % (len(piece), piece))
                sent += 1

        proxy.upstream.respond = respond
        reader, writer = await asyncio.open_connection(socket_proxy.LOOPBACK, proxy.port, limit=65_536)
        writer.write(socket_proxy.build_request("/v1/embeddings", b'{"stream": true}'))
        await reader.readexactly(200)
        unchanged, before = 0, -1
        while unchanged < 20:
            unchanged, before = (unchanged + 1, before) if sent == before else (0, sent)
            await anyio.sleep(0.02)
        writer.close()
        return sent

    assert 0 < proxy.call(scenario) < most / 2
    proxy.wait_idle()


@pytest.mark.parametrize("api", APIS)
def test_client_leaving_during_a_send_is_not_a_trouble(api, open_client, make_chat, make_strict_upstream, capfd):
    """A client that leaves while a send to it blocks ends the answer and the keep-alives without any report."""
    chat = make_chat(api, stream=api != "gemini")
    chat.add_user_text("What holds on to the rock?")

    async def scenario():
        left, sending = anyio.Event(), anyio.Event()
        body = iter([{"type": "http.request", "body": json.dumps(chat.body()).encode()}])
        path, _, query = (socket_proxy.STREAM_PATHS[api] if api == "gemini" else chat.path).partition("?")

        async def receive():
            if (message := next(body, None)) is not None:
                return message
            await sending.wait()
            left.set()
            return {"type": "http.disconnect"}

        async def send(message):
            if message["type"] == "http.response.body" and message["body"]:
                sending.set()
                await anyio.sleep(socket_proxy.TIMEOUT)

        scope = {"type": "http", "method": "POST", "path": path, "query_string": query.encode(), "headers": []}
        async with open_client(make_strict_upstream(200_000)) as client:
            app = client.web._transport.app
            with anyio.fail_after(socket_proxy.TIMEOUT / 2):
                await app(scope, receive, send)
            return left.is_set(), app.health.build_livez()["troubles"]

    assert anyio.run(scenario) == (True, [])
    assert capfd.readouterr().err == ""


def test_listener_sets_tcp_nodelay():
    """Accepted connections have TCP_NODELAY, because Nagle's algorithm would delay each answer by 40 ms."""
    with _open_listener(Settings(port=0)) as listener, socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_asyncio_warning_about_closed_clients_is_filtered(caplog):
    """asyncio would warn for each piece sent to a client that left; its other warnings are kept."""
    loops = logging.getLogger("asyncio")
    loops.warning("socket.send() raised exception.")
    loops.warning("something else")
    assert caplog.messages == ["something else"]


def test_stop_lets_answers_finish():
    """An answer in progress when the proxy is stopped is completed."""

    async def slowly(connection, response):
        await connection.send(response.head)
        for chunk in response.chunks:
            await connection.send(chunk)
            await anyio.sleep(0.02)
        await connection.send(response.end)

    with socket_proxy.run_proxy(drain=socket_proxy.TIMEOUT) as proxy:
        proxy.upstream.respond = slowly
        future = proxy.start(lambda: proxy.send_pieces(encode_request("anthropic", "a last word", stream=True)))
        proxy.call(lambda: socket_proxy.wait_until(lambda: bool(proxy.upstream.requests)))
    fine = future.result(socket_proxy.TIMEOUT)
    assert (fine.status, fine.complete) == (200, True)


@pytest.mark.parametrize(("api", "status"), [("anthropic", 529), ("openai-chat", 503), ("gemini", 503)])
def test_stop_before_the_answer_gives_an_error_of_the_api(api, status, capfd):
    """A client still waiting when the drain time is up gets a retryable error that says why."""

    async def silent(connection, response):
        await connection.wait_closed()

    with socket_proxy.run_proxy(drain=1.0) as proxy:
        proxy.upstream.respond = silent
        paths = [socket_proxy.PATHS[api], f"/u/http://{socket_proxy.LOOPBACK}:{proxy.upstream.port}/v1/files"]
        data = [socket_proxy.build_request(path, socket_proxy.build_body(api, "is anybody there?")) for path in paths]
        futures = [proxy.start(partial(proxy.send_pieces, request)) for request in data]
        proxy.call(lambda: socket_proxy.wait_until(lambda: len(proxy.upstream.requests) == len(data)))
    managed, passed = [future.result(socket_proxy.TIMEOUT) for future in futures]
    assert (managed.status, managed.complete) == (status, True)
    assert (passed.status, passed.complete) == (503, True)
    assert all("stopped before the answer came" in reply.json["error"]["message"] for reply in (managed, passed))
    assert capfd.readouterr().err == ""


def test_stop_records_answers_it_cuts_off(tmp_path, capfd):
    """Answers that exceed the drain time are cut off, and what was sent of them is in the log before the store
    closes.
    """

    connections = []

    async def half(connection, response):
        await connection.send(response.head + b"".join(response.chunks[: len(response.chunks) // 2]))
        connections.append(connection)
        await connection.wait_closed()

    with socket_proxy.run_proxy(tmp_path, drain=2.0) as proxy:
        proxy.upstream.respond = half
        data = [encode_request("anthropic", f"a last word {number}", stream=True) for number in range(5)]
        futures = [proxy.start(partial(proxy.send_pieces, request)) for request in data]
        proxy.call(lambda: socket_proxy.wait_until(lambda: len(connections) == len(data)))
    cut = [future.result(socket_proxy.TIMEOUT) for future in futures]
    assert [(reply.status, reply.complete) for reply in cut] == [(200, False)] * len(data)
    found = [entries[-1].body for entries in proxy.sessions().values()]
    assert [type(body).__name__ for body in found] == ["AnswerEntry"] * len(data), found
    assert capfd.readouterr().err == ""
