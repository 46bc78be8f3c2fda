"""Findings about gradients that do not fit into float16."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

from ampwatch.diagnosis.detector import Detector, Shared, takes
from ampwatch.diagnosis.evidence.scaler import UnscaledStep
from ampwatch.diagnosis.gradients.culprits import Culprits
from ampwatch.diagnosis.gradients.kinds import (
    FP16_WITHOUT_SCALER,
    GRAD_UNDERFLOW,
    RAISE_THE_SCALE,
    RANGE_TOO_WIDE,
)
from ampwatch.diagnosis.gradients.lost_gradients import (
    FLOAT16,
    SIMILAR,
    LostGradients,
    flush_of,
    of_parameters,
)
from ampwatch.diagnosis.gradients.low_scale import STILL_STEPS, LowScale
from ampwatch.diagnosis.scale.scale_words import fitting_scale
from ampwatch.numerics.written import power_of_two, scale_argument, scale_text
from ampwatch.wire.records import Finding, Severity, in_words

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ampwatch.diagnosis.evidence.iteration import Iteration
    from ampwatch.diagnosis.gradients.culprits import Cap
    from ampwatch.diagnosis.gradients.lost_gradients import Gradient
    from ampwatch.diagnosis.steps.steps import StepVerdict

LOST_SHARE = 0.01
"""Share of all gradient elements that must be lost before it is reported: a few parameters, such
as the biases of attention keys, have no gradient worth the name in any precision."""

LOST_OF_ONE = 0.5
"""Share of the elements of one parameter from which it counts as lost."""

MIN_SAMPLES = 2
"""Samples in a row that must agree: one may be between a backoff and a growth."""

STILL_SAMPLES = 3
"""Samples in a row without any gradient from which a training may have stopped to learn."""

CAPPING_SHARE = 2.0**-12
"""Share of float16's largest number that the gradient of a parameter must have, at the scale at
which it overflowed, for its magnitude to be why. What is multiplied on the way to it may be larger
than it is itself, by as much as activations are below 1. An infinity that no scale makes finite,
as that of a bad batch, leaves a gradient behind that is smaller by far."""

UNKNOWN_SCALE = (
    f"{RAISE_THE_SCALE} The scale that would keep these gradients is not known: all of them are zero,"
    " and no gradient as small as these was measured."
)
"""Advice where the what-if panel has nothing to show."""

HARMLESS_SAMPLES = 3
"""Samples without a loss after which float16 without a scaler is said to have done no harm."""


class GradientRange(Detector):
    """Holds the gradients of sampled iterations against the range of float16.

    Args:
        shared: What the detectors have in common.
    """

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self._culprits = shared.of(Culprits)
        self._lost = shared.of(LostGradients)
        self._samples = 0
        self._agreeing = 0
        self._agreeing_since = 0
        self._lost_since: dict[str, int] = {}
        self._stillness = _Stillness()
        self._keeps_nothing = 0.0
        self._say_again: Callable[[Iteration], None] | None = None
        self._unscaled: UnscaledStep | None = None
        self._low = LowScale(shared.book)

    @takes(UnscaledStep)
    def observe(self, seen: UnscaledStep) -> None:
        """Take in that nobody scales the loss: it is reported at the end of that iteration."""
        self._unscaled = seen

    def detect(self, iteration: Iteration, verdict: StepVerdict) -> None:
        """Take in one judged iteration."""
        self._low.follow(iteration, verdict)
        gradients = of_parameters(self._lost.judged, out_of=FLOAT16)
        if gradients and not verdict.skipped:
            self._say_again = None
            self._judge(iteration, gradients)
        elif verdict.applied and not verdict.skipped:
            self._low.check_by_loss(iteration)
            self._go_on(iteration)
        if self._unscaled is not None:
            self._say_unmeasured(self._unscaled.step)
            self._unscaled = None

    def count(self, quiet: Sequence[Iteration]) -> None:
        """Take in quiet iterations in a row."""
        self._low.count(quiet)
        self._go_on(quiet[-1])

    def _go_on(self, newest: Iteration) -> None:
        """Say it again of an iteration that was not measured, at a scale at which nothing can be left."""
        if self._say_again is not None and 0.0 < newest.scale_before <= self._keeps_nothing:
            self._stillness.go_on(newest.step)
            self._say_again(newest)

    def _judge(self, iteration: Iteration, gradients: Mapping[str, Gradient]) -> None:
        self._samples += 1
        shares = {name: gradient.share for name, gradient in gradients.items()}
        seen = [g.histogram for g in gradients.values()]
        lost = {name: share * gradients[name].histogram.numel for name, share in shares.items()}
        worst = max(lost, key=lambda name: lost[name])
        total = sum(histogram.numel for histogram in seen)
        share = sum(lost.values()) / total if total else 0.0
        self._follow_losses(iteration.step, shares)
        self._stillness.follow(iteration.step, gradients)
        if not self._stillness.has_stopped:
            self._learns_again(iteration, gradients, share)
        if share < LOST_SHARE or shares[worst] < LOST_OF_ONE:
            self._agreeing = 0
            if iteration.scaler is None and self._samples >= HARMLESS_SAMPLES:
                # Without it the program may have a scaler of its own.
                if self._book.of_kind(FP16_WITHOUT_SCALER.slug):
                    self._say_without_scaler(iteration, shares, worst, share, is_harmful=False)
            elif iteration.scaler is not None and gradients[worst].scale < 1.0:
                # The range fits: what is wrong is where the scale was left, even if nothing is lost.
                self._low.stuck(iteration, gradients, worst, share)
            return
        if not self._agreeing:
            self._agreeing_since = iteration.step
        self._agreeing += 1
        if iteration.scaler is None:
            self._say_without_scaler(iteration, shares, worst, share, is_harmful=True)
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
        fits = self._scale_that_fits(gradients, worst, scale)
        is_shown = any(g.histogram.amax for g in gradients.values()) or bool(
            flush_of(list(gradients.values())).whole
        )
        say = partial(
            self._say_underflow,
            worst=worst,
            share_here=shares[worst],
            share=share,
            root=root,
            fits=fits,
            is_shown=is_shown,
        )
        say(iteration)
        largest = max(self._lost.true_amax(name) or 0.0 for name in gradients)
        self._say_again = say
        self._keeps_nothing = self._stillness.keeps_nothing(largest)

    def _follow_losses(self, step: int, shares: Mapping[str, float]) -> None:
        """Remember since when each parameter has lost so much of its gradient."""
        for name, share in shares.items():
            if share < LOST_OF_ONE:
                self._lost_since.pop(name, None)
            else:
                self._lost_since.setdefault(name, step)

    def _learns_again(
        self, iteration: Iteration, gradients: Mapping[str, Gradient], share: float
    ) -> None:
        """Take back that nothing is learnt, wherever that was reported: there are gradients again."""
        for made in self._book.of_kind(GRAD_UNDERFLOW.slug):
            if made.severity is not Severity.CRITICAL:
                continue
            here = gradients.get(made.where.partition(":")[2])
            scale, step = iteration.scale_before, iteration.step
            made.severity = GRAD_UNDERFLOW.severity
            made.evidence |= {"loss_scale": scale, "lost_share": share, "newest_step": float(step)}
            made.evidence["lost_share_here"] = 0.0 if here is None else here.share
            made.summary = (
                f"Gradients of {in_words(made.where)} were zero only because of float16"
                f"{self._stillness.then(made)}; at step {step}, at a loss scale of {scale_text(scale)}, that"
                f" is so for {share:.1%} of all gradient elements"
            )
            self._book.report_change(made)

    def _is_known(self, worst: str) -> bool:
        return self._book.get(GRAD_UNDERFLOW.slug, f"param:{worst}") is not None

    def _say_unmeasured(self, step: int) -> None:
        """Say that nobody scales the loss, unless a sample has shown more."""
        if not self._book.of_kind(FP16_WITHOUT_SCALER.slug):
            self._report_without_scaler(
                Severity.INFO,
                "api",
                f"float16 autocast trains without a loss scaler, since step {step}: no enabled GradScaler"
                " scales the loss, and what its gradients lose is not measured yet",
                step,
                {},
            )

    def _report_without_scaler(
        self, severity: Severity, where: str, summary: str, step: int, evidence: dict[str, float]
    ) -> None:
        infos = self._book.of_kind(FP16_WITHOUT_SCALER.slug)
        made = self._book.report(
            FP16_WITHOUT_SCALER,
            where,
            step,
            summary=summary,
            severity=severity,
            phase="backward",
            dtype="float16",
            evidence=evidence,
        )
        for info in infos:
            self._book.explain(info, made)

    def _say_without_scaler(
        self,
        iteration: Iteration,
        shares: Mapping[str, float],
        worst: str,
        share: float,
        *,
        is_harmful: bool,
    ) -> None:
        """Say what the format does to gradients that nobody scales, as of this sample."""
        step = iteration.step
        made = self._book.of_kind(FP16_WITHOUT_SCALER.slug)
        newest = made[-1] if made else None
        is_new = newest is None or (is_harmful and newest.severity is Severity.INFO)
        where = (
            (f"param:{worst}" if is_harmful else "api")
            if newest is None or is_new
            else newest.where
        )
        # Numbers of another parameter would stand beside the name of the one it was made for.
        name = where.partition(":")[2]
        has_stopped = is_harmful and self._stillness.has_stopped
        if has_stopped:
            severity = Severity.CRITICAL
        elif is_harmful or (newest is not None and newest.severity is not Severity.INFO):
            severity = FP16_WITHOUT_SCALER.severity
        else:
            severity = Severity.INFO
        evidence = {"lost_share": share}
        harm = f"so far the gradients are large enough for it, as of step {step}"
        if severity is not Severity.INFO:
            peak = 0.0 if newest is None else newest.evidence.get("largest_lost_share", 0.0)
            evidence["largest_lost_share"] = peak = max(peak, share)
            evidence["lost_share_here"] = shares.get(name, 0.0)
            most = (
                f"most of them in {in_words(where)}"
                if name == worst
                else f"{evidence['lost_share_here']:.1%} of those of {in_words(where)}"
            )
            harm = (
                f"{share:.1%} of all gradient elements are zero only because of float16, {most}, as"
                f" of step {step}"
                if is_harmful
                else f"up to {peak:.1%} of all gradient elements were zero only because of float16,"
                f" and {share:.1%} are as of step {step}"
            )
        if has_stopped:
            harm += self._stillness.says
            evidence |= self._stillness.evidence
        elif newest is not None and not is_new:
            harm += self._stillness.then(newest)
        summary = f"Gradients come out of float16 without an enabled GradScaler; {harm}"
        self._report_without_scaler(severity, where, summary, step, evidence)

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
        where, at_least = f"param:{cap.name}", power_of_two(needed) or f"{needed:.3g}"
        evidence = {
            "loss_scale": scale,
            "overflows_at": cap.overflows_at,
            "scale_needed": needed,
            "lost_share": share,
        }

        def says(since: int) -> str:
            return (
                f"No loss scale fits, since step {since}: {in_words(where)} overflows float16 at a scale of"
                f" {scale_text(cap.overflows_at)}, while {in_words(f'param:{worst}')} needs {at_least} and is flushed to"
                f" zero at the present {scale_text(scale)}, at step {iteration.step}"
            )

        return self._book.report(
            RANGE_TOO_WIDE,
            self._book.place_of(RANGE_TOO_WIDE, where),
            iteration.step,
            summary=says,
            phase="backward",
            dtype="float16",
            evidence=evidence,
        )

    def _is_why(self, cap: Cap) -> bool:
        """Whether a gradient has been seen to be so large that it overflows at the scale it did."""
        amax = self._lost.true_amax(cap.name)
        return amax is not None and amax * cap.overflows_at >= CAPPING_SHARE * FLOAT16.max

    def _scale_that_fits(
        self, gradients: Mapping[str, Gradient], worst: str, scale: float
    ) -> float | None:
        """Return a larger scale that would keep what is lost; ``None`` if none is known.

        It leaves the largest gradient room, and where the scale has fallen it is none that no step
        was ever taken with.
        """
        needed, cap = self._lost.scale_needed(worst), self._culprits.cap(apart_from=worst)
        sizes = [g.true_amax for g in gradients.values()]
        fits = fitting_scale(
            max([*sizes, *(self._lost.true_amax(name) or 0.0 for name in gradients)])
        )
        if self._low.largest_applied > scale:
            fits = min(fits, self._low.largest_applied)
        if needed is None or not max(needed, 2.0 * scale) <= fits < math.inf:
            return None
        return None if cap is not None and cap.overflows_at <= fits and self._is_why(cap) else fits

    def _say_underflow(
        self,
        iteration: Iteration,
        *,
        worst: str,
        share_here: float,
        share: float,
        root: Finding | None,
        fits: float | None,
        is_shown: bool,
    ) -> None:
        where, step, scale = f"param:{worst}", iteration.step, iteration.scale_before
        made = self._book.get(GRAD_UNDERFLOW.slug, where)
        evidence = {"loss_scale": scale, "lost_share": share, "lost_share_here": share_here}
        advice = GRAD_UNDERFLOW.advice if is_shown else UNKNOWN_SCALE
        if fits is not None:
            evidence["scale_that_fits"] = fits
            advice = (
                f"Raise the loss scale: scaler.update({scale_argument(fits)}) in place of one scaler.update()."
                f" That leaves the largest gradient room. Or use bfloat16 autocast, which has the range"
                f" of float32. The what-if panel shows what each scale would keep of these gradients."
            )
        if root is not None:
            for symptom in self._book.of_kind(GRAD_UNDERFLOW.slug):
                self._book.explain(symptom, root)
        severity, stopped = GRAD_UNDERFLOW.severity, ""
        if self._stillness.has_stopped:
            severity, stopped = Severity.CRITICAL, self._stillness.says
            evidence |= self._stillness.evidence
        elif made is not None:
            stopped = self._stillness.then(made)
        # It takes two samples to say so, and it was so in the first of them.
        began = max(self._agreeing_since, self._lost_since[worst])
        since = began if made is None else made.first_step
        summary = (
            f"{share_here:.1%} of the gradient elements of {in_words(where)} are zero only because"
            f" of float16, since step {since}, at a loss scale of {scale_text(scale)} at step {step}; of"
            f" all gradients {share:.1%}{stopped}"
        )
        if made is not None:
            made.kind_advice = advice
            if fits is None:
                made.evidence.pop("scale_that_fits", None)
        self._book.report(
            GRAD_UNDERFLOW,
            where,
            step,
            summary=summary,
            severity=severity,
            kind_advice=advice,
            first_step=began,
            phase="backward",
            dtype="float16",
            root=root is None,
            caused_by="" if root is None else root.key,
            evidence=evidence,
        )


class _Stillness:
    """Follows whether any gradient is left in the samples whose step was taken."""

    def __init__(self) -> None:
        self._samples = 0
        self._since = 0
        self._newest = 0
        self._goes_on = False

    def follow(self, step: int, gradients: Mapping[str, Gradient]) -> None:
        """Take in a sample."""
        if any(g.histogram.amax or g.histogram.nonfinite for g in gradients.values()):
            self._samples = 0
            self._goes_on = False
            return
        if not self._samples:
            self._since = step
        self._samples += 1
        self._newest = step

    def go_on(self, step: int) -> None:
        """Take in an iteration that was not measured, and in which no gradient can be left."""
        self._goes_on = True
        self._newest = step

    def keeps_nothing(self, largest: float) -> float:
        """Return the scale up to which nothing can be left of gradients up to eight times as large as before.

        0 where the newest sample has some, or it is not known how large they were.
        """
        known = self._samples and largest
        return FLOAT16.flush_at / (SIMILAR * largest) if known else 0.0

    @property
    def has_stopped(self) -> bool:
        """Whether no weight has had a gradient for so long that the training learns nothing."""
        is_seen = self._samples >= STILL_SAMPLES or self._goes_on
        return is_seen and self._newest - self._since >= STILL_STEPS

    @property
    def says(self) -> str:
        """The end of a sentence about a training that has stopped to learn."""
        return f"; not one gradient is left, so nothing is learnt since step {self._since}"

    @property
    def evidence(self) -> dict[str, float]:
        """The numbers of that."""
        return {"still_first_step": float(self._since), "still_last_step": float(self._newest)}

    def then(self, finding: Finding) -> str:
        """Return, as the end of a sentence, when nothing was learnt; empty if it was never reported."""
        first = finding.evidence.get("still_first_step")
        if first is None:
            return ""
        last = finding.evidence["still_last_step"]
        return f"; not one gradient was left from step {first:.0f} to step {last:.0f}, so nothing was learnt then"
