"""Figures as Prometheus reads them: its text format, version 0.0.4."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import isinf
from typing import Literal

from msgspec import Struct

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Sample(Struct, frozen=True):
    """A number, with its labels; ``suffix`` is what the name has behind it, as those of a histogram have."""

    value: float
    labels: Mapping[str, str] = {}
    suffix: str = ""


class Metric(Struct, frozen=True):
    """What is counted under one name. A counter's name ends with ``_total``."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help_text: str
    samples: tuple[Sample, ...]


def format_metrics(metrics: Iterable[Metric]) -> str:
    """Return ``metrics`` as text, each with what it says and its kind."""
    return "".join(f"{line}\n" for metric in metrics for line in _format_metric_lines(metric))


def format_number(value: float) -> str:
    """Return ``value`` as the format writes it."""
    if isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) else repr(value)


def _format_metric_lines(metric: Metric) -> Iterator[str]:
    says = metric.help_text.replace("\\", r"\\").replace("\n", r"\n")
    yield f"# HELP {metric.name} {says}"
    yield f"# TYPE {metric.name} {metric.kind}"
    for sample in metric.samples:
        yield f"{metric.name}{sample.suffix}{_format_labels(sample.labels)} {format_number(sample.value)}"


def _format_labels(labels: Mapping[str, str]) -> str:
    pairs = ",".join(f'{name}="{_escape_label(value)}"' for name, value in labels.items())
    return f"{{{pairs}}}" if pairs else ""


def _escape_label(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
