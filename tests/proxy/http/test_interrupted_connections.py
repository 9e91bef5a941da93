"""Connections that end too early, on either side and at any point: what is left is sound, nothing is left running."""

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
    with socket_proxy.proxied(keepalive=0.0, drain=1.0) as proxy:
        yield proxy


@pytest.fixture
def proxy(running):
    """The proxy, before an upstream that answers well; when the test is over nothing is left running."""
    running.upstream.play = socket_proxy.well
    running.upstream.heard.clear()
    yield running
    running.at_rest()


def asked(api, words, *, stream=False):
    """Return the bytes of a request."""
    path = (socket_proxy.STREAMED if stream else socket_proxy.PATHS)[api]
    return socket_proxy.request(path, socket_proxy.body(api, words, stream=stream))


# -- the upstream ------------------------------------------------------------------------------------------------------

EARLY = {
    "before the head": lambda told: b"",
    "inside the head": lambda told: told.head[:25],
    "behind the head": lambda told: told.head,
    "inside the first event": lambda told: told.head + told.chunks[0][:30],
}
"""Where an answer may break off of which nothing was given out yet."""


def breaking(before, *, reset=False):
    """Return what says the bytes ``before`` and ends the connection."""

    async def play(line, told):
        await line.say(before(told))
        if reset:
            await anyio.sleep(0.02)  # or the bytes before it are lost too
        line.cut(reset=reset)

    return play


@pytest.mark.parametrize("ends", ["closed", "reset"])
@pytest.mark.parametrize("stage", EARLY)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("api", APIS)
def test_upstream_closing_before_the_answer_gives_a_complete_error(api, stream, stage, ends, proxy):
    """When nothing was passed on yet, the client gets one complete error, and its next try gets the answer."""
    words = f"{api} {stream} {stage} {ends}"
    data = asked(api, words, stream=stream)
    proxy.upstream.play = breaking(EARLY[stage], reset=ends == "reset")
    failed = proxy.send(data)
    assert failed.status >= 500, failed
    assert failed.complete
    assert "error" in failed.json
    proxy.upstream.play = socket_proxy.well
    fine = proxy.send(data)
    assert (fine.status, fine.complete) == (200, True), fine
    assert proxy.upstream.heard[-1].body == socket_proxy.body(api, words, stream=stream)
    assert proxy.upstream.heard[-1].body == proxy.upstream.heard[0].body


@pytest.mark.parametrize("ends", ["closed", "reset"])
@pytest.mark.parametrize("api", APIS)
def test_kept_connection_closed_by_the_provider_is_replaced(api, ends, proxy):
    """A request that meets a connection the provider just closed is sent on another connection."""
    data, met = asked(api, f"kept {ends}"), []

    async def play(line, told):
        met.append(line.writer)
        if met.count(line.writer) == 1:
            await socket_proxy.well(line, told)
        else:
            line.cut(reset=ends == "reset")

    proxy.upstream.play = play
    for _ in range(3):
        fine = proxy.send(data)
        assert (fine.status, fine.complete) == (200, True), fine
    assert len(met) > len(set(met)) > 2, "no connection was kept"


@pytest.mark.parametrize("stage", ["before the head", "inside the head"])
def test_proxy_sends_a_failing_request_at_most_twice(stage, proxy):
    """However many connections are kept, a failing request is sent at most twice, and once if an answer had begun,
    because each send may be billed.
    """

    async def late(line, told):
        while proxy.upstream.connections < 4:  # noqa: ASYNC110 -- the server in these tests counts, and tells nobody
            await anyio.sleep(0.01)
        await socket_proxy.well(line, told)

    proxy.upstream.play = late
    with ThreadPoolExecutor(4) as clients:
        for fine in clients.map(proxy.send, [asked("anthropic", f"kept {number}") for number in range(4)]):
            assert fine.status == 200, fine
    proxy.upstream.heard.clear()
    proxy.upstream.play = breaking(EARLY[stage])
    failed = proxy.send(asked("anthropic", f"fails {stage}"))
    assert failed.status >= 500, failed
    assert len(proxy.upstream.heard) == (2 if stage == "before the head" else 1)


@pytest.mark.parametrize("api", ["anthropic", "openai-chat", "openai-responses"])
def test_stream_closing_before_its_first_text_gives_a_complete_error(api, proxy):
    """An event without text is not an answer yet: the head was held back, and the client gets a complete error."""
    proxy.upstream.play = breaking(lambda told: told.head + told.chunks[0])
    failed = proxy.send(asked(api, "nothing said", stream=True))
    assert failed.status >= 500, failed
    assert failed.complete
    assert "error" in failed.json


@pytest.mark.parametrize("ends", ["closed", "reset"])
@pytest.mark.parametrize("api", APIS)
def test_truncated_unstreamed_answer_gives_a_complete_error(api, ends, proxy):
    """Half of a JSON value is not an answer, so the client gets an error."""
    proxy.upstream.play = breaking(lambda told: told.head + told.pieces[0][:-20], reset=ends == "reset")
    failed = proxy.send(asked(api, f"half {ends}"))
    assert failed.status >= 500, failed
    assert failed.complete
    assert "error" in failed.json


@pytest.mark.parametrize("inside", [False, True], ids=["between", "inside"])
@pytest.mark.parametrize("api", APIS)
def test_stream_closing_later_is_cut_for_the_client(api, inside, proxy):
    """What arrived is passed on byte for byte, no end is invented, and the conversation continues afterwards."""
    words, events = f"later {inside}", []

    async def play(line, told):
        events[:] = told.pieces
        half = len(told.chunks) // 2
        await line.say(told.head + b"".join(told.chunks[:half]))
        await anyio.sleep(0.05)
        await line.say(told.chunks[half][:-9] if inside else b"")
        line.cut()

    proxy.upstream.play = play
    broken = proxy.send(asked(api, words, stream=True))
    assert broken.status == 200
    assert not broken.complete
    assert b"".join(events).startswith(broken.body)
    assert len(broken.body) >= len(b"".join(events[: len(events) // 2]))
    proxy.upstream.play = socket_proxy.well
    fine = proxy.send(asked(api, words, stream=True))
    assert (fine.status, fine.complete) == (200, True)
    assert proxy.upstream.heard[-1].body == socket_proxy.body(api, words, stream=True)
    key = fine.headers["x-holdfast-session"]
    assert key == broken.headers["x-holdfast-session"]
    assert key in proxy.sessions()


@pytest.mark.parametrize(
    "said", [b"SSH-2.0-OpenSSH_9.6\r\n", b"\x15\x03\x01\x00\x02\x02\x50", b"HTTP/1.1 nope\r\n\r\n"]
)
def test_upstream_that_speaks_another_protocol_gives_an_error(said, proxy):
    """Bytes of another protocol do not reach the client."""
    proxy.upstream.play = breaking(lambda told: said)
    failed = proxy.send(asked("anthropic", repr(said)))
    assert failed.status >= 500
    assert failed.json["type"] == "error"


def test_upstream_that_is_down_gives_502_and_counts_as_failed():
    """When nothing listens upstream every request gets an error in its API's words and counts as failed, whether it was
    managed or relayed.
    """
    with socket_proxy.proxied() as proxy:
        proxy.call(lambda: _gone_elsewhere(proxy))
        for api in APIS:
            for data in (b"{}", socket_proxy.body(api, "Is anybody there?")):
                failed = proxy.send(
                    socket_proxy.request(f"/u/http://127.0.0.1:{proxy.upstream.port}{socket_proxy.PATHS[api]}", data)
                )
                assert failed.status == 502, failed
                assert "127.0.0.1" in str(failed.json["error"]), failed
                assert failed.json["error"].get("code") == 502 or api != "gemini", failed
        proxy.at_rest()
        counted = {state: count for state, count in proxy.stats()["requests"]["all"].items() if count}
        assert counted == {"failed": 2 * len(APIS)}


async def _gone_elsewhere(proxy):
    """Name a port on which nobody listens."""
    server = await asyncio.start_server(proxy.upstream.meet, socket_proxy.LOOPBACK, 0)
    proxy.upstream.port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("api", APIS)
def test_slow_upstream_answer_is_complete(api, stream, proxy):
    """An answer that arrives in small pieces is passed on whole."""

    async def play(line, told):
        data = b"".join([told.head, *told.chunks, told.end])
        step = max(1, len(data) // 40)
        for at in range(0, len(data), step):
            await line.say(data[at : at + step])
            await anyio.sleep(0.001)

    fine = proxy.send(asked(api, "slowly", stream=stream))
    proxy.upstream.play = play
    slow = proxy.send(asked(api, "slowly", stream=stream))
    assert (slow.status, slow.complete) == (200, True)
    assert len(slow.body) == len(fine.body)


PING = b'event: ping\ndata: {"type": "ping"}\n\n'
TOO_LONG = '{"type":"invalid_request_error","message":"prompt is too long: 9000 tokens > 6000 maximum"}'
OVERFLOW = f'{{"type":"error","error":{TOO_LONG}}}'.encode()


@pytest.mark.parametrize("ours", [True, False], ids=["ours", "the provider's"])
def test_keep_alives_are_sent_only_while_the_proxy_retries(ours):
    """The client gets keep-alives while the proxy retries; a slow provider sends its own."""
    every, heard = 0.05, []
    with socket_proxy.proxied(keepalive=every) as proxy:

        async def play(line, told):
            heard.append(time.monotonic())
            if ours and len(heard) == 1:
                await socket_proxy.well(line, socket_proxy.whole(OVERFLOW, 400))
                return
            await anyio.sleep(0.3)
            await socket_proxy.well(line, told)

        proxy.upstream.play = play
        said = [*("The tide comes in over the rock. " * 200, "It does.") * 3, "Does it?"]
        data = socket_proxy.body("anthropic", *said, stream=True)
        began = time.monotonic()
        late = proxy.send(socket_proxy.request(socket_proxy.PATHS["anthropic"], data))
        assert late.complete
        assert late.headers["x-holdfast-state"] == "managed"
        assert late.headers["x-holdfast-session"] in proxy.sessions()
        told = b"".join(proxy.call(lambda: _told(proxy)).pieces)
        assert late.body.replace(PING, b"") == told.replace(PING, b"")
        signs = late.body.count(PING) - told.count(PING)
        assert signs > 0 if ours else signs <= (heard[0] - began) / every  # until it was asked the wait was ours too
        proxy.at_rest()


@pytest.mark.parametrize("api", ["anthropic", "openai-chat", "openai-responses"])
def test_observe_mode_passes_the_first_event_on_at_once(api):
    """In observe mode the first event is passed on before the model says anything, because no retry could replace
    it.
    """
    came = []
    with socket_proxy.proxied(observe=True) as proxy:

        async def play(line, told):
            await line.say(told.head + told.chunks[0])
            with anyio.fail_after(socket_proxy.SOON):
                while not came:  # noqa: ASYNC110 -- the client hears it first
                    await anyio.sleep(0.005)
            await line.say(b"".join([*told.chunks[1:], told.end]))

        async def client():
            reader, writer = await asyncio.open_connection(socket_proxy.LOOPBACK, proxy.port)
            writer.write(asked(api, "looked at", stream=True))
            data = await reader.readuntil(b"\r\n\r\n")
            data += await reader.read(1)
            came.append(data)
            data += await reader.read()
            writer.close()
            return socket_proxy.got(data)

        proxy.upstream.play = play
        told = proxy.call(client)
        assert (told.status, told.complete) == (200, True)
        proxy.at_rest()


def test_keep_alives_are_sent_while_the_first_events_are_held():
    """While events without text are held back the client still gets keep-alives."""
    every = 0.05
    with socket_proxy.proxied(keepalive=every) as proxy:

        async def play(line, told):
            await line.say(told.head + told.chunks[0])
            await anyio.sleep(0.3)
            await line.say(b"".join([*told.chunks[1:], told.end]))

        proxy.upstream.play = play
        late = proxy.send(asked("anthropic", "a slow model", stream=True))
        assert late.complete
        told = b"".join(proxy.call(lambda: _told(proxy)).pieces)
        assert late.body.replace(PING, b"") == told.replace(PING, b"")
        assert late.body.count(PING) - told.count(PING) >= 2
        proxy.at_rest()


@pytest.mark.parametrize("form", ["whole", "packed"])
def test_no_keep_alive_is_sent_before_an_unstreamed_answer(form):
    """A streamed request answered with plain JSON, or with a coding the proxy cannot read, gets that answer alone."""
    with socket_proxy.proxied(keepalive=0.05) as proxy:

        async def play(line, told):
            body = proxy.upstream.told(line.heard._replace(body=b"{}")).pieces[0]
            kind = b"application/json" if form == "whole" else b"text/event-stream\r\ncontent-encoding: br"
            await line.say(b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n" % (kind, len(body)))
            await anyio.sleep(0.3)
            await line.say(body)
            said.append(body)

        said = []
        proxy.upstream.play = play
        late = proxy.send(asked("anthropic", f"no stream, {form}", stream=True))
        assert (late.status, late.body, late.complete) == (200, said[0], True)
        proxy.at_rest()


async def _told(proxy):
    return proxy.upstream.told(proxy.upstream.heard[-1])


# -- the client --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.99])
@pytest.mark.parametrize("part", ["head", "body"])
def test_incomplete_request_is_neither_sent_nor_logged(part, share, proxy):
    """Half a request reaches neither the provider nor the log."""
    head, _, rest = asked("anthropic", "half a request").partition(b"\r\n\r\n")
    sent = head[: int(len(head) * share)] if part == "head" else head + b"\r\n\r\n" + rest[: int(len(rest) * share)]

    async def go():
        _, writer = await asyncio.open_connection(socket_proxy.LOOPBACK, proxy.port)
        writer.write(sent)
        await writer.drain()
        await anyio.sleep(0.02)
        writer.close()

    proxy.call(go)
    proxy.at_rest()
    assert proxy.upstream.heard == []
    assert not any("half a request" in str(entries) for entries in proxy.sessions().values())


@pytest.mark.parametrize("managed", [True, False], ids=["managed", "relayed"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("ends", ["closed", "reset"])
def test_client_leaving_before_the_answer_cancels_the_call(ends, stream, managed, proxy):
    """The provider's connection closes at once, so that nobody pays for an unread answer, and the request counts as
    failed.
    """
    left, words = anyio.Event, f"leaving {ends} {stream}"
    before = proxy.stats()["requests"]["all"]["failed"]

    async def go():
        gone = left()

        async def play(line, told):
            await line.left()
            gone.set()

        proxy.upstream.play = play
        data = asked("anthropic", words, stream=stream)
        if not managed:
            data = socket_proxy.request("/v1/files", b"{}")
        await _leave(proxy, data, lambda: len(proxy.upstream.heard) == 1, reset=ends == "reset")
        with anyio.fail_after(socket_proxy.SOON):
            await gone.wait()

    proxy.call(go)
    proxy.at_rest()
    assert proxy.stats()["requests"]["all"]["failed"] - before == 1
    proxy.upstream.play = socket_proxy.well
    fine = proxy.send(asked("anthropic", words, stream=stream))
    assert (fine.status, fine.complete) == (200, True)
    assert proxy.upstream.heard[-1].body == socket_proxy.body("anthropic", words, stream=stream)


async def _leave(proxy, data, when, *, reset=False, read=0):
    """Send ``data``, read ``read`` bytes, and leave when it is so."""
    reader, writer = await asyncio.open_connection(socket_proxy.LOOPBACK, proxy.port)
    writer.write(data)
    await writer.drain()
    if read:
        await reader.readexactly(read)
    await socket_proxy.until(when)
    line = socket_proxy.Line(socket_proxy.Heard("", "", {}, b""), reader, writer)
    line.cut(reset=reset)


@pytest.mark.parametrize("ends", ["closed", "reset"])
@pytest.mark.parametrize("api", APIS)
def test_client_leaving_during_the_answer_cancels_the_call(api, ends, proxy):
    """The provider's connection closes, the log keeps what was sent, and the conversation continues afterwards."""
    words = f"enough {ends}"

    async def go():
        gone, said = anyio.Event(), anyio.Event()

        async def play(line, told):
            half = len(told.chunks) // 2
            await line.say(told.head + b"".join(told.chunks[:half]))
            said.set()
            await line.left()
            gone.set()

        proxy.upstream.play = play
        await _leave(proxy, asked(api, words, stream=True), said.is_set, reset=ends == "reset", read=200)
        with anyio.fail_after(socket_proxy.SOON):
            await gone.wait()

    proxy.call(go)
    proxy.at_rest()
    proxy.upstream.play = socket_proxy.well
    fine = proxy.send(asked(api, words, stream=True))
    assert (fine.status, fine.complete) == (200, True)
    assert proxy.upstream.heard[-1].body == socket_proxy.body(api, words, stream=True)
    entries = proxy.sessions()[fine.headers["x-holdfast-session"]]
    assert sum(words in str(entry) for entry in entries) == 1, "the words were stored twice"


@pytest.mark.parametrize("api", APIS)
def test_client_leaving_after_the_last_event_counts_as_answered(api, proxy):
    """A client that does not wait for the end of the body has a complete answer in the log and counts as managed."""
    before, words = proxy.stats()["requests"]["all"], "all was said"

    async def go():
        said, gone = anyio.Event(), anyio.Event()

        async def play(line, told):
            await line.say(told.head + b"".join(told.chunks))
            said.set()
            await line.left()
            gone.set()

        proxy.upstream.play = play
        data = asked(api, words, stream=True)
        await _leave(proxy, data, said.is_set, read=400)
        with anyio.fail_after(socket_proxy.SOON):
            await gone.wait()

    proxy.call(go)
    proxy.at_rest()
    after = proxy.stats()["requests"]["all"]
    assert (after["managed"] - before["managed"], after["failed"] - before["failed"]) == (1, 0)


def test_client_that_does_not_read_pauses_the_provider(proxy):
    """Back-pressure reaches the provider: what the client leaves unread is not buffered here."""
    piece = b"data: " + b"x" * 65_000 + b"\n\n"
    most = 2_000  # pieces: 130 MB

    async def go():
        sent = 0

        async def play(line, told):
            nonlocal sent
            await line.say(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
            for _ in range(most):
                await line.say(b"%x\r\n%s\r\n" % (len(piece), piece))
                sent += 1

        proxy.upstream.play = play
        reader, writer = await asyncio.open_connection(socket_proxy.LOOPBACK, proxy.port, limit=65_536)
        writer.write(socket_proxy.request("/v1/embeddings", b'{"stream": true}'))
        await reader.readexactly(200)
        stood, before = 0, -1
        while stood < 20:
            stood, before = (stood + 1, before) if sent == before else (0, sent)
            await anyio.sleep(0.02)
        writer.close()
        return sent

    assert 0 < proxy.call(go) < most / 2
    proxy.at_rest()


@pytest.mark.parametrize("api", APIS)
def test_client_leaving_during_a_send_is_not_a_trouble(api, proxied, strict, capfd):
    """A client that leaves while a send to it blocks ends the answer and the keep-alives without any report."""
    through, _, talking = proxied
    talk = talking(api, stream=api != "gemini")
    talk.say("What holds on to the rock?")

    async def go():
        left, sending = anyio.Event(), anyio.Event()
        body = iter([{"type": "http.request", "body": json.dumps(talk.body()).encode()}])
        path, _, query = (socket_proxy.STREAMED[api] if api == "gemini" else talk.path).partition("?")

        async def receive():
            if (message := next(body, None)) is not None:
                return message
            await sending.wait()
            left.set()
            return {"type": "http.disconnect"}

        async def send(message):
            if message["type"] == "http.response.body" and message["body"]:
                sending.set()
                await anyio.sleep(socket_proxy.SOON)

        scope = {"type": "http", "method": "POST", "path": path, "query_string": query.encode(), "headers": []}
        async with through(strict(200_000)) as client:
            app = client.web._transport.app
            with anyio.fail_after(socket_proxy.SOON / 2):
                await app(scope, receive, send)
            return left.is_set(), app.health.build_livez()["troubles"]

    assert anyio.run(go) == (True, [])
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

    async def slowly(line, told):
        await line.say(told.head)
        for chunk in told.chunks:
            await line.say(chunk)
            await anyio.sleep(0.02)
        await line.say(told.end)

    with socket_proxy.proxied(drain=socket_proxy.SOON) as proxy:
        proxy.upstream.play = slowly
        future = proxy.start(lambda: proxy.sent(asked("anthropic", "a last word", stream=True)))
        proxy.call(lambda: socket_proxy.until(lambda: bool(proxy.upstream.heard)))
    fine = future.result(socket_proxy.SOON)
    assert (fine.status, fine.complete) == (200, True)


@pytest.mark.parametrize(("api", "status"), [("anthropic", 529), ("openai-chat", 503), ("gemini", 503)])
def test_stop_before_the_answer_gives_an_error_of_the_api(api, status, capfd):
    """A client still waiting when the drain time is up gets a retryable error that says why."""

    async def silent(line, told):
        await line.left()

    with socket_proxy.proxied(drain=1.0) as proxy:
        proxy.upstream.play = silent
        paths = [socket_proxy.PATHS[api], f"/u/http://{socket_proxy.LOOPBACK}:{proxy.upstream.port}/v1/files"]
        data = [socket_proxy.request(path, socket_proxy.body(api, "is anybody there?")) for path in paths]
        futures = [proxy.start(partial(proxy.sent, one)) for one in data]
        proxy.call(lambda: socket_proxy.until(lambda: len(proxy.upstream.heard) == len(data)))
    managed, passed = [future.result(socket_proxy.SOON) for future in futures]
    assert (managed.status, managed.complete) == (status, True)
    assert (passed.status, passed.complete) == (503, True)
    assert all("stopped before the answer came" in one.json["error"]["message"] for one in (managed, passed))
    assert capfd.readouterr().err == ""


def test_stop_records_answers_it_cuts_off(tmp_path, capfd):
    """Answers that exceed the drain time are cut off, and what was sent of them is in the log before the store
    closes.
    """

    said = []

    async def half(line, told):
        await line.say(told.head + b"".join(told.chunks[: len(told.chunks) // 2]))
        said.append(line)
        await line.left()

    with socket_proxy.proxied(tmp_path, drain=2.0) as proxy:
        proxy.upstream.play = half
        data = [asked("anthropic", f"a last word {number}", stream=True) for number in range(5)]
        futures = [proxy.start(partial(proxy.sent, one)) for one in data]
        proxy.call(lambda: socket_proxy.until(lambda: len(said) == len(data)))
    cut = [future.result(socket_proxy.SOON) for future in futures]
    assert [(one.status, one.complete) for one in cut] == [(200, False)] * len(data)
    found = [entries[-1].body for entries in proxy.sessions().values()]
    assert [type(body).__name__ for body in found] == ["AnswerEntry"] * len(data), found
    assert capfd.readouterr().err == ""
