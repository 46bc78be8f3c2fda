"""Findings about how the loss scale moves."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ampwatch.diagnosis.counting import counted
from ampwatch.diagnosis.kinds.kind import (
    AT_FAULT,
    Kind,
    KindFamily,
    after,
    backwards,
    certain,
    during,
    since,
)
from ampwatch.diagnosis.scale.drift import SkipRateTest
from ampwatch.diagnosis.scale.forecast import SCALE_FLOOR, drift, steps_until
from ampwatch.diagnosis.scale.scale_words import collapse_summary, gradients_seen
from ampwatch.wire.records import Finding, Severity, SkipClass, Topic

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ampwatch.diagnosis.book import FindingBook
    from ampwatch.diagnosis.evidence.iteration import Iteration, ScalerSettings
    from ampwatch.diagnosis.gradients.culprits import Culprits
    from ampwatch.diagnosis.steps.skips import SkipClassifier
    from ampwatch.diagnosis.steps.steps import StepVerdict
    from ampwatch.settings import Settings

ANNOUNCED_STEPS = 10
"""A collapse that begins so soon after an output was said to approach its limit is that."""


def _was_announced(collapse: Finding, rise: Finding) -> bool:
    return 0 <= collapse.first_step - rise.last_step <= ANNOUNCED_STEPS


def _began_together(collapse: Finding, left: Finding) -> bool:
    """Whether the forward that began a collapse has left its trace in a buffer."""
    return abs(collapse.first_step - left.first_step) <= 1


def _goes_on(collapse: Finding, left: Finding) -> bool:
    """Whether steps were skipped when the forward wrote what gradients are made of."""
    return collapse.last_step >= left.first_step - 1


SCALE_COLLAPSE = Kind(
    slug="scale_collapse",
    number=7,
    family=KindFamily.SCALE_DYNAMICS,
    meaning="every step is skipped and the scale falls towards zero",
    severities=(Severity.WARNING, Severity.CRITICAL, Severity.INFO),
    certainty=certain("skipped steps and the loss scale were read from the scaler"),
    advice=(
        "Find the op that overflows: the scale is only the messenger, and lowering it cures nothing"
        " that does not depend on it. Look at the loss first; if it is finite, at the gradients of"
        " the optimizer named here before scaler.unscale_(). Stop the run before the scale reaches"
        " 2^-128: from there on weights become infinite. bfloat16 autocast without a GradScaler"
        " avoids the float16 limit altogether."
    ),
    explained_by=(
        AT_FAULT
        + since("unscaled_step", "fp8_scale_nonfinite", "shared_scaler_desync")
        + after("param_nonfinite")
        + after("headroom_low", fits=_was_announced)
        + after("buffer_nonfinite", fits=_began_together)
        + backwards("param_nonfinite", "scale_below_one", "scale_stuck_low")
        + backwards("buffer_nonfinite", fits=_goes_on)
        + during("periodic_skip", "shared_scaler_desync", "compile_backward_autocast", "divergence")
    ),
)

SCALE_BELOW_ONE = Kind(
    slug="scale_below_one",
    number=8,
    family=KindFamily.SCALE_DYNAMICS,
    meaning="training goes on with a loss scale below 1",
    severities=(Severity.WARNING, Severity.INFO),
    certainty=certain("the loss scale was read from the scaler at steps that were taken"),
    advice=(
        "The float16 range does not fit the gradients of this model: average the loss instead of"
        " summing it, normalise the targets, or use bfloat16 autocast without a GradScaler."
    ),
    explained_by=(
        AT_FAULT
        + since("unscaled_step", "fp8_scale_nonfinite", "shared_scaler_desync")
        + after("range_too_wide")
        + backwards("range_too_wide", "scale_stuck_low")
        + during("periodic_skip", "shared_scaler_desync", "compile_backward_autocast", "divergence")
    ),
)

SCALE_RUNAWAY = Kind(
    slug="scale_runaway",
    number=9,
    family=KindFamily.SCALE_DYNAMICS,
    meaning="the scale doubles and doubles and never meets an overflow",
    severities=(Severity.WARNING,),
    certainty=certain("every growth of the loss scale was counted, and no overflow came between"),
    advice=(
        "Find out why the gradients are all but zero: a detached loss, dead ReLUs, a zero loss"
        " weight. If they are not, something hides their infinities from the scaler, which has to see"
        " them to lower the scale: take nan_to_num and clamp out of hooks of gradients, and from"
        " between backward and scaler.step. If autocast is bfloat16 or off, no scaler is needed:"
        " GradScaler(enabled=(dtype is torch.float16))."
    ),
    explained_by=after("scaler_with_bf16"),
)

SCALER_WITH_BF16 = Kind(
    slug="scaler_with_bf16",
    number=10,
    family=KindFamily.SCALE_DYNAMICS,
    meaning="a GradScaler is enabled although autocast computes in bfloat16",
    severities=(Severity.INFO, Severity.WARNING),
    certainty=certain("the scaler is enabled and every autocast region seen was bfloat16"),
    advice=(
        "bfloat16 has the exponent range of float32 and needs no loss scaling; the scaler only adds"
        " work and can skip steps: GradScaler(enabled=(dtype is torch.float16))."
    ),
)


STORM_FALL = 2.0**-3
"""Ratio to the smallest scale that a step was taken with at which skips in a row are a storm: noisy gradients skip several steps in a row from above, and that is how the scale finds them."""

CRITICAL_SKIPS = 8
"""Unexplained skips in a row from which a collapse is critical: a spike of the gradients
costs a few halvings and passes."""

BELOW_ONE_STEPS = 2
"""Steps taken below scale 1 before it is said: one may be on the way back up."""


RECOVERED_GROWTHS = 3
"""Growths in a row, with no skip in between, after which a collapse or a scale below one is over."""

RECOVERED = "; it has recovered since"


class ScaleDynamics:
    """Watches the scale of one scaler.

    Args:
        book: Where findings go.
        settings: Thresholds.
        skips: Knows the current streaks.
        culprits: Knows whose gradients made the steps be skipped.
    """

    def __init__(
        self,
        book: FindingBook,
        settings: Settings,
        skips: SkipClassifier,
        culprits: Culprits,
    ) -> None:
        self._book = book
        self._settings = settings
        self._skips = skips
        self._culprits = culprits
        self._skip_rate = SkipRateTest()
        self._growths_in_a_row = 0
        self._below_one = 0
        self._brought_low = False
        self._gradients = ""

    def detect(
        self, iteration: Iteration, verdict: StepVerdict, autocast_dtypes: Sequence[str]
    ) -> None:
        """Take in one judged iteration.

        Args:
            iteration: The iteration.
            verdict: The verdict on it.
            autocast_dtypes: Names of the autocast dtypes seen so far.
        """
        scaler = iteration.scaler
        if scaler is None:
            return
        if Topic.GRADIENT in iteration.topics:
            self._gradients = gradients_seen(iteration)
        self._check_bfloat16(iteration, verdict, autocast_dtypes)
        # The test compares with the scale it began at, which is no longer the scaler's own doing.
        if verdict.set_by_hand:
            self._brought_low = False
            self._skip_rate = SkipRateTest()
        if verdict.backed_off:
            self._brought_low = True
            self._growths_in_a_row = 0
        elif verdict.grew:
            self._growths_in_a_row += 1
            self._check_runaway(iteration)
            if self._growths_in_a_row == RECOVERED_GROWTHS:
                self._is_over(SCALE_COLLAPSE.slug)
            if self._growths_in_a_row >= RECOVERED_GROWTHS and iteration.loss_scale >= 1.0:
                self._is_over(SCALE_BELOW_ONE.slug)
        if verdict.skip_class in (SkipClass.UNPROVOKED, SkipClass.STORM):
            self._check_collapse(iteration, verdict, scaler)
        if verdict.applied and not verdict.skipped:
            self._check_below_one(iteration, verdict)

    def _check_collapse(
        self, iteration: Iteration, verdict: StepVerdict, scaler: ScalerSettings
    ) -> None:
        rate = self._skip_rate.skipped(iteration.step, verdict.scale_before, scaler)
        storm = (
            self._skips.unexplained >= self._settings.collapse_skips
            and iteration.loss_scale <= self._skips.lowest_applied * STORM_FALL
        )
        if storm:
            rate = 1.0
        if rate is None:
            return
        # A storm is dated by its own first skip: the slower test may have begun long before it.
        since = iteration.step - self._skips.unexplained + 1 if storm else self._skip_rate.since
        where = _optimizers_with_found_inf(iteration)
        finding = self._book.get(SCALE_COLLAPSE.slug, where)
        if finding is None:
            finding = Finding(
                kind=SCALE_COLLAPSE.slug,
                severity=SCALE_COLLAPSE.severity,
                where=where,
                summary="",
                advice=SCALE_COLLAPSE.advice,
                phase="backward",
                first_step=since,
                last_step=iteration.step,
                count=self._skips.unexplained if storm else self._skip_rate.skips,
            )
            self._describe(finding, iteration, scaler, since=since, rate=rate)
            self._book.make(finding)
            return
        self._is_back(finding)
        again = self._book.count(finding, iteration.step)
        critical = self._skips.unexplained >= CRITICAL_SKIPS
        # Only up: a collapse that was critical once is not less so in its next step.
        worse = critical and finding.severity is Severity.WARNING
        if worse:
            finding.severity = Severity.CRITICAL
        self._describe(finding, iteration, scaler, since=since, rate=rate)
        if again or worse:
            self._book.report_change(finding)

    def _describe(
        self,
        finding: Finding,
        iteration: Iteration,
        scaler: ScalerSettings,
        *,
        since: int,
        rate: float,
    ) -> None:
        """Put the numbers as they stand, and the forecast, into the finding."""
        change = drift(rate, scaler)
        to_floor = steps_until(iteration.loss_scale, SCALE_FLOOR, change)
        finding.evidence = {
            "loss_scale": iteration.loss_scale,
            "consecutive_skips": float(self._skips.streak),
            "skip_rate": rate,
            "steps_to_one": _number(steps_until(iteration.loss_scale, 1.0, change)),
            "steps_to_floor": _number(to_floor),
        }
        finding.summary = collapse_summary(
            iteration, scaler, since, self._skips.streak, rate=rate, to_floor=to_floor
        )
        if self._culprits.worst:
            finding.summary += (
                f"; most non-finite gradients are those of param:{self._culprits.worst}"
            )

    def _check_below_one(self, iteration: Iteration, verdict: StepVerdict) -> None:
        # A scale that the user put there is the user's business.
        if not (verdict.scale_before < 1.0 and self._brought_low):
            self._below_one = 0
            return
        self._below_one += 1
        worst = self._culprits.worst
        # The worst parameter changes from step to step; the place is that of the first finding, or
        # each step would make a new one.
        where = f"param:{worst}" if worst else _optimizers_of(iteration)
        made = self._book.of_kind(SCALE_BELOW_ONE.slug)
        where = made[-1].where if made else where
        scale = iteration.loss_scale
        if made:
            self._is_back(made[-1])

        def says(since: int) -> str:
            return (
                f"Training goes on with a loss scale of {scale:.6g}, below 1 since step"
                f" {since}: there the loss is being shrunk, so the true gradients are too large"
                f" for float16"
            )

        if (
            self._book.again(SCALE_BELOW_ONE.slug, where, iteration.step, says, loss_scale=scale)
            or self._below_one < BELOW_ONE_STEPS
        ):
            return
        first = iteration.step - self._below_one + 1
        finding = Finding(
            kind=SCALE_BELOW_ONE.slug,
            severity=SCALE_BELOW_ONE.severity,
            where=where,
            summary=says(first),
            advice=SCALE_BELOW_ONE.advice,
            phase="backward",
            first_step=first,
            last_step=iteration.step,
            count=self._below_one,
            evidence={"loss_scale": iteration.loss_scale},
        )
        self._book.make(finding)

    def _check_runaway(self, iteration: Iteration) -> None:
        if (
            self._growths_in_a_row < self._settings.runaway_growths
            or iteration.loss_scale < self._settings.runaway_scale
        ):
            return
        evidence = {
            "loss_scale": iteration.loss_scale,
            "growths_in_a_row": float(self._growths_in_a_row),
        }
        says = (
            f"The loss scale has grown {counted(self._growths_in_a_row, 'time')} in a row to"
            f" {iteration.loss_scale:.6g} at step {iteration.step} and never met an overflow"
            f"{self._gradients}"
        )
        if self._book.again(SCALE_RUNAWAY.slug, "api", iteration.step, lambda _: says, **evidence):
            return
        finding = Finding(
            kind=SCALE_RUNAWAY.slug,
            severity=SCALE_RUNAWAY.severity,
            where="api",
            summary=says,
            advice=SCALE_RUNAWAY.advice,
            phase="backward",
            first_step=iteration.step,
            last_step=iteration.step,
            evidence=evidence,
        )
        self._book.make(finding)

    def _is_over(self, kind: str) -> None:
        """Say of what the scale has come back from that it is over: nobody has to be woken."""
        for finding in self._book.of_kind(kind):
            if finding.severity is not Severity.INFO:
                finding.severity = Severity.INFO
                finding.summary += RECOVERED
                self._book.report_change(finding)

    def _is_back(self, finding: Finding) -> None:
        """Say that what was over begins again."""
        if finding.severity is Severity.INFO:
            finding.severity = Severity.WARNING
            finding.summary = finding.summary.removesuffix(RECOVERED)
            self._book.report_change(finding)

    def _check_bfloat16(
        self, iteration: Iteration, verdict: StepVerdict, autocast_dtypes: Sequence[str]
    ) -> None:
        # With float16 anywhere the scaler is of use, whatever else runs in bfloat16.
        if "bfloat16" not in autocast_dtypes or "float16" in autocast_dtypes:
            return
        scale = iteration.loss_scale
        if not self._book.again(SCALER_WITH_BF16.slug, "api", iteration.step, loss_scale=scale):
            self._book.make(
                Finding(
                    kind=SCALER_WITH_BF16.slug,
                    severity=SCALER_WITH_BF16.severity,
                    where="api",
                    summary=(
                        f"A GradScaler is enabled although autocast runs in bfloat16, since step"
                        f" {iteration.step}: it does useless work, its scale means nothing, and it"
                        f" hides skipped steps"
                    ),
                    advice=SCALER_WITH_BF16.advice,
                    phase="config",
                    dtype="bfloat16",
                    first_step=iteration.step,
                    last_step=iteration.step,
                    evidence={"loss_scale": scale},
                )
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


def _optimizers_with_found_inf(iteration: Iteration) -> str:
    return _first_of([i for i, found in iteration.found_inf.items() if found])


def _optimizers_of(iteration: Iteration) -> str:
    return _first_of([i for i, found in iteration.found_inf.items() if not found])


def _first_of(indices: Sequence[int]) -> str:
    return f"optimizer:{min(indices, default=0)}"


def _number(steps: int | None) -> float:
    return math.inf if steps is None else float(steps)
