"""An agent of the OpenAI Agents SDK that reads logs of three times its model's window. Runs offline.

    uv run --with openai-agents python examples/integrations/openai_agents.py

The model is the SDK's own for the Responses API. A strict provider on this machine answers it with a script, and
refuses what the real one refuses: with ``RunConfig(model_provider=provider)`` alone, the run ends with its 400.
"""

from __future__ import annotations

import asyncio

from agents import Agent, ModelSettings, OpenAIProvider, RunConfig, Runner, function_tool, set_tracing_disabled
from openai import AsyncOpenAI

from holdfast.integrations.openai_agents import HoldfastRuns
from holdfast.testing.provider import Provider, ProviderSettings, RefusalReply, ScriptedAnswer
from holdfast.testing.provider.server.local_server import serve_provider

WINDOW = 32_000
STEPS = 40


@function_tool
def read_log(night: int) -> str:
    """Read the log of one night."""
    return "\n".join(f"night {night}, line {line}: {line * 7919 % 1009} ms" for line in range(120))


def write_script() -> list[ScriptedAnswer]:
    """Return what the model answers: one log after the other, a line of the third again, and the end."""
    script = []
    for night in range(STEPS):
        script.append(ScriptedAnswer(thinking="Which night?", calls=(("read_log", {"night": night}),)))
    script.append(ScriptedAnswer(calls=(("recall", {"search": '"night 2, line 77"'}),)))
    return [*script, ScriptedAnswer("Line 77 of night 2 took 327 ms.")]


async def work(url: str) -> None:
    """Let the agent work, and print what was shown of its history."""
    holdfast = HoldfastRuns(window=WINDOW, store=":memory:")
    agent = Agent(
        "Operator",
        instructions="You look after servers.",
        model="gpt-5.1",
        model_settings=ModelSettings(store=False, response_include=["reasoning.encrypted_content"]),
        tools=[read_log, holdfast.recall_tool],
    )
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="any") as client:
        provider = OpenAIProvider(openai_client=client, use_responses=True)
        run_config = holdfast.run_config(base=RunConfig(model_provider=provider))
        result = await Runner.run(agent, "Which line is slow?", run_config=run_config, max_turns=STEPS + 5)
    items = result.to_input_list()
    outputs = [str(item) for item in items if item.get("type") == "function_call_output"]
    print(f"recall found the line: {'«night 2, line 77»: 327 ms' in outputs[-1]}")
    print(result.final_output)
    print(f"the history has {len(items)} items")
    report = holdfast.get_history(items).report()
    if report is not None:
        print(f"the newest request had {report.tokens:,} of {report.window:,} tokens")


def main() -> None:
    """Serve the provider, run the agent, and count what was refused."""
    set_tracing_disabled(True)
    provider = Provider(ProviderSettings(window=WINDOW), write_script())
    with serve_provider(provider) as url:
        asyncio.run(work(url))
    refusals = sum(isinstance(request.reply, RefusalReply) for request in provider.requests)
    print(f"{len(provider.requests)} requests, {refusals} refused")


if __name__ == "__main__":
    main()
