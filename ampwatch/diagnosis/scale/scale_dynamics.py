"""Findings about how the loss scale moves."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ampwatch.diagnosis.detector import Detector, Shared
from ampwatch.diagnosis.gradients.culprits import Culprits
from ampwatch.diagnosis.scale.falls import SCALE_FLOOR, Fall, SkipRateTest, drift, steps_until
from ampwatch.diagnosis.scale.kinds import (
    SCALE_BELOW_ONE,
    SCALE_COLLAPSE,
    SCALE_RUNAWAY,
    SCALER_WITH_BF16,
)
from ampwatch.diagnosis.scale.scale_words import (
    collapse_summary,
    fallen_advice,
    fallen_summary,
    fitting_scale,
    gradients_seen,
    largest_gradient,
)
from ampwatch.diagnosis.steps.skips import MAX_SKIPS_AT_SCALE
from ampwatch.numerics.formats import FORMATS
from ampwatch.numerics.written import counted, scale_argument, scale_text
from ampwatch.wire.records import GONE_STEP, Finding, Severity, SkipClass, Topic

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ampwatch.diagnosis.evidence.iteration import Iteration, ScalerSettings
    from ampwatch.diagnosis.steps.steps import StepVerdict

FLOAT16 = FORMATS["float16"]

COLLAPSE_SKIPS = 5
"""Skips in a row that neither calibration nor a growth explains, from which the scale is collapsing: a factor of 32."""

RUNAWAY_SCALE = 2.0**32
"""A scale that never met an overflow up to here: a gradient of 2^-16 would have, so all are smaller."""

RUNAWAY_GROWTHS = 8
"""Growths in a row without an overflow before that is reported: some 16 000 steps by default."""


ZERO_GRADIENTS = (
    "Call optimizer.zero_grad() in each iteration, also in one whose step was skipped: what is added to a"
    " gradient that is NaN or infinite stays so, at any loss scale. Stop the run before the scale reaches 2^-128:"
    " from there on weights become infinite."
)

STORM_FALL = 2.0**-3
"""Ratio to the smallest scale that a step was taken with at which skips in a row are a storm: noisy gradients skip several steps in a row from above, and that is how the scale finds them."""

CRITICAL_SKIPS = 8
"""Unexplained skips in a row from which a collapse is critical: a spike of the gradients
costs a few halvings and passes."""

BELOW_ONE_STEPS = 2
"""Steps taken below scale 1 before it is reported: one may be on the way back up."""


RECOVERED_GROWTHS = 3
"""Growths in a row, with no skip in between, after which a scale that has come back to where it was
is there to stay."""


class ScaleDynamics(Detector):
    """Watches the scale of one scaler."""

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self._autocast_dtypes = shared.known.autocast_dtypes
        self._skips = shared.skips
        self._culprits = shared.of(Culprits)
        self._skip_rate = SkipRateTest()
        self._growths_in_a_row = 0
        self._below_one = 0
        self._brought_low = False
        # The largest scaled gradient of the newest sample, and its iteration; None before the first.
        self._gradients: tuple[float | None, int] | None = None
        self._fell_from = math.nan
        self._largest_applied = 0.0
        self._falls: dict[str, Fall] = {}
        self._rate = 1.0
        self._since = 0
        self._low = _Low()
        self._is_useless = False

    def detect(self, iteration: Iteration, verdict: StepVerdict) -> None:
        """Take in one judged iteration."""
        scaler = iteration.scaler
        if scaler is None:
            return
        if Topic.GRADIENT in iteration.topics:
            self._gradients = largest_gradient(iteration), iteration.step
            self._low.see_gradients(iteration)
        self._check_bfloat16(iteration, verdict)
        self._note_movement(iteration, verdict)
        if verdict.skip_class in (SkipClass.UNPROVOKED, SkipClass.STORM):
            self._check_collapse(iteration, verdict, scaler)
        for fall in self._falls.values():
            if fall.finding.last_step < iteration.step:
                self._follow(fall, iteration, verdict, scaler)
        if verdict.applied and not verdict.skipped:
            self._check_below_one(iteration, verdict)
        if self._low.finding is not None and iteration.loss_scale != verdict.scale_before:
            self._renew_below_one(self._low.finding, iteration)

    @property
    def is_at_rest(self) -> bool:
        """Whether a quiet iteration would be nothing to it: no fall is followed."""
        return all(fall.is_over for fall in self._falls.values())

    def count(self, quiet: Sequence[Iteration]) -> None:
        """Take in quiet iterations in a row: a scaler that is of no use stays that."""
        useless = self._book.get(SCALER_WITH_BF16.slug, "api") if self._is_useless else None
        if useless is not None:
            self._book.again_each(useless, quiet, loss_scale=quiet[-1].loss_scale)

    def _note_movement(self, iteration: Iteration, verdict: StepVerdict) -> None:
        # The test compares with the scale it began at, which is no longer the scaler's own doing.
        if verdict.set_by_hand:
            self._brought_low = False
            self._largest_applied = 0.0
            self._skip_rate = SkipRateTest()
        if verdict.skipped and 1 in (self._skips.streak, self._skips.unexplained):
            self._fell_from = verdict.scale_before
        if verdict.applied and not verdict.skipped:
            self._largest_applied = max(self._largest_applied, verdict.scale_before)
        if verdict.backed_off:
            self._brought_low = True
            self._end_runaway(iteration)
            self._growths_in_a_row = 0
        elif verdict.grew:
            self._growths_in_a_row += 1
            self._check_runaway(iteration)

    def _check_collapse(
        self, iteration: Iteration, verdict: StepVerdict, scaler: ScalerSettings
    ) -> None:
        rate = self._skip_rate.skipped(iteration.step, verdict.scale_before, scaler)
        storm = (
            self._skips.unexplained >= COLLAPSE_SKIPS
            # ``not >`` and not ``<=``: of a scale that is not known the skips alone are evidence.
            # And of one that stays where it is, under a guard.
            and (
                self._is_stuck or not iteration.loss_scale > self._skips.lowest_applied * STORM_FALL
            )
        )
        if storm:
            rate = 1.0
        if rate is None:
            return
        # A storm is dated by its own first skip: the slower test may have begun long before it. That
        # skip is taken for a probe where the scale had just grown, until more follow it.
        since = iteration.step - self._skips.streak + 1 if storm else self._skip_rate.since
        where = _optimizer(iteration, skipped=True)
        finding = self._book.get(SCALE_COLLAPSE.slug, where)
        if finding is None:
            finding = SCALE_COLLAPSE.finding(
                where,
                iteration.step,
                summary="",
                kind_advice="",
                first_step=since,
                phase="backward",
                count=self._skips.streak if storm else self._skip_rate.skips,
            )
            before = self._fell_from if storm else self._skip_rate.scale_before
            self._falls[where] = Fall(finding, before)
            self._falls[where].goes_on(iteration.loss_scale)
            self._rate, self._since = rate, since
            self._describe(finding, iteration, scaler)
            self._book.make(finding)
            return
        self._is_back(finding)
        again = self._book.count(finding, iteration.step)
        fall = self._falls[where]
        again = again or fall.is_over
        fall.goes_on(iteration.loss_scale)
        self._rate, self._since = rate, since
        critical = self._skips.unexplained >= CRITICAL_SKIPS
        # Only up: a collapse that was critical once is not less so in its next step.
        worse = critical and finding.severity is Severity.WARNING
        if worse:
            finding.severity = Severity.CRITICAL
        self._describe(finding, iteration, scaler)
        if again or worse:
            self._book.report_change(finding)

    @property
    def _is_stuck(self) -> bool:
        return self._skips.at_scale >= max(COLLAPSE_SKIPS, MAX_SKIPS_AT_SCALE + 1)

    def _describe(self, finding: Finding, iteration: Iteration, scaler: ScalerSettings) -> None:
        """Put the numbers as they stand, and the forecast, into the finding of what goes on."""
        rate = self._rate
        change = drift(rate, scaler)
        to_floor = steps_until(iteration.loss_scale, SCALE_FLOOR, change)
        streak = self._skips.streak or int(finding.evidence.get("consecutive_skips", 0.0))
        finding.evidence = {
            "loss_scale": iteration.loss_scale,
            "loss_scale_before": self._falls[finding.where].before,
            "consecutive_skips": float(streak),
            "skips_first_step": float(self._since),
            "skip_rate": rate,
            "steps_to_one": _number(steps_until(iteration.loss_scale, 1.0, change)),
            "steps_to_floor": _number(to_floor),
        }
        finding.summary = collapse_summary(
            iteration,
            scaler,
            self._since,
            streak,
            rate=rate,
            to_floor=to_floor,
            is_stuck=self._is_stuck,
        )
        finding.summary += self._culprits.in_words()
        # What is over has its remedy, what goes on another one.
        finding.kind_advice = ZERO_GRADIENTS if self._culprits.left_over else SCALE_COLLAPSE.advice

    def _follow(
        self, fall: Fall, iteration: Iteration, verdict: StepVerdict, scaler: ScalerSettings
    ) -> None:
        """Say what has become of a collapse since its newest skip: it ends, or grows back."""
        finding = fall.finding
        is_new = fall.follow(iteration, skipped=verdict.skipped)
        has_moved = iteration.loss_scale != verdict.scale_before
        if not fall.is_over:
            if has_moved:
                self._describe(finding, iteration, scaler)
                self._book.report_change(finding)
            return
        is_back = fall.has_come_back and self._growths_in_a_row >= RECOVERED_GROWTHS
        if is_back and finding.severity is not Severity.INFO:
            # Nobody has to be woken by what is over.
            finding.severity, is_new = Severity.INFO, True
        # Until it grows the scale may still be brought down by steps that are skipped now and then.
        if not is_new and not (has_moved and fall.reached_step < 0):
            return
        scale = max(iteration.loss_scale, fall.reached)
        growths = _growths(scale, fall.before, scaler)
        steps_back = growths * scaler.growth_interval if growths else 0.0
        finding.evidence = {
            "loss_scale": iteration.loss_scale,
            "loss_scale_before": fall.before,
            "loss_scale_after": fall.after,
            "loss_scale_reached": fall.reached,
            "reached_step": float(fall.reached_step),
            "newest_step": float(iteration.step),
            "steps_back": float(steps_back),
        }
        if fall.reached_step < 0:
            del finding.evidence["loss_scale_reached"], finding.evidence["reached_step"]
        finding.summary = fallen_summary(fall, iteration.loss_scale, iteration.step)
        finding.kind_advice = fallen_advice(
            fall, scaler, steps_back, fitted=fall.before <= self._largest_applied
        )
        self._book.report_change(finding)

    def _check_below_one(self, iteration: Iteration, verdict: StepVerdict) -> None:
        low = self._low
        if verdict.scale_before >= 1.0:
            self._below_one = 0
            if low.finding is not None and not low.finding.is_gone:
                self._describe_over(low.finding, iteration)
                self._book.end(low.finding, iteration.step)
            return
        # A scale that the user put there is the user's business.
        if not self._brought_low:
            self._below_one = 0
            return
        if not self._below_one and (low.finding is None or low.finding.is_gone):
            low.since = iteration.step
        self._below_one += 1
        low.deepest = min(low.deepest, verdict.scale_before)
        # The worst parameter changes from step to step; the place is that of the first finding, or
        # each step would make a new one.
        if low.finding is not None:
            self._describe_low(low.finding, iteration)
            self._is_back(low.finding)
            self._book.again(low.finding, iteration.step)
            return
        if self._below_one < BELOW_ONE_STEPS:
            return
        worst = self._culprits.worst
        low.finding = SCALE_BELOW_ONE.finding(
            f"param:{worst}" if worst else _optimizer(iteration, skipped=False),
            iteration.step,
            summary="",
            first_step=low.since,
            phase="backward",
            count=self._below_one,
        )
        self._describe_low(low.finding, iteration)
        self._book.make(low.finding)

    def _describe_low(self, finding: Finding, iteration: Iteration) -> None:
        """Put the scale as it stands below one, and what is known of the gradients, into the finding."""
        low, scale = self._low, iteration.loss_scale
        finding.evidence = {
            "loss_scale": scale,
            "newest_step": float(iteration.step),
            **self._again(finding),
        }
        says = (
            f"The loss scale is below 1 since step {low.since}, {scale_text(scale)} at step"
            f" {iteration.step}: a scale below 1 reduces the loss"
        )
        finding.kind_advice = SCALE_BELOW_ONE.advice
        if low.amax > 0.0:
            finding.evidence["largest_gradient"] = low.amax
            finding.evidence["measured_step"] = float(low.measured)
            fits = min(fitting_scale(low.amax), self._largest_applied)
            if low.amax >= FLOAT16.max:
                says += (
                    f", because the true gradients are too large for float16: the largest was"
                    f" {low.amax:.3g} at step {low.measured}"
                )
            elif fits > max(1.0, scale):
                finding.evidence["scale_that_fits"] = fits
                says += (
                    f", although the largest gradient, {low.amax:.3g} without the scale at step"
                    f" {low.measured}, would fit a larger one"
                )
                finding.kind_advice = (
                    f"Raise the scale by hand once the cause of its fall is gone:"
                    f" scaler.update({scale_argument(fits)}) in place of one scaler.update(). It is the largest"
                    f" that steps were taken with and that leaves the gradients room. If it falls"
                    f" again, average the loss instead of summing it, normalise the targets, or use"
                    f" bfloat16 autocast without a GradScaler."
                )
        finding.summary = says

    def _describe_over(self, finding: Finding, iteration: Iteration) -> None:
        """Put that the scale is back at 1 or above, and how low it was, into the finding."""
        low, scale = self._low, iteration.loss_scale
        finding.summary = (
            f"The loss scale was below 1 between steps {low.since} and {finding.last_step},"
            f" {scale_text(low.deepest)} at the lowest; it has come back to {scale_text(scale)} by step"
            f" {iteration.step}"
        )
        finding.kind_advice = SCALE_BELOW_ONE.advice  # there is nothing to raise by hand any more
        gone = {name: at for name, at in finding.evidence.items() if name == GONE_STEP}
        finding.evidence = {
            "loss_scale": scale,
            "loss_scale_lowest": low.deepest,
            "newest_step": float(iteration.step),
            **self._again(finding),
            **gone,
        }

    def _again(self, finding: Finding) -> dict[str, float]:
        """Return since when the scale is below one again, if it was at 1 or above in between."""
        since = self._low.since
        return {} if since == finding.first_step else {"again_first_step": float(since)}

    def _renew_below_one(self, finding: Finding, iteration: Iteration) -> None:
        """Bring what is reported about a scale below one up to date: the scale has moved."""
        is_above = iteration.loss_scale >= 1.0
        if finding.severity is Severity.INFO:
            return
        if is_above and self._growths_in_a_row >= RECOVERED_GROWTHS:
            finding.severity = Severity.INFO
        if is_above and (finding.is_gone or finding.severity is Severity.INFO):
            self._describe_over(finding, iteration)
        else:
            if finding.is_gone:
                self._low.since = iteration.step
            self._describe_low(finding, iteration)
        self._book.report_change(finding)

    def _check_runaway(self, iteration: Iteration) -> None:
        if self._growths_in_a_row < RUNAWAY_GROWTHS or iteration.loss_scale < RUNAWAY_SCALE:
            return
        evidence = {
            "loss_scale": iteration.loss_scale,
            "growths_in_a_row": float(self._growths_in_a_row),
        }
        seen = ""
        if self._gradients is not None:
            amax, measured = self._gradients
            evidence["measured_step"] = float(measured)
            if amax is not None:
                evidence["largest_scaled_gradient"] = amax
            seen = gradients_seen(amax, measured)
        says = (
            f"The loss scale has grown {counted(self._growths_in_a_row, 'time')} in a row to"
            f" {scale_text(iteration.loss_scale)} at step {iteration.step} without an overflow{seen}"
        )
        self._book.report(
            SCALE_RUNAWAY, "api", iteration.step, summary=says, phase="backward", evidence=evidence
        )

    def _end_runaway(self, iteration: Iteration) -> None:
        """Say that a scale that grew without end has met an overflow."""
        finding = self._book.get(SCALE_RUNAWAY.slug, "api")
        if finding is None or not self._growths_in_a_row:
            return
        reached = finding.evidence["loss_scale"]
        finding.evidence["loss_scale_reached"] = reached
        finding.evidence["loss_scale"] = iteration.loss_scale
        finding.evidence["newest_step"] = float(iteration.step)
        finding.summary = (
            f"The loss scale grew {counted(finding.evidence['growths_in_a_row'], 'time')} in a row, to"
            f" {scale_text(reached)} by step {finding.last_step}, before it met an overflow at step"
            f" {iteration.step}"
        )
        self._book.report_change(finding)

    def _is_back(self, finding: Finding) -> None:
        """Say that what was over begins again."""
        if finding.severity is Severity.INFO:
            finding.severity = Severity.WARNING
            self._book.report_change(finding)

    def _check_bfloat16(self, iteration: Iteration, verdict: StepVerdict) -> None:
        # With float16 anywhere the scaler is of use, whatever else runs in bfloat16.
        dtypes = self._autocast_dtypes
        self._is_useless = "bfloat16" in dtypes and "float16" not in dtypes
        if not self._is_useless:
            return
        self._book.report(
            SCALER_WITH_BF16,
            "api",
            iteration.step,
            summary=lambda since: (
                f"A GradScaler is enabled although autocast runs in bfloat16, since step"
                f" {since}: it does useless work, its scale means nothing, and it hides skipped steps"
            ),
            phase="config",
            dtype="bfloat16",
            evidence={"loss_scale": iteration.loss_scale},
        )
        if verdict.grew or verdict.skipped:
            self._bfloat16_does_harm()

    def _bfloat16_does_harm(self) -> None:
        # As long as the scale rests the scaler only costs time; moving, it skips steps
        # or climbs without end.
        finding = self._book.get(SCALER_WITH_BF16.slug, "api")
        if finding is not None and finding.severity is Severity.INFO:
            finding.severity = Severity.WARNING
            self._book.report_change(finding)


class _Low:
    """A scale below one, and the gradients that it is there for.

    Attributes:
        finding: The finding about it; ``None`` before it has been made.
        since: The iteration since which it is below one this time.
        deepest: The smallest scale that a step was taken with.
        amax: The largest magnitude of a gradient in the newest sample in which all were finite, without
            the loss scale; 0 before.
        measured: The iteration of that sample.
    """

    def __init__(self) -> None:
        self.finding: Finding | None = None
        self.since = 0
        self.deepest = 1.0
        self.amax = 0.0
        self.measured = 0

    def see_gradients(self, iteration: Iteration) -> None:
        seen = [r for r in iteration.ranges if r.topic is Topic.GRADIENT]
        scale = iteration.scale_before
        if any(r.histogram.nonfinite for r in seen) or not scale > 0.0:
            return
        sizes = [r.histogram.amax / scale if r.scaled else r.histogram.amax for r in seen]
        if sizes and max(sizes) > 0.0:
            self.amax, self.measured = max(sizes), iteration.step


def _growths(scale: float, target: float, scaler: ScalerSettings) -> float:
    """Return how many growths it takes from a scale to a larger one; infinite from zero."""
    if scale >= target:
        return 0.0
    if scale <= 0.0:
        return math.inf
    return math.ceil(math.log(target / scale) / math.log(scaler.growth_factor))


def _optimizer(iteration: Iteration, *, skipped: bool) -> str:
    """Return the place of the first optimizer whose step was skipped, or was not."""
    indices = [i for i, found in iteration.found_inf.items() if found == skipped]
    return f"optimizer:{min(indices, default=0)}"


def _number(steps: int | None) -> float:
    return math.inf if steps is None else float(steps)
