"""OpenTelemetry's SDK for a process of our own (``holdfast serve``, ``holdfast run``), set up by standard variables.

A program that uses Holdfast sets up the SDK itself, and this module is not imported there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from threading import Thread
from time import monotonic

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from holdfast.errors import ConfigError
from holdfast.telemetry.telemetry import Telemetry

_EXPORTER_VARIABLES = ("OTEL_TRACES_EXPORTER", "OTEL_METRICS_EXPORTER")
_PROTOCOL_VARIABLES = (
    "OTEL_EXPORTER_OTLP_PROTOCOL",
    "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
    "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL",
)
_NO_EXPORTER = "none"
# A collector that answers takes well under a second, and nobody wants to wait for one that is gone. Chosen by
# judgement.
FLUSH_SECONDS = 5.0
"""Seconds that sending what is left may take at the end."""
DEFAULT_SERVICE_NAME = "holdfast"
"""The service that spans and metrics are of, unless a variable names another."""


class _FirstProblem(logging.Handler):
    """Reports the first warning of the SDK; the same again with every export would fill a log."""

    def __init__(self, report_problem: Callable[[str], object]) -> None:
        super().__init__(logging.WARNING)
        self._report_problem: Callable[[str], object] | None = report_problem

    def emit(self, record: logging.LogRecord) -> None:
        """Report ``record`` if it is the first one."""
        self.report_first(f"OpenTelemetry says: {record.getMessage()}")

    def report_first(self, problem: str) -> None:
        """Report ``problem`` if it is the first one."""
        report_problem, self._report_problem = self._report_problem, None
        if report_problem is not None:
            report_problem(f"spans and metrics may be missing; {problem}")


@contextmanager
def open_exporters(
    environment: Mapping[str, str], report_problem: Callable[[str], object], *, records_content: bool = False
) -> Iterator[Telemetry]:
    """Yield what records spans and metrics, which go to the address in ``OTEL_EXPORTER_OTLP_ENDPOINT`` over HTTP.

    At the end of the block what is left is sent, for at most ``FLUSH_SECONDS``. ``report_problem`` is called once with
    what goes wrong, from any thread. If somebody has set up the SDK of this process, as
    ``opentelemetry-instrument`` does, that one is used. Raises ``ConfigError`` if a variable asks for an exporter or a
    protocol that we do not have.
    """
    if not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        yield Telemetry(records_content=records_content)
        return
    _check_variables(environment)
    resource = _make_resource()
    tracer_provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    if environment.get("OTEL_TRACES_EXPORTER") != _NO_EXPORTER:
        tracer_provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    readers = []
    if environment.get("OTEL_METRICS_EXPORTER") != _NO_EXPORTER:
        readers.append(PeriodicExportingMetricReader(OTLPMetricExporter()))
    meter_provider = MeterProvider(readers, resource, shutdown_on_exit=False)
    logger, handler = logging.getLogger("opentelemetry"), _FirstProblem(report_problem)
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield Telemetry(tracer_provider, meter_provider, records_content=records_content)
    finally:
        if not _call_within(FLUSH_SECONDS, tracer_provider.shutdown, meter_provider.shutdown):
            handler.report_first(f"what was not sent within {FLUSH_SECONDS:.0f} seconds of the end is lost")
        logger.propagate = True
        logger.removeHandler(handler)


def _call_within(seconds: float, *calls: Callable[[], object]) -> bool:
    """Make ``calls`` at the same time, and return when all have ended or ``seconds`` have passed: whether all ended.

    What takes longer ends with the process.
    """
    deadline = monotonic() + seconds
    threads = [Thread(target=call, daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - monotonic()))
    return not any(thread.is_alive() for thread in threads)


def _make_resource() -> Resource:
    """Return what the variables say of this process, with our name for the service if they give none."""
    resource = Resource.create()
    if str(resource.attributes.get(SERVICE_NAME, "")).startswith("unknown_service"):
        return resource.merge(Resource({SERVICE_NAME: DEFAULT_SERVICE_NAME}))
    return resource


def _check_variables(environment: Mapping[str, str]) -> None:
    for names, allowed_values in (
        (_EXPORTER_VARIABLES, ("otlp", _NO_EXPORTER)),
        (_PROTOCOL_VARIABLES, ("http/protobuf",)),
    ):
        for name in names:
            value = environment.get(name, "")
            if value and value not in allowed_values:
                raise ConfigError(
                    f"{name}={value}: Holdfast exports by {' or '.join(allowed_values)} alone; unset the variable, or "
                    "start it by opentelemetry-instrument, whose exporters it then uses"
                )
