"""Tests of native histograms."""

import math
import sys
from collections import Counter
from decimal import Decimal, localcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ampwatch.host.fleet.histogram import STEP_DURATION_BOUNDS, Histogram
from ampwatch.host.fleet.native import (
    MAX_NATIVE_BUCKETS,
    MAX_SCHEMA,
    MIN_SCHEMA,
    NATIVE_SCHEMA,
    ZERO_THRESHOLD,
    NativeHistogram,
    bucket_index,
)

POSITIVE = st.floats(ZERO_THRESHOLD, sys.float_info.max, exclude_min=True)
SCHEMAS = st.integers(MIN_SCHEMA, MAX_SCHEMA)


def upper_bound(index: int, schema: int) -> float:
    """Return the upper bound of a bucket, by arithmetic of 50 digits; infinite beyond all floats."""
    with localcontext() as context:
        context.prec = 50
        exponent = Decimal(index) * Decimal(2) ** -schema
        whole = math.floor(exponent)
        fraction = float(Decimal(2) ** (exponent - whole))
    return math.inf if whole > sys.float_info.max_exp - 1 else math.ldexp(fraction, whole)


def observed(*values: float, schema: int = NATIVE_SCHEMA) -> NativeHistogram:
    histogram = NativeHistogram(schema)
    for value in values:
        histogram.observe(value)
    return histogram


@given(POSITIVE, SCHEMAS)
def test_a_value_is_above_the_bound_before_and_not_above_its_own(value: float, schema: int) -> None:
    """For every schema that Prometheus knows, over all floats."""
    index = bucket_index(value, schema)

    assert upper_bound(index - 1, schema) < value <= upper_bound(index, schema)


@given(st.lists(POSITIVE, max_size=300), SCHEMAS)
def test_buckets_that_become_too_many_are_merged(values: list[float], schema: int) -> None:
    """The counts are those of a scan under the schema that is left, and none is lost."""
    buckets = observed(*values, schema=schema).buckets()

    assert buckets.schema <= schema
    assert len(buckets.counts) <= MAX_NATIVE_BUCKETS
    assert buckets.counts == Counter(bucket_index(value, buckets.schema) for value in values)


def test_a_histogram_is_no_coarser_than_it_has_to_be() -> None:
    """As many buckets as there may be stay as they are; one more, and each has two of them."""
    values = [upper_bound(index, NATIVE_SCHEMA) for index in range(MAX_NATIVE_BUCKETS + 1)]

    full = observed(*values[:-1]).buckets()
    merged = observed(*values).buckets()

    assert (full.schema, len(full.counts)) == (NATIVE_SCHEMA, MAX_NATIVE_BUCKETS)
    assert merged.schema == NATIVE_SCHEMA - 1
    assert merged.counts == {0: 1, **dict.fromkeys(range(1, MAX_NATIVE_BUCKETS // 2 + 1), 2)}


def test_the_coarsest_schema_has_room_for_all_floats() -> None:
    """Merging ends in time, whatever is observed, and the memory that is held has a bound."""
    values = [math.ldexp(0.75, exponent) for exponent in range(-149, 1025)]

    buckets = observed(*values, schema=MAX_SCHEMA).buckets()

    assert (buckets.schema, len(buckets.counts)) == (MIN_SCHEMA, 74)
    assert sum(buckets.counts.values()) == len(values)


@pytest.mark.parametrize("value", [0.0, 5e-324, ZERO_THRESHOLD])
def test_what_is_hardly_above_zero_is_in_the_zero_bucket(value: float) -> None:
    """Up to the threshold, which is exported; the smallest number of float32 is above it."""
    buckets = observed(value, value, math.ldexp(1.0, -149), schema=0).buckets()

    assert (buckets.zero_count, buckets.counts) == (2, {-149: 1})


def test_what_was_read_stays() -> None:
    """A scrape is written while records come."""
    histogram = observed(1.0)
    before = histogram.buckets()
    for exponent in range(100):
        histogram.observe(2.0**exponent)

    assert before == (NATIVE_SCHEMA, 0, {0: 1})


@pytest.mark.parametrize("schema", [MIN_SCHEMA - 1, MAX_SCHEMA + 1])
def test_a_schema_that_prometheus_does_not_know_is_refused(schema: int) -> None:
    """With those that it knows."""
    with pytest.raises(ValueError, match=f"Expected a schema from -4 to 8, got {schema}"):
        NativeHistogram(schema)


@given(st.lists(st.floats(), max_size=50))
def test_both_kinds_of_buckets_count_the_same(values: list[float]) -> None:
    """Whatever was ignored by the one was ignored by the other."""
    histogram = Histogram(STEP_DURATION_BOUNDS)
    for value in values:
        histogram.observe(value, 3)

    buckets, _, native = histogram.distribution()

    assert native.zero_count + sum(native.counts.values()) == buckets[-1][1]
