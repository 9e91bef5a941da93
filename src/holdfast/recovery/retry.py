"""When the same bytes go out again, and after how long. No clock is read.

tenacity and stamina wait and read clocks themselves; recovery only says how long to wait.
"""

from __future__ import annotations

import math

from holdfast.planning.settings import Settings

_MAX_DOUBLINGS = 40
"""Doublings after which any wait is over every cap."""


def compute_retry_delay(attempts: int, retry_after: float | None, settings: Settings) -> float | None:
    """Return the seconds to wait after ``attempts`` retries; nothing where the provider asks for more than we wait.

    What the provider told counts as it is, else each wait is twice the last one, up to a cap. Nothing is random: two
    runs over the same log do the same, and whoever has many sessions has permits to spread them.
    """
    if retry_after is not None and not math.isnan(retry_after):
        return max(0.0, retry_after) if retry_after <= settings.retry.max_wait_seconds else None
    return min(settings.retry.cap_seconds, settings.retry.base_seconds * 2.0 ** min(attempts, _MAX_DOUBLINGS))


def compute_summary_retry_delay(attempts: int, retry_after: float | None, settings: Settings) -> float:
    """Return the seconds to wait after ``attempts`` tries of a request for a summary, in which nobody waits for long.

    Each wait is twice the last one, or what the provider told where that is more, up to a cap.
    """
    usual = settings.summarizer.retry_base_seconds * 2.0 ** min(attempts - 1, _MAX_DOUBLINGS)
    return min(settings.summarizer.retry_cap_seconds, max(usual, retry_after or 0.0))
