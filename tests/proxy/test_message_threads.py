"""Anthropic's message threads: a request that continues one has only what is new, and nothing is planned for it."""

from __future__ import annotations

import json

import anyio
import httpx2

from holdfast.testing.provider import Provider, ProviderSettings

ANSWER = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude-opus-5-5",
    "content": [{"type": "tool_use", "id": "t1", "name": "ls", "input": {}}],
    "stop_reason": "tool_use",
    "usage": {"input_tokens": 9, "output_tokens": 4},
}


def test_proxy_relays_the_continuation_of_a_thread(open_client, make_upstream):
    """The first request of a thread is managed as any other; one that continues it goes on byte for byte, and so does
    the whole conversation when the client sends it again."""

    class Anthropic(make_upstream):
        async def handle_async_request(self, request):
            self.bodies.append(await request.aread())
            return httpx2.Response(200, json=ANSWER)

    upstream = Anthropic(Provider(ProviderSettings(tokenizer="words")))
    question = {"role": "user", "content": "What is here?"}
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "a.py"}]}
    answer = {"role": "assistant", "content": ANSWER["content"]}
    tools = [{"name": "ls", "input_schema": {"type": "object"}}]
    fields = {"model": "claude-opus-5-5", "max_tokens": 99}
    following = {"type": "continue", "previous_message_id": "msg_1"}
    bodies = [
        {**fields, "tools": tools, "thread": {"type": "create"}, "messages": [question]},
        {**fields, "thread": following, "messages": [result]},
        {**fields, "tools": tools, "thread": {"type": "create"}, "messages": [question, answer, result]},
    ]

    async def scenario():
        async with open_client(upstream) as client:
            return [await client.post("/v1/messages", body) for body in bodies]

    replies = anyio.run(scenario)
    assert [reply.headers["x-holdfast-state"] for reply in replies] == ["managed", "relayed", "managed"]
    assert upstream.bodies == [json.dumps(body).encode() for body in bodies]
