"""A code execution that waits for a client's tool goes on in its container."""

from __future__ import annotations

import json

import pytest
from sample_entries import SAMPLE_KEY

from holdfast.config import get_target
from holdfast.engine.engine import Engine
from holdfast.messages.message import Message
from holdfast.messages.parts import Text, ToolResult
from holdfast.store.memory import MemoryStore
from holdfast.testing.clock import run_on_fake_clock
from holdfast.testing.upstream import ScriptedUpstream

RUN = {"type": "server_tool_use", "id": "s1", "name": "code_execution", "input": {"code": "ls()"}}
CALL = {"type": "tool_use", "id": "t1", "name": "ls", "input": {}}
TOOLS = [
    {"type": "code_execution_20260120", "name": "code_execution"},
    {"name": "ls", "input_schema": {"type": "object"}},
]


@pytest.mark.parametrize("given", ["", "container_2"])
def test_session_run_carries_the_container_of_the_last_answer(given):
    """The request with the results names the container of the answer; one that names a container itself keeps it."""
    answer = {
        "id": "m1",
        "type": "message",
        "role": "assistant",
        "model": "claude-opus-4-8",
        "content": [RUN, CALL],
        "stop_reason": "tool_use",
        "usage": {"input_tokens": 9, "output_tokens": 9},
        "container": {"id": "container_1", "expires_at": "2030-01-01T00:00:00Z"},
    }
    upstream = ScriptedUpstream([answer, "done"])
    fields = {"tools": TOOLS, "max_tokens": 100} | ({"container": given} if given else {})

    async def play():
        target = get_target("anthropic", "claude-opus-4-8")
        async with Engine.open(MemoryStore(), upstream=upstream, target=target, fields=fields) as engine:
            session = await engine.session(SAMPLE_KEY)
            result = Message("user", (ToolResult("t1", "ls", (Text("ok"),)),))
            for message in ("look", result):
                async with session.run(message, stream=False) as run:
                    async for _ in run:
                        pass

    run_on_fake_clock(play)
    bodies = [json.loads(sent.body) for sent in upstream.sent]
    assert bodies[0].get("container", "") == given
    assert bodies[1]["container"] == (given or "container_1")
