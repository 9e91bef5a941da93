"""When the same bytes go out again, and after how long. No clock is read."""

from __future__ import annotations

import math

from holdfast.planning.settings import Settings

_DOUBLINGS = 40
"""Doublings after which any wait is over every cap."""


def wait(tried: int, told: float | None, settings: Settings) -> float | None:
    """Return the seconds to wait after ``tried`` retries; nothing where the provider asks for more than we wait.

    What the provider told counts as it is, else each wait is twice the last one, up to a cap. Nothing is random: two
    runs over the same log do the same, and whoever has many sessions has permits to spread them.
    """
    if told is not None and not math.isnan(told):
        return max(0.0, told) if told <= settings.retry_wait_most else None
    return min(settings.retry_cap, settings.retry_base * 2.0 ** min(tried, _DOUBLINGS))


def summary_wait(tried: int, told: float | None, settings: Settings) -> float:
    """Return the seconds to wait after ``tried`` tries of a request for a summary, in which nobody waits for long.

    Each wait is twice the last one, or what the provider told where that is more, up to a cap.
    """
    usual = settings.summary_wait_least * 2.0 ** min(tried - 1, _DOUBLINGS)
    return min(settings.summary_wait_most, max(usual, told or 0.0))
