"""Iterations as the sensors deliver them, and the loss scale of a scaler that is not there."""

from __future__ import annotations

import math
from typing import Any

from msgspec.structs import replace

from ampwatch.diagnosis.evidence.iteration import Iteration, ScalerSettings
from ampwatch.diagnosis.steps.steps import StepVerdict
from ampwatch.wire.records import SkipClass

FLOAT32_MAX = (2 - 2**-23) * 2.0**127

_ITERATION = Iteration(
    step=0,
    time_ns=0,
    duration_s=math.nan,
    loss=1.0,
    num_losses=1,
    scale_before=math.nan,
    loss_scale=math.nan,
    growth_tracker=-1,
    scaler=None,
    scale_given=False,
    found_inf={},
    other_found_inf=False,
    applied_directly=(),
    scheduler_stepped=frozenset(),
)


TAKEN = StepVerdict(SkipClass.NONE, math.nan, applied=True)
"""Verdict on an iteration whose step was taken."""


def iteration(**changes: Any) -> Iteration:
    """The first iteration, without a scaler."""
    return replace(_ITERATION, **{"found_inf": {}, **changes})


class MadeUpScaler:
    """A loss scale that moves as that of ``GradScaler``; without settings, one that never moves.

    Attributes:
        scale: The scale as it is.
        tracker: Unskipped steps since the scale moved.
        scaler: How it moves.
    """

    scale: float
    tracker: int
    scaler: ScalerSettings | None

    def _move(self, *, found_inf: bool) -> None:
        if self.scaler is None:
            return
        self.tracker = 0 if found_inf else self.tracker + 1
        if found_inf:
            self.scale *= self.scaler.backoff_factor
        elif self.tracker == self.scaler.growth_interval:
            self.tracker = 0
            if self.scale * self.scaler.growth_factor <= FLOAT32_MAX:
                self.scale *= self.scaler.growth_factor
