"""Tests of the course of the gradients, as they are without the loss scale."""

import math
from itertools import groupby
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ampwatch.host.fleet.gradients import MAX_COLUMNS, GradientHistory, unscaled
from ampwatch.numerics.exponents import ExponentHistogram
from ampwatch.wire.records import RangeRecord
from tests.workshop.records import histogram, ranges


def measured(values: list[float], **changes: Any) -> RangeRecord:
    """Return the ranges of ``values``, counted one by one."""
    exponents = [math.ceil(math.log2(abs(v))) for v in values if v]
    first = min(exponents, default=0)
    counts = [exponents.count(e) for e in range(first, max(exponents, default=-1) + 1)]
    found = histogram(
        first,
        *counts,
        zeros=values.count(0.0),
        amax=max(map(abs, values), default=0.0),
        amin=min((abs(v) for v in values if v), default=math.inf),
    )
    return ranges(exponents=found, **changes)


@given(
    st.lists(st.floats(-1e6, 1e6, width=32).filter(lambda v: not 0 < abs(v) < 1e-6), max_size=30),
    st.integers(-20, 30),
)
def test_unscaled_is_what_counting_the_divided_values_gives(
    values: list[float], exponent: int
) -> None:
    """A power of two only shifts the bins: nothing is lost by not having the values any more."""
    scale = 2.0**exponent

    found = unscaled(measured(values, loss_scale=scale))

    assert found == measured([v / scale for v in values]).histogram


@pytest.mark.parametrize(
    ("scale", "shift"), [(1.0, 0), (65536.0, -16), (1000.0, -10), (3.0, -2), (0.7, 1)]
)
def test_a_scale_that_is_no_power_of_two_is_rounded_to_the_nearest(
    scale: float, shift: int
) -> None:
    """By its logarithm: users set 1000 by hand."""
    found = unscaled(ranges(exponents=histogram(3, 5), loss_scale=scale))

    assert found == histogram(3 + shift, 5)


def test_what_was_multiplied_by_0_is_not_known() -> None:
    """A scale that has halved itself to zero leaves nothing to divide by."""
    assert unscaled(ranges(loss_scale=0.0)) is None


samples: st.SearchStrategy[dict[str, Any]] = st.builds(
    dict,
    gap=st.integers(1, 4),
    first=st.integers(-30, 10),
    counts=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    scale=st.sampled_from([1.0, 1024.0, 65536.0]),
)


@settings(max_examples=30)
@given(st.lists(samples, max_size=700))
def test_columns_are_the_sum_of_their_samples(drawn: list[dict[str, Any]]) -> None:
    """However often it was thinned: no sample is forgotten, none is counted twice."""
    history = GradientHistory()
    put: list[tuple[int, float, ExponentHistogram]] = []
    step = 0
    for sample in drawn:
        step += sample["gap"]
        exponents = histogram(sample["first"], *sample["counts"])
        scale = sample["scale"]
        history.put(ranges(step=step, loss_scale=scale), exponents)
        put.append((step, scale, exponents))

    expected = []
    for _, members in groupby(put, key=lambda item: item[0] // history.stride):
        steps, scales, found = zip(*members, strict=True)
        bins: dict[int, int] = {}
        for h in found:
            for exponent, count in h.by_exponent().items():
                bins[exponent] = bins.get(exponent, 0) + count
        amax = max(h.amax for h in found)
        expected.append((steps[0], steps[-1], min(scales), max(scales), amax, bins))
    assert len(history.spans) <= MAX_COLUMNS
    assert expected == [
        (c.first_step, c.last_step, c.scale_low, c.scale_high, c.amax, c.histogram.by_exponent())
        for c in history.spans
    ]
