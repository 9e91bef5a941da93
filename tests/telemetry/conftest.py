"""Skip these tests where OpenTelemetry's SDK is not installed."""

from __future__ import annotations

import pytest

pytest.importorskip("opentelemetry.sdk", reason="OpenTelemetry's SDK is not installed (pip install 'holdfast[otel]')")

from telemetry_recording import Recording


@pytest.fixture
def recording():
    """Return a telemetry of this test alone."""
    return Recording()
