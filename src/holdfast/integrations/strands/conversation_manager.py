"""The conversation manager: it stands between a Strands agent and its model."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any, NamedTuple
from weakref import WeakSet

from strands import Agent, ToolContext, tool
from strands.agent.conversation_manager import ConversationManager
from strands.hooks import AgentInitializedEvent, HookRegistry
from strands.middleware import InvokeModelContext, InvokeModelStage

from holdfast.config.files import get_target
from holdfast.engine.recall import RECALL_DESCRIPTION, RECALL_PARAMETERS, RECALL_TOOL_NAME
from holdfast.errors import ConfigError
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
from holdfast.integrations.strands.messages import encode_bytes, read_messages, write_new_message, write_own_message
from holdfast.messages.size.tokens import estimate_text_tokens
from holdfast.planning.pipeline import Policy
from holdfast.state.target import Target

APIS_BY_CLASS = {
    "AnthropicModel": "anthropic",
    "BedrockModel": "anthropic",
    "GeminiModel": "gemini",
    "OpenAIResponsesModel": "openai-responses",
}
"""The API of a model, by the name of its class; of any other it is Chat Completions."""


class HoldfastConversationManager(ConversationManager):
    """Keeps the conversation of an agent inside the window of its model.

    ``window`` is the window in tokens, by default the ``context_window_limit`` of the model, else that of Holdfast's
    catalogue. ``session`` names the conversation if your program stores the messages itself; by default its name is the
    ``session_id`` of the agent, which a session manager of Strands keeps over restarts. ``store`` is a store or the
    path of one, by default the one of the command line (``:memory:`` for none on disk). ``listener`` is called with the
    events of ``holdfast.events``.
    """

    def __init__(
        self,
        *,
        window: int | None = None,
        session: str = "",
        store: StoreChoice = None,
        policy: Policy = Policy(),
        listener: Listener | None = None,
    ) -> None:
        super().__init__()
        self._window = check_window(window)
        self._session = session
        self._histories = AgentHistories(store, policy, listener)
        self._agents: WeakSet[Agent] = WeakSet()
        """The agents whose calls of the model come through here."""

    # -- what Strands asks of a conversation manager -------------------------------------------------------------------

    def register_hooks(self, registry: HookRegistry, **kwargs: Any) -> None:
        """Ask for the agent, which does not exist yet."""
        super().register_hooks(registry, **kwargs)
        registry.add_callback(AgentInitializedEvent, self._on_agent_initialized)

    def apply_management(self, agent: Agent, **_: Any) -> None:
        """Leave ``agent.messages`` as they are: only the model's view is reduced."""
        # Comes first for an agent that got its manager after it was made.
        self._install(agent)

    def reduce_context(self, agent: Agent, e: Exception | None = None, **_: Any) -> None:
        """Raise the overflow ``e``, which could not be recovered inside of the call; without one do nothing."""
        is_first_call = self._install(agent)
        if e is not None and not is_first_call:
            raise e

    def restore_from_session(self, state: dict[str, Any]) -> None:  # noqa: ARG002 -- the state of any manager will do
        """Let the session manager read the whole history, also messages that another manager had removed."""
        self.removed_message_count = 0

    def get_history(self, agent: Any) -> AgentHistory:
        """Return the conversation of ``agent``, for its report and ``recall``."""
        return self._histories.open(_make_key(agent, self._session))

    # -- the calls of the model ----------------------------------------------------------------------------------------

    def _on_agent_initialized(self, event: AgentInitializedEvent) -> None:
        self._install(event.agent)

    def _install(self, agent: Agent) -> bool:
        """Stand between ``agent`` and its model; return False if that is so already, or is not possible."""
        if agent in self._agents:
            return False
        self._agents.add(agent)
        if RECALL_TOOL_NAME in agent.tool_registry.registry:
            name_taken = f"the agent has a tool of its own called {RECALL_TOOL_NAME}; give it another name"
            self._histories.warn_once(ConfigError(name_taken))
            return False
        agent.tool_registry.register_tool(self._make_recall_tool())
        agent.add_middleware(InvokeModelStage, self._call_model)
        return True

    async def _call_model(
        self, context: InvokeModelContext, call_model: Callable[[InvokeModelContext], AsyncGenerator[Any, None]]
    ) -> AsyncGenerator[Any, None]:
        """Call the model with the reduced view; again with less if its provider refuses that for its length."""
        # In a thread, so that other agents on the event loop go on, and since Strands goes one level deeper for each
        # step of a prompt: near Python's limit planning would fail first.
        planned = await asyncio.to_thread(self._plan, context)
        while True:
            has_answer_begun = False
            try:
                async for event in call_model(planned.context):
                    has_answer_begun = has_answer_begun or not _is_message_start(event)
                    yield event
            except Exception as error:
                # Of an answer that has begun the agent's callbacks have seen a part.
                if has_answer_begun:
                    raise
                smaller = await asyncio.to_thread(self._plan_smaller, planned, error)
                if smaller is None:
                    raise
                planned = smaller
            else:
                return

    def _plan(self, context: InvokeModelContext) -> _PlannedCall:
        """Return the call with what the model is shown; the whole history if Holdfast cannot help."""
        unplanned = _PlannedCall(context, context, (), None)
        if not context.messages:
            return unplanned
        with self._histories.keep_agent_running():
            given_messages = read_messages(_list_lasting_messages(context))
            history = self.get_history(context.agent)
            shown_messages = history.plan(
                given_messages, _choose_target(context, self._window), _estimate_setup(context)
            )
            return _show_messages(_PlannedCall(context, context, tuple(given_messages), history), shown_messages)
        return unplanned

    def _plan_smaller(self, planned: _PlannedCall, error: Exception) -> _PlannedCall | None:
        """Return the call with less after ``error``, or None if that is no overflow or nothing is left to try."""
        if planned.history is None:
            return None
        with self._histories.keep_agent_running():
            shown_messages = planned.history.plan_smaller(error, planned.given_messages)
            if shown_messages is not None:
                return _show_messages(planned, shown_messages)
        return None

    def _make_recall_tool(self) -> Any:
        """Return the tool that reads back what the model is not shown any more."""
        schema = {"json": {"type": "object", "properties": RECALL_PARAMETERS}}

        @tool(name=RECALL_TOOL_NAME, description=RECALL_DESCRIPTION, inputSchema=schema, context=True)
        def recall(
            tool_context: ToolContext[Any],
            id: str = "",  # noqa: A002 -- what previews and extracts call it
            lines: str = "",
            chars: str = "",
            search: str = "",
            page: int = 1,
        ) -> str:
            arguments = {"id": id, "lines": lines, "chars": chars, "search": search, "page": page}
            return self._histories.answer_recall(_make_key(tool_context.agent, self._session), arguments)

        return recall


class _PlannedCall(NamedTuple):
    """A call of the model as the agent wants it, and as it is made."""

    original: InvokeModelContext
    context: InvokeModelContext
    given_messages: tuple[GivenMessage, ...]
    """The messages of ``original`` in our terms."""
    history: AgentHistory | None
    """None if Holdfast has no part in it."""


def _make_key(agent: Any, session: str) -> str:
    """Return the key of a conversation: its session, its agent and its first message.

    The name of the session is random if there is no session manager, so that two users who begin with the same words
    never read each other's texts.
    """
    first: Any = agent.messages[0] if agent.messages else {}
    # Given by Strands, and kept with the message wherever it is stored.
    name = first.get("tracking_id") or json.dumps(first.get("content"), default=encode_bytes)
    return make_conversation_key("strands", session or agent.session_id, agent.agent_id, name)


def _choose_target(context: InvokeModelContext, window: int | None) -> Target:
    model: Any = context.model
    config = model.get_config()
    name = str((config.get("model_id") if isinstance(config, Mapping) else "") or "")
    api = find_api(model, APIS_BY_CLASS)
    settings = config if isinstance(config, Mapping) else {}
    asked_output = find_output_limit(settings.get("params") or {}, settings)
    return get_target(api, name, window=window or model.context_window_limit, asked_output=asked_output)


def _estimate_setup(context: InvokeModelContext) -> int:
    """Return the tokens of the system prompt and the tools."""
    return estimate_text_tokens(json.dumps([context.system_prompt, context.tool_specs], default=str))


def _is_message_start(event: Mapping[str, Any]) -> bool:
    """Whether an event says only that an answer will come; some models send it before they are asked."""
    chunk = event.get("event")
    return isinstance(chunk, Mapping) and "messageStart" in chunk


def _list_lasting_messages(context: InvokeModelContext) -> list[Any]:
    """Return the messages without the blocks that plugins of Strands add to the last one for this call only.

    They are not in the log, which would take the next call for another conversation.
    """
    messages: list[Any] = list(context.messages)
    if context.dynamic_trailing_blocks:
        last = messages[-1]
        messages[-1] = {**last, "content": last["content"][: -context.dynamic_trailing_blocks]}
    return messages


def _list_passing_blocks(context: InvokeModelContext) -> list[Any]:
    """Return the blocks that plugins of Strands added to the last message for this call only."""
    count = context.dynamic_trailing_blocks
    return list(context.messages[-1]["content"][-count:]) if count else []


def _show_messages(planned: _PlannedCall, shown_messages: Sequence[ShownMessage]) -> _PlannedCall:
    """Return the call with ``shown_messages`` in place of the whole history."""
    lasting_messages = _list_lasting_messages(planned.original)
    messages: list[Any] = []
    is_last_new = False
    for shown in shown_messages:
        if shown.index is None:
            message = write_new_message(shown.message)
        else:
            given = planned.given_messages[shown.index].message
            message = write_own_message(lasting_messages[shown.index], given, shown.message)
        is_new = shown.index is None
        has_same_role = bool(messages) and messages[-1]["role"] == message["role"]
        if has_same_role and (is_new or is_last_new):
            # Bedrock wants the roles to alternate, and an extract has the role of the user.
            messages[-1] = {**messages[-1], "content": [*messages[-1]["content"], *message["content"]]}
        else:
            messages.append(message)
        is_last_new = is_new
    passing_blocks = _list_passing_blocks(planned.original)
    if passing_blocks:
        messages[-1] = {**messages[-1], "content": [*messages[-1]["content"], *passing_blocks]}
    return planned._replace(context=planned.original.replace(messages=messages))
