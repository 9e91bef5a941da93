"""The histogram: what its few numbers say of all that was counted."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.proxy.metrics.histogram import BOUNDS, Histogram

SECONDS = st.lists(st.floats(0, 1_000), min_size=1, max_size=200)


def of(seconds):
    made = Histogram()
    for one in seconds:
        made.add(one)
    return made


def test_nothing_was_counted():
    """Without a value there is no quantile, and every bucket is empty."""
    empty = Histogram()
    assert (empty.quantile(0.5), empty.count, empty.sum) == (None, 0, 0)
    assert empty.cumulate_counts() == [(bound, 0) for bound in (*BOUNDS, inf)]


@given(SECONDS)
def test_buckets_hold_what_is_not_above_them(seconds):
    """Each bucket counts all values up to its bound, the bound included; the last one counts them all."""
    assert of(seconds).cumulate_counts() == [(bound, sum(one <= bound for one in seconds)) for bound in (*BOUNDS, inf)]


@given(SECONDS, st.floats(0.01, 1))
def test_a_quantile_lies_in_the_bucket_of_the_right_one(seconds, share):
    """The true value and the told one lie between the same two bounds, and none is told that is above the largest."""
    told = of(seconds).quantile(share)
    rank = max(1, -(-share * len(seconds) // 1))
    true = sorted(seconds)[min(len(seconds), int(rank)) - 1]
    high = min((bound for bound in BOUNDS if bound >= true), default=inf)
    low = max((bound for bound in BOUNDS if bound < true), default=0.0)
    assert low <= told <= high + 1e-9
    assert told <= max(seconds) + 1e-9


@given(SECONDS)
def test_quantiles_grow(seconds):
    """A larger share is never told to be under less."""
    made = of(seconds)
    found = [made.quantile(share / 10) for share in range(1, 11)]
    assert found == sorted(found)


def test_a_clock_that_was_set_back():
    """Less than nothing counts as nothing."""
    made = of([-5])
    assert (made.count, made.sum, made.quantile(1.0)) == (1, 0, 0)


def test_it_is_exact_where_all_are_alike():
    """With the values spread evenly over one bucket its middle is the median."""
    assert of([1.1, 1.2, 1.3, 1.4, 1.5]).quantile(0.5) == pytest.approx(1.25)
