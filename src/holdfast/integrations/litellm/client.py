"""``completion`` and ``acompletion`` of LiteLLM, or of a router, that send a reduced view and recover from overflows.

LiteLLM has no hook that may change what a synchronous call sends, nor one that may answer a failed call. So the client
stands before them, where every call, option and exception passes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import litellm

from holdfast.engine.session import Report
from holdfast.integrations.common.options import Listener, StoreChoice
from holdfast.integrations.litellm.messages import make_recall_tool
from holdfast.integrations.litellm.planner import CallPlanner, PlannedCall
from holdfast.integrations.litellm.streams import OpenedCall, RecoveringAsyncStream, RecoveringStream
from holdfast.planning.pipeline import Policy

is_planned_call: ContextVar[bool] = ContextVar("holdfast_is_planned_call", default=False)
"""Whether a client has planned the call that is being made, so that a callback leaves it alone."""


class HoldfastClient:
    """Calls models through LiteLLM, and keeps the conversations inside their windows.

    ``router`` is a ``litellm.Router``; without one, the calls are those of ``litellm`` itself. ``window`` is the window
    in tokens, by default that of Holdfast's catalogue, else of LiteLLM's table. ``store`` is a store or the path of
    one, by default the one of the command line (``:memory:`` for none on disk). ``listener`` is called with the events
    of ``holdfast.events``.
    """

    def __init__(
        self,
        router: Any = None,
        *,
        window: int | None = None,
        store: StoreChoice = None,
        policy: Policy = Policy(),
        listener: Listener | None = None,
    ) -> None:
        self._router = router
        self._target = litellm if router is None else router
        self._planner = CallPlanner(window, store, policy, listener)
        self.recall_tool: dict[str, Any] = make_recall_tool()
        """The definition of the tool that reads back what a model is not shown any more, for ``tools``."""

    def completion(self, model: str, messages: Sequence[Any], **options: Any) -> Any:
        """Call ``completion`` with what ``model`` is to be shown of ``messages``, the whole conversation.

        ``options`` are LiteLLM's own. ``litellm_session_id`` (or ``metadata["session_id"]``) names the conversation,
        so that decisions outlast the process, and ``user`` keeps those of different users apart. Returns and raises
        what LiteLLM does. With ``stream=True`` a refusal that comes with the first chunk is recovered from, too.
        """
        call = self._plan(model, messages, options)
        if call is None:
            return self._target.completion(model=model, messages=list(messages), **options)
        call, answer = self._open(call, model, options)
        if not options.get("stream"):
            self._planner.note_usage(call, answer)
            return answer

        def reopen(refused: PlannedCall, error: Exception) -> OpenedCall | None:
            smaller = self._planner.plan_smaller(refused, error)
            return None if smaller is None else self._open(smaller, model, options)

        return RecoveringStream((call, answer), self._planner, reopen)

    async def acompletion(self, model: str, messages: Sequence[Any], **options: Any) -> Any:
        """Do as ``completion`` does, with ``acompletion``."""
        # In a thread, since large results can take seconds and the loop has other calls to serve.
        call = await asyncio.to_thread(self._plan, model, messages, options)
        if call is None:
            return await self._target.acompletion(model=model, messages=list(messages), **options)
        call, answer = await self._open_async(call, model, options)
        if not options.get("stream"):
            self._planner.note_usage(call, answer)
            return answer

        async def reopen(refused: PlannedCall, error: Exception) -> OpenedCall | None:
            smaller = await asyncio.to_thread(self._planner.plan_smaller, refused, error)
            return None if smaller is None else await self._open_async(smaller, model, options)

        return RecoveringAsyncStream((call, answer), self._planner, reopen)

    def answer_recall(self, tool_call: Any, messages: Sequence[Any], **options: Any) -> dict[str, Any]:
        """Return the message with the result of the model's call of ``recall``.

        ``messages`` and ``options`` are those of the call that the model answered so: they tell which conversation it
        is, and nothing of another one can be read. Mistakes of the model are explained in the result.
        """
        call_id, arguments = _read_tool_call(tool_call)
        history = self._planner.find_history(messages, options)
        if history is None:
            text = "Nothing was stored away: all of the conversation is shown."
        else:
            text = self._planner.answer_recall(history.key, arguments)
        return {"role": "tool", "tool_call_id": call_id, "content": text}

    def report(self, messages: Sequence[Any], **options: Any) -> Report | None:
        """Return how full the context was at the newest call of the conversation; None if there was none."""
        history = self._planner.find_history(messages, options)
        return None if history is None else history.report()

    def __getattr__(self, name: str) -> Any:
        """Everything else is LiteLLM's, or the router's."""
        if name == "_target":
            raise AttributeError(name)  # copying asks before anything is set
        return getattr(self._target, name)

    def _plan(self, model: str, messages: Sequence[Any], options: Mapping[str, Any]) -> PlannedCall | None:
        self._planner.warn_of_missing_recall(options)
        routed_model, window = model, None
        if self._router is not None:
            routed_model, window = self._find_routed_model(model)
        return self._planner.plan(routed_model, messages, options, window=window)

    def _find_routed_model(self, group: str) -> tuple[str, int | None]:
        """Return the model behind a router's name, and the smallest window that its configuration states."""
        try:
            deployments = self._router.get_model_list(model_name=group) or []
            windows = [(deployment.get("model_info") or {}).get("max_input_tokens") for deployment in deployments]
            window = min((window for window in windows if isinstance(window, int)), default=None)
            models = [deployment["litellm_params"]["model"] for deployment in deployments]
        except Exception as error:  # noqa: BLE001 -- a router may be any object with the two methods
            self._planner.warn_once(error)
            return group, None
        return (models[0] if models else group), window

    def _open(self, call: PlannedCall, model: str, options: Mapping[str, Any]) -> OpenedCall:
        """Make the call, with less as often as it is refused for its length; return it with its answer."""
        while True:
            try:
                with _mark_planned_call():
                    return call, self._target.completion(model=model, messages=call.messages, **options)
            except Exception as error:
                smaller = self._planner.plan_smaller(call, error)
                if smaller is None:
                    raise
                call = smaller

    async def _open_async(self, call: PlannedCall, model: str, options: Mapping[str, Any]) -> OpenedCall:
        while True:
            try:
                with _mark_planned_call():
                    return call, await self._target.acompletion(model=model, messages=call.messages, **options)
            except Exception as error:
                smaller = await asyncio.to_thread(self._planner.plan_smaller, call, error)
                if smaller is None:
                    raise
                call = smaller


@contextmanager
def _mark_planned_call() -> Iterator[None]:
    token = is_planned_call.set(True)
    try:
        yield
    finally:
        is_planned_call.reset(token)


def _read_tool_call(tool_call: Any) -> tuple[str, str | Mapping[str, Any]]:
    """Return the id and the arguments of a tool call: LiteLLM's object, or a dictionary."""
    if isinstance(tool_call, Mapping):
        return str(tool_call["id"]), tool_call["function"]["arguments"]
    return str(tool_call.id), tool_call.function.arguments
