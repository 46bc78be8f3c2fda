"""A histogram in the sense of Prometheus: of fixed bounds, and of exponential ones beside."""

from __future__ import annotations

import math
from bisect import bisect_left
from itertools import accumulate
from typing import NamedTuple

from ampwatch.host.fleet.native import NATIVE_SCHEMA, NativeBuckets, NativeHistogram

STEP_DURATION_BOUNDS = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
    300.0,
)
"""Upper bounds for step durations: toy models to large ones that checkpoint. Unit: s."""


class Distribution(NamedTuple):
    """The content of a histogram, as it is exported.

    Attributes:
        buckets: ``(upper bound, observations up to it)`` per bucket, the last bound infinite.
        sum: Sum of all observations; ``None`` where it is not known.
        native: The same observations in exponential buckets, for those who ask for them.
    """

    buckets: list[tuple[float, int]]
    sum: float | None
    native: NativeBuckets


class Histogram:
    """Counts of observations per bucket of fixed bounds and of a native histogram, and their sum.

    Attributes:
        bounds: Inclusive upper bounds, ascending; one more bucket takes what is larger.
        counts: Observations per bucket, not cumulative; one longer than ``bounds``.
        sum: Sum of all observations; ``None`` where it is not known.

    Args:
        bounds: Inclusive upper bounds, ascending.
        summed: The observations are exact, so their sum is.
        schema: Resolution of the native histogram, until it has to be a coarser one.
    """

    def __init__(
        self, bounds: tuple[float, ...], *, summed: bool = True, schema: int = NATIVE_SCHEMA
    ) -> None:
        self.bounds = bounds
        self._bounds = (*bounds, math.inf)
        self.counts = [0] * (len(bounds) + 1)
        self.sum: float | None = 0.0 if summed else None
        self._native = NativeHistogram(schema)

    def observe(self, value: float, times: int = 1) -> None:
        """Count ``value``, ``times`` times; a negative or infinite one and NaN are ignored."""
        if 0.0 <= value < math.inf:
            # ``bisect_left``: a value equal to a bound belongs below it, as Prometheus's ``le`` says.
            self.counts[bisect_left(self.bounds, value)] += times
            self._native.observe(value, times)
            if self.sum is not None:
                self.sum += value * times

    def cumulative(self) -> list[tuple[float, int]]:
        """Return ``(upper bound, observations up to it)`` per bucket, the last bound infinite."""
        return list(zip(self._bounds, accumulate(self.counts), strict=True))

    def distribution(self) -> Distribution:
        """Return all buckets and the sum, which later observations do not change."""
        return Distribution(self.cumulative(), self.sum, self._native.buckets())
