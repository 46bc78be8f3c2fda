"""Parameters whose gradients made steps be skipped."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from ampwatch.diagnosis.detector import Detector, Shared, takes
from ampwatch.diagnosis.evidence.origins import Fault, OpTrace
from ampwatch.diagnosis.forward.faults import limit_of
from ampwatch.numerics.units.ops import Phase
from ampwatch.wire.records import Topic, in_words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ampwatch.diagnosis.evidence.iteration import Iteration, TensorRange
    from ampwatch.diagnosis.evidence.origins import Origin
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


FAR = 2.0**16
"""Ratio of the end of a format to a gradient from which no gradient beside it makes a sum overflow."""


class _Fitted(NamedTuple):
    """A gradient that was finite in a step that was taken."""

    scale: float  # the largest loss scale at which it was
    amax: float  # its largest magnitude then, without the scale
    newest: float  # its largest magnitude in the newest such step


class Culprits(Detector):
    """Remembers which gradients were not finite in skipped steps.

    Ranks whose parameters are sharded skip a step together, and one of them has the gradient. A rank
    whose own gradients are all finite then knows that it is another one's.

    Attributes:
        worst: The parameter with the most non-finite elements since the last growth of the
            scale, in this rank or, if all of its own are finite, in another one; empty if none
            has been seen.
        left_over: A parameter whose ``.grad`` was not finite before backward began, where all that are not
            finite were; empty if the newest trace shows another reason, or no such parameter.
    """

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self.worst = ""
        self.left_over = ""
        self._sent = ""
        others = shared.known.other_ranks
        self._others = others if others is not None and others.are_there else None
        self._skips = shared.skips
        self._noted = ("", -1)
        self._is_elsewhere = False
        self._asked = -1
        self._where: list[int] = []
        self._nonfinite: dict[str, int] = {}
        self._overflows_at: dict[str, float] = {}
        self._spared: set[str] = set()
        self._fitted: dict[str, _Fitted] = {}

    @takes(OpTrace)
    def observe_trace(self, trace: OpTrace) -> None:
        """Take in a traced iteration: are its gradients those of an earlier one, or of another rank?"""
        if trace.is_replay or not trace.bad_gradients:
            return
        made = trace.gradient_origins
        self._sent = trace.sent()
        is_left = bool(made) and all(map(_is_left_over, made))
        self.left_over = next(iter(trace.bad_gradients)) if is_left else ""

    def detect(self, iteration: Iteration, verdict: StepVerdict) -> None:
        """Take in one judged iteration."""
        since = iteration.step - self._skips.streak + 1
        if verdict.grew or verdict.set_by_hand:
            self._forget()
        gradients = [r for r in iteration.ranges if r.topic is Topic.GRADIENT]
        if verdict.set_by_hand:
            self._fitted.clear()
        if verdict.applied and not verdict.skipped:
            self.left_over = self._sent = ""
        if verdict.applied and not verdict.skipped and verdict.scale_before > 0.0:
            self._note_fitted(gradients, verdict.scale_before)
        bad = [r for r in gradients if r.histogram.nonfinite]
        # A gradient that was not measured may be the one.
        if (
            verdict.skipped
            and not bad
            and Topic.GRADIENT in iteration.topics - iteration.incomplete
        ):
            self._ask_others(since)
        if not verdict.skipped or not bad or _are_all_nan(gradients):
            return
        for r in bad:
            self._nonfinite[r.name] = self._nonfinite.get(r.name, 0) + r.histogram.nonfinite
            self._overflows_at[r.name] = verdict.scale_before
        self._spared |= {r.name for r in gradients if not r.histogram.nonfinite}
        self.worst = max(self._nonfinite, key=lambda name: self._nonfinite[name])
        self._is_elsewhere = False
        if self._others is not None and self._noted != (self.worst, since):
            self._noted = (self.worst, since)
            self._others.note(*self._noted)

    def _ask_others(self, since: int) -> None:
        """Ask whose gradient it is that has made this rank skip a step with finite ones."""
        # One that was not finite here in an earlier step of these is the better clue.
        if self._others is None or self._noted[1] == since or not self._others.is_sharded():
            return
        if not self._is_elsewhere or self._asked != since:
            self._is_elsewhere, self._asked, self.worst = True, since, ""
        if not self.worst:
            self.worst, self._where = self._others.ask(since)

    def in_words(self) -> str:
        """Return, as the end of a sentence, whose gradients are not finite; empty if unknown."""
        if self.left_over:
            return (
                f"; the gradient of {in_words(f'param:{self.left_over}')} was not finite before backward"
                " began: it was not set to zero since an earlier step"
            )
        if self._sent:
            return f"; {self._sent}"
        parameter = in_words(f"param:{self.worst}") if self.worst else ""
        if not self._is_elsewhere:
            return f"; most non-finite gradients are those of {parameter}" if parameter else ""
        if parameter:
            ranks = ", ".join(map(str, self._where))
            whose = f"rank{'s' if len(self._where) > 1 else ''} {ranks}"
            return (
                f"; non-finite gradients are those of {parameter} in {whose}, while all of this"
                " rank's are finite"
            )
        return (
            "; all gradients of this rank are finite: those that are not are in another rank's shard,"
            " and that rank's finding names the parameter"
        )

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
        self._is_elsewhere = False
        self._where = []

    def cap(self, *, apart_from: str) -> Cap | None:
        """Return who limits the scale, while the gradient of another parameter stayed finite."""
        if not self.worst or apart_from not in self._spared or apart_from in self._nonfinite:
            return None
        overflows_at = min(self._overflows_at.values())
        if self._fitted_before(self.worst, overflows_at):
            return None
        return Cap(self.worst, overflows_at)


def _are_all_nan(gradients: Sequence[TensorRange]) -> bool:
    """Whether nothing is left to judge by: the loss was NaN, or a clip by a NaN norm came before."""
    return all(r.histogram.nans == r.histogram.numel for r in gradients)


def _is_left_over(origin: Origin) -> bool:
    """Whether a gradient was added to a ``.grad`` that was not finite when the iteration began.

    What was there is overwritten when the sum is seen. No sum of finite numbers is NaN, and none of
    float32 is infinite that is far from its end.
    """
    is_sum = origin.phase is Phase.BACKWARD and origin.op == "add_" and len(origin.inputs) == 2
    if not is_sum or origin.is_unseen or origin.parents:
        return False
    before, added = origin.inputs
    is_overwritten = origin.answer.fault is Fault.UNKNOWN and math.isnan(before.amax)
    return is_overwritten and FAR * added.amax < limit_of(origin.out.dtype)
