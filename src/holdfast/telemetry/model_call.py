"""The span of one request to a model, with the metrics that the conventions want of it."""

from __future__ import annotations

from time import time_ns
from typing import TYPE_CHECKING

from opentelemetry.context import Context
from opentelemetry.trace import Span, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from holdfast.providers.answers.parsed_answer import ParsedAnswer
from holdfast.state.entries import Usage
from holdfast.telemetry import conventions as names
from holdfast.telemetry.content import describe_output
from holdfast.telemetry.safe_spans import AttributeValue, clean_name, end_span

if TYPE_CHECKING:
    from holdfast.telemetry.instruments import Instruments

PROPAGATOR = TraceContextTextMapPropagator()
"""Of the W3C's headers for traces alone: baggage may have the user's data, which a provider must not get."""
_NANOSECONDS = 1e9
_NO_FINISH_REASON = "error"
"""The conventions' word for a generation that ended before its reason came: it failed, or was cut off or cancelled."""


class ModelCall:
    """The span of a request to a model, with all that it takes to get the answer. ``end`` it once."""

    def __init__(
        self,
        instruments: Instruments,
        span: Span,
        parent: Context | None,
        metric_attributes: dict[str, AttributeValue],
        started_at: int,
        *,
        records_content: bool = False,
    ) -> None:
        """``started_at`` is in nanoseconds since 1970; ``metric_attributes`` are those that all metrics get."""
        self.span = span
        # A span that the sampler dropped costs nothing.
        self.records_content = records_content and span.is_recording()
        self.context = set_span_in_context(span, parent)
        self._instruments = instruments
        self._metric_attributes = metric_attributes
        self._started_at = started_at
        self._usage = Usage()
        self._error_kind = ""
        self._first_chunk_seconds: float | None = None
        self._has_answer = False

    def make_headers(self) -> dict[str, str]:
        """Return the headers that make the server's spans children of this one; none if nobody records it."""
        headers: dict[str, str] = {}
        PROPAGATOR.inject(headers, self.context)
        return headers

    def note_first_chunk(self) -> None:
        """Note when the first piece of a streamed answer came; later pieces change nothing."""
        if self._first_chunk_seconds is None:
            self._first_chunk_seconds = (time_ns() - self._started_at) / _NANOSECONDS
            self.span.set_attribute(names.TIME_TO_FIRST_CHUNK, self._first_chunk_seconds)

    def set_answer(self, answer: ParsedAnswer) -> None:
        """Note who answered, why the model stopped, and the tokens as the provider counted them."""
        self._has_answer = True
        if answer.model:
            model = clean_name(answer.model)
            self.span.set_attribute(names.RESPONSE_MODEL, model)
            self._metric_attributes[names.RESPONSE_MODEL] = model
        if answer.id:
            self.span.set_attribute(names.RESPONSE_ID, clean_name(answer.id))
        finish_reason = clean_name(answer.native_stop_reason or answer.stop_reason)
        self.span.set_attribute(names.FINISH_REASONS, [finish_reason])
        if self.records_content:
            self.span.set_attributes(describe_output(answer.message, finish_reason))
        usage = answer.billed_usage or answer.usage
        if usage is None:
            return
        self._usage = usage
        self.span.set_attribute(names.INPUT_TOKENS, usage.input)
        self.span.set_attribute(names.OUTPUT_TOKENS, usage.output)
        details = {
            names.CACHE_READ_TOKENS: usage.cache_read,
            names.CACHE_WRITE_TOKENS: usage.cache_write,
            names.REASONING_TOKENS: usage.reasoning,
        }
        for name, tokens in details.items():
            if tokens:
                self.span.set_attribute(name, tokens)

    def set_error(self, kind: str) -> None:
        """Note the kind of the error that the request ended in."""
        self._error_kind = kind

    def end(self) -> None:
        """End the span, and record its duration and tokens in the metrics."""
        ended_at = time_ns()
        instruments, usage = self._instruments, self._usage
        attributes = instruments.limit_attributes(self._metric_attributes)
        counted = {**attributes, names.TOKEN_MODALITY: names.COUNTED_MODALITY}
        # The first two also for a request without an answer, as the conventions want it.
        instruments.usage["input_tokens"].add(usage.input, counted, self.context)
        instruments.usage["output_tokens"].add(usage.output, counted, self.context)
        details = {
            "cache_read.input_tokens": usage.cache_read,
            "cache_write.input_tokens": usage.cache_write,
            "reasoning.output_tokens": usage.reasoning,
        }
        for name, tokens in details.items():
            if tokens:
                instruments.usage[name].add(tokens, counted, self.context)
        if self._first_chunk_seconds is not None:
            instruments.time_to_first_chunk.record(self._first_chunk_seconds, attributes, self.context)
        if self._error_kind:
            mark_failed(self.span, self._error_kind)
            if not self._has_answer:
                self.span.set_attribute(names.FINISH_REASONS, [_NO_FINISH_REASON])
            attributes[names.ERROR_TYPE] = self._error_kind
        instruments.input_tokens.record(usage.input, attributes, self.context)
        instruments.output_tokens.record(usage.output, attributes, self.context)
        instruments.duration.record((ended_at - self._started_at) / _NANOSECONDS, attributes, self.context)
        end_span(self.span, ended_at)


def mark_failed(span: Span, kind: str) -> None:
    """Say that what ``span`` is about failed, by the kind of the error alone: its text may quote a conversation."""
    span.set_attribute(names.ERROR_TYPE, kind)
    span.set_status(Status(StatusCode.ERROR))
