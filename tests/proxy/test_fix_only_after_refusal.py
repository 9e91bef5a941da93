"""Requests are sent as the client wrote them where that may be accepted, and fixed without loss where it is not."""

from __future__ import annotations

import base64
import json

import anyio
import httpx2
import pytest

from holdfast.engine.log.journal import Journal
from holdfast.store.memory import MemoryStore

CALL = {"type": "function", "function": {"name": "f", "arguments": "{}"}}
USER, ANSWER = {"role": "user", "content": "a"}, {"role": "assistant", "content": "x"}


def make_calls(*ids):
    return {"role": "assistant", "content": "", "tool_calls": [{"id": id_, **CALL} for id_ in ids]}


def make_result(id_, text="o"):
    return {"role": "tool", "tool_call_id": id_, "content": text}


LONG = "chatcmpl-tool-" + "0" * 80
INVALID = {
    "empty ids": [USER, make_calls("", ""), make_result("", "one"), make_result("", "two"), USER],
    "an id twice": [USER, make_calls("c", "c"), make_result("c", "one"), make_result("c", "two"), USER],
    "long ids": [USER, make_calls(LONG), make_result(LONG), USER],
    "an orphan": [USER, make_result("zz", "IMPORTANT")],
    "no result": [USER, make_calls("c"), USER],
}
"""Conversations that OpenAI refuses and many local servers accept."""
VALID = {
    "empty words": [{"role": "user", "content": ""}],
    "an answer first": [ANSWER, USER],
    "an answer last": [USER, {"role": "assistant", "content": "The answer is "}],
    "unknown fields": [{**USER, "name": "me"}, {**ANSWER, "reasoning_content": "r"}, USER],
}


def send_conversation(open_client, make_strict_upstream, messages, model, path="/v1/chat/completions", **fields):
    """Send a request; return its body, the bodies sent upstream, and the reply."""
    upstream = make_strict_upstream(400_000)
    data = json.dumps({"model": model, "messages": messages, **fields}).encode()

    async def scenario():
        async with open_client(upstream) as client:
            return await client.post(path, data)

    return data, upstream.bodies, anyio.run(scenario)


@pytest.mark.parametrize("model", ["local-7b", "qwen3-coder", "somebody-s-own", "openai/gpt-oss-20b"])
@pytest.mark.parametrize("name", [*INVALID, *VALID])
def test_proxy_fixes_requests_to_unknown_servers_only_after_a_refusal(name, model, open_client, make_strict_upstream):
    """The rules of an unknown server are not known, so the client's bytes are sent first and the fixed request only
    after a refusal.
    """
    data, bodies, reply = send_conversation(open_client, make_strict_upstream, {**INVALID, **VALID}[name], model)
    assert bodies[0] == data
    assert (reply.status_code, len(bodies)) == (200, 2 if name in INVALID else 1)


@pytest.mark.parametrize("model", ["gpt-5.1", "deepseek-chat"])
@pytest.mark.parametrize("name", INVALID)
def test_proxy_fixes_requests_to_known_providers_before_the_first_send(name, model, open_client, make_strict_upstream):
    """For models of OpenAI, and of a provider whose rules are known, the first request already follows the rules, and
    every call and result is still in it.
    """
    _, bodies, reply = send_conversation(open_client, make_strict_upstream, INVALID[name], model)
    assert (reply.status_code, len(bodies)) == (200, 1)
    shown = json.loads(bodies[0])["messages"]
    calls = [call["id"] for message in shown for call in message.get("tool_calls", ())]
    assert len(calls) == sum(len(message.get("tool_calls", ())) for message in INVALID[name])
    for message in INVALID[name]:
        assert message["role"] != "tool" or message["content"] in bodies[0].decode()


@pytest.mark.parametrize("name", VALID)
def test_proxy_forwards_what_a_known_provider_accepts(name, open_client, make_strict_upstream):
    """A conversation that a known provider accepts goes up byte for byte."""
    data, bodies, reply = send_conversation(open_client, make_strict_upstream, VALID[name], "deepseek-chat")
    assert (reply.status_code, bodies) == (200, [data])


@pytest.mark.parametrize("name", ["no result", "unknown fields"])
def test_proxy_returns_refusals_that_no_fix_cures(name, open_client, make_strict_upstream):
    """A refusal that has nothing to do with the form reaches the client, and a request that is already in order is not
    sent again.
    """
    _, bodies, reply = send_conversation(
        open_client, make_strict_upstream, {**INVALID, **VALID}[name], "local-7b", temperature=9
    )
    assert (reply.status_code, len(bodies)) == (400, 2 if name in INVALID else 1)
    assert "temperature" in reply.text


@pytest.mark.parametrize("models", [("local-7b",), ("local-7b", "local-13b")])
def test_proxy_asks_once_per_model_before_fixing_every_request(models, open_client, make_strict_upstream):
    """A server that enforces the rules refuses once per model and session; later requests are fixed before the first
    send.
    """
    upstream = make_strict_upstream(400_000)
    messages = [*INVALID["no result"]]

    async def scenario():
        async with open_client(upstream) as client:
            for text, model in zip("bcdefg", 6 * models, strict=False):
                reply = await client.post("/v1/chat/completions", {"model": model, "messages": messages})
                assert reply.status_code == 200
                messages.extend([reply.json()["choices"][0]["message"], {"role": "user", "content": text}])

    anyio.run(scenario)
    assert len(upstream.bodies) == 6 + len(models)


def make_tool_loop(thinking):
    """Return a turn with a tool call, with thinking before it or not."""
    block = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "o"}
    return [USER, {"role": "assistant", "content": [*thinking, block]}, {"role": "user", "content": [result]}]


def test_proxy_drops_thinking_after_a_refusal_and_then_at_once(open_client, make_strict_upstream):
    """A tool loop that began without thinking is sent as written; after the refusal thinking is left out at once."""
    upstream = make_strict_upstream(400_000)
    tool = {"name": "look", "input_schema": {"type": "object"}}
    more = {"max_tokens": 4_000, "tools": [tool], "thinking": {"type": "enabled", "budget_tokens": 1_024}}
    body = {"model": "claude-sonnet-4-5", "messages": make_tool_loop([]), **more}

    async def scenario():
        async with open_client(upstream) as client:
            first = await client.post("/v1/messages", body)
            messages = [
                *body["messages"],
                {"role": "assistant", "content": first.json()["content"]},
                *make_tool_loop([]),
            ]
            return first, await client.post("/v1/messages", {**body, "messages": messages})

    assert [reply.status_code for reply in anyio.run(scenario)] == [200, 200]
    assert upstream.bodies[0] == json.dumps(body).encode()
    assert ["thinking" in json.loads(sent) for sent in upstream.bodies] == [True, False, False]


class RefusingUpstream(httpx2.AsyncBaseTransport):
    """Refuses every request as malformed."""

    WORDS = "messages: this is not how it is done"

    async def handle_async_request(self, _):
        error = {"type": "invalid_request_error", "message": self.WORDS}
        return httpx2.Response(400, json={"type": "error", "error": error})


def test_proxy_fixes_a_refused_request_only_once(open_client, make_strict_upstream):
    """A request that is refused again after the fix is not sent a third time, and the provider's error is the
    answer.
    """
    upstream = make_strict_upstream(400_000)
    upstream.inner = RefusingUpstream()
    thinking = {"max_tokens": 4_000, "thinking": {"type": "enabled", "budget_tokens": 1_024}}
    invalid = {"model": "claude-sonnet-4-5", "messages": make_tool_loop([]), **thinking}
    valid = {"model": "claude-sonnet-4-5", "messages": [USER], **thinking}

    async def scenario():
        async with open_client(upstream) as client:
            return [await client.post("/v1/messages", body) for body in (invalid, invalid, valid)]

    assert [(reply.status_code, RefusingUpstream.WORDS in reply.text) for reply in anyio.run(scenario)] == [
        (400, True)
    ] * 3
    assert upstream.bodies[:1] + upstream.bodies[-1:] == [json.dumps(body).encode() for body in (invalid, valid)]
    assert len(upstream.bodies) == 5


IMAGE_DATA = base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"\0" * 60).decode()


def make_image_message(count):
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": IMAGE_DATA}}
    return {"role": "user", "content": [*[image] * count, {"type": "text", "text": "what?"}]}


@pytest.mark.parametrize("count", [21, 100])
def test_proxy_forwards_all_images_the_provider_accepts(count, open_client, make_strict_upstream):
    """A request that fits is forwarded byte for byte, however many images it has."""
    data, bodies, reply = send_conversation(
        open_client,
        make_strict_upstream,
        [make_image_message(count)],
        "claude-sonnet-4-5",
        "/v1/messages",
        max_tokens=100,
    )
    assert (bodies, reply.status_code) == ([data], 200)


def test_proxy_forwards_a_20_mb_document_unchanged(open_client, make_strict_upstream):
    """20 MB of base64 are forwarded byte for byte, because the Messages API accepts 32 MB."""
    document = base64.b64encode(b"%PDF" + b"\0" * 15_000_000).decode()
    source = {"type": "base64", "media_type": "application/pdf", "data": document}
    messages = [
        {"role": "user", "content": [{"type": "document", "source": source}, {"type": "text", "text": "what?"}]}
    ]
    data, bodies, _ = send_conversation(
        open_client, make_strict_upstream, messages, "claude-sonnet-4-5", "/v1/messages", max_tokens=100
    )
    assert bodies == [data]


def test_proxy_keeps_the_newest_100_images_after_a_refusal(open_client, make_strict_upstream):
    """The newest message is sent as written; after a refusal for 101 images it is sent again with the newest 100."""
    data, bodies, reply = send_conversation(
        open_client,
        make_strict_upstream,
        [make_image_message(101)],
        "claude-sonnet-4-5",
        "/v1/messages",
        max_tokens=100,
    )
    assert (bodies[0], reply.status_code) == (data, 200), reply.text
    assert bodies[-1].count(IMAGE_DATA.encode()) == 100


@pytest.mark.parametrize("name", ["empty ids", "an id twice", "long ids"])
@pytest.mark.parametrize("how", ["one", "restarted", "forked", "forked anew", "forgotten"])
def test_required_form_is_kept_in_the_log(how, name, open_client, make_strict_upstream):
    """The form that a server requires is in the log, so a restart, another replica and a sibling branch all apply it,
    and forgetting the learned window does not change it.
    """
    upstream, store = make_strict_upstream(400_000), MemoryStore()

    async def send_messages(client, messages):
        before = len(upstream.bodies)
        reply = await client.post(
            "/v1/chat/completions", json.dumps({"model": "local-7b", "messages": messages}).encode()
        )
        assert reply.status_code == 200
        return reply.json()["choices"][0]["message"], len(upstream.bodies) - before

    async def scenario():
        messages, counts = INVALID[name], []
        async with open_client(upstream, store) as first, open_client(upstream, store) as second:
            for turn in range(4):
                client = second if turn % 2 and how in ("restarted", "forked anew") else first
                answer, count = await send_messages(client, messages)
                counts.append(count)
                if how.startswith("forked"):
                    messages = [*messages[:-1], {"role": "user", "content": f"go {turn}"}]
                else:
                    messages = [*messages, answer, {"role": "user", "content": f"go {turn}"}]
                if how == "forgotten":
                    Journal.open(store, store.list_sessions()[0].key).forget_learned_window()
        return counts

    assert anyio.run(scenario) == [2, 1, 1, 1]
