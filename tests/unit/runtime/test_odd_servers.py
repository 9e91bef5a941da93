"""Servers that only resemble an API: what they answer is their own, and ends no session."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager

import pytest

from holdfast.config import target
from holdfast.model.messages import Message
from holdfast.model.parts import Text, ToolResult
from holdfast.runtime.engine import Engine
from holdfast.runtime.upstream import Reply
from holdfast.store.memory import MemoryStore
from holdfast.telemetry import events
from holdfast.testing.clock import run
from holdfast.testing.provider.client import MODELS
from holdfast.testing.samples import KEY
from holdfast.testing.upstream import ScriptedUpstream
from holdfast.wire.lens import open_body
from holdfast.wire.rules import validate


def chat(*calls):
    """Return an answer of Chat Completions with these calls."""
    message = {"role": "assistant", "content": None, "tool_calls": calls}
    return json.dumps({"id": "x", "choices": [{"index": 0, "finish_reason": "tool_calls", "message": message}]})


def responses(*items):
    """Return an answer of Responses with these items."""
    return json.dumps({"id": "r", "object": "response", "status": "completed", "model": "m", "output": items})


def messages(*blocks):
    """Return an answer of Messages with these blocks."""
    told = {"type": "message", "role": "assistant", "stop_reason": "tool_use", "content": blocks}
    return json.dumps({"id": "m", "model": "m", **told, "usage": {"input_tokens": 10, "output_tokens": 5}})


def gemini(*parts):
    """Return an answer of Gemini with these parts."""
    return json.dumps({"candidates": [{"content": {"role": "model", "parts": parts}, "finishReason": "STOP"}]})


BASH = {"name": "bash", "arguments": "{}"}
CALL = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "bash", "arguments": "{}"}
SAID = {"type": "message", "id": "msg_1", "role": "assistant", "content": [{"type": "output_text", "text": "hi"}]}
ODD = [
    ("openai-chat", chat({"id": "c1", "type": "", "function": BASH})),
    ("openai-chat", chat({"id": "c1", "type": None, "function": BASH})),
    ("openai-chat", chat({"id": "c1", "type": "function", "function": {"name": "bash", "arguments": {}}})),
    ("openai-chat", chat({"id": "c1", "type": "function", "function": {"name": "bash", "arguments": None}})),
    ("openai-responses", responses({"type": "reasoning", "id": "rs_1", "encrypted_content": "abc"}, SAID)),
    ("openai-responses", responses({**SAID, "id": ""}, {**CALL, "id": ""})),
    ("openai-responses", responses({**SAID, "id": "msg:1/2"}, {**CALL, "id": "call:1/2"})),
    ("anthropic", messages({"type": "tool_use", "id": "t1", "name": "bash"})),
    ("anthropic", messages({"type": "tool_use", "id": "bash:0", "name": "bash", "input": {}})),
    ("gemini", gemini({"text": "x"}, {})),
]


def read(message):
    """Return what a message says, its ids too; where a cache is marked is no matter."""
    return message.role, message.text, [(call.id, call.name, call.arguments) for call in message.calls], message.results


@pytest.mark.parametrize(("api", "answer"), ODD, ids=[f"{number}-{api}" for number, (api, _) in enumerate(ODD)])
def test_an_odd_answer_ends_no_session(api, answer):
    """What follows it is valid, is said to be mended where it had to be, and is mended in the same way each time."""
    upstream, heard = ScriptedUpstream([answer.encode(), "Well.", "Well."]), []

    async def go():
        async with Engine.open(
            MemoryStore(), upstream=upstream, api=api, model=MODELS[api], listen=heard.append
        ) as engine:
            session = await engine.session(KEY)
            async with session.run("Go.", stream=False) as going:
                async for _ in going:
                    pass
            calls = session.journal.branch.messages[-1].calls
            results = [ToolResult(call.id, call.name, (Text("done"),)) for call in calls]
            await session.append(*[Message("tool", tuple(results))] if results else [])
            await session.ask("And now?")
            await session.ask("And then?")

    run(go)
    bodies = [sent.body for sent in upstream.sent[1:]]
    assert [
        found for body in bodies for found in validate(body, api, model=MODELS[api]) if found.level == "error"
    ] == []
    told = [event.rule for event in heard if isinstance(event, events.Noticed)]
    assert len(told) == len(set(told))
    first, second = [[read(slot.message) for slot in open_body(body, api).slots] for body in bodies]
    assert second[: len(first)] == first


class Uncached:
    """A server that tells only those tokens of a prompt which its cache did not hold."""

    def __init__(self):
        self.before = 0
        self.sent = []

    @asynccontextmanager
    async def send(self, sent):
        """Return an answer whose usage is that of what is new."""
        self.sent.append(sent.body)
        size = len(sent.body) // 4
        told, self.before = {"prompt_tokens": size - self.before, "completion_tokens": 5}, size
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "fine"}}

        async def chunks():
            yield json.dumps({"id": "x", "choices": [choice], "usage": told}).encode()

        yield Reply(200, {"content-type": "application/json"}, chunks())


@pytest.mark.parametrize("lengths", [(10, 2_500, 250, 250, 250), (2_500, 250, 250, 250, 250)])
def test_a_count_of_what_was_not_cached_is_no_window(lengths):
    """The conversation grew, so that its prompt cannot have shrunk: nothing is learned of that, nothing left out."""
    upstream = Uncached()

    async def go():
        goal = target("openai-chat", "qwen3:8b", window=200_000)
        async with Engine.open(MemoryStore(), upstream=upstream, target=goal) as engine:
            session = await engine.session(KEY)
            for number, times in enumerate(lengths):
                await session.ask(f"step {number}: {'lorem ipsum dolor sit amet ' * times}")
            return session.report()

    report = run(go)
    assert report.window == 200_000
    assert report.tokens > 0.8 * len(upstream.sent[-1]) / 4
    assert len(json.loads(upstream.sent[-1])["messages"]) == 9
