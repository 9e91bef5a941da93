"""LangChain and LangGraph: a middleware that keeps an agent's conversation inside its model's window.

::

    from langchain.agents import create_agent
    from holdfast.integrations.langchain import HoldfastMiddleware

    agent = create_agent("anthropic:claude-sonnet-4-5", tools, middleware=[HoldfastMiddleware()])

Every call of the model sees a reduced view; the agent's state keeps the whole history. The middleware gives the model
the tool ``recall``, which reads back what the view leaves out, and calls the model again with less if its provider
refuses a request for its length.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable, Sequence
from hashlib import blake2b
from typing import Annotated, Any, NamedTuple
from uuid import uuid4

try:
    from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse
    from langchain.tools import InjectedState, tool
    from langchain_core.exceptions import ContextOverflowError
    from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
    from langchain_core.runnables import RunnableConfig
    from langchain_core.utils.function_calling import convert_to_openai_tool
except ImportError as error:
    advice = "install LangChain 1.5 or newer: pip install 'holdfast[langchain]'"
    raise ImportError(f"holdfast.integrations.langchain cannot be used ({error}); {advice}") from error

from msgspec import Raw

from holdfast.config.files import get_target
from holdfast.engine.recall import RECALL_DESCRIPTION, RECALL_TOOL_NAME
from holdfast.errors import HoldfastError
from holdfast.events import Event
from holdfast.hosts.given_conversation import ShownMessage
from holdfast.integrations.common.agent_history import AgentHistory, GivenMessage
from holdfast.integrations.common.options import AgentHistories
from holdfast.messages.message import Message, Role
from holdfast.messages.parts import Media, Opaque, Part, Text, Thinking, ToolCall, ToolResult
from holdfast.messages.size.tokens import estimate_text_tokens
from holdfast.planning.pipeline import Policy
from holdfast.providers.errors.report import ErrorReport
from holdfast.state.entries import Usage
from holdfast.state.target import Target
from holdfast.store.base import SessionStore

__all__ = ["HoldfastMiddleware"]

MEDIA_BLOCKS = frozenset({"image", "image_url", "input_image", "file", "document", "input_file", "audio", "video"})
"""Types of content blocks with pictures and documents."""
THINKING_BLOCKS = frozenset({"thinking", "reasoning", "redacted_thinking"})
CALL_BLOCKS = frozenset({"tool_use", "tool_call", "function_call"})
"""Types of content blocks that repeat ``AIMessage.tool_calls``."""
APIS_BY_CLASS = {"ChatAnthropic": "anthropic", "ChatGoogleGenerativeAI": "gemini"}
"""The API of a model, by the name of its class; of any other it is Chat Completions."""


class HoldfastMiddleware(AgentMiddleware[Any, Any]):
    """Keeps the conversation of an agent inside the window of its model.

    ``window`` is the window in tokens, by default that of the model's profile, else of Holdfast's catalogue. ``store``
    is a store or the path of one, by default the one of the command line (``:memory:`` for none on disk). ``listener``
    is called with the events of ``holdfast.events``.
    """

    def __init__(
        self,
        *,
        window: int | None = None,
        store: SessionStore | str | os.PathLike[str] | None = None,
        policy: Policy = Policy(),
        listener: Callable[[Event], None] | None = None,
    ) -> None:
        super().__init__()
        self._window = window
        self._histories = AgentHistories(store, policy, listener)
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
        if not request.messages:
            return _PlannedCall(request, request, None)
        try:
            history = self.get_history(request.messages, _find_thread_id())
            given_messages = [_read_message(message) for message in request.messages]
            target = _choose_target(request, self._window)
            shown_messages = history.plan(given_messages, target, self._estimate_setup(request))
        except Exception as error:  # noqa: BLE001 -- whatever it is, the agent goes on as without us
            self._histories.warn_once(error)
            return _PlannedCall(request, request, None)
        return _PlannedCall(request, _show_messages(request, shown_messages), history)

    def _plan_smaller(self, planned: _PlannedCall, error: Exception) -> _PlannedCall | None:
        """Return the call with less after ``error``, or None if that is no overflow or nothing is left to try."""
        if planned.history is None:
            return None
        report = ErrorReport(
            status=getattr(error, "status_code", None), message=str(error), body=getattr(error, "body", None) or b""
        )
        try:
            shown_messages = planned.history.plan_smaller(
                report,
                is_surely_overflow=isinstance(error, ContextOverflowError),
                messages=[_read_message(message) for message in planned.original.messages],
            )
        except Exception as own_error:  # noqa: BLE001 -- the provider's error then reaches the agent as without us
            self._histories.warn_once(own_error)
            return None
        if shown_messages is None:
            return None
        return _PlannedCall(planned.original, _show_messages(planned.original, shown_messages), planned.history)

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
            thread_id = str(config.get("configurable", {}).get("thread_id", ""))
            try:
                return self.get_history(messages, thread_id).answer_recall(arguments)
            except HoldfastError as error:
                return str(error)

        return recall


class _PlannedCall(NamedTuple):
    """A call of the model as the agent wants it, and as it is made."""

    original: ModelRequest[Any]
    request: ModelRequest[Any]
    history: AgentHistory | None
    """None if Holdfast has no part in it."""


def _find_thread_id() -> str:
    """Return the name of the agent's thread, or ``""`` if it has none."""
    from langgraph.config import get_config

    try:
        return str(get_config().get("configurable", {}).get("thread_id", ""))
    except RuntimeError:
        # Not called by a graph.
        return ""


def _make_key(messages: Sequence[BaseMessage], thread_id: str) -> str:
    """Return the key of a conversation: its thread and its first message.

    A sub-agent runs in the thread of its parent, with a first message of its own. Without a thread the id of that
    message tells runs apart, which LangGraph gives it at random: two users may begin with the same words, and must not
    read each other's texts.
    """
    first = messages[0]
    run = thread_id or first.id or uuid4().hex
    content = first.model_dump_json(include={"type", "content"})
    digest = blake2b(f"{run}\n{content}".encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    return f"langchain-{digest}"


def _choose_target(request: ModelRequest[Any], window: int | None) -> Target:
    model = request.model
    api = APIS_BY_CLASS.get(type(model).__name__, "openai-chat")
    # Each provider's class has one of the two.
    name = getattr(model, "model_name", "") or getattr(model, "model", "")
    if window is None and model.profile is not None:
        window = model.profile.get("max_input_tokens")
    return get_target(api, str(name), window=window)


# -- from LangChain ----------------------------------------------------------------------------------------------------


def _read_message(message: BaseMessage) -> GivenMessage:
    """Return a message of LangChain in our terms: one part for each block of its content, then its calls."""
    if isinstance(message, ToolMessage):
        content = tuple(_read_result_block(block) for block in _list_blocks(message))
        is_error = message.status == "error"
        return GivenMessage(Message("tool", (ToolResult(message.tool_call_id, message.name or "", content, is_error),)))
    parts: list[Part] = [_read_block(block) for block in _list_blocks(message) if not _is_call_block(block)]
    if not isinstance(message, AIMessage):
        return GivenMessage(Message(_get_role(message), tuple(parts)))
    for call in message.tool_calls:
        parts.append(ToolCall(call["id"] or "", call["name"], json.dumps(call["args"], default=str)))
    return GivenMessage(Message("assistant", tuple(parts)), _read_usage(message))


def _get_role(message: BaseMessage) -> Role:
    return "system" if isinstance(message, SystemMessage) else "user"


def _list_blocks(message: BaseMessage) -> list[Any]:
    """Return the blocks of a message's content; a plain text is one."""
    if isinstance(message.content, str):
        return [message.content] if message.content else []
    return list(message.content)


def _is_call_block(block: Any) -> bool:
    return isinstance(block, dict) and block.get("type") in CALL_BLOCKS


def _read_block(block: Any) -> Text | Thinking | Media | Opaque:
    if isinstance(block, str):
        return Text(block)
    kind = str(block.get("type", ""))
    if kind in {"text", "input_text", "output_text"}:
        return Text(str(block.get("text", "")))
    if kind in THINKING_BLOCKS:
        return Thinking(str(block.get("thinking") or block.get("reasoning") or block.get("text") or ""))
    if kind in MEDIA_BLOCKS:
        media_kind = "image" if "image" in kind else "document"
        source = json.dumps(block, default=str, sort_keys=True)
        return Media(media_kind, str(block.get("mime_type", "")), len(source), "", blake2b(source.encode()).hexdigest())
    # With its content, so that its size counts.
    return Opaque(kind or "unknown", Raw(json.dumps(block, default=str).encode()))


def _read_result_block(block: Any) -> Text | Media | Opaque:
    part = _read_block(block)
    return Text(part.text) if isinstance(part, Thinking) else part


def _read_usage(message: AIMessage) -> Usage | None:
    usage = message.usage_metadata
    if not usage:
        return None
    details = usage.get("input_token_details") or {}
    return Usage(
        usage["input_tokens"],
        usage["output_tokens"],
        details.get("cache_read") or 0,
        details.get("cache_creation") or 0,
    )


# -- to LangChain ------------------------------------------------------------------------------------------------------


def _show_messages(request: ModelRequest[Any], shown_messages: Sequence[ShownMessage]) -> ModelRequest[Any]:
    messages: list[AnyMessage] = []
    for shown in shown_messages:
        if shown.index is None:
            messages += _write_new_message(shown.message)
        else:
            messages.append(_write_own_message(request.messages[shown.index], shown.message))
    return request.override(messages=messages)


def _write_own_message(original: AnyMessage, shown: Message) -> AnyMessage:
    """Return ``original`` with the texts that ``shown`` has in place of its own; itself if there are none."""
    given = _read_message(original).message
    if shown == given:
        return original
    blocks = _list_blocks(original)
    if isinstance(original, ToolMessage):
        content = _write_blocks(given.results[0].content, shown.results[0].content, blocks)
    else:
        own_blocks = [block for block in blocks if not _is_call_block(block)]
        call_blocks = [block for block in blocks if _is_call_block(block)]
        content = [*_write_blocks(_list_content(given), _list_content(shown), own_blocks), *call_blocks]
    if isinstance(original.content, str) and all(isinstance(block, str) for block in content):
        return original.model_copy(update={"content": "\n".join(content)})
    return original.model_copy(update={"content": content})


def _list_content(message: Message) -> list[Part]:
    return [part for part in message.parts if not isinstance(part, ToolCall)]


def _write_blocks(given: Sequence[Part], shown: Sequence[Part], blocks: Sequence[Any]) -> list[Any]:
    """Return the content that ``shown`` stands for: LangChain's own blocks where a part is as it was, else texts.

    Parts are matched in order, since blocks of a kind that we do not know all look the same.
    """
    content: list[Any] = []
    position = 0
    for part in shown:
        if part in given[position:]:
            position = given.index(part, position) + 1
            content.append(blocks[position - 1])
        elif isinstance(part, Text):
            content.append({"type": "text", "text": part.text} if _has_typed_blocks(blocks) else part.text)
    return content


def _has_typed_blocks(blocks: Sequence[Any]) -> bool:
    return any(isinstance(block, dict) for block in blocks)


def _write_new_message(message: Message) -> list[AnyMessage]:
    """Return a message that LangChain does not have: an extract, or what takes the place of older messages."""
    if message.role == "assistant":
        calls = [{"id": call.id, "name": call.name, "args": json.loads(call.arguments)} for call in message.calls]
        return [AIMessage(content=message.text, tool_calls=calls)]
    messages: list[AnyMessage] = []
    for result in message.results:
        text = "\n".join(part.text for part in result.content if isinstance(part, Text))
        messages.append(ToolMessage(content=text, tool_call_id=result.call_id, name=result.name))
    if message.text:
        messages.append(HumanMessage(content=message.text))
    return messages
