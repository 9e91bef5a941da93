"""What the tests of telemetry share."""

from __future__ import annotations

import pytest


@pytest.fixture
def recording():
    """Return a telemetry of this test alone."""
    from telemetry_recording import Recording

    return Recording()
