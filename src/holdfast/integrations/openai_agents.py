"""OpenAI Agents SDK: a run configuration that keeps the conversations of runs inside their models' windows.

::

    from agents import Agent, Runner
    from holdfast.integrations.openai_agents import HoldfastRuns

    holdfast = HoldfastRuns()
    agent = Agent("Operator", tools=[read_log, holdfast.recall_tool])
    result = await Runner.run(agent, prompt, session=session, run_config=holdfast.run_config(session))

Every call of a model sees a reduced view; the session and the result keep the whole history. A request that its
provider refuses for its length is made again with less, inside of the call.

A run configuration is where the SDK lets others change what a model is sent (``call_model_input_filter``) and how it is
called (``model_provider``), for all agents of a run. Tools belong to agents, so the tool ``recall`` is added there.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextvars import ContextVar
from dataclasses import replace
from hashlib import blake2b
from itertools import count
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

import msgspec
from msgspec import Raw, Struct

try:
    from agents import Agent, FunctionTool, Model, ModelProvider, ModelSettings, RunConfig, Tool
    from agents.agent_output import AgentOutputSchemaBase
    from agents.handoffs import Handoff
    from agents.items import ModelResponse, TResponseInputItem, TResponseStreamEvent
    from agents.memory import Session
    from agents.models.default_models import get_default_model
    from agents.models.interface import ModelTracing
    from agents.retry import ModelRetryAdvice, ModelRetryAdviceRequest
    from agents.run_config import CallModelData, CallModelInputFilter, ModelInputData
    from agents.tool_context import ToolContext
except ImportError as error:
    advice = "install the OpenAI Agents SDK 0.24 or newer: pip install 'holdfast[openai-agents]'"
    raise ImportError(f"holdfast.integrations.openai_agents cannot be used ({error}); {advice}") from error

from holdfast.config.files import get_target
from holdfast.engine.recall import RECALL_DESCRIPTION, RECALL_PARAMETERS, RECALL_TOOL_NAME
from holdfast.errors import ConfigError, HoldfastError
from holdfast.events import Event
from holdfast.hosts.given_conversation import ShownMessage
from holdfast.integrations.common.agent_history import AgentHistory, GivenMessage
from holdfast.integrations.common.options import AgentHistories
from holdfast.messages.equality import encode_comparable_bytes
from holdfast.messages.message import Message
from holdfast.messages.size.tokens import estimate_text_tokens
from holdfast.planning.pipeline import Policy
from holdfast.providers.errors.report import ErrorReport
from holdfast.providers.openai_responses.items import group_items_by_message
from holdfast.providers.openai_responses.messages import encode_message
from holdfast.state.entries import Usage
from holdfast.store.base import SessionStore

__all__ = ["HoldfastRuns"]

API_NAME = "openai-responses"
"""The API whose items the SDK speaks; it translates them itself for models of other APIs."""
OPENING_EVENTS = frozenset({"response.created", "response.in_progress", "response.queued"})
"""Events of a stream before the first one with anything of the answer."""
FAILURE_EVENTS = frozenset({"error", "response.error", "response.failed"})


class HoldfastRuns:
    """Keeps the conversations of an application's runs inside the windows of their models.

    ``window`` is the window in tokens, by default that of Holdfast's catalogue. ``store`` is a store or the path of
    one, by default the one of the command line (``:memory:`` for none on disk). ``listener`` is called with the events
    of ``holdfast.events``.
    """

    def __init__(
        self,
        *,
        window: int | None = None,
        store: SessionStore | str | os.PathLike[str] | None = None,
        policy: Policy = Policy(),
        listener: Callable[[Event], None] | None = None,
    ) -> None:
        self._window = window
        self._histories = AgentHistories(store, policy, listener)
        self._tool_tokens: dict[str, int] = {}
        """By the name of an agent: the size of the tools that its newest call had, those of MCP servers included."""
        self._numbers: dict[str, WeakKeyDictionary[asyncio.Task[Any], int]] = {}
        """By the key of a conversation: the tasks that run it, each with its number."""
        self._numbers_lock = Lock()
        self.recall_tool = _make_recall_tool()
        """Reads back what a model is not shown any more; every agent of a run needs it among its tools."""

    def run_config(self, session: Session | str | None = None, base: RunConfig | None = None) -> RunConfig:
        """Return the configuration for ``Runner.run``, ``run_sync`` and ``run_streamed``.

        ``session`` is the session of the run, or a name of its conversation: the SDK does not tell it to those who
        change a model's input. ``base`` has further settings of the run; its own filter is called first.
        """
        settings = base or RunConfig()
        if isinstance(settings.call_model_input_filter, _InputFilter):
            # Two adapters would shorten what the other has shortened, and write it down as the history.
            self._histories.warn_once(ConfigError("base is a run configuration of Holdfast already; give your own"))
            return settings
        session_id = session if isinstance(session, str) else getattr(session, "session_id", "")
        model = settings.model
        return replace(
            settings,
            model=_RecoveringModel(model, self) if isinstance(model, Model) else model,
            model_provider=_RecoveringProvider(settings.model_provider, self),
            call_model_input_filter=_InputFilter(self, session_id, settings.call_model_input_filter, model),
        )

    def wrap_model(self, model: Model) -> Model:
        """Return ``model`` so that a refused request is made again with less.

        Only for agents that have a ``Model`` of their own in place of a name: a run configuration does not see those.
        """
        return _RecoveringModel(model, self)

    def get_history(self, items: Sequence[TResponseInputItem], session: Session | str | None = None) -> AgentHistory:
        """Return the conversation that begins with the first of ``items``, for its report and ``recall``."""
        session_id = session if isinstance(session, str) else getattr(session, "session_id", "")
        return self._histories.open(_make_key(_group_items(items)[0].message, session_id))

    async def plan_call(
        self, data: CallModelData[Any], session_id: str, run_model: str | Model | None
    ) -> list[TResponseInputItem]:
        """Return what to show of the input of a model call; all of it if Holdfast cannot help."""
        items: list[TResponseInputItem] = data.model_data.input
        _newest_call.set(None)
        try:
            # In a thread, since large results can take seconds and the loop has other runs to serve.
            call = await asyncio.to_thread(self._plan, data, session_id, run_model, asyncio.current_task())
        except Exception as error:  # noqa: BLE001 -- whatever it is: the run must not end because of us
            self._histories.warn_once(error)
            return items
        _newest_call.set(call)
        return items if call is None else call.shown_items

    def _plan(
        self,
        data: CallModelData[Any],
        session_id: str,
        run_model: str | Model | None,
        task: asyncio.Task[Any] | None,
    ) -> _PlannedCall | None:
        groups = _group_items(data.model_data.input)
        if not groups or _is_part_of_server_conversation(groups):
            return None
        if not any(tool.name == RECALL_TOOL_NAME for tool in data.agent.tools):
            # Previews and extracts name the tool. A model that calls a tool which is not there ends the run.
            lack = f"agent {data.agent.name!r} has no tool recall; add HoldfastRuns.recall_tool to its tools"
            raise ConfigError(lack)
        key = self._choose_key(_make_key(groups[0].message, session_id), task)
        history = self._histories.open(key)
        given_messages = [GivenMessage(group.message) for group in groups]
        target = get_target(API_NAME, _find_model_name(data.agent, run_model), window=self._window)
        shown_messages = history.plan(given_messages, target, self._estimate_setup(data))
        return _PlannedCall(data.agent.name, groups, history, _show_items(groups, shown_messages))

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

    async def plan_smaller(self, call: _PlannedCall, report: ErrorReport) -> list[TResponseInputItem] | None:
        """Return less to show after a refusal, or None if it is no overflow or nothing is left to try."""
        given_messages = [GivenMessage(group.message) for group in call.groups]
        try:
            shown_messages = await asyncio.to_thread(call.history.plan_smaller, report, messages=given_messages)
            return None if shown_messages is None else _show_items(call.groups, shown_messages)
        except Exception as error:  # noqa: BLE001 -- as above; the caller raises the provider's own error
            self._histories.warn_once(error)
            return None

    def note_setup(
        self,
        agent_name: str,
        tools: Sequence[Tool],
        handoffs: Sequence[Handoff[Any, Any]],
        output_schema: AgentOutputSchemaBase | None,
    ) -> None:
        """Remember the size of what goes with an agent's calls; their input filter does not see all of it."""
        try:
            tokens = _estimate_tools(tools) + _estimate_handoffs(handoffs)
            if output_schema is not None and not output_schema.is_plain_text():
                tokens += estimate_text_tokens(json.dumps(output_schema.json_schema()))
            self._tool_tokens[agent_name] = tokens
        except Exception as error:  # noqa: BLE001 -- as above; tools and schemas are the user's
            self._histories.warn_once(error)

    def _estimate_setup(self, data: CallModelData[Any]) -> int:
        """Return the tokens of the instructions and the tools."""
        tool_tokens = self._tool_tokens.get(data.agent.name)
        if tool_tokens is None:
            tool_tokens = _estimate_tools(data.agent.tools)
        return estimate_text_tokens(data.model_data.instructions or "") + tool_tokens


class _ItemGroup(Struct, frozen=True):
    """Neighbouring items of the SDK that are one message in our terms: those of one answer, or a single other item."""

    items: list[Any]
    raw: Raw
    """The items as JSON."""
    message: Message


class _PlannedCall(Struct, frozen=True):
    """A call of a model, from its input filter until the next call."""

    agent_name: str
    groups: list[_ItemGroup]
    history: AgentHistory
    shown_items: list[Any]


_newest_call: ContextVar[_PlannedCall | None] = ContextVar("holdfast_newest_call", default=None)
"""The call that the current run is making. The SDK runs input filter, model and tools of a run in one context."""


class _InputFilter:
    """The ``call_model_input_filter`` of a run."""

    def __init__(
        self,
        runs: HoldfastRuns,
        session_id: str,
        own_filter: CallModelInputFilter | None,
        run_model: str | Model | None,
    ) -> None:
        self._runs = runs
        self._session_id = session_id
        self._own_filter = own_filter
        self._run_model = run_model

    async def __call__(self, data: CallModelData[Any]) -> ModelInputData:
        """Return the model's input with what the model is shown."""
        if self._own_filter is not None:
            filtered = self._own_filter(data)
            data.model_data = await filtered if inspect.isawaitable(filtered) else filtered
        items = await self._runs.plan_call(data, self._session_id, self._run_model)
        return ModelInputData(input=items, instructions=data.model_data.instructions)


class _RecoveringProvider(ModelProvider):
    """Gives the models of another provider, each so that refused requests are made again with less."""

    def __init__(self, provider: ModelProvider, runs: HoldfastRuns) -> None:
        self._provider = provider
        self._runs = runs
        self._models: dict[str | None, tuple[Model, Model]] = {}
        """By name: the newest model of the other provider and the one given for it. The SDK tells models apart by
        their identity."""

    def get_model(self, model_name: str | None) -> Model:
        model = self._provider.get_model(model_name)
        known_model, recovering_model = self._models.get(model_name, (None, None))
        if recovering_model is None or known_model is not model:
            recovering_model = _RecoveringModel(model, self._runs)
            self._models[model_name] = (model, recovering_model)
        return recovering_model

    async def aclose(self) -> None:
        await self._provider.aclose()

    def __getattr__(self, name: str) -> Any:
        """The SDK asks providers for settings beyond their interface."""
        return getattr(self._provider, name)


class _RecoveringModel(Model):
    """Calls another model, and calls it again with less if its provider refuses a request for its length."""

    def __init__(self, model: Model, runs: HoldfastRuns) -> None:
        self._model = model
        self._runs = runs

    async def get_response(
        self,
        system_instructions: str | None,
        input: str | list[TResponseInputItem],  # noqa: A002 -- the name in the SDK's interface
        model_settings: ModelSettings,
        tools: list[Tool],
        output_schema: AgentOutputSchemaBase | None,
        handoffs: list[Handoff[Any, Any]],
        tracing: ModelTracing,
        **options: Any,
    ) -> ModelResponse:
        call = self._start_call(tools, handoffs, output_schema, options)
        while True:
            try:
                response = await self._model.get_response(
                    system_instructions, input, model_settings, tools, output_schema, handoffs, tracing, **options
                )
            except Exception as error:
                smaller_input = None if call is None else await self._runs.plan_smaller(call, _report_error(error))
                if smaller_input is None:
                    raise
                input = smaller_input  # noqa: A001
            else:
                if call is not None:
                    call.history.note_answer_usage(_read_usage(response.usage))
                return response

    async def stream_response(
        self,
        system_instructions: str | None,
        input: str | list[TResponseInputItem],  # noqa: A002 -- the name in the SDK's interface
        model_settings: ModelSettings,
        tools: list[Tool],
        output_schema: AgentOutputSchemaBase | None,
        handoffs: list[Handoff[Any, Any]],
        tracing: ModelTracing,
        **options: Any,
    ) -> AsyncIterator[TResponseStreamEvent]:
        call = self._start_call(tools, handoffs, output_schema, options)
        while True:
            events = self._model.stream_response(
                system_instructions, input, model_settings, tools, output_schema, handoffs, tracing, **options
            )
            is_answer_begun = False
            smaller_input: list[TResponseInputItem] | None = None
            try:
                async for event in events:
                    if call is not None and not is_answer_begun and event.type in FAILURE_EVENTS:
                        smaller_input = await self._runs.plan_smaller(call, _report_failure(event))
                        if smaller_input is not None:
                            break
                    is_answer_begun = is_answer_begun or event.type not in OPENING_EVENTS
                    if call is not None and event.type == "response.completed" and event.response.usage:
                        call.history.note_answer_usage(_read_usage(event.response.usage))
                    yield event
            except Exception as error:
                # What was streamed already cannot be taken back.
                if call is not None and not is_answer_begun:
                    smaller_input = await self._runs.plan_smaller(call, _report_error(error))
                if smaller_input is None:
                    raise
            finally:
                await _close_stream(events)
            if smaller_input is None:
                return
            input = smaller_input  # noqa: A001

    def _start_call(
        self,
        tools: list[Tool],
        handoffs: list[Handoff[Any, Any]],
        output_schema: AgentOutputSchemaBase | None,
        options: dict[str, Any],
    ) -> _PlannedCall | None:
        """Return the planned call that this one is; None if Holdfast has no part in it."""
        call = _newest_call.get()
        is_kept_by_server = options.get("previous_response_id") or options.get("conversation_id")
        if call is None or is_kept_by_server:
            return None
        self._runs.note_setup(call.agent_name, tools, handoffs, output_schema)
        return call

    def get_retry_advice(self, request: ModelRetryAdviceRequest) -> ModelRetryAdvice | None:
        return self._model.get_retry_advice(request)

    async def close(self) -> None:
        await self._model.close()

    async def _cleanup_on_run_end(self, owner: object) -> None:
        await self._model._cleanup_on_run_end(owner)  # noqa: SLF001 -- the SDK's own hook for models

    def __getattr__(self, name: str) -> Any:
        """The SDK and its users ask models for more than their interface, such as ``model``."""
        return getattr(self._model, name)


async def _close_stream(events: AsyncIterator[Any]) -> None:
    """Close a stream that is not read to its end, if it can be closed."""
    close = getattr(events, "aclose", None)
    if close is not None:
        await close()


def _make_recall_tool() -> FunctionTool:
    """Return the tool that reads back what the model is not shown any more."""

    async def recall(_: ToolContext[Any], arguments: str) -> str:
        call = _newest_call.get()
        if call is None:
            return "Nothing was stored away: all of the conversation is shown."
        try:
            return await asyncio.to_thread(call.history.answer_recall, arguments)
        except HoldfastError as error:
            return str(error)

    schema = {"type": "object", "properties": RECALL_PARAMETERS, "additionalProperties": False}
    return FunctionTool(RECALL_TOOL_NAME, RECALL_DESCRIPTION, schema, recall, strict_json_schema=False)


def _make_key(first: Message, session_id: str) -> str:
    """Return the key of a conversation: its session and its first message.

    An agent that is a tool of another runs with the configuration of its parent, with a first message of its own.
    """
    content = session_id.encode("utf-8", "surrogatepass") + b"\n" + encode_comparable_bytes(first)
    return f"openai-agents-{blake2b(content, digest_size=8).hexdigest()}"


def _find_model_name(agent: Agent[Any], run_model: str | Model | None) -> str:
    model = run_model or agent.model or get_default_model()
    name = model if isinstance(model, str) else str(getattr(model, "model", ""))
    return name.removeprefix("litellm/").removeprefix("any-llm/")


def _is_part_of_server_conversation(groups: Sequence[_ItemGroup]) -> bool:
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


# -- from the SDK ------------------------------------------------------------------------------------------------------


def _group_items(items: Sequence[Any]) -> list[_ItemGroup]:
    """Return the items of the SDK in our terms. Raises ``FormatError`` for what is no item."""
    raws = [Raw(msgspec.json.encode(item)) for item in items]
    groups: list[_ItemGroup] = []
    for start, stop, message in group_items_by_message(raws):
        raw = raws[start] if stop == start + 1 else Raw(b"[" + b",".join(map(bytes, raws[start:stop])) + b"]")
        groups.append(_ItemGroup(list(items[start:stop]), raw, message))
    return groups


def _read_usage(usage: Any) -> Usage:
    """Return the usage of an answer, that of the SDK or that of the API."""
    details = usage.input_tokens_details
    return Usage(
        usage.input_tokens or 0,
        usage.output_tokens or 0,
        getattr(details, "cached_tokens", 0) or 0,
        getattr(details, "cache_write_tokens", 0) or 0,
        getattr(usage.output_tokens_details, "reasoning_tokens", 0) or 0,
    )


def _report_error(error: Exception) -> ErrorReport:
    code = getattr(error, "code", None)
    return ErrorReport(
        status=getattr(error, "status_code", None),
        code=code if isinstance(code, str) else "",
        message=str(error),
        body=getattr(error, "body", None) or b"",
    )


def _report_failure(event: Any) -> ErrorReport:
    """Return what an event of a stream says about its failure."""
    failure = event.response.error if event.type == "response.failed" else event
    code, message = getattr(failure, "code", None), getattr(failure, "message", None)
    return ErrorReport(status=200, code=code or "", message=message or "")


# -- to the SDK --------------------------------------------------------------------------------------------------------


def _show_items(groups: Sequence[_ItemGroup], shown_messages: Sequence[ShownMessage]) -> list[Any]:
    """Return the items to send: the SDK's own objects wherever a message is shown as it is."""
    items: list[Any] = []
    for shown in shown_messages:
        group = None if shown.index is None else groups[shown.index]
        if group is not None and shown.message == group.message:
            items += group.items
        else:
            # Written over the old items, so that fields which we do not interpret stay, and reasoning stays with the
            # item that follows it.
            base = None if group is None else group.raw
            items += [msgspec.json.decode(item) for item in encode_message(shown.message, base)]
    return items
