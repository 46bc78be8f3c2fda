"""Findings about a compiled backward that runs under the autocast of its forward."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ampwatch.diagnosis.kinds.advice import ADVICE
from ampwatch.wire.records import Finding, Severity, SkipClass

if TYPE_CHECKING:
    from ampwatch.diagnosis.book import FindingBook
    from ampwatch.diagnosis.evidence.iteration import Iteration
    from ampwatch.diagnosis.evidence.scaler import CompiledGradients
    from ampwatch.diagnosis.steps.steps import Verdict

SYMPTOMS = ("scale_collapse", "scale_below_one", "backward_nonfinite_any_scale", "param_nonfinite")

SEARCHES = (SkipClass.CALIBRATING, SkipClass.PROBE)
"""Skips by which the scaler finds its scale: there gradients are not finite either way."""


class CompiledBackward:
    """Says which gradients of a protected region were lost.

    Without a scaler at once. With one only when its iteration is no search for a scale.

    Args:
        book: Where findings go.
    """

    def __init__(self, book: FindingBook) -> None:
        self._book = book
        self._waiting: dict[int, CompiledGradients] = {}
        self._attached = 0

    def observe(self, seen: CompiledGradients) -> None:
        """Take in non-finite gradients of a region that autocast was switched off in."""
        if seen.is_scaled:
            self._waiting[seen.step] = seen
        else:
            self._say(seen)

    def look(self, iteration: Iteration, verdict: Verdict) -> None:
        """Take in one judged iteration, after the other families have."""
        seen = self._waiting.pop(iteration.step, None)
        if seen is not None and verdict.skip_class not in SEARCHES and not verdict.nonfinite_loss:
            self._say(seen)
        made = self._book.of_kind("compile_backward_autocast")
        if not made or len(self._book.findings) == self._attached:
            return
        self._attached = len(self._book.findings)
        for kind in SYMPTOMS:
            for symptom in self._book.of_kind(kind):
                if symptom.last_step >= made[0].first_step:
                    self._book.explain(symptom, made[0])

    def _say(self, seen: CompiledGradients) -> None:
        where = f"param:{seen.parameter}" if seen.parameter else ""
        self._book.make_once(
            Finding(
                kind="compile_backward_autocast",
                severity=Severity.CRITICAL,
                where=where,
                op=seen.op,
                summary=(
                    f"The gradient of {where or 'a parameter'} is not finite after the backward of"
                    f" step {seen.step}: its module is kept out of autocast, but torch.compile has"
                    f" traced the backward under the autocast of the forward, in {seen.dtype}"
                ),
                advice=ADVICE["compile_backward_autocast"],
                phase="backward",
                dtype=seen.dtype,
                first_step=seen.step,
                last_step=seen.step,
                evidence={
                    "nonfinite": float(seen.nonfinite),
                    "parameters": float(seen.parameters),
                },
            )
        )
