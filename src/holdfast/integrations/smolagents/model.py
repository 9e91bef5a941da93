"""The model that an agent is given in place of its own.

smolagents has two documented places for this. A step callback gets the agent after a step and may change its memory:
that loses history, and it sees no request, and cannot make one again whose refusal ends the run. A custom model gets
all messages of each call of whatever kind (steps, plans, the last answer). So this is a model.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from threading import Lock
from typing import Any, NamedTuple, TypeVar
from uuid import uuid4

from smolagents.models import ChatMessage, ChatMessageStreamDelta, Model

from holdfast.config.files import get_target
from holdfast.hosts.given_conversation import ShownMessage
from holdfast.integrations.common.agent_history import AgentHistory, GivenMessage
from holdfast.integrations.common.options import (
    MAX_OPEN_HISTORIES,
    AgentHistories,
    Listener,
    StoreChoice,
    check_window,
    find_output_limit,
    make_conversation_key,
)
from holdfast.integrations.smolagents.messages import GivenHistory, MessageGroup, read_messages, write_messages
from holdfast.integrations.smolagents.pictures import find_hidden_pictures, restore_hidden_pictures
from holdfast.integrations.smolagents.recall_tool import RecallTool
from holdfast.messages.message import Message
from holdfast.messages.size.tokens import estimate_text_tokens
from holdfast.planning.pipeline import Policy
from holdfast.state.entries import Usage
from holdfast.state.target import Target

PLAN_STOP_SEQUENCE = "<end_plan>"
"""What smolagents lets a plan end with; no other call has it."""
APIS_BY_PROVIDER = {"anthropic": "anthropic", "bedrock": "anthropic", "gemini": "gemini", "vertex_ai": "gemini"}
"""The API of a model by the provider that LiteLLM's names of models begin with; of any other it is Chat Completions."""
_Value = TypeVar("_Value")


class HoldfastModel(Model):
    """Shows the model that it wraps a reduced view of an agent's conversation, which fits its window.

    Give each agent one of its own, also each managed agent, and add ``recall_tool`` to the agent's tools. ``window`` is
    the window in tokens, by default what LiteLLM is told as ``num_ctx``, else that of Holdfast's catalogue. ``session``
    names the conversation if it goes on in another process; by default the name is random. ``store`` is a store or the
    path of one, by default the one of the command line (``:memory:`` for none on disk). ``listener`` is called with the
    events of ``holdfast.events``. Everything else is as in the wrapped model.
    """

    def __init__(
        self,
        model: Any,
        *,
        window: int | None = None,
        session: str = "",
        store: StoreChoice = None,
        policy: Policy = Policy(),
        listener: Listener | None = None,
    ) -> None:
        # ``Model.__init__`` would set options of its own in front of those of the wrapped model.
        self.wrapped_model: Any = model.wrapped_model if isinstance(model, HoldfastModel) else model
        self.recall_tool = RecallTool(self._answer_recall)
        self._window = check_window(window)
        self._session = session
        self._histories = AgentHistories(store, policy, listener)
        self._lock = Lock()
        self._runs: dict[str, _Run] = {}
        """The newest run that began with a message, by the key of the first one."""
        self._hidden_pictures: dict[str, dict[int, Message]] = {}
        """By key of a conversation: messages with pictures that its newest call did not show."""
        self._newest_messages: dict[str, list[Any]] = {}
        """By key of a conversation: the messages of its newest call."""
        self._random_name = uuid4().hex
        self._newest_key = ""

    def generate(self, messages: list[Any], *args: Any, **options: Any) -> ChatMessage:
        """Return the answer of the wrapped model to what it is shown of ``messages``."""
        call = self._plan(messages, options)
        while True:
            try:
                answer = self.wrapped_model.generate(call.messages, *args, **options)
            except Exception as error:
                smaller_call = self._plan_smaller(call, error)
                if smaller_call is None:
                    raise
                call = smaller_call
            else:
                self._note_usage(call, _read_usage(answer))
                return answer  # type: ignore[no-any-return] # the answer is the wrapped model's

    @property
    def generate_stream(self) -> Callable[..., Iterator[ChatMessageStreamDelta]]:
        """Streams the answer; missing if the wrapped model does not stream, since agents ask with ``hasattr``."""
        self.wrapped_model.generate_stream  # noqa: B018 -- raises AttributeError
        return self._generate_stream

    def _generate_stream(self, messages: list[Any], *args: Any, **options: Any) -> Iterator[ChatMessageStreamDelta]:
        call = self._plan(messages, options)
        while True:
            has_answer_begun = False
            usages: list[Any] = []
            try:
                for delta in self.wrapped_model.generate_stream(call.messages, *args, **options):
                    has_answer_begun = True
                    usages += [delta.token_usage] if delta.token_usage else []
                    yield delta
            except Exception as error:
                # Of an answer that has begun the user has seen a part.
                smaller_call = None if has_answer_begun else self._plan_smaller(call, error)
                if smaller_call is None:
                    raise
                call = smaller_call
            else:
                # Local models count in each delta, as smolagents does.
                input_tokens = sum(usage.input_tokens or 0 for usage in usages)
                output_tokens = sum(usage.output_tokens or 0 for usage in usages)
                self._note_usage(call, Usage(input_tokens, output_tokens) if input_tokens else None)
                return

    def get_history(self) -> AgentHistory:
        """Return the conversation of the agent's newest call, for its report and ``recall``."""
        name = self._session or self._random_name
        return self._histories.open(self._newest_key or make_conversation_key("smolagents", name))

    # -- what the base class would answer by itself --------------------------------------------------------------------

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the wrapped model."""
        if name == "wrapped_model" or (name.startswith("__") and name.endswith("__")):
            raise AttributeError(name)  # asked for by copying and pickling, before anything is set
        return getattr(self.wrapped_model, name)

    @property
    def supports_stop_parameter(self) -> bool:
        """Whether the wrapped model can be told where to stop."""
        return bool(self.wrapped_model.supports_stop_parameter)

    def parse_tool_calls(self, message: ChatMessage) -> ChatMessage:
        """Return ``message`` with the tool calls that the wrapped model reads from its text."""
        return self.wrapped_model.parse_tool_calls(message)  # type: ignore[no-any-return] # the wrapped model's

    def to_dict(self) -> dict[str, Any]:
        """Return the settings of the wrapped model."""
        return self.wrapped_model.to_dict()  # type: ignore[no-any-return] # the wrapped model's

    # -- what is shown -------------------------------------------------------------------------------------------------

    def _plan(self, messages: list[Any], options: Mapping[str, Any]) -> _PlannedCall:
        """Return the call with what the model is shown; the whole history if Holdfast cannot help."""
        unplanned = _PlannedCall(messages, None, GivenHistory((), []))
        with self._histories.keep_agent_running():
            given = read_messages(messages)
            if not given.groups:
                return unplanned
            history = self._open_history(given.groups, is_plan=PLAN_STOP_SEQUENCE in _list_stop_sequences(options))
            self._share_equal_messages(messages, history.key)
            given = restore_hidden_pictures(given, self._hidden_pictures.get(history.key, {}))
            given_messages = [GivenMessage(group.message) for group in given.groups]
            target = _choose_target(self.wrapped_model, self._window, options)
            shown_messages = history.plan(given_messages, target, _estimate_setup(given, options))
            return self._show(_PlannedCall(messages, history, given), history, shown_messages)
        return unplanned

    def _plan_smaller(self, call: _PlannedCall, error: Exception) -> _PlannedCall | None:
        """Return the call with less after ``error``, or None if that is no overflow or nothing is left to try."""
        if call.history is None:
            return None
        with self._histories.keep_agent_running():
            given_messages = [GivenMessage(group.message) for group in call.given.groups]
            shown_messages = call.history.plan_smaller(error, given_messages)
            if shown_messages is not None:
                return self._show(call, call.history, shown_messages)
        return None

    def _show(self, call: _PlannedCall, history: AgentHistory, shown_messages: Sequence[ShownMessage]) -> _PlannedCall:
        """Return the call with ``shown_messages``."""
        hidden_pictures = find_hidden_pictures(call.given, shown_messages)
        with self._lock:
            _remember(self._hidden_pictures, history.key, hidden_pictures)
        return call._replace(messages=write_messages(call.given, shown_messages))

    def _share_equal_messages(self, messages: list[Any], key: str) -> None:
        """Put the objects of the call before in place of equal ones in ``messages``.

        smolagents writes all messages anew for each call, and keeps the list with the step (``model_input_messages``):
        300 steps that read 80 MB would take 12 GB.
        """
        with self._lock:
            older_messages = self._newest_messages.get(key, [])
            _remember(self._newest_messages, key, messages)
        for index, (older, message) in enumerate(zip(older_messages, messages, strict=False)):
            # Pictures are not copied, and take long to compare.
            if _has_only_text(message) and older == message:
                messages[index] = older

    def _note_usage(self, call: _PlannedCall, usage: Usage | None) -> None:
        if call.history is not None and usage is not None:
            call.history.note_answer_usage(usage)

    def _open_history(self, groups: Sequence[MessageGroup], *, is_plan: bool) -> AgentHistory:
        """Return the conversation that begins with ``groups``.

        Each run without a named session is one, since an agent may be given the same task twice. What smolagents shows
        for plans, the history without the answers, is another.
        """
        first = groups[0].message
        first_key = make_conversation_key(
            "smolagents", self._session or self._random_name, repr((first.role, first.parts))
        )
        has_steps = any(group.message.role == "assistant" and not group.is_plan for group in groups)
        with self._lock:
            run = self._runs.get(first_key, _Run())
            if run.has_steps and not has_steps and not is_plan and not self._session:
                run = _Run(run.number + 1)
            _remember(self._runs, first_key, run._replace(has_steps=run.has_steps or has_steps))
            key = f"{first_key}-{run.number}" if run.number else first_key
            if is_plan:
                return self._histories.open(f"{key}-plans")
            self._newest_key = key
        return self._histories.open(key)

    def _answer_recall(self, arguments: Mapping[str, Any]) -> str:
        return self.get_history().answer_recall(arguments)


def _has_only_text(message: Any) -> bool:
    """Whether a message has nothing but texts."""
    content = message.get("content") if isinstance(message, dict) else message.content
    return isinstance(content, str) or all(element.get("type") == "text" for element in content or ())


def _remember(values: dict[str, _Value], key: str, value: _Value) -> None:
    """Put ``value`` last into ``values``, and forget the oldest ones beyond the number of histories kept open."""
    values.pop(key, None)
    values[key] = value
    while len(values) > MAX_OPEN_HISTORIES:
        del values[next(iter(values))]


class _Run(NamedTuple):
    """A run of an agent, and the runs that go on with its memory."""

    number: int = 0
    has_steps: bool = False
    """Whether a call has shown steps of it: one that does not begins another run."""


class _PlannedCall(NamedTuple):
    """A call of the model."""

    messages: list[Any]
    """What the model is shown."""
    history: AgentHistory | None
    """None if Holdfast has no part in it."""
    given: GivenHistory


def _list_stop_sequences(options: Mapping[str, Any]) -> Sequence[str]:
    return options.get("stop_sequences") or ()


def _choose_target(model: Any, window: int | None, options: Mapping[str, Any]) -> Target:
    # A model's own settings win over those of a call, as in smolagents.
    settings = {**options, **(getattr(model, "kwargs", None) or {})}
    # Ollama cuts what is longer off without an error.
    ollama_window = settings.get("num_ctx")
    name = str(getattr(model, "model_id", None) or "")
    api = APIS_BY_PROVIDER.get(name.partition("/")[0], "openai-chat")
    known_window = ollama_window if isinstance(ollama_window, int) else None
    return get_target(api, name, window=window or known_window, asked_output=find_output_limit(settings))


def _estimate_setup(given: GivenHistory, options: Mapping[str, Any]) -> int:
    """Return the tokens of the system prompt, the tools and the format of the answer."""
    tools = []
    for tool in options.get("tools_to_call_from") or ():
        tools.append([tool.name, tool.description, tool.inputs])
    setup = [given.system_text, tools, options.get("response_format")]
    return estimate_text_tokens(json.dumps(setup, default=str, ensure_ascii=False))


def _read_usage(answer: Any) -> Usage | None:
    """Return what an answer took, with the cached tokens if its provider is OpenAI or speaks its API."""
    usage = getattr(answer, "token_usage", None)
    if usage is None or not usage.input_tokens:
        return None
    details = getattr(getattr(getattr(answer, "raw", None), "usage", None), "prompt_tokens_details", None)
    cached_tokens = getattr(details, "cached_tokens", None) or 0
    return Usage(usage.input_tokens, usage.output_tokens or 0, cached_tokens)
