"""Counts of elements by binary exponent: the one measurement.

Bin ``e`` counts the magnitudes ``x`` with ``2**(e - 1) < x <= 2**e``. The upper end
belongs to the bin, because rounding to nearest even flushes the power of two at half the
smallest subnormal number itself: with these bins, what a cast flushes to zero after scaling
by any power of two is known exactly, for every format. Prometheus' ``le`` is inclusive as
well, so bins are buckets.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

if TYPE_CHECKING:
    from collections.abc import Iterable

MIN_EXPONENT = -191
"""Exponent of the first bin that a kernel fills."""

MAX_EXPONENT = 192
"""Exponent of the last bin that a kernel fills. Together they span float32 with its
subnormal numbers (-149 to 128) and leave room on both sides; what a float64 tensor has
beyond is counted in the bins at the ends."""

NUM_BINS = MAX_EXPONENT - MIN_EXPONENT + 1

PLAIN_EXPONENTS = MIN_EXPONENT - 128, MAX_EXPONENT + 149
"""Exponents of the first and the last bin of what was measured with a loss scale, without it: the
scale is a number of float32."""


def times_power_of_two(value: float, exponent: int) -> float:
    """Return ``value * 2**exponent``; infinite where that is beyond float64."""
    try:
        return math.ldexp(value, exponent)
    except OverflowError:
        return math.copysign(math.inf, value)


def nearest_exponent(scale: float) -> int:
    """Return the exponent of the power of two that is nearest to a loss scale, by its logarithm."""
    return round(math.log2(scale))


class ExponentHistogram(Struct, frozen=True):
    """The magnitudes of one tensor, or of several, by binary exponent.

    A histogram may rest on a subsample: then the bins and ``zeros`` count ``binned``
    elements, while ``amax``, NaN and infinities are still those of all ``numel``.

    Attributes:
        first: Exponent of the first bin in ``counts``.
        counts: Elements per bin, consecutive exponents; no zero at either end.
        zeros: Elements that are zero, of either sign.
        nans: Elements that are NaN.
        positive_infs: Elements that are +inf.
        negative_infs: Elements that are -inf.
        amax: Largest finite magnitude, exact; 0 if there is none.
        amin: Smallest non-zero finite magnitude among the binned, exact; inf if there is none.
        numel: Elements of the tensors, binned or not.
    """

    first: int = 0
    counts: tuple[int, ...] = ()
    zeros: int = 0
    nans: int = 0
    positive_infs: int = 0
    negative_infs: int = 0
    amax: float = 0.0
    amin: float = math.inf
    numel: int = 0

    @property
    def nonzero(self) -> int:
        """Finite elements in the bins that are not zero."""
        return sum(self.counts)

    @property
    def binned(self) -> int:
        """Finite elements in the bins or counted as zeros."""
        return self.zeros + sum(self.counts)

    @property
    def infs(self) -> int:
        """Elements that are infinite, of either sign."""
        return self.positive_infs + self.negative_infs

    @property
    def nonfinite(self) -> int:
        """Elements that are NaN or infinite."""
        return self.nans + self.infs

    @property
    def zero_share(self) -> float:
        """Zeros among the binned elements; 0 if there are none."""
        binned = self.binned
        return self.zeros / binned if binned else 0.0

    @property
    def root_mean_square(self) -> float:
        """Root mean square of the binned elements; NaN if there are none.

        In its bin an element may be anything from half of the end to the end: magnitudes are taken to be spread
        evenly there, between the smallest and the largest of all. Of tensors of a training that is within
        a tenth, of a few equal values within a third.
        """
        binned = self.binned
        if not binned:
            return math.nan
        if not self.counts:
            return 0.0
        # In units of the end of the last bin: squares leave the range of float64.
        unit = -self.first - len(self.counts) + 1
        top = min(max(times_power_of_two(self.amax, unit), 0.5), 1.0)
        squares = 0.0
        for below, count in enumerate(reversed(self.counts)):
            low, high = 0.5, top if below == 0 else 1.0
            if below == len(self.counts) - 1 and 0.0 < self.amin <= self.amax:
                low = min(max(times_power_of_two(self.amin, unit + below), low), high)
            squares += count * math.ldexp((low * low + low * high + high * high) / 3, -2 * below)
        return times_power_of_two(math.sqrt(squares / binned), -unit)

    @property
    def median(self) -> float:
        """Median magnitude of the binned elements, to within a factor of the root of 2; NaN if there are none.

        The middle of its bin, by the logarithm.
        """
        left = self.binned / 2 - self.zeros
        if not self.binned:
            return math.nan
        if left <= 0.0:
            return 0.0
        for exponent, count in enumerate(self.counts, self.first):
            left -= count
            if left <= 0.0:
                return times_power_of_two(math.sqrt(0.5), exponent)
        return self.amax

    @property
    def is_subsample(self) -> bool:
        """Whether some finite elements are not in the bins."""
        return self.binned < self.numel - self.nonfinite

    def shifted(self, exponent: int) -> ExponentHistogram:
        """Return the histogram of all values times ``2**exponent``, as if computed exactly.

        Only ``amax`` and ``amin`` can leave the range of float64: towards inf and 0.
        """
        return ExponentHistogram(
            self.first + exponent if self.counts else 0,
            self.counts,
            self.zeros,
            self.nans,
            self.positive_infs,
            self.negative_infs,
            times_power_of_two(self.amax, exponent),
            times_power_of_two(self.amin, exponent),
            self.numel,
        )

    def without(self, nans: float, positive_infs: float, negative_infs: float) -> ExponentHistogram:
        """Return the histogram without so many elements that are not finite; of each sort no more than there are."""
        removed = (
            min(self.nans, nans),
            min(self.positive_infs, positive_infs),
            min(self.negative_infs, negative_infs),
        )
        return replace(
            self,
            nans=self.nans - int(removed[0]),
            positive_infs=self.positive_infs - int(removed[1]),
            negative_infs=self.negative_infs - int(removed[2]),
            numel=self.numel - int(sum(removed)),
        )

    def merge(self, other: ExponentHistogram) -> ExponentHistogram:
        """Return the histogram of both sets of elements together."""
        return merged((self, other))

    def at_most(self, exponent: int) -> int:
        """Return how many non-zero elements have a magnitude of at most ``2**exponent``."""
        below = exponent - self.first + 1
        return sum(self.counts[:below]) if below > 0 else 0

    def by_exponent(self) -> dict[int, int]:
        """Return the bins that are not empty: exponent to count."""
        return {e: count for e, count in enumerate(self.counts, self.first) if count}


def merged(histograms: Iterable[ExponentHistogram]) -> ExponentHistogram:
    """Return the histogram of all elements together; the empty one if there are none.

    Every binned element counts the same, so a subsample weighs less than its tensor would.
    """
    parts = [h for h in histograms if h.numel]
    if len(parts) == 1:
        return parts[0]
    filled = [h for h in parts if h.counts]
    first = min((h.first for h in filled), default=0)
    end = max((h.first + len(h.counts) for h in filled), default=0)
    # Rows of one width, summed by column in C: a sampled iteration merges hundreds of them.
    rows = [
        (0,) * (h.first - first) + h.counts + (0,) * (end - h.first - len(h.counts)) for h in filled
    ]
    return ExponentHistogram(
        first,
        tuple(map(sum, zip(*rows, strict=True))),
        sum(h.zeros for h in parts),
        sum(h.nans for h in parts),
        sum(h.positive_infs for h in parts),
        sum(h.negative_infs for h in parts),
        max((h.amax for h in parts), default=0.0),
        min((h.amin for h in parts), default=math.inf),
        sum(h.numel for h in parts),
    )
