"""The exponent histogram: shifting is scaling, merging is concatenating, bins are closed above; loss scales as they are read."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from ampwatch.numerics.exponents import ExponentHistogram, merged, times_power_of_two
from ampwatch.numerics.written import (
    counted,
    is_in_digits,
    ordinal,
    power_of_two,
    scale_argument,
    scale_text,
)
from tests.numerics.oracle import float32_values, histogram_of

shifts = st.integers(-300, 300)


def test_the_numbers_derived_from_a_histogram_are_those_of_its_elements() -> None:
    """Every property counts what its name says."""
    values = [0.0, -0.0, 3.0, -4.0, 4.5, math.inf, -math.inf, -math.inf, math.nan]
    histogram = histogram_of(values)
    assert histogram.nonzero == 3
    assert histogram.binned == 5
    assert histogram.infs == 3
    assert histogram.nonfinite == 4
    assert histogram.zero_share == pytest.approx(2 / 5)
    assert histogram.by_exponent() == {2: 2, 3: 1}
    assert not histogram.is_subsample


def test_empty_bins_between_others_are_not_listed() -> None:
    """Only exponents that occur are listed, so a wide gap costs nothing."""
    assert histogram_of([1.0, 2.0**40]).by_exponent() == {0: 1, 40: 1}


def test_a_histogram_without_finite_elements_has_no_zero_share() -> None:
    """Nothing divided by nothing is no share, not an error."""
    assert ExponentHistogram().zero_share == 0.0
    assert histogram_of([math.nan]).zero_share == 0.0


def test_it_is_a_subsample_as_soon_as_a_finite_element_is_in_no_bin() -> None:
    """NaN and infinities are in no bin either, and do not make a subsample."""
    whole = histogram_of([1.0, 2.0, 0.0, math.nan, math.inf])
    assert not whole.is_subsample
    assert replace(whole, numel=whole.numel + 1).is_subsample


@given(float32_values, shifts)
def test_at_most_counts_the_elements_up_to_and_including_a_power_of_two(
    values: list[float], exponent: int
) -> None:
    """The upper end of a bin belongs to it."""
    limit = 2.0**exponent
    expected = sum(0 < abs(v) <= limit for v in values)
    assert histogram_of(values).at_most(exponent) == expected


@given(float32_values, shifts)
def test_shifting_is_the_histogram_of_the_scaled_values(values: list[float], shift: int) -> None:
    """In float64 the scaling of float32 values is exact, so nothing may differ at all."""
    assert histogram_of(values).shifted(shift) == histogram_of([v * 2.0**shift for v in values])


def test_a_shift_out_of_float64_keeps_the_counts_and_does_not_raise() -> None:
    """Bins have no end; only the extremes leave float64, towards infinity and zero."""
    histogram = histogram_of([5e-324, 1.5, 1e308])
    up, down = histogram.shifted(2000), histogram.shifted(-2000)
    assert up.counts == down.counts == histogram.counts
    assert (up.amax, down.amin) == (math.inf, 0.0)


@given(st.lists(float32_values, max_size=5))
def test_merging_is_the_histogram_of_all_values_together(lists: list[list[float]]) -> None:
    """Ranks, modules and steps may be merged in any grouping."""
    whole = histogram_of(chain(*lists))
    assert merged(histogram_of(values) for values in lists) == whole
    one_by_one = ExponentHistogram()
    for values in reversed(lists):
        one_by_one = histogram_of(values).merge(one_by_one)
    assert one_by_one == whole


def test_a_subsample_stays_one_when_merged() -> None:
    """A part that was not binned whole is never passed off as complete."""
    whole = histogram_of([1.0, 2.0])
    partial = replace(whole, numel=1000, amax=77.0)
    together = merged([whole, partial])
    assert together.is_subsample
    assert (together.amax, together.numel, together.binned) == (77.0, 1002, 4)


@given(st.floats(allow_nan=False, allow_infinity=False), st.integers(-3000, 3000))
def test_a_power_of_two_times_a_value_is_rounded_once_and_infinite_beyond_float64(
    value: float, exponent: int
) -> None:
    """The result is the exact product, in float64; infinity keeps the sign."""
    exact = Fraction(value) * Fraction(2) ** exponent
    result = times_power_of_two(value, exponent)
    if abs(exact) < 2**1024:
        assert result == float(exact)
    else:
        assert result == math.copysign(math.inf, value)


@pytest.mark.parametrize("value", [0.0, math.inf, -math.inf])
def test_a_power_of_two_leaves_zero_and_infinity_as_they_are(value: float) -> None:
    """A histogram without magnitudes has these as amax and amin, which is no error."""
    assert times_power_of_two(value, 5000) == times_power_of_two(value, -5000) == value


@given(st.lists(st.floats(2.0**-40, 2.0**40) | st.just(0.0), min_size=1, max_size=60))
def test_means_follow_from_exponents(values: list[float]) -> None:
    """A root mean square to within a half, a median to within the root of 2."""
    histogram = histogram_of(values)
    mean = math.sqrt(sum(x * x for x in values) / len(values))
    # As many are above it as below: with an even number anything between the two in the middle.
    low, high = sorted(values)[(len(values) - 1) // 2], sorted(values)[len(values) // 2]

    assert mean / 1.54 <= histogram.root_mean_square <= mean * 1.54
    assert low / 1.4143 <= histogram.median <= high * 1.4143


def test_the_mean_of_equal_values_is_that_value() -> None:
    """Both extremes are known."""
    assert histogram_of([0.7] * 9).root_mean_square == pytest.approx(0.7)


def test_nothing_has_neither_a_mean_nor_a_median() -> None:
    """Zeros alone have both, and extremes stay within float64."""
    assert math.isnan(ExponentHistogram().root_mean_square)
    assert math.isnan(ExponentHistogram().median)
    zeros = histogram_of([0.0, 0.0])
    assert (zeros.root_mean_square, zeros.median) == (0.0, 0.0)
    wide = histogram_of([1e-40, 1e38, 1e38])
    assert 1e37 < wide.median < 1e39
    assert 1e37 < wide.root_mean_square < 1e39


@pytest.mark.parametrize(
    ("scale", "text", "argument"),
    [
        (65536.0, "65536", "65536.0"),
        (1.0, "1", "1.0"),
        (524288.0, "524288", "524288.0"),
        (2.0**20, "2^20", "2.0**20"),
        (0.5, "2^-1", "2.0**-1"),
        (2.0**-44, "2^-44", "2.0**-44"),
        (0.75, "0.75", "0.75"),
        (3000.0, "3000", "3000.0"),
        (1500.5, "1500.5", "1500.5"),
        (1e-9 / 3, "3.33333e-10", "3.33333e-10"),
        (3e7, "3e+07", "3e+07"),
        (0.0, "0", "0.0"),
    ],
)
def test_a_scale_is_digits_or_a_power_of_two(scale: float, text: str, argument: str) -> None:
    """Digits as far as they are read at a glance; a call is given a float."""
    assert scale_text(scale) == text
    assert scale_argument(scale) == argument


@pytest.mark.parametrize("value", [0.0, -2.0, 3.0, 2.0**16 + 1, math.inf, math.nan])
def test_what_is_no_power_of_two_is_not_written_as_one(value: float) -> None:
    """Neither a neighbour of one nor what is no number."""
    assert not power_of_two(value)
    assert is_in_digits(value)


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        *[(1, "1st"), (2, "2nd"), (3, "3rd"), (4, "4th"), (11, "11th"), (12, "12th"), (13, "13th")],
        *[(21, "21st"), (22, "22nd"), (23, "23rd"), (101, "101st"), (111, "111th"), (120, "120th")],
    ],
)
def test_an_ordinal_ends_as_it_is_spoken(number: int, expected: str) -> None:
    """The teens are the exception."""
    assert ordinal(number) == expected


def test_one_is_no_plural() -> None:
    """Nor is what is shown as one."""
    assert [counted(n, "step") for n in (0, 1, 0.7, 2)] == [
        "0 steps",
        "1 step",
        "1 step",
        "2 steps",
    ]
