"""Sentences about a loss scale that moves."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ampwatch.numerics.formats import FORMATS
from ampwatch.numerics.written import counted, scale_argument, scale_text
from ampwatch.wire.records import Topic

if TYPE_CHECKING:
    from ampwatch.diagnosis.evidence.iteration import Iteration, ScalerSettings
    from ampwatch.diagnosis.scale.falls import Fall

FLOAT16 = FORMATS["float16"]

QUICK_INTERVAL = 100
"""Growth interval that is advised at most: 16 doublings take as many steps as a scaler's default takes
for one."""

MIN_QUICK_INTERVAL = 20
"""Growth interval that is advised at least: each growth that goes too far costs a step, which is one
in twenty of them then."""

ROOM = 16.0
"""Factor that is left between a gradient and the end of float16 where a scale is advised for it:
gradients of other batches are larger."""


def collapse_summary(
    iteration: Iteration,
    scaler: ScalerSettings,
    since: int,
    streak: int,
    *,
    rate: float,
    to_floor: int | None,
    is_stuck: bool = False,
) -> str:
    """Return the summary of a collapse, with its numbers as they stand.

    Args:
        iteration: The newest iteration.
        scaler: The scaler's settings.
        since: The iteration in which it began.
        streak: Steps skipped in a row.
        rate: Share of the steps skipped.
        to_floor: Steps until ``1 / scale`` is infinite; ``None`` if the scale does not fall.
        is_stuck: Whether it is where it was when the first of them was skipped.
    """
    how = (
        f"{counted(streak, 'step')} skipped in a row"
        if rate >= 1.0
        else f"{_share(rate)} skipped, more than growth makes up for at an interval of {scaler.growth_interval},"
    )
    end = (
        "it is already so small that the next finite step makes weights infinite"
        if to_floor == 0
        else f"at this rate 1/scale becomes infinite in {counted(to_floor or 0, 'step')}"
        if to_floor is not None
        else "at this rate it holds"
    )
    if math.isnan(iteration.loss_scale):
        return f"No step is taken: {how} since step {since}; the loss scale is not known"
    if is_stuck:
        return (
            f"No step is taken: {how} since step {since}; the loss scale stays at"
            f" {scale_text(iteration.loss_scale)}"
        )
    return (
        f"The loss scale is collapsing: {how} since step {since}, scale now"
        f" {scale_text(iteration.loss_scale)}; {end}"
    )


def fallen_summary(fall: Fall, scale: float, step: int) -> str:
    """Return the summary of a collapse that is over, with the numbers of its end.

    Args:
        fall: The fall of the scale.
        scale: The scale now.
        step: The newest iteration.
    """
    made = fall.finding
    if fall.reached_step >= 0:
        since = f"it has grown back to {scale_text(fall.reached)} by step {fall.reached_step}"
    elif fall.was_skipped:
        since = f"most steps are taken again, at a scale of {scale_text(scale)} at step {step}"
    else:
        since = "no step has been skipped since, and it stayed there"
    return (
        f"The loss scale fell from {scale_text(fall.before)} to {scale_text(fall.after)} between steps"
        f" {made.first_step} and {made.last_step}; {since}"
    )


def fallen_advice(fall: Fall, scaler: ScalerSettings, steps_back: float, *, fitted: bool) -> str:
    """Return what to do about a scale that a collapse has left low.

    Args:
        fall: The fall of the scale.
        scaler: The scaler's settings.
        steps_back: Steps that growth takes to the scale before the fall.
        fitted: Whether steps were taken with that one.
    """
    if not steps_back:
        return f"The scale needs no change: it has recovered by itself. {_FIND_IT}"
    if not fitted:
        return (
            "No step was ever taken with a larger scale: this one may be what the gradients need. If"
            " it is not, gradients are flushed to zero; it grows by itself, and faster with a smaller"
            f" growth_interval. {_FIND_IT}"
        )
    if not scaler.knows_growth:
        return (
            f"Raise the scale by hand once the cause of the skipped steps is gone: to"
            f" {scale_text(fall.before)}. When it grows by itself is not known. {_FIND_IT}"
        )
    quicker = quicker_growth(int(scaler.growth_interval))
    return (
        f"Raise the scale by hand once the cause of the skipped steps is gone:"
        f" scaler.update({scale_argument(fall.before)}) in place of one scaler.update(). By itself it takes"
        f" {counted(steps_back, 'step')} to grow back{quicker}. {_FIND_IT}"
    )


_FIND_IT = (
    "Find out what is special about the batches of these steps; the weights were not touched while"
    " they were skipped."
)


def quicker_growth(interval: int) -> str:
    """Return, as the end of a sentence, the call that has a scale grow faster than at ``interval``."""
    quick = quick_interval(interval)
    return f"; scaler.set_growth_interval({quick}) has it grow faster" if quick < interval else ""


def quick_interval(interval: int) -> int:
    """Return a growth interval that brings a scale back soon; the same if there is none."""
    return min(interval, QUICK_INTERVAL, max(MIN_QUICK_INTERVAL, interval // 10))


def fitting_scale(amax: float) -> float:
    """Return the largest power of two that gradients fit float16 with, and with room to spare.

    Args:
        amax: Largest magnitude of a gradient, without the loss scale.
    """
    return 2.0 ** math.floor(math.log2(FLOAT16.max / ROOM / amax)) if amax > 0.0 else math.inf


def largest_gradient(iteration: Iteration) -> float | None:
    """Return the largest magnitude of a gradient as it was measured; ``None`` if there was none."""
    seen = [r for r in iteration.ranges if r.topic is Topic.GRADIENT]
    return max((r.histogram.amax for r in seen), default=None)


def gradients_seen(amax: float | None, step: int) -> str:
    """Return, as the end of a sentence, whether there were any gradients, and how large they were.

    Args:
        amax: The largest scaled one of a sample; ``None`` if there was none.
        step: The iteration of that sample.
    """
    if amax is None:
        return f"; no parameter had a gradient at step {step}"
    if not amax:
        return f"; every gradient was zero at step {step}"
    return f"; the largest scaled gradient was {amax:.3g} at step {step}"


def _share(rate: float) -> str:
    """Return a share of steps in words: one in so many, or percent where that would be every one."""
    return f"1 step in {1.0 / rate:.0f}" if rate <= 0.4 else f"{rate:.0%} of the steps"
