"""The scale below where it once was: on its way back, stuck, or brought there for good."""

from __future__ import annotations

import math
from enum import Enum, auto
from typing import TYPE_CHECKING

from ampwatch.diagnosis.gradients.kinds import GRAD_UNDERFLOW, SCALE_STUCK_LOW
from ampwatch.diagnosis.gradients.lost_gradients import FLOAT16
from ampwatch.diagnosis.scale.kinds import SCALE_BELOW_ONE, SCALE_COLLAPSE
from ampwatch.diagnosis.scale.scale_words import quick_interval
from ampwatch.numerics.written import counted, scale_argument, scale_text
from ampwatch.wire.records import Finding, Severity, in_words

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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

STILL_STEPS = 50
"""Steps without any gradient from which a training learns nothing: a scale that a few bad batches
have brought down may be back by then."""

SAME_LOSS = 2.0
"""Ratio of the loss to that under the largest scale up to which the two are comparable."""


class _Then(Enum):
    """What a scale that was stuck low has done since."""

    STUCK = auto()
    FELL = auto()
    ROSE = auto()
    CAME_BACK = auto()


class LowScale:
    """Follows how far the scale is below the largest one that a step was taken with.

    Attributes:
        largest_applied: The largest scale that a step was taken with since it was last set by hand.
    """

    def __init__(self, book: FindingBook) -> None:
        self._book = book
        self.largest_applied = 0.0
        self._was_largest_at = 0
        self._rested = 0
        self._loss_then = math.nan
        self._made: Finding | None = None
        self._largest_then = 0.0
        self._share = 0.0
        self._then = _Then.STUCK

    def follow(self, iteration: Iteration, verdict: StepVerdict) -> None:
        """Take in one judged iteration."""
        if self._made is not None and iteration.loss_scale != verdict.scale_before:
            self._renew(self._made, iteration)
        if verdict.set_by_hand:
            self.largest_applied = 0.0
        if verdict.skipped or verdict.grew:
            self._rested = 0
        elif verdict.applied and iteration.scaler is not None:
            self._rest(iteration, 1)

    def count(self, quiet: Sequence[Iteration]) -> None:
        """Take in quiet iterations in a row."""
        newest = quiet[-1]
        if newest.found_inf and newest.scaler is not None:
            self._rest(newest, len(quiet))

    def _rest(self, newest: Iteration, iterations: int) -> None:
        """Take in iterations in a row in which a step was taken and the scale stayed."""
        self._rested += iterations
        if newest.scale_before >= self.largest_applied:
            self.largest_applied = newest.scale_before
            self._was_largest_at = newest.step
            self._loss_then = abs(newest.loss) if newest.num_losses else math.nan

    def is_passing(
        self, iteration: Iteration, gradients: Mapping[str, Gradient], scale: float
    ) -> bool:
        """Whether the scale is on its way back to where it came from, and soon there."""
        recent = iteration.step - self._was_largest_at < STUCK_STEPS
        fallen = scale < self.largest_applied
        return (
            recent
            and fallen
            and self._would_fit(gradients)
            and (self._steps_back(iteration, scale) < STUCK_STEPS)
        )

    def _would_fit(self, gradients: Mapping[str, Gradient]) -> bool:
        """Whether the gradients would fit at the largest scale that a step was taken with."""
        amax = max(g.true_amax for g in gradients.values())
        return amax * self.largest_applied < FLOAT16.overflow_from

    def _steps_back(self, iteration: Iteration, scale: float) -> float:
        """Return how many steps the way back to the largest applied scale takes."""
        scaler = iteration.scaler
        if scaler is None or not scaler.knows_growth:
            return 0.0
        growths = math.log(self.largest_applied / scale) / math.log(scaler.growth_factor)
        return growths * scaler.growth_interval

    def has_fitted(self, scale: float, gradients: Mapping[str, Gradient]) -> bool:
        """Whether steps were taken at ``scale`` or a larger one, that would fit again."""
        return self.largest_applied >= scale and self._would_fit(gradients)

    def brought_here(self, scale: float) -> Finding | None:
        """Return what has brought the scale down to where gradients underflow."""
        made = self._book.of_kind(SCALE_BELOW_ONE.slug) if scale < 1.0 else []
        if not made and scale <= STUCK_FALL * self.largest_applied:
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
        if scale > STUCK_FALL * self.largest_applied or self._rested < STUCK_AFTER:
            return None
        if self._steps_back(iteration, scale) < STUCK_STEPS:
            return None
        self._largest_then, self._share = self.largest_applied, share
        self._then = _Then.STUCK
        if self._made is not None:
            self._describe(self._made, iteration, scale)
            self._book.again(self._made, iteration.step)
            return self._made
        first = iteration.step - self._rested + 1
        interval = int(iteration.scaler.growth_interval) if iteration.scaler else 0
        self._made = finding = SCALE_STUCK_LOW.finding(
            where,
            iteration.step,
            summary="",
            kind_advice=_advice(self._largest_then, interval),
            first_step=first,
            phase="backward",
            dtype="float16",
        )
        self._describe(finding, iteration, scale)
        self._book.make(finding)
        return finding

    def _describe(self, finding: Finding, iteration: Iteration, scale: float) -> None:
        """Put the numbers as they stand into the finding of a scale that is low."""
        scaler, largest, share = iteration.scaler, self._largest_then, self._share
        growths = math.log(largest / scale) / math.log(scaler.growth_factor) if scaler else 0.0
        interval = scaler.growth_interval if scaler else 0
        steps_back = growths * interval
        finding.evidence = {
            "loss_scale": scale,
            "loss_scale_before": largest,
            "steps_back": steps_back,
            "lost_share": share,
            **self._fault_steps(finding),
        }
        worst = (
            f", most of them in {in_words(finding.where)}"
            if share < 1.0 and finding.where.startswith("param:")
            else ""
        )
        harm = (
            f"{share:.1%} of all gradient elements are flushed to zero{worst}"
            if share
            else "the scale reduces the loss"
        )
        # Measured once, it holds while the scale rests: weights that do not change have the gradients
        # that they had.
        is_still = share >= 1.0 and self._rested >= STILL_STEPS
        finding.severity = Severity.CRITICAL if is_still else SCALE_STUCK_LOW.severity
        if is_still:
            harm += ", so nothing is learnt"
        finding.summary = (
            f"The loss scale is stuck at {scale_text(scale)}, low since step {finding.first_step}: a burst of"
            f" skipped steps{self._why(finding)} lowered it from {scale_text(largest)}, which would fit again, the way back"
            f" takes {counted(steps_back, 'step')} at the growth interval of {interval}, and"
            f" meanwhile {harm}"
        )

    def _why(self, finding: Finding) -> str:
        """Name the op that was at fault in the burst, where it was found."""
        culprit = self._fault(finding)
        if culprit is None:
            return ""
        return f" ({culprit.op} in {in_words(culprit.where)}, since step {culprit.first_step})"

    def _fault_steps(self, finding: Finding) -> dict[str, float]:
        culprit = self._fault(finding)
        return {} if culprit is None else {"fault_first_step": float(culprit.first_step)}

    def _fault(self, finding: Finding) -> Finding | None:
        """Return the op that was at fault in the burst; ``None`` where none was found."""
        culprit = self._book.fault_behind(finding)
        return culprit if culprit is not None and culprit.op else None

    def _renew(self, finding: Finding, iteration: Iteration) -> None:
        """Bring the finding up to date: the scale has moved since."""
        before, scale, largest = iteration.scale_before, iteration.loss_scale, self._largest_then
        if scale < before:
            now, words = _Then.FELL, "it was brought down again at step"
        elif scale > STUCK_FALL * largest:
            now, words = _Then.CAME_BACK, f"it has come back to {scale_text(scale)} by step"
        else:
            now, words = _Then.ROSE, f"it has grown to {scale_text(scale)} by step"
        # Where it goes from there, up and down, is the scaler's business again.
        if now is self._then and now is not _Then.ROSE:
            return
        self._then = now
        finding.severity = SCALE_STUCK_LOW.severity
        finding.evidence = {
            "loss_scale": scale,
            "loss_scale_before": largest,
            "newest_step": float(iteration.step),
            **self._fault_steps(finding),
        }
        finding.summary = (
            f"The loss scale was stuck low from step {finding.first_step} to step {finding.last_step},"
            f" after a burst of skipped steps{self._why(finding)} had lowered it from {scale_text(largest)}; {words}"
            f" {iteration.step}"
        )
        self._book.report_change(finding)


def _advice(scale: float, interval: int) -> str:
    """Return the advice of the kind, with the scale to raise it to and a growth interval that is less."""
    quick = quick_interval(interval)
    faster = (
        f" or make the scaler recover faster (GradScaler(growth_interval={quick}))"
        if quick < interval
        else ""
    )
    return (
        "First find what the batches of the skipped steps have in common: if they return, a raised scale falls again."
        f" Then raise the scale by hand (scaler.update({scale_argument(scale)})){faster}."
    )
