"""Iterations in, step records out: how the scale moved, what was skipped and why."""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ampwatch.records import SKIP_CLASSES, SkipClass

if TYPE_CHECKING:
    from ampwatch.diagnosis.evidence import Iteration
    from ampwatch.diagnosis.skips import SkipClassifier


@dataclass(slots=True)
class Verdict:
    """What became of one iteration.

    Attributes:
        skip_class: Why a step of it was skipped; ``NONE`` if none was.
        scale_before: Scale its losses were multiplied by; NaN if unknown.
        grew: The scaler multiplied the scale by its growth factor.
        backed_off: The scaler multiplied the scale by its backoff factor.
        set_by_hand: The scale changed in a way that is not the scaler's.
        applied: Whether a scaled step was taken.
        nonfinite_loss: Whether a loss was NaN or infinite.
    """

    skip_class: SkipClass
    scale_before: float
    grew: bool
    backed_off: bool
    set_by_hand: bool
    applied: bool
    nonfinite_loss: bool

    @property
    def skipped(self) -> bool:
        """Whether a step of the iteration was skipped."""
        return self.skip_class is not SkipClass.NONE


class StepJudge:
    """Judges the iterations of one training, in order.

    Args:
        initial_scale: The scale before the first iteration; NaN if unknown.
        skips: Classifies the skips.
    """

    def __init__(self, initial_scale: float, skips: SkipClassifier) -> None:
        self.skips = skips
        self._scale = initial_scale
        self._next_step = 0

    def judge(self, iteration: Iteration) -> Verdict:
        """Return the verdict on the next iteration."""
        before = self._scale if iteration.step == self._next_step else math.nan
        self._next_step = iteration.step + 1
        nonfinite_loss = bool(iteration.num_losses) and not math.isfinite(iteration.loss)
        if iteration.scaler is None:
            return Verdict(SkipClass.NONE, math.nan, False, False, False, False, nonfinite_loss)  # noqa: FBT003 - named in the class above
        found = iteration.other_found_inf or any(iteration.found_inf.values())
        grew, backed_off, by_hand = _movement(iteration, before, found=found)
        if by_hand:
            self.skips.recalibrate()
        skip_class = SkipClass.NONE
        if any(iteration.found_inf.values()):
            skip_class = self.skips.skipped(iteration.scaler, before, nonfinite_loss=nonfinite_loss)
        elif iteration.found_inf:
            self.skips.applied(iteration.scaler, grew=grew)
        self._scale = iteration.loss_scale
        return Verdict(
            skip_class=skip_class,
            scale_before=before,
            grew=grew,
            backed_off=backed_off,
            set_by_hand=by_hand,
            applied=not all(iteration.found_inf.values()),
            nonfinite_loss=nonfinite_loss,
        )


def _movement(iteration: Iteration, before: float, *, found: bool) -> tuple[bool, bool, bool]:
    """Return whether the scale grew, backed off, or was set by hand."""
    scaler, after = iteration.scaler, iteration.loss_scale
    if iteration.scale_given:
        return False, False, True
    if math.isnan(before) or scaler is None:
        return False, found, False
    if found:
        backed_off = _near(after, _times(before, scaler.backoff_factor))
        return False, backed_off, not backed_off
    if _near(after, before):
        return False, False, False
    # A growth resets the tracker; a doubling without that was somebody's hand.
    grew = iteration.growth_tracker == 0 and _near(after, _times(before, scaler.growth_factor))
    return grew, False, not grew


def _times(scale: float, factor: float) -> float:
    # The scaler multiplies in double precision and stores float32.
    return ctypes.c_float(scale * factor).value


def _near(a: float, b: float) -> bool:
    # One unit in the last place of float32: devices may round the product differently.
    return a == b or abs(a - b) <= 2.0**-23 * max(abs(a), abs(b))


class Totals:
    """Cumulative counts over the iterations of one training.

    Attributes:
        growths: Growths of the scale.
        backoffs: Backoffs of the scale.
        set_by_hand: Changes of the scale by hand.
        nonfinite_losses: Iterations with a NaN or infinite loss.
        steps: Per optimizer, steps attempted.
        skipped: Per optimizer, steps skipped, in the order of ``SKIP_CLASSES``.
    """

    def __init__(self) -> None:
        self.growths = self.backoffs = self.set_by_hand = self.nonfinite_losses = 0
        self.steps: dict[int, int] = {}
        self.skipped: dict[int, list[int]] = {}

    def add(self, iteration: Iteration, verdict: Verdict) -> None:
        """Count one iteration."""
        self.growths += verdict.grew
        self.backoffs += verdict.backed_off
        self.set_by_hand += verdict.set_by_hand
        self.nonfinite_losses += verdict.nonfinite_loss
        for index in iteration.applied_directly:
            self._attempt(index)
        for index, found_inf in iteration.found_inf.items():
            self._attempt(index)
            if found_inf:
                self.skipped[index][SKIP_CLASSES.index(verdict.skip_class)] += 1

    def _attempt(self, index: int) -> None:
        self.steps[index] = self.steps.get(index, 0) + 1
        self.skipped.setdefault(index, [0] * len(SKIP_CLASSES))

    @property
    def attempted(self) -> int:
        """Steps attempted by all optimizers together."""
        return sum(self.steps.values())
