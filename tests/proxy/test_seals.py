"""A client that goes on with another key, and keeps sending what the first one's provider had sealed."""

from __future__ import annotations

import json

import anyio
import pytest

from holdfast.testing.provider import Provider, Said
from holdfast.testing.provider import Settings as Strict

SEAL = "c2VhbGVkIGZvciBzb21lYm9keSBlbHNl"
ANSWERS = {
    "anthropic": [
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": SEAL},
                {"type": "text", "text": "Noted."},
            ],
        }
    ],
    "openai-responses": [
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": SEAL},
        {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "Noted.", "annotations": []}],
        },
    ],
    "gemini": [{"role": "model", "parts": [{"text": "Noted.", "thoughtSignature": SEAL}]}],
}
"""An answer of each API with something in it that the strict provider never sealed."""


@pytest.mark.parametrize("api", ANSWERS)
def test_it_is_told_nothing_and_refused_nothing(api, proxied):
    """The first request goes up twice, every later one once, without what was sealed; the rest is as it came."""
    through, upstreams, talking = proxied
    upstream, talk = upstreams(Provider(Strict(tokenizer="words"), [Said("more"), Said("last")])), talking(api)
    talk.fields |= {"store": False} if api == "openai-responses" else {}
    talk.say("Note this.")
    talk.said += ANSWERS[api]

    async def go():
        async with through(upstream) as client:
            return [await talk.turn(client, text) for text in ("And this.", "And that.")]

    replies = anyio.run(go)
    assert [reply.status_code for reply in replies] == [200, 200], [reply.text for reply in replies]
    assert SEAL in json.dumps(talk.body()), "the client knows nothing"
    assert [SEAL.encode() in body for body in upstream.bodies] == [True, False, False]
    assert all(b"Noted." in body for body in upstream.bodies)
