"""Official SDK clients as upstreams: our bytes over their transport, and no error of theirs."""

from __future__ import annotations

import subprocess
import sys
from contextlib import asynccontextmanager, suppress

import anthropic
import anyio
import httpx2
import msgspec
import openai
import pytest
from google import genai

from holdfast.config import get_target
from holdfast.engine.compaction.summarizer import SummaryWriter
from holdfast.engine.engine import Engine
from holdfast.engine.upstream.replies import ReplyReader, ask_upstream
from holdfast.engine.upstream.sdk import wrap_upstream
from holdfast.engine.upstream.upstream import HttpUpstream, UpstreamRequest
from holdfast.errors import ConfigError, FormatError, UpstreamError
from holdfast.planning.summary.prompts import SUMMARY_HEADINGS
from holdfast.providers.errors.classify_error import classify_error
from holdfast.store.memory import MemoryStore
from holdfast.testing.provider.calls import ScriptedAnswer
from holdfast.testing.provider.client import STRICTEST_MODELS
from holdfast.testing.provider.faults.faults import Fault
from holdfast.testing.provider.provider import Provider
from holdfast.testing.provider.server.local_server import serve_provider
from holdfast.testing.provider.settings import ProviderSettings
from holdfast.testing.upstream import ProviderUpstream, ScriptedUpstream

WORDS = ProviderSettings(tokenizer="words", window=2_000)
LONG = "kelp holds on to the rock, 海藻 too; " * 20
NOBODY = "http://127.0.0.1:9"


def google(url):
    return genai.Client(api_key="any", http_options={"base_url": url})


CLIENTS = {
    "AsyncAnthropic": ("anthropic", lambda url: anthropic.AsyncAnthropic(base_url=url, api_key="any")),
    "Anthropic": ("anthropic", lambda url: anthropic.Anthropic(base_url=url, api_key="any")),
    "AsyncOpenAI, chat": ("openai-chat", lambda url: openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="any")),
    "OpenAI, chat": ("openai-chat", lambda url: openai.OpenAI(base_url=f"{url}/v1", api_key="any")),
    "AsyncOpenAI": ("openai-responses", lambda url: openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="any")),
    "OpenAI": ("openai-responses", lambda url: openai.OpenAI(base_url=f"{url}/v1", api_key="any")),
    "genai": ("gemini", google),
    "genai.aio": ("gemini", lambda url: google(url).aio),
}
each = pytest.mark.parametrize("name", CLIENTS)
some = pytest.mark.parametrize("name", ["AsyncAnthropic", "Anthropic", "OpenAI, chat", "AsyncOpenAI", "genai"])
"""One of each kind: the others differ in their address alone."""


def request(api, words="hello", *, stream=False, **headers):
    """Return a request with spaces in its JSON that no encoder would put there."""
    text = msgspec.json.encode(words).decode()
    message = f'{{"role" : "user",  "content": {text}}}'
    body = {
        "anthropic": f'{{"model": "{STRICTEST_MODELS[api]}", "max_tokens": 900 , "messages": [{message}]',
        "openai-chat": f'{{"model": "{STRICTEST_MODELS[api]}" , "messages": [{message}]',
        "openai-responses": f'{{"model": "{STRICTEST_MODELS[api]}" , "input": [{message}]',
        "gemini": f'{{"contents" : [{{"role": "user", "parts": [{{"text": {text}}}]}}]',
    }[api]
    streamed = ', "stream": true}' if stream and api != "gemini" else "}"
    return UpstreamRequest(api, (body + streamed).encode(), STRICTEST_MODELS[api], stream=stream, headers=headers)


@asynccontextmanager
async def using(name, url):
    """Yield the client of this name as an upstream; it is closed after the block."""
    client = CLIENTS[name][1](url)
    yield wrap_upstream(client)
    if name == "genai":
        await client.aio.aclose()
        client.close()
    elif name == "genai.aio":
        await client.aclose()
    elif name.startswith("Async"):
        await client.close()
    else:
        client.close()


def told(name, url, sent):
    """Return the answer to one request."""

    async def talk():
        async with using(name, url) as upstream:
            return await ask_upstream(upstream, sent)

    return anyio.run(talk)


@pytest.mark.parametrize("stream", [False, True])
@each
def test_our_bytes_go_out_and_the_answer_is_that_of_http(name, stream):
    """By an SDK's client the provider gets the very bytes, with its key, and its answer is what plain HTTP brings."""
    api = CLIENTS[name][0]
    sent = request(api, stream=stream)
    answers = []
    for speak in (lambda url: told(name, url, sent), lambda url: anyio.run(by_http, url, sent)):
        provider = Provider(WORDS, [ScriptedAnswer(LONG, (("ls", {"at": "."}),))])
        with serve_provider(provider) as url:
            answers.append(speak(url))
        assert provider.incoming_requests[0].body == sent.body
        assert provider.incoming_requests[0].stream == stream
    assert answers[0].message == answers[1].message
    assert answers[0].history_elements == answers[1].history_elements
    assert (answers[0].usage, answers[0].stop_reason) == (answers[1].usage, answers[1].stop_reason)


async def by_http(url, sent):
    async with HttpUpstream(url, sent.api) as upstream:
        return await ask_upstream(upstream, sent)


AZURE = {"azure_endpoint": "https://kelp.openai.azure.com", "api_key": "any", "api_version": "2024-10-21"}


@pytest.mark.parametrize("kind", [openai.AsyncAzureOpenAI, openai.AzureOpenAI])
@pytest.mark.parametrize("more", [{}, {"azure_deployment": "kelp"}])
@pytest.mark.parametrize("api", ["openai-chat", "openai-responses"])
def test_azure_is_asked_where_its_client_asks_it(kind, more, api):
    """With a deployment and without: then Chat Completions is asked at the one that is called like the model."""
    heard = []

    def hear(request):
        heard.append(request.url)
        return httpx2.Response(404, json={"error": {"code": "404", "message": "Resource not found"}})

    async def talk():
        by = httpx2.AsyncClient if kind is openai.AsyncAzureOpenAI else httpx2.Client
        client = kind(**AZURE, **more, http_client=by(transport=httpx2.MockTransport(hear)), max_retries=0)
        theirs = client.chat.completions if api == "openai-chat" else client.responses
        said = {"messages": [{"role": "user", "content": "kelp"}]} if api == "openai-chat" else {"input": "kelp"}
        with suppress(openai.NotFoundError):
            await theirs.create(model="gpt 5/x", **said)
        async with wrap_upstream(client).send(
            UpstreamRequest(api, msgspec.json.encode({"model": "gpt 5/x"} | said), "gpt 5/x")
        ):
            pass

    anyio.run(talk)
    assert heard[0] == heard[1]


@some
def test_a_stream_comes_event_by_event(name):
    """The first event is there while the provider still waits with the rest."""
    sent = request(CLIENTS[name][0], stream=True)

    async def talk(url):
        async with using(name, url) as upstream, upstream.send(sent) as reply:
            events = ReplyReader(reply, sent).read_events()
            return (await anext(events))[0][0]

    with serve_provider(Provider(WORDS, [ScriptedAnswer(LONG)]), [Fault("stall", "middle")]) as url:
        assert anyio.run(talk, url).data


@some
def test_keys_and_headers_go_with_it(name):
    """The client's key goes out where its API has it, and so do the headers of the request."""
    provider = Provider(WORDS)
    api = CLIENTS[name][0]
    with serve_provider(provider) as url:
        assert told(name, url, request(api, **{"x-kelp": "holds"})).error is None
    headers = provider.incoming_requests[0].headers
    assert headers["x-kelp"] == "holds"
    assert {"authorization", "x-api-key", "x-goog-api-key"} & set(headers)


@some
def test_an_overflow_is_a_reply(name):
    """What the provider refuses comes back as it said it: the classifier reads the same as over plain HTTP."""
    sent = request(CLIENTS[name][0], "kelp " * 5_000, stream=True)
    with serve_provider(Provider(WORDS)) as url:
        error, plain = told(name, url, sent).error, anyio.run(by_http, url, sent).error
    verdict = classify_error(error)
    assert (verdict.is_overflow, error.status) == (True, 400)
    assert verdict == classify_error(plain)


@some
def test_nothing_is_tried_twice(name):
    """The client's own retries are off: one refusal, one request, and the wait that the provider asks for."""
    provider = Provider(WORDS)
    sent = request(CLIENTS[name][0])
    with serve_provider(provider, [Fault("429", at=0, seconds=7)], on_request=(seen := []).append) as url:
        verdict = classify_error(told(name, url, sent).error)
        assert len(seen) == 1
        assert verdict == classify_error(anyio.run(by_http, url, sent).error)
    assert verdict.retry_after == 7


@some
def test_where_nobody_answers_the_error_is_ours(name):
    """A refused connection is an UpstreamError of kind network, whatever the SDK calls it."""
    with pytest.raises(UpstreamError, match="no answer came") as caught:
        told(name, NOBODY, request(CLIENTS[name][0]))
    assert caught.value.kind == "network"


@some
def test_a_stream_that_breaks_off_is_ours_too(name):
    """A connection that ends in the middle of an answer is an UpstreamError of kind network."""
    sent = request(CLIENTS[name][0], stream=True)
    with (
        serve_provider(Provider(WORDS, [ScriptedAnswer(LONG)]), [Fault("reset", "middle")]) as url,
        pytest.raises(UpstreamError, match="no answer came") as caught,
    ):
        told(name, url, sent)
    assert caught.value.kind == "network"


@some
def test_who_gives_up_does_not_wait(name):
    """Cancelled while the provider is silent, for ever, a request is over, before its head and inside its body."""
    sent = request(CLIENTS[name][0], stream=True)

    async def talk(url):
        async with using(name, url) as upstream:
            with anyio.move_on_after(0.1):
                await ask_upstream(upstream, sent)

    for stage in ("head", "middle"):
        with serve_provider(Provider(WORDS, [ScriptedAnswer(LONG)]), [Fault("stall", stage)]) as url:
            anyio.run(talk, url)


def test_a_client_writes_summaries_and_answers_one_run():
    """Wherever an upstream is wanted an SDK's client will do; for what is none the error says what is."""

    async def talk(url):
        client = CLIENTS["AsyncAnthropic"][1](url)
        goal = get_target("anthropic", STRICTEST_MODELS["anthropic"], window=20_000)
        opened = Engine.open(
            MemoryStore(), upstream=ScriptedUpstream([]), target=goal, writers=[SummaryWriter(client, goal)]
        )
        async with client, opened as engine:
            session = await engine.session("kelp")
            await session.append(*[f"Note {number}: {LONG * 9}" for number in range(12)])
            told = await session.compact()
            async with session.run("hello", upstream=client) as one:
                async for _ in one:
                    pass
            with pytest.raises(ConfigError, match="not a supported client"):
                session.run("hello", upstream=object())
            return told.why, one.answer.message.text

    summary = "\n".join(f"## {heading}\n- {LONG}" for heading in SUMMARY_HEADINGS)
    with serve_provider(
        Provider(ProviderSettings(window=200_000), [ScriptedAnswer(summary), ScriptedAnswer("ok")])
    ) as url:
        why, text = anyio.run(talk, url)
    assert "AttributeError" not in why
    assert text.startswith("ok")


@some
def test_a_session_runs_on_a_client(name):
    """An engine takes the client itself, and its session is answered by it, by name of the API where there are two."""
    api = CLIENTS[name][0]

    async def talk(url):
        client, fields = CLIENTS[name][1](url), {"max_tokens": 900} if api == "anthropic" else {}
        async with Engine.open(
            MemoryStore(), upstream=client, api=api, model=STRICTEST_MODELS[api], fields=fields
        ) as engine:
            session = await engine.session("kelp")
            return (await session.ask("hello")).message.text

    with serve_provider(Provider(msgspec.structs.replace(WORDS, window=200_000))) as url:
        assert anyio.run(talk, url) == "ok 1"


def test_an_open_client_speaks_both_apis():
    """OpenAI's client serves Chat and Responses side by side, and one of them alone where it is told so."""

    async def talk(url):
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="any") as client:
            both, chat = wrap_upstream(client), wrap_upstream(client, "openai-chat")
            answers = [await ask_upstream(both, request(api)) for api in ("openai-chat", "openai-responses")]
            with pytest.raises(FormatError, match="it speaks openai-chat"):
                await ask_upstream(chat, request("openai-responses"))
            return [one.error for one in answers]

    with serve_provider(Provider(WORDS)) as url:
        assert anyio.run(talk, url) == [None, None]


def test_the_compaction_endpoint_and_counts():
    """The other addresses of an API are reached too; one that it has not is refused before anything is sent."""

    async def talk(url):
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="any") as client:
            upstream, found = wrap_upstream(client), {}
            for endpoint in ("compact", "count"):
                sent = msgspec.structs.replace(request("openai-responses"), endpoint=endpoint)
                async with upstream.send(sent) as reply:
                    found[endpoint] = msgspec.json.decode(await reply.read_body())
            with pytest.raises(FormatError, match="no address for 'compact'"):
                await ask_upstream(upstream, msgspec.structs.replace(request("openai-chat"), endpoint="compact"))
            return found

    with serve_provider(Provider(WORDS)) as url:
        found = anyio.run(talk, url)
    assert found["compact"]["output"][-1]["type"] == "compaction"
    assert found["count"]["input_tokens"] > 0


class Mine(openai.OpenAI):
    """A client of somebody's own."""


def test_a_subclass_is_what_it_extends():
    """Who extends an SDK's client may use it as one."""
    with Mine(base_url=NOBODY, api_key="any") as client:
        assert wrap_upstream(client).apis == ("openai-chat", "openai-responses")


@pytest.mark.parametrize("thing", [None, "https://example.com", object(), openai.AsyncOpenAI, httpx2.Client])
def test_anything_else_is_refused_by_name(thing):
    """What is no client of an SDK is a ConfigError that lists what is taken."""
    with pytest.raises(ConfigError, match=r"anthropic\.AsyncAnthropic, .*google\.genai\.Client"):
        wrap_upstream(thing)


def test_an_upstream_is_one_already():
    """What sends requests of ours is returned as it is; a client of plain HTTP is none."""
    mine = ProviderUpstream(Provider(WORDS))
    assert wrap_upstream(mine) is mine
    with httpx2.Client() as client, pytest.raises(ConfigError, match="is not a supported client"):
        wrap_upstream(client)


def test_an_api_that_a_client_does_not_speak_is_refused():
    """Anthropic's client speaks one API; another is a ConfigError that says which."""
    with (
        anthropic.Anthropic(api_key="any", base_url=NOBODY) as client,
        pytest.raises(ConfigError, match="it speaks anthropic"),
    ):
        wrap_upstream(client, "gemini")


def test_a_client_without_a_key_says_so():
    """What the SDK refuses to send is an UpstreamError of kind config with the SDK's own words."""

    async def talk():
        async with anthropic.AsyncAnthropic(base_url=NOBODY, api_key="any") as client:
            client.api_key = None
            await ask_upstream(wrap_upstream(client), request("anthropic"))

    with pytest.raises(UpstreamError, match="did not send") as caught:
        anyio.run(talk)
    assert caught.value.kind == "config"


def test_a_client_that_was_closed_says_so():
    """It is no lost connection that a retry finds again."""

    async def talk():
        client = anthropic.AsyncAnthropic(base_url=NOBODY, api_key="any")
        await client.close()
        await ask_upstream(wrap_upstream(client), request("anthropic"))

    with pytest.raises(UpstreamError, match="closed") as caught:
        anyio.run(talk)
    assert caught.value.kind == "config"


def test_an_upstream_of_another_api_than_the_engine_is_refused():
    """Http says which API its server speaks; an engine of another is a ConfigError, as with an SDK's client."""
    with pytest.raises(ConfigError, match="it speaks anthropic"):
        wrap_upstream(HttpUpstream(NOBODY, "anthropic"), "openai-chat")
    assert wrap_upstream(mine := HttpUpstream(NOBODY, "anthropic"), "anthropic") is mine


def test_no_sdk_is_imported():
    """The module needs no SDK: importing it loads none."""
    code = "import sys, holdfast.engine.upstream.sdk; print({'anthropic', 'openai', 'google.genai'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
