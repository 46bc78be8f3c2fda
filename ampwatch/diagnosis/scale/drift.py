"""Sequential test of whether unexplained skips are more frequent than growth makes up for."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ampwatch.diagnosis.scale.forecast import alarm_rate

if TYPE_CHECKING:
    from ampwatch.diagnosis.evidence.iteration import ScalerSettings

RATE_RATIO = 3.0
"""The rate that is tested for, in multiples of the alarm rate: at once and twice the
alarm rate the scale hardly moves."""

EVIDENCE = 8.0
"""Log-likelihood ratio at which it is reported. At the alarm rate itself chance alone gets
there about once in exp(8), 3000, skips; a burst gets there with 8 skips."""

FALL = 2.0**-4
"""Ratio to the scale when the test began that the scale must have reached. A likelihood alone does
not count: skips that growth makes up for harm nobody."""


class SkipRateTest:
    """CUSUM test of the rate of unexplained skips against the alarm rate.

    Each skip adds ``log(RATE_RATIO)`` and each step takes off
    ``(RATE_RATIO - 1) * alarm_rate``: the log-likelihood ratio of the two rates. It
    begins anew whenever it falls to zero.

    Attributes:
        since: The skip that the test began with.
        skips: Unexplained skips since then.
        scale_before: The scale before that skip.

    Source:
        E. S. Page, Continuous inspection schemes, Biometrika 41 (1954).
    """

    def __init__(self) -> None:
        self.since = 0
        self._evidence = 0.0
        self.skips = 0
        self._last = 0
        self.scale_before = math.nan

    def skipped(self, step: int, scale_before: float, scaler: ScalerSettings) -> float | None:
        """Take in an unexplained skip; return the skip rate if it drives the scale down.

        Args:
            step: The iteration.
            scale_before: The scale that the step was taken with.
            scaler: The scaler's settings.
        """
        if not scaler.knows_growth:
            return None  # what growth makes up for is not known
        # All steps since the last skip at once: evidence only falls between two skips, so nothing is
        # missed, and a step that is not skipped costs nothing here.
        self._evidence -= (RATE_RATIO - 1.0) * alarm_rate(scaler) * (step - self._last)
        self._last = step
        if self._evidence <= 0.0:
            self._evidence, self.skips = 0.0, 0
            self.since, self.scale_before = step, scale_before
        self._evidence += math.log(RATE_RATIO)
        self.skips += 1
        scale_after = scale_before * scaler.backoff_factor
        # ``not <=`` and not ``>``: a scale that is not known is NaN, and proves no fall.
        if self._evidence <= EVIDENCE or not scale_after <= self.scale_before * FALL:
            return None
        return self.skips / (step - self.since + 1)
