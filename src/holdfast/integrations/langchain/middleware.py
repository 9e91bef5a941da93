"""The middleware: what a LangChain agent calls before and around each call of its model."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from operator import is_
from typing import Annotated, Any, NamedTuple
from uuid import uuid4

import msgspec
from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse
from langchain.agents.structured_output import AutoStrategy, ToolStrategy
from langchain.tools import InjectedState, tool
from langchain_core.callbacks import dispatch_custom_event
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import BaseMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.errors import GraphBubbleUp

from holdfast.config.files import get_target
from holdfast.engine.recall import RECALL_DESCRIPTION, RECALL_TOOL_NAME
from holdfast.errors import ConfigError
from holdfast.events import Event
from holdfast.hosts.given_conversation import ShownMessage
from holdfast.integrations.common.agent_history import AgentHistory, GivenMessage
from holdfast.integrations.common.options import (
    AgentHistories,
    Listener,
    StoreChoice,
    check_window,
    find_api,
    find_output_limit,
    make_conversation_key,
)
from holdfast.integrations.langchain.messages import forget_response_ids, read_message, write_view
from holdfast.messages.size.tokens import estimate_text_tokens
from holdfast.planning.pipeline import Policy
from holdfast.state.target import Target

APIS_BY_CLASS = {
    "ChatAnthropic": "anthropic",
    "ChatAnthropicVertex": "anthropic",
    "ChatBedrock": "anthropic",
    "ChatBedrockConverse": "anthropic",
    "ChatGoogleGenerativeAI": "gemini",
    "ChatVertexAI": "gemini",
}
"""The API of a model, by the name of its class; of any other it is Chat Completions."""
MODEL_NAME_FIELDS = ("model_name", "model", "model_id", "deployment_name")
"""Where the classes of the providers have the name of the model."""
CUSTOM_EVENT_NAME = "holdfast"
"""The name of our events among the custom ones of LangChain's callbacks."""


class HoldfastMiddleware(AgentMiddleware[Any, Any]):
    """Keeps the conversation of an agent inside the window of its model.

    ``window`` is the window in tokens, by default that of the model's profile, else of Holdfast's catalogue. ``store``
    is a store or the path of one, by default the one of the command line (``:memory:`` for none on disk). ``listener``
    is called with the events of ``holdfast.events``; callback handlers of LangChain get them too, as the custom event
    ``holdfast`` of the run that calls the model. Raises ``ConfigError`` for arguments of other types.
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
        self._window = check_window(window)
        self._histories = AgentHistories(store, policy, listener, tell_framework=_dispatch_event)
        self._measured_definitions: dict[int, tuple[Any, int]] = {}
        """The tools of the last request and its format of the answer, by their identity, with their sizes in tokens."""
        self.tools = [self._make_recall_tool()]

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> ModelResponse[Any]:
        """Call the model with the reduced view; again with less if its provider refuses that for its length."""
        planned = self._plan(request)
        while True:
            try:
                return handler(planned.request)
            except GraphBubbleUp:
                # No error: somebody asks a human, or goes on elsewhere in the graph.
                raise
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
            except GraphBubbleUp:
                # No error: somebody asks a human, or goes on elsewhere in the graph.
                raise
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
        unplanned = _PlannedCall(request, request, (), None)
        if not request.messages:
            return unplanned
        with self._histories.keep_agent_running():
            self._check_recall_tool(request)
            # Named by the messages of the state, as ``recall`` sees them: a middleware around this one may show others.
            history = self.get_history(
                request.state.get("messages") or request.messages, _get_thread_id(_find_config())
            )
            given_messages = tuple([read_message(message) for message in request.messages])
            target = _choose_target(request, self._window)
            shown_messages = history.plan(given_messages, target, self._estimate_setup(request))
            shown_request = _show_messages(request, given_messages, shown_messages)
            return _PlannedCall(request, shown_request, given_messages, history)
        return unplanned

    def _plan_smaller(self, planned: _PlannedCall, error: Exception) -> _PlannedCall | None:
        """Return the call with less after ``error``, or None if that is no overflow or nothing is left to try."""
        original, _, given_messages, history = planned
        if history is None:
            return None
        with self._histories.keep_agent_running():
            shown_messages = history.plan_smaller(error, given_messages)
            if shown_messages is not None:
                shown_request = _show_messages(original, given_messages, shown_messages)
                return _PlannedCall(original, shown_request, given_messages, history)
        return None

    def _check_recall_tool(self, request: ModelRequest[Any]) -> None:
        """Say once if the agent has a tool of its own with the name of ours: LangChain keeps that one."""
        for model_tool in request.tools:
            if getattr(model_tool, "name", "") == RECALL_TOOL_NAME and model_tool is not self.tools[0]:
                name_taken = (
                    f"the agent has a tool of its own called {RECALL_TOOL_NAME}, so the model cannot read back what it "
                    "is not shown; give that tool another name"
                )
                self._histories.warn_once(ConfigError(name_taken))

    def _estimate_setup(self, request: ModelRequest[Any]) -> int:
        """Return the tokens of the system prompt, the tools and the format of the answer."""
        definitions = [*request.tools]
        if request.response_format is not None:
            definitions.append(request.response_format)
        known = self._measured_definitions
        measured: dict[int, tuple[Any, int]] = {}
        for definition in definitions:
            # The definition itself is kept beside its size, so that no other one can have its identity.
            entry = known.get(id(definition))
            measured[id(definition)] = entry or (definition, _estimate_definition(definition))
        self._measured_definitions = measured
        return estimate_text_tokens(request.system_prompt or "") + sum(tokens for _, tokens in measured.values())

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
    """The same for agents of deepagents: it takes the place of deepagents' own summaries.

    Those are made of the whole history before any other middleware is called: beside them ours would come too late. The
    general-purpose sub-agent and forks inherit it; other sub-agents need one in their description.
    """

    @property
    def name(self) -> str:
        """The name of the middleware that deepagents replaces with this one."""
        return "SummarizationMiddleware"


class _PlannedCall(NamedTuple):
    """A call of the model as the agent wants it, and as it is made."""

    original: ModelRequest[Any]
    request: ModelRequest[Any]
    given_messages: tuple[GivenMessage, ...]
    """The messages of ``original`` in our terms."""
    history: AgentHistory | None
    """None if Holdfast has no part in it."""


def _dispatch_event(event: Event) -> None:
    """Give ``event`` to the callback handlers of the run (``on_custom_event``), whose ids LangChain adds."""
    try:
        dispatch_custom_event(CUSTOM_EVENT_NAME, msgspec.to_builtins(event))
    except RuntimeError:
        # Not called in a run, so nobody listens.
        return


def _find_config() -> RunnableConfig:
    """Return the configuration of the run; an empty one if no graph called us."""
    from langgraph.config import get_config

    try:
        return get_config()
    except RuntimeError:
        return {}


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


def _show_messages(
    request: ModelRequest[Any], given_messages: Sequence[GivenMessage], shown_messages: Sequence[ShownMessage]
) -> ModelRequest[Any]:
    """Return ``request`` with what is shown of its messages."""
    messages = write_view(request.messages, given_messages, shown_messages)
    has_same_count = len(messages) == len(request.messages)
    is_whole = has_same_count and all(map(is_, messages, request.messages))
    if not is_whole and getattr(_unwrap_model(request.model), "use_previous_response_id", False):
        # The model would send only what follows its last answer, and the provider add all that it has from before.
        messages = forget_response_ids(messages)
    return request.override(messages=messages)


def _estimate_definition(definition: Any) -> int:
    """Return the tokens of a tool, or of a format of the answer."""
    try:
        if isinstance(definition, AutoStrategy):
            definition = ToolStrategy(definition.schema)
        specs = getattr(definition, "schema_specs", None) or [getattr(definition, "schema_spec", None)]
        if specs[0] is not None:
            described: Any = [spec.json_schema for spec in specs]
        elif isinstance(definition, dict):
            # A provider's own tool may have any shape.
            described = definition
        else:
            described = convert_to_openai_tool(definition)
        return estimate_text_tokens(json.dumps(described, default=str))
    except Exception:  # noqa: BLE001 -- a tool that we cannot read is no reason to leave the history as it is
        return estimate_text_tokens(repr(definition))


def _choose_target(request: ModelRequest[Any], window: int | None) -> Target:
    model = _unwrap_model(request.model)
    profile = getattr(model, "profile", None)
    if window is None and profile is not None:
        window = profile.get("max_input_tokens")
    # The options of this call, which a middleware may have set, win over those of the model.
    asked_output = find_output_limit(request.model_settings, model)
    return get_target(find_api(model, APIS_BY_CLASS), _find_model_name(model), window=window, asked_output=asked_output)


def _unwrap_model(model: Any) -> Any:
    """Return the provider's model in ``model``.

    That may be one with fallbacks, one whose settings are bound, or one that the configuration of the run chooses.
    """
    while not isinstance(model, BaseChatModel):
        if type(model).__name__ == "_ConfigurableModel":
            # From ``init_chat_model`` with configurable fields.
            inner_model = model._model(_find_config())  # noqa: SLF001 -- there is no public way to ask it
        else:
            inner_model = getattr(model, "runnable", None) or getattr(model, "bound", None)
        if inner_model is None:
            return model
        model = inner_model
    return model


def _find_model_name(model: Any) -> str:
    for field in MODEL_NAME_FIELDS:
        name = getattr(model, field, None)
        if isinstance(name, str) and name:
            return name
    return ""
