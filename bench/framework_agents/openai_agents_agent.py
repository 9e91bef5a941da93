"""OpenAI Agents SDK: ``Runner.run`` with its model class for Chat Completions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from agents import (
    Agent,
    ModelSettings,
    OpenAIProvider,
    RunConfig,
    Runner,
    SQLiteSession,
    function_tool,
    set_tracing_disabled,
)
from agents.extensions import ToolOutputTrimmer
from agents.memory import SessionSettings
from openai.types.shared import Reasoning

from framework_agents.workload import ChildJob

MAX_TURNS = 10_000

set_tracing_disabled(disabled=True)


def list_versions() -> str:
    """Return the versions of what was run."""
    return f"openai-agents {version('openai-agents')}, openai {version('openai')}"


class OpenAIAgentsConversation:
    """An agent with a session."""

    def __init__(self, agent: Any, session: Any, run_config: Any) -> None:
        self._agent = agent
        self._session = session
        self._run_config = run_config
        self._loop = asyncio.Runner()

    def say(self, prompt: str) -> None:
        """Run the agent on what the user says."""
        self._loop.run(self._run(prompt))

    async def _run(self, prompt: str) -> None:
        # Returns nothing: asyncio writes a task's result into the text of an error that it makes at its end, and that
        # of a result with a long history takes seconds.
        await Runner.run(self._agent, prompt, session=self._session, run_config=self._run_config, max_turns=MAX_TURNS)


def build_agent(job: ChildJob, tools: dict[str, Callable[[str], str]]) -> OpenAIAgentsConversation:
    """Build the agent of a row."""
    provider = OpenAIProvider(base_url=f"{job.url}/v1", api_key="any", use_responses=False)
    settings = ModelSettings(reasoning=Reasoning(effort="none"))
    run_config = RunConfig(model_provider=provider, model_settings=settings)
    session_settings = None
    agent_tools: list[Any] = [function_tool(function) for function in tools.values()]
    session: Any = SQLiteSession("bench", f"{job.folder}/session.db")
    if job.remedy == "holdfast":
        from holdfast.integrations.openai_agents import HoldfastRuns

        runs = HoldfastRuns(window=job.window, store=f"{job.folder}/holdfast.db")
        agent_tools.append(runs.recall_tool)
        run_config = runs.run_config(session, base=run_config)
    if job.remedy in ("trim", "both"):
        run_config.call_model_input_filter = ToolOutputTrimmer(recent_turns=1, max_output_chars=500, preview_chars=200)
    if job.remedy in ("limit", "both"):
        # A quarter of the answers of a turn: the session gives no more of the turns before.
        session_settings = SessionSettings(limit=15)
    if session_settings is not None:
        run_config.session_settings = session_settings
    instructions = "You look after a large service. Follow every rule of the user."
    agent = Agent("Operator", instructions=instructions, model=job.model, tools=agent_tools)
    return OpenAIAgentsConversation(agent, session, run_config)
