"""The times of steps in, findings about them out."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ampwatch.diagnosis.time.input_bound import InputBound
from ampwatch.diagnosis.time.spans import SpanBuilder, TimedStep
from ampwatch.diagnosis.time.step_slower import StepSlower
from ampwatch.wire.records import StepPhase

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ampwatch.diagnosis.book import FindingBook
    from ampwatch.diagnosis.evidence.iteration import Iteration
    from ampwatch.diagnosis.evidence.time import DevicePhases

WARM_UP_STEPS = 16
"""Steps at the beginning that are not judged: caches fill, kernels are chosen, code is compiled."""


class StepTimes:
    """Judges where the time of steps goes.

    An iteration with an evaluation is left out. One whose ops were observed, or that a profiler has
    recorded, waits for data like any other, and is no measure of what a step takes; what sampling ranges
    costs is within its budget. Where the device reports its own times the host's are not judged: the host is
    ahead of it, and waits where nothing is lost.

    Args:
        book: Where findings go.
    """

    def __init__(self, book: FindingBook) -> None:
        self._spans = SpanBuilder()
        self._input_bound = InputBound(book)
        self._step_slower = StepSlower(book)
        self._seen = 0
        self._is_on_device = False
        self._newest: Iteration | None = None

    def detect(self, iteration: Iteration) -> None:
        """Take in one judged iteration."""
        self.count((iteration,))

    def count(self, plain: Sequence[Iteration]) -> None:
        """Take in iterations in a row."""
        self._newest = plain[-1]
        if self._is_on_device:
            return
        for iteration in plain:
            self._seen += 1
            phases = iteration.time.phases
            if self._seen > WARM_UP_STEPS and any(phases) and not phases[StepPhase.EVALUATION]:
                self._take(iteration.step, phases, iteration)

    def observe(self, timed: DevicePhases) -> None:
        """Take in an iteration as its device has seen it."""
        if not self._is_on_device:
            self._is_on_device = True
            self._spans.clear()
        if (
            timed.step > WARM_UP_STEPS
            and any(timed.phases)
            and not timed.phases[StepPhase.EVALUATION]
        ):
            self._take(timed.step, timed.phases, self._newest)

    def _take(self, step: int, phases: Sequence[float], of: Iteration | None) -> None:
        numel, workers, delay, is_plain = 0, -1, math.nan, True
        if of is not None:
            time = of.time
            numel, workers = time.numel, time.workers
            delay = time.run_delay_ns / 1e9 if time.run_delay_ns >= 0 else math.nan
            is_plain = of.census is None and of.window is None
        row = TimedStep(step, tuple(phases), numel, workers, delay, is_plain)  # type: ignore[arg-type] # one of each
        span = self._spans.add(row)
        if span is not None:
            self._input_bound.take(span, on_device=self._is_on_device)
            if not math.isnan(span.usual):
                self._step_slower.take(span)
