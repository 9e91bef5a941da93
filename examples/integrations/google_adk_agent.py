"""A Google ADK agent that reads far more than its window holds, offline, with a scripted model in place of a real one.

Run it with ``python examples/integrations/google_adk_agent.py``; it needs ``pip install 'holdfast[google-adk]'``.
"""

from __future__ import annotations

import asyncio

from google.adk.agents import LlmAgent
from google.adk.apps import App
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import InMemoryRunner
from google.genai import types

from holdfast.integrations.google_adk import HoldfastPlugin

STEPS = 60


def read_log(part: int) -> str:
    """Read one part of the log."""
    return "\n".join(f"part {part}, line {line}: {line * 7919 % 1009} ms" for line in range(150))


class ScriptedModel(BaseLlm):
    """A model that reads one part of the log after the other."""

    step: int = 0
    shown_characters: int = 0

    async def generate_content_async(self, llm_request, stream=False):
        """Ask for the next part, or answer."""
        characters = count_characters(llm_request.contents)
        self.shown_characters = max(self.shown_characters, characters)
        self.step += 1
        if self.step > STEPS:
            part = types.Part(text="Part 7 is slow.")
        else:
            part = types.Part(function_call=types.FunctionCall(name="read_log", args={"part": self.step}))
        usage = types.GenerateContentResponseUsageMetadata(prompt_token_count=characters // 3, candidates_token_count=9)
        yield LlmResponse(content=types.Content(role="model", parts=[part]), usage_metadata=usage)


def count_characters(contents):
    """Return the characters of texts and results."""
    parts = [part for content in contents for part in content.parts or ()]
    return sum(len(part.text or "") + len(str(part.function_response or "")) for part in parts)


async def main():
    """Let the agent work, and print how much it said and how much its model was shown at most."""
    model = ScriptedModel(model="gemini-3-pro")
    agent = LlmAgent(name="reader", model=model, tools=[read_log])
    plugin = HoldfastPlugin(window=30_000, store=":memory:")
    runner = InMemoryRunner(app=App(name="logs", root_agent=agent, plugins=[plugin]))
    session = await runner.session_service.create_session(app_name="logs", user_id="user")
    prompt = types.Content(
        role="user", parts=[types.Part(text="Which part of the log is slow? Never restart the server.")]
    )
    async for _ in runner.run_async(user_id="user", session_id=session.id, new_message=prompt):
        pass
    session = await runner.session_service.get_session(app_name="logs", user_id="user", session_id=session.id)
    contents = [event.content for event in session.events]
    print(f"The session has {len(contents)} events with {count_characters(contents):,} characters.")
    print(f"The model was shown at most {model.shown_characters:,} of them at once.")


if __name__ == "__main__":
    asyncio.run(main())
