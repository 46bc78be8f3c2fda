"""The times of steps in, findings about them out."""

from __future__ import annotations

import math
from collections import deque
from operator import itemgetter
from typing import TYPE_CHECKING

from ampwatch.diagnosis.detector import Detector, Shared, takes
from ampwatch.diagnosis.evidence.iteration import DevicePhases
from ampwatch.diagnosis.time.kinds import INPUT_BOUND
from ampwatch.diagnosis.time.spans import SpanBuilder
from ampwatch.diagnosis.time.step_slower import StepSlower
from ampwatch.numerics.written import counted, step_time
from ampwatch.wire.records import DevicePhasesRecord, Severity, StepPhase

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ampwatch.diagnosis.book import FindingBook
    from ampwatch.diagnosis.evidence.iteration import Iteration
    from ampwatch.diagnosis.steps.steps import StepVerdict
    from ampwatch.diagnosis.time.spans import Span
    from ampwatch.wire.records import Phases


SPANS = 4
"""Spans in a row that have to agree: one that waits for the first batches of an epoch is no more
than that."""

SHARE = 0.25
SHARE_OF_EACH = 0.15
"""Share of the time spent waiting: of all of them together, and of each."""

WARNING_SHARE = 0.4
"""Share from which on it is worth a warning: two fifths of the machine are paid for and idle."""

MANY_WORKERS = 64
"""Workers above which their number is not advised: the loader itself is what is slow."""


class InputBound:
    """Adds up how long steps wait for data.

    Args:
        book: Where findings go.
    """

    def __init__(self, book: FindingBook) -> None:
        self._book = book
        self._spans: deque[Span] = deque(maxlen=SPANS)

    def take(self, span: Span, *, on_device: bool) -> None:
        """Take in the next steps.

        Args:
            span: The steps.
            on_device: Whether their times are those of the device: then it is the device that waits.
        """
        spans = self._spans
        spans.append(span)
        waited = sum(s.data_seconds for s in spans)
        seconds = sum(s.seconds for s in spans)
        is_bound = all(s.data_share >= SHARE_OF_EACH for s in spans)
        if len(spans) == SPANS and is_bound and waited >= SHARE * seconds:
            self._say(waited, seconds, on_device=on_device)

    def _say(self, waited: float, seconds: float, *, on_device: bool) -> None:
        steps = sum(s.steps for s in self._spans)
        first, last = self._spans[0].first_step, self._spans[-1]
        share, wait, step = waited / seconds, waited / steps, seconds / steps
        evidence = {
            "wait_share": share,
            "wait_seconds": wait,
            "step_seconds": step,
            "workers": float(last.workers),
        }
        needed = workers_needed(wait, step, last.workers)
        if needed:
            evidence["workers_needed"] = float(needed)
        severity = Severity.WARNING if share >= WARNING_SHARE else Severity.INFO
        made = self._book.get(INPUT_BOUND.slug, "step")
        says = _summary(evidence, first if made is None else made.first_step, on_device=on_device)
        if made is not None:
            made.count += last.last_step - last.first_step  # one more is counted with it
        self._book.report(
            INPUT_BOUND,
            "step",
            last.last_step,
            summary=says,
            severity=severity,
            first_step=first,
            count=last.last_step - first + 1,
            evidence=evidence,
        )


def workers_needed(wait: float, step: float, workers: int) -> int:
    """Return the workers with which batches would come as fast as they are used; 0 if not known.

    While steps wait, batches come as fast as the workers make them: ``workers`` of them make one in
    each ``step``, so one alone takes ``workers * step``. Without workers the wait is that time.

    Args:
        wait: Mean wait for a batch. Unit: s.
        step: Mean duration of a step. Unit: s.
        workers: Workers now; -1 where it is not known.
    """
    busy = step - wait
    if workers < 0 or busy <= 0.0:
        return 0
    # A little less than a whole number is that number, rounded.
    needed = math.ceil((workers * step if workers else wait) / busy - 1e-9)
    return 0 if needed > MANY_WORKERS else max(needed, workers + 1)


def _summary(evidence: dict[str, float], first: int, *, on_device: bool) -> str:
    who = "The device waits" if on_device else "The training waits"
    has = "no workers" if not evidence["workers"] else counted(evidence["workers"], "worker")
    workers = "" if evidence["workers"] < 0 else f"; the DataLoader has {has}"
    if needed := evidence.get("workers_needed"):
        workers += f", and {needed:.0f} would keep up, as far as cores, disks and the sampler do"
    return (
        f"{who} for data in {evidence['wait_share']:.0%} of the time:"
        f" {step_time(evidence['wait_seconds'])} of each step of"
        f" {step_time(evidence['step_seconds'])}, since step {first}{workers}"
    )


WARM_UP_STEPS = 16
"""Steps at the beginning that are not judged: caches fill, kernels are chosen, code is compiled."""

MAX_ITERATIONS = 32
"""Newest iterations that a device's report, which comes some steps later, may be of."""

USUAL_EVALUATIONS = 0.5
"""Share of iterations with an evaluation from which on it is part of each step: a teacher, a target."""

_OF_EVALUATION = itemgetter(StepPhase.EVALUATION)


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
        self._newest: deque[Iteration] = deque(maxlen=MAX_ITERATIONS)

    def detect(self, iteration: Iteration, _verdict: StepVerdict) -> None:
        """Take in one judged iteration."""
        self.count((iteration,))

    def count(self, quiet: Sequence[Iteration]) -> None:
        """Take in iterations in a row."""
        if quiet[-1].time.is_ahead:
            self._newest.extend(quiet)
        elif not self._is_on_device:
            self._take(quiet, [iteration.time.phases for iteration in quiet])

    @takes(DevicePhases, is_aside=True)
    def observe(self, timed: DevicePhases) -> None:
        """Take in an iteration as its device has seen it."""
        self._put(DevicePhasesRecord(timed.step, self._book.now_ns, timed.phases))
        if not self._is_on_device:
            self._is_on_device = True
            self._spans.clear()
        for iteration in self._newest:
            if iteration.step == timed.step:
                self._take([iteration], [timed.phases])

    def _take(self, steps: Sequence[Iteration], phases: Sequence[Phases]) -> None:
        are_judged = self._seen >= WARM_UP_STEPS and all(map(any, phases))
        if len(steps) > 1 and (not are_judged or any(map(_OF_EVALUATION, phases))):
            for step, times in zip(steps, phases, strict=True):
                self._take([step], [times])
            return
        self._seen += len(steps)
        # Evaluations count from the beginning on.
        if self._is_of_evaluation(phases[0]) or not are_judged:
            return
        for span in self._spans.take(steps, phases):
            self._input_bound.take(span, on_device=self._is_on_device)
            if not math.isnan(span.usual):
                self._step_slower.take(span)

    def _is_of_evaluation(self, phases: Phases) -> bool:
        """Whether an iteration is to be left out since it has an evaluation, as few of them have."""
        has_one = _OF_EVALUATION(phases) > 0.0
        self._evaluations += has_one
        return has_one and self._evaluations < USUAL_EVALUATIONS * self._seen
