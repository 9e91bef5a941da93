"""Start and end spans without ever failing the request that they are about.

OpenTelemetry's own code raises nothing there, but a sampler or a span processor of the program may.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TypeAlias

from opentelemetry.context import Context
from opentelemetry.trace import INVALID_SPAN, Span, SpanKind, Tracer

AttributeValue: TypeAlias = str | bool | int | float | list[str]
# The names of models and the ids of answers that we know have up to some 100 characters. Chosen by judgement.
MAX_NAME_CHARS = 256
"""Characters of a name that a client or a server chose; the rest is cut."""
_LOG = logging.getLogger(__name__)


def start_span(
    tracer: Tracer,
    name: str,
    parent: Context | None,
    kind: SpanKind = SpanKind.INTERNAL,
    attributes: Mapping[str, AttributeValue] | None = None,
    start_time: int | None = None,
) -> Span:
    """Start a span, in nanoseconds since 1970; one that nobody records if something of the program raises."""
    try:
        return tracer.start_span(name, parent, kind, attributes, start_time=start_time)
    except Exception as error:  # noqa: BLE001 -- of any kind: the request goes on without a span
        _LOG.warning("a span is lost: a sampler or a span processor raised %s: %s", type(error).__name__, error)
        return INVALID_SPAN


def end_span(span: Span, end_time: int | None = None) -> None:
    """End ``span``, in nanoseconds since 1970, by default now."""
    try:
        span.end(end_time)
    except Exception as error:  # noqa: BLE001 -- of any kind: the request is over, whatever becomes of its span
        _LOG.warning("a span is lost: a span processor raised %s: %s", type(error).__name__, error)


def clean_name(name: str) -> str:
    """Return ``name`` as every exporter can send it: cut, and without half of a surrogate pair."""
    return name[:MAX_NAME_CHARS].encode("utf-8", "replace").decode()
