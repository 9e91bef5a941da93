"""Plan what calls of models are shown, and plan refused ones again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Sequence
from contextvars import ContextVar
from itertools import count
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

from agents import Agent, FunctionTool, Model, Tool
from agents.agent_output import AgentOutputSchemaBase
from agents.handoffs import Handoff
from agents.items import TResponseInputItem
from agents.models.default_models import get_default_model
from agents.run_config import CallModelData
from msgspec import Struct

from holdfast.config.files import get_target
from holdfast.engine.recall import RECALL_TOOL_NAME
from holdfast.errors import ConfigError
from holdfast.integrations.common.agent_history import AgentHistory, GivenMessage
from holdfast.integrations.common.options import AgentHistories, find_output_limit, make_conversation_key
from holdfast.integrations.openai_agents.items import ItemGroup, group_items, show_items
from holdfast.messages.equality import encode_comparable_bytes
from holdfast.messages.message import Message
from holdfast.messages.size.tokens import estimate_text_tokens
from holdfast.providers.errors.report import ErrorReport
from holdfast.state.target import Target

API_NAME = "openai-responses"
"""The API whose items the SDK speaks; it translates them itself for models of other APIs."""


class PlannedCall(Struct, frozen=True):
    """A call of a model, from its input filter until the next call."""

    agent_name: str
    groups: list[ItemGroup]
    history: AgentHistory
    shown_items: list[Any]


newest_call: ContextVar[PlannedCall | None] = ContextVar("holdfast_newest_call", default=None)
"""The call that the current run is making. The SDK runs input filter, model and tools of a run in one context."""


class CallPlanner:
    """Plans the calls of the models of an application's runs, each run in a task of its own."""

    def __init__(self, histories: AgentHistories, window: int | None) -> None:
        self.histories = histories
        self._window = window
        self._tool_tokens: dict[str, int] = {}
        """By the name of an agent: the size of the tools that its newest call had, those of MCP servers included."""
        self._numbers: dict[str, WeakKeyDictionary[asyncio.Task[Any], int]] = {}
        """By the key of a conversation: the tasks that run it, each with its number."""
        self._numbers_lock = Lock()

    def open_history(self, items: Sequence[TResponseInputItem], session_id: str) -> AgentHistory:
        """Return the conversation of a session that begins with the first of ``items``."""
        return self.histories.open(_make_key(group_items(items)[0].message, session_id))

    async def plan_call(
        self, data: CallModelData[Any], session_id: str, run_model: str | Model | None
    ) -> list[TResponseInputItem]:
        """Return what to show of the input of a model call; all of it if Holdfast cannot help."""
        items: list[TResponseInputItem] = data.model_data.input
        call = None
        with self.histories.keep_agent_running():
            # In a thread, since large results can take seconds and the loop has other runs to serve.
            call = await asyncio.to_thread(self._plan, data, session_id, run_model, asyncio.current_task())
        newest_call.set(call)
        return items if call is None else call.shown_items

    def _plan(
        self,
        data: CallModelData[Any],
        session_id: str,
        run_model: str | Model | None,
        task: asyncio.Task[Any] | None,
    ) -> PlannedCall | None:
        earlier_call = newest_call.get()
        groups = group_items(data.model_data.input, () if earlier_call is None else earlier_call.groups)
        if not groups or _is_part_of_server_conversation(groups):
            return None
        if not any(tool.name == RECALL_TOOL_NAME for tool in data.agent.tools):
            # Previews and extracts name the tool. A model that calls a tool which is not there ends the run.
            lack = f"agent {data.agent.name!r} has no tool recall; add HoldfastRuns.recall_tool to its tools"
            raise ConfigError(lack)
        key = self._choose_key(_make_key(groups[0].message, session_id), task)
        history = self.histories.open(key)
        given_messages = [GivenMessage(group.message) for group in groups]
        target = self._choose_target(data.agent, run_model)
        shown_messages = history.plan(given_messages, target, self._estimate_setup(data))
        return PlannedCall(data.agent.name, groups, history, show_items(groups, shown_messages))

    def _choose_target(self, agent: Agent[Any], run_model: str | Model | None) -> Target:
        # Settings of the run, which win over the agent's, are not given to input filters.
        asked_output = find_output_limit(agent.model_settings)
        return get_target(API_NAME, _find_model_name(agent, run_model), window=self._window, asked_output=asked_output)

    def _choose_key(self, key: str, task: asyncio.Task[Any] | None) -> str:
        """Return ``key``, or one with a number if another run that goes on has the same.

        Runs of one prompt at the same time, without sessions, are told apart by their tasks. In one log, each would
        undo what the other had decided.
        """
        if task is None:
            return key
        with self._numbers_lock:
            self._numbers = {name: numbers for name, numbers in self._numbers.items() if numbers}
            numbers = self._numbers.setdefault(key, WeakKeyDictionary())
            if task not in numbers:
                taken_numbers = {number for other, number in numbers.items() if not other.done()}
                numbers[task] = next(number for number in count(1) if number not in taken_numbers)
            number = numbers[task]
        return key if number == 1 else f"{key}-{number}"

    async def plan_smaller(self, call: PlannedCall, error: Exception | ErrorReport) -> list[TResponseInputItem] | None:
        """Return less to show after a refusal, or None if it is no overflow or nothing is left to try."""
        given_messages = [GivenMessage(group.message) for group in call.groups]
        with self.histories.keep_agent_running():
            shown_messages = await asyncio.to_thread(call.history.plan_smaller, error, given_messages)
            if shown_messages is not None:
                return show_items(call.groups, shown_messages)
        return None

    def note_setup(
        self,
        agent_name: str,
        tools: Sequence[Tool],
        handoffs: Sequence[Handoff[Any, Any]],
        output_schema: AgentOutputSchemaBase | None,
    ) -> None:
        """Remember the size of what goes with an agent's calls; their input filter does not see all of it."""
        with self.histories.keep_agent_running():
            tokens = _estimate_tools(tools) + _estimate_handoffs(handoffs)
            if output_schema is not None and not output_schema.is_plain_text():
                tokens += estimate_text_tokens(json.dumps(output_schema.json_schema()))
            self._tool_tokens[agent_name] = tokens

    def _estimate_setup(self, data: CallModelData[Any]) -> int:
        """Return the tokens of the instructions and the tools."""
        tool_tokens = self._tool_tokens.get(data.agent.name)
        if tool_tokens is None:
            tool_tokens = _estimate_tools(data.agent.tools)
        return estimate_text_tokens(data.model_data.instructions or "") + tool_tokens


def _make_key(first: Message, session_id: str) -> str:
    """Return the key of a conversation: its session and its first message.

    An agent that is a tool of another runs with the configuration of its parent, with a first message of its own.
    """
    return make_conversation_key("openai-agents", session_id, encode_comparable_bytes(first).decode("latin-1"))


def _find_model_name(agent: Agent[Any], run_model: str | Model | None) -> str:
    model = run_model or agent.model or get_default_model()
    name = model if isinstance(model, str) else str(getattr(model, "model", ""))
    return name.removeprefix("litellm/").removeprefix("any-llm/")


def _is_part_of_server_conversation(groups: Sequence[ItemGroup]) -> bool:
    """Return whether the input is only what is new of a conversation that the server keeps.

    A filter is not told so. A result without its call tells it; input that is nothing but new user messages passes as a
    short conversation of its own, of which all is shown.
    """
    call_ids: set[str] = set()
    for group in groups:
        call_ids.update(call.id for call in group.message.calls)
        if any(result.call_id not in call_ids for result in group.message.results):
            return True
    return False


def _estimate_tools(tools: Iterable[Tool]) -> int:
    tokens = 0
    for tool in tools:
        tokens += estimate_text_tokens(tool.name)
        if isinstance(tool, FunctionTool):
            tokens += estimate_text_tokens(tool.description + json.dumps(tool.params_json_schema))
    return tokens


def _estimate_handoffs(handoffs: Iterable[Handoff[Any, Any]]) -> int:
    texts = [
        handoff.tool_name + handoff.tool_description + json.dumps(handoff.input_json_schema) for handoff in handoffs
    ]
    return sum(map(estimate_text_tokens, texts))
