"""The capability: what a Pydantic AI agent calls before each request to its model, and when one fails."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from copy import copy
from typing import Any, NamedTuple

import anyio.to_thread
from pydantic_ai import RunContext
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.exceptions import RetryModelRequest
from pydantic_ai.messages import (
    ModelMessage,
    ModelResponse,
)
from pydantic_ai.models import Model, ModelRequestContext
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.toolsets import FunctionToolset

from holdfast.config.files import get_target
from holdfast.engine.recall import RECALL_DESCRIPTION, RECALL_TOOL_NAME
from holdfast.hosts.given_conversation import ShownMessage
from holdfast.integrations.common.agent_history import AgentHistory
from holdfast.integrations.common.options import (
    AgentHistories,
    Listener,
    StoreChoice,
    find_output_limit,
    make_conversation_key,
)
from holdfast.integrations.pydantic_ai.messages import GivenHistory, read_history, write_history
from holdfast.messages.size.tokens import estimate_text_tokens
from holdfast.planning.pipeline import Policy
from holdfast.state.target import Target

APIS_BY_SYSTEM = {"anthropic": "anthropic", "google": "gemini", "google-gla": "gemini", "google-vertex": "gemini"}
"""The API of a model, by its ``system``; of any other it is Chat Completions or Responses."""


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
        self._window = window
        self._histories = AgentHistories(store, policy, listener)
        self._setup_tokens: dict[str, int] = {}
        self._toolset: FunctionToolset[Any] = FunctionToolset(id="holdfast")
        self._toolset.add_function(self._recall, name=RECALL_TOOL_NAME, description=RECALL_DESCRIPTION)
        self._request: _PlannedRequest | None = None
        """The newest request of the run; each run has a copy of the capability."""

    @classmethod
    def combine(cls, capabilities: Sequence[AbstractCapability[Any]]) -> AbstractCapability[Any]:
        """Return the one to use of several on one agent: the last."""
        return capabilities[-1]

    async def for_run(self, ctx: RunContext[Any]) -> AbstractCapability[Any]:  # noqa: ARG002 -- given by name
        """Return a copy that remembers the requests of one run."""
        run_capability = copy(self)
        run_capability._request = None  # noqa: SLF001 -- our own
        return run_capability

    def get_toolset(self) -> FunctionToolset[Any]:
        """Return the tool ``recall``."""
        return self._toolset

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
        request_context: ModelRequestContext,  # noqa: ARG002 -- given by name
        error: Exception,
    ) -> ModelResponse:
        """Ask for another attempt with less, if the provider refused this one for its length."""
        if await anyio.to_thread.run_sync(self._plan_smaller, error):
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
            asked_output = find_output_limit(request_context.model_settings or {})
            target = _choose_target(request_context.model, self._window, asked_output)
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

    def _plan_smaller(self, error: Exception) -> bool:
        """Plan the next attempt after ``error``; False if that is no overflow or nothing is left to try."""
        request = self._request
        if request is None:
            return False
        with self._histories.keep_agent_running():
            for cause in _list_causes(error):
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
        tokens = estimate_text_tokens("\n".join(texts))
        for tool in (*parameters.function_tools, *parameters.output_tools):
            if tool.name not in self._setup_tokens:
                definition = [tool.name, tool.description, tool.parameters_json_schema]
                self._setup_tokens[tool.name] = estimate_text_tokens(json.dumps(definition, default=str))
            tokens += self._setup_tokens[tool.name]
        return tokens

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
        key = _make_key(ctx.messages, ctx.conversation_id or "")
        return await anyio.to_thread.run_sync(self._histories.answer_recall, key, arguments)


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


def _choose_target(model: Model, window: int | None, asked_output: int | None) -> Target:
    """Return what is known about requests to ``model``; of several to fall back on, to that with the least room."""
    if isinstance(model, FallbackModel):
        targets = [_choose_target(candidate, window, asked_output) for candidate in model.models]
        return min(targets, key=lambda target: target.limits.window)
    default_api = "openai-responses" if "Responses" in type(model).__name__ else "openai-chat"
    api = APIS_BY_SYSTEM.get(model.system, default_api)
    target = get_target(api, model.model_name, window=window, asked_output=asked_output)
    # Ours first: the table behind the profile has had wrong windows of well-known models.
    if target.limits.window_source.startswith("default") and model.context_window:
        return get_target(api, model.model_name, window=model.context_window, asked_output=asked_output)
    return target


def _list_causes(error: Exception) -> Iterator[Exception]:
    """Yield ``error``, or the errors of the models that a ``FallbackModel`` tried."""
    if isinstance(error, ExceptionGroup):
        for inner in error.exceptions:
            yield from _list_causes(inner)
    else:
        yield error
