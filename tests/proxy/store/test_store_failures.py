"""While the store fails a conversation stays inside its window, by a copy in memory."""

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
OVERFLOW_TEXTS = {
    "anthropic": "prompt is too long: ",
    "openai-chat": "context_length_exceeded",
    "openai-responses": "context_length_exceeded",
    "gemini": "exceeds the maximum number of tokens allowed",
}
"""The text by which clients of each API recognize an overflow."""


class FailingStore(MemoryStore):
    """A store that fails as configured, and counts failed reads."""

    append_error: StoreError | None = None
    read_error: StoreError | None = None
    fails_only_answers = False
    failed_reads = 0

    def append_entries(self, key, entries, **more):
        """Append or raise; with ``fails_only_answers`` the entries before a request are appended."""
        if self.append_error is not None and not (
            self.fails_only_answers and all(is_before_request(entry) for entry in entries)
        ):
            raise self.append_error
        return super().append_entries(key, entries, **more)

    def get_session(self, key):
        """Return the session or raise."""
        if self.read_error is not None:
            self.failed_reads += 1
            raise self.read_error
        return super().get_session(key)


def is_before_request(entry):
    """Whether an entry is written before the request is sent."""
    return not isinstance(entry.body, AnswerEntry | FailureEntry)


def run(function):
    """Return what the coroutine function returns."""
    return anyio.run(function)


def list_log_entries(store):
    """Return all entries of a store but the notes of the policy."""
    found = [entry for info in store.list_sessions() for entry in store.read_entries(info.key)]
    return [entry for entry in found if not (isinstance(entry.body, NoteEntry) and entry.body.reason == "policy")]


def build_oversized_body(chat):
    """Build a request that cannot be made to fit: its system prompt alone exceeds the window."""
    if chat.api == "openai-chat":
        chat.messages.append({"role": "system", "content": GIANT})
    chat.add_user_text("How high is the tide?")
    more = {
        "anthropic": {"system": GIANT},
        "openai-responses": {"instructions": GIANT},
        "gemini": {"systemInstruction": {"parts": [{"text": GIANT}]}},
    }
    return chat.body() | more.get(chat.api, {})


@pytest.mark.parametrize(
    "settings", example_counts.mark_rest_long([{}, {"window": WINDOW}], keep=1), ids=["learned", "configured"]
)
@pytest.mark.parametrize("after", example_counts.mark_rest_long([10, 0], keep=1), ids=["later", "from the start"])
@pytest.mark.parametrize("api", list(STRICTEST_MODELS))
def test_unrecorded_conversation_stays_inside_its_window(
    api, after, settings, open_client, make_chat, make_strict_upstream, capfd
):
    """While the store fails no overflow reaches the client, the newest message is always sent, nothing is written, and
    that is reported.
    """
    upstream, chat, store = make_strict_upstream(WINDOW, overflow="llama.cpp"), make_chat(api), FailingStore()

    async def scenario():
        async with open_client(upstream, store, **settings) as client:
            for number in range(40):
                if number == after:
                    store.append_error, before = QuotaExceeded("a session is over its quota"), list_log_entries(store)
                reply = await chat.send_turn(client, f"Note {number}: {WORDS}", VERSION)
                state = "managed" if number < after else "unrecorded"
                assert (reply.status_code, reply.headers[STATE]) == (200, state), (number, reply.text)
                assert f"Note {number}: {WORDS}" in upstream.bodies[-1].decode()
            assert list_log_entries(store) == before
            store.append_error = None
            reply = await chat.send_turn(client, "And now?", VERSION)
            return reply, (await client.web.get("/livez")).json()

    reply, livez = run(scenario)
    assert (reply.status_code, reply.headers[STATE], livez["status"]) == (200, "managed", "ok")
    assert [(trouble["what"], trouble["times"]) for trouble in livez["troubles"]] == [("QuotaExceeded", 40 - after)]
    assert capfd.readouterr().err.count("not recorded") == 1


@pytest.mark.parametrize("api", example_counts.mark_every_other_long(STRICTEST_MODELS))
def test_unrecorded_decisions_last_until_the_store_recovers(api, open_client, make_chat, make_strict_upstream):
    """One refusal teaches the window and unrecorded requests keep their prefix; once the store recovers the log alone
    counts, and a later failure continues from it.
    """
    upstream, chat, store, sent = make_strict_upstream(WINDOW, overflow="llama.cpp"), make_chat(api), FailingStore(), []

    async def scenario():
        async with open_client(upstream, store) as client:
            for number in range(60):
                store.append_error = None if number < 10 or number == 40 else StoreLocked("held")
                reply = await chat.send_turn(client, f"Note {number}: {WORDS}", VERSION)
                state = "unrecorded" if store.append_error else "managed"
                assert (reply.status_code, reply.headers[STATE]) == (200, state), (number, reply.text)
                sent.append((len(upstream.bodies), upstream.bodies[-1]))

    run(scenario)
    refused = [count - before for (before, _), (count, _) in pairwise([(0, b""), *sent])]
    assert (sum(refused[:40]), sum(refused[40:]) <= 21) == (41, True), "one refusal, and at most one more"
    smaller = [number for number in range(1, 60) if not extends_body(sent[number - 1][1], sent[number][1])]
    assert len(smaller) <= 6, smaller


def extends_body(before, body):
    """Whether a body begins with nine tenths of the one before it."""
    most = len(before) * 9 // 10
    return body[:most] == before[:most]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("reading", [None, StoreCorrupt("damaged"), StoreLocked("held")], ids=str)
@pytest.mark.parametrize("api", list(STRICTEST_MODELS))
def test_unfixable_overflow_is_reported_while_the_store_fails(
    api, reading, stream, open_client, make_chat, make_strict_upstream
):
    """The client gets the provider's own numbers in its API's words, also when the log cannot be read."""
    upstream, chat, store = (
        make_strict_upstream(WINDOW, overflow="llama.cpp"),
        make_chat(api, stream=stream),
        FailingStore(),
    )
    store.append_error, store.read_error = StoreReadOnly("the disk is full"), reading
    body = build_oversized_body(chat)

    async def scenario():
        async with open_client(upstream, store) as client:
            return await client.post(chat.path, body, VERSION)

    reply = run(scenario)
    assert (reply.headers[STATE], OVERFLOW_TEXTS[api] in reply.text) == ("unrecorded", True), reply.text
    in_events = stream and api == "openai-responses"
    assert (reply.status_code, "response.failed" in reply.text) == ((200, True) if in_events else (400, False))
    if not in_events:
        refused = json.loads(upstream.answers[-1])["error"]
        verdict = classify_error(ErrorReport(api, status=400, body=reply.content))
        assert (verdict.limit, verdict.requested) == (refused["n_ctx"], refused["n_prompt_tokens"])


@pytest.mark.parametrize("status", ["401", "400", "500"])
def test_other_refusals_are_returned_unchanged_while_the_store_fails(
    status, open_client, make_upstream, make_chat, make_strict_upstream
):
    """Only an overflow is rephrased; any other refusal is returned unchanged, also when the log cannot be read."""
    chat, store = make_chat("anthropic"), FailingStore()
    store.append_error = store.read_error = StoreCorrupt("damaged")

    async def scenario():
        async with open_client(upstream, store) as client:
            return await chat.send_turn(client, "How high is the tide?", VERSION)

    upstream = make_upstream(make_strict_upstream().provider, [parse_fault(status)])
    reply = run(scenario)
    assert (reply.headers[STATE], reply.content) == ("unrecorded", upstream.answers[-1])
    assert len(upstream.bodies) == 1


@pytest.mark.parametrize("observe", [False, True], ids=["managed", "observed"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("status", ["401", "429", "500", "cut"])
@pytest.mark.parametrize("api", list(STRICTEST_MODELS))
def test_unrecorded_refusal_is_not_requested_again(
    api, status, stream, observe, open_client, make_upstream, make_chat, make_strict_upstream
):
    """A refusal may have cost money and is what the client waits for, so it is returned, and the missing record is
    reported.
    """
    chat, failing = make_chat(api, stream=stream), FailingStore()
    failing.append_error, failing.fails_only_answers = StoreLocked("held"), True
    chat.add_user_text("How high is the tide?")

    async def scenario(store):
        upstream = make_upstream(make_strict_upstream().provider, [parse_fault(status)])
        async with open_client(upstream, store, observe=observe) as client:
            reply = await client.post(chat.path, chat.body(), VERSION)
            return reply, len(upstream.bodies), (await client.web.get("/livez")).json()["status"]

    (reply, request_count, health), (expected, expected_count, _) = (
        run(lambda: scenario(failing)),
        run(lambda: scenario(MemoryStore())),
    )
    assert (reply.headers[STATE], request_count, expected_count, health) == ("unrecorded", 1, 1, "degraded")
    assert (reply.status_code, reply.content) == (expected.status_code, expected.content)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("is_cancelled", [False, True], ids=["left", "cancelled"])
def test_client_leaving_while_the_store_fails_causes_no_retry(is_cancelled, stream, make_chat):
    """The request of a client that left was sent once and is not sent again."""
    chat, store, upstream = make_chat("anthropic", stream=stream), FailingStore(), SilentUpstream()
    store.append_error, store.fails_only_answers = StoreLocked("held"), True
    chat.add_user_text("How high is the tide?")
    body, left = json.dumps(chat.body()).encode(), anyio.Event()
    headers = {"host": "127.0.0.1:8642", "content-type": "application/json", **dict(VERSION)}
    scope = {
        "type": "http",
        "method": "POST",
        "path": chat.path,
        "raw_path": chat.path.encode(),
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        "http_version": "1.1",
        "scheme": "http",
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 8642),
    }
    incoming = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive():
        if incoming:
            return incoming.pop()
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(_):
        pass

    async def main():
        settings = Settings(anthropic="http://up")
        async with open_proxy(settings, store, transport=upstream) as proxy, anyio.create_task_group() as group:
            group.start_soon(proxy, scope, receive, send)
            with anyio.fail_after(10):
                await upstream.has_request.wait()
            if is_cancelled:
                group.cancel_scope.cancel()
            else:
                left.set()

    run(main)
    assert upstream.request_count == 1


class SilentUpstream(httpx2.AsyncBaseTransport):
    """A provider that never answers, and counts its requests."""

    request_count = 0

    def __init__(self):
        self.has_request = anyio.Event()

    async def handle_async_request(self, request):
        """Never answer the first request, and refuse a second one."""
        self.request_count += 1
        self.has_request.set()
        if self.request_count == 1:
            await anyio.sleep_forever()
        return httpx2.Response(500)


def test_proxy_waits_for_a_locked_store_at_most_twice(open_client, make_chat, make_strict_upstream):
    """A database that is locked for reading is tried twice; then the request is forwarded as it arrived."""
    upstream, chat, store = make_strict_upstream(), make_chat("anthropic"), FailingStore()

    async def scenario():
        async with open_client(upstream, store) as client:
            await chat.send_turn(client, "How high is the tide?", VERSION)
            store.append_error = store.read_error = StoreLocked("held")
            chat.add_user_text("And now?")
            body = json.dumps(chat.body()).encode()
            return body, await client.post(chat.path, body, VERSION)

    body, reply = run(scenario)
    assert (reply.status_code, reply.headers[STATE], upstream.bodies[-1]) == (200, "unrecorded", body)
    assert store.failed_reads <= 2


@pytest.mark.parametrize("api", list(STRICTEST_MODELS))
def test_unrecorded_request_that_fits_is_forwarded_unchanged(api, open_client, make_chat, make_strict_upstream):
    """A request that fits is sent once byte for byte, and its answer is returned unchanged."""
    upstream, chat, store = make_strict_upstream(), make_chat(api), FailingStore()
    store.append_error = StoreLocked("held")
    chat.add_user_text("How high is the tide?")
    body = json.dumps(chat.body(), indent=2).encode()

    async def scenario():
        async with open_client(upstream, store) as client:
            return await client.post(chat.path, body, VERSION)

    reply = run(scenario)
    assert (reply.status_code, reply.headers[STATE]) == (200, "unrecorded")
    assert (upstream.bodies, upstream.answers) == ([body], [reply.content])


def test_no_model_summary_is_requested_while_the_store_fails(open_client, make_chat, make_strict_upstream):
    """Each turn would pay for a summary that is then forgotten, so an extract is used instead."""
    upstream, chat, store = make_strict_upstream(WINDOW), make_chat("anthropic"), FailingStore()
    store.append_error = StoreLocked("held")

    async def scenario():
        async with open_client(upstream, store, window=WINDOW, summaries="client") as client:
            for number in range(40):
                assert (await chat.send_turn(client, f"Note {number}: {WORDS}", VERSION)).status_code == 200

    run(scenario)
    assert len(upstream.bodies) == 40
    assert len(upstream.bodies[-1]) < len(json.dumps(chat.body())) * 0.7, "the conversation was not reduced"


def test_keep_alive_head_reports_the_unrecorded_state(open_client, make_chat, make_strict_upstream):
    """The head sent with the first keep-alive has the same state header as that of an answer."""
    upstream, chat, store = (
        make_strict_upstream(WINDOW, overflow="llama.cpp"),
        make_chat("anthropic", stream=True),
        FailingStore(),
    )
    store.append_error = StoreLocked("held")
    for number in range(40):
        chat.add_user_text(f"Note {number}: {WORDS}")
        chat.messages.append({"role": "assistant", "content": "Yes."})
    chat.add_user_text("And now?")

    class SlowUpstream(type(upstream)):
        """Answers after a delay."""

        async def handle_async_request(self, request):
            """Wait, then answer."""
            await anyio.sleep(0.6)
            return await super().handle_async_request(request)

    async def scenario():
        async with open_client(SlowUpstream(upstream.provider), store, keepalive=0.25) as client:
            return await client.post(chat.path, chat.body(), VERSION)

    reply = run(scenario)
    assert (reply.status_code, reply.headers[STATE]) == (200, "unrecorded")
    assert reply.content.startswith(b"event: ping")
    assert b"message_stop" in reply.content


@pytest.mark.parametrize("api", list(STRICTEST_MODELS))
def test_oversized_request_does_not_degrade_the_proxy(api, open_client, make_chat, make_strict_upstream, capfd):
    """A request whose system prompt exceeds the window is refused in its API's words and reported once, and ``/livez``
    stays ok.
    """
    upstream, chat = make_strict_upstream(WINDOW, overflow="llama.cpp"), make_chat(api)
    body = build_oversized_body(chat)

    async def scenario():
        async with open_client(upstream) as client:
            replies = [await client.post(chat.path, body, VERSION) for _ in range(2)]
            return replies, (await client.web.get("/livez")).json()

    replies, livez = run(scenario)
    assert [OVERFLOW_TEXTS[api] in reply.text for reply in replies] == [True, True]
    assert livez["status"] == "ok"
    assert [trouble["what"] for trouble in livez["troubles"]] == ["WindowTooSmall"]
    assert capfd.readouterr().err.count("WindowTooSmall") == 1


PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x08\0\0\0\x08\x08\x02\0\0\0" + b"x" * 400).decode()
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}}


class ImageRefusingUpstream(httpx2.AsyncBaseTransport):
    """A provider behind a gateway that refuses images."""

    def __init__(self, inner):
        self.inner, self.refused = inner, 0

    async def handle_async_request(self, request):
        """Refuse a request with an image, and pass on any other."""
        if b'"base64"' not in await request.aread():
            return await self.inner.handle_async_request(request)
        self.refused += 1
        why = "messages.0.content.1.image.source.base64: Could not process image"
        error = {"type": "error", "error": {"type": "invalid_request_error", "message": why}}
        return httpx2.Response(400, json=error)


@pytest.mark.parametrize("store_works", [True, False], ids=["working", "failing"])
def test_refused_image_is_dropped_while_the_store_fails(store_works, open_client, make_chat, make_strict_upstream):
    """A refused image is left out and the rest is answered, whether or not the store works."""
    chat, store, upstream = make_chat("anthropic"), FailingStore(), ImageRefusingUpstream(make_strict_upstream())
    store.append_error, store.fails_only_answers = (None if store_works else StoreLocked("held")), True
    chat.messages = [{"role": "user", "content": [{"type": "text", "text": "Look."}, IMAGE]}]
    chat.messages.append({"role": "assistant", "content": "I see."})

    async def scenario():
        async with open_client(upstream, store) as client:
            return await chat.send_turn(client, "And now?", VERSION)

    reply = run(scenario)
    assert (reply.status_code, reply.headers[STATE]) == (200, "managed" if store_works else "unrecorded")
    assert upstream.refused >= 1


@pytest.mark.parametrize("status", ["error", "unfinished"])
@pytest.mark.parametrize("api", ["anthropic", "openai-chat", "openai-responses"])
def test_broken_stream_ends_the_same_while_the_store_fails(
    api, status, open_client, make_upstream, make_chat, make_strict_upstream
):
    """The body was already passed on, so it ends as it does when the store works."""
    fault = f"{status}:middle" if status == "error" else status
    chat, failing = make_chat(api, stream=True), FailingStore()
    failing.append_error, failing.fails_only_answers = StoreLocked("held"), True
    chat.add_user_text("How high is the tide?")

    async def scenario(store):
        async with open_client(make_upstream(make_strict_upstream().provider, [parse_fault(fault)]), store) as client:
            reply = await client.post(chat.path, chat.body(), VERSION)
            return reply.status_code, reply.content

    assert run(lambda: scenario(failing)) == run(lambda: scenario(MemoryStore()))


def test_unrecorded_broken_answer_is_reported_in_livez(open_client, make_chat, make_strict_upstream):
    """When the client left and the broken answer cannot be recorded, ``/livez`` reports it."""
    chat, store, upstream = make_chat("anthropic"), FailingStore(), SilentUpstream()
    store.append_error, store.fails_only_answers = StoreReadOnly("the disk is full"), True
    chat.add_user_text("How high is the tide?")

    async def scenario():
        async with open_client(upstream, store) as client:
            async with anyio.create_task_group() as group:
                group.start_soon(client.post, chat.path, chat.body(), VERSION)
                await upstream.has_request.wait()
                group.cancel_scope.cancel()
            return (await client.web.get("/livez")).json()

    livez = run(scenario)
    assert livez["status"] == "degraded"
    assert [(trouble["what"], "the disk is full" in trouble["why"]) for trouble in livez["troubles"]] == [
        ("unwritten", True)
    ]
