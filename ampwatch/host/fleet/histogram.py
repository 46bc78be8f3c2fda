"""What a scrape reads of what went by: histograms in the sense of Prometheus, and extremes that are held."""

from __future__ import annotations

import math
from bisect import bisect_left
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable


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
        counts: Observations per bucket, not cumulative; one longer than ``bounds``.
        sum: Sum of all observations; ``None`` where it is not known.

    Args:
        bounds: Inclusive upper bounds, ascending; one more bucket takes what is larger.
        summed: The observations are exact, so their sum is.
    """

    def __init__(self, bounds: tuple[float, ...], *, summed: bool = True) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum: float | None = 0.0 if summed else None

    def observe(self, value: float, times: int = 1) -> None:
        """Count ``value``, ``times`` times; a negative or infinite one and NaN are ignored."""
        if 0.0 <= value < math.inf:
            # ``bisect_left``: a value equal to a bound belongs below it, as Prometheus's ``le`` says.
            self.counts[bisect_left(self.bounds, value)] += times
            if self.sum is not None:
                self.sum += value * times

    def distribution(self) -> Distribution:
        """Return all buckets and the sum, which later observations do not change."""
        bounds = (*self.bounds, math.inf)
        return Distribution(list(zip(bounds, accumulate(self.counts), strict=True)), self.sum)


HOLD_SECONDS = 60
"""Length of a window: an extreme is held for one to two of them. Unit: s."""

_WINDOW_NS = HOLD_SECONDS * 1_000_000_000


class Peak:
    """The extreme, by ``min`` or ``max``, of the values put in during the last one to two windows.

    Cost: Three attributes, whatever the number of values.
    """

    def __init__(self, best: Callable[[float, float], float]) -> None:
        self._best = best
        self._window = 0
        self._current: float | None = None
        self._previous: float | None = None

    def put(self, value: float, time_ns: int) -> None:
        """Take in ``value`` as of Unix time ``time_ns``; an older time counts as the newest."""
        self._turn(time_ns)
        self._current = self._better(self._current, value)

    def read(self, newest: float, time_ns: int) -> float:
        """Return the extreme as of Unix time ``time_ns``; ``newest`` is what holds right now."""
        self._turn(time_ns)
        return self._better(self._previous, self._better(self._current, newest))

    def _turn(self, time_ns: int) -> None:
        # By the number of the window, not by the time of the last turn: after a gap of several
        # windows the one before is empty, and what is older must not be held on.
        window = time_ns // _WINDOW_NS
        if window > self._window:
            self._previous = self._current if window == self._window + 1 else None
            self._current = None
            self._window = window

    def _better(self, held: float | None, value: float) -> float:
        return value if held is None else self._best(held, value)
