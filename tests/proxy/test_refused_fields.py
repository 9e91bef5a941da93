"""A session behind the proxy survives a server that refuses a single field of its client's requests."""

from __future__ import annotations

import json

import anyio
import pytest

from holdfast.testing.provider import Provider, ProviderSettings
from holdfast.testing.provider.faults.field_faults import FieldFault

USER = {"role": "user", "content": "hi there"}
THOUGHT = {"role": "assistant", "content": "hello", "reasoning_content": "they greet"}


def run_requests(open_client, make_upstream, faults, requests, **settings):
    """Send ``requests``, each a path, a body and headers; return the replies, the upstream and the figures."""
    upstream = make_upstream(Provider(ProviderSettings(tokenizer="words", field_faults=faults)))

    async def scenario():
        replies = []
        async with open_client(upstream, **settings) as client:
            for path, body, headers in requests:
                replies.append(await client.post(path, body, headers))
            stats = (await client.web.get("/stats")).json()
        return replies, stats

    replies, stats = anyio.run(scenario)
    return replies, upstream, stats


@pytest.mark.parametrize("words", ["cerebras", "groq", "mistral"])
def test_proxy_leaves_out_reasoning_that_a_server_refuses(words, open_client, make_upstream):
    """The first request is sent as the client wrote it; after the refusal none has the field, and the client notices
    nothing.
    """
    fault = FieldFault("refuses", "messages.*.reasoning_content", words, "assistant")
    first = {"model": "qwen-27b", "messages": [USER, THOUGHT, USER]}
    second = {"model": "qwen-27b", "messages": [USER, THOUGHT, USER, {"role": "assistant", "content": "b"}, USER]}
    path = "/v1/chat/completions"
    replies, upstream, stats = run_requests(
        open_client, make_upstream, (fault,), [(path, first, ()), (path, second, ())]
    )
    assert [reply.status_code for reply in replies] == [200, 200]
    bodies = [json.loads(body) for body in upstream.bodies]
    assert bodies[0] == first
    assert bodies[1] == {**first, "messages": [USER, {"role": "assistant", "content": "hello"}, USER]}
    assert len(bodies) == 3
    assert "reasoning_content" not in json.dumps(bodies[2])
    assert stats["changed_fields"] == 1


@pytest.mark.parametrize(("words", "kept"), [("anthropic", "other-beta-2026-01-01"), ("bedrock", None)])
def test_proxy_leaves_out_betas_that_a_server_refuses(words, kept, open_client, make_upstream):
    """A named beta is taken out of the client's own header; if none is named, all are."""
    fault = FieldFault("refuses_beta", "fine-beta-2026-02-02", words)
    body = {"model": "claude-opus-4-8", "max_tokens": 100, "messages": [USER]}
    headers = {"anthropic-beta": "fine-beta-2026-02-02, other-beta-2026-01-01"}
    replies, upstream, _ = run_requests(open_client, make_upstream, (fault,), [("/v1/messages", body, headers)])
    assert replies[0].status_code == 200
    assert [request.headers.get("anthropic-beta") for request in upstream.sent] == [headers["anthropic-beta"], kept]
    assert upstream.bodies[0] == upstream.bodies[1]


def test_proxy_lowers_the_output_limit_to_the_cap_that_is_named(open_client, make_upstream):
    """The answer that the client asked for is made shorter rather than refused."""
    fault = FieldFault("caps", "max_tokens", "groq", limit=8_192)
    body = {"model": "qwen-27b", "max_tokens": 40_000, "messages": [USER]}
    replies, upstream, _ = run_requests(open_client, make_upstream, (fault,), [("/v1/chat/completions", body, ())])
    assert replies[0].status_code == 200
    assert [json.loads(body)["max_tokens"] for body in upstream.bodies] == [40_000, 8_192]


def test_observing_proxy_changes_no_field(open_client, make_upstream):
    """In the mode that only observes, the client gets the refusal, and nothing is sent again."""
    fault = FieldFault("refuses", "store", "openai")
    body = {"model": "qwen-27b", "store": True, "messages": [USER]}
    replies, upstream, _ = run_requests(
        open_client, make_upstream, (fault,), [("/v1/chat/completions", body, ())], observe=True
    )
    assert (replies[0].status_code, len(upstream.bodies)) == (400, 1)
