"""Forecast of the loss scale from the rate at which steps are skipped."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ampwatch.diagnosis.evidence.iteration import ScalerSettings

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
