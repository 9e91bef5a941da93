"""What leaves the process of ``holdfast serve`` and ``holdfast run``, by the standard variables."""

from __future__ import annotations

import gzip
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.request import Request, urlopen

import msgspec
import pytest

pytest.importorskip("opentelemetry.sdk", reason="OpenTelemetry's SDK is not installed (pip install 'holdfast[otel]')")

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from holdfast.errors import ConfigError
from holdfast.telemetry.exporters import FLUSH_SECONDS
from holdfast.telemetry.switch import export_telemetry
from holdfast.testing.provider import Provider, ProviderSettings
from holdfast.testing.provider.server.local_server import serve_provider


class _Collector(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        self.server.received.append((self.path, body))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


@contextmanager
def serve_collector():
    """Yield the address of a collector, and the list of what it gets: paths and bodies."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Collector)
    server.received = []
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", server.received
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


CLIENT = """
import os
from urllib.request import Request, urlopen

body = b'{"model": "claude-opus-5-5", "max_tokens": 9, "messages": [{"role": "user", "content": "Hello"}]}'
headers = {"content-type": "application/json", "x-api-key": "kelp"}
urlopen(Request(os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages", body, headers)).close()
raise SystemExit(7)
"""


def read_spans(received):
    """Return all spans, each with the attributes of its process."""
    spans = []
    for path, body in received:
        if path == "/v1/traces":
            for resource_spans in ExportTraceServiceRequest.FromString(body).resource_spans:
                resource = {pair.key: pair.value.string_value for pair in resource_spans.resource.attributes}
                spans += [(span, resource) for scope in resource_spans.scope_spans for span in scope.spans]
    return spans


def read_metric_names(received):
    """Return the names of all metrics."""
    names = set()
    for path, body in received:
        if path == "/v1/metrics":
            for resource_metrics in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                names |= {metric.name for scope in resource_metrics.scope_metrics for metric in scope.metrics}
    return names


def test_serve_exports_to_the_address_of_the_standard_variable(tmp_path):
    """``holdfast serve --telemetry`` sends spans and metrics over HTTP, all of them before it ends."""
    with serve_collector() as (collector, received), serve_provider(Provider(ProviderSettings())) as provider:
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "OTEL_EXPORTER_OTLP_ENDPOINT": collector,
            "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=kelp",
        }
        options = ["--port", "0", "--json", "--store", str(tmp_path / "s.db"), "--upstream-anthropic", provider]
        process = subprocess.Popen(
            [sys.executable, "-m", "holdfast", "serve", "--telemetry", *options],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            url = msgspec.json.decode(process.stdout.readline())["url"]
            body = {"model": "claude-opus-5-5", "max_tokens": 9, "messages": [{"role": "user", "content": "Hello"}]}
            headers = {"content-type": "application/json", "x-api-key": "kelp"}
            urlopen(Request(f"{url}/v1/messages", msgspec.json.encode(body), headers)).close()
        finally:
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    spans = read_spans(received)
    assert {span.name for span, _ in spans} == {"POST /v1/messages", "chat claude-opus-5-5"}
    for _, resource in spans:
        assert (resource["service.name"], resource["deployment.environment.name"]) == ("holdfast", "kelp")
    assert "gen_ai.client.inference.duration" in read_metric_names(received)


def test_run_exports_before_it_ends(tmp_path):
    """``holdfast run`` sends what its client's requests left, and the client's exit code stays."""
    with serve_collector() as (collector, received), serve_provider(Provider(ProviderSettings())) as provider:
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "OTEL_EXPORTER_OTLP_ENDPOINT": collector,
            "OTEL_SERVICE_NAME": "my-agent",
            "HOLDFAST_TELEMETRY": "1",
        }
        options = ["--store", str(tmp_path / "s.db"), "--upstream-anthropic", provider]
        command = [sys.executable, "-m", "holdfast", "run", *options, "--", sys.executable, "-c", CLIENT]
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 7, ended.stderr
    spans = read_spans(received)
    assert {span.name for span, _ in spans} == {"POST /v1/messages", "chat claude-opus-5-5"}
    assert {resource["service.name"] for _, resource in spans} == {"my-agent"}


def test_collector_that_is_gone_is_told_once_and_holds_up_the_end_for_seconds_only(monkeypatch):
    """Without a collector nothing is raised and the problem is reported once, however many exports fail; the end waits
    for no more than ``FLUSH_SECONDS``.
    """
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    problems = []
    with export_telemetry(wanted=True, report_problem=problems.append) as telemetry:
        telemetry.tracer.start_span("kelp").end()
        telemetry.meters.overflows_refused.add(1)
        started_at = time.monotonic()
    assert time.monotonic() - started_at < FLUSH_SECONDS + 2
    [problem] = problems
    assert "127.0.0.1" in problem


@pytest.mark.parametrize(
    ("name", "value"),
    [("OTEL_TRACES_EXPORTER", "zipkin"), ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")],
)
def test_exporter_that_we_do_not_have_is_an_error(monkeypatch, name, value):
    """A variable that asks for what we cannot do is not ignored."""
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=f"{name}={value}"), export_telemetry(wanted=True, report_problem=print):
        pass


OWN_SDK_PROGRAM = """
import anyio
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from holdfast import Engine
from holdfast.store.memory import MemoryStore
from holdfast.telemetry.switch import export_telemetry
from holdfast.testing.provider import Provider, ProviderSettings
from holdfast.testing.upstream import ProviderUpstream

exporter, provider = InMemorySpanExporter(), TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)
with export_telemetry(wanted=True, report_problem=print) as telemetry:
    telemetry.tracer.start_span("kelp").end()


async def main():
    upstream = ProviderUpstream(Provider(ProviderSettings()))
    fields = {"max_tokens": 9}
    options = {"api": "anthropic", "model": "claude-opus-5-5", "fields": fields, "telemetry": True}
    async with Engine.open(MemoryStore(), upstream=upstream, **options) as engine:
        await (await engine.session("kelp")).ask("Hello")


anyio.run(main)
print([span.name for span in exporter.get_finished_spans()])
"""


def test_sdk_of_the_process_is_used_where_there_is_one(tmp_path):
    """What a program, or ``opentelemetry-instrument``, has set up gets the spans, and no exporter of ours is made."""
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9",
    }
    command = [sys.executable, "-c", OWN_SDK_PROGRAM]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert ended.stdout.strip() == "['kelp', 'chat claude-opus-5-5']", ended.stderr


def test_exporters_can_be_switched_off_each(monkeypatch):
    """``none`` for metrics leaves spans alone."""
    with serve_collector() as (collector, received):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector)
        monkeypatch.setenv("OTEL_METRICS_EXPORTER", "none")
        with export_telemetry(wanted=True, report_problem=print) as telemetry:
            telemetry.tracer.start_span("kelp").end()
            telemetry.meters.overflows_refused.add(1)
    assert {path for path, _ in received} == {"/v1/traces"}
