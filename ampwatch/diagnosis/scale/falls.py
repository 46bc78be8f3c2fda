"""Where a loss scale goes: its falls, a test of whether skips outweigh growth, and a forecast."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ampwatch.diagnosis.evidence.iteration import Iteration, ScalerSettings
    from ampwatch.wire.records import Finding


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


SCALE_FLOOR = 2.0**-128
"""At and below it ``1 / scale`` is infinite in float32: the next step with finite
gradients writes infinities into the weights, and ``found_inf`` is 0 anyway."""


def drift(skip_rate: float, scaler: ScalerSettings) -> float:
    """Return the expected change of ``log2(scale)`` per step.

    Args:
        skip_rate: Share of steps skipped, independent of the scale. In (0, 1].
        scaler: The scaler's settings.

    Source:
        Between two skips an unskipped run of geometric length; it holds
        ``q**n / (1 - q**n)`` growths on average, with ``q = 1 - skip_rate`` and ``n``
        the growth interval. Each skip is one backoff.
    """
    unskipped: float = (1.0 - skip_rate) ** scaler.growth_interval
    growths = unskipped / (1.0 - unskipped)
    per_skip = math.log2(scaler.backoff_factor) + growths * math.log2(scaler.growth_factor)
    return skip_rate * per_skip


def alarm_rate(scaler: ScalerSettings) -> float:
    """Return the skip rate above which the scale is driven to zero.

    It is the rate at which ``drift`` is 0: ``1 - 2**(-1/n)``, 1 step in 2886, for
    factors 2 and 0.5 and a growth interval ``n`` of 2000.
    """
    down = -math.log2(scaler.backoff_factor)
    balance = down / (math.log2(scaler.growth_factor) + down)
    return 1.0 - math.pow(balance, 1.0 / scaler.growth_interval)


def steps_until(scale: float, floor: float, drift_per_step: float) -> int | None:
    """Return the steps until the scale is at ``floor``; 0 if it is, ``None`` if it never will.

    Args:
        scale: The scale now.
        floor: The scale of interest.
        drift_per_step: Change of ``log2(scale)`` per step.
    """
    if scale <= floor:
        return 0
    if math.isnan(scale):
        return None
    # At a drift of exactly 0 the scale still wanders, and gets there some day; when is not known.
    if drift_per_step >= 0.0:
        return None
    return math.ceil((math.log2(floor) - math.log2(scale)) / drift_per_step)


QUIET_GAPS = 4.0
"""Mean gaps between two skips after which a fall without another one is over: chance alone makes
so long a gap once in 50."""

MIN_QUIET = 8
"""Steps that it takes at least."""

COME_BACK = 2.0**-4
"""Ratio to the scale before a fall from which the scale has come back: as much as a fall has to be
before it is one."""


class Fall:
    """A fall of the loss scale that a finding is about.

    Args:
        finding: The finding.
        before: The scale before its first skip.

    Attributes:
        finding: The finding.
        before: The scale before its first skip.
        after: The scale after its newest skip.
        reached: The largest scale that steps were taken with since.
        reached_step: The iteration after which the scale was as large first.
        is_over: Whether it was reported that it is.
        was_skipped: Whether a step was skipped since, if only by the scaler's search.
    """

    def __init__(self, finding: Finding, before: float) -> None:
        self.finding = finding
        self.before = before
        self.after = math.nan
        self.reached = 0.0
        self.reached_step = -1
        self.is_over = False
        self.was_skipped = False

    def goes_on(self, scale: float) -> None:
        """Take in another skip of it.

        Args:
            scale: The scale after it.
        """
        self.after = scale
        self.reached, self.reached_step = 0.0, -1
        self.is_over = self.was_skipped = False

    def follow(self, iteration: Iteration, *, skipped: bool) -> bool:
        """Take in an iteration without a skip of it; return whether there is more to say."""
        self.was_skipped |= skipped
        news = not self.is_over and self._is_quiet(iteration.step)
        self.is_over |= news
        # A search that goes up and down says no more than the first time that it was as high.
        if not skipped and iteration.loss_scale > max(self.reached, self.after):
            self.reached, self.reached_step = iteration.loss_scale, iteration.step
            news = True
        return news

    def _is_quiet(self, step: int) -> bool:
        made = self.finding
        gap = (made.last_step - made.first_step) / max(1, made.count - 1)
        return step - made.last_step > max(MIN_QUIET, QUIET_GAPS * gap)

    @property
    def has_come_back(self) -> bool:
        """Whether the scale is about what it was before."""
        return self.reached >= COME_BACK * self.before
