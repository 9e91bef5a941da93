"""A client of the proxy that asks for the version of 2026-10-21 is served by its rules."""

from __future__ import annotations

import json

import anyio

from holdfast.providers.fix.fix_request import fix_request
from holdfast.testing.provider import Provider, ProviderSettings

VERSION = "2026-10-21"
HEADERS = {"anthropic-version": VERSION}
CITATION = {
    "type": "char_location",
    "cited_text": "low",
    "document_index": 0,
    "start_char_index": 0,
    "end_char_index": 3,
}
DOCUMENT = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "the tide table"}}
QUOTE = {"role": "user", "content": [{"type": "text", "text": "low at six", "citations": [CITATION]}]}
ANSWER = {"role": "assistant", "content": [{"type": "text", "text": "here"}, DOCUMENT]}
USER = {"role": "user", "content": "and then?"}
BODY = {"model": "claude-opus-4-8", "max_tokens": 100, "messages": [QUOTE, ANSWER, USER]}


def test_fix_request_goes_by_the_version():
    """Citations on a user's text go, the text of a document in an answer stays as text; without the version neither
    is touched.
    """
    body = json.dumps(BODY).encode()
    fixed = fix_request(body, "anthropic", version=VERSION)
    quote, answer, _ = json.loads(fixed.body)["messages"]
    assert quote["content"] == [{"type": "text", "text": "low at six"}]
    assert answer["content"] == [{"type": "text", "text": "here"}, {"type": "text", "text": "the tide table"}]
    assert fix_request(fixed.body, "anthropic", version=VERSION).body is fixed.body
    assert fix_request(body, "anthropic", version="2023-06-01").body is body


def test_proxy_knows_the_version_of_its_client(open_client, make_upstream):
    """What the version refuses, beside the messages and in them, is left out before the first request."""
    upstream = make_upstream(Provider(ProviderSettings(tokenizer="words")))

    async def scenario():
        async with open_client(upstream) as client:
            plain = await client.post("/v1/messages", {**BODY, "messages": [USER], "temperature": 1}, HEADERS)
            return plain, await client.post("/v1/messages", BODY, HEADERS)

    replies = anyio.run(scenario)
    assert [reply.status_code for reply in replies] == [200, 200]
    plain, accepted = [json.loads(body) for body in upstream.bodies]
    assert "temperature" not in plain
    assert "citations" not in json.dumps(accepted)
    assert "the tide table" in json.dumps(accepted)
