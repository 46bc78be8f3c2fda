"""Findings about casts that autocast kept too long, or made in a backward that was compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ampwatch.diagnosis.autocast.kinds import COMPILE_BACKWARD_AUTOCAST, STALE_AUTOCAST_CACHE
from ampwatch.diagnosis.detector import Detector, Shared, takes
from ampwatch.diagnosis.evidence.scaler import CompiledGradients, StaleCast
from ampwatch.numerics.written import counted
from ampwatch.wire.records import SkipClass, in_words

if TYPE_CHECKING:
    from ampwatch.diagnosis.evidence.iteration import Iteration
    from ampwatch.diagnosis.steps.steps import StepVerdict


SEARCHES = (SkipClass.CALIBRATING, SkipClass.PROBE)
"""Skips by which the scaler finds its scale: there gradients are not finite either way."""


class CompiledBackward(Detector):
    """Says which gradients of a protected region were lost.

    Without a scaler at once. With one only when its iteration is no search for a scale.

    Args:
        shared: What the detectors have in common.
    """

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self._waiting: dict[int, CompiledGradients] = {}

    @takes(CompiledGradients)
    def observe(self, seen: CompiledGradients) -> None:
        """Take in non-finite gradients of a region that autocast was switched off in."""
        if seen.is_scaled:
            self._waiting[seen.step] = seen
        else:
            self._say(seen)

    def detect(self, iteration: Iteration, verdict: StepVerdict) -> None:
        """Take in one judged iteration, after the other families have."""
        if not self._waiting:
            return
        seen = self._waiting.get(iteration.step)
        # Also those of iterations that never came.
        self._waiting = {s: c for s, c in self._waiting.items() if s > iteration.step}
        if seen is not None and verdict.skip_class not in SEARCHES and not verdict.nonfinite_loss:
            self._say(seen)

    @property
    def is_at_rest(self) -> bool:
        """Whether a plain iteration would be nothing to it."""
        return not self._waiting

    def _say(self, seen: CompiledGradients) -> None:
        where = f"param:{seen.parameter}" if seen.parameter else ""
        self._book.report(
            COMPILE_BACKWARD_AUTOCAST,
            where,
            seen.step,
            summary=(
                f"The gradient of {in_words(where) if where else 'a parameter'} is not finite after the backward of"
                f" step {seen.step}: its module is kept out of autocast, but torch.compile has"
                f" traced the backward under the autocast of the forward, in {seen.dtype}"
            ),
            op=seen.op,
            phase="backward",
            dtype=seen.dtype,
            evidence={"nonfinite": float(seen.nonfinite), "parameters": float(seen.parameters)},
            is_once=True,
        )


class StaleCasts(Detector):
    """Says what the sensor has proven."""

    @takes(StaleCast)
    def observe(self, seen: StaleCast) -> None:
        """Take in a forward with casts from before the last step."""
        first = (
            f", the first of them {in_words(f'param:{seen.parameter}')}" if seen.parameter else ""
        )
        where = f"param:{seen.parameter}" if seen.parameter else "api"
        if any(f.last_step == seen.step for f in self._book.of_kind(STALE_AUTOCAST_CACHE.slug)):
            return  # another sensor has seen it in the same iteration
        self._book.report(
            STALE_AUTOCAST_CACHE,
            where,
            seen.step,
            summary=(
                f"A forward in step {seen.step} used {counted(seen.casts, 'weight')} as before the"
                f" last change{first}: the autocast region was"
                f" not left in between, and keeps what it has cast to {seen.dtype}. The model"
                f" does not see its updates"
            ),
            phase="forward",
            dtype=seen.dtype,
            evidence={"stale_casts": float(seen.casts)},
            is_once=True,
        )
