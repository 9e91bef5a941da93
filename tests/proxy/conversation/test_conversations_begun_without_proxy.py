"""Conversations that were begun without the proxy and come to it with signed or sealed thinking of earlier turns."""

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
"""What stands beside the messages, by API: with a frame and a tool, and with thinking that comes back."""
SEALS = {"anthropic": b'"signature"', "openai-responses": b'"encrypted_content"', "gemini": b'"thoughtSignature"'}
ANSWERS = [ScriptedAnswer("", ((TOOL, {"at": str(step)}),), f"step {step}") for step in range(12)]
ANSWERS = [one for step in ANSWERS for one in (step, ScriptedAnswer("High.", thinking="so"))]
"""What the model says: each turn a call with thinking before it, then words."""
BEGUN, MORE = 3, 3


def results(api, answer):
    """Return what a client says of the calls in ``answer``."""
    told = json.loads(answer)
    if api == "anthropic":
        ids = [one["id"] for one in told["content"] if one["type"] == "tool_use"]
        return [
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": id_, "content": "2 m"}]} for id_ in ids
        ]
    if api == "openai-responses":
        ids = [one["call_id"] for one in told["output"] if one["type"] == "function_call"]
        return [{"type": "function_call_output", "call_id": id_, "output": "2 m"} for id_ in ids]
    calls = [one["functionCall"] for one in told["candidates"][0]["content"]["parts"] if "functionCall" in one]
    said = [{"functionResponse": {**one, "response": {"output": "2 m"}}} for one in calls]
    for one in said:
        one["functionResponse"].pop("args")
    return [{"role": "user", "parts": said}]


class Tides:
    """A client that keeps its conversation, and asks whoever it is told to; ``sent`` are its requests."""

    def __init__(self, chat) -> None:
        self.chat, self.sent = chat, []
        self.fields = dict(FIELDS[chat.api])

    async def ask(self, post):
        """Send what was said so far and hear the answer."""
        self.sent.append(json.dumps(self.chat.body() | self.fields, ensure_ascii=False).encode())
        reply = await post(self.chat.path, self.sent[-1])
        assert reply.status_code == 200, reply.text
        self.chat.add_answer(reply.content)
        return reply.content

    async def turn(self, post, text):
        """Say ``text``, run the tool that the model calls, and hear its words."""
        self.chat.add_user_text(text)
        self.chat.messages += results(self.chat.api, await self.ask(post))
        await self.ask(post)


@pytest.fixture
def begun(make_upstream, make_chat):
    """Return what begins a conversation without the proxy, and its provider; ``in_loop`` is behind a result."""

    async def _begun(api, *, in_loop=False):
        tides, upstream = Tides(make_chat(api)), make_upstream(Provider(Strict(window=100_000), ANSWERS))
        async with httpx2.AsyncClient(transport=upstream, base_url="http://up") as web:

            async def post(path, data):
                return await web.post(path, content=data, headers={"content-type": "application/json"})

            for number in range(BEGUN):
                await tides.turn(post, f"And now, the {number}th time?")
            if in_loop:
                tides.chat.add_user_text("And the next?")
                tides.chat.messages += results(api, await tides.ask(post))
        tides.sent.clear()
        upstream.bodies.clear()
        return tides, upstream

    return _begun


def seals(upstream, api):
    """Return how many seals each request had that the provider got."""
    return [body.count(SEALS[api]) for body in upstream.bodies]


@pytest.mark.parametrize("restart", [False, True], ids=["on", "restarted"])
@pytest.mark.parametrize("in_loop", [False, True], ids=["a turn", "a result"])
@pytest.mark.parametrize("api", FIELDS)
def test_proxy_forwards_signed_thinking_of_earlier_turns_unchanged(api, in_loop, restart, begun, open_client):
    """The first and every later request is forwarded byte for byte with all thinking, also with a restart before
    each.
    """
    store = MemoryStore()

    async def go():
        tides, upstream = await begun(api, in_loop=in_loop)
        for run in range(MORE if restart else 1):
            async with open_client(upstream, store) as client:
                if in_loop and not run:
                    await tides.ask(client.post)
                for _ in range(1 if restart else MORE):
                    await tides.turn(client.post, "Once more?")
        return tides, upstream

    tides, upstream = anyio.run(go)
    assert len(tides.sent) == 2 * MORE + in_loop
    assert upstream.bodies == tides.sent
    assert seals(upstream, api)[0] >= BEGUN
    assert not any(one.reply.dropped_blocks for one in upstream.provider.requests)


def test_new_system_prompt_drops_thinking_bound_to_the_old(begun, open_client):
    """Thinking signed over the old system prompt is dropped and later thinking stays, so nothing is refused."""

    async def go():
        tides, upstream = await begun("anthropic")
        async with open_client(upstream) as client:
            await tides.turn(client.post, "Once more?")
            tides.fields["system"] = "You read the tide, and the wind."
            for _ in range(MORE):
                await tides.turn(client.post, "And now?")
        return upstream

    upstream = anyio.run(go)
    assert seals(upstream, "anthropic") == [6, 7, 0, 1, 2, 3, 4, 5]
    assert not any(one.reply.dropped_blocks for one in upstream.provider.requests)


@pytest.mark.parametrize("api", FIELDS)
def test_edited_first_message_through_the_proxy_is_forwarded_unchanged(api, begun, open_client):
    """A client that edits its first proxied message forks the log there; the setup is the same, so no byte changes."""

    async def go():
        tides, upstream = await begun(api)
        said = list(tides.chat.messages)
        async with open_client(upstream) as client:
            for text in ("Once more?", "I mean, once more?", "How high?"):
                tides.chat.messages = list(said)
                await tides.turn(client.post, text)
        return tides, upstream

    tides, upstream = anyio.run(go)
    assert upstream.bodies == tides.sent
    assert seals(upstream, api)[0] >= BEGUN


def test_edited_message_under_a_new_system_prompt_drops_bound_thinking(begun, open_client):
    """A client that edits its message and changes the system prompt loses the thinking signed over the old one."""

    async def go():
        tides, upstream = await begun("anthropic")
        said = list(tides.chat.messages)
        async with open_client(upstream) as client:
            await tides.turn(client.post, "Once more?")
            tides.chat.messages, tides.fields["system"] = said, "You read the tide, and the wind."
            await tides.turn(client.post, "I mean, once more?")
        return upstream

    upstream = anyio.run(go)
    assert seals(upstream, "anthropic") == [6, 7, 0, 1]


def test_count_tokens_includes_the_thinking_that_would_be_sent(begun, open_client):
    """A count has all thinking unchanged, and after a new system prompt only the thinking since, so it is not
    refused.
    """

    async def counted(client, tides):
        tides.chat.add_user_text("And how much is this?")
        body = {key: value for key, value in (tides.chat.body() | tides.fields).items() if key != "max_tokens"}
        data = json.dumps(body).encode()
        reply = await client.post("/v1/messages/count_tokens", data)
        tides.chat.messages.pop()
        assert reply.status_code == 200, reply.text
        return data

    async def go():
        tides, upstream = await begun("anthropic")
        async with open_client(upstream) as client:
            first = await counted(client, tides)
            await tides.turn(client.post, "Once more?")
            second = await counted(client, tides)
            tides.fields["system"] = "You read the tide, and the wind."
            await tides.turn(client.post, "And now?")
            await counted(client, tides)
        return upstream, first, second

    upstream, first, second = anyio.run(go)
    assert (upstream.bodies[0], upstream.bodies[3]) == (first, second)
    assert seals(upstream, "anthropic") == [6, 6, 7, 8, 0, 1, 2]
