"""Conversations begun without the proxy, whose earlier turns have signed or sealed thinking."""

from __future__ import annotations

import json

import anyio
import httpx2
import pytest

from holdfast.store.memory import MemoryStore
from holdfast.testing.provider import Provider, ScriptedAnswer
from holdfast.testing.provider import ProviderSettings as Strict

TOOL = "gauge"
PARAMETERS = {"type": "object", "properties": {"at": {"type": "string"}}}
FIELDS = {
    "anthropic": {
        "max_tokens": 4_000,
        "thinking": {"type": "adaptive"},
        "system": "You read the tide.",
        "tools": [{"name": TOOL, "input_schema": PARAMETERS}],
    },
    "openai-responses": {
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "instructions": "You read the tide.",
        "tools": [{"type": "function", "name": TOOL, "parameters": PARAMETERS, "strict": False}],
    },
    "gemini": {
        "systemInstruction": {"parts": [{"text": "You read the tide."}]},
        "tools": [{"functionDeclarations": [{"name": TOOL, "parameters": PARAMETERS}]}],
    },
}
"""The fields beside the messages, by API: system prompt, tool and returned thinking."""
SIGNATURE_FIELDS = {
    "anthropic": b'"signature"',
    "openai-responses": b'"encrypted_content"',
    "gemini": b'"thoughtSignature"',
}
ANSWERS = [ScriptedAnswer("", ((TOOL, {"at": str(step)}),), f"step {step}") for step in range(12)]
ANSWERS = [answer for step in ANSWERS for answer in (step, ScriptedAnswer("High.", thinking="so"))]
"""The model's answers: in each turn a call with thinking before it, then text."""
EARLIER_TURNS, PROXIED_TURNS = 3, 3


def make_results(api, answer):
    """Return the messages with the results of the calls in ``answer``."""
    value = json.loads(answer)
    if api == "anthropic":
        ids = [block["id"] for block in value["content"] if block["type"] == "tool_use"]
        return [
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": id_, "content": "2 m"}]} for id_ in ids
        ]
    if api == "openai-responses":
        ids = [item["call_id"] for item in value["output"] if item["type"] == "function_call"]
        return [{"type": "function_call_output", "call_id": id_, "output": "2 m"} for id_ in ids]
    calls = [part["functionCall"] for part in value["candidates"][0]["content"]["parts"] if "functionCall" in part]
    parts = [{"functionResponse": {**call, "response": {"output": "2 m"}}} for call in calls]
    for part in parts:
        part["functionResponse"].pop("args")
    return [{"role": "user", "parts": parts}]


class ToolClient:
    """A client with a tool; sends its conversation through any ``post`` function and keeps the requests in ``sent``."""

    def __init__(self, chat) -> None:
        self.chat, self.sent = chat, []
        self.fields = dict(FIELDS[chat.api])

    async def send(self, post):
        """Send the conversation so far and append the answer."""
        self.sent.append(json.dumps(self.chat.body() | self.fields, ensure_ascii=False).encode())
        reply = await post(self.chat.path, self.sent[-1])
        assert reply.status_code == 200, reply.text
        self.chat.add_answer(reply.content)
        return reply.content

    async def run_turn(self, post, text):
        """Send ``text``, run the tool that the model calls, and send its result."""
        self.chat.add_user_text(text)
        self.chat.messages += make_results(self.chat.api, await self.send(post))
        await self.send(post)


@pytest.fixture
def begin_conversation(make_upstream, make_chat):
    """Return a function that begins a conversation without the proxy; ``in_loop`` ends it after a tool result."""

    async def begin(api, *, in_loop=False):
        client_chat, upstream = ToolClient(make_chat(api)), make_upstream(Provider(Strict(window=100_000), ANSWERS))
        async with httpx2.AsyncClient(transport=upstream, base_url="http://up") as web:

            async def post(path, data):
                return await web.post(path, content=data, headers={"content-type": "application/json"})

            for number in range(EARLIER_TURNS):
                await client_chat.run_turn(post, f"And now, the {number}th time?")
            if in_loop:
                client_chat.chat.add_user_text("And the next?")
                client_chat.chat.messages += make_results(api, await client_chat.send(post))
        client_chat.sent.clear()
        upstream.bodies.clear()
        return client_chat, upstream

    return begin


def count_signatures(upstream, api):
    """Return the number of signatures in each request sent upstream."""
    return [body.count(SIGNATURE_FIELDS[api]) for body in upstream.bodies]


@pytest.mark.parametrize("restart", [False, True], ids=["one proxy", "restarts"])
@pytest.mark.parametrize("in_loop", [False, True], ids=["at a turn", "at a result"])
@pytest.mark.parametrize("api", FIELDS)
def test_proxy_forwards_signed_thinking_of_earlier_turns_unchanged(
    api, in_loop, restart, begin_conversation, open_client
):
    """The first and every later request is forwarded byte for byte with all thinking, also with a restart before
    each.
    """
    store = MemoryStore()

    async def scenario():
        client_chat, upstream = await begin_conversation(api, in_loop=in_loop)
        for run in range(PROXIED_TURNS if restart else 1):
            async with open_client(upstream, store) as client:
                if in_loop and not run:
                    await client_chat.send(client.post)
                for _ in range(1 if restart else PROXIED_TURNS):
                    await client_chat.run_turn(client.post, "Once more?")
        return client_chat, upstream

    client_chat, upstream = anyio.run(scenario)
    assert len(client_chat.sent) == 2 * PROXIED_TURNS + in_loop
    assert upstream.bodies == client_chat.sent
    assert count_signatures(upstream, api)[0] >= EARLIER_TURNS
    assert not any(request.reply.dropped_blocks for request in upstream.provider.requests)


def test_new_system_prompt_drops_thinking_bound_to_the_old(begin_conversation, open_client):
    """Thinking signed over the old system prompt is dropped and later thinking stays, so nothing is refused."""

    async def scenario():
        client_chat, upstream = await begin_conversation("anthropic")
        async with open_client(upstream) as client:
            await client_chat.run_turn(client.post, "Once more?")
            client_chat.fields["system"] = "You read the tide, and the wind."
            for _ in range(PROXIED_TURNS):
                await client_chat.run_turn(client.post, "And now?")
        return upstream

    upstream = anyio.run(scenario)
    assert count_signatures(upstream, "anthropic") == [6, 7, 0, 1, 2, 3, 4, 5]
    assert not any(request.reply.dropped_blocks for request in upstream.provider.requests)


@pytest.mark.parametrize("api", FIELDS)
def test_edited_first_message_through_the_proxy_is_forwarded_unchanged(api, begin_conversation, open_client):
    """A client that edits its first proxied message forks the log there; the setup is the same, so no byte changes."""

    async def scenario():
        client_chat, upstream = await begin_conversation(api)
        earlier = list(client_chat.chat.messages)
        async with open_client(upstream) as client:
            for text in ("Once more?", "I mean, once more?", "How high?"):
                client_chat.chat.messages = list(earlier)
                await client_chat.run_turn(client.post, text)
        return client_chat, upstream

    client_chat, upstream = anyio.run(scenario)
    assert upstream.bodies == client_chat.sent
    assert count_signatures(upstream, api)[0] >= EARLIER_TURNS


def test_edited_message_under_a_new_system_prompt_drops_bound_thinking(begin_conversation, open_client):
    """A client that edits its message and changes the system prompt loses the thinking signed over the old one."""

    async def scenario():
        client_chat, upstream = await begin_conversation("anthropic")
        earlier = list(client_chat.chat.messages)
        async with open_client(upstream) as client:
            await client_chat.run_turn(client.post, "Once more?")
            client_chat.chat.messages, client_chat.fields["system"] = earlier, "You read the tide, and the wind."
            await client_chat.run_turn(client.post, "I mean, once more?")
        return upstream

    upstream = anyio.run(scenario)
    assert count_signatures(upstream, "anthropic") == [6, 7, 0, 1]


def test_count_tokens_includes_the_thinking_that_would_be_sent(begin_conversation, open_client):
    """A count has all thinking unchanged, and after a new system prompt only the thinking since, so it is not
    refused.
    """

    async def count_tokens(client, client_chat):
        client_chat.chat.add_user_text("And how much is this?")
        body = {
            key: value for key, value in (client_chat.chat.body() | client_chat.fields).items() if key != "max_tokens"
        }
        data = json.dumps(body).encode()
        reply = await client.post("/v1/messages/count_tokens", data)
        client_chat.chat.messages.pop()
        assert reply.status_code == 200, reply.text
        return data

    async def scenario():
        client_chat, upstream = await begin_conversation("anthropic")
        async with open_client(upstream) as client:
            first = await count_tokens(client, client_chat)
            await client_chat.run_turn(client.post, "Once more?")
            second = await count_tokens(client, client_chat)
            client_chat.fields["system"] = "You read the tide, and the wind."
            await client_chat.run_turn(client.post, "And now?")
            await count_tokens(client, client_chat)
        return upstream, first, second

    upstream, first, second = anyio.run(scenario)
    assert (upstream.bodies[0], upstream.bodies[3]) == (first, second)
    assert count_signatures(upstream, "anthropic") == [6, 6, 7, 8, 0, 1, 2]
