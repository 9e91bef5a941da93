"""The same by LiteLLM's own hooks: asynchronous calls of the library, routers, and the proxy server.

Three hooks take part. ``async_pre_call_deployment_hook`` is the one that may change what is sent once a deployment is
chosen; LiteLLM calls it for each attempt. ``async_post_call_failure_deployment_hook`` is told of a refusal and cannot
answer it, so the retry is LiteLLM's own: ``context_window_fallback_dict`` for a call of the library, a fallback of its
own model group for a router. The agentic loop answers the model's calls of ``recall`` before the caller sees them.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

from litellm.integrations.custom_logger import CustomLogger
from litellm.types.integrations.custom_logger import AgenticLoopPlan, AgenticLoopRequestPatch
from litellm.types.utils import CallTypes
from msgspec import Struct

from holdfast.engine.recall import RECALL_TOOL_NAME
from holdfast.errors import ConfigError
from holdfast.integrations.common.options import Listener, StoreChoice
from holdfast.integrations.litellm.client import is_planned_call
from holdfast.integrations.litellm.messages import has_recall_tool, make_recall_tool
from holdfast.integrations.litellm.planner import CallPlanner, PlannedCall
from holdfast.planning.pipeline import Policy

CHAT_CALLS = (CallTypes.acompletion, CallTypes.completion)
"""Calls whose messages are Chat Completions."""
LOOP_DEPTH = "_agentic_loop_depth"
"""What LiteLLM adds to the calls that follow an answered tool call."""


class _HookedCall(Struct):
    """The call that the current task makes, from its first hook to its last."""

    call: PlannedCall
    call_id: str
    messages: list[Any]
    """What is sent: ours to change, since LiteLLM makes a refused call of the library again with the same list."""
    answers_recall: bool
    """Whether the model has the tool from us, so that its calls are ours to answer."""


_hooked_call: ContextVar[_HookedCall | None] = ContextVar("holdfast_hooked_call", default=None)


class HoldfastCallback(CustomLogger):
    """Keeps the conversations of LiteLLM's asynchronous calls inside the windows of their models.

    ``litellm.callbacks = [HoldfastCallback()]``, or ``callbacks: your_module.holdfast`` in a proxy's configuration.
    ``window``, ``store``, ``policy`` and ``listener`` are those of ``HoldfastClient``. With ``adds_recall=False`` the
    tool ``recall`` is not added to calls that lack it.
    """

    def __init__(
        self,
        *,
        window: int | None = None,
        store: StoreChoice = None,
        policy: Policy = Policy(),
        listener: Listener | None = None,
        adds_recall: bool = True,
    ) -> None:
        super().__init__()
        self._planner = CallPlanner(window, store, policy, listener)
        self._adds_recall = adds_recall
        self._recall_tool = make_recall_tool()

    async def async_pre_call_hook(
        self,
        user_api_key_dict: Any,  # noqa: ARG002 -- the names are those of LiteLLM's interface
        cache: Any,  # noqa: ARG002
        data: dict[str, Any],
        call_type: Any,
    ) -> dict[str, Any] | None:
        """Let the proxy's router try a group once more after an overflow, unless the caller has a fallback."""
        group, messages = data.get("model"), data.get("messages")
        is_chat = call_type in ("completion", "acompletion") and isinstance(group, str) and isinstance(messages, list)
        if not is_chat or "context_window_fallbacks" in data or "fallbacks" in data:
            return None
        # A router leaves out a fallback that would change nothing. One with messages it takes, and ours are the same.
        return {**data, "context_window_fallbacks": [{group: [{"model": group, "messages": messages}]}]}

    async def async_pre_call_deployment_hook(
        self, kwargs: dict[str, Any], call_type: CallTypes | None
    ) -> dict[str, Any] | None:
        """Return the arguments of the call with what the model is shown in place of all messages."""
        previous, is_followup = _hooked_call.get(), bool(kwargs.get(LOOP_DEPTH))
        _hooked_call.set(None)
        messages = kwargs.get("messages")
        if call_type not in CHAT_CALLS or is_planned_call.get():
            return None
        if not messages:
            # LiteLLM shows its hooks the arguments that have names, and would get these twice.
            self._planner.warn_once(ConfigError("model and messages of acompletion must be given by name"))
            return None
        arguments = self._add_recall(kwargs)
        model = str(kwargs.get("model") or "")
        # A call that follows an answered recall is not one of the caller's: it must not become what they go on from.
        key = previous.call.key if is_followup and previous is not None else ""
        call = await asyncio.to_thread(
            self._planner.plan, model, messages, arguments, key=key, window=_find_stated_window(kwargs)
        )
        if call is None:
            return None
        sent_messages = list(call.messages)
        answers_recall = arguments is not kwargs or (is_followup and previous is not None and previous.answers_recall)
        _hooked_call.set(_HookedCall(call, str(kwargs.get("litellm_call_id")), sent_messages, answers_recall))
        changed_arguments = {**arguments, "messages": sent_messages}
        if not _is_router_call(kwargs):
            own_fallbacks = kwargs.get("context_window_fallback_dict")
            changed_arguments["context_window_fallback_dict"] = own_fallbacks or {model: model}
        return changed_arguments

    async def async_post_call_failure_deployment_hook(
        self,
        request_data: Mapping[str, Any],
        exception: Exception,
        call_type: CallTypes | None,  # noqa: ARG002 -- the names are those of LiteLLM's interface
        fallback_depth: int | None = None,  # noqa: ARG002
    ) -> None:
        """Decide on less after an overflow, which the next attempt sends."""
        hooked = _get_hooked_call(request_data)
        if hooked is None:
            return
        smaller = await asyncio.to_thread(self._planner.plan_smaller, hooked.call, exception)
        if smaller is not None:
            hooked.call = smaller
            hooked.messages[:] = smaller.messages

    async def async_post_call_success_deployment_hook(
        self,
        request_data: dict[str, Any],
        response: Any,
        call_type: CallTypes | None,  # noqa: ARG002 -- the name is that of LiteLLM's interface
    ) -> Any:
        """Calibrate with the usage of an answer, and take out calls of ``recall`` that came beside other calls.

        The caller would have to answer those, and does not know the tool. The model asks again once it has the rest.
        """
        hooked = _get_hooked_call(request_data)
        if hooked is None:
            return None
        self._planner.note_usage(hooked.call, response)
        if not hooked.answers_recall:
            return None
        for choice in getattr(response, "choices", ()):
            calls = getattr(choice.message, "tool_calls", None) or []
            kept_calls = [call for call in calls if call.function.name != RECALL_TOOL_NAME]
            if kept_calls and len(kept_calls) < len(calls):
                choice.message.tool_calls = kept_calls
        return None

    # -- the tool recall, answered inside of the call ------------------------------------------------------------------

    async def async_should_run_agentic_loop(
        self, response: Any, kwargs: dict[str, Any], **_: Any
    ) -> tuple[bool, dict[str, Any]]:
        """Say whether the model calls nothing but ``recall``."""
        hooked = _get_hooked_call(kwargs)
        if hooked is None or not hooked.answers_recall or len(getattr(response, "choices", ())) != 1:
            return False, {}
        calls = response.choices[0].message.tool_calls or []
        if not calls or any(call.function.name != RECALL_TOOL_NAME for call in calls):
            return False, {}
        return True, {"calls": [(call.id, call.function.arguments) for call in calls]}

    async def async_build_agentic_loop_plan(
        self, tools: dict[str, Any], response: Any, kwargs: dict[str, Any], **_: Any
    ) -> AgenticLoopPlan:
        """Return the call to make next: the whole conversation, the model's calls and their results."""
        hooked = _get_hooked_call(kwargs)
        if hooked is None:
            return AgenticLoopPlan(run_agentic_loop=False)
        results = []
        for call_id, arguments in tools["calls"]:
            text = await asyncio.to_thread(self._planner.answer_recall, hooked.call.key, arguments)
            results.append({"role": "tool", "tool_call_id": call_id, "content": text})
        conversation = hooked.call.conversation
        answer = json.loads(response.choices[0].message.model_dump_json(exclude_none=True))
        followup = [*conversation.system, *conversation.originals, answer, *results]
        return AgenticLoopPlan(run_agentic_loop=True, request_patch=AgenticLoopRequestPatch(messages=followup))

    def _add_recall(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments with the tool ``recall``, or as they are if it could not be answered.

        A stream is passed on while it is read, so a call in it is the caller's.
        """
        is_answerable = not arguments.get("stream") and (arguments.get("n") or 1) == 1
        tools = arguments.get("tools")
        if not self._adds_recall or not is_answerable or arguments.get("functions") or has_recall_tool(tools):
            return arguments
        return {**arguments, "tools": [*(tools or ()), self._recall_tool]}


def _get_hooked_call(arguments: Mapping[str, Any]) -> _HookedCall | None:
    """Return the call that the current task makes, if these are its arguments."""
    hooked = _hooked_call.get()
    if hooked is None or hooked.call_id != str(arguments.get("litellm_call_id")):
        return None
    return hooked


def _is_router_call(arguments: Mapping[str, Any]) -> bool:
    fields = (arguments.get("metadata"), arguments.get("litellm_metadata"))
    return any(isinstance(field, Mapping) and "model_group" in field for field in fields)


def _find_stated_window(arguments: Mapping[str, Any]) -> int | None:
    """Return the longest prompt that a router's configuration states for the deployment."""
    model_info = arguments.get("model_info")
    window = model_info.get("max_input_tokens") if isinstance(model_info, Mapping) else None
    return window if isinstance(window, int) else None
