"""Plan what calls of models are shown, and plan refused ones again."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Iterable, Sequence
from contextvars import ContextVar
from itertools import count
from threading import Lock
from typing import Any, Self, TypeAlias
from weakref import WeakKeyDictionary

from agents import Agent, FunctionTool, Model, Tool
from agents.agent_output import AgentOutputSchemaBase
from agents.handoffs import Handoff
from agents.items import ModelResponse, TResponseInputItem
from agents.memory import Session
from agents.models.default_models import get_default_model
from agents.run_config import CallModelData
from msgspec import Struct
from openai.types.responses import Response

from holdfast.config.files import get_target
from holdfast.engine.recall import RECALL_PARAMETERS
from holdfast.errors import ConfigError, FormatError
from holdfast.integrations.common.agent_history import AgentHistory, GivenMessage
from holdfast.integrations.common.options import AgentHistories, check_window, find_output_limit, make_conversation_key
from holdfast.integrations.common.unnamed_conversations import UnnamedConversations, iter_prefix_digests
from holdfast.integrations.openai_agents.items import ItemGroup, group_items, read_usage, show_items
from holdfast.messages.equality import encode_comparable_bytes
from holdfast.messages.message import Message
from holdfast.messages.size.tokens import estimate_text_tokens
from holdfast.providers.errors.report import ErrorReport
from holdfast.state.target import Target

API_NAME = "openai-responses"
"""The API whose items the SDK speaks; it translates them itself for models of other APIs."""


RECALL_SCHEMA = {"type": "object", "properties": RECALL_PARAMETERS, "additionalProperties": False}
MAX_KNOWN_AGENTS = 1_000
"""Names of agents by which the size of their tools is remembered; some applications make names up. Chosen by
judgement."""
SessionChoice: TypeAlias = Session | str | None
"""The session of a run, or the name of its conversation."""


class PlannedCall(Struct):
    """A call of a model, from its input filter until the next call."""

    planner: CallPlanner
    agent_name: str
    groups: list[ItemGroup]
    history: AgentHistory
    session_name: str
    beginning: str
    """The key of all conversations of its session that begin with the same message."""
    task: asyncio.Task[Any] | None
    """The task of its run."""
    shown_items: list[Any]
    """What the filter returns. The SDK repeats a call that failed with the same."""
    smaller_items: list[Any] | None = None
    """What our model sends in place of ``shown_items``, if that is something else."""
    is_run_end_told: bool = False
    """Whether our model makes this call, so that the SDK will tell it when the run ends."""

    def is_made_with(self, model_input: Any) -> bool:
        """Return whether a model that was given ``model_input`` makes this call, and not one of another run.

        A run inside of a tool, or after this one in the same task, may use our models without our filter. The SDK
        leaves out repeated items of what a filter returns.
        """
        if not isinstance(model_input, list):
            return False
        shown_items = self.shown_items
        if model_input[:1] != shown_items[:1] or model_input[-1:] != shown_items[-1:]:
            return False
        remaining_items = iter(shown_items)
        return all(item in remaining_items for item in model_input)


newest_call: ContextVar[PlannedCall | None] = ContextVar("holdfast_newest_call", default=None)
"""The call that the current run is making. The SDK runs input filter, model and tools of a turn in one context, but the
first turn of a run in another than those after it."""


class CallPlanner:
    """Plans the calls of the models of an application's runs, each run in a task of its own."""

    def __init__(self, histories: AgentHistories, window: int | None) -> None:
        self.histories = histories
        self._window = check_window(window)
        self._tool_tokens: dict[str, int] = {}
        """By the name of an agent: the size of the tools that its newest call had, those of MCP servers included."""
        self._unnamed = UnnamedConversations()
        self._unnamed_session = secrets.token_hex(8)
        self._numbers: dict[str, WeakKeyDictionary[asyncio.Task[Any], int]] = {}
        """By the key of a conversation with a name: the tasks that run it, each with its number."""
        self._numbers_lock = Lock()

    def __deepcopy__(self, _: dict[int, Any]) -> Self:
        """Return the same planner: a copy of a run configuration is one of the same application."""
        return self

    def open_history(self, items: Sequence[TResponseInputItem], session: SessionChoice) -> AgentHistory:
        """Return the conversation of a session that begins with the first of ``items``; without a session, the one that
        they go on with.

        Raises ``FormatError`` if there are no items.
        """
        groups = group_items(items)
        if not groups:
            raise FormatError("a conversation is found by its items, and there are none; give those of its result")
        session_name = _find_session_name(session)
        beginning = self._make_beginning(groups[0].message, session_name)
        if session_name:
            return self.histories.open(beginning)
        known_key = self._unnamed.find_key(beginning, _list_prefix_digests(groups))
        return self.histories.open(known_key or _make_new_key(beginning))

    async def plan_call(
        self,
        data: CallModelData[Any],
        session: SessionChoice,
        run_model: str | Model | None,
        *,
        is_made_by_our_model: bool,
    ) -> list[TResponseInputItem]:
        """Return what to show of the input of a model call; all of it if Holdfast cannot help.

        ``is_made_by_our_model`` says that the call will come to a ``RecoveringModel``.
        """
        items: list[TResponseInputItem] = data.model_data.input
        call = None
        with self.histories.keep_agent_running():
            # In a thread, since large results can take seconds and the loop has other runs to serve.
            task = asyncio.current_task()
            call = await asyncio.to_thread(self._plan, data, session, run_model, task, is_made_by_our_model)
        newest_call.set(call)
        return items if call is None else call.shown_items

    def _plan(
        self,
        data: CallModelData[Any],
        session: SessionChoice,
        run_model: str | Model | None,
        task: asyncio.Task[Any] | None,
        is_made_by_our_model: bool,
    ) -> PlannedCall | None:
        earlier_call = newest_call.get()
        groups = group_items(data.model_data.input, () if earlier_call is None else earlier_call.groups)
        if not groups or _is_part_of_server_conversation(groups):
            return None
        _check_agent(data.agent)
        session_name = _find_session_name(session)
        beginning = self._make_beginning(groups[0].message, session_name)
        if session_name:
            key = self._choose_named_key(beginning, task)
        else:
            key = self._choose_unnamed_key(beginning, groups, earlier_call, task)
        history = self.histories.open(key)
        given_messages = [GivenMessage(group.message) for group in groups]
        target = self._choose_target(data.agent, run_model)
        shown_messages = history.plan(given_messages, target, self._estimate_setup(data))
        shown_items = show_items(groups, shown_messages)
        call = PlannedCall(self, data.agent.name, groups, history, session_name, beginning, task, shown_items)
        may_be_of_server = isinstance(session, str | None) and not _has_answer(groups)
        if may_be_of_server and is_made_by_our_model:
            # A filter is not told whether the server keeps the conversation, and then all of it belongs there. The
            # model is told so.
            call.shown_items, call.smaller_items = list(data.model_data.input), shown_items
        return call

    def _choose_target(self, agent: Agent[Any], run_model: str | Model | None) -> Target:
        # Settings of the run, which win over the agent's, are not given to input filters.
        asked_output = find_output_limit(agent.model_settings)
        return get_target(API_NAME, _find_model_name(agent, run_model), window=self._window, asked_output=asked_output)

    def _make_beginning(self, first: Message, session_name: str) -> str:
        """Return the key of the conversations of a session with the same first message; without a session, of those of
        this application.

        An agent that is a tool of another runs with the configuration of its parent, with a first message of its own.
        """
        name = session_name or self._unnamed_session
        return make_conversation_key("openai-agents", name, encode_comparable_bytes(first).decode("latin-1"))

    def _choose_named_key(self, key: str, task: asyncio.Task[Any] | None) -> str:
        """Return ``key``, or one with a number if another run that goes on has the same.

        Runs of one session at the same time are told apart by their tasks. In one log, each would undo what the other
        had decided.
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

    def _choose_unnamed_key(
        self,
        beginning: str,
        groups: Sequence[ItemGroup],
        earlier_call: PlannedCall | None,
        task: asyncio.Task[Any] | None,
    ) -> str:
        """Return the key of the conversation of the same run, or of the earlier run that this one goes on with, or of a
        new one.

        Many users begin with the same words, and must not read each other's texts. So an earlier run is only recognized
        by all of its messages, an answer of the model among them.
        """
        digests = _list_prefix_digests(groups)
        key = None
        if (
            earlier_call is not None
            and earlier_call.is_run_end_told
            and earlier_call.task is task
            and earlier_call.beginning == beginning
        ):
            key = earlier_call.history.key
        elif _has_answer(groups):
            key = self._unnamed.find_key(beginning, digests, min_count=2)
        key = key or _make_new_key(beginning)
        self._unnamed.note_request(beginning, key, digests)
        return key

    def note_answer(self, call: PlannedCall, answer: ModelResponse | Response) -> None:
        """Remember what the model answered to ``call``.

        The SDK makes the first call of a run in a task of its own, so the second one finds no earlier call. Without a
        session it is recognized by the first answer.
        """
        with self.histories.keep_agent_running():
            if answer.usage is not None:
                call.history.note_answer_usage(read_usage(answer.usage))
            if not call.session_name and not _has_answer(call.groups):
                items = [
                    item if isinstance(item, dict) else item.model_dump(exclude_unset=True) for item in answer.output
                ]
                groups = [*call.groups, *group_items(items)]
                self._unnamed.note_request(call.beginning, call.history.key, _list_prefix_digests(groups))

    def end_run(self, task: asyncio.Task[Any] | None) -> None:
        """Forget that ``task`` runs a conversation: a task that goes on may serve another one next."""
        with self._numbers_lock:
            for numbers in self._numbers.values():
                if task is not None:
                    numbers.pop(task, None)

    async def plan_smaller(self, call: PlannedCall, error: Exception | ErrorReport) -> list[TResponseInputItem] | None:
        """Return less to show after a refusal, or None if it is no overflow or nothing is left to try."""
        given_messages = [GivenMessage(group.message) for group in call.groups]
        with self.histories.keep_agent_running():
            shown_messages = await asyncio.to_thread(call.history.plan_smaller, error, given_messages)
            if shown_messages is not None:
                call.smaller_items = show_items(call.groups, shown_messages)
                return call.smaller_items
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
            if len(self._tool_tokens) >= MAX_KNOWN_AGENTS:
                self._tool_tokens.clear()
            self._tool_tokens[agent_name] = tokens

    def _estimate_setup(self, data: CallModelData[Any]) -> int:
        """Return the tokens of the instructions and the tools."""
        tool_tokens = self._tool_tokens.get(data.agent.name)
        if tool_tokens is None:
            tool_tokens = _estimate_tools(data.agent.tools)
        return estimate_text_tokens(data.model_data.instructions or "") + tool_tokens


def end_newest_run() -> None:
    """Take note that the run of the current context has ended."""
    call = newest_call.get()
    if call is not None:
        newest_call.set(None)
        call.planner.end_run(asyncio.current_task())


def _check_agent(agent: Agent[Any]) -> None:
    """Raise ``ConfigError`` for an agent whose model may end the run when it calls the tool ``recall``.

    Previews and extracts name that tool.
    """
    # Not by its name alone: agents with a memory have tools of that name too.
    if not any(getattr(tool, "params_json_schema", None) == RECALL_SCHEMA for tool in agent.tools):
        # The SDK ends a run when a model calls a tool that is not there.
        lack = f"agent {agent.name!r} has no tool recall of Holdfast; add HoldfastRuns.recall_tool to its tools"
        raise ConfigError(lack)
    if agent.tool_use_behavior == "stop_on_first_tool":
        # The text that recall reads back would be the run's answer.
        advice = "give it StopAtTools(stop_at_tool_names=[...]) with its other tools"
        raise ConfigError(f"agent {agent.name!r} stops at its first tool, which recall may be; {advice}")


def _find_session_name(session: SessionChoice) -> str:
    """Return the name of a session, or ``""`` without one.

    Sessions of OpenAI's server have none before their first use: ask when a model is called, and not earlier.
    """
    name = session if isinstance(session, str) else getattr(session, "session_id", None)
    return "" if name is None else str(name)


def _has_answer(groups: Sequence[ItemGroup]) -> bool:
    return any(group.message.role == "assistant" for group in groups)


def _make_new_key(beginning: str) -> str:
    # Random, since a number would be given again after a restart.
    return f"{beginning}-{secrets.token_hex(4)}"


def _list_prefix_digests(groups: Sequence[ItemGroup]) -> list[bytes]:
    return list(iter_prefix_digests(group.digest for group in groups))


def _find_model_name(agent: Agent[Any], run_model: str | Model | None) -> str:
    model = run_model or agent.model or get_default_model()
    name = model if isinstance(model, str) else str(getattr(model, "model", ""))
    return name.removeprefix("litellm/").removeprefix("any-llm/")


def _is_part_of_server_conversation(groups: Sequence[ItemGroup]) -> bool:
    """Return whether the input is only what is new of a conversation that the server keeps.

    A filter is not told so. A result without its call tells it; input that is nothing but new user messages passes as a
    conversation of its own, until the model is told.
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
