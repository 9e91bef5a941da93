"""Windows of local servers, far smaller than any provider's: a conversation stays inside them too."""

from __future__ import annotations

import json

import anyio
import pytest

from holdfast.providers.errors.classify_error import classify_error
from holdfast.providers.errors.report import ErrorReport
from holdfast.store.memory import MemoryStore
from holdfast.testing.provider.client import STRICTEST_MODELS

STATE = "x-holdfast-state"
TURNS = 50
SCHEMA = {"type": "object", "properties": {}}
FUNCTION = {"name": "look", "description": "kelp " * 230_000, "parameters": SCHEMA}
TOOL = {"type": "function", "function": FUNCTION}
"""A tool larger than the window that is assumed for an unknown model."""
WORDS = "kelp on the rock, and the tide comes in. " * 6


def run(function):
    """Return what the coroutine function returns."""
    return anyio.run(function)


@pytest.mark.parametrize("settings", [{}, {"window": 4_096}], ids=["learned", "configured"])
@pytest.mark.parametrize("api", list(STRICTEST_MODELS))
def test_proxy_keeps_a_conversation_in_a_window_of_4096(api, settings, open_client, make_chat, make_strict_upstream):
    """In the usual window of a local server no error reaches the client, and the newest message is always sent."""
    upstream, chat = make_strict_upstream(4_096), make_chat(api)

    async def scenario():
        async with open_client(upstream, **settings) as client:
            for number in range(TURNS):
                reply = await chat.send_turn(client, f"Note {number}: {WORDS}")
                assert (reply.status_code, reply.headers[STATE]) == (200, "managed"), (number, reply.text)
                assert f"Note {number}: {WORDS}" in upstream.bodies[-1].decode()

    run(scenario)
    refused = len(upstream.bodies) - TURNS
    assert refused == 0 if settings else refused <= 2


def test_proxy_relays_requests_over_an_assumed_window(open_client, make_chat, make_strict_upstream):
    """What is assumed of a model may be wrong, so tools larger than the assumed window are forwarded unchanged."""
    upstream, chat = make_strict_upstream(1_000_000), make_chat("openai-chat")
    chat.add_user_text("How high is the tide?")
    body = json.dumps(chat.body() | {"model": "somebody-s-own", "tools": [TOOL]}).encode()

    async def scenario():
        async with open_client(upstream) as client:
            return await client.post(chat.path, body)

    reply = run(scenario)
    assert (reply.status_code, reply.headers[STATE]) == (200, "relayed"), reply.text
    assert upstream.bodies == [body]


@pytest.mark.parametrize("after", [False, True], ids=["first request", "after an answer"])
@pytest.mark.parametrize("window", [0, 16_000], ids=["assumed", "configured"])
def test_oversized_tools_do_not_degrade_the_proxy(window, after, open_client, make_chat, make_strict_upstream):
    """Oversized tools are refused with a configured window and relayed with an assumed one, the error is in the API's
    words, and ``/livez`` stays ok.
    """
    upstream, chat = make_strict_upstream(100_000, overflow="llama.cpp"), make_chat("openai-chat")
    chat.fields = {"model": "somebody-s-own"}

    async def scenario():
        async with open_client(upstream, window=window) as client:
            for number in range(after):
                await chat.send_turn(client, f"Note {number}: {WORDS}")
            chat.add_user_text("How high is the tide?")
            reply = await client.post(chat.path, chat.body() | {"tools": [TOOL]})
            return reply, (await client.web.get("/livez")).json()

    reply, livez = run(scenario)
    assert (reply.status_code, reply.headers[STATE]) == (400, "refused" if window else "relayed")
    assert "maximum context length" in reply.text
    assert (livez["status"], [trouble["what"] for trouble in livez["troubles"]]) == ("ok", ["WindowTooSmall"])


def test_local_overflow_error_counts_tools_and_system_prompt(open_client, make_chat, make_strict_upstream):
    """The reported size covers tools and system prompt, because clients compute their cut from it."""
    upstream, chat = make_strict_upstream(1_000_000), make_chat("openai-chat")
    chat.add_user_text("How high is the tide?")

    async def scenario():
        async with open_client(upstream, window=8_000) as client:
            return await client.post(chat.path, chat.body() | {"tools": [TOOL]})

    reply = run(scenario)
    assert (reply.status_code, reply.headers[STATE]) == (400, "refused")
    tokens = classify_error(ErrorReport("openai-chat", status=400, body=reply.content)).requested
    assert tokens is not None
    assert 200_000 < tokens < 400_000


@pytest.mark.parametrize("window", [100, 1_200])
def test_request_that_fits_a_tiny_window_is_relayed(window, open_client, make_chat, make_strict_upstream, capfd):
    """A request that fits a tiny window is relayed; one that does not is refused with its own size, which is reported
    once.
    """
    upstream, chat, store = make_strict_upstream(), make_chat("anthropic"), MemoryStore()
    chat.add_user_text("How high is the tide?")
    small = json.dumps(chat.body()).encode()
    chat.add_user_text(WORDS * 30)

    async def scenario():
        async with open_client(upstream, store, window=window) as client:
            fine = [await client.post(chat.path, small) for _ in range(2)]
            return fine, await client.post(chat.path, chat.body()), (await client.web.get("/livez")).json()

    fine, refused, livez = run(scenario)
    assert [(reply.status_code, reply.headers[STATE]) for reply in fine] == [(200, "relayed")] * 2
    assert upstream.bodies == [small] * 2
    assert (refused.status_code, refused.headers[STATE]) == (400, "refused")
    tokens = int(refused.json()["error"]["message"].split()[4])
    assert 2_000 < tokens < 5_000  # of some 1,900 words
    assert livez["status"] == "degraded"
    assert capfd.readouterr().err.count("WindowTooSmall") == 1
