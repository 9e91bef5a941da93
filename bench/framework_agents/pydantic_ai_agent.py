"""Pydantic AI: ``Agent.run_sync`` with ``OpenAIChatModel``; the remedies are those of its own harness."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pydantic_ai import Agent, UsageLimits, capture_run_messages
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIChatModelSettings
from pydantic_ai.providers.openai import OpenAIProvider

from framework_agents.workload import ChildJob


def list_versions() -> str:
    """Return the versions of what was run."""
    versions = [f"pydantic-ai-slim {version('pydantic-ai-slim')}"]
    with contextlib.suppress(PackageNotFoundError):
        versions.append(f"pydantic-ai-harness {version('pydantic-ai-harness')}")
    return ", ".join(versions)


class PydanticAIConversation:
    """An agent whose history the application keeps from turn to turn."""

    def __init__(self, agent: Any) -> None:
        self._agent = agent
        self._messages: list[Any] = []

    def say(self, prompt: str) -> None:
        """Run the agent; the messages of a run that fails are kept as far as they go."""
        with capture_run_messages() as messages:
            try:
                result = self._agent.run_sync(
                    prompt, message_history=self._messages or None, usage_limits=UsageLimits(request_limit=None)
                )
            except Exception:
                self._messages = list(messages)
                raise
        self._messages = result.all_messages()


def make_capabilities(job: ChildJob) -> list[Any]:
    """Return the capabilities of a row."""
    if job.remedy == "none":
        return []
    if job.remedy == "holdfast":
        from holdfast.integrations.pydantic_ai import HoldfastCapability

        return [HoldfastCapability(window=job.window, store=f"{job.folder}/holdfast.db")]
    from pydantic_ai_harness.compaction import (
        ClearToolResults,
        SlidingWindowCompaction,
        SummarizingCompaction,
        TieredCompaction,
    )
    from pydantic_ai_harness.tool_output_limits import LocalFileStore, ToolOutputLimits

    half = job.window // 2
    if job.remedy == "window":
        return [SlidingWindowCompaction(max_tokens=half, keep_tokens=half // 2)]
    spill = ToolOutputLimits(store=LocalFileStore(base_dir=Path(job.folder)))
    if job.remedy == "spill":
        return [spill, SlidingWindowCompaction(max_tokens=half, keep_tokens=half // 2)]
    summarize = SummarizingCompaction(max_tokens=half, keep_messages=8)
    tiers = TieredCompaction(tiers=[ClearToolResults(max_tokens=half, keep_pairs=3), summarize], target_tokens=half)
    return [spill, tiers]


def build_agent(job: ChildJob, tools: dict[str, Callable[[str], str]]) -> PydanticAIConversation:
    """Build the agent of a row."""
    provider = OpenAIProvider(base_url=f"{job.url}/v1", api_key="any")
    settings = OpenAIChatModelSettings(openai_reasoning_effort="none")
    model = OpenAIChatModel(job.model, provider=provider, settings=settings)
    agent: Any = Agent(
        model,
        tools=list(tools.values()),
        instructions="You look after a large service. Follow every rule of the user.",
        capabilities=make_capabilities(job),
    )
    return PydanticAIConversation(agent)
