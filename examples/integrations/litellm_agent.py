"""An agent that reads far more than its window holds through LiteLLM, offline, with a scripted provider.

Run it with ``python examples/integrations/litellm_agent.py``; it needs ``pip install 'holdfast[litellm]'``.
"""

from __future__ import annotations

import json
import os

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # LiteLLM would ask the network for its table of prices

from holdfast.integrations.litellm import HoldfastClient
from holdfast.testing.provider import Provider, ProviderSettings, ScriptedAnswer
from holdfast.testing.provider.server.local_server import serve_provider

WINDOW = 30_000
STEPS = 60
READ_LOG = {
    "type": "function",
    "function": {
        "name": "read_log",
        "description": "Reads one part of the log.",
        "parameters": {"type": "object", "properties": {"part": {"type": "integer"}}},
    },
}


def read_log(part):
    """Return one part of the log."""
    return "\n".join(f"part {part}, line {line}: {line * 7919 % 1009} ms" for line in range(150))


def run_agent(llm, access):
    """Let the model work until it calls no tool, and return the conversation."""
    messages = [{"role": "user", "content": "Which part of the log is slow? Never restart the server."}]
    while True:
        response = llm.completion("openai/gpt-4.1", messages, tools=[READ_LOG, llm.recall_tool], **access)
        answer = response.choices[0].message
        if not answer.tool_calls:
            return [*messages, answer]
        asked_messages = list(messages)
        messages.append(answer)
        for call in answer.tool_calls:
            if call.function.name == "recall":
                messages.append(llm.answer_recall(call, asked_messages))
            else:
                part = json.loads(call.function.arguments)["part"]
                messages.append({"role": "tool", "tool_call_id": call.id, "content": read_log(part)})


def main():
    """Let the agent work, and print how much it said and how much its model was shown at most."""
    answers = [ScriptedAnswer(calls=(("read_log", {"part": part}),)) for part in range(STEPS)]
    # Refuses what a real provider refuses: here everything over its window.
    provider = Provider(ProviderSettings(window=WINDOW), [*answers, ScriptedAnswer("Part 7 is slow.")])
    llm = HoldfastClient(window=WINDOW, store=":memory:")
    with serve_provider(provider) as url:
        messages = run_agent(llm, {"api_base": f"{url}/v1", "api_key": "any"})
    characters = sum(len(str(dict(message))) for message in messages)
    largest_request = max(len(request.incoming.body) for request in provider.requests)
    report = llm.report(messages)
    print(f"The agent has {len(messages)} messages with {characters:,} characters.")
    print(f"The model was shown at most {largest_request:,} of them at once.")
    print(f"Its newest request has about {report.tokens:,} tokens of a window of {report.window:,}.")


if __name__ == "__main__":
    main()
