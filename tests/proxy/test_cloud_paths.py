"""Claude on Google Cloud: the address names the model, and the body has none."""

from __future__ import annotations

import json
import re

import anyio
import httpx2
import pytest

from holdfast.providers.rules.validate import validate_request
from holdfast.testing.provider import Provider, ProviderSettings

SERVER = "/u/https://us-east5-aiplatform.googleapis.com"
FOLDER = "/v1/projects/p1/locations/us-east5/publishers/anthropic/models"
PATH = f"{SERVER}{FOLDER}/claude-opus-4-8:rawPredict"
STREAM_PATH = f"{SERVER}{FOLDER}/claude-opus-4-8:streamRawPredict"
USER = {"role": "user", "content": "hi there"}


@pytest.fixture
def make_cloud(make_upstream):
    """Return a function that makes Google Cloud before the strict provider."""

    class Cloud(make_upstream):
        """Takes a body without a model at an address with one, and keeps what it was sent."""

        async def handle_async_request(self, request):
            body = json.loads(await request.aread())
            match = re.fullmatch(rf"{FOLDER}/([^/:]+):(?:rawP|streamRawP)redict", request.url.path)
            assert match is not None, request.url.path
            assert request.url.host == "us-east5-aiplatform.googleapis.com"
            assert request.headers["authorization"] == "Bearer token"
            assert "model" not in body
            assert validate_request(body, "anthropic", model=match[1], provider="vertex") == ()
            content = json.dumps(body | {"model": match[1]}).encode()
            headers = {"content-type": "application/json", "anthropic-version": "2023-06-01", "x-api-key": "k"}
            return await super().handle_async_request(
                httpx2.Request("POST", "https://api.anthropic.com/v1/messages", content=content, headers=headers)
            )

    return lambda **settings: Cloud(Provider(ProviderSettings(tokenizer="words", **settings)))


def build_body(*messages, **fields):
    return {"anthropic_version": "vertex-2023-10-16", "max_tokens": 200, "messages": [*messages], **fields}


def send(open_client, upstream, requests, **settings):
    async def scenario():
        async with open_client(upstream, **settings) as client:
            headers = {"authorization": "Bearer token"}
            return [await client.post(path, body, headers) for path, body in requests]

    return anyio.run(scenario)


def test_proxy_manages_claude_on_google_cloud(open_client, make_cloud):
    """Body and address go on as they came, and the answer comes back in the form that the client asked for."""
    upstream = make_cloud()
    bodies = [build_body(USER), build_body(USER, stream=True)]
    replies = send(open_client, upstream, [(PATH, bodies[0]), (STREAM_PATH, bodies[1])])
    assert [reply.status_code for reply in replies] == [200, 200]
    assert replies[0].json()["type"] == "message"
    assert replies[1].headers["content-type"].startswith("text/event-stream")
    assert [reply.headers["x-holdfast-state"] for reply in replies] == ["managed", "managed"]


def test_proxy_keeps_the_window_of_claude_on_google_cloud(open_client, make_cloud):
    """A conversation of several windows goes on: what is too much is summarized, and no request has a model in it."""
    upstream = make_cloud(window=32_000)
    messages, requests = [], []
    for turn in range(12):
        messages.append({"role": "user", "content": f"Request {turn}: " + f"word{turn} " * 6_000})
        requests.append((PATH, build_body(*messages)))
        messages.append({"role": "assistant", "content": f"Answer {turn}."})
    replies = send(open_client, upstream, requests)
    assert {reply.status_code for reply in replies} == {200}
    assert len(upstream.bodies[-1]) < len(json.dumps(requests[-1][1]))


def test_proxy_relays_token_counts_of_google_cloud(open_client, make_upstream):
    """A token count names its model in the body, at an address of its own; it goes on as it came."""

    class Count(make_upstream):
        async def handle_async_request(self, request):
            self.bodies.append(await request.aread())
            return httpx2.Response(200, json={"input_tokens": 3})

    upstream = Count(Provider(ProviderSettings(tokenizer="words")))
    body = {"model": "claude-opus-4-8", "messages": [USER]}
    [reply] = send(open_client, upstream, [(f"{SERVER}{FOLDER}/count-tokens:rawPredict", body)])
    assert reply.json() == {"input_tokens": 3}
    assert upstream.bodies == [json.dumps(body).encode()]


def test_proxy_says_once_that_signed_requests_are_only_relayed(open_client, make_upstream, capsys):
    """A request to Bedrock goes on byte for byte, and a notice says that nothing is done for it."""

    class Bedrock(make_upstream):
        async def handle_async_request(self, request):
            self.bodies.append(await request.aread())
            return httpx2.Response(200, json={"content": []})

    upstream = Bedrock(Provider(ProviderSettings(tokenizer="words")))
    body = {"anthropic_version": "bedrock-2023-05-31", "max_tokens": 9, "messages": [USER]}
    path = "/u/https://bedrock-runtime.us-east-1.amazonaws.com/model/anthropic.claude-opus-5-v1:0/invoke"
    replies = send(open_client, upstream, [(path, body), (path, body)])
    assert [reply.status_code for reply in replies] == [200, 200]
    assert upstream.bodies == [json.dumps(body).encode()] * 2
    assert capsys.readouterr().err.count("signed over their body") == 1
