"""How long to wait before the same bytes are sent again. No clock is read.

Written by hand because tenacity and stamina wait and read clocks themselves; recovery only computes the delay.
"""

from __future__ import annotations

import math

from holdfast.planning.settings import Settings

# After so many doublings any delay is over every cap; more would overflow a float at last.
_MAX_DOUBLINGS = 40


def compute_retry_delay(used_retries: int, retry_after: float | None, settings: Settings) -> float | None:
    """Return the seconds to wait before the next retry, or None if the provider asks for too long a wait.

    The provider's own delay counts as it is; otherwise each delay is twice the last one, up to a cap; ``used_retries``
    were made before. There is no jitter: two runs over the same log do the same, and permits spread the requests of
    many sessions.
    """
    if retry_after is not None and not math.isnan(retry_after):
        if retry_after <= settings.retry.max_wait_seconds:
            return max(0.0, retry_after)
        return None
    delay = settings.retry.base_seconds * 2.0 ** min(used_retries, _MAX_DOUBLINGS)
    return min(settings.retry.cap_seconds, delay)


def compute_summary_retry_delay(attempts: int, retry_after: float | None, settings: Settings) -> float:
    """Return the seconds to wait after ``attempts`` failed requests for a summary.

    Each delay is twice the last one, or the provider's if that is longer, up to a cap: the user waits for the answer
    behind the summary, and an extract can take its place.
    """
    delay = settings.summarizer.retry_base_seconds * 2.0 ** min(attempts - 1, _MAX_DOUBLINGS)
    return min(settings.summarizer.retry_cap_seconds, max(delay, retry_after or 0.0))
