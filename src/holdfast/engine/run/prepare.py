"""How a run begins: what is asked goes into the log, and its request is decided, at once where nobody is to be asked.

All of it is one visit to the worker then, under one lease.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from holdfast.engine.compaction import compact as compacting
from holdfast.engine.log.conversation_diff import add_system_messages_to_setup
from holdfast.engine.log.journal import PreparedRequest
from holdfast.engine.request_template import (
    RequestInput,
    RequestOptions,
    RequestTemplate,
    build_template_from_body,
    build_template_from_fields,
    coerce_messages,
    parse_and_measure_body,
)
from holdfast.engine.run.decide import decide_next_request, emit_new_decisions
from holdfast.engine.session_runtime import SessionRuntime
from holdfast.errors import FormatError
from holdfast.messages.message import Message
from holdfast.messages.sized_message import SizedMessage
from holdfast.providers.common.json.surrogates import replace_surrogates_in_bytes
from holdfast.providers.requests.request_body import ParsedRequest
from holdfast.recovery.machine import RecoveryState, start_recovery
from holdfast.state.calibration.model_stats import get_model_stats
from holdfast.state.plan import Plan
from holdfast.state.target import PlanInputs


class PreparedRun(Struct, frozen=True):
    """A request whose words are in the log, and its plan."""

    template: RequestTemplate
    recovery: RecoveryState
    """What may be done where it fails, as the log was before it."""
    plan_inputs: PlanInputs
    plan: Plan
    prepared_request: PreparedRequest | None
    """Nothing where somebody is to be asked or told first, or where more was said meanwhile."""


def parse_request_input(
    runtime: SessionRuntime, request_input: RequestInput
) -> ParsedRequest | list[Message | SizedMessage]:
    """Return a body opened, or the words to say; ``FormatError`` for what is neither."""
    if not isinstance(request_input, bytes | Mapping | ParsedRequest):
        return coerce_messages(request_input)
    own = runtime.resources.target
    request_input = replace_surrogates_in_bytes(request_input) if isinstance(request_input, bytes) else request_input
    parsed_request = parse_and_measure_body(request_input, own.api if own is not None else None, is_api_certain=False)
    if not parsed_request.messages:
        raise FormatError("this body has no messages; send it with the whole conversation in it")
    return parsed_request


async def prepare_run(
    runtime: SessionRuntime,
    parsed_input: ParsedRequest | list[Message | SizedMessage],
    request_options: RequestOptions = RequestOptions(),
) -> tuple[PreparedRun, PreparedRequest]:
    """Return how the request of a body or of words begins, and what it shows, decided and in the log."""
    if isinstance(parsed_input, ParsedRequest):
        first = await runtime.resources.run_in_worker(
            lambda: _prepare_from_body(runtime, parsed_input, request_options)
        )
    else:
        messages = [await runtime.apply_append_hook(message) for message in parsed_input]
        first = await runtime.resources.run_in_worker(
            lambda: _prepare_from_messages(runtime, messages, request_options)
        )
    if first.prepared_request is None:
        return first, await decide_next_request(runtime, first.template, first.plan_inputs, first.plan)
    await emit_new_decisions(runtime, first.plan, first.prepared_request)
    return first, first.prepared_request


def _prepare_from_body(
    runtime: SessionRuntime, parsed_body: ParsedRequest, request_options: RequestOptions
) -> PreparedRun:
    journal, target = (
        runtime.journal,
        runtime.resources.resolve_target(parsed_body.api, parsed_body.model or request_options.model),
    )
    with journal.batch_writes():
        journal.deliver_queued()
        journal.follow_conversation(parsed_body.messages, parsed_body.decode_message)
        if get_model_stats(journal.state, target.model).learned_limits.fixes_client_content:
            target = replace(target, dialect=replace(target.dialect, keeps_client_content=False))
        request = build_template_from_body(target, parsed_body, request_options)
        setup = add_system_messages_to_setup(
            request.target.setup,
            journal.state.history.sized_messages.slice(0, journal.state.view.pinned_count),
            parsed_body.messages,
        )
        return _plan_run(runtime, replace(request, target=replace(request.target, setup=setup)))


def _prepare_from_messages(
    runtime: SessionRuntime, messages: list[Message | SizedMessage], request_options: RequestOptions
) -> PreparedRun:
    journal = runtime.journal
    with journal.batch_writes():
        journal.deliver_queued()
        journal.append(*messages)
        if not len(journal.state.history.sized_messages):
            raise FormatError("nothing was said in this session yet; say something first")
        return _plan_run(
            runtime,
            build_template_from_fields(runtime.get_default_target(), runtime.get_default_fields(), request_options),
        )


def _plan_run(runtime: SessionRuntime, template: RequestTemplate) -> PreparedRun:
    """Return the plan of ``template``, and the request itself where it can go out as planned."""
    journal, target = runtime.journal, template.target
    journal.describe_session(target.model)
    state = start_recovery(
        journal.state,
        runtime.settings,
        can_change_request=not template.request_options.observe_only,
        is_breaker_cooled=journal.can_retry_compaction(),
    )
    inputs = compacting.make_runtime_plan_inputs(runtime, template)
    plan = journal.plan_next(target, inputs)
    waits = plan.summary_request is not None or plan.compaction is not None
    return PreparedRun(template, state, inputs, plan, None if waits else runtime.commit_plan(plan, target, inputs))
