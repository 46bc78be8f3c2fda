"""What watching costs a rank: in its opening, around failures, and in steady steps.

The three differ by an order of magnitude and are meant to: in the opening everything is looked at
for the first time, after a failure it is looked at closely, and in between the budget rules. One
mean over all of them describes none. No torch, no network.
"""

from __future__ import annotations

import math
from enum import Enum
from typing import TYPE_CHECKING

from ampwatch.wire.records import SkipClass

if TYPE_CHECKING:
    from ampwatch.wire.records import StepRecord

OPENING_STEPS = 32
"""Iterations at the start in which a training process looks at everything for the first time."""

AFTERMATH_STEPS = 32
"""Iterations after a failure that count with it: twice as many as a training process traces (``MAX_TRACES``)."""

_FAILURES = (SkipClass.UNPROVOKED, SkipClass.STORM)


class Phase(str, Enum):
    """Parts of a run in which watching costs differently."""

    OPENING = "opening"
    FAILURE = "failure"
    STEADY = "steady"


class WatchingCost:
    """Overhead and time of the iterations of one rank, by phase.

    Of a run that was not read from its first iteration on, what came before is in none of them.

    Attributes:
        steady_from: Index of the first iteration after the opening.

    Args:
        started_ns: Unix time at which the rank began to be watched. Unit: ns.

    Cost: Constant, some 1 us a record.
    """

    def __init__(self, started_ns: int) -> None:
        self._started_ns = started_ns
        self._before: StepRecord | None = None
        self.steady_from = OPENING_STEPS
        self._failed_at = -math.inf
        self._overhead_ns = dict.fromkeys(Phase, 0)
        self._elapsed_ns = dict.fromkeys(Phase, 0)

    def put(self, record: StepRecord) -> None:
        """Take in an iteration; they come in order."""
        before, self._before = self._before, record
        if _has_failed(record, before):
            self._failed_at = record.step
        if before is None:
            if not math.isnan(record.duration_s):
                return  # not the first: nothing says how the time and the overhead so far were spent
            self.steady_from = record.step + OPENING_STEPS
        time_ns = self._started_ns if before is None else before.time_ns
        elapsed_ns = record.time_ns - time_ns
        spent_ns = record.overhead_ns - (0 if before is None else before.overhead_ns)
        if elapsed_ns <= 0 or spent_ns < 0:
            return  # the clock was set back, or the ring is damaged
        phase = self._phase(record.step)
        self._elapsed_ns[phase] += elapsed_ns
        self._overhead_ns[phase] += spent_ns

    def share(self, phase: Phase) -> float | None:
        """Return the share of the time that watching took; ``None`` where no iteration was seen."""
        elapsed_ns = self._elapsed_ns[phase]
        return self._overhead_ns[phase] / elapsed_ns if elapsed_ns else None

    def _phase(self, step: int) -> Phase:
        # The opening is one whatever happens in it: a failure adds little to looking at everything.
        if step < self.steady_from:
            return Phase.OPENING
        return Phase.FAILURE if step - self._failed_at <= AFTERMATH_STEPS else Phase.STEADY


def _has_failed(record: StepRecord, before: StepRecord | None) -> bool:
    if record.skip_class in _FAILURES:
        return True
    return before is not None and record.total_nonfinite_losses > before.total_nonfinite_losses
