"""Iterations in, step records out: how the scale moved, what was skipped and why."""

from __future__ import annotations

import ctypes
import math
from typing import TYPE_CHECKING

from msgspec import Struct

from ampwatch.wire.records import SKIP_CLASSES, SkipClass

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ampwatch.diagnosis.evidence.iteration import Iteration
    from ampwatch.diagnosis.steps.skips import SkipClassifier


class StepVerdict(Struct):
    """Verdict on one iteration: how the scale moved, and whether a step was skipped.

    Attributes:
        skip_class: Why a step of it was skipped; ``NONE`` if none was.
        scale_before: Scale its losses were multiplied by; NaN if unknown.
        grew: The scaler multiplied the scale by its growth factor.
        backed_off: The scaler multiplied the scale by its backoff factor.
        set_by_hand: The scale was changed by the user, in this update or since the last one.
        applied: Whether all or some of the scaled steps were taken.
        nonfinite_loss: Whether a loss was NaN or infinite.
    """

    skip_class: SkipClass
    scale_before: float
    grew: bool = False
    backed_off: bool = False
    set_by_hand: bool = False
    applied: bool = False
    nonfinite_loss: bool = False

    @property
    def skipped(self) -> bool:
        """Whether a step of the iteration was skipped."""
        return self.skip_class is not SkipClass.NONE


class StepJudge:
    """Judges the iterations of one training, in order."""

    def __init__(self, skips: SkipClassifier) -> None:
        self._skips = skips
        self._scale = math.nan
        self._next_step = 0

    def judge(self, iteration: Iteration) -> StepVerdict:
        """Return the verdict on the next iteration."""
        nonfinite_loss = bool(iteration.num_losses) and not math.isfinite(iteration.loss)
        if iteration.scaler is None:
            return StepVerdict(SkipClass.NONE, math.nan, nonfinite_loss=nonfinite_loss)
        before = iteration.scale_before
        verdict = StepVerdict(SkipClass.NONE, before, nonfinite_loss=nonfinite_loss)
        self._note_scale(iteration, verdict)
        if any(iteration.found_inf.values()):
            verdict.skip_class = self._skips.skipped(
                iteration.scaler, before, nonfinite_loss=nonfinite_loss
            )
        elif iteration.found_inf:
            self._skips.applied(iteration.scaler, before, grew=verdict.grew)
        verdict.applied = not all(iteration.found_inf.values())
        return verdict

    def judge_quiet(self, quiet: Sequence[Iteration]) -> StepVerdict:
        """Return the verdict on each of the next iterations, which are quiet ones."""
        like = quiet[-1]
        if like.scaler is None:
            return StepVerdict(SkipClass.NONE, math.nan)
        self._next_step = like.step + 1
        if like.found_inf:
            times = len(quiet)
            self._skips.applied(like.scaler, like.scale_before, grew=False, times=times)
        return StepVerdict(SkipClass.NONE, like.scale_before, applied=bool(like.found_inf))

    def _note_scale(self, iteration: Iteration, verdict: StepVerdict) -> None:
        """Note how the scale moved, and whether somebody moved it since the last update."""
        follows = iteration.step == self._next_step and not math.isnan(self._scale)
        if follows and not _near(iteration.scale_before, self._scale):
            verdict.set_by_hand = True
            self._skips.moved_by_hand(self._scale, iteration.scale_before)
        self._next_step, self._scale = iteration.step + 1, iteration.loss_scale
        if iteration.scale_given:
            verdict.set_by_hand = True
            self._skips.moved_by_hand(iteration.scale_before, iteration.loss_scale)
            return
        _note_movement(iteration, verdict)


def _note_movement(iteration: Iteration, verdict: StepVerdict) -> None:
    """Note the scaler's own growth or backoff."""
    scaler, before, after = iteration.scaler, iteration.scale_before, iteration.loss_scale
    if scaler is None:
        return
    if iteration.other_found_inf or any(iteration.found_inf.values()):
        verdict.backed_off = _near(after, _times(before, scaler.backoff_factor))
    elif not _near(after, before):
        verdict.grew = _near(after, _times(before, scaler.growth_factor))


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

    def add(self, iteration: Iteration, verdict: StepVerdict, times: int = 1) -> None:
        """Count an iteration, or several in a row that are like it and have moved nothing."""
        self.growths += verdict.grew
        self.backoffs += verdict.backed_off
        self.set_by_hand += verdict.set_by_hand
        self.nonfinite_losses += verdict.nonfinite_loss
        for index in iteration.applied_directly:
            self._attempt(index, times)
        for index, found_inf in iteration.found_inf.items():
            self._attempt(index, times)
            if found_inf:
                self.skipped[index][SKIP_CLASSES.index(verdict.skip_class)] += 1

    def _attempt(self, index: int, times: int) -> None:
        self.steps[index] = self.steps.get(index, 0) + times
        self.skipped.setdefault(index, [0] * len(SKIP_CLASSES))
