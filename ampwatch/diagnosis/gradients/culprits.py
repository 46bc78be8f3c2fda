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

    def update(self, iteration: Iteration, verdict: StepVerdict) -> None:
        """Take in one judged iteration."""
        if verdict.grew or verdict.set_by_hand:
            self._forget()
        gradients = [r for r in iteration.ranges if r.topic is Topic.GRADIENT]
        bad = [r for r in gradients if r.histogram.nonfinite]
        if not verdict.skipped or not bad or _are_all_nan(gradients):
            return
        self.newest = bad
        for r in bad:
            self._nonfinite[r.name] = self._nonfinite.get(r.name, 0) + r.histogram.nonfinite
            self._overflows_at[r.name] = verdict.scale_before
        self._spared |= {r.name for r in gradients if not r.histogram.nonfinite}
        self.worst = max(self._nonfinite, key=lambda name: self._nonfinite[name])

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
        return Cap(self.worst, min(self._overflows_at.values()))


def _are_all_nan(gradients: Sequence[TensorRange]) -> bool:
    """Whether nothing is left to judge by: the loss was NaN, or a clip by a NaN norm came before."""
    return all(r.histogram.nans == r.histogram.numel for r in gradients)
