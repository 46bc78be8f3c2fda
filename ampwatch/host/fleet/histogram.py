"""A histogram in the sense of Prometheus: observations by buckets of fixed bounds."""

from __future__ import annotations

import math
from bisect import bisect_left
from itertools import accumulate
from typing import NamedTuple

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
    """

    buckets: list[tuple[float, int]]
    sum: float | None


class Histogram:
    """Counts of observations per bucket of fixed bounds, and their sum.

    Attributes:
        bounds: Inclusive upper bounds, ascending; one more bucket takes what is larger.
        counts: Observations per bucket, not cumulative; one longer than ``bounds``.
        sum: Sum of all observations; ``None`` where it is not known.

    Args:
        bounds: Inclusive upper bounds, ascending.
        summed: The observations are exact, so their sum is.
    """

    def __init__(self, bounds: tuple[float, ...], *, summed: bool = True) -> None:
        self.bounds = bounds
        self._bounds = (*bounds, math.inf)
        self.counts = [0] * (len(bounds) + 1)
        self.sum: float | None = 0.0 if summed else None

    def observe(self, value: float, times: int = 1) -> None:
        """Count ``value``, ``times`` times; a negative or infinite one and NaN are ignored."""
        if 0.0 <= value < math.inf:
            # ``bisect_left``: a value equal to a bound belongs below it, as Prometheus's ``le`` says.
            self.counts[bisect_left(self.bounds, value)] += times
            if self.sum is not None:
                self.sum += value * times

    def cumulative(self) -> list[tuple[float, int]]:
        """Return ``(upper bound, observations up to it)`` per bucket, the last bound infinite."""
        return list(zip(self._bounds, accumulate(self.counts), strict=True))

    def distribution(self) -> Distribution:
        """Return all buckets and the sum, which later observations do not change."""
        return Distribution(self.cumulative(), self.sum)
