"""The shortest agent of your own: the engine, an official SDK's client, one tool, and logs of many times the window.

    uv run python examples/agent_loop.py

It runs offline: a strict provider on this machine answers, and refuses any request over 32,000 tokens. For a real
provider, leave out ``base_url``, ``api_key`` and ``window``. With a file instead of ``:memory:`` the agent can continue
after a crash.
"""

from __future__ import annotations

import json

import anyio
from anthropic import AsyncAnthropic

from holdfast import Engine, Message, Text, ToolCall, ToolResult, get_target
from holdfast.events import CompactionEnded, Event
from holdfast.testing.provider import Provider, ProviderSettings, ScriptedAnswer
from holdfast.testing.provider.server.local_server import serve_provider

NIGHTS, WINDOW = 60, 32_000
SCHEMA = {"type": "object", "properties": {"night": {"type": "integer"}}, "required": ["night"]}
LOG_TOOL = {"name": "log", "description": "The log of a night.", "input_schema": SCHEMA}
FIELDS = {"max_tokens": 1_000, "tools": [LOG_TOOL]}
SCRIPT = [
    *(ScriptedAnswer("", (("log", {"night": night}),)) for night in range(NIGHTS)),
    ScriptedAnswer("In night 41 the cache was cold."),
]
"""What the provider answers: one call for each night, then the conclusion."""


def run_tool(call: ToolCall) -> ToolResult:
    """Return the result of a call. Your own tools go here."""
    night = json.loads(call.arguments)["night"]
    cache = "cold" if night == 41 else "warm"
    lines = [f"night {night}, step {step}: {cache} cache, 12 ms" for step in range(300)]
    return ToolResult(call.id, call.name, (Text("\n".join(lines)),))


def print_compaction(event: Event) -> None:
    """Print each compaction. All other events come here too."""
    if isinstance(event, CompactionEnded):
        print(f"{event.outcome}: {event.tokens_before:,} → {event.tokens_after:,} tokens")


async def main(provider: Provider) -> None:
    """Work until the model makes no more calls."""
    target = get_target("anthropic", "claude-sonnet-5-5", window=WINDOW)
    with serve_provider(provider) as url:
        async with (
            AsyncAnthropic(base_url=url, api_key="any") as client,
            Engine.open(":memory:", upstream=client, target=target, fields=FIELDS, listen=print_compaction) as engine,
        ):
            session = await engine.session("nights")
            answer = await session.ask("In which night was the build slow? Read the log of each.")
            while answer.message.calls:
                results = [run_tool(call) for call in answer.message.calls]
                await session.append(Message("tool", tuple(results)))
                answer = await session.ask()  # no new message: continue from the log
    print(answer.message.text)


if __name__ == "__main__":
    strict_provider = Provider(ProviderSettings(window=WINDOW), SCRIPT)
    anyio.run(main, strict_provider)
    sizes = [request.tokens for request in strict_provider.requests]
    print(f"{len(sizes)} requests, the largest {max(sizes):,} of {WINDOW:,} tokens")
