"""The whole proxy in front of the strict provider: what goes up, what comes down, and what is held of it."""

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
def test_what_needs_no_change_passes_byte_for_byte(api, stream, proxied, strict):
    """Both ways: the provider gets the client's own bytes, the client the provider's."""
    through, _, talking = proxied
    upstream, talk = strict(), talking(api, stream=stream)
    path = (
        talk.path.replace(":generate", ":streamGenerate") + "?alt=sse"
        if (api, stream) == ("gemini", True)
        else talk.path
    )

    async def go():
        async with through(upstream) as client:
            talk.say("How high is the tide?")
            data = json.dumps(talk.body(), indent=1).encode()
            return data, await client.post(path, data)

    data, reply = run(go)
    assert reply.status_code == 200, reply.text
    assert upstream.bodies == [data]
    assert reply.content == upstream.answers[0]
    assert reply.headers[STATE] == "managed"
    assert reply.headers["x-holdfast-session"]


@pytest.mark.parametrize("api", APIS)
def test_a_conversation_goes_on_past_its_window(api, proxied, strict):
    """30 turns past the window: every answer comes, every request fits, the newest words are always in it."""
    through, _, talking = proxied
    upstream, talk = strict(16_000), talking(api)

    async def go():
        async with through(upstream, window=16_000) as client:
            for number in range(40):
                reply = await talk.turn(client, f"Note {number}: {WORDS}")
                assert reply.status_code == 200, (number, reply.text)
                assert f"Note {number}: " in upstream.bodies[-1].decode()

    run(go)
    assert len(upstream.bodies) == 40
    assert max(one.tokens for one in upstream.provider.requests) <= 16_000


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("words", ["llama.cpp", "openai-tpm", "native"])
def test_an_overflow_never_reaches_a_client(api, words, proxied):
    """Nobody told the proxy of the small window, in whatever words the provider refuses: the answer comes."""
    through, upstreams, talking = proxied
    upstream, talk = upstreams(Provider(Strict(window=12_000, overflow=words))), talking(api)

    async def go():
        async with through(upstream) as client:
            for number in range(16):
                reply = await talk.turn(client, f"Note {number}: {WORDS}")
                assert reply.status_code == 200, (number, reply.text)
            return (await client.web.get("/stats")).json()

    assert run(go)["overflows"]["avoided"] > 0


@pytest.mark.uncounted
@pytest.mark.parametrize("api", example_counts.every_other(APIS))
def test_a_restart_before_each_request_changes_no_byte(api, proxied, strict):
    """same-after-restart on the wire: what goes up is a function of what the client sent and of the log."""
    through, _, talking = proxied

    async def whole(upstream):
        talk = talking(api)
        async with through(upstream, window=16_000) as client:
            for number in range(30):
                await talk.turn(client, f"Note {number}: {WORDS}")

    async def cut(upstream):
        talk, store = talking(api), MemoryStore()
        for number in range(30):
            async with through(upstream, store, window=16_000) as client:
                await talk.turn(client, f"Note {number}: {WORDS}")

    one, other = strict(16_000), strict(16_000)
    run(lambda: whole(one))
    run(lambda: cut(other))
    assert one.bodies == other.bodies


@pytest.mark.parametrize("api", APIS)
def test_a_retry_sends_the_same_bytes(api, proxied, strict):
    """The same request twice, and once more behind a restart, is the same request upstream."""
    through, _, talking = proxied
    upstream, talk, store = strict(16_000), talking(api), MemoryStore()

    async def go():
        async with through(upstream, store, window=16_000) as client:
            for number in range(20):
                await talk.turn(client, f"Note {number}: {WORDS}")
            talk.say("And now?")
            await client.post(talk.path, talk.body())
            await client.post(talk.path, talk.body())
        async with through(upstream, store, window=16_000) as client:
            await client.post(talk.path, talk.body())

    run(go)
    assert upstream.bodies[-3] == upstream.bodies[-2] == upstream.bodies[-1]


@pytest.mark.parametrize("api", APIS)
def test_what_cannot_be_made_to_fit_is_said_in_the_client_s_own_words(api, proxied, strict):
    """Its own recovery starts: an overflow with numbers, by the status or the event that clients of this API read."""
    through, _, talking = proxied
    upstream, talk = strict(8_000), talking(api)
    talk.fields |= {
        "anthropic": {"system": WORDS * 12},
        "openai-chat": {},
        "openai-responses": {"instructions": WORDS * 12},
        "gemini": {},
    }[api]
    if api == "openai-chat":
        talk.said.append({"role": "system", "content": WORDS * 12})
    system = {"systemInstruction": {"parts": [{"text": WORDS * 12}]}} if api == "gemini" else {}

    async def go():
        async with through(upstream) as client:
            talk.say("How high is the tide?")
            return await client.post(talk.path, talk.body() | system)

    reply = run(go)
    assert reply.status_code == 400, reply.text
    verdict = classify_error(ErrorReport(api, status=400, body=reply.content))
    assert verdict.kind == "context_window"
    assert verdict.requested > verdict.limit >= 8_000


@pytest.mark.parametrize("api", APIS)
def test_observing_changes_nothing_and_records(api, proxied, strict):
    """The provider's own overflow comes back as it came; what was said is in the store."""
    through, _, talking = proxied
    upstream, talk, store = strict(8_000), talking(api), MemoryStore()

    async def go():
        async with through(upstream, store, observe=True) as client:
            replies = []
            sent = []
            for number in range(12):
                talk.say(f"Note {number}: {WORDS}")
                sent.append(json.dumps(talk.body()).encode())
                replies.append(await client.post(talk.path, sent[-1]))
                if replies[-1].status_code == 200:
                    talk.hear(replies[-1].content)
            return sent, replies

    sent, replies = run(go)
    assert upstream.bodies == sent
    assert [reply.content for reply in replies] == upstream.answers
    assert {reply.status_code for reply in replies} == {200, 400}
    assert {reply.headers[STATE] for reply in replies} == {"observed"}
    assert store.list_sessions()


def test_a_count_is_of_the_reduced_request(proxied, strict):
    """Or its client would compact in the middle of its task."""
    through, _, talking = proxied
    upstream, talk = strict(16_000), talking("anthropic")

    async def go():
        async with through(upstream, window=16_000) as client:
            for number in range(30):
                await talk.turn(client, f"Note {number}: {WORDS}")
            talk.say("And now?")
            body = {key: value for key, value in talk.body().items() if key != "max_tokens"}
            told = await client.post("/v1/messages/count_tokens", body)
            return told.json()["input_tokens"]

    assert 0 < run(go) < 16_000


def test_a_count_of_a_request_to_come_is_of_the_reduced_one(proxied, strict):
    """Gemini's takes a whole request, too: what stands beside its contents, and around it, keeps its bytes."""
    through, _, talking = proxied
    upstream, talk = strict(16_000), talking("gemini")
    path = talk.path.replace("generateContent", "countTokens")
    whole = b'{ "generateContentRequest" : {"model": "models/kelp", "contents": %s, "tools": [] } , "other": 1}'
    damaged = b'{"generateContentRequest": {"contents": 1}}'

    async def go():
        async with through(upstream, window=16_000) as client:
            for number in range(20):
                await talk.turn(client, f"Note {number}: {WORDS}")
            talk.say("And now?")
            replies = [
                await client.post(path, talk.body()),
                await client.post(path, whole % json.dumps(talk.said).encode()),
            ]
            return [reply.headers[STATE] for reply in [*replies, await client.post(path, damaged)]]

    assert run(go) == ["managed", "managed", "relayed"]
    plain, inside, left = upstream.bodies[-3:]
    start, end = whole.split(b"%s")
    assert (inside.startswith(start), inside.endswith(end)) == (True, True)
    assert json.loads(inside)["generateContentRequest"]["contents"] == json.loads(plain)["contents"] != talk.said
    assert left == damaged


def test_where_the_store_fails_requests_go_on_and_that_is_said_once(proxied, strict, capfd):
    """By the decisions that there are; in a header, in /livez and on standard error."""
    through, _, talking = proxied
    upstream, talk, store = strict(16_000), talking("anthropic"), MemoryStore()

    def full(*_, **__):
        raise StoreReadOnly("the disk is full; free some space")

    async def go():
        async with through(upstream, store, window=16_000) as client:
            for number in range(20):
                await talk.turn(client, f"Note {number}: {WORDS}")
            store.append_entries = full
            replies = [await talk.turn(client, "And now?"), await talk.turn(client, "And then?")]
            return replies, (await client.web.get("/livez")).json()

    replies, livez = run(go)
    assert [reply.status_code for reply in replies] == [200, 200]
    assert {reply.headers[STATE] for reply in replies} == {"unrecorded"}
    assert len(upstream.bodies[-1]) < len(json.dumps(talk.said)) / 2, "the decisions that were made still count"
    assert livez["status"] == "degraded"
    assert capfd.readouterr().err.count("not recorded") == 1


def test_a_file_makes_it_a_plain_relay_at_once(proxied, strict, tmp_path):
    """And back again when it is gone."""
    through, _, talking = proxied
    upstream, talk = strict(), talking("anthropic")

    async def go():
        async with through(upstream, bypass=tmp_path / "bypass") as client:
            states = []
            for there in (False, True, False):
                (tmp_path / "bypass").touch() if there else (tmp_path / "bypass").unlink(missing_ok=True)
                states.append((await talk.turn(client, "Go on.")).headers[STATE])
            return states

    assert run(go) == ["managed", "bypassed", "managed"]


def test_where_the_file_cannot_be_looked_for_requests_go_on(proxied, strict, tmp_path):
    """A folder that is not to be had any more switches nothing off, and costs nobody an answer."""
    through, _, talking = proxied

    async def go():
        async with through(strict(), bypass=tmp_path / ("n" * 300) / "bypass") as client:
            reply = await talking("anthropic").turn(client, "Go on.")
            return reply.status_code, reply.headers.get(STATE)

    assert run(go) == (200, "managed")


def test_keys_go_up_and_are_never_stored(proxied, strict):
    """no-keys-stored: no header of a client is in the log, in what is told, or in an answer."""
    through, _, talking = proxied
    upstream, talk, store = strict(), talking("anthropic"), MemoryStore()

    async def go():
        async with through(upstream, store) as client:
            reply = await talk.turn(client, "Go on.", {"x-api-key": "sk-secret-1", "authorization": "Bearer secret-2"})
            told = [(await client.web.get(place)).text for place in ("/livez", "/stats", "/metrics")]
            return reply, told

    reply, told = run(go)
    assert upstream.sent[0].headers["x-api-key"] == "sk-secret-1"
    assert upstream.sent[0].headers["authorization"] == "Bearer secret-2"
    log = [repr(entry) for info in store.list_sessions() for entry in store.read_entries(info.key)]
    assert not [one for one in [*log, *told, str(reply.headers), reply.text] if "secret" in one]


@pytest.mark.parametrize("api", ["anthropic", "openai-chat"])
def test_a_client_knows_its_own_server(api, proxied, strict):
    """A model that nobody knows here: what its client wrote passes as it came, and turns stay in turn behind a cut."""
    through, _, talking = proxied
    upstream, talk = strict(16_000), talking(api)

    def body():
        return talk.body() | {"model": "local-7b"}

    async def go():
        async with through(upstream, window=16_000) as client:
            if api == "openai-chat":
                talk.said.append({"role": "system", "content": "You read the tide."})
            talk.said += [{"role": "user", "content": "One."}]
            for number in range(30):
                talk.say(f"Note {number}: {WORDS}")
                data = json.dumps(body()).encode()
                reply = await client.post(talk.path, data)
                assert reply.status_code == 200, reply.text
                if number < 3:
                    assert upstream.bodies[-1] == data
                talk.hear(reply.content)

    run(go)
    shown = [one["role"] for one in json.loads(upstream.bodies[-1])["messages"]]
    assert len(shown) < len(talk.said) / 2
    assert "user user" not in " ".join(shown)


@pytest.mark.parametrize("api", APIS)
def test_what_is_decided_survives_a_newest_message_that_is_replaced(api, proxied, strict):
    """Clients that put a reminder behind the newest words part from the log each turn: nothing is learned twice."""
    through, upstreams, talking = proxied
    upstream, talk = upstreams(Provider(Strict(window=12_000))), talking(api)

    async def go():
        async with through(upstream) as client:
            for number in range(24):
                talk.say(f"Note {number}: {WORDS}")
                whole = list(talk.said)
                talk.say("Remember the tide.")
                reply = await client.post(talk.path, talk.body())
                assert reply.status_code == 200, (number, reply.text)
                talk.said = whole
                talk.hear(reply.content)

    run(go)
    refused = len(upstream.bodies) - 24
    assert 1 <= refused <= 3


@pytest.mark.parametrize("taken", ["tokens", "bytes"])
def test_a_limit_that_was_lifted_may_be_forgotten(taken, proxied, strict, tmp_path):
    """What a session learned of its window stays until somebody says so; a proxy that runs goes by that at once."""
    through, upstreams, talking = proxied
    small = Provider(Strict(window=12_000 if taken == "tokens" else 200_000))
    upstream, larger, talk = upstreams(small, most=40_000 * (taken == "bytes")), strict(200_000), talking("anthropic")
    place, sizes = tmp_path / "holdfast.db", []

    async def go():
        with open_store(place) as store:
            async with through(upstream, store) as client:
                for number in range(30):
                    if number == 15:
                        upstream.most, upstream.provider, upstream.inner = 0, larger.provider, larger.inner
                    if number == 20:
                        with open_store(place) as other:
                            Journal.open(other, other.list_sessions()[0].key).forget_learned_window()
                    assert (await talk.turn(client, f"Note {number}: {WORDS}")).status_code == 200
                    sizes.append(len(upstream.bodies[-1]))

    run(go)
    assert max(sizes[:20]) < 45_000 < sizes[-1]


@pytest.mark.parametrize("api", example_counts.every_other(APIS))
def test_no_call_of_ours_is_made_unless_it_was_asked_for(api, proxied, strict):
    """With the client's own login a summary is written by its model, or by the one named; else by nobody."""
    through, _, talking = proxied

    async def go(upstream, **given):
        talk = talking(api)
        async with through(upstream, window=16_000, **given) as client:
            for number in range(20):
                reply = await talk.turn(client, f"Note {number}: {WORDS}", {"x-api-key": "sk-mine"})
                assert reply.status_code == 200, reply.text
        return len(upstream.bodies) - 20

    assert run(lambda: go(strict(16_000))) == 0
    upstream = strict(16_000)
    assert run(lambda: go(upstream, summaries="client")) > 0
    assert {request.headers["x-api-key"] for request in upstream.sent} == {"sk-mine"}
    upstream = strict(16_000)
    assert run(lambda: go(upstream, summaries="other-model")) > 0
    assert [one for one in upstream.sent if b"other-model" in one.content or "other-model" in str(one.url)]


LOGINS = [
    {"authorization": "Bearer sk-ant-oat01-kelp", "anthropic-beta": "oauth-2025-04-20"},
    {"authorization": "Bearer eyJrZWxw.kelp.kelp", "chatgpt-account-id": "a"},
]
"""Logins of a subscription: Claude's, and ChatGPT's."""


@pytest.mark.parametrize("login", LOGINS, ids=["claude", "chatgpt"])
def test_the_login_of_a_subscription_asks_no_other_model(login, proxied, strict, capfd):
    """It is for what its client asks: a summary is made without a model, which is said once, and by ``/livez``."""
    through, _, talking = proxied
    upstream, talk = strict(16_000), talking("anthropic")

    async def go():
        async with through(upstream, window=16_000, summaries="other-model") as client:
            for number in range(20):
                assert (await talk.turn(client, f"Note {number}: {WORDS}", login)).status_code == 200
            return (await client.web.get("/livez")).json()

    livez = run(go)
    assert len(upstream.bodies) == 20
    assert not [one for one in upstream.bodies if b"other-model" in one]
    assert capfd.readouterr().err.count("set summaries to client") == 1
    assert (livez["status"], livez["troubles"]) == ("ok", [])
    assert [note.partition(":")[0] for note in livez["notes"]] == ["summaries are made without a model"]


def test_a_key_in_the_address_goes_along_with_a_summary(proxied, strict):
    """Gemini's key may stand there: whoever writes summaries for a request is asked with it, for a whole answer."""
    through, _, talking = proxied
    upstream, talk = strict(16_000), talking("gemini")
    path = talk.path.replace(":generate", ":streamGenerate") + "?alt=sse&key=kelp-1"

    async def go():
        async with through(upstream, window=16_000, summaries="client") as client:
            for number in range(20):
                talk.say(f"Note {number}: {WORDS}")
                assert (await client.post(path, talk.body())).status_code == 200

    run(go)
    asked = {str(request.url.raw_path.decode()) for request in upstream.sent}
    assert asked == {path, talk.path + "?key=kelp-1"}


@pytest.mark.parametrize("api", APIS)
def test_what_is_only_looked_at_goes_out_however_large_it_is(api, proxied, strict):
    """Also where we see no room at all beside its frame: the provider is asked, and says what it says."""
    through, _, talking = proxied
    upstream, talk = strict(100_000), talking(api)
    talk.say("How high is the tide?")
    system = {
        "anthropic": {"system": WORDS * 12},
        "openai-responses": {"instructions": WORDS * 12},
        "gemini": {"systemInstruction": {"parts": [{"text": WORDS * 12}]}},
    }.get(api, {"response_format": {"type": "json_object", "kelp": WORDS * 12}})
    data = json.dumps(talk.body() | system).encode()

    async def go():
        async with through(upstream, observe=True, window=4_000) as client:
            return await client.post(talk.path, data)

    reply = run(go)
    assert upstream.bodies == [data]
    assert reply.content == upstream.answers[0]


@pytest.mark.parametrize("api", example_counts.every_other(APIS))
def test_two_proxies_on_one_store_send_what_one_would(api, proxied, strict):
    """What is in memory never counts against the log: whoever is asked, the provider gets the same bytes."""
    through, _, talking = proxied

    async def go(upstream, replicas):
        talk, store = talking(api), MemoryStore()
        async with through(upstream, store, window=16_000) as one, through(upstream, store, window=16_000) as other:
            for number in range(24):
                client = (one, other)[number % replicas]
                assert (await talk.turn(client, f"Note {number}: {WORDS}")).status_code == 200

    alone, both = strict(16_000), strict(16_000)
    run(lambda: go(alone, 1))
    run(lambda: go(both, 2))
    assert both.bodies == alone.bodies
