"""When the same bytes go out again, and after how long: ours, and opencode's rules for comparison. No clock is read."""

from __future__ import annotations

import math
from collections.abc import Mapping

from holdfast.policy.settings import Settings

PASSING = frozenset({"network", "rate_limit", "overloaded", "server"})
"""Kinds of errors that say nothing about the request: the same bytes may be answered a little later."""
_OPENCODE_BASE, _OPENCODE_CAP = 2_000, 30_000
"""Milliseconds of opencode's first wait, and of its longest where the provider sent no headers. [C]"""
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


def opencode_delay(attempt: int, headers: Mapping[str, str] | None) -> float:
    """Return the milliseconds that opencode waits before retry ``attempt``, counted from 1.

    It caps its own doubling only where no headers came.
    """
    told = _told(headers or {})
    if told is not None:
        return told
    grown = _OPENCODE_BASE * 2 ** min(attempt - 1, _DOUBLINGS)
    return float(grown if headers is not None else min(grown, _OPENCODE_CAP))


def opencode_retries(status: int | None, told: bool) -> bool:
    """Return whether opencode sends again: every 5xx, and where the SDK (``told``) calls it so."""
    return told or (status is not None and 500 <= status < 600)


def _told(headers: Mapping[str, str]) -> float | None:
    millis, seconds = _number(headers.get("retry-after-ms")), _number(headers.get("retry-after"))
    return millis if millis is not None or seconds is None else float(math.ceil(seconds * 1_000))


def _number(text: str | None) -> float | None:
    try:
        found = float(text) if text is not None else math.nan
    except ValueError:
        return None
    return found if math.isfinite(found) else None
