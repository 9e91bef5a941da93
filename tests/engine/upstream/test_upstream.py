"""HttpUpstream: the URLs of requests, their headers, and typed errors for everything that fails."""

from __future__ import annotations

import anyio
import httpx2
import pytest

from holdfast.engine.upstream.upstream import HttpUpstream, UpstreamRequest
from holdfast.errors import ConfigError, FormatError, HoldfastError, UpstreamError
from holdfast.testing.provider import Fault, Provider
from holdfast.testing.provider.server.local_server import serve_provider


@pytest.mark.parametrize(
    ("base", "upstream_request", "url"),
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
def test_build_url_keeps_the_version_and_escapes_the_model(base, upstream_request, url):
    """A version in the base URL is not repeated, and a model's name never adds a path segment."""
    assert HttpUpstream(base, upstream_request.api).build_url(upstream_request) == url


def test_build_url_rejects_an_endpoint_the_api_lacks():
    """Nothing is sent to an undocumented address."""
    with pytest.raises(FormatError, match="no address for 'compact'"):
        HttpUpstream("https://a.test", "gemini").build_url(UpstreamRequest("gemini", b"", "m", "compact"))


def test_http_upstream_rejects_an_unknown_api():
    """An unknown API is refused when the upstream is made."""
    with pytest.raises(HoldfastError, match="no module speaks"):
        HttpUpstream("https://a.test", "smoke-signals")


def test_send_raises_a_network_error_when_the_connection_fails():
    """The error names the address and says what to do."""

    def refuse_connection(_):
        raise httpx2.ConnectError("connection refused")

    async def run_scenario():
        async with HttpUpstream(
            "https://a.test", "anthropic", transport=httpx2.MockTransport(refuse_connection)
        ) as upstream:
            with pytest.raises(UpstreamError, match=r"https://a\.test .*connection refused.*try again") as caught:
                async with upstream.send(UpstreamRequest("anthropic", b"{}", "m")):
                    pass
            return caught.value

    assert anyio.run(run_scenario).kind == "network"


def test_send_adds_beta_features_to_those_of_the_client():
    """A request that needs a beta feature keeps the client's own features."""
    betas = []

    def record_request(request):
        betas.append(request.headers["anthropic-beta"])
        return httpx2.Response(200, content=b"{}")

    async def run_scenario():
        client_headers = {"anthropic-beta": "mine"}
        async with HttpUpstream(
            "https://a.test", "anthropic", client_headers, transport=httpx2.MockTransport(record_request)
        ) as upstream:
            for headers in ({"anthropic-beta": "theirs"}, {}):
                async with upstream.send(UpstreamRequest("anthropic", b"{}", "m", headers=headers)):
                    pass

    anyio.run(run_scenario)
    assert betas == ["mine,theirs", "mine"]


@pytest.mark.parametrize(
    ("api", "headers", "expected"),
    [
        ("anthropic", {"x-api-key": "k"}, ["2023-06-01"]),
        ("anthropic", {"anthropic-version": "2026-10-21"}, ["2026-10-21"]),
        ("anthropic", {"Anthropic-Version": "2026-10-21"}, ["2026-10-21"]),
        ("openai-chat", {"authorization": "Bearer k"}, []),
    ],
)
def test_send_names_the_api_version_once(api, headers, expected):
    """The Messages API needs exactly one version header: a given one is used, else a default is added."""
    versions = []

    def record_request(request):
        versions.extend(request.headers.get_list("anthropic-version"))
        return httpx2.Response(200, content=b"{}")

    async def run_scenario():
        transport = httpx2.MockTransport(record_request)
        async with (
            HttpUpstream("https://a.test", api, headers, transport=transport) as upstream,
            upstream.send(UpstreamRequest(api, b"{}", "m")),
        ):
            pass

    anyio.run(run_scenario)
    assert versions == expected


def test_reply_body_that_breaks_off_raises_a_network_error():
    """The part before the break is read; the end raises an error of kind ``network``."""

    async def run_scenario(url):
        async with HttpUpstream(url, "anthropic", {"x-api-key": "k"}) as upstream:
            body = b'{"model":"claude-opus-5-5","max_tokens":9,"messages":[{"role":"user","content":"Go."}]}'
            with pytest.raises(UpstreamError) as caught:
                await read_whole_body(upstream, body)
            return caught.value

    with serve_provider(Provider(), [Fault("cut", "middle")]) as url:
        assert anyio.run(run_scenario, url).kind == "network"


async def read_whole_body(upstream, body):
    """Return the complete body of the reply."""
    async with upstream.send(UpstreamRequest("anthropic", body, "claude-opus-5-5")) as reply:
        assert reply.status == 200
        return await reply.read_body()


@pytest.mark.parametrize("base", ["a.test", "", None, "ftp://a.test", "http://", "http://a.test:99999999"])
def test_http_upstream_rejects_an_invalid_base_url(base):
    """The URL is refused when the upstream is made, not after retries."""
    with pytest.raises(ConfigError, match="not the address of a provider"):
        HttpUpstream(base, "anthropic")


@pytest.mark.parametrize("headers", [{"x-api-key": "\u043a\u043b\u044e\u0447"}, {"x-api-key": 7}])
def test_http_upstream_rejects_unsendable_headers_without_quoting_them(headers):
    """The error does not quote the value, which may be a key."""
    with pytest.raises(ConfigError, match="copied badly") as caught:
        HttpUpstream("https://a.test", "anthropic", headers)
    assert str(headers["x-api-key"]) not in str(caught.value)


def test_send_raises_a_config_error_after_close():
    """The error is not retried."""

    async def scenario():
        upstream = HttpUpstream("https://a.test", "anthropic")
        await upstream.close()
        async with upstream.send(UpstreamRequest("anthropic", b"{}", "m")):
            pass

    with pytest.raises(UpstreamError, match="was closed") as caught:
        anyio.run(scenario)
    assert caught.value.kind == "config"
