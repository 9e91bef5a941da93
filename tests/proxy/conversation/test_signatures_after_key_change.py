"""A client that continues with another key and keeps sending what the first key's provider had sealed."""

from __future__ import annotations

import json

import anyio
import httpx2
import pytest

from holdfast.recovery.signatures import LOST_HISTORY_TEXT
from holdfast.testing.provider import Provider, ScriptedAnswer
from holdfast.testing.provider import ProviderSettings as Strict

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
"""An answer of each API with a sealed part that the strict provider never made."""


@pytest.mark.parametrize("api", ANSWERS)
def test_proxy_drops_foreign_signatures_after_a_refusal(api, open_client, make_upstream, make_chat):
    """The first request is sent twice and every later one once, without the foreign sealed parts; the rest is
    unchanged.
    """
    upstream, chat = (
        make_upstream(Provider(Strict(tokenizer="words"), [ScriptedAnswer("more"), ScriptedAnswer("last")])),
        make_chat(api),
    )
    chat.fields |= {"store": False} if api == "openai-responses" else {}
    chat.add_user_text("Note this.")
    chat.messages += ANSWERS[api]

    async def scenario():
        async with open_client(upstream) as client:
            return [await chat.send_turn(client, text) for text in ("And this.", "And that.")]

    replies = anyio.run(scenario)
    assert [reply.status_code for reply in replies] == [200, 200], [reply.text for reply in replies]
    assert SEAL in json.dumps(chat.body()), "the client changed its messages"
    assert [SEAL.encode() in body for body in upstream.bodies] == [True, False, False]
    assert all(b"Noted." in body for body in upstream.bodies)


def test_proxy_replaces_a_sealed_compaction_with_a_line(open_client, make_upstream, make_chat):
    """Codex sends its sealed compaction in every request; without it the session continues, with the user's messages in
    it.
    """
    upstream, chat = (
        make_upstream(Provider(Strict(tokenizer="words"), [ScriptedAnswer("more"), ScriptedAnswer("last")])),
        make_chat("openai-responses"),
    )
    chat.fields |= {"store": False}
    chat.add_user_text("Note this.")
    chat.messages += [{"type": "compaction", "id": "cmp_1", "encrypted_content": SEAL}, *ANSWERS["openai-responses"]]

    async def scenario():
        async with open_client(upstream) as client:
            return [await chat.send_turn(client, text) for text in ("And this.", "And that.")]

    assert [reply.status_code for reply in anyio.run(scenario)] == [200, 200]
    assert [SEAL.encode() in body for body in upstream.bodies] == [True, False, False]
    assert [LOST_HISTORY_TEXT in body.decode() for body in upstream.bodies] == [False, True, True]
    assert all(b"Note this." in body and b"Noted." in body for body in upstream.bodies)


OPTION_ERROR = "Invalid value: 'reasoning.encrypted_content'. Supported values are: 'file_search_call.results'."
UNRELATED_REFUSALS = [
    (400, "invalid_value", OPTION_ERROR, 1),
    (401, "invalid_api_key", "Invalid API key: cannot decrypt encrypted_content", 1),
    (429, "rate_limit_exceeded", "Too many requests with invalid encrypted_content", 1),
    (500, "server_error", "Could not verify encrypted_content, the key service timed out", 1),
    (400, "invalid_encrypted_content", "The encrypted content could not be verified.", 2),
]
"""Refusals unrelated to sealed parts, and one that dropping them does not cure, with how often each is sent."""


@pytest.mark.parametrize(
    ("status", "code", "message", "times"), UNRELATED_REFUSALS, ids=[refusal[1] for refusal in UNRELATED_REFUSALS]
)
def test_unrelated_refusal_drops_no_reasoning(status, code, message, times, open_client, make_upstream, make_chat):
    """The refusal is returned unchanged, and the next request has all sealed parts again."""
    error_body = json.dumps({"error": {"message": message, "code": code}}).encode()

    class Refusing(make_upstream):
        is_refusing = True

        async def handle_async_request(self, request):
            if not self.is_refusing:
                return await super().handle_async_request(request)
            self.bodies.append(await request.aread())
            headers = {"content-type": "application/json"}
            return httpx2.Response(status, headers=headers, stream=httpx2.ByteStream(error_body))

    upstream, chat = Refusing(Provider(Strict(tokenizer="words", accepted_seals="any"))), make_chat("openai-responses")
    chat.fields |= {"store": False, "include": ["reasoning.encrypted_content"]}
    chat.add_user_text("Note this.")
    chat.messages += ANSWERS["openai-responses"]

    async def scenario():
        async with open_client(upstream) as client:
            refused = await chat.send_turn(client, "And this.")
            upstream.is_refusing = False
            return refused, await client.post(chat.path, chat.body())

    refused, accepted = anyio.run(scenario)
    assert (refused.status_code, refused.content, accepted.status_code) == (status, error_body, 200)
    assert len(upstream.bodies) == times + 1
    assert SEAL.encode() in upstream.bodies[0]
    assert SEAL.encode() in upstream.bodies[-1]
