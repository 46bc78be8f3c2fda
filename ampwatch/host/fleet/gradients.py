"""The history of the gradients of a run, as they are without the loss scale."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ampwatch.host.fleet.span_history import SpanHistory
from ampwatch.numerics.exponents import nearest_exponent

if TYPE_CHECKING:
    from ampwatch.numerics.exponents import ExponentHistogram
    from ampwatch.wire.records import RangeRecord

MAX_COLUMNS = 240


@dataclass(slots=True)
class GradientColumn:
    """The gradients of all modules in the samples of some consecutive iterations.

    Attributes:
        scale_low: Smallest loss scale of the samples.
        scale_high: Largest loss scale of the samples.
        histogram: All elements of all samples together, without the loss scale.
    """

    first_step: int
    last_step: int
    scale_low: float
    scale_high: float
    histogram: ExponentHistogram

    @property
    def amax(self) -> float:
        """Largest finite magnitude."""
        return self.histogram.amax

    def merge(self, newer: GradientColumn, /) -> None:
        """Take in ``newer``, the column of samples after these."""
        self.last_step = max(self.last_step, newer.last_step)
        # Both ends: the scale may change within a column, and limits drawn for one of the two would
        # put elements outside of the format that fitted it.
        self.scale_low = min(self.scale_low, newer.scale_low)
        self.scale_high = max(self.scale_high, newer.scale_high)
        self.histogram = self.histogram.merge(newer.histogram)


class GradientHistory(SpanHistory[GradientColumn]):
    """The columns of one rank, thinned as the run grows.

    Cost: About 2 KB a column, 0.5 MB at the most; a record takes about 10 us.
    """

    def __init__(self) -> None:
        super().__init__(MAX_COLUMNS)

    def put(self, record: RangeRecord, unscaled: ExponentHistogram) -> None:
        """Append the sample of ``record``, whose values without the loss scale are ``unscaled``."""
        step, scale = record.step, record.loss_scale
        self.add(GradientColumn(step, step, scale, scale, unscaled))


def unscaled(record: RangeRecord) -> ExponentHistogram | None:
    """Return the exponents of the values without the loss scale; ``None`` if that has no inverse.

    A loss scale that is no power of two is rounded to the nearest one, by its logarithm:
    bins, ``amax`` and ``amin`` are then off by the same factor, the square root of 2 at most.
    """
    if not 0.0 < record.loss_scale < math.inf:
        return None
    return record.histogram.shifted(-nearest_exponent(record.loss_scale))
