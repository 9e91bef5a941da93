"""The metrics: those of the conventions about requests to models, and ours about what was done to make them fit."""

from __future__ import annotations

from collections.abc import Mapping

from opentelemetry.metrics import Meter

from holdfast import events
from holdfast.events import Event
from holdfast.providers.errors.report import OVERFLOW_KINDS
from holdfast.telemetry import conventions as names
from holdfast.telemetry.safe_spans import AttributeValue

# A client names the model, and may name another one with every request; a backend keeps each series for ever. The
# number is the default limit of OpenTelemetry's specification, which its SDK for Python does not have yet.
MAX_SERIES = 2_000
"""Combinations of attributes that the metrics of requests tell apart."""
_OVERFLOW_ATTRIBUTE = "otel.metric.overflow"
"""The specification's attribute of the one series that has all requests beyond the limit."""


class Instruments:
    """The instruments of all metrics."""

    def __init__(self, meter: Meter) -> None:
        self._known_series: set[frozenset[tuple[str, AttributeValue]]] = set()
        self.duration = meter.create_histogram(
            "gen_ai.client.inference.duration",
            "s",
            "GenAI client inference operation duration.",
            explicit_bucket_boundaries_advisory=names.DURATION_BUCKETS,
        )
        self.time_to_first_chunk = meter.create_histogram(
            "gen_ai.client.inference.time_to_first_chunk",
            "s",
            "Time from sending a request to the first chunk of its streamed answer.",
            explicit_bucket_boundaries_advisory=names.DURATION_BUCKETS,
        )
        self.input_tokens, self.output_tokens = (
            meter.create_histogram(
                f"gen_ai.client.inference.operation.{kind}_tokens",
                "{token}",
                f"Number of {kind} tokens used per inference operation.",
                explicit_bucket_boundaries_advisory=names.TOKEN_BUCKETS,
            )
            for kind in ("input", "output")
        )
        self.usage = {
            kind: meter.create_counter(f"gen_ai.client.inference.usage.{kind}", "{token}", description)
            for kind, description in (
                ("input_tokens", "Number of input tokens used, including cached tokens."),
                ("output_tokens", "Number of output tokens used, including reasoning tokens."),
                ("cache_read.input_tokens", "Number of input tokens that were read from the provider's cache."),
                ("cache_write.input_tokens", "Number of input tokens that were written to the provider's cache."),
                ("reasoning.output_tokens", "Number of output tokens used for reasoning."),
            )
        }
        self.compactions = meter.create_counter("holdfast.compactions", "{compaction}", "Compactions, by outcome.")
        self.edits = meter.create_counter("holdfast.edits", "{edit}", "Parts of older messages replaced, by rule.")
        self.tokens_saved = meter.create_counter(
            "holdfast.tokens_saved", "{token}", "Tokens removed by reductions, each counted when it was decided."
        )
        self.overflows_refused = meter.create_counter(
            "holdfast.overflows.refused", "{request}", "Requests that a provider refused as too large."
        )
        self.overflows_avoided = meter.create_counter(
            "holdfast.overflows.avoided",
            "{request}",
            "Requests answered although they had been refused as too large, or would have been without a compaction.",
        )
        self.cache_misses = meter.create_counter(
            "holdfast.cache_misses", "{request}", "Requests that read less from the cache than they could, by cause."
        )
        self.missed_tokens = meter.create_counter(
            "holdfast.cache_missed_tokens", "{token}", "Tokens that these requests had processed again, by cause."
        )

    def limit_attributes(self, attributes: Mapping[str, AttributeValue]) -> dict[str, AttributeValue]:
        """Return ``attributes`` of a request, or those of the one series for all beyond ``MAX_SERIES``."""
        series = frozenset(attributes.items())
        if series not in self._known_series:
            if len(self._known_series) >= MAX_SERIES:
                return {_OVERFLOW_ATTRIBUTE: True}
            self._known_series.add(series)
        return dict(attributes)

    def count_event(self, event: Event) -> None:
        """Count ``event``."""
        match event:
            case events.CompactionEnded():
                attributes = {names.COMPACTION_OUTCOME: event.outcome, names.COMPACTION_AUTHOR: event.author}
                self.compactions.add(1, attributes)
                if event.outcome == "compacted":
                    self.tokens_saved.add(max(0, event.tokens_before - event.tokens_after))
            case events.EditsDecided():
                self.edits.add(event.edit_count, {names.EDIT_RULE: event.rule})
                self.tokens_saved.add(max(0, event.saves))
            case events.RequestRefused(kind=kind) if kind in OVERFLOW_KINDS:
                self.overflows_refused.add(1)
            case events.CacheMissed():
                self.cache_misses.add(1, {names.CACHE_MISS_CAUSE: event.cause})
                self.missed_tokens.add(event.missed_tokens, {names.CACHE_MISS_CAUSE: event.cause})
