"""The outcomes of the newest steps of one rank, by which ranks are compared."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ampwatch.wire.records import SkipClass

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ampwatch.wire.records import OptimizerRecord, StepRecord

MAX_STEPS = 4096
"""Newest steps of a rank that are kept: between two passes of the daemon there are fewer. The first
step that ranks disagree on is the only one that they can be compared at."""


class StepOutcome(NamedTuple):
    """The outcome of one step of one rank.

    Attributes:
        before: Scale and growth tracker before it; ``None`` before the first, or if the step
            before was not seen. The tracker counts steps, so two ranks that agree on both count
            their steps alike.
        skipped: Whether a step of any optimizer was skipped.
        time_ns: Unix time at its end. Unit: ns.
    """

    before: tuple[float, int] | None
    skipped: bool
    time_ns: int


class StepOutcomes:
    """The outcomes of the newest steps of one rank.

    Attributes:
        newest: Index of the newest step; -1 before the first.
    """

    def __init__(self) -> None:
        self.newest = -1
        self._state: tuple[float, int] | None = None
        self._by_step: dict[int, StepOutcome] = {}
        self._skipping: dict[int, int] = {}

    def put_step(self, record: StepRecord) -> None:
        """Take in a step; steps of a rank come in order."""
        # After a gap in the ring the state before the step is not known, and with it not whether
        # two ranks stand at the same point.
        follows = record.step == self.newest + 1
        if record.growth_tracker >= 0:
            skipped = record.skip_class is not SkipClass.NONE
            before = self._state if follows else None
            self._by_step[record.step] = StepOutcome(before, skipped, record.time_ns)
            self._state = record.loss_scale, record.growth_tracker
            if len(self._by_step) > MAX_STEPS:
                gone = next(iter(self._by_step))
                del self._by_step[gone]
                self._skipping.pop(gone, None)
        self.newest = record.step

    def put_optimizer(self, record: OptimizerRecord) -> None:
        """Take in what one optimizer did in a step; comes after the step."""
        # Of several optimizers the first one that was skipped is the one to name.
        if record.skipped and record.step in self._by_step:
            self._skipping.setdefault(record.step, record.index)

    def of(self, step: int) -> StepOutcome | None:
        """Return the outcome of a step; ``None`` if it, or a record of it, may not be known yet."""
        return self._by_step.get(step) if step < self.newest else None

    def optimizer(self, step: int) -> int:
        """Return the first optimizer that was skipped in a step."""
        return self._skipping.get(step, 0)

    def after(self, step: int) -> Iterable[int]:
        """Return the steps after ``step`` whose outcomes are known."""
        return [s for s in self._by_step if step < s < self.newest]
