"""While nothing can be recorded a conversation goes on inside its window all the same, by a copy in memory."""

from __future__ import annotations

import base64
import json
from itertools import pairwise

import anyio
import example_counts
import httpx2
import pytest

from holdfast.errors import QuotaExceeded, StoreCorrupt, StoreError, StoreLocked, StoreReadOnly
from holdfast.providers.errors.classify_error import classify_error
from holdfast.providers.errors.report import ErrorReport
from holdfast.proxy.server import open_proxy
from holdfast.proxy.settings import Settings
from holdfast.state.entries import AnswerEntry, FailureEntry, NoteEntry
from holdfast.store.memory import MemoryStore
from holdfast.testing.provider.client import STRICTEST_MODELS
from holdfast.testing.provider.faults.faults import parse_fault

STATE = "x-holdfast-state"
WINDOW = 16_000
WORDS = "kelp on the rock, and the tide comes in. " * 60
GIANT = "kelp on the rock, and the tide comes in. " * 4_000
VERSION = [("anthropic-version", "2023-06-01")]
OWN_WORDS = {
    "anthropic": "prompt is too long: ",
    "openai-chat": "context_length_exceeded",
    "openai-responses": "context_length_exceeded",
    "gemini": "exceeds the maximum number of tokens allowed",
}
"""What the clients of each API look for."""


class Failing(MemoryStore):
    """A store that fails as it is told; the reads of it that fail are counted."""

    full: StoreError | None = None
    unread: StoreError | None = None
    forgetful = False
    in_vain = 0

    def append_entries(self, key, entries, **more):
        """Append, or fail; what is ``forgetful`` fails behind a request."""
        if self.full is not None and not (self.forgetful and all(is_asked(entry) for entry in entries)):
            raise self.full
        return super().append_entries(key, entries, **more)

    def get_session(self, key):
        """Return it, or fail."""
        if self.unread is not None:
            self.in_vain += 1
            raise self.unread
        return super().get_session(key)


def is_asked(entry):
    """Whether an entry is written before a request goes out."""
    return not isinstance(entry.body, AnswerEntry | FailureEntry)


def run(function):
    """Return what the coroutine function returns."""
    return anyio.run(function)


def said(store):
    """Return all that was said in a store, and decided there."""
    found = [entry for info in store.list_sessions() for entry in store.read_entries(info.key)]
    return [entry for entry in found if not (isinstance(entry.body, NoteEntry) and entry.body.reason == "policy")]


def too_large(talk):
    """Return a request of which nothing that fits can be made: its system prompt alone is over the window."""
    if talk.api == "openai-chat":
        talk.said.append({"role": "system", "content": GIANT})
    talk.say("How high is the tide?")
    more = {
        "anthropic": {"system": GIANT},
        "openai-responses": {"instructions": GIANT},
        "gemini": {"systemInstruction": {"parts": [{"text": GIANT}]}},
    }
    return talk.body() | more.get(talk.api, {})


@pytest.mark.parametrize("told", example_counts.spare([{}, {"window": WINDOW}], keep=1), ids=["learned", "configured"])
@pytest.mark.parametrize("after", example_counts.spare([10, 0], keep=1), ids=["later", "from the start"])
@pytest.mark.parametrize("api", list(STRICTEST_MODELS))
def test_a_conversation_goes_on_in_its_window(api, after, told, proxied, strict, capfd):
    """No overflow reaches its client, its newest words are always upstream, nothing is written, and that is told."""
    through, _, talking = proxied
    upstream, talk, store = strict(WINDOW, overflow="llama.cpp"), talking(api), Failing()

    async def go():
        async with through(upstream, store, **told) as client:
            for number in range(40):
                if number == after:
                    store.full, before = QuotaExceeded("a session is over its quota"), said(store)
                reply = await talk.turn(client, f"Note {number}: {WORDS}", VERSION)
                state = "managed" if number < after else "unrecorded"
                assert (reply.status_code, reply.headers[STATE]) == (200, state), (number, reply.text)
                assert f"Note {number}: {WORDS}" in upstream.bodies[-1].decode()
            assert said(store) == before
            store.full = None
            reply = await talk.turn(client, "And now?", VERSION)
            return reply, (await client.web.get("/livez")).json()

    reply, livez = run(go)
    assert (reply.status_code, reply.headers[STATE], livez["status"]) == (200, "managed", "ok")
    assert [(one["what"], one["times"]) for one in livez["troubles"]] == [("QuotaExceeded", 40 - after)]
    assert capfd.readouterr().err.count("not recorded") == 1


@pytest.mark.parametrize("api", example_counts.every_other(STRICTEST_MODELS))
def test_what_was_learned_and_decided_stands_until_something_is_recorded_again(api, proxied, strict):
    """The window is learned by one refusal, and each request begins like the one before but where it is made smaller;
    from when the store takes something again it goes by the log alone, and what fails later goes on from that."""
    through, _, talking = proxied
    upstream, talk, store, asked = strict(WINDOW, overflow="llama.cpp"), talking(api), Failing(), []

    async def go():
        async with through(upstream, store) as client:
            for number in range(60):
                store.full = None if number < 10 or number == 40 else StoreLocked("held")
                reply = await talk.turn(client, f"Note {number}: {WORDS}", VERSION)
                state = "unrecorded" if store.full else "managed"
                assert (reply.status_code, reply.headers[STATE]) == (200, state), (number, reply.text)
                asked.append((len(upstream.bodies), upstream.bodies[-1]))

    run(go)
    refused = [count - before for (before, _), (count, _) in pairwise([(0, b""), *asked])]
    assert (sum(refused[:40]), sum(refused[40:]) <= 21) == (41, True), "one refusal, and at most one more"
    smaller = [number for number in range(1, 60) if not goes_on(asked[number - 1][1], asked[number][1])]
    assert len(smaller) <= 6, smaller


def goes_on(before, body):
    """Whether a body begins like the one before it, nearly to where that ends."""
    most = len(before) * 9 // 10
    return body[:most] == before[:most]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("reading", [None, StoreCorrupt("damaged"), StoreLocked("held")], ids=str)
@pytest.mark.parametrize("api", list(STRICTEST_MODELS))
def test_an_overflow_that_nothing_helps_against_is_said_in_the_client_s_words(api, reading, stream, proxied, strict):
    """By the provider's own numbers, also where nobody knows what was decided: the log cannot be read either."""
    through, _, talking = proxied
    upstream, talk, store = strict(WINDOW, overflow="llama.cpp"), talking(api, stream=stream), Failing()
    store.full, store.unread = StoreReadOnly("the disk is full"), reading
    body = too_large(talk)

    async def go():
        async with through(upstream, store) as client:
            return await client.post(talk.path, body, VERSION)

    reply = run(go)
    assert (reply.headers[STATE], OWN_WORDS[api] in reply.text) == ("unrecorded", True), reply.text
    in_events = stream and api == "openai-responses"
    assert (reply.status_code, "response.failed" in reply.text) == ((200, True) if in_events else (400, False))
    if not in_events:
        refused = json.loads(upstream.answers[-1])["error"]
        verdict = classify_error(ErrorReport(api, status=400, body=reply.content))
        assert (verdict.limit, verdict.requested) == (refused["n_ctx"], refused["n_prompt_tokens"])


@pytest.mark.parametrize("status", ["401", "400", "500"])
def test_any_other_refusal_comes_as_it_came(status, proxied, strict):
    """Also where the log cannot be read: only what is too large is told anew."""
    through, _, talking = proxied
    talk, store = talking("anthropic"), Failing()
    store.full = store.unread = StoreCorrupt("damaged")

    async def go():
        async with through(upstream, store) as client:
            return await talk.turn(client, "How high is the tide?", VERSION)

    upstream = proxied[1](strict().provider, [parse_fault(status)])
    reply = run(go)
    assert (reply.headers[STATE], reply.content) == ("unrecorded", upstream.answers[-1])
    assert len(upstream.bodies) == 1


@pytest.mark.parametrize("observe", [False, True], ids=["managed", "observed"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("status", ["401", "429", "500", "cut"])
@pytest.mark.parametrize("api", list(STRICTEST_MODELS))
def test_a_refusal_that_cannot_be_written_down_is_not_asked_for_again(api, status, stream, observe, proxied, strict):
    """It may have cost something, and is what a client waits for; that it is in no log is told."""
    through, made, talking = proxied
    talk, failing = talking(api, stream=stream), Failing()
    failing.full, failing.forgetful = StoreLocked("held"), True
    talk.say("How high is the tide?")

    async def go(store):
        upstream = made(strict().provider, [parse_fault(status)])
        async with through(upstream, store, observe=observe) as client:
            reply = await client.post(talk.path, talk.body(), VERSION)
            return reply, len(upstream.bodies), (await client.web.get("/livez")).json()["status"]

    (reply, asked, health), (sound, once, _) = run(lambda: go(failing)), run(lambda: go(MemoryStore()))
    assert (reply.headers[STATE], asked, once, health) == ("unrecorded", 1, 1, "degraded")
    assert (reply.status_code, reply.content) == (sound.status_code, sound.content)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("is_cancelled", [False, True], ids=["left", "cancelled"])
def test_who_leaves_while_nothing_can_be_recorded_asks_for_nothing_more(is_cancelled, stream, proxied):
    """Its request was on its way once, and ends with it."""
    _, _, talking = proxied
    talk, store, upstream = talking("anthropic", stream=stream), Failing(), Silent()
    store.full, store.forgetful = StoreLocked("held"), True
    talk.say("How high is the tide?")
    body, left = json.dumps(talk.body()).encode(), anyio.Event()
    headers = {"host": "127.0.0.1:8642", "content-type": "application/json", **dict(VERSION)}
    scope = {
        "type": "http",
        "method": "POST",
        "path": talk.path,
        "raw_path": talk.path.encode(),
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        "http_version": "1.1",
        "scheme": "http",
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 8642),
    }
    come = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive():
        if come:
            return come.pop()
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(_):
        pass

    async def main():
        told = Settings(anthropic="http://up")
        async with open_proxy(told, store, transport=upstream) as proxy, anyio.create_task_group() as group:
            group.start_soon(proxy, scope, receive, send)
            with anyio.fail_after(10):
                await upstream.asked.wait()
            if is_cancelled:
                group.cancel_scope.cancel()
            else:
                left.set()

    run(main)
    assert upstream.times == 1


class Silent(httpx2.AsyncBaseTransport):
    """A provider that never answers; how often it was asked is counted."""

    times = 0

    def __init__(self):
        self.asked = anyio.Event()

    async def handle_async_request(self, request):
        """Keep it waiting, once; a second time is refused."""
        self.times += 1
        self.asked.set()
        if self.times == 1:
            await anyio.sleep_forever()
        return httpx2.Response(500)


def test_a_lock_is_waited_for_no_more_often_than_there_is_a_use(proxied, strict):
    """Who holds the database so that nobody reads it is waited for twice; then the request goes on as it came."""
    through, _, talking = proxied
    upstream, talk, store = strict(), talking("anthropic"), Failing()

    async def go():
        async with through(upstream, store) as client:
            await talk.turn(client, "How high is the tide?", VERSION)
            store.full = store.unread = StoreLocked("held")
            talk.say("And now?")
            body = json.dumps(talk.body()).encode()
            return body, await client.post(talk.path, body, VERSION)

    body, reply = run(go)
    assert (reply.status_code, reply.headers[STATE], upstream.bodies[-1]) == (200, "unrecorded", body)
    assert store.in_vain <= 2


@pytest.mark.parametrize("api", list(STRICTEST_MODELS))
def test_what_fits_goes_up_byte_for_byte(api, proxied, strict):
    """Once; and its answer comes as it came."""
    through, _, talking = proxied
    upstream, talk, store = strict(), talking(api), Failing()
    store.full = StoreLocked("held")
    talk.say("How high is the tide?")
    body = json.dumps(talk.body(), indent=2).encode()

    async def go():
        async with through(upstream, store) as client:
            return await client.post(talk.path, body, VERSION)

    reply = run(go)
    assert (reply.status_code, reply.headers[STATE]) == (200, "unrecorded")
    assert (upstream.bodies, upstream.answers) == ([body], [reply.content])


def test_no_model_writes_a_summary_that_would_be_forgotten(proxied, strict):
    """Each turn would pay for one of its own: until something is recorded again an extract takes its place."""
    through, _, talking = proxied
    upstream, talk, store = strict(WINDOW), talking("anthropic"), Failing()
    store.full = StoreLocked("held")

    async def go():
        async with through(upstream, store, window=WINDOW, summaries="client") as client:
            for number in range(40):
                assert (await talk.turn(client, f"Note {number}: {WORDS}", VERSION)).status_code == 200

    run(go)
    assert len(upstream.bodies) == 40
    assert len(upstream.bodies[-1]) < len(json.dumps(talk.body())) * 0.7, "it was reduced"


def test_a_stream_that_waits_for_us_is_told_that_it_is_not_recorded(proxied, strict):
    """The head that goes out with the first sign of life tells the same as that of an answer."""
    through, _, talking = proxied
    upstream, talk, store = strict(WINDOW, overflow="llama.cpp"), talking("anthropic", stream=True), Failing()
    store.full = StoreLocked("held")
    for number in range(40):
        talk.say(f"Note {number}: {WORDS}")
        talk.said.append({"role": "assistant", "content": "Yes."})
    talk.say("And now?")

    class Slow(type(upstream)):
        """Takes its time."""

        async def handle_async_request(self, request):
            """Answer, later."""
            await anyio.sleep(0.05)
            return await super().handle_async_request(request)

    async def go():
        async with through(Slow(upstream.provider), store, keepalive=0.01) as client:
            return await client.post(talk.path, talk.body(), VERSION)

    reply = run(go)
    assert (reply.status_code, reply.headers[STATE]) == (200, "unrecorded")
    assert reply.content.startswith(b"event: ping")
    assert b"message_stop" in reply.content


@pytest.mark.parametrize("api", list(STRICTEST_MODELS))
def test_a_request_that_is_too_large_of_itself_says_nothing_of_how_the_proxy_is(api, proxied, strict, capfd):
    """It is refused in its API's words and told once; all is well with what is Holdfast's own."""
    through, _, talking = proxied
    upstream, talk = strict(WINDOW, overflow="llama.cpp"), talking(api)
    body = too_large(talk)

    async def go():
        async with through(upstream) as client:
            replies = [await client.post(talk.path, body, VERSION) for _ in range(2)]
            return replies, (await client.web.get("/livez")).json()

    replies, livez = run(go)
    assert [OWN_WORDS[api] in reply.text for reply in replies] == [True, True]
    assert livez["status"] == "ok"
    assert [one["what"] for one in livez["troubles"]] == ["WindowTooSmall"]
    assert capfd.readouterr().err.count("WindowTooSmall") == 1


PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x08\0\0\0\x08\x08\x02\0\0\0" + b"x" * 400).decode()
PICTURE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}}


class Picky(httpx2.AsyncBaseTransport):
    """A provider in front of which somebody takes no pictures."""

    def __init__(self, inner):
        self.inner, self.refused = inner, 0

    async def handle_async_request(self, request):
        """Refuse a picture, and pass on what has none."""
        if b'"base64"' not in await request.aread():
            return await self.inner.handle_async_request(request)
        self.refused += 1
        why = "messages.0.content.1.image.source.base64: Could not process image"
        told = {"type": "error", "error": {"type": "invalid_request_error", "message": why}}
        return httpx2.Response(400, json=told)


@pytest.mark.parametrize("is_sound", [True, False], ids=["sound", "failing"])
def test_what_something_helps_against_is_asked_for_again_though_nothing_can_be_recorded(is_sound, proxied, strict):
    """A picture that is refused goes, and the rest is answered."""
    through, _, talking = proxied
    talk, store, upstream = talking("anthropic"), Failing(), Picky(strict())
    store.full, store.forgetful = (None if is_sound else StoreLocked("held")), True
    talk.said = [{"role": "user", "content": [{"type": "text", "text": "Look."}, PICTURE]}]
    talk.said.append({"role": "assistant", "content": "I see."})

    async def go():
        async with through(upstream, store) as client:
            return await talk.turn(client, "And now?", VERSION)

    reply = run(go)
    assert (reply.status_code, reply.headers[STATE]) == (200, "managed" if is_sound else "unrecorded")
    assert upstream.refused >= 1


@pytest.mark.parametrize("status", ["error", "unfinished"])
@pytest.mark.parametrize("api", ["anthropic", "openai-chat", "openai-responses"])
def test_a_stream_that_its_provider_breaks_off_ends_though_nothing_can_be_recorded(api, status, proxied, strict):
    """All of it was given out: the body ends as it does where it is written down."""
    through, made, talking = proxied
    fault = f"{status}:middle" if status == "error" else status
    talk, failing = talking(api, stream=True), Failing()
    failing.full, failing.forgetful = StoreLocked("held"), True
    talk.say("How high is the tide?")

    async def go(store):
        async with through(made(strict().provider, [parse_fault(fault)]), store) as client:
            reply = await client.post(talk.path, talk.body(), VERSION)
            return reply.status_code, reply.content

    assert run(lambda: go(failing)) == run(lambda: go(MemoryStore()))


def test_what_broke_off_and_is_in_no_log_is_told(proxied, strict):
    """The client left, so nobody hears of it but who looks at how the proxy is."""
    through, _, talking = proxied
    talk, store, upstream = talking("anthropic"), Failing(), Silent()
    store.full, store.forgetful = StoreReadOnly("the disk is full"), True
    talk.say("How high is the tide?")

    async def go():
        async with through(upstream, store) as client:
            async with anyio.create_task_group() as group:
                group.start_soon(client.post, talk.path, talk.body(), VERSION)
                await upstream.asked.wait()
                group.cancel_scope.cancel()
            return (await client.web.get("/livez")).json()

    livez = run(go)
    assert livez["status"] == "degraded"
    assert [(one["what"], "the disk is full" in one["why"]) for one in livez["troubles"]] == [("unwritten", True)]
