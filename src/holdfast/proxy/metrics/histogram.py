"""A histogram of seconds that does not grow: how many fell under each bound, and what that says of the whole.

prometheus-client's histogram keeps no quantiles and no maximum, which ``/stats`` tells.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate

BOUNDS = (0.025, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 7.5, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0)
"""Seconds. [H] no two neighbours more than twice as far apart, where answers of models begin."""


class Histogram:
    """How long things took."""

    def __init__(self, bounds: tuple[float, ...] = BOUNDS) -> None:
        self.bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0
        self.max_seconds = 0.0

    @property
    def count(self) -> int:
        """How many there were."""
        return sum(self._counts)

    def add(self, seconds: float) -> None:
        """Count one more; a clock that was set back makes it 0."""
        seconds = max(0.0, seconds)
        self._counts[bisect_left(self.bounds, seconds)] += 1
        self.sum += seconds
        self.max_seconds = max(self.max_seconds, seconds)

    def cumulate_counts(self) -> list[tuple[float, int]]:
        """Return each bound with how many were not above it; the last bound is infinite."""
        return [*zip((*self.bounds, float("inf")), accumulate(self._counts), strict=True)]

    def quantile(self, share: float) -> float | None:
        """Return what ``share`` of them were under, as far as the bounds tell; nothing where there were none.

        It lies between the right value's two bounds, and is never above the largest value that came.
        """
        rank, below = share * self.count, 0
        low = 0.0
        for high, cumulative_count in self.cumulate_counts():
            if cumulative_count >= rank and cumulative_count > below:
                top = min(high, self.max_seconds)
                return low + (top - low) * max(0.0, rank - below) / (cumulative_count - below)
            low, below = high, cumulative_count
        return None
