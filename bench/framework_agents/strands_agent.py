"""Strands Agents: ``Agent`` with ``OpenAIModel``."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from strands import Agent, tool
from strands.agent.conversation_manager import (
    NullConversationManager,
    SlidingWindowConversationManager,
    SummarizingConversationManager,
)
from strands.models.openai import OpenAIModel
from strands.models.openai_responses import OpenAIResponsesModel

from framework_agents.workload import ChildJob


def list_versions() -> str:
    """Return the versions of what was run."""
    return f"strands-agents {version('strands-agents')}, openai {version('openai')}"


class StrandsConversation:
    """An agent, which keeps its history itself."""

    def __init__(self, agent: Any) -> None:
        self._agent = agent

    def say(self, prompt: str) -> None:
        """Call the agent."""
        self._agent(prompt)


def make_options(job: ChildJob) -> dict[str, Any]:
    """Return the options of the agent with the remedy of a row."""
    if job.remedy == "none":
        return {"conversation_manager": NullConversationManager()}
    if job.remedy == "holdfast":
        from holdfast.integrations.strands import HoldfastConversationManager

        return {
            "conversation_manager": HoldfastConversationManager(window=job.window, store=f"{job.folder}/holdfast.db")
        }
    if job.remedy == "window":
        manager: Any = SlidingWindowConversationManager(
            window_size=20, per_turn=True, pin_first=1, proactive_compression=True
        )
        return {"conversation_manager": manager}
    if job.remedy == "summary":
        manager = SummarizingConversationManager(
            summary_ratio=0.5, preserve_recent_messages=4, pin_first=1, proactive_compression=True
        )
        return {"conversation_manager": manager}
    # Its newest remedy as it comes: long results are shortened and stashed, old messages are summarized.
    return {"context_manager": "auto"}


def build_agent(job: ChildJob, tools: dict[str, Callable[[str], str]]) -> StrandsConversation:
    """Build the agent of a row."""
    client_args = {"base_url": f"{job.url}/v1", "api_key": "any"}
    # Writes the summaries: the class for Chat Completions sends an empty list of tools then, which OpenAI refuses.
    summary_model = OpenAIResponsesModel(
        client_args=client_args,
        model_id=job.model,
        context_window_limit=job.window,
        params={"reasoning": {"effort": "none"}},
    )
    model = OpenAIModel(
        client_args=client_args,
        model_id=job.model,
        context_window_limit=job.window,
        params={"reasoning_effort": "none"},
    )
    agent = Agent(
        model,
        tools=[tool(function) for function in tools.values()],
        system_prompt="You look after a large service. Follow every rule of the user.",
        callback_handler=None,
        aux_model=summary_model,
        **make_options(job),
    )
    return StrandsConversation(agent)
