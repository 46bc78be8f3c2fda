"""Sentences about a loss scale that moves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ampwatch.diagnosis.counting import counted
from ampwatch.wire.records import Topic

if TYPE_CHECKING:
    from ampwatch.diagnosis.evidence.iteration import Iteration, ScalerSettings


def collapse_summary(
    iteration: Iteration,
    scaler: ScalerSettings,
    since: int,
    streak: int,
    *,
    rate: float,
    to_floor: int | None,
) -> str:
    """Return the summary of a collapse, with its numbers as they stand.

    Args:
        iteration: The newest iteration.
        scaler: The scaler's settings.
        since: The iteration in which it began.
        streak: Steps skipped in a row.
        rate: Share of the steps skipped.
        to_floor: Steps until ``1 / scale`` is infinite; ``None`` if the scale does not fall.
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
    return (
        f"The loss scale is collapsing: {how} since step {since}, scale now"
        f" {iteration.loss_scale:.6g}; {end}"
    )


def gradients_seen(iteration: Iteration) -> str:
    """Return, as the end of a sentence, whether there were any gradients, and how large they were."""
    seen = [r for r in iteration.ranges if r.topic is Topic.GRADIENT]
    amax = max((r.histogram.amax for r in seen), default=0.0)
    if not seen:
        return f"; no parameter had a gradient at step {iteration.step}"
    if not amax:
        return f"; every gradient was zero at step {iteration.step}"
    return f"; the largest scaled gradient was {amax:.3g} at step {iteration.step}"


def _share(rate: float) -> str:
    """Return a share of steps in words: one in so many, or percent where that would be every one."""
    return f"1 step in {1.0 / rate:.0f}" if rate <= 0.4 else f"{rate:.0%} of the steps"
