"""Parameters whose gradients made steps be skipped."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ampwatch.wire.records import Topic

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ampwatch.diagnosis.evidence.iteration import Iteration, TensorRange
    from ampwatch.diagnosis.steps.steps import StepVerdict


class Cap(NamedTuple):
    """A parameter whose gradient overflows where those of others do not.

    Attributes:
        name: The parameter.
        overflows_at: The smallest loss scale at which it did.
    """

    name: str
    overflows_at: float


GROWN = 8.0
"""Growth of a gradient from which a scale that once fitted it says nothing any more."""


class _Fitted(NamedTuple):
    """A gradient that was finite in a step that was taken.

    Attributes:
        scale: The largest loss scale at which it was.
        amax: Its largest magnitude then, without the scale.
        newest: Its largest magnitude in the newest such step.
    """

    scale: float
    amax: float
    newest: float


class Culprits:
    """Remembers which gradients were not finite in skipped steps.

    Attributes:
        worst: The parameter with the most non-finite elements since the last growth of the
            scale; empty if none has been seen.
        newest: The non-finite gradients of the newest skipped step that was observed.
    """

    def __init__(self) -> None:
        self.worst = ""
        self.newest: list[TensorRange] = []
        self._nonfinite: dict[str, int] = {}
        self._overflows_at: dict[str, float] = {}
        self._spared: set[str] = set()
        self._fitted: dict[str, _Fitted] = {}

    def update(self, iteration: Iteration, verdict: StepVerdict) -> None:
        """Take in one judged iteration."""
        if verdict.grew or verdict.set_by_hand:
            self._forget()
        gradients = [r for r in iteration.ranges if r.topic is Topic.GRADIENT]
        if verdict.set_by_hand:
            self._fitted.clear()
        if verdict.applied and not verdict.skipped and verdict.scale_before > 0.0:
            self._note_fitted(gradients, verdict.scale_before)
        bad = [r for r in gradients if r.histogram.nonfinite]
        if not verdict.skipped or not bad or _are_all_nan(gradients):
            return
        self.newest = bad
        for r in bad:
            self._nonfinite[r.name] = self._nonfinite.get(r.name, 0) + r.histogram.nonfinite
            self._overflows_at[r.name] = verdict.scale_before
        self._spared |= {r.name for r in gradients if not r.histogram.nonfinite}
        self.worst = max(self._nonfinite, key=lambda name: self._nonfinite[name])

    def _note_fitted(self, gradients: Sequence[TensorRange], scale: float) -> None:
        """Remember the largest scale that each gradient was finite at, and how large it was then."""
        for r in gradients:
            known = self._fitted.get(r.name)
            amax = r.histogram.amax / scale if r.scaled else r.histogram.amax
            if known is None or scale >= known.scale:
                self._fitted[r.name] = _Fitted(scale, amax, amax)
            else:
                self._fitted[r.name] = known._replace(newest=amax)

    def _fitted_before(self, name: str, scale: float) -> bool:
        """Whether a gradient was finite at a scale where it was not later, and is no larger now.

        What overflowed in between was a burst, and says nothing of the scale that fits.
        """
        known = self._fitted.get(name)
        return known is not None and known.scale >= scale and known.newest <= GROWN * known.amax

    def _forget(self) -> None:
        self._nonfinite.clear()
        self._overflows_at.clear()
        self._spared.clear()
        self.worst = ""

    def cap(self, *, apart_from: str) -> Cap | None:
        """Return who limits the scale, while the gradient of another parameter stayed finite.

        Args:
            apart_from: The other parameter.
        """
        if not self.worst or apart_from not in self._spared or apart_from in self._nonfinite:
            return None
        overflows_at = min(self._overflows_at.values())
        if self._fitted_before(self.worst, overflows_at):
            return None
        return Cap(self.worst, overflows_at)


def _are_all_nan(gradients: Sequence[TensorRange]) -> bool:
    """Whether nothing is left to judge by: the loss was NaN, or a clip by a NaN norm came before."""
    return all(r.histogram.nans == r.histogram.numel for r in gradients)
