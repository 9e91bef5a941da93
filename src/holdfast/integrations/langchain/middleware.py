"""The middleware: what a LangChain agent calls before and around each call of its model."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any, NamedTuple
from uuid import uuid4

import msgspec
from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse
from langchain.tools import InjectedState, tool
from langchain_core.callbacks import dispatch_custom_event
from langchain_core.messages import BaseMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.utils.function_calling import convert_to_openai_tool

from holdfast.config.files import get_target
from holdfast.engine.recall import RECALL_DESCRIPTION, RECALL_TOOL_NAME
from holdfast.events import Event
from holdfast.hosts.given_conversation import ShownMessage
from holdfast.integrations.common.agent_history import AgentHistory
from holdfast.integrations.common.options import (
    AgentHistories,
    Listener,
    StoreChoice,
    find_api,
    find_output_limit,
    make_conversation_key,
)
from holdfast.integrations.langchain.messages import read_message, write_view
from holdfast.messages.size.tokens import estimate_text_tokens
from holdfast.planning.pipeline import Policy
from holdfast.state.target import Target

APIS_BY_CLASS = {"ChatAnthropic": "anthropic", "ChatGoogleGenerativeAI": "gemini"}
"""The API of a model, by the name of its class; of any other it is Chat Completions."""
CUSTOM_EVENT_NAME = "holdfast"
"""The name of our events among the custom ones of LangChain's callbacks."""


class HoldfastMiddleware(AgentMiddleware[Any, Any]):
    """Keeps the conversation of an agent inside the window of its model.

    ``window`` is the window in tokens, by default that of the model's profile, else of Holdfast's catalogue. ``store``
    is a store or the path of one, by default the one of the command line (``:memory:`` for none on disk). ``listener``
    is called with the events of ``holdfast.events``; callback handlers of LangChain get them too, as the custom event
    ``holdfast`` of the run that calls the model.
    """

    def __init__(
        self,
        *,
        window: int | None = None,
        store: StoreChoice = None,
        policy: Policy = Policy(),
        listener: Listener | None = None,
    ) -> None:
        super().__init__()
        self._window = window
        self._histories = AgentHistories(store, policy, listener, tell_framework=_dispatch_event)
        self._setup_tokens: dict[str, int] = {}
        self.tools = [self._make_recall_tool()]

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> ModelResponse[Any]:
        """Call the model with the reduced view; again with less if its provider refuses that for its length."""
        planned = self._plan(request)
        while True:
            try:
                return handler(planned.request)
            except Exception as error:
                smaller = self._plan_smaller(planned, error)
                if smaller is None:
                    raise
                planned = smaller

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
    ) -> ModelResponse[Any]:
        """Do the same for agents that are called asynchronously."""
        planned = await asyncio.to_thread(self._plan, request)
        while True:
            try:
                return await handler(planned.request)
            except Exception as error:
                smaller = await asyncio.to_thread(self._plan_smaller, planned, error)
                if smaller is None:
                    raise
                planned = smaller

    def get_history(self, messages: Sequence[BaseMessage], thread_id: str = "") -> AgentHistory:
        """Return the conversation of an agent's ``messages`` as its state has them, with their ids, for its report."""
        return self._histories.open(_make_key(messages, thread_id))

    def _plan(self, request: ModelRequest[Any]) -> _PlannedCall:
        """Return the call with what the model is shown; the whole history if Holdfast cannot help."""
        unplanned = _PlannedCall(request, request, None)
        if not request.messages:
            return unplanned
        with self._histories.keep_agent_running():
            history = self.get_history(request.messages, _find_thread_id())
            given_messages = [read_message(message) for message in request.messages]
            target = _choose_target(request, self._window)
            shown_messages = history.plan(given_messages, target, self._estimate_setup(request))
            return _PlannedCall(request, _show_messages(request, shown_messages), history)
        return unplanned

    def _plan_smaller(self, planned: _PlannedCall, error: Exception) -> _PlannedCall | None:
        """Return the call with less after ``error``, or None if that is no overflow or nothing is left to try."""
        original, _, history = planned
        if history is None:
            return None
        with self._histories.keep_agent_running():
            given_messages = [read_message(message) for message in original.messages]
            shown_messages = history.plan_smaller(error, given_messages)
            if shown_messages is not None:
                return _PlannedCall(original, _show_messages(original, shown_messages), history)
        return None

    def _estimate_setup(self, request: ModelRequest[Any]) -> int:
        """Return the tokens of the system prompt and the tools."""
        tokens = estimate_text_tokens(request.system_prompt or "")
        for model_tool in request.tools:
            name = str(model_tool.get("name", model_tool)) if isinstance(model_tool, dict) else model_tool.name
            if name not in self._setup_tokens:
                definition = convert_to_openai_tool(model_tool)
                self._setup_tokens[name] = estimate_text_tokens(json.dumps(definition, default=str))
            tokens += self._setup_tokens[name]
        return tokens

    def _make_recall_tool(self) -> Any:
        """Return the tool that reads back what the model is not shown any more."""

        @tool(RECALL_TOOL_NAME, description=RECALL_DESCRIPTION)
        def recall(
            config: RunnableConfig,
            messages: Annotated[list[Any], InjectedState("messages")],
            id: str = "",  # noqa: A002 -- what previews and extracts call it
            lines: str = "",
            chars: str = "",
            search: str = "",
            page: int = 1,
        ) -> str:
            arguments = {"id": id, "lines": lines, "chars": chars, "search": search, "page": page}
            return self._histories.answer_recall(_make_key(messages, _get_thread_id(config)), arguments)

        return recall


class HoldfastDeepMiddleware(HoldfastMiddleware):
    """The same for agents of deepagents: it takes the place of deepagents' own summaries, also in its sub-agents.

    Those are made of the whole history before any other middleware is called: beside them ours would come too late.
    """

    @property
    def name(self) -> str:
        """The name of the middleware that deepagents replaces with this one."""
        return "SummarizationMiddleware"


class _PlannedCall(NamedTuple):
    """A call of the model as the agent wants it, and as it is made."""

    original: ModelRequest[Any]
    request: ModelRequest[Any]
    history: AgentHistory | None
    """None if Holdfast has no part in it."""


def _dispatch_event(event: Event) -> None:
    """Give ``event`` to the callback handlers of the run (``on_custom_event``), whose ids LangChain adds."""
    try:
        dispatch_custom_event(CUSTOM_EVENT_NAME, msgspec.to_builtins(event))
    except RuntimeError:
        # Not called in a run, so nobody listens.
        return


def _find_thread_id() -> str:
    """Return the name of the agent's thread, or ``""`` if it has none."""
    from langgraph.config import get_config

    try:
        return _get_thread_id(get_config())
    except RuntimeError:
        # Not called by a graph.
        return ""


def _get_thread_id(config: RunnableConfig) -> str:
    """Return the name of the thread in ``config``; an explicit None is none."""
    return str(config.get("configurable", {}).get("thread_id") or "")


def _make_key(messages: Sequence[BaseMessage], thread_id: str) -> str:
    """Return the key of a conversation: its thread and its first message.

    A sub-agent runs in the thread of its parent, with a first message of its own. Without a thread the id of that
    message tells runs apart, which LangGraph gives it at random: two users may begin with the same words, and must not
    read each other's texts.
    """
    first = messages[0]
    run = thread_id or first.id or uuid4().hex
    content = first.model_dump_json(include={"type", "content"})
    return make_conversation_key("langchain", run, content)


def _show_messages(request: ModelRequest[Any], shown_messages: Sequence[ShownMessage]) -> ModelRequest[Any]:
    """Return ``request`` with what is shown of its messages."""
    return request.override(messages=write_view(request.messages, shown_messages))


def _choose_target(request: ModelRequest[Any], window: int | None) -> Target:
    model = request.model
    api = find_api(model, APIS_BY_CLASS)
    # Each provider's class has one of the two.
    name = getattr(model, "model_name", "") or getattr(model, "model", "")
    if window is None and model.profile is not None:
        window = model.profile.get("max_input_tokens")
    # The options of this call, which a middleware may have set, win over those of the model.
    asked_output = find_output_limit(request.model_settings, model)
    return get_target(api, str(name), window=window, asked_output=asked_output)
