"""Models of the SDK that make a request again with less after their provider refused it for its length."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

from agents import Model, ModelProvider, ModelSettings, Tool
from agents.agent_output import AgentOutputSchemaBase
from agents.handoffs import Handoff
from agents.items import ModelResponse, TResponseInputItem, TResponseStreamEvent
from agents.models.interface import ModelTracing

from holdfast.integrations.openai_agents.calls import PlannedCall, end_newest_run, newest_call
from holdfast.providers.errors.report import ErrorReport

OPENING_EVENTS = frozenset({"response.created", "response.in_progress", "response.queued"})
"""Events of a stream before the first one with anything of the answer."""
FAILURE_EVENTS = frozenset({"error", "response.error", "response.failed"})


class RecoveringProvider:
    """Gives the models of another provider, each so that refused requests are made again with less.

    It passes for the other provider wherever it is not asked for a model: the SDK wants settings beyond the interface,
    and some classes for some purposes.
    """

    def __init__(self, provider: ModelProvider) -> None:
        self._provider = provider
        self._models: dict[str | None, tuple[Model, Model]] = {}
        """By name: the newest model of the other provider and the one given for it. The SDK tells models apart by
        their identity."""

    def get_model(self, model_name: str | None) -> Model:
        """Return the other provider's model, so that it recovers."""
        model = self._provider.get_model(model_name)
        known_model, recovering_model = self._models.get(model_name, (None, None))
        if recovering_model is None or known_model is not model:
            recovering_model = RecoveringModel(model)
            self._models[model_name] = (model, recovering_model)
        return recovering_model

    @property  # type: ignore[misc] # asked for by isinstance, and never set
    def __class__(self) -> Any:
        """The class of the other provider."""
        return type(self._provider)

    def __getattr__(self, name: str) -> Any:
        """Return what the other provider has."""
        return getattr(_get_inner(self, "_provider", name), name)


class RecoveringModel:
    """Calls another model, and calls it again with less if its provider refuses a request for its length.

    It passes for the other model in everything else: the SDK and its users ask models for more than their interface,
    such as ``model``, and the SDK allows some settings for some classes alone.
    """

    def __init__(self, model: Model) -> None:
        self._model = model

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
        call, input = _start_call(input, tools, handoffs, output_schema, options)  # noqa: A001
        while True:
            try:
                response = await self._model.get_response(
                    system_instructions, input, model_settings, tools, output_schema, handoffs, tracing, **options
                )
            except Exception as error:
                smaller_input = None if call is None else await call.planner.plan_smaller(call, error)
                if smaller_input is None:
                    raise
                input = smaller_input  # noqa: A001
            else:
                if call is not None:
                    call.planner.note_answer(call, response)
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
        call, input = _start_call(input, tools, handoffs, output_schema, options)  # noqa: A001
        while True:
            events = self._model.stream_response(
                system_instructions, input, model_settings, tools, output_schema, handoffs, tracing, **options
            )
            is_answer_begun = False
            smaller_input: list[TResponseInputItem] | None = None
            try:
                async for event in events:
                    event_type = getattr(event, "type", None)
                    if call is not None and not is_answer_begun and event_type in FAILURE_EVENTS:
                        smaller_input = await call.planner.plan_smaller(call, _report_failure(event))
                        if smaller_input is not None:
                            break
                    is_answer_begun = is_answer_begun or event_type not in OPENING_EVENTS
                    _note_streamed_answer(call, event)
                    yield event
            except Exception as error:
                # What was streamed already cannot be taken back.
                if call is not None and not is_answer_begun:
                    smaller_input = await call.planner.plan_smaller(call, error)
                if smaller_input is None:
                    raise
            finally:
                await _close_stream(events)
            if smaller_input is None:
                return
            input = smaller_input  # noqa: A001

    async def _cleanup_on_run_end(self, owner: object) -> None:
        """Take note that a run has ended, as the SDK tells each model of the run."""
        end_newest_run()
        await self._model._cleanup_on_run_end(owner)  # noqa: SLF001 -- the SDK's own hook for models

    @property  # type: ignore[misc] # asked for by isinstance, and never set
    def __class__(self) -> Any:
        """The class of the other model."""
        return type(self._model)

    def __getattr__(self, name: str) -> Any:
        """Return what the other model has."""
        return getattr(_get_inner(self, "_model", name), name)


def _get_inner(wrapper: object, inner_name: str, name: str) -> Any:
    """Return the object inside of ``wrapper``, of which ``name`` is wanted.

    Raises ``AttributeError`` if there is none yet: a copy is asked for attributes before it has any.
    """
    try:
        return vars(wrapper)[inner_name]
    except KeyError:
        raise AttributeError(name) from None


def _start_call(
    model_input: Any,
    tools: list[Tool],
    handoffs: list[Handoff[Any, Any]],
    output_schema: AgentOutputSchemaBase | None,
    options: dict[str, Any],
) -> tuple[PlannedCall | None, Any]:
    """Return the planned call that this one is and what to send; None if Holdfast has no part in it."""
    call = newest_call.get()
    is_kept_by_server = options.get("previous_response_id") or options.get("conversation_id")
    if call is None or is_kept_by_server or not call.is_made_with(model_input):
        return None, model_input
    call.is_run_end_told = True
    call.planner.note_setup(call.agent_name, tools, handoffs, output_schema)
    return call, model_input if call.smaller_items is None else call.smaller_items


def _note_streamed_answer(call: PlannedCall | None, event: Any) -> None:
    """Pass on the answer that a stream has at its end."""
    if call is not None and getattr(event, "type", None) == "response.completed":
        call.planner.note_answer(call, event.response)


async def _close_stream(events: AsyncIterator[Any]) -> None:
    """Close a stream that is not read to its end, if it can be closed; as the SDK does, whatever comes of it."""
    close = getattr(events, "aclose", None)
    if close is not None:
        with suppress(Exception):
            await close()


def _report_failure(event: Any) -> ErrorReport:
    """Return what an event of a stream says about its failure."""
    failure = getattr(event.response, "error", None) if event.type == "response.failed" else event
    code, message = getattr(failure, "code", None), getattr(failure, "message", None)
    return ErrorReport(status=200, code=code or "", message=message or "")
