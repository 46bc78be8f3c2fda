"""Findings about unscaled gradients that a program has taken through float16."""

from __future__ import annotations

from ampwatch.diagnosis.detector import Detector, Shared, takes
from ampwatch.diagnosis.evidence.rounding import FlushedGradients
from ampwatch.diagnosis.gradients.kinds import GRAD_UNDERFLOW
from ampwatch.numerics.formats import FORMATS
from ampwatch.wire.records import in_words

LOST_OF_ONE = 0.5
"""Share of a parameter's gradient that must be lost."""

MAX_OTHERS = 0.02
"""Share of the elements that do not fit: larger ones that were lost as well, smaller ones that were not."""

MIN_SAMPLES = 2
"""Samples in a row that must agree."""

ADVICE = (
    "Do between scaler.scale(loss).backward() and scaler.unscale_(optimizer) what is done with gradients in float16:"
    " scaled they fit into it. Or do it in bfloat16, which has the range of float32, or in float32."
)


class FlushedLater(Detector):
    """Detects gradients that float16 has made zero between ``unscale_`` and the step.

    Args:
        shared: What the detectors have in common.
    """

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self._agreeing: list[FlushedGradients] = []

    @takes(FlushedGradients)
    def observe(self, seen: FlushedGradients) -> None:
        """Take in gradients of which some have become zero after they were unscaled."""
        others = (seen.lost_above + seen.kept_below) / seen.compared
        if seen.share < LOST_OF_ONE or others > MAX_OTHERS:
            self._agreeing.clear()
            return
        self._agreeing.append(seen)
        where = f"param:{seen.parameter}"
        made = self._book.of_kind(GRAD_UNDERFLOW.slug)
        if made:
            self._book.again(made[-1], seen.step)
            return
        if len(self._agreeing) < MIN_SAMPLES:
            return
        share = seen.lost / seen.compared
        self._book.report(
            GRAD_UNDERFLOW,
            where,
            seen.step,
            summary=(
                f"{seen.share:.1%} of the gradient elements of {in_words(where)} have become zero between"
                f" scaler.unscale_() and the step, as of step {seen.step}; of all gradients {share:.1%}, those that"
                f" float16 makes zero, below {FORMATS['float16'].flush_at:.2g}: the program has taken them through it"
                " when they were not scaled any more"
            ),
            kind_advice=ADVICE,
            first_step=self._agreeing[0].step,
            phase="optimizer",
            dtype="float16",
            evidence={"lost_share": share, "lost_share_here": seen.share},
        )
