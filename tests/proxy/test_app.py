"""The whole proxy in front of the strict provider: what is sent, what is returned, and what is stored."""

from __future__ import annotations

import json

import anyio
import example_counts
import pytest

from holdfast.engine.log.journal import Journal
from holdfast.errors import StoreReadOnly
from holdfast.providers.errors.classify_error import classify_error
from holdfast.providers.errors.report import ErrorReport
from holdfast.store.memory import MemoryStore
from holdfast.store.open_store import open_store
from holdfast.testing.provider import Provider
from holdfast.testing.provider import ProviderSettings as Strict
from holdfast.testing.provider.client import STRICTEST_MODELS

APIS = list(STRICTEST_MODELS)
WORDS = "kelp on the rock, and the tide comes in. " * 110
STATE = "x-holdfast-state"


def run(function):
    """Return what the coroutine function returns."""
    return anyio.run(function)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("api", APIS)
def test_proxy_forwards_unchanged_requests_and_answers_byte_for_byte(
    api, stream, open_client, make_chat, make_strict_upstream
):
    """When nothing has to be reduced, the provider gets the client's own bytes and the client gets the provider's."""
    upstream, chat = make_strict_upstream(), make_chat(api, stream=stream)
    path = (
        chat.path.replace(":generate", ":streamGenerate") + "?alt=sse"
        if (api, stream) == ("gemini", True)
        else chat.path
    )

    async def scenario():
        async with open_client(upstream) as client:
            chat.add_user_text("How high is the tide?")
            data = json.dumps(chat.body(), indent=1).encode()
            return data, await client.post(path, data)

    data, reply = run(scenario)
    assert reply.status_code == 200, reply.text
    assert upstream.bodies == [data]
    assert reply.content == upstream.answers[0]
    assert reply.headers[STATE] == "managed"
    assert reply.headers["x-holdfast-session"]


@pytest.mark.parametrize("api", APIS)
def test_proxy_keeps_every_request_inside_the_configured_window(api, open_client, make_chat, make_strict_upstream):
    """A conversation 30 turns past its window is still answered, every request fits, and the newest message is always
    sent.
    """
    upstream, chat = make_strict_upstream(16_000), make_chat(api)

    async def scenario():
        async with open_client(upstream, window=16_000) as client:
            for number in range(40):
                reply = await chat.send_turn(client, f"Note {number}: {WORDS}")
                assert reply.status_code == 200, (number, reply.text)
                assert f"Note {number}: " in upstream.bodies[-1].decode()

    run(scenario)
    assert len(upstream.bodies) == 40
    assert max(request.tokens for request in upstream.provider.requests) <= 16_000


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("words", ["llama.cpp", "openai-tpm", "native"])
def test_proxy_recovers_from_an_overflow_of_an_unknown_window(api, words, open_client, make_upstream, make_chat):
    """An overflow of a window that the proxy does not know never reaches the client, whatever the provider's
    wording.
    """
    upstream, chat = make_upstream(Provider(Strict(window=12_000, overflow=words))), make_chat(api)

    async def scenario():
        async with open_client(upstream) as client:
            for number in range(16):
                reply = await chat.send_turn(client, f"Note {number}: {WORDS}")
                assert reply.status_code == 200, (number, reply.text)
            return (await client.web.get("/stats")).json()

    assert run(scenario)["overflows"]["avoided"] > 0


@pytest.mark.uncounted
@pytest.mark.parametrize("api", example_counts.mark_every_other_long(APIS))
def test_proxy_sends_the_same_bytes_after_restarts(api, open_client, make_chat, make_strict_upstream):
    """A request upstream depends only on the client's request and the log, so a restart before each changes no byte
    (same-after-restart).
    """

    async def run_without_restarts(upstream):
        chat = make_chat(api)
        async with open_client(upstream, window=16_000) as client:
            for number in range(30):
                await chat.send_turn(client, f"Note {number}: {WORDS}")

    async def run_with_restarts(upstream):
        chat, store = make_chat(api), MemoryStore()
        for number in range(30):
            async with open_client(upstream, store, window=16_000) as client:
                await chat.send_turn(client, f"Note {number}: {WORDS}")

    plain, restarted = make_strict_upstream(16_000), make_strict_upstream(16_000)
    run(lambda: run_without_restarts(plain))
    run(lambda: run_with_restarts(restarted))
    assert restarted.bodies == plain.bodies


@pytest.mark.parametrize("api", APIS)
def test_proxy_sends_the_same_bytes_for_a_retry(api, open_client, make_chat, make_strict_upstream):
    """A repeated request is sent upstream with the same bytes, also after a restart."""
    upstream, chat, store = make_strict_upstream(16_000), make_chat(api), MemoryStore()

    async def scenario():
        async with open_client(upstream, store, window=16_000) as client:
            for number in range(20):
                await chat.send_turn(client, f"Note {number}: {WORDS}")
            chat.add_user_text("And now?")
            await client.post(chat.path, chat.body())
            await client.post(chat.path, chat.body())
        async with open_client(upstream, store, window=16_000) as client:
            await client.post(chat.path, chat.body())

    run(scenario)
    assert upstream.bodies[-3] == upstream.bodies[-2] == upstream.bodies[-1]


@pytest.mark.parametrize("api", APIS)
def test_proxy_reports_an_unfixable_overflow_in_the_words_of_the_api(api, open_client, make_chat, make_strict_upstream):
    """A request that cannot be made to fit gets an overflow error with numbers that clients of its API recognize, so
    that their own recovery starts.
    """
    upstream, chat = make_strict_upstream(8_000), make_chat(api)
    chat.fields |= {
        "anthropic": {"system": WORDS * 12},
        "openai-chat": {},
        "openai-responses": {"instructions": WORDS * 12},
        "gemini": {},
    }[api]
    if api == "openai-chat":
        chat.messages.append({"role": "system", "content": WORDS * 12})
    system = {"systemInstruction": {"parts": [{"text": WORDS * 12}]}} if api == "gemini" else {}

    async def scenario():
        async with open_client(upstream) as client:
            chat.add_user_text("How high is the tide?")
            return await client.post(chat.path, chat.body() | system)

    reply = run(scenario)
    assert reply.status_code == 400, reply.text
    verdict = classify_error(ErrorReport(api, status=400, body=reply.content))
    assert verdict.kind == "context_window"
    assert verdict.requested > verdict.limit >= 8_000


@pytest.mark.parametrize("api", APIS)
def test_observe_mode_forwards_everything_unchanged_and_records_it(api, open_client, make_chat, make_strict_upstream):
    """In observe mode the provider's overflow errors come back unchanged, and the conversation is in the store."""
    upstream, chat, store = make_strict_upstream(8_000), make_chat(api), MemoryStore()

    async def scenario():
        async with open_client(upstream, store, observe=True) as client:
            replies = []
            sent = []
            for number in range(12):
                chat.add_user_text(f"Note {number}: {WORDS}")
                sent.append(json.dumps(chat.body()).encode())
                replies.append(await client.post(chat.path, sent[-1]))
                if replies[-1].status_code == 200:
                    chat.add_answer(replies[-1].content)
            return sent, replies

    sent, replies = run(scenario)
    assert upstream.bodies == sent
    assert [reply.content for reply in replies] == upstream.answers
    assert {reply.status_code for reply in replies} == {200, 400}
    assert {reply.headers[STATE] for reply in replies} == {"observed"}
    assert store.list_sessions()


def test_count_tokens_counts_the_reduced_request(open_client, make_chat, make_strict_upstream):
    """A token count covers the reduced request, or the client would compact in the middle of its task."""
    upstream, chat = make_strict_upstream(16_000), make_chat("anthropic")

    async def scenario():
        async with open_client(upstream, window=16_000) as client:
            for number in range(30):
                await chat.send_turn(client, f"Note {number}: {WORDS}")
            chat.add_user_text("And now?")
            body = {key: value for key, value in chat.body().items() if key != "max_tokens"}
            reply = await client.post("/v1/messages/count_tokens", body)
            return reply.json()["input_tokens"]

    assert 0 < run(scenario) < 16_000


def test_gemini_count_tokens_reduces_only_the_contents(open_client, make_chat, make_strict_upstream):
    """Gemini's countTokens may carry a whole request: its contents are reduced, the bytes around them stay, and a
    malformed one is relayed.
    """
    upstream, chat = make_strict_upstream(16_000), make_chat("gemini")
    path = chat.path.replace("generateContent", "countTokens")
    whole = b'{ "generateContentRequest" : {"model": "models/kelp", "contents": %s, "tools": [] } , "other": 1}'
    damaged = b'{"generateContentRequest": {"contents": 1}}'

    async def scenario():
        async with open_client(upstream, window=16_000) as client:
            for number in range(20):
                await chat.send_turn(client, f"Note {number}: {WORDS}")
            chat.add_user_text("And now?")
            replies = [
                await client.post(path, chat.body()),
                await client.post(path, whole % json.dumps(chat.messages).encode()),
            ]
            return [reply.headers[STATE] for reply in [*replies, await client.post(path, damaged)]]

    assert run(scenario) == ["managed", "managed", "relayed"]
    plain, inside, left = upstream.bodies[-3:]
    start, end = whole.split(b"%s")
    assert (inside.startswith(start), inside.endswith(end)) == (True, True)
    assert json.loads(inside)["generateContentRequest"]["contents"] == json.loads(plain)["contents"] != chat.messages
    assert left == damaged


def test_proxy_serves_unrecorded_and_reports_a_failing_store_once(open_client, make_chat, make_strict_upstream, capfd):
    """When the store fails, requests continue with the decisions already made; a header, /livez and one line on
    standard error report it.
    """
    upstream, chat, store = make_strict_upstream(16_000), make_chat("anthropic"), MemoryStore()

    def full(*_, **__):
        raise StoreReadOnly("the disk is full; free some space")

    async def scenario():
        async with open_client(upstream, store, window=16_000) as client:
            for number in range(20):
                await chat.send_turn(client, f"Note {number}: {WORDS}")
            store.append_entries = full
            replies = [await chat.send_turn(client, "And now?"), await chat.send_turn(client, "And then?")]
            return replies, (await client.web.get("/livez")).json()

    replies, livez = run(scenario)
    assert [reply.status_code for reply in replies] == [200, 200]
    assert {reply.headers[STATE] for reply in replies} == {"unrecorded"}
    assert len(upstream.bodies[-1]) < len(json.dumps(chat.messages)) / 2, "earlier decisions still apply"
    assert livez["status"] == "degraded"
    assert capfd.readouterr().err.count("not recorded") == 1


def test_bypass_file_switches_managing_off_and_on(open_client, make_chat, make_strict_upstream, tmp_path):
    """While the bypass file exists every request is relayed unchanged; once it is removed requests are managed
    again.
    """
    upstream, chat = make_strict_upstream(), make_chat("anthropic")

    async def scenario():
        async with open_client(upstream, bypass=tmp_path / "bypass") as client:
            states = []
            for there in (False, True, False):
                (tmp_path / "bypass").touch() if there else (tmp_path / "bypass").unlink(missing_ok=True)
                states.append((await chat.send_turn(client, "Go on.")).headers[STATE])
            return states

    assert run(scenario) == ["managed", "bypassed", "managed"]


def test_bypass_file_that_cannot_be_checked_is_ignored(open_client, make_chat, make_strict_upstream, tmp_path):
    """A bypass path that cannot be checked switches nothing off and fails no request."""

    async def scenario():
        async with open_client(make_strict_upstream(), bypass=tmp_path / ("n" * 300) / "bypass") as client:
            reply = await make_chat("anthropic").send_turn(client, "Go on.")
            return reply.status_code, reply.headers.get(STATE)

    assert run(scenario) == (200, "managed")


def test_proxy_forwards_api_keys_and_never_stores_them(open_client, make_chat, make_strict_upstream):
    """No auth header of a client is in the log, in the health pages or in an answer (no-keys-stored)."""
    upstream, chat, store = make_strict_upstream(), make_chat("anthropic"), MemoryStore()

    async def scenario():
        async with open_client(upstream, store) as client:
            reply = await chat.send_turn(
                client, "Go on.", {"x-api-key": "sk-secret-1", "authorization": "Bearer secret-2"}
            )
            pages = [(await client.web.get(place)).text for place in ("/livez", "/stats", "/metrics")]
            return reply, pages

    reply, pages = run(scenario)
    assert upstream.sent[0].headers["x-api-key"] == "sk-secret-1"
    assert upstream.sent[0].headers["authorization"] == "Bearer secret-2"
    log = [repr(entry) for info in store.list_sessions() for entry in store.read_entries(info.key)]
    assert not [text for text in [*log, *pages, str(reply.headers), reply.text] if "secret" in text]


@pytest.mark.parametrize("api", ["anthropic", "openai-chat"])
def test_proxy_forwards_unknown_models_and_keeps_roles_alternating(api, open_client, make_chat, make_strict_upstream):
    """For an unknown model the client's bytes pass unchanged, and after a cut no two user messages are adjacent."""
    upstream, chat = make_strict_upstream(16_000), make_chat(api)

    def body():
        return chat.body() | {"model": "local-7b"}

    async def scenario():
        async with open_client(upstream, window=16_000) as client:
            if api == "openai-chat":
                chat.messages.append({"role": "system", "content": "You read the tide."})
            chat.messages += [{"role": "user", "content": "One."}]
            for number in range(30):
                chat.add_user_text(f"Note {number}: {WORDS}")
                data = json.dumps(body()).encode()
                reply = await client.post(chat.path, data)
                assert reply.status_code == 200, reply.text
                if number < 3:
                    assert upstream.bodies[-1] == data
                chat.add_answer(reply.content)

    run(scenario)
    roles = [message["role"] for message in json.loads(upstream.bodies[-1])["messages"]]
    assert len(roles) < len(chat.messages) / 2
    assert "user user" not in " ".join(roles)


@pytest.mark.parametrize("api", APIS)
def test_proxy_keeps_decisions_when_the_newest_message_is_replaced(
    api, open_client, make_upstream, make_chat, make_strict_upstream
):
    """A client that replaces a trailing reminder each turn starts a branch each turn, and learning the window still
    costs at most 3 refusals.
    """
    upstream, chat = make_upstream(Provider(Strict(window=12_000))), make_chat(api)

    async def scenario():
        async with open_client(upstream) as client:
            for number in range(24):
                chat.add_user_text(f"Note {number}: {WORDS}")
                whole = list(chat.messages)
                chat.add_user_text("Remember the tide.")
                reply = await client.post(chat.path, chat.body())
                assert reply.status_code == 200, (number, reply.text)
                chat.messages = whole
                chat.add_answer(reply.content)

    run(scenario)
    refused = len(upstream.bodies) - 24
    assert 1 <= refused <= 3


@pytest.mark.parametrize("limit", ["tokens", "bytes"])
def test_forget_learned_window_takes_effect_in_a_running_proxy(
    limit, open_client, make_upstream, make_chat, make_strict_upstream, tmp_path
):
    """A session keeps its learned window until it is told to forget it, and a running proxy applies that at once."""
    small = Provider(Strict(window=12_000 if limit == "tokens" else 200_000))
    upstream, larger, chat = (
        make_upstream(small, max_bytes=40_000 * (limit == "bytes")),
        make_strict_upstream(200_000),
        make_chat("anthropic"),
    )
    path, sizes = tmp_path / "holdfast.db", []

    async def scenario():
        with open_store(path) as store:
            async with open_client(upstream, store) as client:
                for number in range(30):
                    if number == 15:
                        upstream.max_bytes, upstream.provider, upstream.inner = 0, larger.provider, larger.inner
                    if number == 20:
                        with open_store(path) as other:
                            Journal.open(other, other.list_sessions()[0].key).forget_learned_window()
                    assert (await chat.send_turn(client, f"Note {number}: {WORDS}")).status_code == 200
                    sizes.append(len(upstream.bodies[-1]))

    run(scenario)
    assert max(sizes[:20]) < 45_000 < sizes[-1]


@pytest.mark.parametrize("api", example_counts.mark_every_other_long(APIS))
def test_proxy_makes_no_summary_call_unless_configured(api, open_client, make_chat, make_strict_upstream):
    """By default the proxy makes no model call of its own; with `summaries` set it uses the client's login and the
    client's or the named model.
    """

    async def scenario(upstream, **given):
        chat = make_chat(api)
        async with open_client(upstream, window=16_000, **given) as client:
            for number in range(20):
                reply = await chat.send_turn(client, f"Note {number}: {WORDS}", {"x-api-key": "sk-mine"})
                assert reply.status_code == 200, reply.text
        return len(upstream.bodies) - 20

    assert run(lambda: scenario(make_strict_upstream(16_000))) == 0
    upstream = make_strict_upstream(16_000)
    assert run(lambda: scenario(upstream, summaries="client")) > 0
    assert {request.headers["x-api-key"] for request in upstream.sent} == {"sk-mine"}
    upstream = make_strict_upstream(16_000)
    assert run(lambda: scenario(upstream, summaries="other-model")) > 0
    assert [
        request for request in upstream.sent if b"other-model" in request.content or "other-model" in str(request.url)
    ]


LOGINS = [
    {"authorization": "Bearer sk-ant-oat01-kelp", "anthropic-beta": "oauth-2025-04-20"},
    {"authorization": "Bearer eyJrZWxw.kelp.kelp", "chatgpt-account-id": "a"},
]
"""Subscription logins of Claude and of ChatGPT."""


@pytest.mark.parametrize("login", LOGINS, ids=["claude", "chatgpt"])
def test_proxy_never_uses_a_subscription_login_for_another_model(
    login, open_client, make_chat, make_strict_upstream, capfd
):
    """With a subscription login the summary is made without a model; that is reported once, and as a note in
    ``/livez``.
    """
    upstream, chat = make_strict_upstream(16_000), make_chat("anthropic")

    async def scenario():
        async with open_client(upstream, window=16_000, summaries="other-model") as client:
            for number in range(20):
                assert (await chat.send_turn(client, f"Note {number}: {WORDS}", login)).status_code == 200
            return (await client.web.get("/livez")).json()

    livez = run(scenario)
    assert len(upstream.bodies) == 20
    assert not [body for body in upstream.bodies if b"other-model" in body]
    assert capfd.readouterr().err.count("set summaries to client") == 1
    assert (livez["status"], livez["troubles"]) == ("ok", [])
    assert [note.partition(":")[0] for note in livez["notes"]] == ["summaries are made without a model"]


def test_summary_request_carries_the_key_from_the_query(open_client, make_chat, make_strict_upstream):
    """Gemini's key may be a query parameter: a summary request carries it too, and asks for an unstreamed answer."""
    upstream, chat = make_strict_upstream(16_000), make_chat("gemini")
    path = chat.path.replace(":generate", ":streamGenerate") + "?alt=sse&key=kelp-1"

    async def scenario():
        async with open_client(upstream, window=16_000, summaries="client") as client:
            for number in range(20):
                chat.add_user_text(f"Note {number}: {WORDS}")
                assert (await client.post(path, chat.body())).status_code == 200

    run(scenario)
    paths = {str(request.url.raw_path.decode()) for request in upstream.sent}
    assert paths == {path, chat.path + "?key=kelp-1"}


@pytest.mark.parametrize("api", APIS)
def test_observe_mode_forwards_requests_larger_than_the_window(api, open_client, make_chat, make_strict_upstream):
    """In observe mode a request that leaves no room in the window is still forwarded, and the provider's answer is
    returned.
    """
    upstream, chat = make_strict_upstream(100_000), make_chat(api)
    chat.add_user_text("How high is the tide?")
    system = {
        "anthropic": {"system": WORDS * 12},
        "openai-responses": {"instructions": WORDS * 12},
        "gemini": {"systemInstruction": {"parts": [{"text": WORDS * 12}]}},
    }.get(api, {"response_format": {"type": "json_object", "kelp": WORDS * 12}})
    data = json.dumps(chat.body() | system).encode()

    async def scenario():
        async with open_client(upstream, observe=True, window=4_000) as client:
            return await client.post(chat.path, data)

    reply = run(scenario)
    assert upstream.bodies == [data]
    assert reply.content == upstream.answers[0]


@pytest.mark.parametrize("api", example_counts.mark_every_other_long(APIS))
def test_proxies_on_one_store_send_the_bytes_of_a_single_proxy(api, open_client, make_chat, make_strict_upstream):
    """Memory never overrides the log: two proxies that take turns on one store send the bytes that one would send."""

    async def scenario(upstream, replicas):
        chat, store = make_chat(api), MemoryStore()
        async with (
            open_client(upstream, store, window=16_000) as first,
            open_client(upstream, store, window=16_000) as second,
        ):
            for number in range(24):
                client = (first, second)[number % replicas]
                assert (await chat.send_turn(client, f"Note {number}: {WORDS}")).status_code == 200

    alone, both = make_strict_upstream(16_000), make_strict_upstream(16_000)
    run(lambda: scenario(alone, 1))
    run(lambda: scenario(both, 2))
    assert both.bodies == alone.bodies
