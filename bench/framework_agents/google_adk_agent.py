"""Google ADK: ``Runner`` with its model class ``LiteLlm``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.agents.run_config import RunConfig
from google.adk.apps import App
from google.adk.apps.app import EventsCompactionConfig
from google.adk.apps.llm_event_summarizer import LlmEventSummarizer
from google.adk.models.lite_llm import LiteLlm
from google.adk.plugins.context_filter_plugin import ContextFilterPlugin
from google.adk.runners import InMemoryRunner
from google.genai import types

from framework_agents.workload import ChildJob

MAX_CALLS = 0
"""No limit to the calls of a run."""


def list_versions() -> str:
    """Return the versions of what was run."""
    return f"google-adk {version('google-adk')}, litellm {version('litellm')}"


class GoogleADKConversation:
    """A runner with a session in memory."""

    def __init__(self, app: App) -> None:
        self._runner = InMemoryRunner(app=app)
        self._loop = asyncio.Runner()
        session = self._runner.session_service.create_session(app_name=app.name, user_id="user")
        self._session_id = self._loop.run(session).id

    def say(self, prompt: str) -> None:
        """Run the agent on what the user says."""
        self._loop.run(self._run(prompt))

    async def _run(self, prompt: str) -> None:
        message = types.Content(role="user", parts=[types.Part(text=prompt)])
        run_config = RunConfig(max_llm_calls=MAX_CALLS)
        events = self._runner.run_async(
            user_id="user", session_id=self._session_id, new_message=message, run_config=run_config
        )
        async for event in events:
            if event.error_code and not event.content:
                raise RuntimeError(f"{event.error_code}: {event.error_message}")


def build_agent(job: ChildJob, tools: dict[str, Callable[[str], str]]) -> GoogleADKConversation:
    """Build the agent of a row."""
    model = LiteLlm(
        model=f"openai/{job.model}", api_base=f"{job.url}/v1", api_key="any", reasoning_effort="none", num_retries=0
    )
    options: dict[str, Any] = {"plugins": []}
    if job.remedy == "holdfast":
        from holdfast.integrations.google_adk import HoldfastPlugin

        options["plugins"].append(HoldfastPlugin(window=job.window, store=f"{job.folder}/holdfast.db"))
    if job.remedy in ("filter", "both"):
        options["plugins"].append(ContextFilterPlugin(num_invocations_to_keep=1))
    if job.remedy in ("compaction", "both"):
        options["events_compaction_config"] = EventsCompactionConfig(
            token_threshold=job.window // 2, event_retention_size=4, summarizer=LlmEventSummarizer(llm=model)
        )
    agent = LlmAgent(
        name="operator",
        model=model,
        instruction="You look after a large service. Follow every rule of the user.",
        tools=list(tools.values()),
    )
    return GoogleADKConversation(App(name="bench", root_agent=agent, **options))
