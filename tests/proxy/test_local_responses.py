"""Requests that the proxy makes smaller or answers itself, and how they are reported and counted."""

from __future__ import annotations

import json

import anyio
import pytest

from holdfast.providers.errors.classify_error import classify_error
from holdfast.providers.errors.report import ErrorReport
from holdfast.store.memory import MemoryStore
from holdfast.testing.provider import Provider
from holdfast.testing.provider import ProviderSettings as Strict
from holdfast.testing.provider.client import STRICTEST_MODELS

APIS = list(STRICTEST_MODELS)
WORDS = "kelp on the rock, and the tide comes in. " * 110
STATE = "x-holdfast-state"


def run(function):
    """Return what the coroutine function returns."""
    return anyio.run(function)


LARGE_RESULT = "".join(f"line {number} of a file that was read\n" for number in range(2_500))
CLIENT_COMPACTIONS = {
    "/v1/messages": (
        {"role": "user", "content": "Read it."},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "read", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": LARGE_RESULT}]},
        {"role": "assistant", "content": "Read."},
        {"role": "user", "content": "Your task is to create a detailed summary of it."},
    ),
    "/v1/responses/compact": (
        {"role": "user", "content": "Read it."},
        {"type": "function_call", "call_id": "t", "name": "read", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "t", "output": LARGE_RESULT},
    ),
}


@pytest.mark.parametrize("path", CLIENT_COMPACTIONS)
def test_client_compaction_that_fits_is_forwarded_unchanged(path, open_client, make_strict_upstream):
    """A large result in a client's compaction is not spilled, because the summary is made from it and it could not be
    read back.
    """
    upstream, api = make_strict_upstream(200_000), "anthropic" if path == "/v1/messages" else "openai-responses"
    field = "messages" if api == "anthropic" else "input"
    tools = {"max_tokens": 400, "tools": [{"name": "read", "input_schema": {"type": "object"}}]}
    body = {"model": STRICTEST_MODELS[api], field: [*CLIENT_COMPACTIONS[path]]} | (tools if api == "anthropic" else {})

    async def scenario():
        async with open_client(upstream, MemoryStore()) as client:
            return await client.post(path, body, {"user-agent": "claude-cli/2.0.1 (external, cli)"})

    assert run(scenario).status_code == 200
    assert upstream.bodies == [json.dumps(body).encode()]


@pytest.mark.parametrize("api", APIS)
def test_proxy_learns_a_byte_limit_from_a_413(api, open_client, make_upstream, make_chat):
    """After a 413 the conversation is made smaller, later requests keep to the learned byte limit, and the newest text
    stays a message of its own.
    """
    upstream, chat = make_upstream(Provider(Strict(window=200_000)), max_bytes=30_000), make_chat(api)
    field = {"gemini": "contents", "openai-responses": "input"}.get(api, "messages")

    async def scenario():
        async with open_client(upstream) as client:
            for number in range(16):
                reply = await chat.send_turn(client, f"Note {number}: {WORDS}")
                assert reply.status_code == 200, (number, reply.text)
                newest = json.dumps(json.loads(upstream.bodies[-1])[field][-1])
                assert f"Note {number}: {WORDS}" in newest
                assert "replaced by this extract" not in newest

    run(scenario)
    assert 1 <= len(upstream.bodies) - 16 <= 2


def test_client_compaction_of_an_unknown_conversation_is_reduced(open_client, make_chat, make_strict_upstream):
    """A compaction of a conversation the proxy has not seen is reduced like a turn and not recorded; one that fits is
    forwarded unchanged.
    """
    upstream, chat, store = make_strict_upstream(16_000), make_chat("openai-responses"), MemoryStore()
    for number in range(30):
        chat.add_user_text(f"Note {number}: {WORDS}")
        content = [{"type": "output_text", "text": f"Noted {number}."}]
        chat.messages.append({"type": "message", "role": "assistant", "content": content})
    long, short = chat.body(), chat.body() | {"input": chat.messages[-4:]}

    async def scenario():
        async with open_client(upstream, store, window=16_000) as client:
            return [await client.post("/v1/responses/compact", body) for body in (long, short, long)]

    replies = run(scenario)
    assert [reply.status_code for reply in replies] == [200] * 3, [reply.text for reply in replies]
    assert [reply.headers[STATE] for reply in replies] == ["managed"] * 3
    assert "Note 29: " in upstream.bodies[0].decode()
    assert upstream.bodies[1] == json.dumps(short).encode()
    assert upstream.bodies[2] == upstream.bodies[0]
    assert not store.list_sessions()


@pytest.mark.parametrize("words", ["native", "llama.cpp", "openai-tpm"])
@pytest.mark.parametrize("is_known", [False, True], ids=["unknown", "known"])
def test_refused_responses_compact_is_retried_smaller(is_known, words, open_client, make_upstream, make_chat):
    """A refused ``/responses/compact`` is retried smaller whatever the wording, no request is sent twice, and nothing
    of it is recorded.
    """
    upstream, chat, store = (
        make_upstream(Provider(Strict(window=12_000, overflow=words))),
        make_chat("openai-responses"),
        MemoryStore(),
    )

    async def scenario():
        async with open_client(upstream, store) as client:
            for number in range(12 if is_known else 0):
                assert (await chat.send_turn(client, f"Note {number}: {WORDS}")).status_code == 200
            before = [len(store.read_entries(info.key)) for info in store.list_sessions()]
            for number in range(12):
                chat.add_user_text(f"Note {number}: {WORDS}")
                content = [{"type": "output_text", "text": f"Noted {number}."}]
                chat.messages.append({"type": "message", "role": "assistant", "content": content})
            del upstream.bodies[:]
            reply = await client.post(
                "/v1/responses/compact", {"model": STRICTEST_MODELS[chat.api], "input": chat.messages}
            )
            return reply, before, [len(store.read_entries(info.key)) for info in store.list_sessions()]

    reply, before, after = run(scenario)
    assert (reply.status_code, reply.headers[STATE]) == (200, "managed"), reply.text
    assert reply.json()["object"] == "response.compaction"
    assert reply.content == upstream.answers[-1]
    assert "x-holdfast-request" not in reply.headers
    assert before == after
    assert len({*upstream.bodies}) == len(upstream.bodies) > 0


SUMMARISE = "CRITICAL: Respond with TEXT ONLY. Do NOT call any tools.\n\nYour task is to create a detailed summary"


@pytest.mark.parametrize("stream", [False, True])
def test_refused_claude_code_compaction_is_retried_smaller(stream, open_client, make_chat, make_strict_upstream):
    """A ``/compact`` of Claude Code that the provider refuses, even as the first request seen, is sent once as written,
    then smaller, and not recorded.
    """
    upstream, chat, store = make_strict_upstream(8_000), make_chat("anthropic", stream=stream), MemoryStore()
    for number in range(20):
        chat.add_user_text(f"Note {number}: {WORDS}")
        chat.messages.append({"role": "assistant", "content": f"Noted {number}."})
    chat.add_user_text(SUMMARISE)
    headers = {"user-agent": "claude-cli/2.1.197 (external, cli)", "x-claude-code-session-id": "kelp"}

    async def scenario():
        async with open_client(upstream, store) as client:
            return await client.post(chat.path, chat.body(), headers)

    reply = run(scenario)
    assert (reply.status_code, reply.headers[STATE]) == (200, "managed"), reply.text
    assert "detailed summary" in upstream.bodies[-1].decode()
    assert upstream.bodies.count(json.dumps(chat.body()).encode()) == 1
    assert not store.list_sessions()


def test_observe_mode_returns_a_refused_client_compaction(open_client, make_chat, make_strict_upstream):
    """In observe mode a client's compaction is sent once, and its refusal is returned."""
    upstream, chat = make_strict_upstream(2_000), make_chat("anthropic")
    chat.add_user_text(WORDS * 3)
    chat.messages.append({"role": "assistant", "content": "Noted."})
    chat.add_user_text(SUMMARISE)
    headers = {"user-agent": "claude-cli/2.1.197 (external, cli)", "x-claude-code-session-id": "kelp"}

    async def scenario():
        async with open_client(upstream, observe=True) as client:
            return await client.post(chat.path, chat.body(), headers)

    assert run(scenario).status_code == 400
    assert len(upstream.bodies) == 1


LARGE_SYSTEM_PROMPT = "a system prompt about kelp, rocks and tides. " * 1_000
"""Larger than the window by itself."""
SYSTEMS = {
    "anthropic": {"system": LARGE_SYSTEM_PROMPT},
    "openai-chat": {
        "messages": [{"role": "system", "content": LARGE_SYSTEM_PROMPT}, {"role": "user", "content": "Hello."}]
    },
    "openai-responses": {"instructions": LARGE_SYSTEM_PROMPT},
    "gemini": {"systemInstruction": {"parts": [{"text": LARGE_SYSTEM_PROMPT}]}},
}


@pytest.mark.parametrize("words", ["native", "ollama", "replicate"])
@pytest.mark.parametrize("api", APIS)
def test_unfixable_overflow_is_reported_with_limit_and_size(api, words, open_client, make_upstream, make_chat):
    """A client sizes its own cut by these numbers: the provider's where it gave them, else our estimate, in which the
    request exceeds the limit by a useful margin.
    """
    upstream, chat = make_upstream(Provider(Strict(window=8_000, overflow=words))), make_chat(api)
    chat.add_user_text("Hello.")

    async def scenario():
        async with open_client(upstream) as client:
            return await client.post(chat.path, chat.body() | SYSTEMS[api])

    verdict = classify_error(ErrorReport(api, status=400, body=run(scenario).content))
    counted = upstream.provider.requests[-1].tokens
    if words == "native" and api != "openai-responses":
        assert (verdict.limit, verdict.requested) == (8_000, counted)
    else:
        assert 0.8 * counted < verdict.requested < 1.5 * counted
        assert 0.5 * verdict.requested < verdict.limit < 0.9 * verdict.requested


def test_window_too_small_is_reported_once(open_client, make_chat, make_strict_upstream, capfd):
    """A learned window that fits nothing is reported once in the log and on standard error and in ``/livez``; each
    request is refused locally and not sent.
    """
    upstream, chat, store = make_strict_upstream(1_500), make_chat("anthropic"), MemoryStore()

    async def scenario():
        async with open_client(upstream, store) as client:
            for number in range(5):
                chat.add_user_text(f"Note {number}: {WORDS}")
                reply = await client.post(chat.path, chat.body())
            return reply, [(await client.web.get(place)).json() for place in ("/livez", "/stats")]

    reply, (livez, stats) = run(scenario)
    assert (reply.status_code, reply.headers[STATE]) == (400, "refused")
    assert classify_error(ErrorReport("anthropic", status=400, body=reply.content)).kind == "context_window"
    refused = livez["refused"]
    assert refused == 5 - len(upstream.bodies) > 1
    assert (livez["status"], [trouble["what"] for trouble in livez["troubles"]]) == ("degraded", ["WindowTooSmall"])
    assert (stats["requests"]["all"]["refused"], stats["requests"]["all"]["failed"]) == (refused, 0)
    reasons = [entry.body.reason for entry in store.read_entries(store.list_sessions()[0].key, "failure")]
    assert sum(reason.startswith("window-too-small: ") for reason in reasons) == 1
    assert capfd.readouterr().err.count("WindowTooSmall") == 1


def test_local_refusals_are_counted_as_refused(open_client, make_chat, make_strict_upstream):
    """A foreign host, a missing token, an oversized body, an unknown coding and an unknown address count as refused,
    not as relayed or failed.
    """
    upstream, chat = make_strict_upstream(), make_chat("anthropic")
    chat.add_user_text("How high is the tide?")
    wrong = {
        403: (chat.path, {"host": "evil.example", "x-holdfast-token": "t"}, b"{}"),
        401: (chat.path, {}, b"{}"),
        413: (chat.path, {"x-holdfast-token": "t"}, b" " * 2_000),
        415: (chat.path, {"x-holdfast-token": "t", "content-encoding": "br"}, b"{}"),
        404: ("/nowhere", {"x-holdfast-token": "t"}, b"{}"),
    }

    async def scenario():
        async with open_client(upstream, token="t", body_bytes=1_000) as client:
            replies = [await client.post(path, body, headers) for path, headers, body in wrong.values()]
            await client.post(chat.path, chat.body(), {"x-holdfast-token": "t"})
            await client.web.get(chat.path)
            headers = {"x-holdfast-token": "t"}
            stats, livez = [(await client.web.get(place, headers=headers)).json() for place in ("/stats", "/livez")]
            return replies, stats, livez, (await client.web.get("/metrics", headers=headers)).text

    replies, stats, livez, metrics = run(scenario)
    assert [reply.status_code for reply in replies] == list(wrong)
    assert {reply.headers[STATE] for reply in replies} == {"refused"}
    counted = {state: count for state, count in stats["requests"]["all"].items() if count}
    assert counted == {"managed": 1, "refused": 6}
    assert stats["requests"]["other"]["refused"] == 2  # the unknown address, and the request that is not a POST
    assert (livez["refused"], livez["status"]) == (6, "ok")
    assert "holdfast_refused_total 6" in metrics
    assert len(upstream.bodies) == 1


def test_a_client_that_only_asks_for_a_websocket_counts_as_no_refusal(open_client, make_strict_upstream):
    """Codex asks once for each thread and goes on over HTTP; a status with refused requests would look like a fault."""
    headers = {"upgrade": "websocket", "connection": "Upgrade"}

    async def scenario():
        async with open_client(make_strict_upstream()) as client:
            reply = await client.web.get("/v1/responses", headers=headers)
            return reply, (await client.web.get("/stats")).json(), (await client.web.get("/livez")).json()

    reply, stats, livez = run(scenario)
    assert reply.status_code == 426
    assert not any(stats["requests"]["all"].values())
    assert livez["refused"] == 0


def test_root_path_identifies_the_proxy(open_client, make_strict_upstream):
    """GET and HEAD on the proxy's own root identify it, unless the client's headers name a provider."""
    upstream = make_strict_upstream()

    async def scenario():
        async with open_client(upstream) as client:
            greetings = [await client.web.request(method, "/") for method in ("GET", "HEAD", "POST")]
            by_own_address = await client.web.get("/u/http://127.0.0.1:8642/")
            for_anthropic = await client.web.get("/", headers={"x-api-key": "k"})
            statuses = [reply.status_code for reply in (*greetings, by_own_address)]
            return statuses, (greetings[0].json(), by_own_address.json()), for_anthropic.headers[STATE]

    assert run(scenario) == ([200, 200, 404, 200], ({"proxy": "holdfast"}, {"proxy": "holdfast"}), "relayed")
    assert [request.url.path for request in upstream.sent] == ["/"]


def test_metrics_path_of_a_named_upstream_is_relayed(open_client, make_strict_upstream):
    """A path that names an upstream relays ``/metrics`` to it, because gateways have one too."""
    upstream = make_strict_upstream()

    async def scenario():
        async with open_client(upstream) as client:
            return [(await client.web.get(f"{base}/metrics")).headers.get(STATE) for base in ("", "/u/http://gateway")]

    assert run(scenario) == [None, "relayed"]
    assert [request.url.path for request in upstream.sent] == ["/metrics"]


@pytest.mark.parametrize("api", APIS)
def test_upstream_that_is_the_proxy_itself_is_refused(api, open_client, make_chat, make_strict_upstream):
    """A path that names the proxy itself would loop forever; it gets a 404 in the words of its API and is not sent."""
    upstream, chat = make_strict_upstream(), make_chat(api)
    chat.add_user_text("How high is the tide?")

    async def scenario():
        async with open_client(upstream) as client:
            return await client.post(f"/u/http://127.0.0.1:8642{chat.path}", chat.body())

    reply = run(scenario)
    assert (reply.status_code, reply.headers[STATE]) == (404, "refused")
    name, value = ("status", "INVALID_ARGUMENT") if api == "gemini" else ("type", "invalid_request_error")
    error = reply.json()["error"]
    assert (error[name], "no provider is known for POST" in error["message"]) == (value, True)
    assert not upstream.bodies
