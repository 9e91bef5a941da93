"""The histogram: buckets and quantiles of all counted values."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.proxy.metrics.histogram import BOUNDS, Histogram

SECONDS = st.lists(st.floats(0, 1_000), min_size=1, max_size=200)


def make_histogram(seconds):
    histogram = Histogram()
    for value in seconds:
        histogram.add(value)
    return histogram


def test_histogram_quantile_is_none_without_values():
    """Without a value there is no quantile, and every bucket is empty."""
    empty = Histogram()
    assert (empty.quantile(0.5), empty.count, empty.sum) == (None, 0, 0)
    assert empty.cumulate_counts() == [(bound, 0) for bound in (*BOUNDS, inf)]


@given(SECONDS)
def test_cumulate_counts_includes_the_bound(seconds):
    """Each bucket counts all values up to and including its bound; the last one counts them all."""
    assert make_histogram(seconds).cumulate_counts() == [
        (bound, sum(value <= bound for value in seconds)) for bound in (*BOUNDS, inf)
    ]


@given(SECONDS, st.floats(0.01, 1))
def test_quantile_lies_in_the_bucket_of_the_true_value(seconds, share):
    """The true and the reported quantile lie between the same two bounds, and the reported one never exceeds the
    largest value.
    """
    reported = make_histogram(seconds).quantile(share)
    rank = max(1, -(-share * len(seconds) // 1))
    true = sorted(seconds)[min(len(seconds), int(rank)) - 1]
    high = min((bound for bound in BOUNDS if bound >= true), default=inf)
    low = max((bound for bound in BOUNDS if bound < true), default=0.0)
    assert low <= reported <= high + 1e-9
    assert reported <= max(seconds) + 1e-9


@given(SECONDS)
def test_quantile_never_decreases_with_the_share(seconds):
    """A larger share never has a smaller quantile."""
    histogram = make_histogram(seconds)
    found = [histogram.quantile(share / 10) for share in range(1, 11)]
    assert found == sorted(found)


def test_histogram_counts_a_negative_time_as_zero():
    """A clock that was set back gives a negative time, which counts as 0."""
    histogram = make_histogram([-5])
    assert (histogram.count, histogram.sum, histogram.quantile(1.0)) == (1, 0, 0)


def test_quantile_interpolates_inside_a_bucket():
    """With values spread evenly over one bucket its middle is the median."""
    assert make_histogram([1.1, 1.2, 1.3, 1.4, 1.5]).quantile(0.5) == pytest.approx(1.25)
