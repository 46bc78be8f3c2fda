"""Findings about the dtype of the loss."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ampwatch.diagnosis.detector import Detector
from ampwatch.diagnosis.gradients.lost_gradients import FLOAT16
from ampwatch.diagnosis.kinds.kind import Kind, KindFamily, certain, during
from ampwatch.numerics.written import scale_text
from ampwatch.wire.records import Severity

if TYPE_CHECKING:
    from ampwatch.diagnosis.evidence.iteration import Iteration
    from ampwatch.diagnosis.steps.steps import StepVerdict

FP16_LOSS_CAPS_SCALE = Kind(
    slug="fp16_loss_caps_scale",
    number=21,
    family=KindFamily.GRADIENT_RANGE,
    meaning="the loss itself is float16, and the scale does not fit into it",
    severities=(Severity.WARNING,),
    certainty=certain("the dtype of the loss handed to the scaler was float16"),
    advice=(
        "Make the loss float32 before it is scaled: compute it from output.float(), or return"
        " loss.float() from the reduction."
    ),
    explained_by=during("divergence"),
)


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
