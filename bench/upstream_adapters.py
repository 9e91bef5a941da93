"""A pytest plugin that gives every agent of a framework's own tests the adapter of Holdfast.

``bench/upstream_suites.py`` loads it. The environment says what to do: ``UPSTREAM_FRAMEWORK`` is a key of
``ADAPTERS``, ``UPSTREAM_VARIANT`` one of ``VARIANTS``, ``UPSTREAM_RESULTS`` the JSON file to write.

The variant ``tool`` adds nothing but a tool called ``recall``, with the framework's own means. What fails with it too
states how many tools an agent has, or what a snapshot shows; it is no fault of the adapter.
"""

from __future__ import annotations

import functools
import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

VARIANTS = ("holdfast", "plain", "tool")
RECALL = "recall"
UNREAD = "unread"
"""The outcome of a file that cannot be imported."""
_outcomes: dict[str, tuple[str, str]] = {}
"""By test: passed, failed or skipped, and the error."""
_warnings: list[str] = []
"""What the adapters logged: each is a call in which Holdfast could not help."""


class _KeepWarnings(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        test = os.environ.get("PYTEST_CURRENT_TEST", "")
        _warnings.append(f"{test}: {record.getMessage()}")


def _change_argument(owner: Any, name: str, change: Callable[..., None]) -> None:
    """Make the function ``name`` of ``owner`` call ``change`` with its keyword arguments before it runs."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def changed(*args: Any, **options: Any) -> Any:
        change(options, *args)
        return original(*args, **options)

    setattr(owner, name, changed)


def _recall(id: str = "") -> str:  # noqa: A002 -- the argument has this name in the adapters too
    """Read back what is not shown."""
    return f"nothing is called {id}"


# -- each framework ----------------------------------------------------------------------------------------------------


def adapt_langchain(variant: str) -> None:
    """Append the middleware in ``create_agent``."""
    import langchain.agents
    from langchain.agents import factory
    from langchain.agents.middleware import AgentMiddleware
    from langchain.tools import tool
    from langchain_core.language_models import BaseChatModel

    from holdfast.integrations.langchain import HoldfastMiddleware

    tool_only: Any = AgentMiddleware()
    tool_only.tools = [tool(RECALL)(_recall)]

    def append(options: dict[str, Any], *_: Any) -> None:
        new = HoldfastMiddleware(store=":memory:") if variant == "holdfast" else tool_only
        options["middleware"] = [*(options.get("middleware") or ()), new]

    # Scripted models of the tests have no such method, and agents with any tool call it.
    BaseChatModel.bind_tools = lambda model, *_, **__: model
    _change_argument(factory, "create_agent", append)
    langchain.agents.create_agent = factory.create_agent


def adapt_openai_agents(variant: str) -> None:
    """Append ``recall`` to the tools of every agent, and make every run's configuration ours."""
    import agents
    from agents import run

    from holdfast.integrations.openai_agents import HoldfastRuns

    runs = HoldfastRuns(store=":memory:")
    recall_tool = runs.recall_tool if variant == "holdfast" else agents.function_tool(name_override=RECALL)(_recall)
    check_fields = agents.Agent.__post_init__

    def add_tool(agent: Any) -> None:
        check_fields(agent)
        if all(tool.name != RECALL for tool in agent.tools):
            agent.tools = [*agent.tools, recall_tool]

    agents.Agent.__post_init__ = add_tool
    if variant == "tool":
        return

    def set_configuration(options: dict[str, Any], *_: Any) -> None:
        base = options.get("run_config")
        if isinstance(base, dict):
            base = agents.RunConfig(**base)
        options["run_config"] = runs.run_config(options.get("session"), base=base)

    for name in ("run", "run_sync", "run_streamed"):
        _change_argument(run.AgentRunner, name, set_configuration)


def adapt_strands(variant: str) -> None:
    """Make the manager the one that an agent has by default, in place of the sliding window."""
    import strands
    from strands.agent.conversation_manager import SlidingWindowConversationManager

    from holdfast.integrations.strands import HoldfastConversationManager

    original = strands.Agent.__init__
    recall = strands.tool(name=RECALL)(_recall)

    def init(agent: Any, *args: Any, **options: Any) -> None:
        # Neither is possible with a model whose provider keeps the conversation.
        is_free = not getattr(args[0] if args else options.get("model"), "stateful", False)
        if is_free and options.get("conversation_manager") is None and options.get("context_manager") is None:
            is_ours = variant == "holdfast"
            new = HoldfastConversationManager(store=":memory:") if is_ours else SlidingWindowConversationManager()
            options["conversation_manager"] = new
        original(agent, *args, **options)
        if variant == "tool":
            agent.tool_registry.register_tool(recall)

    strands.Agent.__init__ = functools.wraps(original)(init)


def adapt_pydantic_ai(variant: str) -> None:
    """Append the capability to every agent."""
    from pydantic_ai import Agent
    from pydantic_ai.capabilities import Capability

    from holdfast.integrations.pydantic_ai import HoldfastCapability

    def append(options: dict[str, Any], *_: Any) -> None:
        if variant == "holdfast":
            new: Any = HoldfastCapability(store=":memory:")
        else:
            new = Capability(id="tool-only")
            new.tool_plain(name=RECALL)(_recall)
        options["capabilities"] = [*(options.get("capabilities") or ()), new]

    _change_argument(Agent, "__init__", append)


def adapt_smolagents(variant: str) -> None:
    """Put our model around that of every agent, and append ``recall`` to its tools."""
    from smolagents import MultiStepAgent, tool

    from holdfast.integrations.smolagents import HoldfastModel

    # With nothing from outside of itself, so that an agent with it can be saved.
    def recall(id: str = "") -> str:  # noqa: A002 -- the argument has this name in the adapters too
        """Read back what is not shown.

        Args:
            id: What to read.

        """
        return f"nothing is called {id}"

    recall_tool: Any = tool(recall)
    original = MultiStepAgent.__init__

    def init(agent: Any, tools: Any, model: Any, *args: Any, **options: Any) -> None:
        new_tool = recall_tool
        if variant == "holdfast":
            model = HoldfastModel(model, store=":memory:")
            new_tool = model.recall_tool
        has_recall = any(getattr(known_tool, "name", "") == RECALL for known_tool in tools)
        original(agent, [*tools] if has_recall else [*tools, new_tool], model, *args, **options)

    MultiStepAgent.__init__ = functools.wraps(original)(init)


def hide_newer_fields() -> None:
    """Hide a field of Pydantic AI's answers from tests that are older than it: their snapshots do not have it."""
    from pydantic_ai.messages import ModelResponse

    if "model_id=" not in Path("tests/test_history_processor.py").read_text(encoding="utf-8"):
        ModelResponse.model_id = property(lambda _: None, lambda _, __: None)


ADAPTERS: dict[str, Callable[[str], None]] = {
    "langchain": adapt_langchain,
    "openai-agents": adapt_openai_agents,
    "strands": adapt_strands,
    "pydantic-ai": adapt_pydantic_ai,
    "smolagents": adapt_smolagents,
}


# -- pytest ------------------------------------------------------------------------------------------------------------


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    """Change the framework before a test, or a ``conftest.py``, imports it."""
    logging.getLogger("holdfast.integrations").addHandler(_KeepWarnings())
    variant = os.environ["UPSTREAM_VARIANT"]
    framework = os.environ["UPSTREAM_FRAMEWORK"]
    if framework == "pydantic-ai":
        hide_newer_fields()
    if variant != "plain":
        ADAPTERS[framework](variant)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Keep the error of a file that cannot be imported."""
    if report.failed:
        _outcomes[report.nodeid] = (UNREAD, report.longreprtext[-500:])


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Keep the outcome of a test: of its call, or of a setup or teardown that did not pass."""
    if report.when == "call" or not report.passed:
        lines = [line for line in report.longreprtext.splitlines() if line.startswith("E ")]
        _outcomes[report.nodeid] = (report.outcome, "\n".join(lines[:3]))


def pytest_sessionfinish() -> None:
    """Write the results."""
    found = {"outcomes": _outcomes, "warnings": _warnings}
    Path(os.environ["UPSTREAM_RESULTS"]).write_text(json.dumps(found), encoding="utf-8")
