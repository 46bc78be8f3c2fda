"""Tests of the histogram of fixed bounds."""

import math

from hypothesis import given
from hypothesis import strategies as st

from ampwatch.host.fleet.histogram import STEP_DURATION_BOUNDS, Histogram


@given(st.lists(st.floats(0, 1000)))
def test_every_bound_counts_what_is_not_above_it(values: list[float]) -> None:
    """The cumulative counts are those of a scan over all values, a bound itself included."""
    values = [*values, *STEP_DURATION_BOUNDS]
    histogram = Histogram(STEP_DURATION_BOUNDS)
    for value in values:
        histogram.observe(value)

    expected = [
        (bound, sum(value <= bound for value in values))
        for bound in (*STEP_DURATION_BOUNDS, math.inf)
    ]

    assert expected == histogram.cumulative()
    assert histogram.sum is not None
    assert math.isclose(sum(values), histogram.sum)


def test_what_is_no_duration_is_not_counted() -> None:
    """NaN stands for a duration that is not known; negative and infinite ones cannot be."""
    histogram = Histogram(STEP_DURATION_BOUNDS)
    for value in (math.nan, math.inf, -1.0):
        histogram.observe(value)

    assert sum(histogram.counts) == 0
    assert histogram.sum == 0.0
