"""Findings about optimizer steps that leave the weights as they were."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ampwatch.diagnosis.detector import Detector, Shared, takes
from ampwatch.diagnosis.evidence.rounding import UPDATE_SPAN, Stuck, What
from ampwatch.diagnosis.rounding.kinds import UPDATE_ROUNDING
from ampwatch.numerics.formats import FORMATS, HALF
from ampwatch.numerics.written import counted
from ampwatch.wire.records import Severity, Topic, in_words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ampwatch.diagnosis.evidence.iteration import Iteration, TensorRange
    from ampwatch.diagnosis.steps.steps import StepVerdict


UNCHANGED_SHARE = 0.9
"""Share of the elements of a parameter that must stay the same."""

STUCK_SHARE = 0.5
"""Share, at least, of the elements with a gradient that is not zero that must be among them: rows of an embedding that
do not occur stay the same as well."""

STILL_STEPS = 50
"""Iterations in which no compared element of any parameter must have changed for the training to
have stopped to learn."""


STOPPED = ". No parameter changes any more: nothing is learnt"
"""End of the summary while a training has stopped to learn."""


class UpdatePrecision(Detector):
    """Detects updates that round away in parameters kept in float16 or bfloat16."""

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self._dtypes: dict[str, str] = {}
        self._nonzero_gradients: dict[str, float] = {}
        self._skipped_at = -math.inf
        self._still_since: dict[str, float] = {}
        self._stopped: tuple[float, float] | None = None
        self._summary = ""

    def detect(self, iteration: Iteration, _verdict: StepVerdict) -> None:
        """Take in one judged iteration."""
        stuck = []
        if any(iteration.found_inf.values()):
            self._skipped_at = iteration.step
        for r in iteration.ranges:
            if r.topic is Topic.WEIGHT:
                self._dtypes[r.name] = r.dtype
            elif r.topic is Topic.GRADIENT and not r.histogram.nonfinite:
                self._nonzero_gradients[r.name] = 1.0 - r.histogram.zero_share
            elif r.topic is Topic.UPDATE and r.span >= UPDATE_SPAN:
                stuck.append(r)
        # Steps that were not taken change nothing in any precision.
        taken = iteration.step - self._skipped_at
        self._follow_stillness(iteration, taken)
        stuck = [r for r in stuck if r.span < taken and self._rounds_away(r)]
        if stuck:
            self._say(iteration, stuck)
        self._take_back(iteration)

    @takes(Stuck)
    def observe(self, seen: Stuck) -> None:
        """Take in an addition to a weight, by an optimizer or by what the program has in its place."""
        if seen.what is not What.WEIGHT:
            return
        # Of an embedding, of which few rows are added to, most elements stay as they are because nothing is
        # added to them. ``_rounds_away`` asks the same of gradients.
        is_enough = seen.changing > 1.0 - UNCHANGED_SHARE
        if not is_enough or min(seen.lost, seen.same) < UNCHANGED_SHARE:
            return
        step, where = seen.site.step, seen.site.where
        made = self._book.of_kind(UPDATE_ROUNDING.slug)
        # Numbers of another weight would stand beside the name of the one it was made for.
        if made and (made[-1].where != where or self._stopped is not None):
            return
        span = f"{seen.steps} steps" if seen.steps >= UPDATE_SPAN else f"{seen.additions} additions"
        self._summary = (
            f"Updates round away: what {seen.site.op} adds to {in_words(where)} ({seen.dtype}) at step {step} has no"
            f" effect on {seen.lost:.1%} of the elements, and {seen.same:.1%} have not changed in {span}; an update"
            f" more than 2^{FORMATS[seen.dtype].mantissa_bits + 1} times smaller than the weight vanishes"
        )
        self._book.report(
            UPDATE_ROUNDING,
            where,
            step,
            summary=self._summary,
            severity=UPDATE_ROUNDING.severity,
            first_step=step - seen.steps,
            op=seen.site.op,
            phase="optimizer",
            dtype=seen.dtype,
            source=seen.site.source,
            evidence={
                "lost_share": seen.lost,
                "unchanged_share": seen.same,
                "over_steps": float(seen.steps),
                "over_additions": float(seen.additions),
            },
        )

    def _follow_stillness(self, iteration: Iteration, taken: float) -> None:
        """Take in since when each parameter has not changed at all; infinite for one that has."""
        for r in iteration.ranges:
            if r.topic is not Topic.UPDATE:
                continue
            if r.histogram.nonzero or r.histogram.nonfinite:
                self._still_since[r.name] = math.inf
            elif UPDATE_SPAN <= r.span < taken:
                since = self._still_since.get(r.name, math.inf)
                self._still_since[r.name] = min(since, iteration.step - r.span)
            else:
                self._still_since.setdefault(r.name, math.inf)

    def _has_stopped(self, step: int) -> bool:
        """Whether no parameter has changed for so long that the training learns nothing."""
        return step - max(self._still_since.values(), default=math.inf) >= STILL_STEPS

    def _rounds_away(self, r: TensorRange) -> bool:
        with_gradient = self._nonzero_gradients.get(r.name, 0.0)
        unchanged = r.histogram.zero_share
        return (
            self._dtypes.get(r.name) in HALF
            and not r.histogram.nonfinite
            and with_gradient > 1.0 - UNCHANGED_SHARE
            and unchanged >= UNCHANGED_SHARE
            and unchanged + with_gradient - 1.0 >= STUCK_SHARE * with_gradient
        )

    def _say(self, iteration: Iteration, stuck: Sequence[TensorRange]) -> None:
        # Of a large parameter some elements were compared: its own weight is unknown here,
        # but the order is right, and one place is enough to begin with.
        worst = max(stuck, key=lambda r: r.histogram.zeros)
        dtype = self._dtypes[worst.name]
        mantissa = FORMATS[dtype].mantissa_bits + 1
        evidence = {
            "unchanged_share": worst.histogram.zero_share,
            "over_steps": float(worst.span),
            "gradient_nonzero_share": self._nonzero_gradients[worst.name],
            "parameters": float(len(stuck)),
        }
        where = f"param:{worst.name}"
        alike = f"{counted(len(stuck), 'parameter')} {'is' if len(stuck) == 1 else 'are'} like that"
        made = self._book.of_kind(UPDATE_ROUNDING.slug)
        # Numbers of another parameter would stand beside the name of the one it was made for.
        if not made or made[-1].where == where:
            self._summary = (
                f"Updates round away: {worst.histogram.zero_share:.1%} of the elements of"
                f" {in_words(where)} ({dtype}) have not changed in the {worst.span} steps up to step"
                f" {iteration.step}, although {self._nonzero_gradients[worst.name]:.1%} have a gradient that is not zero; an update more than"
                f" 2^{mantissa} times smaller than the weight vanishes. {alike}"
            )
        else:
            evidence = {}
        severity, stopped = UPDATE_ROUNDING.severity, self._once_stopped()
        if self._has_stopped(iteration.step):
            severity, stopped = Severity.CRITICAL, STOPPED
            # An update is measured over the steps before it as well, of which there may be fewer.
            self._stopped = max(0.0, *self._still_since.values()), float(iteration.step)
        if self._stopped is not None:
            evidence["still_first_step"], evidence["still_last_step"] = self._stopped
        self._book.report(
            UPDATE_ROUNDING,
            made[-1].where if made else where,
            iteration.step,
            summary=self._summary + stopped,
            severity=severity,
            first_step=max(0, iteration.step - worst.span),
            phase="optimizer",
            dtype=dtype,
            evidence=evidence,
        )

    def _take_back(self, iteration: Iteration) -> None:
        """Take back that nothing is learnt: weights change again."""
        made = self._book.of_kind(UPDATE_ROUNDING.slug)
        if (
            made
            and made[-1].severity is Severity.CRITICAL
            and not self._has_stopped(iteration.step)
        ):
            made[-1].severity = UPDATE_ROUNDING.severity
            made[-1].summary = self._summary + self._once_stopped()
            self._book.report_change(made[-1])

    def _once_stopped(self) -> str:
        """Return, as the end of a summary, when nothing was learnt; empty if that never was so."""
        if self._stopped is None:
            return ""
        first, last = self._stopped
        return f". No parameter changed from step {first:.0f} to step {last:.0f}: nothing was learnt then"
