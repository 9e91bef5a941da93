"""A Pydantic AI agent that reads logs of many times its model's window.

    uv run python examples/integrations/pydantic_ai_agent.py

It runs offline: a strict provider on this machine answers, and refuses any request over 32,000 tokens. For a real
provider, leave out ``provider``, ``settings``, ``window`` and ``store``. (A script must not have the name of the
package that it imports, so this one is not called ``pydantic_ai.py``.)
"""

from __future__ import annotations

import asyncio

from pydantic_ai import Agent, ModelSettings, UsageLimits
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.providers.anthropic import AnthropicProvider

from holdfast.events import CompactionEnded, Event
from holdfast.integrations.pydantic_ai import HoldfastCapability
from holdfast.testing.provider import Provider, ProviderSettings, ScriptedAnswer
from holdfast.testing.provider.server.local_server import serve_provider

NIGHTS, WINDOW = 40, 32_000
SCRIPT = [
    *(ScriptedAnswer("", (("read_log", {"night": night}),)) for night in range(NIGHTS)),
    ScriptedAnswer("", (("recall", {"search": "night 3, step 77"}),)),
    ScriptedAnswer("In night 3 the cache was cold."),
]
"""What the provider answers: one call for each night, a look back, then the conclusion."""


def read_log(night: int) -> str:
    """Return the log of a night. Your own tools go here."""
    cache = "cold" if night == 3 else "warm"
    return "\n".join(f"night {night}, step {step}: {cache} cache, 12 ms" for step in range(300))


def print_compaction(event: Event) -> None:
    """Print each compaction. All other events come here too."""
    if isinstance(event, CompactionEnded):
        print(f"{event.outcome}: {event.tokens_before:,} → {event.tokens_after:,} tokens")


async def main(provider: Provider) -> None:
    """Let the agent work until it has an answer."""
    with serve_provider(provider) as url:
        anthropic = AnthropicProvider(base_url=url, api_key="any")
        model = AnthropicModel("claude-haiku-4-5", provider=anthropic, settings=ModelSettings(max_tokens=1_000))
        holdfast = HoldfastCapability(window=WINDOW, store=":memory:", listener=print_compaction)
        agent = Agent(model, tools=[read_log], capabilities=[holdfast])
        async with agent:
            result = await agent.run(
                "In which night was the build slow? Read the log of each.", usage_limits=UsageLimits(request_limit=100)
            )
    print(result.output)
    print(f"the history has {len(result.all_messages())} messages, and is whole")


if __name__ == "__main__":
    strict_provider = Provider(ProviderSettings(window=WINDOW), SCRIPT)
    asyncio.run(main(strict_provider))
    sizes = [request.tokens for request in strict_provider.requests]
    print(f"{len(sizes)} requests, the largest {max(sizes):,} of {WINDOW:,} tokens")
