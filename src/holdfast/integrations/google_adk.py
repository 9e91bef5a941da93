"""Google ADK: a plugin that keeps the conversations of all agents of an app inside their models' windows.

::

    from google.adk.apps import App
    from holdfast.integrations.google_adk import HoldfastPlugin

    app = App(name="my_app", root_agent=agent, plugins=[HoldfastPlugin()])

Every call of a model sees a reduced view; the session's events stay whole. The plugin gives the model the tool
``recall``, which reads back what the view leaves out, and calls the model again with less if its provider refuses a
request for its length.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from typing import Any

from msgspec import Raw, Struct
from msgspec.structs import replace

try:
    from google.adk.agents.callback_context import CallbackContext
    from google.adk.agents.llm_agent import LlmAgent
    from google.adk.models.base_llm import BaseLlm
    from google.adk.models.llm_request import LlmRequest
    from google.adk.models.llm_response import LlmResponse
    from google.adk.plugins.base_plugin import BasePlugin
    from google.adk.tools.base_tool import BaseTool
    from google.adk.tools.tool_context import ToolContext
    from google.genai import types
except ImportError as error:
    advice = "install Google ADK 2.13 or newer: pip install 'holdfast[google-adk]'"
    raise ImportError(f"holdfast.integrations.google_adk cannot be used ({error}); {advice}") from error

from holdfast.config.files import get_target
from holdfast.engine.recall import RECALL_DESCRIPTION, RECALL_PARAMETERS, RECALL_TOOL_NAME
from holdfast.errors import HoldfastError
from holdfast.events import Event
from holdfast.hosts.given_conversation import ShownMessage
from holdfast.integrations.common.agent_history import AgentHistory, GivenMessage
from holdfast.integrations.common.options import MAX_OPEN_HISTORIES, AgentHistories
from holdfast.messages.message import Message, Role, format_part_placeholder
from holdfast.messages.parts import Media, Opaque, Part, Text, Thinking, ToolCall, ToolResult
from holdfast.messages.size.tokens import estimate_text_tokens
from holdfast.planning.pipeline import Policy
from holdfast.providers.errors.report import ErrorReport
from holdfast.providers.gemini.messages import link_results_to_calls
from holdfast.state.entries import Usage
from holdfast.state.target import Target
from holdfast.store.base import SessionStore

if not hasattr(LlmAgent, "canonical_model_async"):
    raise ImportError(
        "holdfast.integrations.google_adk needs Google ADK 2.13 or newer: pip install 'holdfast[google-adk]'"
    )

__all__ = ["HoldfastPlugin"]

APIS_BY_CLASS = {
    "AnthropicLlm": "anthropic",
    "LiteLlm": "openai-chat",
    "OpenAIResponsesLlm": "openai-responses",
}
"""The API of a model, by the name of its class or one of its bases; of any other it is Gemini's."""
OVERFLOW_CLASSES = frozenset({"ContextWindowExceededError"})
"""Errors that say by their class that the request was too long (LiteLLM)."""
INSTRUCTION_START = "The text between <<<BEGIN_SYSTEM_INSTRUCTION>>>"
"""How the content begins in which ADK sends the ``instruction`` of an agent that has a ``static_instruction``."""
RESPONSE_FIELDS = frozenset({"output", "result", "error"})
"""Fields of a function's response whose value alone is its text (docs of Gemini's API, FunctionResponse)."""


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
        store: SessionStore | str | os.PathLike[str] | None = None,
        policy: Policy = Policy(),
        listener: Callable[[Event], None] | None = None,
    ) -> None:
        super().__init__(name="holdfast")
        self._window = window
        self._histories = AgentHistories(store, policy, listener)
        self._pending_calls: dict[str, _PendingCall] = {}
        """The calls whose answers are due, by the key of the conversation."""

    async def before_model_callback(self, *, callback_context: CallbackContext, llm_request: LlmRequest) -> None:
        """Show the model the reduced view; the whole history if Holdfast cannot help."""
        # With an earlier interaction named, the server has the history: nothing here could make it smaller.
        if not llm_request.contents or llm_request.previous_interaction_id:
            return
        try:
            model = await _find_model(callback_context)
            await asyncio.to_thread(self._plan, callback_context, llm_request, model)
        except Exception as error:  # noqa: BLE001 -- ADK would end the run for any error of a plugin
            self._histories.warn_once(error)

    async def after_model_callback(self, *, callback_context: CallbackContext, llm_response: LlmResponse) -> None:
        """Note what the request took; the answer itself stays as it is."""
        key = _make_key(callback_context)
        call = self._pending_calls.get(key)
        if call is None:
            return
        call.has_answer_begun = True
        usage = _read_usage(llm_response.usage_metadata)
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
            try:
                is_smaller = await asyncio.to_thread(_plan_smaller, call, llm_request, newest_error)
            except Exception as own_error:  # noqa: BLE001 -- ADK would end the run with our error in place of its own
                self._histories.warn_once(own_error)
                return None
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
        given_messages = [GivenMessage(message) for message in _read_contents(call.list_history())]
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
        try:
            return {"result": await asyncio.to_thread(self._history.answer_recall, args)}
        except HoldfastError as error:
            return {"error": str(error)}


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
        given_messages = _read_contents(self.list_history())
        shown_contents: list[types.Content] = []
        for shown in shown_messages:
            if shown.index is None:
                shown_contents.append(_write_new_content(shown.message))
                continue
            index = history_indexes[shown.index]
            while instruction_indexes and instruction_indexes[0] < index:
                shown_contents.append(self.contents[instruction_indexes.pop(0)])
            given = given_messages[shown.index]
            shown_contents.append(_write_own_content(self.contents[index], given, shown.message))
        return shown_contents + [self.contents[index] for index in instruction_indexes]


# -- the request -------------------------------------------------------------------------------------------------------


def _plan_smaller(call: _PendingCall, llm_request: LlmRequest, error: Exception) -> bool:
    """Put less into the request that failed with ``error``; False if that is no overflow or nothing is left to try."""
    status = getattr(error, "status_code", None) or getattr(error, "code", None)
    report = ErrorReport(
        status=status if isinstance(status, int) else None,
        message=str(error),
        body=getattr(error, "details", None) or getattr(error, "body", None) or b"",
    )
    shown_messages = call.history.plan_smaller(report, is_surely_overflow=type(error).__name__ in OVERFLOW_CLASSES)
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
    return f"google-adk-{blake2b(names.encode(), digest_size=8).hexdigest()}"


def _choose_target(llm_request: LlmRequest, model: BaseLlm, window: int | None) -> Target:
    api = "gemini"
    for base in type(model).__mro__:
        api = APIS_BY_CLASS.get(base.__name__, api)
    name = llm_request.model or model.model
    return get_target(api, name, window=window, asked_output=llm_request.config.max_output_tokens)


def _is_instruction(content: types.Content) -> bool:
    parts = content.parts or []
    return content.role == "user" and bool(parts) and (parts[0].text or "").startswith(INSTRUCTION_START)


# -- from ADK ----------------------------------------------------------------------------------------------------------


def _read_contents(contents: Sequence[types.Content]) -> list[Message]:
    """Return contents in our terms, one part for each of theirs; responses without ids belong to calls by order."""
    return link_results_to_calls([_read_content(content) for content in contents])


def _read_content(content: types.Content) -> Message:
    counts: Counter[tuple[type, str]] = Counter()
    parts: list[Part] = []
    for adk_part in content.parts or ():
        part = _read_part(adk_part)
        # ADK removes its own ids before Gemini sees them. Such an id is for pairing alone and never sent.
        if isinstance(part, ToolCall) and not part.id:
            counts[ToolCall, part.name] += 1
            part = replace(part, id=f"{part.name}#{counts[ToolCall, part.name]}")
        elif isinstance(part, ToolResult) and not part.call_id:
            counts[ToolResult, part.name] += 1
            part = replace(part, call_id=f"{part.name}#{counts[ToolResult, part.name]}")
        parts.append(part)
    return Message(_get_role(content, parts), tuple(parts))


def _get_role(content: types.Content, parts: Sequence[Part]) -> Role:
    if content.role == "model":
        return "assistant"
    return "tool" if parts and all(isinstance(part, ToolResult) for part in parts) else "user"


def _read_part(part: types.Part) -> Part:
    if part.function_call:
        call = part.function_call
        return ToolCall(call.id or "", call.name or "", _encode_json(call.args or {}))
    if part.function_response:
        return _read_response(part.function_response)
    if part.text and part.thought:
        return Thinking(part.text)
    if part.text:
        return Text(part.text)
    if part.inline_data or part.file_data:
        return _read_media(part.inline_data or part.file_data)
    fields = part.model_dump(mode="json", exclude_none=True, exclude={"thought", "thought_signature"})
    if fields:
        return Opaque(next(iter(fields)), Raw(_encode_json(fields).encode()))
    # Nothing but a signature, perhaps.
    return Thinking("")


def _read_response(response: types.FunctionResponse) -> ToolResult:
    text = _read_response_text(response.response or {})
    content: list[Text | Media | Opaque] = [Text(text)] if text else []
    for part in response.parts or ():
        content.append(_read_media(part.inline_data or part.file_data))
    is_error = "error" in (response.response or {})
    return ToolResult(response.id or "", response.name or "", tuple(content), is_error)


def _read_response_text(response: Mapping[str, Any]) -> str:
    """Return the text of a response: the value of its only field if that has a usual name, else all of it as JSON."""
    filled = {name: value for name, value in response.items() if value not in (None, "")}
    if not filled:
        return ""
    if len(filled) == 1 and filled.keys() <= RESPONSE_FIELDS:
        (value,) = filled.values()
        return value if isinstance(value, str) else _encode_json(value)
    return _encode_json(filled)


def _read_media(media: Any) -> Media:
    """Return a picture or a document; of its data only a digest, since ADK keeps the data."""
    mime = media.mime_type or ""
    kind = mime.partition("/")[0]
    kind = kind if kind in {"image", "audio", "video"} else "document"
    data = getattr(media, "data", None)
    if data is None:
        return Media(kind, mime, 0, media.display_name or "", getattr(media, "file_uri", None) or "")
    return Media(kind, mime, len(data), media.display_name or "", blake2b(data, digest_size=16).hexdigest())


def _encode_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _read_usage(usage: types.GenerateContentResponseUsageMetadata | None) -> Usage | None:
    """Return what a request took; None if its provider has not said so yet."""
    if usage is None or not usage.prompt_token_count:
        return None
    input_tokens = usage.prompt_token_count + (usage.tool_use_prompt_token_count or 0)
    thought_tokens = usage.thoughts_token_count or 0
    output_tokens = (usage.candidates_token_count or 0) + thought_tokens
    return Usage(input_tokens, output_tokens, usage.cached_content_token_count or 0, 0, thought_tokens)


# -- to ADK ------------------------------------------------------------------------------------------------------------


def _write_own_content(original: types.Content, given: Message, shown: Message) -> types.Content:
    """Return ``original`` with the texts that ``shown`` has in place of its own; itself if there are none.

    The parts belong to the session too, so they are copied and never changed.
    """
    if shown == given:
        return original
    parts = list(original.parts or ())
    if len(shown.parts) != len(given.parts):
        given_parts = list(given.parts)
        kept_parts = [
            parts[given_parts.index(part)] if part in given_parts else _write_part(part) for part in shown.parts
        ]
        return original.model_copy(update={"parts": kept_parts})
    new_parts = []
    for part, given_part, shown_part in zip(parts, given.parts, shown.parts, strict=True):
        new_parts.append(part if shown_part == given_part else _rewrite_part(part, given_part, shown_part))
    return original.model_copy(update={"parts": new_parts})


def _rewrite_part(part: types.Part, given: Part, shown: Part) -> types.Part:
    """Return ``part`` as it is ``shown``; a signature stays with it."""
    if isinstance(shown, Text) and part.text:
        return part.model_copy(update={"text": shown.text})
    if isinstance(shown, ToolResult) and isinstance(given, ToolResult) and part.function_response:
        response = _rewrite_response(part.function_response, given, shown)
        return part.model_copy(update={"function_response": response})
    return _write_part(shown)


def _rewrite_response(response: types.FunctionResponse, given: ToolResult, shown: ToolResult) -> types.FunctionResponse:
    """Return a function's response with the text that is shown, and those of its pictures that are."""
    given_media = [part for part in given.content if not isinstance(part, Text)]
    kept_parts = []
    for part, media in zip(response.parts or (), given_media, strict=True):
        if media in shown.content:
            kept_parts.append(part)
    new_response = _make_response(shown)
    return response.model_copy(update={"response": new_response, "parts": kept_parts or None})


def _make_response(result: ToolResult) -> dict[str, str]:
    text = "\n".join(part.text for part in result.content if isinstance(part, Text))
    return {"error" if result.is_error else "result": text}


def _write_new_content(message: Message) -> types.Content:
    """Return a message that the session does not have: an extract, or what takes the place of older messages."""
    role = "model" if message.role == "assistant" else "user"
    return types.Content(role=role, parts=[_write_part(part) for part in message.parts])


def _write_part(part: Part) -> types.Part:
    if isinstance(part, ToolCall):
        call_id = None if "#" in part.id else part.id
        call = types.FunctionCall(id=call_id, name=part.name, args=json.loads(part.arguments))
        return types.Part(function_call=call)
    if isinstance(part, ToolResult):
        call_id = None if "#" in part.call_id else part.call_id
        response = types.FunctionResponse(id=call_id, name=part.name, response=_make_response(part))
        return types.Part(function_response=response)
    if isinstance(part, Text | Thinking):
        return types.Part(text=part.text)
    return types.Part(text=format_part_placeholder(part))
