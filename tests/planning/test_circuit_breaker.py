"""The circuit breaker and its cool-down."""

from __future__ import annotations

import pytest

from holdfast import Policy
from holdfast.planning.circuit_breaker import is_breaker_closed

SETTINGS = Policy().with_settings(compaction={"breaker_failures": 3, "breaker_cooldown_seconds": 600}).settings
FAILED_AT = 1_790_000_000_000


@pytest.mark.parametrize(
    ("failures", "failed_at", "seconds", "closed"),
    [
        (0, None, 0, True),
        (2, FAILED_AT, 0, True),
        (3, FAILED_AT, 0, False),
        (3, FAILED_AT, 599, False),
        (3, FAILED_AT, 600, True),
        (9, FAILED_AT, 600, True),
        (3, None, 600, False),
        (3, FAILED_AT, -30, False),
        (3, FAILED_AT, -600, True),
    ],
)
def test_is_breaker_closed_after_failures_and_cooldown(failures, failed_at, seconds, closed):
    """Three failures in a row open it; the cool-down closes it for one try; a clock set back does not latch it."""
    assert is_breaker_closed(failures, failed_at, FAILED_AT + 1_000 * seconds, SETTINGS) is closed
