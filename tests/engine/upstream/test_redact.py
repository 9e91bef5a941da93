"""Redaction: a key that a provider repeats in its refusal is in no error, no event and no log."""

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


class KeyEchoHandler(BaseHTTPRequestHandler):
    """Refuse every request and repeat its key in the error."""

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
        """Log nothing."""


@contextmanager
def serve_key_echo() -> Iterator[str]:
    """Yield the URL of a server that repeats keys."""
    with HTTPServer(("127.0.0.1", 0), KeyEchoHandler) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def build_google_client(url, key):
    return genai.Client(api_key=key, http_options={"base_url": url})


UPSTREAMS = {
    "Http": ("openai-chat", lambda url, key: HttpUpstream(url, "openai-chat", {"authorization": f"Bearer {key}"})),
    "AsyncAnthropic": ("anthropic", lambda url, key: anthropic.AsyncAnthropic(base_url=url, api_key=key)),
    "Anthropic": ("anthropic", lambda url, key: anthropic.Anthropic(base_url=url, api_key=key)),
    "AsyncOpenAI": ("openai-responses", lambda url, key: openai.AsyncOpenAI(base_url=url, api_key=key)),
    "genai": ("gemini", build_google_client),
}


def collect_texts_of_refused_request(name, url, key, **options):
    """Return the error, the events and the log of one refused request with this key, as text."""
    api, make_upstream = UPSTREAMS[name]
    seen_events, store = [], MemoryStore()

    async def run_scenario():
        upstream = make_upstream(url, key)
        opening = Engine.open(store, upstream=upstream, api=api, model=MODEL, listen=seen_events.append, **options)
        async with opening as engine:
            session = await engine.session("kelp")
            with pytest.raises(UpstreamError) as caught:
                await session.ask("hello", deadline=60)
            await session.compact()
        return str(caught.value)

    return " ".join([anyio.run(run_scenario), *map(repr, seen_events), *map(repr, store.read_path("kelp"))])


@pytest.mark.parametrize("name", UPSTREAMS)
def test_engine_masks_a_key_that_a_refusal_repeats(name):
    """The provider's words are reported without the key, with every client and for summaries too."""
    with serve_key_echo() as url:
        texts = collect_texts_of_refused_request(name, url, KEY, summary_model="another-model")
    assert "Incorrect API key provided: " in texts
    assert "***" in texts
    assert KEY not in texts


@pytest.mark.parametrize("name", ["Http", "AsyncAnthropic", "AsyncOpenAI"])
def test_ask_upstream_masks_a_key_that_no_header_can_hold(name):
    """The transport quotes a key with a line break in its own error; ours masks it."""
    api, make_upstream = UPSTREAMS[name]

    async def run_scenario(url):
        await ask_upstream(wrap_upstream(make_upstream(url, KEY + "\n")), UpstreamRequest(api, b"{}", MODEL))

    with serve_key_echo() as url, pytest.raises(UpstreamError, match=r"Illegal header value .*\*\*\*") as caught:
        anyio.run(run_scenario, url)
    assert KEY not in str(caught.value)


def test_find_secrets_takes_keys_of_headers_and_urls():
    """Keys are found with and without ``Bearer``; short values, words and other headers are not secrets."""
    headers = [("Authorization", "Bearer abcdefg1\n"), ("x-api-key", "sh0rt"), ("user-agent", "kelp-kelp")]
    assert find_secrets(headers, "https://a.test/v1?key=ijklm0&alt=sse") == ("Bearer abcdefg1", "abcdefg1", "ijklm0")
    assert find_secrets([("x-api-key", "context"), ("api-key", "z" * 20)]) == ("z" * 20,)


@pytest.mark.parametrize(
    "name",
    ["x-auth-token", "cf-aig-authorization", "Helicone-Auth", "ocp-apim-subscription-key", "x-amz-security-token"],
)
def test_find_secrets_knows_the_key_headers_of_gateways(name):
    """Whatever a gateway calls its header, the name shows that it holds a key."""
    assert find_secrets([(name, "kelp-0123")]) == ("kelp-0123",)


@pytest.mark.parametrize("field", ["key", "KEY", "api_key", "access_token", "sig", "x-amz-signature"])
def test_find_secrets_takes_secret_query_fields_of_a_url(field):
    """A value is found both encoded and decoded; the format of the answer is not a secret."""
    assert find_secrets([], f"https://a.test/v1?{field}=kelp%2F0123&alt=sse-and-more") == ("kelp%2F0123", "kelp/0123")
