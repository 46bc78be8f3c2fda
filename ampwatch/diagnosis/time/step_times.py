"""The times of steps in, findings about them out."""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING

from ampwatch.diagnosis.detector import Detector, Shared, takes
from ampwatch.diagnosis.evidence.time import DevicePhases
from ampwatch.diagnosis.time.input_bound import InputBound
from ampwatch.diagnosis.time.spans import SpanBuilder
from ampwatch.diagnosis.time.step_slower import StepSlower
from ampwatch.wire.records import DevicePhasesRecord, StepPhase

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ampwatch.diagnosis.evidence.iteration import Iteration
    from ampwatch.diagnosis.steps.steps import StepVerdict
    from ampwatch.wire.records import Phases

WARM_UP_STEPS = 16
"""Steps at the beginning that are not judged: caches fill, kernels are chosen, code is compiled."""

KEPT = 32
"""Newest iterations that a device's report, which comes some steps later, may be of."""

USUAL_EVALUATIONS = 0.5
"""Share of iterations with an evaluation from which on it is part of each step: a teacher, a target."""

EVALUATION = int(StepPhase.EVALUATION)
"""A plain integer: an enumeration takes longer to index a tuple with."""


class StepTimes(Detector):
    """Judges where the time of steps goes.

    An iteration with an evaluation is left out, unless most have one. One whose ops were observed, or
    that a profiler has recorded, waits for data like any other, and is no measure of what a step takes;
    what sampling ranges costs is within its budget. Of a training on a device only the device's own
    times are judged: the host is ahead of it, and waits where nothing is lost.

    Args:
        shared: What the detectors have in common.
    """

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self._put = shared.put
        self._spans = SpanBuilder()
        self._input_bound = InputBound(shared.book)
        self._step_slower = StepSlower(shared.book)
        self._seen = self._evaluations = 0
        self._is_on_device = False
        self._newest: deque[Iteration] = deque(maxlen=KEPT)

    def detect(self, iteration: Iteration, _verdict: StepVerdict) -> None:
        """Take in one judged iteration."""
        self.count((iteration,))

    def count(self, plain: Sequence[Iteration]) -> None:
        """Take in iterations in a row."""
        for iteration in plain:
            if iteration.time.is_ahead:
                self._newest.append(iteration)
            elif not self._is_on_device:
                self._take(iteration, iteration.time.phases)

    @takes(DevicePhases, is_aside=True)
    def observe(self, timed: DevicePhases) -> None:
        """Take in an iteration as its device has seen it."""
        self._put(DevicePhasesRecord(timed.step, self._book.now_ns, timed.phases))
        if not self._is_on_device:
            self._is_on_device = True
            self._spans.clear()
        for iteration in self._newest:
            if iteration.step == timed.step:
                self._take(iteration, timed.phases)

    def _take(self, iteration: Iteration, phases: Phases) -> None:
        self._seen += 1
        if self._is_of_evaluation(phases) or self._seen <= WARM_UP_STEPS or not any(phases):
            return
        span = self._spans.add(iteration, phases)
        if span is None:
            return
        self._input_bound.take(span, on_device=self._is_on_device)
        if not math.isnan(span.usual):
            self._step_slower.take(span)

    def _is_of_evaluation(self, phases: Phases) -> bool:
        """Whether an iteration is to be left out since it has an evaluation, as few of them have."""
        has_one = phases[EVALUATION] > 0.0
        self._evaluations += has_one
        return has_one and self._evaluations < USUAL_EVALUATIONS * self._seen
