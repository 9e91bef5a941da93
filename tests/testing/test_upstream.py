"""Upstreams without sockets: what the strict provider says over HTTP, what faults make of it, and given replies."""

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

PLACES = {"anthropic": "messages", "openai-chat": "messages", "openai-responses": "input", "gemini": "contents"}


def request(api, words="hello", *, stream=True, endpoint="generate"):
    """Return a request of one sentence."""
    message = {"role": "user", "parts": [{"text": words}]} if api == "gemini" else {"role": "user", "content": words}
    body = {PLACES[api]: [message]}
    if api != "gemini":
        body["model"] = STRICTEST_MODELS[api]
        if endpoint == "generate":
            body["stream"] = stream
    if api == "anthropic" and endpoint == "generate":
        body["max_tokens"] = 900
    return UpstreamRequest(api, msgspec.json.encode(body), STRICTEST_MODELS[api], endpoint, stream)


async def heard(upstream, sent):
    """Return status, headers and all bytes of a reply, or the error that came in their place and the bytes before."""
    got = []
    try:
        async with upstream.send(sent) as reply:
            async for chunk in reply.chunks:
                assert chunk
                got.append(chunk)
            headers = {name: value for name, value in reply.headers.items() if name not in ("date", "server")}
            return reply.status, headers, b"".join(got)
    except UpstreamError as error:
        return error.kind, {}, b"".join(got)


@pytest.fixture(scope="module")
def pairs():
    """What comes over HTTP and what comes without it, for one API after the other: a request with each fault."""
    kinds = [(kind, stage) for kind, told in FAULT_KINDS.items() for stage in told.stages]
    faults = [Fault(kind, stage, at, seconds(kind)) for at, (kind, stage) in enumerate(kinds, 1)]
    found = {}

    async def both(url, api, upstream):
        asked = [request(api, f"hello {at}", stream=bool(at % 3)) for at in range(len(faults) + 1)]
        async with HttpUpstream(url, api, {"x-api-key": "k", "authorization": "Bearer k"}) as http:
            over = [await heard(http, sent) for sent in asked]
        return list(zip(over, [await heard(upstream, sent) for sent in asked], strict=True))

    for api in STRICTEST_MODELS:
        with serve_provider(Provider(), faults) as url:
            found[api] = anyio.run(both, url, api, ProviderUpstream(Provider(), faults))
    return faults, found


def seconds(kind):
    """Return a short time for faults that wait."""
    return {"stall": 0.01, "drip": 0.0}.get(kind)


@pytest.mark.parametrize("api", STRICTEST_MODELS)
def test_what_comes_is_what_would_come_over_http(pairs, api):
    """For every kind of fault at every stage: status, headers, the bytes before it breaks off, and how it fails."""
    faults, found = pairs
    told = {at: (fault.kind, fault.stage) for at, fault in enumerate(faults)}
    for at, (over, without) in enumerate(found[api]):
        about = ("transfer-encoding", "content-length", "connection")
        trimmed = {name: value for name, value in over[1].items() if name not in about}
        here = {name: value for name, value in without[1].items() if name not in about}
        assert over[0] == without[0], told.get(at)
        assert trimmed == here, told.get(at)
        assert over[2] == without[2] or (over[0] == "network" and without[2].startswith(over[2])), told.get(at)


@pytest.mark.parametrize("api", STRICTEST_MODELS)
@pytest.mark.parametrize("stream", [True, False])
def test_an_answer_is_read(api, stream):
    """The reply of an upstream without sockets is an answer, in events or whole; a count has the count's address."""
    provider = Provider(script=[ScriptedAnswer("kelp", (("read", {"path": "a"}),))])
    upstream = ProviderUpstream(provider)

    async def talk():
        told = await ask_upstream(upstream, request(api, stream=stream))
        async with upstream.send(request(api, endpoint="count")) as reply:
            return told, reply.status if api == "openai-chat" else await reply.read_body()

    if api == "openai-chat":
        told = run_on_fake_clock(ask_upstream, upstream, request(api, stream=stream))
    else:
        told, counted = run_on_fake_clock(talk)
        assert b"okens" in counted
    assert told.error is None
    assert told.message.text == "kelp"
    assert [call.name for call in told.message.calls] == ["read"]
    assert provider.requests[0].incoming.stream == stream


def test_faults_strike_by_number():
    """The second request is struck, and counts are not counted: the number is that of requests for an answer."""
    upstream = ProviderUpstream(Provider(), [Fault("429", at=2)])

    async def talk():
        statuses = []
        for endpoint in ("generate", "count", "generate", "generate"):
            async with upstream.send(request("anthropic", endpoint=endpoint)) as reply:
                statuses.append((reply.status, reply.headers.get("retry-after")))
        return statuses

    assert run_on_fake_clock(talk) == [(200, None), (200, None), (429, "1"), (200, None)]
    assert len(upstream.sent) == 4


def test_faults_strike_what_they_are_asked_to():
    """A function chooses by the request itself, so that a summary can be struck wherever it comes."""
    upstream = ProviderUpstream(Provider(), lambda sent, _: Fault("503") if b"summary" in sent.body else None)

    async def talk():
        return [(await heard(upstream, request("gemini", words)))[0] for words in ("hello", "a summary", "hello")]

    assert run_on_fake_clock(talk) == [200, 503, 200]


def test_a_stall_ends_with_the_clients_patience():
    """A provider that says nothing for longer than the client waits is a typed error after that time; a shorter stall
    is only time."""

    async def talk(fault, patience):
        upstream = ProviderUpstream(Provider(), [fault], patience=patience)
        return (await heard(upstream, request("anthropic")))[0], get_loop_time()

    assert run_on_fake_clock(talk, Fault("stall", "middle"), 600) == ("network", 600)
    assert run_on_fake_clock(talk, Fault("stall", "body", seconds=100), 600) == (200, 100)
    assert run_on_fake_clock(talk, Fault("stall", "connect"), 600) == ("network", 15)
    assert run_on_fake_clock(talk, Fault("stall", "connect", seconds=9), 600) == (200, 9)


def test_latency_is_the_time_before_an_answer():
    """Each answer begins so many seconds after its request, several at a time beside each other."""
    upstream = ProviderUpstream(Provider(), latency=4)

    async def talk():
        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(heard, upstream, request("openai-chat"))
        return get_loop_time()

    assert run_on_fake_clock(talk) == 4


@pytest.mark.parametrize("kind", CONNECT_FAULTS)
def test_connections_that_are_never_made(kind):
    """What fails while connecting is of kind network, names its cause, and the provider sees nothing of it."""
    provider = Provider()

    async def talk():
        with pytest.raises(UpstreamError) as raised:
            await ask_upstream(ProviderUpstream(provider, [Fault(kind, "connect")]), request("anthropic"))
        return raised.value

    error = run_on_fake_clock(talk)
    assert error.kind == "network"
    assert CONNECT_FAULTS[kind].split(":", maxsplit=1)[0] in str(error)
    assert not provider.requests


@pytest.mark.parametrize("fault", [Fault("429", "connect"), Fault("refused", "middle"), Fault("smoke"), Fault("", "")])
def test_faults_that_there_are_not(fault):
    """A wrong name, or a place where a fault cannot strike, is told before anything is sent."""
    with pytest.raises(ConfigError):
        ProviderUpstream(Provider(), [fault])


def test_whoever_leaves_early_gets_no_more():
    """A reply that is left in its middle ends there; the next request is answered."""
    upstream = ProviderUpstream(Provider(), [Fault("stall", "middle")])

    async def talk():
        async with upstream.send(request("anthropic")) as reply:
            async for _ in reply.chunks:
                break
        return (await heard(upstream, request("anthropic")))[0], get_loop_time()

    assert run_on_fake_clock(talk) == (200, 0)


def test_an_overflow_is_told_in_the_providers_words():
    """The provider's own window is enforced, as over HTTP."""
    upstream = ProviderUpstream(Provider(ProviderSettings(window=20)))
    told = run_on_fake_clock(ask_upstream, upstream, request("anthropic", "kelp " * 100))
    assert "prompt is too long" in told.error.message


# -- given replies -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("api", STRICTEST_MODELS)
@pytest.mark.parametrize("stream", [True, False])
def test_given_replies_come_in_their_order(api, stream):
    """Words, calls and refusals come as the API says them, in order, and what was sent is kept."""
    script = [
        "kelp",
        ScriptedAnswer("", (("read", {"path": "a"}),), "thinking"),
        RefusalReply(429, "rate_limit_error", "slowly", 2),
    ]
    upstream = ScriptedUpstream(script)

    async def talk():
        return [await ask_upstream(upstream, request(api, f"hello {at}", stream=stream)) for at in range(3)]

    words, call, refused = run_on_fake_clock(talk)
    assert words.message.text == "kelp"
    assert (words.usage is not None) == (api != "openai-chat" or not stream)  # Chat tells it in a stream if asked to
    assert [one.name for one in call.message.calls] == ["read"]
    assert refused.error.status == 429
    assert refused.error.message == "slowly"
    assert [f"hello {at}".encode() in sent.body for at, sent in enumerate(upstream.sent)] == [True] * 3


def test_whole_replies_are_given_as_they_are():
    """A body, a reply with status and headers in its own chunks, and an error that is raised."""
    late = UpstreamError("nobody is there", "network")
    upstream = ScriptedUpstream(
        [{"error": {"message": "no"}}, ScriptedReply((b"ab", b"c"), 502, {"server": "x"}), late]
    )

    async def talk():
        first = await heard(upstream, request("openai-chat"))
        async with upstream.send(request("openai-chat")) as reply:
            chunks = [chunk async for chunk in reply.chunks]
        with pytest.raises(UpstreamError, match="nobody is there"):
            await ask_upstream(upstream, request("openai-chat"))
        return first[2], reply.status, dict(reply.headers), chunks

    assert run_on_fake_clock(talk) == (b'{"error":{"message":"no"}}', 502, {"server": "x"}, [b"ab", b"c"])


def test_one_request_too_many_says_so():
    """A script that is at its end fails the test that uses it, with the numbers."""
    with pytest.raises(AssertionError, match="request 2 has no reply: 1 were given"):
        run_on_fake_clock(_twice, ScriptedUpstream(["once"]))


async def _twice(upstream):
    for _ in range(2):
        await ask_upstream(upstream, request("anthropic"))


def test_events_come_one_by_one():
    """A stream is read event by event while it comes, not at its end."""
    upstream = ProviderUpstream(
        Provider(script=[ScriptedAnswer("one two three four")]), [Fault("stall", "middle", seconds=50)]
    )
    sent = request("anthropic")

    async def talk():
        async with upstream.send(sent) as reply:
            incoming = ReplyReader(reply, sent)
            times = [get_loop_time() async for _ in incoming.read_events()]
        return times, incoming.build_answer().message.text

    times, text = run_on_fake_clock(talk)
    assert (times[0], times[-1]) == (0, 50)
    assert text == "one two three four"
