"""smolagents: ``ToolCallingAgent`` with ``OpenAIModel``; its place for remedies of one's own is a step callback."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from smolagents import ActionStep, LogLevel, OpenAIModel, ToolCallingAgent, tool

from framework_agents.workload import ChildJob

MAX_STEPS = 100_000
CHARS_OF_A_TOKEN = 4
"""For estimates of the callback."""
KEPT_STEPS = 4
"""Newest steps whose observations stay as they are."""
OLD_CHARS = 200
"""What stays of an older observation."""


def list_versions() -> str:
    """Return the versions of what was run."""
    return f"smolagents {version('smolagents')}, openai {version('openai')}"


class SmolagentsConversation:
    """An agent, which keeps its memory from run to run."""

    def __init__(self, agent: Any) -> None:
        self._agent = agent

    def say(self, prompt: str) -> None:
        """Run the agent on what the user says."""
        self._agent.run(prompt, reset=False)


class ObservationShortener:
    """A step callback: the newest observation is cut to a sixteenth of the window, older ones when half of it is full.

    ``deletes_steps`` also deletes the oldest steps, down to a quarter of the window, where shorter observations are not
    enough. What the user said stays.
    """

    def __init__(self, window: int, *, deletes_steps: bool) -> None:
        self._window = window
        self._deletes_steps = deletes_steps

    def __call__(self, memory_step: ActionStep, agent: Any) -> None:
        """Change the memory after a step, which is not yet in it."""
        memory_step.observations = _shorten(memory_step.observations, self._window // 16 * CHARS_OF_A_TOKEN)
        if memory_step.token_usage is None:
            return
        tokens = memory_step.token_usage.input_tokens + _estimate_tokens(memory_step)
        if tokens <= self._window // 2:
            return
        steps = agent.memory.steps
        old_steps = [step for step in steps if isinstance(step, ActionStep)][: 1 - KEPT_STEPS]
        shorter_texts = [_shorten(step.observations, OLD_CHARS) for step in old_steps]
        saved_chars = 0
        for step, text in zip(old_steps, shorter_texts, strict=True):
            saved_chars += len(step.observations or "") - len(text or "")
        # A change breaks the prompt cache, so small ones wait for more.
        if saved_chars // CHARS_OF_A_TOKEN >= self._window // 8:
            for step, text in zip(old_steps, shorter_texts, strict=True):
                step.observations = text
            tokens -= saved_chars // CHARS_OF_A_TOKEN
        if self._deletes_steps and tokens > self._window // 2:
            while old_steps and tokens > self._window // 4:
                oldest_step = old_steps.pop(0)
                tokens -= _estimate_tokens(oldest_step)
                steps.remove(oldest_step)


def _estimate_tokens(step: ActionStep) -> int:
    return sum(len(str(message.content)) for message in step.to_messages()) // CHARS_OF_A_TOKEN


def _shorten(text: str | None, chars: int) -> str | None:
    """Return the beginning and the end of a text."""
    if text is None or len(text) <= chars:
        return text
    mark = "\n[… shortened …]\n"
    half = (chars - len(mark)) // 2
    return text[:half] + mark + text[-half:]


def _describe_argument(function: Callable[[str], str]) -> Callable[[str], str]:
    """Add to the docstring of a tool what ``tool`` wants there."""
    function.__doc__ = f"{function.__doc__}\n\nArgs:\n    argument: What to show."
    return function


def build_agent(job: ChildJob, tools: dict[str, Callable[[str], str]]) -> SmolagentsConversation:
    """Build the agent of a row."""
    model: Any = OpenAIModel(
        job.model,
        api_base=f"{job.url}/v1",
        api_key="any",
        # Takes an error for a rate limit whose text has "429" anywhere, also in a number of tokens, and waits a minute.
        retry=False,
        reasoning_effort="none",
    )
    agent_tools = [tool(_describe_argument(function)) for function in tools.values()]
    callbacks = []
    if job.remedy == "holdfast":
        from holdfast.integrations.smolagents import HoldfastModel

        model = HoldfastModel(model, window=job.window, store=f"{job.folder}/holdfast.db")
        agent_tools.append(model.recall_tool)
    elif job.remedy != "none":
        callbacks.append(ObservationShortener(job.window, deletes_steps=job.remedy == "delete"))
    agent = ToolCallingAgent(
        agent_tools,
        model,
        instructions="You look after a large service. Follow every rule of the user.",
        max_steps=MAX_STEPS,
        step_callbacks=callbacks,
        verbosity_level=LogLevel.OFF,
    )
    return SmolagentsConversation(agent)
