"""What the client and the callback share: the view of one call, and a smaller one after a refusal."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import litellm
from msgspec import Struct
from msgspec.structs import replace

from holdfast.config.files import get_target
from holdfast.engine.recall import RECALL_TOOL_NAME
from holdfast.integrations.common.agent_history import AgentHistory, GivenMessage
from holdfast.integrations.common.options import AgentHistories, Listener, StoreChoice, check_window, find_output_limit
from holdfast.integrations.litellm.identity import ConversationKeys
from holdfast.integrations.litellm.messages import (
    ReadConversation,
    estimate_setup,
    has_recall_tool,
    read_conversation,
    read_usage,
    write_shown_messages,
)
from holdfast.planning.pipeline import Policy
from holdfast.state.target import Target

ANTHROPIC_PROVIDERS = ("anthropic", "bedrock", "vertex_ai", "azure_ai")
"""Names that LiteLLM has for those who serve Claude; all but the first serve other models too."""
GEMINI_PROVIDERS = ("gemini", "vertex_ai")
_LOG = logging.getLogger("holdfast.integrations")


class PlannedCall(Struct, frozen=True, eq=False):
    """A call of a model: what the caller gave, and what is sent."""

    key: str
    history: AgentHistory
    conversation: ReadConversation
    messages: list[Any]
    """What is sent."""


class CallPlanner:
    """Plans the calls of one client or callback. Nothing here raises: without a plan, a call goes out as it is."""

    def __init__(
        self,
        window: int | None,
        store: StoreChoice,
        policy: Policy,
        listener: Listener | None,
    ) -> None:
        self._window = check_window(window)
        self._histories = AgentHistories(store, policy, listener)
        self._keys = ConversationKeys()
        self._has_warned = False
        self._newest_conversation: ReadConversation | None = None
        """What the newest call gave, of whatever conversation: mostly the next one goes on with it."""
        self._newest_calls: WeakKeyDictionary[AgentHistory, PlannedCall] = WeakKeyDictionary()

    def plan(
        self,
        model: str,
        messages: Sequence[Any],
        options: Mapping[str, Any],
        *,
        key: str = "",
        window: int | None = None,
    ) -> PlannedCall | None:
        """Return the call to make in place of one with ``messages``, or None if Holdfast cannot help.

        ``options`` are the other arguments of the call. ``key`` is that of the conversation if it is known already, and
        ``window`` what a router knows of the model's.
        """
        with self._histories.keep_agent_running():
            conversation = read_conversation(messages, self._newest_conversation)
            if not conversation.messages:
                return None
            self._newest_conversation = conversation
            call_key = key or self._keys.choose_key(conversation, options)
            history = self._histories.open(call_key)
            target = choose_target(model, options, self._window or window)
            setup_tokens = estimate_setup(conversation, options)
            shown_messages = history.plan(list_given_messages(conversation), target, setup_tokens)
            call = PlannedCall(call_key, history, conversation, write_shown_messages(conversation, shown_messages))
            self._newest_calls[history] = call
            return call
        return None

    def plan_smaller(self, call: PlannedCall, error: Exception) -> PlannedCall | None:
        """Return the call with less after ``error``, or None if that is no overflow or nothing is left to try."""
        with self._histories.keep_agent_running():
            shown_messages = call.history.plan_smaller(error, list_given_messages(call.conversation))
            if shown_messages is not None:
                smaller = replace(call, messages=write_shown_messages(call.conversation, shown_messages))
                self._newest_calls[call.history] = smaller
                return smaller
        return None

    def note_usage(self, call: PlannedCall, response: Any) -> None:
        """Calibrate with the usage of an answer, unless the conversation has gone on with another call since."""
        with self._histories.keep_agent_running():
            usage = read_usage(response)
            if usage is not None and self._newest_calls.get(call.history) is call:
                call.history.note_answer_usage(usage)

    def answer_recall(self, key: str, arguments: str | Mapping[str, Any]) -> str:
        """Return the result of the model's call of ``recall`` in the conversation ``key``."""
        return self._histories.answer_recall(key, arguments)

    def find_history(self, messages: Sequence[Any], options: Mapping[str, Any]) -> AgentHistory | None:
        """Return the conversation of ``messages``, or None if no call of it went through here."""
        conversation = read_conversation(messages, self._newest_conversation)
        key = self._keys.find_key(conversation, options) if conversation.messages else None
        return None if key is None else self._histories.open(key)

    def warn_once(self, error: Exception) -> None:
        """Log that Holdfast could not help, once for each kind of error."""
        self._histories.warn_once(error)

    def warn_of_missing_recall(self, options: Mapping[str, Any]) -> None:
        """Say once that a model with tools lacks the one that previews name.

        The view is reduced all the same: a preview that cannot be followed costs less than a refused request.
        """
        tools = options.get("tools")
        if tools and not self._has_warned and not has_recall_tool(tools):
            self._has_warned = True
            _LOG.warning("a call has tools, but not %r, which previews name: add recall_tool to them", RECALL_TOOL_NAME)


def list_given_messages(conversation: ReadConversation) -> list[GivenMessage]:
    """Return the messages without usages: those are noted apart."""
    return [GivenMessage(message) for message in conversation.messages]


def choose_target(model: str, options: Mapping[str, Any], window: int | None) -> Target:
    """Return what is known of ``model``: from Holdfast's catalogue, else its window from LiteLLM's table."""
    provider, _, name = model.partition("/")
    if not name:
        provider, name = "", model
    provider = str(options.get("custom_llm_provider") or provider)
    api = _choose_api(provider, name)
    asked_output = find_output_limit(options)
    target = get_target(api, name.rpartition("/")[2], window=window, asked_output=asked_output)
    if window is None and target.limits.window_source.startswith("default"):
        known_window = _find_listed_window(model, name)
        if known_window:
            return get_target(api, name.rpartition("/")[2], window=known_window, asked_output=asked_output)
    return target


def _choose_api(provider: str, name: str) -> str:
    """Return the API whose rules of caching and counting hold for a model; its messages are Chat Completions anyhow."""
    if "claude" in name and (not provider or provider in ANTHROPIC_PROVIDERS):
        return "anthropic"
    if "gemini" in name and (not provider or provider in GEMINI_PROVIDERS):
        return "gemini"
    return "openai-chat"


def _find_listed_window(*names: str) -> int | None:
    """Return the longest prompt of a model in LiteLLM's table; None if it has none."""
    for name in names:
        window = litellm.model_cost.get(name, {}).get("max_input_tokens")
        if isinstance(window, int) and window > 0:
            return window
    return None
