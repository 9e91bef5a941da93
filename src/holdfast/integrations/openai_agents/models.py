"""Models of the SDK that make a request again with less after their provider refused it for its length."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from agents import Model, ModelProvider, ModelSettings, Tool
from agents.agent_output import AgentOutputSchemaBase
from agents.handoffs import Handoff
from agents.items import ModelResponse, TResponseInputItem, TResponseStreamEvent
from agents.models.interface import ModelTracing
from agents.retry import ModelRetryAdvice, ModelRetryAdviceRequest

from holdfast.integrations.openai_agents.calls import CallPlanner, PlannedCall, newest_call
from holdfast.integrations.openai_agents.items import read_usage
from holdfast.providers.errors.report import ErrorReport

OPENING_EVENTS = frozenset({"response.created", "response.in_progress", "response.queued"})
"""Events of a stream before the first one with anything of the answer."""
FAILURE_EVENTS = frozenset({"error", "response.error", "response.failed"})


class RecoveringProvider(ModelProvider):
    """Gives the models of another provider, each so that refused requests are made again with less."""

    def __init__(self, provider: ModelProvider, planner: CallPlanner) -> None:
        self._provider = provider
        self._planner = planner
        self._models: dict[str | None, tuple[Model, Model]] = {}
        """By name: the newest model of the other provider and the one given for it. The SDK tells models apart by
        their identity."""

    def get_model(self, model_name: str | None) -> Model:
        """Return the other provider's model, so that it recovers."""
        model = self._provider.get_model(model_name)
        known_model, recovering_model = self._models.get(model_name, (None, None))
        if recovering_model is None or known_model is not model:
            recovering_model = RecoveringModel(model, self._planner)
            self._models[model_name] = (model, recovering_model)
        return recovering_model

    async def aclose(self) -> None:
        """Close the other provider."""
        await self._provider.aclose()

    def __getattr__(self, name: str) -> Any:
        """The SDK asks providers for settings beyond their interface."""
        return getattr(self._provider, name)


class RecoveringModel(Model):
    """Calls another model, and calls it again with less if its provider refuses a request for its length."""

    def __init__(self, model: Model, planner: CallPlanner) -> None:
        self._model = model
        self._planner = planner

    async def get_response(
        self,
        system_instructions: str | None,
        input: str | list[TResponseInputItem],  # noqa: A002 -- the name in the SDK's interface
        model_settings: ModelSettings,
        tools: list[Tool],
        output_schema: AgentOutputSchemaBase | None,
        handoffs: list[Handoff[Any, Any]],
        tracing: ModelTracing,
        **options: Any,
    ) -> ModelResponse:
        """Return the other model's answer, if need be to a smaller request."""
        call = self._start_call(tools, handoffs, output_schema, options)
        while True:
            try:
                response = await self._model.get_response(
                    system_instructions, input, model_settings, tools, output_schema, handoffs, tracing, **options
                )
            except Exception as error:
                smaller_input = None if call is None else await self._planner.plan_smaller(call, error)
                if smaller_input is None:
                    raise
                input = smaller_input  # noqa: A001
            else:
                if call is not None:
                    call.history.note_answer_usage(read_usage(response.usage))
                return response

    async def stream_response(
        self,
        system_instructions: str | None,
        input: str | list[TResponseInputItem],  # noqa: A002 -- the name in the SDK's interface
        model_settings: ModelSettings,
        tools: list[Tool],
        output_schema: AgentOutputSchemaBase | None,
        handoffs: list[Handoff[Any, Any]],
        tracing: ModelTracing,
        **options: Any,
    ) -> AsyncIterator[TResponseStreamEvent]:
        """Yield the other model's answer; a smaller request can be made until a part of it has come."""
        call = self._start_call(tools, handoffs, output_schema, options)
        while True:
            events = self._model.stream_response(
                system_instructions, input, model_settings, tools, output_schema, handoffs, tracing, **options
            )
            is_answer_begun = False
            smaller_input: list[TResponseInputItem] | None = None
            try:
                async for event in events:
                    if call is not None and not is_answer_begun and event.type in FAILURE_EVENTS:
                        smaller_input = await self._planner.plan_smaller(call, _report_failure(event))
                        if smaller_input is not None:
                            break
                    is_answer_begun = is_answer_begun or event.type not in OPENING_EVENTS
                    if call is not None and event.type == "response.completed" and event.response.usage:
                        call.history.note_answer_usage(read_usage(event.response.usage))
                    yield event
            except Exception as error:
                # What was streamed already cannot be taken back.
                if call is not None and not is_answer_begun:
                    smaller_input = await self._planner.plan_smaller(call, error)
                if smaller_input is None:
                    raise
            finally:
                await _close_stream(events)
            if smaller_input is None:
                return
            input = smaller_input  # noqa: A001

    def _start_call(
        self,
        tools: list[Tool],
        handoffs: list[Handoff[Any, Any]],
        output_schema: AgentOutputSchemaBase | None,
        options: dict[str, Any],
    ) -> PlannedCall | None:
        """Return the planned call that this one is; None if Holdfast has no part in it."""
        call = newest_call.get()
        is_kept_by_server = options.get("previous_response_id") or options.get("conversation_id")
        if call is None or is_kept_by_server:
            return None
        self._planner.note_setup(call.agent_name, tools, handoffs, output_schema)
        return call

    def get_retry_advice(self, request: ModelRetryAdviceRequest) -> ModelRetryAdvice | None:
        """Return what the other model advises."""
        return self._model.get_retry_advice(request)

    async def close(self) -> None:
        """Close the other model."""
        await self._model.close()

    async def _cleanup_on_run_end(self, owner: object) -> None:
        await self._model._cleanup_on_run_end(owner)  # noqa: SLF001 -- the SDK's own hook for models

    @property  # type: ignore[misc] # asked for by isinstance, and never set
    def __class__(self) -> Any:
        """The class of the other model: the SDK allows some settings for some classes alone."""
        return type(self._model)

    def __getattr__(self, name: str) -> Any:
        """The SDK and its users ask models for more than their interface, such as ``model``."""
        return getattr(self._model, name)


async def _close_stream(events: AsyncIterator[Any]) -> None:
    """Close a stream that is not read to its end, if it can be closed."""
    close = getattr(events, "aclose", None)
    if close is not None:
        await close()


def _report_failure(event: Any) -> ErrorReport:
    """Return what an event of a stream says about its failure."""
    failure = event.response.error if event.type == "response.failed" else event
    code, message = getattr(failure, "code", None), getattr(failure, "message", None)
    return ErrorReport(status=200, code=code or "", message=message or "")
