"""Where requests go, and what comes back when nobody is there."""

from __future__ import annotations

import anyio
import httpx2
import pytest

from holdfast.engine.upstream.upstream import HttpUpstream, UpstreamRequest
from holdfast.errors import ConfigError, FormatError, HoldfastError, UpstreamError
from holdfast.testing.provider import Fault, Provider
from holdfast.testing.provider.server.local_server import serve_provider


@pytest.mark.parametrize(
    ("base", "sent", "where"),
    [
        ("https://a.test", UpstreamRequest("anthropic", b"", "m"), "https://a.test/v1/messages"),
        ("https://a.test", UpstreamRequest("anthropic", b"", "m", "count"), "https://a.test/v1/messages/count_tokens"),
        ("https://a.test/", UpstreamRequest("openai-chat", b"", "m"), "https://a.test/v1/chat/completions"),
        ("https://a.test/v1", UpstreamRequest("openai-responses", b"", "m"), "https://a.test/v1/responses"),
        (
            "https://a.test",
            UpstreamRequest("openai-responses", b"", "m", "compact"),
            "https://a.test/v1/responses/compact",
        ),
        (
            "https://a.test/paas/v4/",
            UpstreamRequest("openai-chat", b"", "m"),
            "https://a.test/paas/v4/chat/completions",
        ),
        (
            "https://a.test",
            UpstreamRequest("gemini", b"", "models/g-3"),
            "https://a.test/v1beta/models/g-3:generateContent",
        ),
        (
            "https://a.test",
            UpstreamRequest("gemini", b"", "g-3", stream=True),
            "https://a.test/v1beta/models/g-3:streamGenerateContent?alt=sse",
        ),
        (
            "https://a.test/v1beta",
            UpstreamRequest("gemini", b"", "../x?y#z"),
            "https://a.test/v1beta/models/..%2Fx%3Fy%23z:generateContent",
        ),
    ],
)
def test_where_requests_go(base, sent, where):
    """A version in the base address counts; a model's name never becomes part of the path."""
    assert HttpUpstream(base, sent.api).build_url(sent) == where


def test_an_endpoint_that_an_api_lacks():
    """Nothing is sent to an address that nobody documented."""
    with pytest.raises(FormatError, match="no address for 'compact'"):
        HttpUpstream("https://a.test", "gemini").build_url(UpstreamRequest("gemini", b"", "m", "compact"))


def test_an_upstream_that_nobody_speaks():
    """An API without a form is refused when the upstream is made."""
    with pytest.raises(HoldfastError, match="no module speaks"):
        HttpUpstream("https://a.test", "smoke-signals")


def test_a_server_that_is_not_there_is_a_typed_error():
    """``network``, with the address and what to do."""

    def down(_):
        raise httpx2.ConnectError("connection refused")

    async def talk():
        async with HttpUpstream("https://a.test", "anthropic", transport=httpx2.MockTransport(down)) as upstream:
            with pytest.raises(UpstreamError, match=r"https://a\.test .*connection refused.*try again") as caught:
                async with upstream.send(UpstreamRequest("anthropic", b"{}", "m")):
                    pass
            return caught.value

    assert anyio.run(talk).kind == "network"


def test_features_asked_for_come_to_those_of_the_client():
    """A request that needs a beta feature takes none of the client's own away."""
    seen = []

    def heard(request):
        seen.append(request.headers["anthropic-beta"])
        return httpx2.Response(200, content=b"{}")

    async def talk():
        mine = {"anthropic-beta": "mine"}
        async with HttpUpstream("https://a.test", "anthropic", mine, transport=httpx2.MockTransport(heard)) as upstream:
            for headers in ({"anthropic-beta": "theirs"}, {}):
                async with upstream.send(UpstreamRequest("anthropic", b"{}", "m", headers=headers)):
                    pass

    anyio.run(talk)
    assert seen == ["mine,theirs", "mine"]


@pytest.mark.parametrize(
    ("api", "given", "heard"),
    [
        ("anthropic", {"x-api-key": "k"}, ["2023-06-01"]),
        ("anthropic", {"anthropic-version": "2026-10-21"}, ["2026-10-21"]),
        ("anthropic", {"Anthropic-Version": "2026-10-21"}, ["2026-10-21"]),
        ("openai-chat", {"authorization": "Bearer k"}, []),
    ],
)
def test_every_request_names_the_version_of_its_api(api, given, heard):
    """The Messages API takes no request without one, and none with two: a key alone is enough, what is given counts."""
    seen = []

    def told(request):
        seen.extend(request.headers.get_list("anthropic-version"))
        return httpx2.Response(200, content=b"{}")

    async def talk():
        by = httpx2.MockTransport(told)
        async with (
            HttpUpstream("https://a.test", api, given, transport=by) as upstream,
            upstream.send(UpstreamRequest(api, b"{}", "m")),
        ):
            pass

    anyio.run(talk)
    assert seen == heard


def test_a_body_that_breaks_off_is_a_typed_error():
    """What came before is read; the end is ``network``."""

    async def talk(url):
        async with HttpUpstream(url, "anthropic", {"x-api-key": "k"}) as upstream:
            body = b'{"model":"claude-opus-5-5","max_tokens":9,"messages":[{"role":"user","content":"Go."}]}'
            with pytest.raises(UpstreamError) as caught:
                await whole(upstream, body)
            return caught.value

    with serve_provider(Provider(), [Fault("cut", "middle")]) as url:
        assert anyio.run(talk, url).kind == "network"


async def whole(upstream, body):
    """Return the whole body of the reply."""
    async with upstream.send(UpstreamRequest("anthropic", body, "claude-opus-5-5")) as reply:
        assert reply.status == 200
        return await reply.read_body()


@pytest.mark.parametrize("base", ["a.test", "", None, "ftp://a.test", "http://", "http://a.test:99999999"])
def test_what_is_no_address_is_refused_at_once(base):
    """Before anything is sent to it, and tried again."""
    with pytest.raises(ConfigError, match="not the address of a provider"):
        HttpUpstream(base, "anthropic")


@pytest.mark.parametrize("headers", [{"x-api-key": "\u043a\u043b\u044e\u0447"}, {"x-api-key": 7}])
def test_headers_that_cannot_be_sent_are_refused_at_once(headers):
    """Without a word of what they hold: it may be a key."""
    with pytest.raises(ConfigError, match="copied badly") as caught:
        HttpUpstream("https://a.test", "anthropic", headers)
    assert str(headers["x-api-key"]) not in str(caught.value)


def test_an_upstream_that_was_closed_says_so():
    """A typed error that no retry meets again."""

    async def go():
        upstream = HttpUpstream("https://a.test", "anthropic")
        await upstream.close()
        async with upstream.send(UpstreamRequest("anthropic", b"{}", "m")):
            pass

    with pytest.raises(UpstreamError, match="was closed") as caught:
        anyio.run(go)
    assert caught.value.kind == "config"
