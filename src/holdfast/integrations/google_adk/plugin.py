"""The plugin: what ADK calls around each call of a model, for all agents of an app."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

from google.adk.agents.callback_context import CallbackContext
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.tool_context import ToolContext
from google.genai import types
from msgspec import Struct

from holdfast.config.files import get_target
from holdfast.engine.recall import RECALL_DESCRIPTION, RECALL_PARAMETERS, RECALL_TOOL_NAME
from holdfast.hosts.given_conversation import ShownMessage
from holdfast.integrations.common.agent_history import AgentHistory, GivenMessage
from holdfast.integrations.common.options import (
    MAX_OPEN_HISTORIES,
    AgentHistories,
    Listener,
    StoreChoice,
    check_window,
    find_api,
    make_conversation_key,
)
from holdfast.integrations.google_adk.contents import read_contents, read_usage, write_new_content, write_own_content
from holdfast.messages.size.tokens import estimate_text_tokens
from holdfast.planning.pipeline import Policy
from holdfast.state.target import Target

APIS_BY_CLASS = {
    "AnthropicLlm": "anthropic",
    "LiteLlm": "openai-chat",
    "OpenAIResponsesLlm": "openai-responses",
}
"""The API of a model, by the name of its class or one of its bases; of any other it is Gemini's."""
INSTRUCTION_START = "The text between <<<BEGIN_SYSTEM_INSTRUCTION>>>"
"""How the content begins in which ADK sends the ``instruction`` of an agent that has a ``static_instruction``."""


class HoldfastPlugin(BasePlugin):
    """Keeps the conversations of an app's agents inside the windows of their models.

    ``window`` is the window in tokens, by default that of the model in Holdfast's catalogue. ``store`` is a store or
    the path of one, by default the one of the command line (``:memory:`` for none on disk). ``listener`` is called with
    the events of ``holdfast.events``.

    Name it last if other plugins edit requests: they run in their order.
    """

    def __init__(
        self,
        *,
        window: int | None = None,
        store: StoreChoice = None,
        policy: Policy = Policy(),
        listener: Listener | None = None,
    ) -> None:
        super().__init__(name="holdfast")
        self._window = check_window(window)
        self._histories = AgentHistories(store, policy, listener)
        self._pending_calls: dict[str, _PendingCall] = {}
        """The calls whose answers are due, by the key of the conversation."""

    async def before_model_callback(self, *, callback_context: CallbackContext, llm_request: LlmRequest) -> None:
        """Show the model the reduced view; the whole history if Holdfast cannot help."""
        # With an earlier interaction named, the server has the history: nothing here could make it smaller.
        if not llm_request.contents or llm_request.previous_interaction_id:
            return
        with self._histories.keep_agent_running():
            model = await _find_model(callback_context)
            await asyncio.to_thread(self._plan, callback_context, llm_request, model)

    async def after_model_callback(self, *, callback_context: CallbackContext, llm_response: LlmResponse) -> None:
        """Note what the request took; the answer itself stays as it is."""
        key = _make_key(callback_context)
        call = self._pending_calls.get(key)
        if call is None:
            return
        call.has_answer_begun = True
        usage = read_usage(llm_response.usage_metadata)
        if usage is not None:
            call.history.note_answer_usage(usage)
        if not llm_response.partial:
            self._pending_calls.pop(key, None)

    async def on_model_error_callback(
        self, *, callback_context: CallbackContext, llm_request: LlmRequest, error: Exception
    ) -> LlmResponse | None:
        """Call the model again with less if ``error`` says that the request was too long, and return its answer."""
        call = self._pending_calls.pop(_make_key(callback_context), None)
        # Once a part of the answer has gone out, nothing is tried again.
        if call is None or call.has_answer_begun:
            return None
        newest_error = error
        while True:
            is_smaller = False
            with self._histories.keep_agent_running():
                is_smaller = await asyncio.to_thread(_plan_smaller, call, llm_request, newest_error)
            if not is_smaller:
                break
            try:
                response = await _call_model(callback_context, llm_request)
            except Exception as next_error:  # noqa: BLE001 -- whatever it is, the next turn of the loop judges it
                newest_error = next_error
                continue
            self._pending_calls[_make_key(callback_context)] = call
            return response
        if newest_error is not error:
            # ADK raises the first error.
            error.add_note(f"holdfast called the model again with less, which failed too: {newest_error}")
        return None

    def get_history(self, context: CallbackContext) -> AgentHistory:
        """Return the conversation of the agent that runs in ``context``, for its report and ``recall``."""
        return self._histories.open(_make_key(context))

    def _plan(self, context: CallbackContext, llm_request: LlmRequest, model: BaseLlm) -> None:
        """Put the reduced view into ``llm_request``, and remember the call until its answer."""
        history = self.get_history(context)
        if _can_take_recall(llm_request):
            llm_request.append_tools([_RecallTool(history)])
        call = _PendingCall(history, list(llm_request.contents), llm_request.config.model_copy())
        given_messages = [GivenMessage(message) for message in read_contents(call.list_history())]
        if not given_messages:
            return
        target = _choose_target(llm_request, model, self._window)
        shown_messages = history.plan(given_messages, target, call.estimate_setup())
        llm_request.contents = call.show(shown_messages)
        self._pending_calls[history.key] = call
        while len(self._pending_calls) > MAX_OPEN_HISTORIES:
            # Calls that were cancelled get no answer.
            self._pending_calls.pop(next(iter(self._pending_calls)))


class _RecallTool(BaseTool):
    """The tool that reads back what the model is not shown any more."""

    def __init__(self, history: AgentHistory) -> None:
        super().__init__(name=RECALL_TOOL_NAME, description=RECALL_DESCRIPTION)
        self._history = history

    def _get_declaration(self) -> types.FunctionDeclaration:
        parameters = types.Schema.model_validate({"type": "object", "properties": RECALL_PARAMETERS})
        return types.FunctionDeclaration(name=self.name, description=self.description, parameters=parameters)

    async def run_async(self, *, args: dict[str, Any], tool_context: ToolContext) -> dict[str, str]:  # noqa: ARG002
        return {"result": await asyncio.to_thread(self._history.answer_recall, args)}


class _PendingCall(Struct):
    """A call of the model as the agent wants it, until it is answered."""

    history: AgentHistory
    contents: list[types.Content]
    config: types.GenerateContentConfig
    """As it was before the model changed it, which Gemini's explicit cache does."""
    has_answer_begun: bool = False

    def list_history(self) -> list[types.Content]:
        """Return the contents without the instruction, which ADK puts elsewhere in each request."""
        return [content for content in self.contents if not _is_instruction(content)]

    def estimate_setup(self) -> int:
        """Return the tokens of the system prompt, the instruction among the contents, and the tools."""
        texts = [str(self.config.system_instruction or "")]
        for tool in self.config.tools or ():
            texts.append(tool.model_dump_json(exclude_none=True) if isinstance(tool, types.Tool) else str(tool))
        for content in self.contents:
            if _is_instruction(content):
                texts += [part.text or "" for part in content.parts or ()]
        return sum(map(estimate_text_tokens, texts))

    def show(self, shown_messages: Sequence[ShownMessage]) -> list[types.Content]:
        """Return the contents that the request sends, with the instruction where ADK had it."""
        history_indexes = [index for index, content in enumerate(self.contents) if not _is_instruction(content)]
        instruction_indexes = [index for index, content in enumerate(self.contents) if _is_instruction(content)]
        given_messages = read_contents(self.list_history())
        shown_contents: list[types.Content] = []
        for shown in shown_messages:
            if shown.index is None:
                shown_contents.append(write_new_content(shown.message))
                continue
            index = history_indexes[shown.index]
            while instruction_indexes and instruction_indexes[0] < index:
                shown_contents.append(self.contents[instruction_indexes.pop(0)])
            given = given_messages[shown.index]
            shown_contents.append(write_own_content(self.contents[index], given, shown.message))
        return shown_contents + [self.contents[index] for index in instruction_indexes]


def _plan_smaller(call: _PendingCall, llm_request: LlmRequest, error: Exception) -> bool:
    """Put less into the request that failed with ``error``; False if that is no overflow or nothing is left to try."""
    given_messages = [GivenMessage(message) for message in read_contents(call.list_history())]
    shown_messages = call.history.plan_smaller(error, given_messages)
    if shown_messages is None:
        return False
    llm_request.contents = call.show(shown_messages)
    if llm_request.config.cached_content:
        # Gemini's explicit cache has taken these out of the request; the cache does not fit the new contents.
        llm_request.config.cached_content = None
        llm_request.config.system_instruction = call.config.system_instruction
        llm_request.config.tools = call.config.tools
        llm_request.config.tool_config = call.config.tool_config
    return True


async def _find_model(context: CallbackContext) -> BaseLlm:
    """Return the model of the agent that runs in ``context``."""
    agent: Any = context.get_invocation_context().agent
    model: BaseLlm = await agent.canonical_model_async(context)
    return model


async def _call_model(context: CallbackContext, llm_request: LlmRequest) -> LlmResponse | None:
    """Return the whole answer to ``llm_request``; not streamed, since ADK takes one response in place of an error."""
    model = await _find_model(context)
    answer = None
    async for response in model.generate_content_async(llm_request, stream=False):
        answer = response
    return answer


def _can_take_recall(llm_request: LlmRequest) -> bool:
    """Return whether the tool ``recall`` can be added to the request.

    Some models of Gemini refuse functions beside Google's own tools, or with a response in JSON. A tool of the agent
    that has the name already stays the one that is called.
    """
    if RECALL_TOOL_NAME in llm_request.tools_dict:
        return False
    tools = llm_request.config.tools or []
    if tools:
        return any(isinstance(tool, types.Tool) and tool.function_declarations for tool in tools)
    config = llm_request.config
    return config.response_schema is None and config.response_json_schema is None and not config.response_mime_type


def _make_key(context: CallbackContext) -> str:
    """Return the key of a conversation: its session and its agent, since each agent sees the session in its own way.

    Parallel agents run in branches; an agent that is given a task has a scope for each.
    """
    session = context.session
    places = (context.agent_name, getattr(context, "branch", None), getattr(context, "isolation_scope", None))
    names = json.dumps([session.app_name, session.user_id, session.id, *places])
    return make_conversation_key("google-adk", names)


def _choose_target(llm_request: LlmRequest, model: BaseLlm, window: int | None) -> Target:
    api = find_api(model, APIS_BY_CLASS, default="gemini")
    name = llm_request.model or model.model
    return get_target(api, name, window=window, asked_output=llm_request.config.max_output_tokens)


def _is_instruction(content: types.Content) -> bool:
    parts = content.parts or []
    return content.role == "user" and bool(parts) and (parts[0].text or "").startswith(INSTRUCTION_START)
