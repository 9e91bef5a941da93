"""The breaker: whether compaction may be tried by itself again after it failed several times in a row."""

from __future__ import annotations

from holdfast.planning.settings import Settings


def is_breaker_closed(failures: int, failed_at: int | None, now: int, settings: Settings) -> bool:
    """Return whether an automatic compaction may be tried now, after ``failures`` of them in a row.

    ``failed_at`` is when the last one failed and ``now`` the time, both in ms since 1970: once the cool-down between
    them is over one more may be tried, and if that fails too it begins anew. A clock that was set back holds nobody up.
    """
    if not is_breaker_tripped(failures, settings):
        return True
    return failed_at is not None and abs(now - failed_at) >= 1_000 * settings.compaction.breaker_cooldown_seconds


def is_breaker_tripped(failures: int, settings: Settings) -> bool:
    """Return whether so many compactions in a row failed that none is tried by itself."""
    return 0 < settings.compaction.breaker_failures <= failures
