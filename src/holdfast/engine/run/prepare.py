"""Start a run: append the input to the log and decide the request.

If nobody has to be asked for that (no summary, no hook), all of it is one call in the worker under one lease of the
session, so that a plain request costs one transaction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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
from holdfast.engine.run.fix_client_options import fix_client_options, record_option_fixes
from holdfast.engine.run.request_target import resolve_request_target
from holdfast.engine.session_runtime import SessionRuntime
from holdfast.errors import FormatError
from holdfast.messages.message import Message
from holdfast.messages.sized_message import SizedMessage
from holdfast.providers.common.json.surrogates import replace_surrogates_in_bytes
from holdfast.providers.fix.fix_context import RequestFix
from holdfast.providers.requests.parsed_request import ParsedRequest
from holdfast.recovery.machine import RecoveryState, start_recovery
from holdfast.state.calibration.model_stats import get_model_stats
from holdfast.state.plan import Plan
from holdfast.state.target import PlanInputs, Target


class PreparedRun(Struct, frozen=True):
    """A run whose first request is decided and in the log."""

    template: RequestTemplate
    recovery: RecoveryState
    """The recovery steps left to this run; those used since the last answer stay used, also after a restart."""
    prepared_request: PreparedRequest


class _PlannedRun(Struct, frozen=True):
    """A run with its messages in the log, and the plan of its first request."""

    template: RequestTemplate
    recovery: RecoveryState
    plan_inputs: PlanInputs
    plan: Plan
    committed_request: PreparedRequest | None
    """The request of the plan in the log, or None if a summary or a hook comes first, or if the log has moved on."""


def parse_request_input(
    runtime: SessionRuntime, request_input: RequestInput
) -> ParsedRequest | list[Message | SizedMessage]:
    """Parse a request body, or return the messages to append. Raises ``FormatError`` if the input is neither."""
    if not isinstance(request_input, bytes | Mapping | ParsedRequest):
        return coerce_messages(request_input)
    if isinstance(request_input, bytes):
        request_input = replace_surrogates_in_bytes(request_input)
    default_target = runtime.resources.target
    expected_api = None if default_target is None else default_target.api
    parsed_request = parse_and_measure_body(request_input, expected_api, is_api_certain=False)
    if not parsed_request.messages:
        raise FormatError("this body has no messages; send it with the whole conversation in it")
    return parsed_request


async def prepare_run(
    runtime: SessionRuntime,
    parsed_input: ParsedRequest | list[Message | SizedMessage],
    request_options: RequestOptions = RequestOptions(),
) -> PreparedRun:
    """Append the input to the log, and decide and commit the first request."""
    option_fixes: Sequence[RequestFix] = ()
    if isinstance(parsed_input, ParsedRequest):
        target = _resolve_body_target(runtime, parsed_input, request_options)
        parsed_body, option_fixes = await fix_client_options(runtime, parsed_input, target, request_options)
        planned_run = await runtime.resources.run_in_worker(
            lambda: _plan_from_body(runtime, parsed_body, request_options)
        )
    else:
        messages = [await runtime.apply_append_hook(message) for message in parsed_input]
        planned_run = await runtime.resources.run_in_worker(
            lambda: _plan_from_messages(runtime, messages, request_options)
        )
        runtime.report_model_changes()
    template, plan = planned_run.template, planned_run.plan
    prepared_request = planned_run.committed_request
    if prepared_request is None:
        prepared_request = await decide_next_request(runtime, template, planned_run.plan_inputs, plan)
    else:
        await emit_new_decisions(runtime, plan, prepared_request)
    # After the request, so that the log knows which model they are about.
    await record_option_fixes(runtime, option_fixes)
    return PreparedRun(template, planned_run.recovery, prepared_request)


def _resolve_body_target(
    runtime: SessionRuntime, parsed_body: ParsedRequest, request_options: RequestOptions
) -> Target:
    model = parsed_body.model or request_options.model
    return resolve_request_target(runtime.resources, parsed_body.api, model, request_options.upstream, parsed_body)


def _plan_from_body(
    runtime: SessionRuntime, parsed_body: ParsedRequest, request_options: RequestOptions
) -> _PlannedRun:
    """Match a client's conversation against the log, append the new part, and plan its request."""
    journal = runtime.journal
    target = _resolve_body_target(runtime, parsed_body, request_options)
    with journal.batch_writes():
        journal.deliver_queued()
        journal.follow_conversation(parsed_body.messages, parsed_body.decode_message)
        # Looked up after the conversation was followed: that may have moved the journal to another branch.
        if get_model_stats(journal.state, target.model).learned_limits.requires_strict_form:
            target = replace(target, dialect=replace(target.dialect, keeps_client_content=False))
        template = build_template_from_body(target, parsed_body, request_options)
        pinned_messages = journal.state.history.sized_messages.slice(0, journal.state.view.pinned_count)
        setup = add_system_messages_to_setup(template.target.setup, pinned_messages, parsed_body.messages)
        template = replace(template, target=replace(template.target, setup=setup))
        return _plan_run(runtime, template)


def _plan_from_messages(
    runtime: SessionRuntime, messages: list[Message | SizedMessage], request_options: RequestOptions
) -> _PlannedRun:
    """Append messages and plan the request that shows them."""
    journal = runtime.journal
    with journal.batch_writes():
        journal.deliver_queued()
        journal.append(*messages)
        if not len(journal.state.history.sized_messages):
            raise FormatError("this session has no messages yet; send one first")
        own_target, fields = runtime.get_default_target(), runtime.get_default_fields()
        target = resolve_request_target(
            runtime.resources, own_target.api, own_target.model, request_options.upstream, parsed_request=None
        )
        return _plan_run(runtime, build_template_from_fields(target, fields, request_options))


def _plan_run(runtime: SessionRuntime, template: RequestTemplate) -> _PlannedRun:
    """Plan the request of ``template``, and commit it if nobody has to be asked or told first."""
    journal, target = runtime.journal, template.target
    journal.describe_session(target.model)
    recovery = start_recovery(
        journal.state,
        runtime.settings,
        can_change_request=not template.request_options.observe_only,
        is_breaker_cooled=journal.is_breaker_cooled(),
    )
    inputs = compacting.make_runtime_plan_inputs(runtime, template)
    plan = journal.plan_next(target, inputs)
    # A summary has to be written, or the `auto_continue` hook asked about the compaction, outside of the worker.
    must_wait = plan.summary_request is not None or plan.compaction is not None
    if must_wait:
        committed_request = None
    else:
        committed_request = runtime.commit_plan(plan, target, inputs)
    return _PlannedRun(template, recovery, inputs, plan, committed_request)
