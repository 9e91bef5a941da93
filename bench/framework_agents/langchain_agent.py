"""LangChain: ``create_agent`` with ``ChatOpenAI``."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from langchain.agents import create_agent
from langchain.agents.middleware import ClearToolUsesEdit, ContextEditingMiddleware, SummarizationMiddleware
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

from framework_agents.workload import ChildJob

RECURSIONS = 100_000


def list_versions() -> str:
    """Return the versions of what was run."""
    return f"langchain {version('langchain')}, langchain-openai {version('langchain-openai')}"


def make_model(job: ChildJob) -> ChatOpenAI:
    """Return LangChain's own model class at the strict provider, with the window in its profile."""
    profile: Any = {"max_input_tokens": job.window}
    return ChatOpenAI(
        model=job.model,
        base_url=f"{job.url}/v1",
        api_key="any",
        profile=profile,
        use_responses_api=False,
        reasoning_effort="none",
    )


def make_remedies(job: ChildJob, model: ChatOpenAI) -> list[Any]:
    """Return the middleware of a row."""
    if job.remedy == "holdfast":
        from holdfast.integrations.langchain import HoldfastMiddleware

        return [HoldfastMiddleware(window=job.window, store=f"{job.folder}/holdfast.db")]
    clear_results = ContextEditingMiddleware(
        edits=[ClearToolUsesEdit(trigger=job.window // 2, keep=1, clear_at_least=job.window // 8)]
    )
    summarize = SummarizationMiddleware(
        model, trigger=("tokens", job.window // 2), keep=("tokens", job.window // 8), trim_tokens_to_summarize=None
    )
    return {"none": [], "edit": [clear_results], "summary": [summarize], "both": [summarize, clear_results]}[job.remedy]


class LangChainConversation:
    """An agent whose history the application keeps from turn to turn, or a checkpointer if the agent has one."""

    def __init__(self, agent: Any, *, has_checkpointer: bool = False) -> None:
        self._agent = agent
        self._has_checkpointer = has_checkpointer
        self._messages: list[Any] = []

    def say(self, prompt: str) -> None:
        """Let the agent work; the state of its last step is kept also if it fails."""
        config: Any = {"recursion_limit": RECURSIONS, "configurable": {"thread_id": "bench"}}
        options: dict[str, Any] = {"stream_mode": "values"}
        given_messages = [*self._messages, HumanMessage(prompt)]
        if self._has_checkpointer:
            # One checkpoint a turn: a copy of the history for each step would take gigabytes.
            options["durability"] = "exit"
            given_messages = [HumanMessage(prompt)]
        for state in self._agent.stream({"messages": given_messages}, config, **options):
            self._messages = state["messages"]


def build_agent(job: ChildJob, tools: dict[str, Callable[[str], str]]) -> LangChainConversation:
    """Build the agent of a row."""
    model = make_model(job)
    agent_tools = [tool(function) for function in tools.values()]
    system_prompt = "You look after a large service. Follow every rule of the user."
    agent = create_agent(model, agent_tools, system_prompt=system_prompt, middleware=make_remedies(job, model))
    return LangChainConversation(agent)
