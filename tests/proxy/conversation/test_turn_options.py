"""Options that a client sets for a turn inside the conversation: they reach the model, whatever gives way before."""

from __future__ import annotations

import json

import anyio
import pytest

BETAS = "mid-conversation-output-config-2026-07-01,thinking-binding-controls-2026-08-01"
HEADERS = {
    "user-agent": "pi/1.6.0 (linux; node/v24.21.0; x64)",
    "anthropic-version": "2023-06-01",
    "anthropic-beta": BETAS,
}
BOUND = {"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "drop_block"}}
"""What pi 1.6 asks of thinking; it needs a beta of the headers, which are the client's to send."""
WINDOW, TURNS, WORDS = 8_000, 10, 1_500


def level(effort, words=""):
    """Return the system message in which a client tells the effort of a turn."""
    return {"role": "system", "content": words or [], "output_config": {"effort": effort}}


def talked(open_client, strict, model, words="", **fields):
    """Return the answers to a conversation that outgrows its window, and what went up for each of its turns."""
    upstream, said, answered = strict(WINDOW), [], []

    async def go():
        async with open_client(upstream) as client:
            for turn in range(TURNS):
                said.append({"role": "user", "content": f"turn {turn} " + "word " * WORDS})
                said.append(level("high" if turn % 2 else "low", words))
                body = {"model": model, "max_tokens": 500, "messages": said, **fields}
                reply = await client.post("/v1/messages", body, HEADERS.items())
                answered.append((reply, json.loads(upstream.bodies[-1])["messages"]))
                said.append({"role": "assistant", "content": reply.json()["content"]})

    anyio.run(go)
    return answered


@pytest.mark.parametrize("model", ["claude-opus-5-5", "claude-haiku-5-5", "claude-opus-9"])
@pytest.mark.parametrize("words", ["", "# Environment\nYou are in a folder."])
def test_effort_of_the_newest_turn_is_sent_unchanged(open_client, strict, model, words):
    """The effort message, with text (Claude Code 2.1.332) or without (pi 1.6), ends each request as written, past the
    window and for unknown newer models too.
    """
    for turn, (reply, sent) in enumerate(talked(open_client, strict, model, words)):
        assert reply.status_code == 200, reply.text
        assert sent[-1] == level("high" if turn % 2 else "low", words)
    assert len(sent) < TURNS, "nothing gave way"


def test_option_that_needs_a_beta_header_does_not_stop_reductions(open_client, strict):
    """A beta in the client's headers does not keep the proxy from reducing, so the window is never exceeded."""
    answered = talked(open_client, strict, "claude-opus-5-5", thinking=BOUND)
    assert {reply.status_code for reply, _ in answered} == {200}
    assert {reply.headers["x-holdfast-state"] for reply, _ in answered} == {"managed"}
