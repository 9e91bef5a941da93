"""deepagents: ``create_deep_agent``, whose own remedies are summaries and files, on LangChain's ``ChatOpenAI``."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from deepagents import create_deep_agent
from deepagents.backends import FilesystemBackend
from deepagents.middleware.filesystem import FilesystemMiddleware
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver

from framework_agents.langchain_agent import LangChainConversation, make_model
from framework_agents.workload import ChildJob


def list_versions() -> str:
    """Return the versions of what was run."""
    return f"deepagents {version('deepagents')}, langchain {version('langchain')}"


def build_agent(job: ChildJob, tools: dict[str, Callable[[str], str]]) -> LangChainConversation:
    """Build the agent of a row. A middleware takes the place of its own with the same name."""
    backend = FilesystemBackend(root_dir=job.folder, virtual_mode=True)
    middleware: list[Any] = []
    # What its summaries stand for is in a part of the state that only a checkpointer carries to the next turn.
    checkpointer = None if job.remedy == "holdfast" else InMemorySaver()
    if job.remedy == "offload":
        middleware = [FilesystemMiddleware(backend=backend, tool_token_limit_before_evict=job.window // 8)]
    if job.remedy == "holdfast":
        from holdfast.integrations.langchain import HoldfastDeepMiddleware

        results_stay = FilesystemMiddleware(backend=backend, tool_token_limit_before_evict=None)
        middleware = [results_stay, HoldfastDeepMiddleware(window=job.window, store=f"{job.folder}/holdfast.db")]
    agent = create_deep_agent(
        make_model(job),
        [tool(function) for function in tools.values()],
        system_prompt="You look after a large service. Follow every rule of the user.",
        middleware=middleware,
        backend=backend,
        checkpointer=checkpointer,
    )
    return LangChainConversation(agent, has_checkpointer=checkpointer is not None)
