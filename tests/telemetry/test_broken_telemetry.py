"""Telemetry that breaks, hangs or is attacked changes no request."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time

import anyio
import pytest

pytest.importorskip("opentelemetry.sdk", reason="OpenTelemetry's SDK is not installed (pip install 'holdfast[otel]')")

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, Sampler
from telemetry_recording import Recording

from holdfast.engine.engine import Engine
from holdfast.store.memory import MemoryStore
from holdfast.telemetry import instruments
from holdfast.telemetry.exporters import FLUSH_SECONDS
from holdfast.telemetry.safe_spans import MAX_NAME_CHARS
from holdfast.telemetry.switch import MIN_VERSION, export_telemetry
from holdfast.telemetry.telemetry import Telemetry
from holdfast.testing.provider import Provider, ProviderSettings
from holdfast.testing.upstream import ProviderUpstream

MODEL = "claude-opus-5-5"
SPAN = f"chat {MODEL}"
OPTIONS = {"api": "anthropic", "model": MODEL, "fields": {"max_tokens": 9}}


def make_upstream():
    """Return the strict provider."""
    return ProviderUpstream(Provider(ProviderSettings()))


def ask_in_sessions(telemetry, keys):
    """Ask a question in each of the sessions ``keys``, all at the same time, and return the upstream."""
    upstream = make_upstream()

    async def run_scenario():
        async with Engine.open(MemoryStore(), upstream=upstream, **OPTIONS) as engine:
            engine.resources.telemetry = telemetry

            async def ask(key):
                await (await engine.session(key)).ask("Hello")

            async with anyio.create_task_group() as tasks:
                for key in keys:
                    tasks.start_soon(ask, key)

    anyio.run(run_scenario)
    return upstream


def run_program(program, home):
    """Run ``program`` in a process of its own, and return the lines that it printed."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(home)}
    command = [sys.executable, "-W", "ignore", "-c", program]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, env=environment, timeout=60)
    return ended.stdout.splitlines()


class BrokenSampler(Sampler):
    """Raises for every span."""

    def should_sample(self, *_, **__):
        raise RuntimeError("kelp")

    def get_description(self):
        return "broken"


class BrokenAtStart(SpanProcessor):
    """Raises when a span starts."""

    def on_start(self, *_, **__):
        raise RuntimeError("kelp")


class BrokenAtEnd(SpanProcessor):
    """Raises when a span ends."""

    def on_end(self, span):
        raise RuntimeError("kelp")


class BrokenExporter(SpanExporter):
    """Raises for every export."""

    def export(self, spans):
        raise RuntimeError("kelp")


@pytest.mark.parametrize(
    ("sampler", "processor"),
    [
        (BrokenSampler(), None),
        (None, BrokenAtStart()),
        (None, BrokenAtEnd()),
        (None, SimpleSpanProcessor(BrokenExporter())),
        (ALWAYS_OFF, None),
    ],
)
def test_sdk_that_raises_or_drops_fails_no_request(sampler, processor):
    """Whatever a sampler, a processor or an exporter of the program does, the answer comes, planned or served."""
    provider = TracerProvider(sampler=sampler)
    if processor is not None:
        provider.add_span_processor(processor)
    telemetry = Telemetry(provider, MeterProvider())
    assert len(ask_in_sessions(telemetry, ["kelp"]).sent) == 1
    with telemetry.trace_planning("kelp", MODEL), telemetry.trace_served_request("POST", "/v1/messages", {}) as served:
        served.note_response(200, "managed")


def test_dropped_span_still_counts_in_metrics():
    """A sampler decides over spans alone: the metrics are of all requests."""
    recording = Recording(sampler=ALWAYS_OFF)
    ask_in_sessions(recording.telemetry, ["one", "two"])
    assert recording.spans == ()
    [duration] = recording.read_metrics()["gen_ai.client.inference.duration"]
    assert duration.count == 2


def test_sessions_have_no_series_of_their_own(recording):
    """Fifty sessions at the same time have fifty spans with their keys, and one series in each metric."""
    keys = [f"session {number}" for number in range(50)]
    ask_in_sessions(recording.telemetry, keys)
    assert sorted(span.attributes["gen_ai.conversation.id"] for span in recording.find_spans(SPAN)) == sorted(keys)
    metrics = recording.read_metrics()
    assert {name: len(points) for name, points in metrics.items()} == dict.fromkeys(metrics, 1)
    assert not [key for points in metrics.values() for key in keys if key in str(points)]


def test_models_that_clients_make_up_have_one_series_together(recording, monkeypatch):
    """Beyond the limit all further models share the series that OpenTelemetry's specification has for it."""
    monkeypatch.setattr(instruments, "MAX_SERIES", 3)
    for number in range(9):
        model = f"model {number % 6}"
        recording.telemetry.start_call(api="anthropic", model=model, provider="", address="http://up.example").end()
    points = recording.read_metrics()["gen_ai.client.inference.duration"]
    counts = {point.attributes.get("gen_ai.request.model"): point.count for point in points}
    assert counts == {"model 0": 2, "model 1": 2, "model 2": 2, None: 3}
    assert [dict(point.attributes) for point in points if point.count == 3] == [{"otel.metric.overflow": True}]


def test_names_that_others_chose_can_be_exported(recording):
    """A name of a megabyte, or with half a character, loses no batch of spans: it is cut and mended."""
    recording.telemetry.start_call(
        api="anthropic", model="kelp \ud83d" * 100_000, provider="", address="http://up.example", session="\ud83d"
    ).end()
    [span] = recording.spans
    assert encode_spans([span]).SerializeToString()
    assert len(span.attributes["gen_ai.request.model"]) == MAX_NAME_CHARS


THREAD_PROGRAM = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from holdfast.store.memory import MemoryStore
from holdfast.sync import open_engine
from holdfast.testing.provider import Provider, ProviderSettings
from holdfast.testing.upstream import ProviderUpstream

exporter, provider = InMemorySpanExporter(), TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)
upstream = ProviderUpstream(Provider(ProviderSettings()))
options = {"api": "anthropic", "model": "claude-opus-5-5", "fields": {"max_tokens": 9}, "telemetry": True}
with open_engine(MemoryStore(), upstream=upstream, **options) as engine:
    session = engine.session("kelp")
    with trace.get_tracer("theirs").start_as_current_span("theirs") as theirs:
        session.ask("Hello")
        with session.run("More") as run:
            list(run)
spans = [span for span in exporter.get_finished_spans() if span.name != "theirs"]
print([span.parent.span_id == theirs.context.span_id for span in spans])
"""


def test_engine_without_an_event_loop_continues_the_trace_of_its_caller(tmp_path):
    """``holdfast.sync`` runs the engine in a thread of its own; its spans are still below the caller's."""
    assert run_program(THREAD_PROGRAM, tmp_path) == ["[True, True]"]


def test_sdk_that_is_switched_off_records_nothing(monkeypatch):
    """``OTEL_SDK_DISABLED`` is no error, and nothing is sent."""
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    problems = []
    with export_telemetry(wanted=True, report_problem=problems.append) as telemetry:
        upstream = ask_in_sessions(telemetry, ["kelp"])
    assert (len(upstream.sent), problems) == (1, [])


def test_collector_that_hangs_is_told_and_holds_up_no_request(monkeypatch):
    """A collector that takes connections and never answers delays no request; the end waits for ``FLUSH_SECONDS`` and
    says that something is lost.
    """
    with socket.create_server(("127.0.0.1", 0)) as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{collector.getsockname()[1]}")
        problems = []
        with export_telemetry(wanted=True, report_problem=problems.append) as telemetry:
            started_at = time.monotonic()
            ask_in_sessions(telemetry, [f"session {number}" for number in range(20)])
            asked_at = time.monotonic()
        ended_at = time.monotonic()
    assert asked_at - started_at < FLUSH_SECONDS
    assert FLUSH_SECONDS - 1 < ended_at - asked_at < FLUSH_SECONDS + 2
    [problem] = problems
    assert "within 5 seconds of the end is lost" in problem


def test_old_version_is_named_with_the_command_that_helps(tmp_path):
    """An OpenTelemetry from before the extra's lower bound is a clear error, not a ``TypeError`` of one call."""
    metadata = tmp_path / "opentelemetry_api-1.25.0.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: opentelemetry-api\nVersion: 1.25.0\n", "utf-8")
    program = "from holdfast.telemetry.switch import load_telemetry; load_telemetry(wanted=True)"
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": str(tmp_path)}
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, env=environment, timeout=60
    )
    oldest = ".".join(map(str, MIN_VERSION))
    assert f"opentelemetry-api 1.25.0 is too old: Holdfast needs {oldest} or newer" in ended.stderr
    assert "pip install --upgrade 'holdfast[otel]'" in ended.stderr


FORK_PROGRAM = """
import os
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

import anyio
from holdfast.engine.engine import Engine
from holdfast.store.memory import MemoryStore
from holdfast.telemetry.telemetry import Telemetry
from holdfast.testing.provider import Provider, ProviderSettings
from holdfast.testing.upstream import ProviderUpstream


class Printer(SpanExporter):
    def export(self, spans):
        for span in spans:
            os.write(1, f"{span.attributes['gen_ai.conversation.id']} {os.getpid() == parent}\\n".encode())
        return SpanExportResult.SUCCESS


parent = os.getpid()
provider = TracerProvider()
provider.add_span_processor(BatchSpanProcessor(Printer()))
telemetry = Telemetry(provider, MeterProvider())


async def ask(key):
    upstream = ProviderUpstream(Provider(ProviderSettings()))
    options = {"api": "anthropic", "model": "claude-opus-5-5", "fields": {"max_tokens": 9}}
    async with Engine.open(MemoryStore(), upstream=upstream, **options) as engine:
        engine.resources.telemetry = telemetry
        await (await engine.session(key)).ask("Hello")


anyio.run(ask, "before")
provider.force_flush()
child = os.fork()
anyio.run(ask, "child" if not child else "parent")
provider.force_flush()
if not child:
    os._exit(0)
os.waitpid(child, 0)
"""


def test_forked_process_exports_its_own_spans(tmp_path):
    """After a fork both processes go on exporting, each what it asked itself and nothing twice."""
    assert sorted(run_program(FORK_PROGRAM, tmp_path)) == ["before True", "child False", "parent True"]
