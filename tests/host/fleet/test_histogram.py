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


def test_many_observations_at_once_are_as_many_one_by_one() -> None:
    """Elements of a tensor come by the million."""
    at_once, one_by_one = Histogram((1.0, 2.0)), Histogram((1.0, 2.0))
    at_once.observe(1.5, 1000)
    for _ in range(1000):
        one_by_one.observe(1.5)

    assert (
        at_once.cumulative() == one_by_one.cumulative() == [(1.0, 0), (2.0, 1000), (math.inf, 1000)]
    )
    assert at_once.sum == one_by_one.sum == 1500.0


def test_a_sum_that_is_not_known_is_not_made_up() -> None:
    """Of elements that were binned before, only the bin is known."""
    histogram = Histogram((1.0,), summed=False)
    histogram.observe(0.5, 3)

    assert histogram.sum is None
    assert histogram.cumulative() == [(1.0, 3), (math.inf, 3)]


def test_what_is_no_duration_is_not_counted() -> None:
    """NaN stands for a duration that is not known; negative and infinite ones cannot be."""
    histogram = Histogram(STEP_DURATION_BOUNDS)
    for value in (math.nan, math.inf, -1.0):
        histogram.observe(value)

    assert sum(histogram.counts) == 0
    assert histogram.sum == 0.0
