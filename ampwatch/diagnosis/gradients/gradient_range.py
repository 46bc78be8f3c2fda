"""Findings about gradients that do not fit into float16."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ampwatch.diagnosis.gradients.kinds import FP16_WITHOUT_SCALER, GRAD_UNDERFLOW, RANGE_TOO_WIDE
from ampwatch.diagnosis.gradients.lost_gradients import FLOAT16, of_parameters
from ampwatch.diagnosis.gradients.low_scale import LowScale
from ampwatch.diagnosis.places import in_words
from ampwatch.wire.records import Finding, Severity

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ampwatch.diagnosis.book import FindingBook
    from ampwatch.diagnosis.evidence.iteration import Iteration
    from ampwatch.diagnosis.gradients.culprits import Cap, Culprits
    from ampwatch.diagnosis.gradients.lost_gradients import Gradient, Gradients, LostGradients
    from ampwatch.diagnosis.kinds.kind import Kind
    from ampwatch.diagnosis.steps.steps import StepVerdict

LOST_SHARE = 0.01
"""Share of all gradient elements that must be lost before it is said: a few parameters, such
as the biases of attention keys, have no gradient worth the name in any precision."""

LOST_OF_ONE = 0.5
"""Share of the elements of one parameter from which it counts as lost."""

MIN_SAMPLES = 2
"""Samples in a row that must agree: one may be between a backoff and a growth."""

STILL_SAMPLES = 3
"""Samples in a row without any gradient from which a training may have stopped to learn."""

STILL_STEPS = 50
"""Steps over which those samples lie at least: a scale that a few bad batches have brought down may
be back by then."""

CAPPING_SHARE = 2.0**-12
"""Share of float16's largest number that the gradient of a parameter must have, at the scale at
which it overflowed, for its magnitude to be why. What is multiplied on the way to it may be larger
than it is itself, by as much as activations are below 1. An infinity that no scale makes finite,
as that of a bad batch, leaves a gradient behind that is smaller by far."""

HARMLESS_SAMPLES = 3
"""Samples without a loss after which float16 without a scaler is said to have done no harm."""


class GradientRange:
    """Holds the gradients of sampled iterations against the range of float16.

    Args:
        book: Where findings go.
        culprits: Who made the steps be skipped.
        lost: Knows what gradients were before they were flushed.
    """

    def __init__(self, book: FindingBook, culprits: Culprits, lost: LostGradients) -> None:
        self._book = book
        self._culprits = culprits
        self._lost = lost
        self._samples = 0
        self._agreeing = 0
        self._still_samples = 0
        self._still_since = 0
        self._low = LowScale(book)

    def detect(self, iteration: Iteration, verdict: StepVerdict, judged: Gradients) -> None:
        """Take in one judged iteration.

        Args:
            iteration: The iteration.
            verdict: The verdict on it.
            judged: Its gradients, and what formats have made of them.
        """
        self._low.follow(iteration, verdict)
        gradients = of_parameters(judged, out_of=FLOAT16)
        if gradients and not verdict.skipped:
            self._judge(iteration, gradients)
        elif verdict.applied and not verdict.skipped:
            self._low.check_by_loss(iteration)

    def _judge(self, iteration: Iteration, gradients: Mapping[str, Gradient]) -> None:
        self._samples += 1
        shares = {name: gradient.share for name, gradient in gradients.items()}
        seen = [g.histogram for g in gradients.values()]
        lost = {name: share * gradients[name].histogram.numel for name, share in shares.items()}
        worst = max(lost, key=lambda name: lost[name])
        total = sum(histogram.numel for histogram in seen)
        share = sum(lost.values()) / total if total else 0.0
        self._follow_stillness(iteration, gradients)
        if share < LOST_SHARE or shares[worst] < LOST_OF_ONE:
            self._agreeing = 0
            if iteration.scaler is None and self._samples >= HARMLESS_SAMPLES:
                self._say_without_scaler(iteration, Severity.INFO, "api", share, math.nan)
            elif iteration.scaler is not None and gradients[worst].scale < 1.0:
                # The range fits: what is wrong is where the scale was left, even if nothing is lost.
                self._low.stuck(iteration, gradients, worst, share)
            return
        self._agreeing += 1
        if iteration.scaler is None:
            where = f"param:{worst}"
            self._say_without_scaler(iteration, Severity.WARNING, where, share, shares[worst])
            return
        if self._agreeing < MIN_SAMPLES and not self._is_known(worst):
            return
        scale = gradients[worst].scale
        if self._low.is_passing(iteration, gradients, scale):
            return
        root = (
            self._low.stuck(iteration, gradients, worst, share)
            or self._too_wide(iteration, gradients, worst, share)
            or self._low.brought_here(scale)
        )
        self._say_underflow(iteration, worst, scale, shares[worst], share, root)

    def _follow_stillness(self, iteration: Iteration, gradients: Mapping[str, Gradient]) -> None:
        """Take in whether any gradient was left in a sample whose step was taken."""
        if any(g.histogram.amax or g.histogram.nonfinite for g in gradients.values()):
            self._still_samples = 0
        elif not self._still_samples:
            self._still_samples, self._still_since = 1, iteration.step
        else:
            self._still_samples += 1

    def _stopped(self, step: int) -> str:
        """Say that no weight has had a gradient for so long that the training does nothing.

        Empty as long as that may pass.
        """
        if self._still_samples < STILL_SAMPLES or step - self._still_since < STILL_STEPS:
            return ""
        return f"; not one gradient is left, so nothing is learnt since step {self._still_since}"

    def _escalate(self, kind: Kind, stopped: str) -> None:
        """Make the newest finding of a kind critical if the training has stopped to learn."""
        made = self._book.of_kind(kind.slug)[-1]
        if stopped and made.severity is not Severity.CRITICAL:
            made.severity = Severity.CRITICAL
            self._book.report_change(made)

    def _is_known(self, worst: str) -> bool:
        return self._book.get(GRAD_UNDERFLOW.slug, f"param:{worst}") is not None

    def _say_without_scaler(
        self, iteration: Iteration, severity: Severity, where: str, share: float, worst: float
    ) -> None:
        step = iteration.step
        evidence = {"lost_share": share}
        if not math.isnan(worst):
            evidence["lost_share_here"] = worst
        made = self._book.of_kind(FP16_WITHOUT_SCALER.slug)
        stopped = self._stopped(step)
        harm = (
            f"{share:.1%} of all gradient elements are zero only because of float16, most of them"
            f" in {in_words(where)}"
            if severity is Severity.WARNING
            else "so far the gradients are large enough for it"
        )
        finding = Finding(
            kind=FP16_WITHOUT_SCALER.slug,
            severity=severity,
            where=where,
            summary=(
                f"Gradients come out of float16 without an enabled GradScaler; {harm}, as of step"
                f" {step}"
            ),
            advice=FP16_WITHOUT_SCALER.advice,
            phase="backward",
            dtype="float16",
            first_step=step,
            last_step=step,
            evidence=evidence,
        )
        if not made or (severity is not Severity.INFO and made[-1].severity is Severity.INFO):
            self._book.make(finding)
            return
        if severity is not Severity.INFO and made[-1].severity is Severity.CRITICAL:
            finding.summary += stopped
        # Numbers of another parameter would stand beside the name of the one it was made for.
        if made[-1].where == where:
            self._book.renew(finding)
        else:
            self._book.again_anywhere(FP16_WITHOUT_SCALER.slug, step)
        if stopped and made[-1].severity is not Severity.CRITICAL:
            made[-1].summary += stopped
        self._escalate(FP16_WITHOUT_SCALER, stopped)

    def _too_wide(
        self, iteration: Iteration, gradients: Mapping[str, Gradient], worst: str, share: float
    ) -> Finding | None:
        """Say that no scale fits, if another parameter caps it below what this one needs."""
        cap = self._culprits.cap(apart_from=worst)
        needed = self._lost.scale_needed(worst)
        scale = gradients[worst].scale
        if cap is None or needed is None or not scale < cap.overflows_at <= needed:
            return None
        if self._low.has_fitted(needed, gradients) or not self._is_why(cap):
            return None
        where = f"param:{cap.name}"
        evidence = {
            "loss_scale": scale,
            "overflows_at": cap.overflows_at,
            "scale_needed": needed,
            "lost_share": share,
        }

        def says(since: int) -> str:
            return (
                f"No loss scale fits, since step {since}: {in_words(where)} overflows float16 at a scale of"
                f" {cap.overflows_at:.6g}, while {in_words(f'param:{worst}')} needs {needed:.3g} and is flushed to"
                f" zero at the present {scale:.6g}, at step {iteration.step}"
            )

        made = self._book.again_anywhere(RANGE_TOO_WIDE.slug, iteration.step, says, **evidence)
        if made is not None:
            return made
        finding = Finding(
            kind=RANGE_TOO_WIDE.slug,
            severity=RANGE_TOO_WIDE.severity,
            where=where,
            summary=says(iteration.step),
            advice=RANGE_TOO_WIDE.advice,
            phase="backward",
            dtype="float16",
            first_step=iteration.step,
            last_step=iteration.step,
            evidence=evidence,
        )
        self._book.make(finding)
        return finding

    def _is_why(self, cap: Cap) -> bool:
        """Whether a gradient has been seen to be so large that it overflows at the scale it did."""
        amax = self._lost.true_amax(cap.name)
        return amax is not None and amax * cap.overflows_at >= CAPPING_SHARE * FLOAT16.max

    def _say_underflow(
        self,
        iteration: Iteration,
        worst: str,
        scale: float,
        share_here: float,
        share: float,
        root: Finding | None,
    ) -> None:
        where, step = f"param:{worst}", iteration.step
        evidence = {"loss_scale": scale, "lost_share": share, "lost_share_here": share_here}
        stopped = self._stopped(step)
        if root is not None:
            for symptom in self._book.of_kind(GRAD_UNDERFLOW.slug):
                self._book.explain(symptom, root)

        def says(since: int) -> str:
            return (
                f"{share_here:.1%} of the gradient elements of {in_words(where)} are zero only because"
                f" of float16, since step {since}, at a loss scale of {scale:.6g} at step {step}; of"
                f" all gradients {share:.1%}{stopped}"
            )

        if self._book.again(GRAD_UNDERFLOW.slug, where, step, says, **evidence):
            self._escalate(GRAD_UNDERFLOW, stopped)
        else:
            self._book.make(
                Finding(
                    kind=GRAD_UNDERFLOW.slug,
                    severity=Severity.CRITICAL if stopped else GRAD_UNDERFLOW.severity,
                    where=where,
                    summary=says(step),
                    advice=GRAD_UNDERFLOW.advice,
                    phase="backward",
                    dtype="float16",
                    root=root is None,
                    caused_by="" if root is None else root.key,
                    first_step=step,
                    last_step=step,
                    evidence=evidence,
                )
            )
