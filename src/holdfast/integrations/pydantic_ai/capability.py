"""The capability: what a Pydantic AI agent calls before each request to its model, and when one fails."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, NamedTuple

import anyio.to_thread
from pydantic_ai import RunContext
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.exceptions import RetryModelRequest, UserError
from pydantic_ai.messages import (
    ModelMessage,
    ModelResponse,
)
from pydantic_ai.models import Model, ModelRequestContext
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.settings import ModelSettings, merge_model_settings
from pydantic_ai.toolsets import AbstractToolset, FunctionToolset, ToolsetTool, WrapperToolset

from holdfast.config.files import get_target
from holdfast.engine.recall import RECALL_DESCRIPTION, RECALL_TOOL_NAME
from holdfast.errors import ConfigError
from holdfast.hosts.given_conversation import ShownMessage
from holdfast.integrations.common.agent_history import AgentHistory
from holdfast.integrations.common.options import (
    AgentHistories,
    Listener,
    StoreChoice,
    check_window,
    find_api,
    find_output_limit,
    make_conversation_key,
)
from holdfast.integrations.pydantic_ai.messages import GivenHistory, read_history, write_history
from holdfast.messages.size.tokens import estimate_text_tokens
from holdfast.planning.pipeline import Policy
from holdfast.state.target import Target

APIS_BY_CLASS = {
    "AnthropicModel": "anthropic",
    "BedrockConverseModel": "anthropic",
    "GoogleModel": "gemini",
    "OpenAIResponsesModel": "openai-responses",
}
"""The API of a model, by the name of its class or one of its bases; of any other it is Chat Completions."""


class HoldfastCapability(AbstractCapability[Any]):
    """Keeps the conversation of an agent inside the window of its model.

    ``window`` is the window in tokens, by default that of Holdfast's catalogue, else of the model's profile. ``store``
    is a store or the path of one, by default the one of the command line (``:memory:`` for none on disk). ``listener``
    is called with the events of ``holdfast.events``.
    """

    id: str | None = "holdfast"
    """An agent has one of these: Pydantic AI calls ``combine`` for several with one id."""

    def __init__(
        self,
        *,
        window: int | None = None,
        store: StoreChoice = None,
        policy: Policy = Policy(),
        listener: Listener | None = None,
    ) -> None:
        self._window = check_window(window)
        self._histories = AgentHistories(store, policy, listener)
        self._toolset: FunctionToolset[Any] = FunctionToolset(id="holdfast")
        self._toolset.add_function(self._recall, name=RECALL_TOOL_NAME, description=RECALL_DESCRIPTION)
        self._request: _PlannedRequest | None = None
        """The newest request of the run; each run has a copy of the capability."""
        self._offers_recall = True
        """False in a run whose agent has a tool of its own with the name of ours."""

    @classmethod
    def combine(cls, capabilities: Sequence[AbstractCapability[Any]]) -> AbstractCapability[Any]:
        """Return the one to use of several on one agent: the last."""
        return capabilities[-1]

    async def for_run(self, ctx: RunContext[Any]) -> AbstractCapability[Any]:  # noqa: ARG002 -- given by name
        """Return a copy that remembers the requests of one run."""
        run_capability = copy(self)
        run_capability._request = None  # noqa: SLF001 -- our own
        return run_capability

    def get_toolset(self) -> AbstractToolset[Any]:
        """Return the tool ``recall``."""
        return self._toolset.filtered(lambda _ctx, _tool: self._offers_recall)

    def get_wrapper_toolset(self, toolset: AbstractToolset[Any]) -> AbstractToolset[Any]:
        """Return the tools of a run, without ``recall`` if the agent has a tool of that name itself."""
        return _ToolsetWithoutConflict(toolset, self._stop_offering_recall, self._histories.warn_once)

    def _stop_offering_recall(self) -> bool:
        """Take ``recall`` out of the run; False if it is out already."""
        was_offered, self._offers_recall = self._offers_recall, False
        return was_offered

    async def prepare_model_request(
        self, ctx: RunContext[Any], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        """Show the model the reduced view in this attempt."""
        # In a thread, since the store writes to a disk.
        request_context.messages = await anyio.to_thread.run_sync(self._choose_messages, ctx, request_context)
        return request_context

    async def on_model_request_error(
        self,
        ctx: RunContext[Any],  # noqa: ARG002 -- given by name
        *,
        request_context: ModelRequestContext,
        error: Exception,
    ) -> ModelResponse:
        """Ask for another attempt with less, if the provider refused this one for its length."""
        if await anyio.to_thread.run_sync(self._plan_smaller, error, request_context.model):
            raise RetryModelRequest
        raise error

    def get_history(self, messages: Sequence[ModelMessage], conversation_id: str | None = None) -> AgentHistory:
        """Return the conversation that begins with the first of ``messages``, for its report and ``recall``.

        Without ``conversation_id``, the one that the messages state.
        """
        stated_ids = [message.conversation_id for message in reversed(messages) if message.conversation_id]
        return self._histories.open(_make_key(messages, conversation_id or next(iter(stated_ids), "")))

    def _choose_messages(self, ctx: RunContext[Any], request_context: ModelRequestContext) -> list[ModelMessage]:
        """Return what to show in this attempt; the whole history if Holdfast cannot help."""
        whole = list(request_context.messages)
        request, self._request = self._request, None
        with self._histories.keep_agent_running():
            target = _choose_target(request_context.model, self._window, request_context.model_settings)
            # The attempt after a refusal shows what was made smaller; one that failed otherwise shows the same again.
            is_next_attempt = request is not None and request.is_for(whole, target) and request_context.attempt > 1
            if request is None or not is_next_attempt:
                request = self._plan(ctx, request_context, target)
            messages = request.write()
            self._request = request
            return messages
        return whole

    def _plan(self, ctx: RunContext[Any], request_context: ModelRequestContext, target: Target) -> _PlannedRequest:
        whole = list(request_context.messages)
        history = self.get_history(ctx.messages or whole, ctx.conversation_id)
        given_history = read_history(whole)
        setup_tokens = self._estimate_setup(request_context, given_history)
        shown_messages = history.plan(given_history.list_given_messages(), target, setup_tokens)
        return _PlannedRequest(whole, target, history, given_history, shown_messages)

    def _plan_smaller(self, error: Exception, model: Model) -> bool:
        """Plan the next attempt after ``error``; False if that is no overflow or nothing is left to try."""
        request = self._request
        if request is None:
            return False
        with self._histories.keep_agent_running():
            for cause in _list_causes(error, model):
                shown_messages = request.history.plan_smaller(cause, request.given_history.list_given_messages())
                if shown_messages is not None:
                    smaller_request = request._replace(shown_messages=shown_messages)
                    smaller_request.write()
                    self._request = smaller_request
                    return True
        return False

    def _estimate_setup(self, request_context: ModelRequestContext, given_history: GivenHistory) -> int:
        """Return the tokens of the instructions, the system prompt and the tools."""
        parameters = request_context.model_request_parameters
        texts = [part.content for part in (*given_history.system_parts, *(parameters.instruction_parts or ()))]
        for tool in (*parameters.function_tools, *parameters.output_tools):
            is_hidden = tool.defer_loading and tool.name not in parameters.revealed_tool_names
            # There may be hundreds of tools that the model has to search for.
            if not is_hidden:
                definition = [tool.name, tool.description, tool.parameters_json_schema]
                texts.append(json.dumps(definition, default=str))
        if parameters.output_object is not None:
            texts.append(json.dumps(parameters.output_object.json_schema, default=str))
        return estimate_text_tokens("\n".join(texts))

    async def _recall(
        self,
        ctx: RunContext[Any],
        id: str = "",  # noqa: A002 -- what previews and extracts call it
        lines: str = "",
        chars: str = "",
        search: str = "",
        page: int = 1,
    ) -> str:
        arguments = {"id": id, "lines": lines, "chars": chars, "search": search, "page": page}
        return await anyio.to_thread.run_sync(self._answer_recall, ctx, arguments)

    def _answer_recall(self, ctx: RunContext[Any], arguments: dict[str, Any]) -> str:
        with self._histories.keep_agent_running():
            return self._histories.answer_recall(_make_key(ctx.messages, ctx.conversation_id or ""), arguments)
        return "The text could not be read back. Go on without it."


@dataclass
class _ToolsetWithoutConflict(WrapperToolset[Any]):
    """The tools of a run. Pydantic AI ends a run with two tools of one name; so ours goes, and the agent's stays."""

    stop_offering_recall: Callable[[], bool]
    """Takes our tool out of the run; False if it is out already."""
    warn_once: Callable[[Exception], None]

    async def get_tools(self, ctx: RunContext[Any]) -> dict[str, ToolsetTool[Any]]:
        """Return the tools by name."""
        try:
            tools: dict[str, ToolsetTool[Any]] = await super().get_tools(ctx)
        except UserError:
            if not self.stop_offering_recall():
                raise
            tools = await super().get_tools(ctx)
            name_taken = f"the agent has a tool of its own called {RECALL_TOOL_NAME}, and ours is left out; rename it"
            self.warn_once(ConfigError(name_taken))
        return tools


class _PlannedRequest(NamedTuple):
    """A request as the agent wants it, and as it is sent."""

    whole: list[ModelMessage]
    target: Target
    history: AgentHistory
    given_history: GivenHistory
    shown_messages: Sequence[ShownMessage]

    def is_for(self, messages: Sequence[ModelMessage], target: Target) -> bool:
        """Return whether this was planned for the same messages and the same model."""
        are_same = len(messages) == len(self.whole) and all(
            message is own for message, own in zip(messages, self.whole, strict=True)
        )
        return are_same and target == self.target

    def write(self) -> list[ModelMessage]:
        """Return the messages to send."""
        return write_history(self.whole, self.given_history, self.shown_messages)


def _make_key(messages: Sequence[ModelMessage], conversation_id: str) -> str:
    """Return the key of a conversation: its id and the first thing that somebody said in it.

    An agent that another one calls as a tool may be given the id of its parent.
    """
    first = [(group.message.role, group.message.text) for group in read_history(messages[:1]).groups]
    return make_conversation_key("pydantic-ai", conversation_id, str(first))


def _choose_target(model: Model, window: int | None, settings: ModelSettings | None) -> Target:
    """Return what is known about requests to ``model``; of several to fall back on, to that with the least room."""
    model = _unwrap_model(model)
    # As the model itself does it: what a request asks for comes before its own settings.
    merged_settings = merge_model_settings(model.settings, settings)
    if isinstance(model, FallbackModel):
        targets = [_choose_target(candidate, window, merged_settings) for candidate in model.models]
        return min(targets, key=lambda target: target.limits.window)
    api = find_api(model, APIS_BY_CLASS)
    asked_output = find_output_limit(merged_settings or {})
    target = get_target(api, model.model_name, window=window, asked_output=asked_output)
    # Ours first: the table behind the profile has had wrong windows of well-known models.
    if target.limits.window_source.startswith("default") and model.context_window:
        return get_target(api, model.model_name, window=model.context_window, asked_output=asked_output)
    return target


def _unwrap_model(model: Model) -> Model:
    """Return the model inside of those that only observe or limit its requests."""
    while isinstance(model, WrapperModel):
        model = model.wrapped
    return model


def _list_causes(error: Exception, model: Model) -> Iterator[Exception]:
    """Yield ``error`` of a request to ``model``, or the errors of the models that a ``FallbackModel`` tried for it.

    The group of the capability ``ModelFallback`` has the errors of several requests, each to another model. Only the
    last is that of the newest request, which is the one to be made again.
    """
    if not isinstance(error, ExceptionGroup):
        yield error
        return
    is_one_request = isinstance(_unwrap_model(model), FallbackModel)
    for inner in error.exceptions if is_one_request else error.exceptions[-1:]:
        yield from _list_causes(inner, model)
