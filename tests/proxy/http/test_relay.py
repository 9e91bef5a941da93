"""The relayed request is the one the HTTP client would build, and its secrets are known."""

from __future__ import annotations

import anyio
import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.engine.upstream.upstream import UpstreamRequest
from holdfast.proxy.http.relay import UpstreamRelay, build_http_request

NAMES = [b"x-api-key", b"Content-Type", b"content-type", b"Host", b"content-length", b"Transfer-Encoding", b"Accept"]
URLS = ["https://api.kelp.example/v1/messages?beta=1", "http://127.0.0.1:8642/a", "http://[::1]:9/a", "https://k:443/"]

pairs = st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from([b"1", b"application/json", b""])), max_size=6)
bodies = st.sampled_from([b"", b"{}", b"x" * 70_000])


@pytest.mark.parametrize("url", URLS)
@given(method=st.sampled_from(["POST", "GET", "delete"]), headers=pairs, body=bodies)
def test_build_http_request_matches_httpx2(url, method, headers, body):
    """Headers and their order, URL and body are what httpx2 builds from the same values, whichever headers the client
    set itself.
    """
    own = httpx2.Request(method, url, headers=headers, content=body)
    found = build_http_request(method, httpx2.URL(url), headers, body)
    assert found.headers.raw == own.headers.raw
    assert (found.method, found.url, b"".join(found.stream)) == (own.method, own.url, own.content)


@pytest.mark.parametrize("key", ["kelp-secret-1", "kélp-secret-1"])
def test_relay_reply_lists_the_secrets_of_its_request(key):
    """The keys in the request's headers and URL are listed, so that none of them gets into a log."""
    headers = [(b"Authorization", f"Bearer {key}".encode()), (b"accept", b"not-a-secret")]

    async def list_secrets():
        transport = httpx2.MockTransport(lambda _: httpx2.Response(401, text="no"))
        async with httpx2.AsyncClient(transport=transport) as web:
            onward = UpstreamRelay(web, "https://kelp.example/v1?key=kelp-secret-2", headers)
            async with onward.send(UpstreamRequest("gemini", b"{}")) as reply:
                return reply.secrets

    assert set(anyio.run(list_secrets)) == {f"Bearer {key}", key, "kelp-secret-2"}
