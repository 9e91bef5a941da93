"""A histogram of durations with fixed bounds, and so of fixed size.

prometheus-client's histogram has no quantiles and no maximum, which ``/stats`` reports.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate

BOUNDS = (0.025, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 7.5, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0)
"""Upper bounds in seconds. Around the times at which models begin to answer, neighbours differ by a factor of 2 at
most, so a quantile is wrong by no more than that."""


class Histogram:
    """A histogram of durations in seconds."""

    def __init__(self, bounds: tuple[float, ...] = BOUNDS) -> None:
        self.bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0
        self.max_seconds = 0.0

    @property
    def count(self) -> int:
        """Number of durations."""
        return sum(self._counts)

    def add(self, seconds: float) -> None:
        """Add a duration; a negative one (a clock that was set back) counts as 0."""
        seconds = max(0.0, seconds)
        self._counts[bisect_left(self.bounds, seconds)] += 1
        self.sum += seconds
        self.max_seconds = max(self.max_seconds, seconds)

    def cumulate_counts(self) -> list[tuple[float, int]]:
        """Return each bound with the number of durations up to it; the last bound is infinite."""
        return [*zip((*self.bounds, float("inf")), accumulate(self._counts), strict=True)]

    def quantile(self, share: float) -> float | None:
        """Return the duration that ``share`` of all do not exceed, or None if there are no durations.

        It is interpolated between the two bounds around it, and never above the longest duration.
        """
        rank = share * self.count
        below = 0
        low = 0.0
        for high, cumulative_count in self.cumulate_counts():
            if cumulative_count >= rank and cumulative_count > below:
                top = min(high, self.max_seconds)
                return low + (top - low) * max(0.0, rank - below) / (cumulative_count - below)
            low, below = high, cumulative_count
        return None
