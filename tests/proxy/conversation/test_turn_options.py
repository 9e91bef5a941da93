"""Options that a client sets for a turn inside the conversation reach the model, whatever is reduced before them."""

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
THINKING = {"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "drop_block"}}
"""The thinking option of pi 1.6; it needs a beta header, which only the client can send."""
WINDOW, TURNS, WORDS = 8_000, 10, 1_500


def make_effort_message(effort, text=""):
    """Return the system message that sets the effort of a turn."""
    return {"role": "system", "content": text or [], "output_config": {"effort": effort}}


def run_conversation(open_client, make_strict_upstream, model, text="", **fields):
    """Run a conversation that outgrows its window; return each reply with the messages sent for it."""
    upstream, messages, turns = make_strict_upstream(WINDOW), [], []

    async def scenario():
        async with open_client(upstream) as client:
            for turn in range(TURNS):
                messages.append({"role": "user", "content": f"turn {turn} " + "word " * WORDS})
                messages.append(make_effort_message("high" if turn % 2 else "low", text))
                body = {"model": model, "max_tokens": 500, "messages": messages, **fields}
                reply = await client.post("/v1/messages", body, HEADERS.items())
                turns.append((reply, json.loads(upstream.bodies[-1])["messages"]))
                messages.append({"role": "assistant", "content": reply.json()["content"]})

    anyio.run(scenario)
    return turns


@pytest.mark.parametrize("model", ["claude-opus-5-5", "claude-haiku-5-5", "claude-opus-9"])
@pytest.mark.parametrize("words", ["", "# Environment\nYou are in a folder."])
def test_effort_of_the_newest_turn_is_sent_unchanged(open_client, make_strict_upstream, model, words):
    """The effort message, with text (Claude Code 2.1.332) or without (pi 1.6), ends each request as written, past the
    window and for unknown newer models too.
    """
    for turn, (reply, sent) in enumerate(run_conversation(open_client, make_strict_upstream, model, words)):
        assert reply.status_code == 200, reply.text
        assert sent[-1] == make_effort_message("high" if turn % 2 else "low", words)
    assert len(sent) < TURNS, "nothing was reduced"


def test_option_that_needs_a_beta_header_does_not_stop_reductions(open_client, make_strict_upstream):
    """A beta in the client's headers does not keep the proxy from reducing, so the window is never exceeded."""
    turns = run_conversation(open_client, make_strict_upstream, "claude-opus-5-5", thinking=THINKING)
    assert {reply.status_code for reply, _ in turns} == {200}
    assert {reply.headers["x-holdfast-state"] for reply, _ in turns} == {"managed"}
