"""An agent's loop on Holdfast: an official SDK's client, one tool, and logs that are many times the window.

    uv run python examples/agent_loop.py

It runs offline: a strict provider on this machine answers, and refuses what is over 32,000 tokens. For a real one leave
out ``base_url``, ``api_key`` and ``window``, and give a file instead of ``:memory:`` to go on after a crash.
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
LOG = {"type": "object", "properties": {"night": {"type": "integer"}}, "required": ["night"]}
FIELDS = {"max_tokens": 1_000, "tools": [{"name": "log", "description": "The log of a night.", "input_schema": LOG}]}
SCRIPT = [
    *(ScriptedAnswer("", (("log", {"night": night}),)) for night in range(NIGHTS)),
    ScriptedAnswer("In night 41 the cache was cold."),
]


def log(call: ToolCall) -> ToolResult:
    """Return what the tool says: here is where your own tools go."""
    night = json.loads(call.arguments)["night"]
    lines = (f"night {night}, step {step}: {'cold' if night == 41 else 'warm'} cache, 12 ms" for step in range(300))
    return ToolResult(call.id, call.name, (Text("\n".join(lines)),))


def tell(event: Event) -> None:
    """Print each compaction; everything else that happens comes here too."""
    if isinstance(event, CompactionEnded):
        print(f"{event.outcome}: {event.tokens_before:,} → {event.tokens_after:,} tokens")


async def main(provider: Provider) -> None:
    """Work until the model calls for nothing any more."""
    to = get_target("anthropic", "claude-sonnet-4-5", window=WINDOW)
    with serve_provider(provider) as url:
        async with (
            AsyncAnthropic(base_url=url, api_key="any") as client,
            Engine.open(":memory:", upstream=client, target=to, fields=FIELDS, listen=tell) as engine,
        ):
            session = await engine.session("nights")
            answer = await session.ask("In which night was the build slow? Read the log of each.")
            while answer.message.calls:
                await session.append(Message("tool", tuple(map(log, answer.message.calls))))
                answer = await session.ask()  # nothing more to say: go on with what the log holds
    print(answer.message.text)


if __name__ == "__main__":
    strict = Provider(ProviderSettings(window=WINDOW), SCRIPT)
    anyio.run(main, strict)
    sizes = [request.tokens for request in strict.requests]
    print(f"{len(sizes)} requests, the largest {max(sizes):,} of {WINDOW:,} tokens")
