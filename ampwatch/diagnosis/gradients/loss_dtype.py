"""Findings about the dtype of the loss."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ampwatch.diagnosis.detector import Detector
from ampwatch.diagnosis.gradients.kinds import FP16_LOSS_CAPS_SCALE
from ampwatch.diagnosis.gradients.lost_gradients import FLOAT16
from ampwatch.numerics.written import scale_text

if TYPE_CHECKING:
    from ampwatch.diagnosis.evidence.iteration import Iteration
    from ampwatch.diagnosis.steps.steps import StepVerdict


class LossDtype(Detector):
    """Detects a loss in float16, which no scale of 65536 can multiply."""

    def detect(self, iteration: Iteration, verdict: StepVerdict) -> None:
        """Take in one judged iteration: in backward the scale itself is cast to float16."""
        scale, step = verdict.scale_before, iteration.step
        if not (
            verdict.skipped
            and iteration.loss_dtype == "float16"
            and math.isfinite(iteration.loss)
            and scale >= FLOAT16.overflow_from
        ):
            return

        def says(since: int) -> str:
            return (
                f"The loss is a float16 tensor: a loss scale of {scale_text(scale)} becomes infinite in the"
                f" first op of backward, so step {step} had to be skipped, and so has every step since"
                f" step {since} at a scale above {FLOAT16.max:.6g}"
            )

        self._book.report(
            FP16_LOSS_CAPS_SCALE,
            "loss",
            step,
            summary=says,
            op="mul",
            phase="backward",
            dtype="float16",
            evidence={"loss_scale": scale, "largest_scale": FLOAT16.max},
        )
