"""The circuit breaker: no automatic compaction after several failures in a row, until a cool-down is over.

An open breaker never blocks a request that fits. It only stops attempts that would cost a model call each and fail
again.
"""

from __future__ import annotations

from holdfast.planning.settings import Settings


def is_breaker_closed(
    failures: int,
    failed_at: int | None,
    now: int,
    settings: Settings,
) -> bool:
    """Return whether an automatic compaction may be tried now, after ``failures`` of them in a row.

    ``failed_at`` is the time of the last failure, None if the log does not say, and ``now`` the current time, both in
    ms since 1970. After the cool-down one attempt is allowed; if it fails, the cool-down begins again.
    """
    if not is_breaker_tripped(failures, settings):
        return True
    if failed_at is None:
        return False
    # The absolute difference: a clock that was set back must not keep the breaker open until it has caught up.
    return abs(now - failed_at) >= 1_000 * settings.compaction.breaker_cooldown_seconds


def is_breaker_tripped(failures: int, settings: Settings) -> bool:
    """Return whether enough compactions failed in a row that none is tried automatically."""
    return 0 < settings.compaction.breaker_failures <= failures
