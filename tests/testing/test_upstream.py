"""Upstreams without sockets: the strict provider as over HTTP, with faults, and scripted replies."""

from __future__ import annotations

import anyio
import msgspec
import pytest

from holdfast.engine.upstream.replies import ReplyReader, ask_upstream
from holdfast.engine.upstream.upstream import HttpUpstream, UpstreamRequest
from holdfast.errors import ConfigError, UpstreamError
from holdfast.testing.clock import get_loop_time, run_on_fake_clock
from holdfast.testing.provider import Fault, Provider, ProviderSettings, RefusalReply, ScriptedAnswer
from holdfast.testing.provider.client import STRICTEST_MODELS
from holdfast.testing.provider.faults.faults import FAULT_KINDS
from holdfast.testing.provider.server.local_server import serve_provider
from holdfast.testing.upstream import CONNECT_FAULTS, ProviderUpstream, ScriptedReply, ScriptedUpstream

MESSAGES_FIELDS = {
    "anthropic": "messages",
    "openai-chat": "messages",
    "openai-responses": "input",
    "gemini": "contents",
}


def build_request(api, text="hello", *, stream=True, endpoint="generate"):
    """Return a request with one user text."""
    message = {"role": "user", "parts": [{"text": text}]} if api == "gemini" else {"role": "user", "content": text}
    body = {MESSAGES_FIELDS[api]: [message]}
    if api != "gemini":
        body["model"] = STRICTEST_MODELS[api]
        if endpoint == "generate":
            body["stream"] = stream
    if api == "anthropic" and endpoint == "generate":
        body["max_tokens"] = 900
    return UpstreamRequest(api, msgspec.json.encode(body), STRICTEST_MODELS[api], endpoint, stream)


async def read_reply(upstream, upstream_request):
    """Return status, headers and bytes of a reply, or the kind of its error and the bytes before."""
    chunks = []
    try:
        async with upstream.send(upstream_request) as reply:
            async for chunk in reply.chunks:
                assert chunk
                chunks.append(chunk)
            headers = {name: value for name, value in reply.headers.items() if name not in ("date", "server")}
            return reply.status, headers, b"".join(chunks)
    except UpstreamError as error:
        return error.kind, {}, b"".join(chunks)


@pytest.fixture(scope="module")
def reply_pairs():
    """Return the faults and, for each API, pairs of replies with and without HTTP, one pair for each fault."""
    kinds = [(kind, stage) for kind, fault_kind in FAULT_KINDS.items() for stage in fault_kind.stages]
    faults = [Fault(kind, stage, at, get_fault_seconds(kind)) for at, (kind, stage) in enumerate(kinds, 1)]
    pairs_by_api = {}

    async def read_both(url, api, upstream):
        requests = [build_request(api, f"hello {at}", stream=bool(at % 3)) for at in range(len(faults) + 1)]
        async with HttpUpstream(url, api, {"x-api-key": "k", "authorization": "Bearer k"}) as http:
            http_replies = [await read_reply(http, sent) for sent in requests]
        return list(zip(http_replies, [await read_reply(upstream, sent) for sent in requests], strict=True))

    for api in STRICTEST_MODELS:
        with serve_provider(Provider(), faults) as url:
            pairs_by_api[api] = anyio.run(read_both, url, api, ProviderUpstream(Provider(), faults))
    return faults, pairs_by_api


def get_fault_seconds(kind):
    """Return a short time for faults that wait."""
    return {"stall": 0.01, "drip": 0.0}.get(kind)


@pytest.mark.parametrize("api", STRICTEST_MODELS)
def test_provider_upstream_replies_as_the_provider_over_http(reply_pairs, api):
    """For every fault at every stage, status, headers, the bytes before the break and the error are the same."""
    faults, pairs_by_api = reply_pairs
    names = {at: (fault.kind, fault.stage) for at, fault in enumerate(faults)}
    for at, (http_reply, reply) in enumerate(pairs_by_api[api]):
        transport_headers = ("transfer-encoding", "content-length", "connection")
        http_headers = {name: value for name, value in http_reply[1].items() if name not in transport_headers}
        headers = {name: value for name, value in reply[1].items() if name not in transport_headers}
        assert http_reply[0] == reply[0], names.get(at)
        assert http_headers == headers, names.get(at)
        assert http_reply[2] == reply[2] or (http_reply[0] == "network" and reply[2].startswith(http_reply[2])), (
            names.get(at)
        )


@pytest.mark.parametrize("api", STRICTEST_MODELS)
@pytest.mark.parametrize("stream", [True, False])
def test_provider_upstream_answers_and_counts(api, stream):
    """Answers are read streamed or whole, and a count goes to the count endpoint."""
    provider = Provider(script=[ScriptedAnswer("kelp", (("read", {"path": "a"}),))])
    upstream = ProviderUpstream(provider)

    async def run_scenario():
        answer = await ask_upstream(upstream, build_request(api, stream=stream))
        async with upstream.send(build_request(api, endpoint="count")) as reply:
            return answer, reply.status if api == "openai-chat" else await reply.read_body()

    if api == "openai-chat":
        answer = run_on_fake_clock(ask_upstream, upstream, build_request(api, stream=stream))
    else:
        answer, counted = run_on_fake_clock(run_scenario)
        assert b"okens" in counted
    assert answer.error is None
    assert answer.message.text == "kelp"
    assert [call.name for call in answer.message.calls] == ["read"]
    assert provider.requests[0].incoming.stream == stream


def test_provider_upstream_numbers_answer_requests_for_faults():
    """The second answer request fails; counts in between are not numbered."""
    upstream = ProviderUpstream(Provider(), [Fault("429", at=2)])

    async def run_scenario():
        statuses = []
        for endpoint in ("generate", "count", "generate", "generate"):
            async with upstream.send(build_request("anthropic", endpoint=endpoint)) as reply:
                statuses.append((reply.status, reply.headers.get("retry-after")))
        return statuses

    assert run_on_fake_clock(run_scenario) == [(200, None), (200, None), (429, "1"), (200, None)]
    assert len(upstream.sent) == 4


def test_provider_upstream_takes_a_function_that_chooses_faults():
    """The function sees the request, so it can fail a summary wherever it comes."""
    upstream = ProviderUpstream(Provider(), lambda sent, _: Fault("503") if b"summary" in sent.body else None)

    async def run_scenario():
        return [
            (await read_reply(upstream, build_request("gemini", words)))[0] for words in ("hello", "a summary", "hello")
        ]

    assert run_on_fake_clock(run_scenario) == [200, 503, 200]


def test_provider_upstream_stall_ends_with_the_patience_of_the_client():
    """A stall longer than the client's patience is a network error; a shorter one only takes time."""

    async def run_scenario(fault, patience):
        upstream = ProviderUpstream(Provider(), [fault], patience=patience)
        return (await read_reply(upstream, build_request("anthropic")))[0], get_loop_time()

    assert run_on_fake_clock(run_scenario, Fault("stall", "middle"), 600) == ("network", 600)
    assert run_on_fake_clock(run_scenario, Fault("stall", "body", seconds=100), 600) == (200, 100)
    assert run_on_fake_clock(run_scenario, Fault("stall", "connect"), 600) == ("network", 15)
    assert run_on_fake_clock(run_scenario, Fault("stall", "connect", seconds=9), 600) == (200, 9)


def test_provider_upstream_latency_delays_each_answer():
    """Each answer begins that many seconds after its request, and concurrent ones overlap."""
    upstream = ProviderUpstream(Provider(), latency=4)

    async def run_scenario():
        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(read_reply, upstream, build_request("openai-chat"))
        return get_loop_time()

    assert run_on_fake_clock(run_scenario) == 4


@pytest.mark.parametrize("kind", CONNECT_FAULTS)
def test_provider_upstream_connect_faults_are_network_errors(kind):
    """The error names the cause, and the provider gets no request."""
    provider = Provider()

    async def run_scenario():
        with pytest.raises(UpstreamError) as raised:
            await ask_upstream(ProviderUpstream(provider, [Fault(kind, "connect")]), build_request("anthropic"))
        return raised.value

    error = run_on_fake_clock(run_scenario)
    assert error.kind == "network"
    assert CONNECT_FAULTS[kind].split(":", maxsplit=1)[0] in str(error)
    assert not provider.requests


@pytest.mark.parametrize("fault", [Fault("429", "connect"), Fault("refused", "middle"), Fault("smoke"), Fault("", "")])
def test_provider_upstream_rejects_impossible_faults(fault):
    """An unknown name or an impossible stage is an error before anything is sent."""
    with pytest.raises(ConfigError):
        ProviderUpstream(Provider(), [fault])


def test_provider_upstream_reply_can_be_left_early():
    """A reply that is left ends there, and the next request is answered."""
    upstream = ProviderUpstream(Provider(), [Fault("stall", "middle")])

    async def run_scenario():
        async with upstream.send(build_request("anthropic")) as reply:
            async for _ in reply.chunks:
                break
        return (await read_reply(upstream, build_request("anthropic")))[0], get_loop_time()

    assert run_on_fake_clock(run_scenario) == (200, 0)


def test_provider_upstream_enforces_the_window_of_the_provider():
    """An overflow has the provider's words, as over HTTP."""
    upstream = ProviderUpstream(Provider(ProviderSettings(window=20)))
    answer = run_on_fake_clock(ask_upstream, upstream, build_request("anthropic", "kelp " * 100))
    assert "prompt is too long" in answer.error.message


# -- scripted replies --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("api", STRICTEST_MODELS)
@pytest.mark.parametrize("stream", [True, False])
def test_scripted_upstream_gives_its_replies_in_order(api, stream):
    """Texts, calls and refusals have the API's form, and the requests are kept."""
    script = [
        "kelp",
        ScriptedAnswer("", (("read", {"path": "a"}),), "thinking"),
        RefusalReply(429, "rate_limit_error", "slowly", 2),
    ]
    upstream = ScriptedUpstream(script)

    async def run_scenario():
        return [await ask_upstream(upstream, build_request(api, f"hello {at}", stream=stream)) for at in range(3)]

    text_answer, call_answer, refusal_answer = run_on_fake_clock(run_scenario)
    assert text_answer.message.text == "kelp"
    assert (text_answer.usage is not None) == (
        api != "openai-chat" or not stream
    )  # Chat tells it in a stream if asked to
    assert [call.name for call in call_answer.message.calls] == ["read"]
    assert refusal_answer.error.status == 429
    assert refusal_answer.error.message == "slowly"
    assert [f"hello {at}".encode() in sent.body for at, sent in enumerate(upstream.sent)] == [True] * 3


def test_scripted_upstream_gives_bodies_replies_and_errors_as_they_are():
    """A body, a reply with its own status, headers and chunks, and an error that is raised all work."""
    error = UpstreamError("nobody is there", "network")
    upstream = ScriptedUpstream(
        [{"error": {"message": "no"}}, ScriptedReply((b"ab", b"c"), 502, {"server": "x"}), error]
    )

    async def run_scenario():
        first = await read_reply(upstream, build_request("openai-chat"))
        async with upstream.send(build_request("openai-chat")) as reply:
            chunks = [chunk async for chunk in reply.chunks]
        with pytest.raises(UpstreamError, match="nobody is there"):
            await ask_upstream(upstream, build_request("openai-chat"))
        return first[2], reply.status, dict(reply.headers), chunks

    assert run_on_fake_clock(run_scenario) == (b'{"error":{"message":"no"}}', 502, {"server": "x"}, [b"ab", b"c"])


def test_scripted_upstream_fails_the_test_after_its_last_reply():
    """The AssertionError gives the number of requests and replies."""
    with pytest.raises(AssertionError, match="request 2 has no reply: 1 were given"):
        run_on_fake_clock(ask_twice, ScriptedUpstream(["once"]))


async def ask_twice(upstream):
    for _ in range(2):
        await ask_upstream(upstream, build_request("anthropic"))


def test_reply_reader_yields_events_as_they_arrive():
    """A stream is read event by event, not at its end."""
    upstream = ProviderUpstream(
        Provider(script=[ScriptedAnswer("one two three four")]), [Fault("stall", "middle", seconds=50)]
    )
    sent = build_request("anthropic")

    async def run_scenario():
        async with upstream.send(sent) as reply:
            incoming = ReplyReader(reply, sent)
            times = [get_loop_time() async for _ in incoming.read_events()]
        return times, incoming.build_answer().message.text

    times, text = run_on_fake_clock(run_scenario)
    assert (times[0], times[-1]) == (0, 50)
    assert text == "one two three four"
