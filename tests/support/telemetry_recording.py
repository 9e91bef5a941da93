"""What telemetry records, kept in memory by OpenTelemetry's own SDK.

Import it after ``pytest.importorskip("opentelemetry.sdk")``.
"""

from __future__ import annotations

from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import Sampler

from holdfast.telemetry.telemetry import Telemetry


class Recording:
    """A telemetry whose spans and metrics can be read back."""

    def __init__(self, *, records_content: bool = False, sampler: Sampler | None = None) -> None:
        """With ``records_content`` the spans have the words; ``sampler`` says which are recorded, by default all."""
        self._exporter = InMemorySpanExporter()
        self._reader = InMemoryMetricReader()
        self.tracer_provider = TracerProvider(sampler)
        self.tracer_provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.telemetry = Telemetry(self.tracer_provider, MeterProvider([self._reader]), records_content=records_content)

    @property
    def spans(self) -> tuple[ReadableSpan, ...]:
        """All spans that have ended, in the order of their ends."""
        return self._exporter.get_finished_spans()

    def find_spans(self, name: str) -> list[ReadableSpan]:
        """Return the spans called ``name``."""
        return [span for span in self.spans if span.name == name]

    def find_span(self, name: str) -> ReadableSpan:
        """Return the only span called ``name``."""
        [span] = self.find_spans(name)
        return span

    def read_metrics(self) -> dict[str, list[Any]]:
        """Return the data points of each metric, by name."""
        data = self._reader.get_metrics_data()
        points: dict[str, list[Any]] = {}
        if data is None:
            return points
        for resource_metrics in data.resource_metrics:
            for scope_metrics in resource_metrics.scope_metrics:
                for metric in scope_metrics.metrics:
                    points[metric.name] = list(metric.data.data_points)
        return points

    def sum_counter(self, name: str, attributes: dict[str, str] | None = None) -> int:
        """Return the sum of a counter over the data points that have ``attributes``; 0 for one that never counted."""
        wanted = attributes or {}
        points = [
            point for point in self.read_metrics().get(name, ()) if wanted.items() <= dict(point.attributes).items()
        ]
        return sum(point.value for point in points)

    def list_texts(self) -> list[str]:
        """Return every text that was recorded anywhere."""
        texts: list[str] = []
        attribute_sets: list[Any] = []
        for span in self.spans:
            texts += [span.name, span.status.description or "", *[event.name for event in span.events]]
            attribute_sets += [span.attributes, *[event.attributes for event in span.events]]
        for points in self.read_metrics().values():
            attribute_sets += [point.attributes for point in points]
        for attributes in attribute_sets:
            texts += [str(value) for pair in attributes.items() for value in pair]
        return texts
