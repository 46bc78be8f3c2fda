"""Findings about a loss scale that begins anew in the middle of a training."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ampwatch.diagnosis.detector import Detector, Shared, takes
from ampwatch.diagnosis.evidence.scaler import ScalerChange
from ampwatch.diagnosis.scale.kinds import RESTORE, SCALE_RESET
from ampwatch.numerics.written import scale_argument, scale_text
from ampwatch.wire.records import Severity

if TYPE_CHECKING:
    from ampwatch.diagnosis.evidence.iteration import Iteration
    from ampwatch.diagnosis.steps.steps import StepVerdict


MAKE_ONCE = (
    "Make the GradScaler once, before the loop over epochs, and use it in all of them: its scale was found"
    " over many steps, and a new one begins at its init_scale again."
)

JUMP = 4.0
"""Factor by which the scale must have gone up: a checkpoint from one growth earlier is no reset."""

SKIPS = 2
"""Skips in a row right after it: one may be a probe that would have come anyway."""

SKIPS_UNKNOWN = 3
"""Skips where the scale before is not known, and only the optimizer says that it was restored."""


class ScaleReset(Detector):
    """Detects a new state of the scaler, and the skips until its scale fits again.

    Args:
        shared: What the detectors have in common.
    """

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self._announced: dict[int, ScalerChange] = {}
        self._scale = math.nan
        self._largest_applied = 0.0
        self._change: ScalerChange | None = None
        self._before = self._after = math.nan
        self._skips = 0

    @takes(ScalerChange)
    def observe(self, change: ScalerChange) -> None:
        """Take in that the state of the scaler is a new one as of an iteration to come."""
        known = self._announced.get(change.step)
        if known is not None:  # a new scaler whose state was loaded
            change = change._replace(loaded=known.loaded or change.loaded)
        self._announced[change.step] = change

    def detect(self, iteration: Iteration, verdict: StepVerdict) -> None:
        """Take in one judged iteration."""
        change = None
        if self._announced:
            change = self._announced.get(iteration.step)
            # Also those of iterations that never came.
            self._announced = {s: c for s, c in self._announced.items() if s > iteration.step}
        if iteration.scaler is None:
            return
        if change is not None:
            self._begin(change, iteration.scale_before)
        if self._change is not None:
            # A skip for any other reason ends the count: a scale of the user's, or a loss that no scale
            # makes finite, says nothing about the state that was loaded.
            if verdict.skipped and not iteration.scale_given and not verdict.nonfinite_loss:
                self._skips += 1
                self._say(iteration, self._change)
            else:
                self._change = None
        if verdict.applied and not verdict.skipped:
            self._largest_applied = max(self._largest_applied, verdict.scale_before)
        self._scale = iteration.loss_scale

    @property
    def is_at_rest(self) -> bool:
        """Whether a quiet iteration would be nothing to it."""
        return not self._announced

    def _begin(self, change: ScalerChange, after: float) -> None:
        self._change, self._skips = None, 0
        self._before, self._after = self._scale, after
        if not change.resumed:
            return
        if not change.known_before:
            self._before = math.nan
            self._change = change
        elif after >= JUMP * self._before and not (
            # A checkpoint of this training holds a scale that it once took steps with.
            change.loaded and after <= self._largest_applied
        ):
            self._change = change

    def _say(self, iteration: Iteration, change: ScalerChange) -> None:
        step = iteration.step
        evidence = {"scale_after": self._after, "skips": float(self._skips)}
        if change.known_before:
            evidence["scale_before"] = self._before
        if self._skips < (SKIPS if change.known_before else SKIPS_UNKNOWN):
            return
        since = step - self._skips + 1
        how = "a new state was loaded into the scaler" if change.loaded else "a new GradScaler"
        summary = (
            f"The loss scale jumped from {scale_text(self._before)} to {scale_text(self._after)} at step {since}:"
            f" {how}, while the optimizer went on; {self._skips} steps were skipped up to step {step}"
            f" to find the scale again"
            if change.known_before
            else f"The optimizer had been restored, but the GradScaler started again at a scale of"
            f" {scale_text(self._after)}: the first {self._skips} steps, from step {since} on, were skipped"
            f" to find the scale again"
        )
        finding = self._book.get(SCALE_RESET.slug, "api")
        if finding is not None and finding.first_step != since:
            # Another jump of the same training: its numbers are those of now, its count goes on.
            evidence["jump_first_step"] = float(since)
        self._book.report(
            SCALE_RESET,
            "api",
            step,
            summary=summary,
            # Without the scale before it may be the first training with a scaler at all.
            severity=Severity.WARNING if change.known_before else Severity.INFO,
            kind_advice=_advice(change, self._before),
            first_step=since,
            is_once=True,
            phase="config",
            count=self._skips,
            evidence=evidence,
        )


def _advice(change: ScalerChange, before: float) -> str:
    """Return what to do; where the scale before is known, which one to begin with."""
    if change.made_anew:
        return MAKE_ONCE
    if math.isnan(before):
        return SCALE_RESET.advice
    return RESTORE.format(which="", scale=scale_argument(before))
