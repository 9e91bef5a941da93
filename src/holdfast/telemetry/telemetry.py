"""Records spans and metrics through OpenTelemetry's API; where they go is for whoever set up its SDK.

Names, kinds and numbers are recorded, and the words of requests and answers only where somebody asked for them. The
text of an error is never recorded: it may quote a conversation without a mask.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http import HTTPMethod
from importlib.metadata import PackageNotFoundError, version
from time import time_ns

from opentelemetry import context, metrics, trace
from opentelemetry.context import Context
from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import Span, SpanKind, Tracer, TracerProvider

from holdfast import events
from holdfast.events import Event
from holdfast.state.plan import Plan
from holdfast.telemetry import conventions as names
from holdfast.telemetry.instruments import Instruments
from holdfast.telemetry.model_call import PROPAGATOR, ModelCall, mark_failed
from holdfast.telemetry.safe_spans import AttributeValue, clean_name, end_span, start_span
from holdfast.telemetry.session_spans import SessionSpans, describe_event

_SCOPE = "holdfast"
"""The name under which all that is recorded here is known."""

FIRST_SERVER_ERROR = 500
"""The first status for which the span of a served request counts as failed; the client is at fault for those below."""


class ServedRequest:
    """The span of a request that a client sent to us."""

    def __init__(self, span: Span) -> None:
        self._span = span

    def note_response(self, status: int, state: str) -> None:
        """Note the status that the client was sent, 0 for none, and what was done with its request."""
        self._span.set_attribute(names.STATE, state)
        if status:
            self._span.set_attribute(names.HTTP_STATUS, status)
        if status >= FIRST_SERVER_ERROR:
            mark_failed(self._span, str(status))


class Telemetry:
    """Records what happens; by default with the providers that the program has set for its process."""

    def __init__(
        self,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        *,
        records_content: bool = False,
    ) -> None:
        """With ``records_content`` the spans of requests have the words that are new in them, and those of answers."""
        self.records_content = records_content
        own_version = _find_own_version()
        self.tracer: Tracer = trace.get_tracer(_SCOPE, own_version, tracer_provider)
        self.meters = Instruments(metrics.get_meter(_SCOPE, own_version, meter_provider))

    # -- requests to a model -------------------------------------------------------------------------------------------

    def start_call(
        self,
        *,
        api: str,
        model: str,
        provider: str,
        address: str,
        session: str = "",
        is_streaming: bool = False,
        parent: Context | None = None,
    ) -> ModelCall:
        """Start the span of a request to ``model``; ``parent`` is by default the current context.

        ``address`` is the URL that the request goes to. The caller ends the span.
        """
        operation = names.get_operation_name(api)
        attributes: dict[str, AttributeValue] = {
            names.OPERATION_NAME: operation,
            names.PROVIDER_NAME: names.get_provider_name(api, provider),
            **names.describe_server(address),
        }
        if model:
            model = clean_name(model)
            attributes[names.REQUEST_MODEL] = model
        metric_attributes = dict(attributes)
        if session:
            attributes[names.CONVERSATION_ID] = clean_name(session)
        if is_streaming:
            attributes[names.REQUEST_STREAM] = True
        started_at = time_ns()
        name = f"{operation} {model}".rstrip()
        span = start_span(self.tracer, name, parent, SpanKind.CLIENT, attributes, started_at)
        return ModelCall(self.meters, span, parent, metric_attributes, started_at, records_content=self.records_content)

    def start_session_spans(self, call: ModelCall | None = None) -> SessionSpans:
        """Start to put the events of a session into spans: below ``call``, or below the current span."""
        if call is None:
            return SessionSpans(self, context.get_current())
        return SessionSpans(self, call.context, call.span, call)

    # -- events --------------------------------------------------------------------------------------------------------

    def note_event(self, event: Event, spans: SessionSpans | None = None) -> None:
        """Count ``event``, and put it into ``spans``, or else on the current span."""
        self.meters.count_event(event)
        if spans is not None:
            spans.add_event(event)
            return
        current_span = trace.get_current_span()
        # Work that outlives its request still has that as its current span, which has ended.
        if current_span.is_recording():
            name, attributes = describe_event(event)
            current_span.add_event(name, attributes)

    def note_decisions(self, session: str, plan: Plan, spans: SessionSpans | None = None) -> None:
        """Note what ``plan`` decides anew, each rule apart."""
        saves_by_rule: dict[str, list[int]] = {}
        for edit in plan.record:
            saves_by_rule.setdefault(edit.rule, []).append(edit.saves)
        for rule, saves in saves_by_rule.items():
            self.note_event(events.EditsDecided(session, rule, len(saves), sum(saves)), spans)
        if plan.compaction is not None:
            compacted = events.CompactionEnded(session, tokens_before=plan.before, tokens_after=plan.after)
            self.note_event(compacted, spans)

    # -- work around a request -----------------------------------------------------------------------------------------

    @contextmanager
    def trace_planning(self, session: str, model: str) -> Iterator[SessionSpans]:
        """Make a span of the block the current one: what an agent's framework sends next is decided in it."""
        attributes: dict[str, AttributeValue] = {names.CONVERSATION_ID: clean_name(session)}
        if model:
            attributes[names.REQUEST_MODEL] = clean_name(model)
        with self._start_current_span("holdfast.plan", SpanKind.INTERNAL, attributes) as span:
            spans = SessionSpans(self, context.get_current(), span)
            try:
                yield spans
            finally:
                spans.end()

    @contextmanager
    def trace_served_request(self, method: str, route: str, headers: Mapping[str, str]) -> Iterator[ServedRequest]:
        """Make a span of the block the current one: a request that a client sent to us, in the client's own trace.

        ``route`` is the path of an endpoint without anything that belongs to one request, or empty.
        """
        # A client may make up any word.
        known_method = method if method in set(HTTPMethod) else "_OTHER"
        attributes: dict[str, AttributeValue] = {names.HTTP_METHOD: known_method}
        if route:
            attributes[names.HTTP_ROUTE] = route
        client_context = PROPAGATOR.extract(headers)
        name = f"{known_method} {route}".rstrip()
        with self._start_current_span(name, SpanKind.SERVER, attributes, client_context) as span:
            yield ServedRequest(span)

    @contextmanager
    def _start_current_span(
        self,
        name: str,
        kind: SpanKind,
        attributes: Mapping[str, AttributeValue],
        parent: Context | None = None,
    ) -> Iterator[Span]:
        """Make a span of the block the current one; of an error only the class is recorded, its text may quote."""
        span = start_span(self.tracer, name, parent, kind, attributes)
        try:
            with trace.use_span(span, record_exception=False, set_status_on_exception=False):
                yield span
        except BaseException as error:
            mark_failed(span, type(error).__name__)
            raise
        finally:
            end_span(span)


def _find_own_version() -> str:
    """Return our version, or an empty string if the package is on the path without being installed."""
    try:
        return version(_SCOPE)
    except PackageNotFoundError:
        return ""
