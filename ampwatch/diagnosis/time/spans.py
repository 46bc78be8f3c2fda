"""The times of consecutive steps, taken together: one step alone says nothing about time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import fmean, median, pstdev
from typing import TYPE_CHECKING, NamedTuple

from ampwatch.wire.records import StepPhase

if TYPE_CHECKING:
    from ampwatch.wire.records import Phases

DATA = int(StepPhase.DATA)
"""A plain integer: an enumeration takes longer to index a tuple with."""

MIN_STEPS = 16
MIN_SECONDS = 1.5
"""Steps and time of a span, at least: with fewer the median of a host that does other things
moves by as much as what is looked for. Unit: s."""

MAX_ROWS = 256
"""Steps of a span whose times are kept one by one, for medians."""

MAX_SPAN_SECONDS = 600.0
"""Time after which a span ends with fewer steps, if it has ``MIN_SLOW_STEPS``. Unit: s."""

MIN_SLOW_STEPS = 4


class TimedStep(NamedTuple):
    """The time of one step.

    Attributes:
        step: Its index.
        phases: Where its time went. Unit: s.
        numel: Elements that the model was called with; 0 where it is not known.
        workers: Workers of the DataLoader; -1 without one.
        cpu_s: CPU time of the thread so far; NaN where it is not known. Unit: s.
        run_delay_s: Time so far in which the thread could run and had no core, likewise. Unit: s.
        ended_s: Unix time at its end. Unit: s.
        is_plain: Whether its ops ran as they do unobserved: what it took is what a step takes.
    """

    step: int
    phases: Phases
    numel: int
    workers: int
    cpu_s: float
    run_delay_s: float
    ended_s: float
    is_plain: bool = True


@dataclass(frozen=True, slots=True)
class Span:
    """The times of consecutive steps.

    Attributes:
        first_step: First step.
        last_step: Last step.
        steps: How many were taken in.
        seconds: Sum of their durations. Unit: s.
        data_seconds: Of that, spent waiting for data. Unit: s.
        usual: Median duration of those that are plain; NaN without any. Unit: s.
        usual_phases: Median time of each phase. Unit: s.
        numel: Mean of the elements that the model was called with.
        numel_error: Standard error of that mean.
        workers: Workers of the DataLoader; -1 without one.
        delay_share: Share of the time in which the training thread could run that it had no core in; NaN
            where it is not known. Not of all time: who computes more waits more, on the same host.
        wall_seconds: Time from its beginning to its end, with the steps that were left out. Unit: s.
    """

    first_step: int
    last_step: int
    steps: int
    seconds: float
    data_seconds: float
    usual: float
    usual_phases: tuple[float, ...]
    numel: float
    numel_error: float
    workers: int
    delay_share: float
    wall_seconds: float

    @property
    def data_share(self) -> float:
        """Share of the time spent waiting for data."""
        return self.data_seconds / self.seconds if self.seconds else 0.0


class SpanBuilder:
    """Takes in steps, and gives them back as spans, of which each begins where the one before has ended.

    Cost: 0.5 us a step; a span of many is closed in 0.3 ms.
    """

    def __init__(self) -> None:
        self._rows: list[TimedStep] = []
        self._steps = 0
        self._seconds = self._data = 0.0
        self._stride = 1
        self._first: TimedStep | None = None
        self._before: TimedStep | None = None

    def add(self, row: TimedStep) -> Span | None:
        """Take in a step; return the span that it completes, if it does."""
        self._first = self._first or row
        self._steps += 1
        seconds = sum(row.phases)
        self._seconds += seconds
        self._data += row.phases[DATA]
        if row.is_plain and self._steps % self._stride == 0:
            self._rows.append(row)
            if len(self._rows) > MAX_ROWS:
                # Each second one of all, so that the median is that of the whole span.
                self._rows = self._rows[::2]
                self._stride *= 2
        is_long = self._steps >= MIN_STEPS and self._seconds >= MIN_SECONDS
        is_slow = self._steps >= MIN_SLOW_STEPS and self._seconds >= MAX_SPAN_SECONDS
        return self._close(row) if is_long or is_slow else None

    def clear(self) -> None:
        """Forget the steps of the span that is open."""
        self._rows = []
        self._steps, self._first, self._stride = 0, None, 1
        self._seconds = self._data = 0.0
        self._before = None

    def _close(self, last: TimedStep) -> Span:
        rows, first = self._rows, self._first or last
        before = self._before or first
        delay, cpu = last.run_delay_s - before.run_delay_s, last.cpu_s - before.cpu_s
        numels = [float(row.numel) for row in rows] or [0.0]
        span = Span(
            first_step=first.step,
            last_step=last.step,
            steps=self._steps,
            seconds=self._seconds,
            data_seconds=self._data,
            usual=median(sum(row.phases) for row in rows) if rows else math.nan,
            usual_phases=tuple(
                median(times) for times in zip(*(r.phases for r in rows), strict=True)
            ),
            numel=fmean(numels),
            numel_error=pstdev(numels) / math.sqrt(len(numels)),
            workers=last.workers,
            delay_share=delay / (delay + cpu) if delay + cpu > 0.0 else math.nan,
            wall_seconds=last.ended_s - before.ended_s,
        )
        self.clear()
        self._before = last
        return span
