"""A key that a provider repeats when it refuses it: in no error, no event and no log."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import anthropic
import anyio
import openai
import pytest
from google import genai

from holdfast.engine.engine import Engine
from holdfast.engine.upstream.redact import find_secrets
from holdfast.engine.upstream.replies import ask_upstream
from holdfast.engine.upstream.sdk import wrap_upstream
from holdfast.engine.upstream.upstream import HttpUpstream, UpstreamRequest
from holdfast.errors import UpstreamError
from holdfast.store.memory import MemoryStore

KEY = "sk-kelp-holds-0123456789"
MODEL = "some-model"


class _Echo(BaseHTTPRequestHandler):
    """Refuses every request, and says with which key it came."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        key = self.headers["x-api-key"] or self.headers["x-goog-api-key"] or self.headers["authorization"]
        error = {"message": f"Incorrect API key provided: {key}.", "type": "authentication_error", "status": "NO"}
        body = json.dumps({"type": "error", "error": error}).encode()
        self.send_response(401)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def echoing() -> Iterator[str]:
    """Yield the address of a server that repeats keys."""
    with HTTPServer(("127.0.0.1", 0), _Echo) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def google(url, key):
    return genai.Client(api_key=key, http_options={"base_url": url})


UPSTREAMS = {
    "Http": ("openai-chat", lambda url, key: HttpUpstream(url, "openai-chat", {"authorization": f"Bearer {key}"})),
    "AsyncAnthropic": ("anthropic", lambda url, key: anthropic.AsyncAnthropic(base_url=url, api_key=key)),
    "Anthropic": ("anthropic", lambda url, key: anthropic.Anthropic(base_url=url, api_key=key)),
    "AsyncOpenAI": ("openai-responses", lambda url, key: openai.AsyncOpenAI(base_url=url, api_key=key)),
    "genai": ("gemini", google),
}


def refused(name, url, key, **more):
    """Return all that was said of one request with this key: the error, the events, the log."""
    api, made = UPSTREAMS[name]
    heard, store = [], MemoryStore()

    async def go():
        upstream = made(url, key)
        opened = Engine.open(store, upstream=upstream, api=api, model=MODEL, listen=heard.append, **more)
        async with opened as engine:
            session = await engine.session("kelp")
            with pytest.raises(UpstreamError) as caught:
                await session.ask("hello", deadline=60)
            await session.compact()
        return str(caught.value)

    return " ".join([anyio.run(go), *map(repr, heard), *map(repr, store.read_path("kelp"))])


@pytest.mark.parametrize("name", UPSTREAMS)
def test_a_key_that_a_refusal_repeats_is_masked(name):
    """The words of the provider are told without the key that they repeat, whoever sends, and for a summary too."""
    with echoing() as url:
        said = refused(name, url, KEY, summary_model="another-model")
    assert "Incorrect API key provided: " in said
    assert "***" in said
    assert KEY not in said


@pytest.mark.parametrize("name", ["Http", "AsyncAnthropic", "AsyncOpenAI"])
def test_a_key_that_no_header_can_hold_is_masked(name):
    """A key with the end of its line, which the transport refuses in its own words, is not in ours."""
    api, made = UPSTREAMS[name]

    async def go(url):
        await ask_upstream(wrap_upstream(made(url, KEY + "\n")), UpstreamRequest(api, b"{}", MODEL))

    with echoing() as url, pytest.raises(UpstreamError, match=r"Illegal header value .*\*\*\*") as caught:
        anyio.run(go, url)
    assert KEY not in str(caught.value)


def test_what_is_a_secret():
    """Keys by header and address, with and without the word before them; nothing short, no word, no other header."""
    headers = [("Authorization", "Bearer abcdefg1\n"), ("x-api-key", "sh0rt"), ("user-agent", "kelp-kelp")]
    assert find_secrets(headers, "https://a.test/v1?key=ijklm0&alt=sse") == ("Bearer abcdefg1", "abcdefg1", "ijklm0")
    assert find_secrets([("x-api-key", "context"), ("api-key", "z" * 20)]) == ("z" * 20,)


@pytest.mark.parametrize(
    "name",
    ["x-auth-token", "cf-aig-authorization", "Helicone-Auth", "ocp-apim-subscription-key", "x-amz-security-token"],
)
def test_every_gateway_s_key_is_a_secret(name):
    """Whatever they call the header, its name says what it is."""
    assert find_secrets([(name, "kelp-0123")]) == ("kelp-0123",)


@pytest.mark.parametrize("field", ["key", "KEY", "api_key", "access_token", "sig", "x-amz-signature"])
def test_what_an_address_says_is_a_secret(field):
    """As it stands there and as it is read; how an answer is to be written is none."""
    assert find_secrets([], f"https://a.test/v1?{field}=kelp%2F0123&alt=sse-and-more") == ("kelp%2F0123", "kelp/0123")
