"""The scale below where it once was: on its way back, stuck, or brought there for good."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ampwatch.diagnosis.counting import counted
from ampwatch.diagnosis.gradients.kinds import GRAD_UNDERFLOW, SCALE_STUCK_LOW
from ampwatch.diagnosis.gradients.lost_gradients import FLOAT16
from ampwatch.diagnosis.scale.scale_dynamics import SCALE_BELOW_ONE, SCALE_COLLAPSE
from ampwatch.wire.records import Finding

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ampwatch.diagnosis.book import FindingBook
    from ampwatch.diagnosis.evidence.iteration import Iteration
    from ampwatch.diagnosis.gradients.lost_gradients import Gradient
    from ampwatch.diagnosis.steps.steps import StepVerdict

STUCK_FALL = 2.0**-4
"""Ratio to the largest scale that worked at which a scale that rests there is stuck low."""

STUCK_STEPS = 100
"""Steps the way back must take at least: less is over before it matters."""

STUCK_AFTER = 8
"""Steps taken at the low scale before it counts as a rest."""

SAME_LOSS = 2.0
"""Ratio of the loss to that under the largest scale up to which the two are comparable."""


class LowScale:
    """Follows how far the scale is below the largest one that a step was taken with.

    Args:
        book: Where findings go.
    """

    def __init__(self, book: FindingBook) -> None:
        self._book = book
        self._largest_applied = 0.0
        self._was_largest_at = 0
        self._rested = 0
        self._loss_then = math.nan

    def follow(self, iteration: Iteration, verdict: StepVerdict) -> None:
        """Take in one judged iteration."""
        if verdict.set_by_hand:
            self._largest_applied = 0.0
        if verdict.skipped or verdict.grew:
            self._rested = 0
        elif verdict.applied and iteration.scaler is not None:
            self._rested += 1
            if verdict.scale_before >= self._largest_applied:
                self._largest_applied = verdict.scale_before
                self._was_largest_at = iteration.step
                self._loss_then = abs(iteration.loss) if iteration.num_losses else math.nan

    def is_passing(
        self, iteration: Iteration, gradients: Mapping[str, Gradient], scale: float
    ) -> bool:
        """Whether the scale is on its way back to where it came from, and soon there."""
        recent = iteration.step - self._was_largest_at < STUCK_STEPS
        fallen = scale < self._largest_applied
        return (
            recent
            and fallen
            and self._would_fit(gradients)
            and (self._steps_back(iteration, scale) < STUCK_STEPS)
        )

    def _would_fit(self, gradients: Mapping[str, Gradient]) -> bool:
        """Whether the gradients would fit at the largest scale that a step was taken with."""
        amax = max(g.true_amax for g in gradients.values())
        return amax * self._largest_applied < FLOAT16.overflow_from

    def _steps_back(self, iteration: Iteration, scale: float) -> float:
        """Return how many steps the way back to the largest applied scale takes."""
        scaler = iteration.scaler
        if scaler is None:
            return 0.0
        growths = math.log(self._largest_applied / scale) / math.log(scaler.growth_factor)
        return growths * scaler.growth_interval

    def has_fitted(self, scale: float, gradients: Mapping[str, Gradient]) -> bool:
        """Whether steps were taken at ``scale`` or a larger one, that would fit again."""
        return self._largest_applied >= scale and self._would_fit(gradients)

    def brought_here(self, scale: float) -> Finding | None:
        """Return what has brought the scale down to where gradients underflow."""
        made = self._book.of_kind(SCALE_BELOW_ONE.slug) if scale < 1.0 else []
        if not made and scale <= STUCK_FALL * self._largest_applied:
            made = self._book.of_kind(SCALE_COLLAPSE.slug)
        return self._book.root_of(made[-1]) if made else None

    def stuck(
        self,
        iteration: Iteration,
        gradients: Mapping[str, Gradient],
        worst: str,
        share: float,
    ) -> Finding | None:
        """Say that the scale could be higher, if the one it came from would fit again."""
        if not self._would_fit(gradients):
            return None
        return self._stuck(iteration, gradients[worst].scale, f"param:{worst}", share)

    def check_by_loss(self, iteration: Iteration) -> None:
        """Say that a scale below one is stuck where no gradients were measured.

        The loss is what it was when the largest scale was applied, so the gradients are, too.
        """
        if iteration.scaler is None or not iteration.scale_before < 1.0 or not iteration.num_losses:
            return
        # ``not <=``: before the first scale was applied the loss of then is NaN, and nothing compares.
        if not abs(iteration.loss) <= SAME_LOSS * self._loss_then:
            return
        losing = self._book.of_kind(GRAD_UNDERFLOW.slug) or self._book.of_kind(SCALE_BELOW_ONE.slug)
        if losing:
            share = losing[-1].evidence.get("lost_share", 0.0)
            self._stuck(iteration, iteration.scale_before, losing[-1].where, share)

    def _stuck(
        self, iteration: Iteration, scale: float, where: str, share: float
    ) -> Finding | None:
        if scale > STUCK_FALL * self._largest_applied or self._rested < STUCK_AFTER:
            return None
        steps_back = self._steps_back(iteration, scale)
        if steps_back < STUCK_STEPS:
            return None
        evidence = {
            "loss_scale": scale,
            "loss_scale_before": self._largest_applied,
            "steps_back": steps_back,
            "lost_share": share,
        }
        harm = (
            f"{share:.1%} of all gradient elements are flushed to zero, most of them in {where}"
            if share
            else "the loss is being shrunk"
        )
        interval = iteration.scaler.growth_interval if iteration.scaler else 0
        largest = self._largest_applied

        def says(since: int) -> str:
            return (
                f"The loss scale is stuck at {scale:.6g}, low since step {since}: a burst of skipped"
                f" steps brought it down from {largest:.6g}, which would fit again, the way back"
                f" takes {counted(steps_back, 'step')} at the growth interval of {interval}, and"
                f" meanwhile {harm}"
            )

        made = self._book.again_anywhere(SCALE_STUCK_LOW.slug, iteration.step, says, **evidence)
        if made is not None:
            return made
        first = iteration.step - self._rested + 1
        finding = Finding(
            kind=SCALE_STUCK_LOW.slug,
            severity=SCALE_STUCK_LOW.severity,
            where=where,
            summary=says(first),
            advice=SCALE_STUCK_LOW.advice.replace(
                "growth_interval=100", f"growth_interval={min(100, max(1, interval // 10))}"
            ),
            phase="backward",
            dtype="float16",
            first_step=first,
            last_step=iteration.step,
            evidence=evidence,
        )
        self._book.make(finding)
        return finding
