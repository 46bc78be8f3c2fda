"""Casts foretold: of a measured tensor, to any format, at any power-of-two scale.

Answered from the exponent histogram alone. Underflow and subnormal numbers are counted
exactly, because their limits are powers of two and so ends of bins. Where overflow begins is
inside a bin: there the answer is a lower and an upper bound, tightened by the exact extremes.

All of it speaks of finite elements; what is NaN or infinite already stays so at any scale.
Of float64 tensors it holds for magnitudes on the axis of ``exponents``; those beyond are
taken for the bins at its ends.
"""

from __future__ import annotations

import math
from enum import Enum
from typing import TYPE_CHECKING

from msgspec import Struct

from ampwatch.numerics.exponents import times_power_of_two

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ampwatch.numerics.exponents import ExponentHistogram
    from ampwatch.numerics.formats import FloatFormat

MAX_FP8_SCALE_EXPONENT = 126
"""Exponent of the largest scale of ``fp8_scale``: as a float32 number, neither it nor its
inverse is infinite or subnormal."""

TOLERATED = 1e-3
"""Share of the non-zero gradients that a recommended loss scale may flush to zero."""


class CastOutcome(Struct, frozen=True):
    """Elements of a histogram by what a cast does to them.

    Attributes:
        overflow_low: Elements that overflow, at least.
        overflow_high: Elements that overflow, at most.
        underflow: Non-zero elements that become zero.
        subnormal: Elements that land on the subnormal numbers of the format or on its
            smallest normal one: ``flush_at < x <= min_normal``.
        nonzero: Elements that are not zero before the cast.
        headroom: How many times larger the largest magnitude could be and still be at most
            the largest number of the format; inf if there is no magnitude.
    """

    overflow_low: int
    overflow_high: int
    underflow: int
    subnormal: int
    nonzero: int
    headroom: float

    @property
    def overflow_share(self) -> float:
        """Elements that overflow among the non-zero ones, at most; 0 if there are none."""
        return self._share(self.overflow_high)

    @property
    def underflow_share(self) -> float:
        """Elements that become zero among the non-zero ones; 0 if there are none."""
        return self._share(self.underflow)

    def _share(self, count: int) -> float:
        return count / self.nonzero if self.nonzero else 0.0


FATES = ("flushed", "subnormal", "normal", "overflows")
"""What becomes of an element, from the smallest to the largest."""


def limits_of(fmt: FloatFormat) -> tuple[int, int, int]:
    """Return the exponents up to which a cast to ``fmt`` gives zero, a subnormal number and a finite one."""
    return _log2(fmt.min_subnormal) - 1, _log2(fmt.min_normal), _top_bin(fmt)


def fates(
    histogram: ExponentHistogram, fmt: FloatFormat, shift: int = 0
) -> Iterator[tuple[str, int]]:
    """Yield what becomes of each bin of elements times ``2**shift``, one of ``FATES``, and its count.

    Those of the bin in which the format ends overflow only if the largest element does.
    """
    flushed, subnormal, normal = (limit - shift for limit in limits_of(fmt))
    if times_power_of_two(histogram.amax, shift) >= fmt.overflow_from:
        normal -= 1
    for exponent, count in enumerate(histogram.counts, histogram.first):
        if exponent <= flushed:
            fate = "flushed"
        elif exponent <= subnormal:
            fate = "subnormal"
        else:
            fate = "normal" if exponent <= normal else "overflows"
        yield fate, count


def num_flushed(histogram: ExponentHistogram, fmt: FloatFormat, shift: int = 0) -> int:
    """Return how many elements times ``2**shift`` a cast to ``fmt`` would make zero."""
    return histogram.at_most(limits_of(fmt)[0] - shift)


def cast(histogram: ExponentHistogram, fmt: FloatFormat, shift: int = 0) -> CastOutcome:
    """Foretell a cast to ``fmt`` of all binned elements times ``2**shift``.

    For a block-scaled format all elements are taken to have one scale.

    For a subsample the counts are those of the subsample, while ``headroom`` belongs to the
    whole: a single outlier that the bins missed shows in ``headroom`` below 1 only.
    """
    underflow = num_flushed(histogram, fmt, shift)
    overflow_low, overflow_high = _overflow(histogram, fmt, shift)
    scaled = times_power_of_two(histogram.amax, shift)
    return CastOutcome(
        overflow_low=overflow_low,
        overflow_high=overflow_high,
        underflow=underflow,
        subnormal=histogram.at_most(_log2(fmt.min_normal) - shift) - underflow,
        nonzero=histogram.nonzero,
        headroom=fmt.max / scaled if scaled else math.inf,
    )


def _overflow(histogram: ExponentHistogram, fmt: FloatFormat, shift: int) -> tuple[int, int]:
    """Return how many elements overflow, at least and at most."""
    nonzero = histogram.nonzero
    if times_power_of_two(histogram.amax, shift) < fmt.overflow_from:
        return 0, 0
    if times_power_of_two(histogram.amin, shift) >= fmt.overflow_from:
        return nonzero, nonzero
    limit = _top_bin(fmt) - shift
    beyond = nonzero - histogram.at_most(limit)
    # amax overflows; unless the bins are of a subsample, it is among the elements counted.
    low = beyond if beyond or histogram.is_subsample else 1
    return low, max(low, nonzero - histogram.at_most(limit - 1))


MOSTLY_SUBNORMAL = 0.5
"""Share of the non-zero elements that must be subnormal, or about to underflow, for the zeros
beside them to count as flushed: then the format ends in the middle of what is there. A dead
unit gives zeros beside ordinary values."""


NEAR_THE_END = 4.0
"""Multiple of the smallest subnormal number up to which values are at the end of the format."""

PLAUSIBLE_TAIL = 8
"""Zeros per value at the end of the format that its tail can account for, where most values
are larger: more of them were zeros before, such as the rows of an embedding that no batch has
touched."""


def flushed_zeros(
    histogram: ExponentHistogram, fmt: FloatFormat, largest_beside: float = 0.0
) -> int:
    """Return how many of the zeros were values before ``fmt`` flushed them.

    A format flushes what is near its smallest numbers, so flushed zeros have neighbours there;
    a dead unit gives zeros beside ordinary values. Where a tensor holds nothing but zeros, the
    other tensors decide: they are flushed if not even the largest of all is above the smallest
    normal number.

    Args:
        histogram: Of values that came out of ``fmt``, as they came out of it, scaled.
        fmt: The format. All zeros are its doing, or none: a mixture cannot be distinguished.
        largest_beside: Largest finite magnitude of all tensors together; 0 if not known.
    """
    if not histogram.nonzero:
        return histogram.zeros if 0.0 < largest_beside <= fmt.min_normal else 0
    nonzero = histogram.nonzero
    tiny = histogram.at_most(_log2(fmt.min_normal))  # subnormal there, or about to underflow
    if not tiny or tiny < MOSTLY_SUBNORMAL * nonzero:
        return 0
    at_the_end = histogram.at_most(_log2(NEAR_THE_END * fmt.min_subnormal))
    mostly_at_the_end = 2 * at_the_end >= nonzero
    plausible = mostly_at_the_end or histogram.zeros <= PLAUSIBLE_TAIL * at_the_end
    return histogram.zeros if plausible else 0


class ScaleWindow(Struct, frozen=True):
    """The power-of-two scales under which values fit a format.

    Attributes:
        low: Exponent of the smallest scale that keeps underflow as rare as was asked for;
            ``None`` if there are no non-zero elements that would demand one.
        high: Exponent of the largest scale without overflow; ``None`` without a finite magnitude.
    """

    low: int | None
    high: int | None

    def allows(self, exponent: int) -> bool:
        """Return whether a scale of ``2**exponent`` breaks neither limit."""
        return (self.low is None or self.low <= exponent) and (
            self.high is None or exponent <= self.high
        )


def scale_window(
    histogram: ExponentHistogram, fmt: FloatFormat, epsilon: float = TOLERATED
) -> ScaleWindow:
    """Find the scales that bring unscaled values into ``fmt``.

    Args:
        histogram: Of the values without any scale.
        fmt: The format that the scaled values are cast to.
        epsilon: Share of the non-zero elements that may underflow, 0 to below 1.

    Raises:
        ValueError: If ``epsilon`` is not a share below 1.
    """
    if not 0.0 <= epsilon < 1.0:
        message = f"expected epsilon from 0 to below 1, got {epsilon!r}; 0 allows no underflow"
        raise ValueError(message)
    smallest = _smallest_kept(histogram, epsilon)
    low = None if smallest is None else _log2(fmt.min_subnormal) - smallest
    if not histogram.amax:
        return ScaleWindow(low, None)
    mantissa, exponent = math.frexp(histogram.amax)
    # Exact although amax times a scale may not be a number of float64: mantissas are compared.
    # The scale that brings amax into the binade of max, or the one below if it is too large.
    overflows = math.ldexp(mantissa, _top_bin(fmt)) >= fmt.overflow_from
    return ScaleWindow(low, _top_bin(fmt) - exponent - overflows)


def _smallest_kept(histogram: ExponentHistogram, epsilon: float) -> int | None:
    """Return the exponent of the first bin that cannot be lost; None if all are empty."""
    nonzero = histogram.nonzero
    lost = 0
    for exponent, count in enumerate(histogram.counts, histogram.first):
        lost += count
        if lost / nonzero > epsilon:
            return exponent
    return None


def fp8_scale(histogram: ExponentHistogram, fmt: FloatFormat) -> float:
    """Return the scale of a whole tensor for an FP8 format, as delayed scaling would set it.

    It is the largest power of two that keeps the largest magnitude at or below ``fmt.max``, but
    not above ``2**MAX_FP8_SCALE_EXPONENT``; 1 if there is no magnitude.

    Source: Micikevicius et al., arXiv:2209.05433, section 3.1 (per-tensor scaling).
    """
    if not histogram.amax:
        return 1.0
    mantissa, exponent = math.frexp(histogram.amax)
    too_large = math.ldexp(mantissa, _top_bin(fmt)) > fmt.max
    return math.ldexp(1.0, min(_top_bin(fmt) - exponent - too_large, MAX_FP8_SCALE_EXPONENT))


class Fit(str, Enum):
    """Answers to whether a format would do for measured values.

    ``FITS``: as they are. ``FITS_SCALED``: multiplied by some power of two. ``TOO_WIDE``:
    no power of two keeps both ends.
    """

    FITS = "fits"
    FITS_SCALED = "fits_scaled"
    TOO_WIDE = "too_wide"


def fit(histogram: ExponentHistogram, fmt: FloatFormat, epsilon: float = TOLERATED) -> Fit:
    """Judge whether the values fit ``fmt`` without overflow and with at most rare underflow.

    Nothing but zeros fits everywhere. Arguments and errors are those of ``scale_window``.
    """
    window = scale_window(histogram, fmt, epsilon)
    if window.allows(0):
        return Fit.FITS
    if window.low is None or window.high is None or window.low <= window.high:
        return Fit.FITS_SCALED
    return Fit.TOO_WIDE


def _log2(power_of_two: float) -> int:
    return math.frexp(power_of_two)[1] - 1


def _top_bin(fmt: FloatFormat) -> int:
    """Return the bin that ``fmt.max`` is in; no format ends at a power of two."""
    return math.frexp(fmt.max)[1]
