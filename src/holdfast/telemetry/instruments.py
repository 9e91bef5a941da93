"""The metrics: those of the conventions about requests to models, and ours about what was done to make them fit."""

from __future__ import annotations

from opentelemetry.metrics import Meter

from holdfast import events
from holdfast.events import Event
from holdfast.providers.errors.report import OVERFLOW_KINDS
from holdfast.telemetry import conventions as names


class Instruments:
    """The instruments of all metrics."""

    def __init__(self, meter: Meter) -> None:
        self.duration = meter.create_histogram(
            "gen_ai.client.inference.duration",
            "s",
            "GenAI client inference operation duration.",
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
