"""The span of a run: one request of a session with everything that it takes to get its answer, if spans are wanted."""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from msgspec.structs import replace

from holdfast.engine.request_template import RequestOptions, RequestTemplate
from holdfast.engine.session_runtime import SessionRuntime
from holdfast.engine.upstream.upstream import UpstreamRequest, get_server_name
from holdfast.errors import UpstreamError
from holdfast.messages.message import Message
from holdfast.messages.sized_message import SizedMessage
from holdfast.providers.requests.parsed_request import ParsedRequest
from holdfast.state.plan import Plan

CANCELLED_KIND = "cancelled"
"""The kind of error of a run whose caller left before the answer came."""


@contextmanager
def trace_run(
    runtime: SessionRuntime,
    parsed_input: ParsedRequest | Sequence[Message | SizedMessage],
    request_options: RequestOptions,
) -> Iterator[None]:
    """Put the events of a run into a span, from its beginning to its end, with all attempts and compactions.

    The span is not the current one: a run hands its events to its caller, whose spans would then be below it.
    """
    resources = runtime.resources
    if resources.telemetry is None:
        yield
        return
    upstream = request_options.upstream or resources.upstream
    address = get_server_name(upstream)
    if isinstance(parsed_input, ParsedRequest):
        api, model = parsed_input.api, parsed_input.model or request_options.model
        fields = parsed_input.fields
    else:
        target = runtime.get_default_target()
        api, model, fields = target.api, target.model, {}
    provider = resources.catalog.find_provider(api, model, address=address, fields=fields)
    call = resources.telemetry.start_call(
        api=api, model=model, provider=provider.name, address=address, session=runtime.key
    )
    spans = runtime.spans = resources.telemetry.start_session_spans(call)
    try:
        yield
    except BaseException as error:
        # A caller that has all of the answer may close the run before it has ended.
        if not spans.has_answer:
            call.set_error(_get_error_kind(error))
        raise
    finally:
        runtime.spans = None
        runtime.recorded_content = spans.recorded_content or runtime.recorded_content
        spans.end()


def trace_attempt(
    runtime: SessionRuntime,
    upstream_request: UpstreamRequest,
    plan: Plan,
    sized_messages: Sequence[SizedMessage],
    template: RequestTemplate,
) -> UpstreamRequest:
    """Note what the run sends, and return ``upstream_request`` with headers that let its server continue the trace.

    The request shows ``sized_messages``, in what ``template`` has around them.
    """
    spans = runtime.spans
    if spans is None or spans.call is None:
        return upstream_request
    spans.note_plan(plan)
    fields = template.fields if template.parsed_body is None else template.parsed_body.fields
    spans.note_content(sized_messages, fields, runtime.recorded_content)
    if upstream_request.stream:
        spans.note_streaming()
    return replace(upstream_request, headers={**upstream_request.headers, **spans.call.make_headers()})


def _get_error_kind(error: BaseException) -> str:
    """Return what kind of error ended a run, without its text, which may quote the conversation."""
    if isinstance(error, UpstreamError):
        return error.kind
    if isinstance(error, CancelledError | GeneratorExit):
        return CANCELLED_KIND
    return type(error).__name__
