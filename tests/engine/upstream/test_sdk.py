"""Official SDK clients as upstreams: Holdfast's bytes over their transport, with Holdfast's errors."""

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
UNUSED_URL = "http://127.0.0.1:9"


def build_google_client(url):
    return genai.Client(api_key="any", http_options={"base_url": url})


CLIENTS = {
    "AsyncAnthropic": ("anthropic", lambda url: anthropic.AsyncAnthropic(base_url=url, api_key="any")),
    "Anthropic": ("anthropic", lambda url: anthropic.Anthropic(base_url=url, api_key="any")),
    "AsyncOpenAI, chat": ("openai-chat", lambda url: openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="any")),
    "OpenAI, chat": ("openai-chat", lambda url: openai.OpenAI(base_url=f"{url}/v1", api_key="any")),
    "AsyncOpenAI": ("openai-responses", lambda url: openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="any")),
    "OpenAI": ("openai-responses", lambda url: openai.OpenAI(base_url=f"{url}/v1", api_key="any")),
    "genai": ("gemini", build_google_client),
    "genai.aio": ("gemini", lambda url: build_google_client(url).aio),
}
each_client = pytest.mark.parametrize("name", CLIENTS)
one_client_of_each_kind = pytest.mark.parametrize(
    "name", ["AsyncAnthropic", "Anthropic", "OpenAI, chat", "AsyncOpenAI", "genai"]
)
"""One client of each kind; the others differ only in their URLs."""


def build_request(api, text="hello", *, stream=False, **headers):
    """Return a request with white space in its JSON that no encoder would write."""
    encoded = msgspec.json.encode(text).decode()
    message = f'{{"role" : "user",  "content": {encoded}}}'
    body = {
        "anthropic": f'{{"model": "{STRICTEST_MODELS[api]}", "max_tokens": 900 , "messages": [{message}]',
        "openai-chat": f'{{"model": "{STRICTEST_MODELS[api]}" , "messages": [{message}]',
        "openai-responses": f'{{"model": "{STRICTEST_MODELS[api]}" , "input": [{message}]',
        "gemini": f'{{"contents" : [{{"role": "user", "parts": [{{"text": {encoded}}}]}}]',
    }[api]
    streamed = ', "stream": true}' if stream and api != "gemini" else "}"
    return UpstreamRequest(api, (body + streamed).encode(), STRICTEST_MODELS[api], stream=stream, headers=headers)


@asynccontextmanager
async def open_client(name, url):
    """Build the client of this name, and close it after the block, or its connection is reported in another test."""
    client = CLIENTS[name][1](url)
    yield client
    if name == "genai":
        await client.aio.aclose()
        client.close()
    elif name == "genai.aio":
        await client.aclose()
    elif name.startswith("Async"):
        await client.close()
    else:
        client.close()


def ask_by_client(name, url, sent):
    """Send one request by an SDK client and return its answer."""

    async def run_scenario():
        async with open_client(name, url) as client:
            return await ask_upstream(wrap_upstream(client), sent)

    return anyio.run(run_scenario)


@pytest.mark.parametrize("stream", [False, True])
@each_client
def test_wrap_upstream_sends_the_same_bytes_as_plain_http(name, stream):
    """With an SDK client the provider gets the same body bytes, and the answer equals that over plain HTTP."""
    api = CLIENTS[name][0]
    sent = build_request(api, stream=stream)
    answers = []
    for ask in (lambda url: ask_by_client(name, url, sent), lambda url: anyio.run(ask_by_http, url, sent)):
        provider = Provider(WORDS, [ScriptedAnswer(LONG, (("ls", {"at": "."}),))])
        with serve_provider(provider) as url:
            answers.append(ask(url))
        assert provider.incoming_requests[0].body == sent.body
        assert provider.incoming_requests[0].stream == stream
    assert answers[0].message == answers[1].message
    assert answers[0].history_elements == answers[1].history_elements
    assert (answers[0].usage, answers[0].stop_reason) == (answers[1].usage, answers[1].stop_reason)


async def ask_by_http(url, sent):
    async with HttpUpstream(url, sent.api) as upstream:
        return await ask_upstream(upstream, sent)


AZURE = {"azure_endpoint": "https://kelp.openai.azure.com", "api_key": "any", "api_version": "2024-10-21"}


@pytest.mark.parametrize("kind", [openai.AsyncAzureOpenAI, openai.AzureOpenAI])
@pytest.mark.parametrize("options", [{}, {"azure_deployment": "kelp"}])
@pytest.mark.parametrize("api", ["openai-chat", "openai-responses"])
def test_wrap_upstream_sends_to_the_url_of_the_azure_client(kind, options, api):
    """Without a given deployment, Chat Completions uses the deployment named like the model."""
    urls = []

    def record_url(request):
        urls.append(request.url)
        return httpx2.Response(404, json={"error": {"code": "404", "message": "Resource not found"}})

    async def run_scenario():
        http_client = httpx2.AsyncClient if kind is openai.AsyncAzureOpenAI else httpx2.Client
        client = kind(
            **AZURE, **options, http_client=http_client(transport=httpx2.MockTransport(record_url)), max_retries=0
        )
        resource = client.chat.completions if api == "openai-chat" else client.responses
        content = {"messages": [{"role": "user", "content": "kelp"}]} if api == "openai-chat" else {"input": "kelp"}
        with suppress(openai.NotFoundError):
            await resource.create(model="gpt 5/x", **content)
        async with wrap_upstream(client).send(
            UpstreamRequest(api, msgspec.json.encode({"model": "gpt 5/x"} | content), "gpt 5/x")
        ):
            pass

    anyio.run(run_scenario)
    assert urls[0] == urls[1]


@one_client_of_each_kind
def test_wrap_upstream_streams_event_by_event(name):
    """The first event arrives while the provider still holds back the rest."""
    sent = build_request(CLIENTS[name][0], stream=True)

    async def run_scenario(url):
        async with open_client(name, url) as client, wrap_upstream(client).send(sent) as reply:
            events = ReplyReader(reply, sent).read_events()
            return (await anext(events))[0][0]

    with serve_provider(Provider(WORDS, [ScriptedAnswer(LONG)]), [Fault("stall", "middle")]) as url:
        assert anyio.run(run_scenario, url).data


@one_client_of_each_kind
def test_wrap_upstream_sends_the_key_and_the_request_headers(name):
    """The client's key is sent in the header of its API, beside the headers of the request."""
    provider = Provider(WORDS)
    api = CLIENTS[name][0]
    with serve_provider(provider) as url:
        assert ask_by_client(name, url, build_request(api, **{"x-kelp": "holds"})).error is None
    headers = provider.incoming_requests[0].headers
    assert headers["x-kelp"] == "holds"
    assert {"authorization", "x-api-key", "x-goog-api-key"} & set(headers)


@one_client_of_each_kind
def test_wrap_upstream_returns_an_overflow_as_a_reply(name):
    """The classifier reads the same from the SDK's refusal as from plain HTTP."""
    sent = build_request(CLIENTS[name][0], "kelp " * 5_000, stream=True)
    with serve_provider(Provider(WORDS)) as url:
        error, plain = ask_by_client(name, url, sent).error, anyio.run(ask_by_http, url, sent).error
    verdict = classify_error(error)
    assert (verdict.is_overflow, error.status) == (True, 400)
    assert verdict == classify_error(plain)


@one_client_of_each_kind
def test_wrap_upstream_disables_the_retries_of_the_client(name):
    """One refusal means one request, and the provider's retry delay is kept."""
    provider = Provider(WORDS)
    sent = build_request(CLIENTS[name][0])
    with serve_provider(provider, [Fault("429", at=0, seconds=7)], on_request=(seen := []).append) as url:
        verdict = classify_error(ask_by_client(name, url, sent).error)
        assert len(seen) == 1
        assert verdict == classify_error(anyio.run(ask_by_http, url, sent).error)
    assert verdict.retry_after == 7


@one_client_of_each_kind
def test_wrap_upstream_raises_a_network_error_when_nobody_answers(name):
    """A refused connection is an UpstreamError of kind network, whatever the SDK calls it."""
    with pytest.raises(UpstreamError, match="no answer came") as caught:
        ask_by_client(name, UNUSED_URL, build_request(CLIENTS[name][0]))
    assert caught.value.kind == "network"


@one_client_of_each_kind
def test_wrap_upstream_raises_a_network_error_when_a_stream_breaks_off(name):
    """A connection that ends inside an answer is an UpstreamError of kind network."""
    sent = build_request(CLIENTS[name][0], stream=True)
    with (
        serve_provider(Provider(WORDS, [ScriptedAnswer(LONG)]), [Fault("reset", "middle")]) as url,
        pytest.raises(UpstreamError, match="no answer came") as caught,
    ):
        ask_by_client(name, url, sent)
    assert caught.value.kind == "network"


@one_client_of_each_kind
def test_wrap_upstream_ends_a_cancelled_request_at_once(name):
    """A cancelled request does not wait for a silent provider, neither before the head nor inside the body."""
    sent = build_request(CLIENTS[name][0], stream=True)

    async def run_scenario(url):
        async with open_client(name, url) as client:
            with anyio.move_on_after(0.1):
                await ask_upstream(wrap_upstream(client), sent)

    for stage in ("head", "middle"):
        with serve_provider(Provider(WORDS, [ScriptedAnswer(LONG)]), [Fault("stall", stage)]) as url:
            anyio.run(run_scenario, url)


def test_sdk_client_can_write_summaries_and_serve_a_single_run():
    """An SDK client works wherever an upstream is expected; for any other object the error lists what is accepted."""

    async def run_scenario(url):
        client = CLIENTS["AsyncAnthropic"][1](url)
        target = get_target("anthropic", STRICTEST_MODELS["anthropic"], window=20_000)
        opening = Engine.open(
            MemoryStore(), upstream=ScriptedUpstream([]), target=target, writers=[SummaryWriter(client, target)]
        )
        async with client, opening as engine:
            session = await engine.session("kelp")
            await session.append(*[f"Note {number}: {LONG * 9}" for number in range(12)])
            result = await session.compact()
            async with session.run("hello", upstream=client) as run:
                async for _ in run:
                    pass
            with pytest.raises(ConfigError, match="not a supported client"):
                session.run("hello", upstream=object())
            return result.why, run.answer.message.text

    summary = "\n".join(f"## {heading}\n- {LONG}" for heading in SUMMARY_HEADINGS)
    with serve_provider(
        Provider(ProviderSettings(window=200_000), [ScriptedAnswer(summary), ScriptedAnswer("ok")])
    ) as url:
        why, text = anyio.run(run_scenario, url)
    assert "AttributeError" not in why
    assert text.startswith("ok")


@one_client_of_each_kind
def test_engine_accepts_an_sdk_client_as_upstream(name):
    """The session is answered by the client; a client of two APIs is told apart by the ``api`` argument."""
    api = CLIENTS[name][0]

    async def run_scenario(url):
        fields = {"max_tokens": 900} if api == "anthropic" else {}
        async with open_client(name, url) as client:
            opening = Engine.open(MemoryStore(), upstream=client, api=api, model=STRICTEST_MODELS[api], fields=fields)
            async with opening as engine:
                session = await engine.session("kelp")
                return (await session.ask("hello")).message.text

    with serve_provider(Provider(msgspec.structs.replace(WORDS, window=200_000))) as url:
        assert anyio.run(run_scenario, url) == "ok 1"


def test_wrap_upstream_serves_both_apis_of_the_openai_client():
    """Chat Completions and Responses work side by side, or a single one when it is named."""

    async def run_scenario(url):
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="any") as client:
            both, chat = wrap_upstream(client), wrap_upstream(client, "openai-chat")
            answers = [await ask_upstream(both, build_request(api)) for api in ("openai-chat", "openai-responses")]
            with pytest.raises(FormatError, match="it speaks openai-chat"):
                await ask_upstream(chat, build_request("openai-responses"))
            return [answer.error for answer in answers]

    with serve_provider(Provider(WORDS)) as url:
        assert anyio.run(run_scenario, url) == [None, None]


def test_wrap_upstream_reaches_the_compact_and_count_endpoints():
    """An endpoint that an API lacks is refused before anything is sent."""

    async def run_scenario(url):
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="any") as client:
            upstream, replies = wrap_upstream(client), {}
            for endpoint in ("compact", "count"):
                sent = msgspec.structs.replace(build_request("openai-responses"), endpoint=endpoint)
                async with upstream.send(sent) as reply:
                    replies[endpoint] = msgspec.json.decode(await reply.read_body())
            with pytest.raises(FormatError, match="no address for 'compact'"):
                await ask_upstream(upstream, msgspec.structs.replace(build_request("openai-chat"), endpoint="compact"))
            return replies

    with serve_provider(Provider(WORDS)) as url:
        replies = anyio.run(run_scenario, url)
    assert replies["compact"]["output"][-1]["type"] == "compaction"
    assert replies["count"]["input_tokens"] > 0


class CustomClient(openai.OpenAI):
    """A user's subclass of an SDK client."""


def test_wrap_upstream_accepts_a_subclass_of_a_client():
    """A subclass works like the client that it extends."""
    with CustomClient(base_url=UNUSED_URL, api_key="any") as client:
        assert wrap_upstream(client).apis == ("openai-chat", "openai-responses")


@pytest.mark.parametrize("thing", [None, "https://example.com", object(), openai.AsyncOpenAI, httpx2.Client])
def test_wrap_upstream_rejects_other_objects_and_lists_the_clients(thing):
    """An object that is no SDK client raises a ConfigError that lists the accepted clients."""
    with pytest.raises(ConfigError, match=r"anthropic\.AsyncAnthropic, .*google\.genai\.Client"):
        wrap_upstream(thing)


def test_wrap_upstream_returns_an_upstream_unchanged():
    """An object that sends Holdfast's requests is returned as it is; a plain HTTP client is refused."""
    upstream = ProviderUpstream(Provider(WORDS))
    assert wrap_upstream(upstream) is upstream
    with httpx2.Client() as client, pytest.raises(ConfigError, match="is not a supported client"):
        wrap_upstream(client)


def test_wrap_upstream_rejects_an_api_the_client_does_not_speak():
    """Anthropic's client speaks one API; any other raises a ConfigError that names it."""
    with (
        anthropic.Anthropic(api_key="any", base_url=UNUSED_URL) as client,
        pytest.raises(ConfigError, match="it speaks anthropic"),
    ):
        wrap_upstream(client, "gemini")


def test_wrap_upstream_raises_a_config_error_for_a_client_without_a_key():
    """The error is an UpstreamError of kind config with the SDK's own words."""

    async def run_scenario():
        async with anthropic.AsyncAnthropic(base_url=UNUSED_URL, api_key="any") as client:
            client.api_key = None
            await ask_upstream(wrap_upstream(client), build_request("anthropic"))

    with pytest.raises(UpstreamError, match="did not send") as caught:
        anyio.run(run_scenario)
    assert caught.value.kind == "config"


def test_wrap_upstream_raises_a_config_error_for_a_closed_client():
    """A closed client is no lost connection, so it is not retried."""

    async def run_scenario():
        client = anthropic.AsyncAnthropic(base_url=UNUSED_URL, api_key="any")
        await client.close()
        await ask_upstream(wrap_upstream(client), build_request("anthropic"))

    with pytest.raises(UpstreamError, match="closed") as caught:
        anyio.run(run_scenario)
    assert caught.value.kind == "config"


def test_wrap_upstream_rejects_an_http_upstream_of_another_api():
    """HttpUpstream names the API of its server; another API raises a ConfigError, as with an SDK client."""
    with pytest.raises(ConfigError, match="it speaks anthropic"):
        wrap_upstream(HttpUpstream(UNUSED_URL, "anthropic"), "openai-chat")
    assert wrap_upstream(upstream := HttpUpstream(UNUSED_URL, "anthropic"), "anthropic") is upstream


def test_sdk_module_imports_no_sdk():
    """Importing the module loads none of the SDKs."""
    code = "import sys, holdfast.engine.upstream.sdk; print({'anthropic', 'openai', 'google.genai'} & set(sys.modules))"
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert completed.stdout == "set()\n"
