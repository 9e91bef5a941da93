"""The run configuration: what the SDK calls before each call of a model, for all agents of a run."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

import msgspec
from agents import FunctionTool, Model, RunConfig
from agents.items import TResponseInputItem
from agents.memory import Session
from agents.run_config import CallModelData, CallModelInputFilter, ModelInputData
from agents.tool_context import ToolContext
from agents.tracing import custom_span, get_current_trace

from holdfast.engine.recall import RECALL_DESCRIPTION, RECALL_TOOL_NAME
from holdfast.errors import ConfigError
from holdfast.events import Event
from holdfast.integrations.common.agent_history import AgentHistory
from holdfast.integrations.common.options import AgentHistories, Listener, StoreChoice
from holdfast.integrations.openai_agents.calls import RECALL_SCHEMA, CallPlanner, SessionChoice, newest_call
from holdfast.integrations.openai_agents.models import RecoveringModel, RecoveringProvider
from holdfast.planning.pipeline import Policy


class HoldfastRuns:
    """Keeps the conversations of an application's runs inside the windows of their models.

    ``window`` is the window in tokens, by default that of Holdfast's catalogue. ``store`` is a store or the path of
    one, by default the one of the command line (``:memory:`` for none on disk). ``listener`` is called with the events
    of ``holdfast.events``; traces of the SDK get each as a custom span of the run that it belongs to.
    """

    def __init__(
        self,
        *,
        window: int | None = None,
        store: StoreChoice = None,
        policy: Policy = Policy(),
        listener: Listener | None = None,
    ) -> None:
        self._planner = CallPlanner(AgentHistories(store, policy, listener, tell_framework=_trace_event), window)
        self.recall_tool = _make_recall_tool()
        """Reads back what a model is not shown any more; every agent of a run needs it among its tools."""

    def run_config(self, session: Session | str | None = None, base: RunConfig | None = None) -> RunConfig:
        """Return the configuration for ``Runner.run``, ``run_sync`` and ``run_streamed``.

        ``session`` is the session of the run, or a name of its conversation: the SDK does not tell it to those who
        change a model's input. ``base`` has further settings of the run; its own filter is called first.
        """
        settings = base or RunConfig()
        if isinstance(settings.call_model_input_filter, _InputFilter):
            # Two adapters would shorten what the other has shortened, and write it down as the history.
            self._planner.histories.warn_once(
                ConfigError("base is a run configuration of Holdfast already; give your own")
            )
            return settings
        model = settings.model
        return replace(
            settings,
            model=self.wrap_model(model) if isinstance(model, Model) else model,
            model_provider=RecoveringProvider(settings.model_provider),
            call_model_input_filter=_InputFilter(self._planner, session, settings.call_model_input_filter, model),
        )

    def wrap_model(self, model: Model) -> Model:
        """Return ``model`` so that a refused request is made again with less.

        Only for agents that have a ``Model`` of their own in place of a name: a run configuration does not see those.
        A model that wraps another one goes inside: a request that is not what the filter returned is not made again.
        """
        # By its type, since it says that it is of the other model's class.
        return model if type(model) is RecoveringModel else RecoveringModel(model)

    def get_history(self, items: Sequence[TResponseInputItem], session: Session | str | None = None) -> AgentHistory:
        """Return the conversation of ``items``, for its report and ``recall``: in a session that which begins with the
        first of them, without one that which has all of them.

        Raises ``FormatError`` if there are no items.
        """
        return self._planner.open_history(items, session)


def _trace_event(event: Event) -> None:
    """Add ``event`` to the trace of the run, if it has one, as a span under the current one."""
    if get_current_trace() is None:
        return
    data = msgspec.to_builtins(event)
    with custom_span(f"holdfast.{data['event']}", data):
        return


class _InputFilter:
    """The ``call_model_input_filter`` of a run."""

    def __init__(
        self,
        planner: CallPlanner,
        session: SessionChoice,
        own_filter: CallModelInputFilter | None,
        run_model: str | Model | None,
    ) -> None:
        self._planner = planner
        self._session = session
        self._own_filter = own_filter
        self._run_model = run_model

    async def __call__(self, data: CallModelData[Any]) -> ModelInputData:
        """Return the model's input with what the model is shown."""
        if self._own_filter is not None:
            filtered = self._own_filter(data)
            filtered = await filtered if inspect.isawaitable(filtered) else filtered
            if not isinstance(filtered, ModelInputData):
                return filtered  # the SDK says what is wrong with it
            data.model_data = filtered
        agent_model = data.agent.model
        # The type, since a model of ours says that it is of the class of the one inside.
        is_model_ours = (
            self._run_model is not None or agent_model is None or type(agent_model) in {str, RecoveringModel}
        )
        items = await self._planner.plan_call(data, self._session, self._run_model, is_made_by_our_model=is_model_ours)
        return ModelInputData(input=items, instructions=data.model_data.instructions)


def _make_recall_tool() -> FunctionTool:
    """Return the tool that reads back what the model is not shown any more."""

    async def recall(context: ToolContext[Any], arguments: str) -> str:
        call = newest_call.get()
        # A run inside of a tool, or after another in the same task, may have no filter of ours: what the other run said
        # is none of its business.
        is_planned = isinstance(getattr(context.run_config, "call_model_input_filter", None), _InputFilter)
        if call is None or not is_planned:
            return "Nothing was stored away: all of the conversation is shown."
        return await asyncio.to_thread(call.history.answer_recall, arguments)

    return FunctionTool(RECALL_TOOL_NAME, RECALL_DESCRIPTION, deepcopy(RECALL_SCHEMA), recall, strict_json_schema=False)
