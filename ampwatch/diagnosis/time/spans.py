"""The times of consecutive steps, taken together: one step alone says nothing about time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from ampwatch.wire.records import StepPhase

if TYPE_CHECKING:
    from ampwatch.wire.records import Phases

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
        run_delay_s: Time so far in which the thread had no core; NaN where it is not known. Unit: s.
        is_plain: Whether its ops ran as they do unobserved: what it took is what a step takes.
    """

    step: int
    phases: Phases
    numel: int
    workers: int
    run_delay_s: float
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
        numel: Median of the elements that the model was called with.
        workers: Workers of the DataLoader; -1 without one.
        delay_share: Share of the time in which the training thread had no core; NaN where it is not
            known.
    """

    first_step: int
    last_step: int
    steps: int
    seconds: float
    data_seconds: float
    usual: float
    usual_phases: tuple[float, ...]
    numel: float
    workers: int
    delay_share: float

    @property
    def data_share(self) -> float:
        """Share of the time spent waiting for data."""
        return self.data_seconds / self.seconds if self.seconds else 0.0


class SpanBuilder:
    """Takes in steps, and gives them back as spans.

    Cost: 0.5 us a step; a span of many is closed in 0.3 ms.
    """

    def __init__(self) -> None:
        self._rows: list[TimedStep] = []
        self._steps = 0
        self._seconds = self._data = 0.0
        self._first: TimedStep | None = None
        self._delay_before = math.nan

    def add(self, row: TimedStep) -> Span | None:
        """Take in a step; return the span that it completes, if it does."""
        if self._first is None:
            self._first = row
            if math.isnan(self._delay_before):
                self._delay_before = row.run_delay_s
        self._steps += 1
        seconds = sum(row.phases)
        self._seconds += seconds
        self._data += row.phases[StepPhase.DATA]
        if row.is_plain and len(self._rows) < MAX_ROWS:
            self._rows.append(row)
        is_long = self._steps >= MIN_STEPS and self._seconds >= MIN_SECONDS
        is_slow = self._steps >= MIN_SLOW_STEPS and self._seconds >= MAX_SPAN_SECONDS
        return self._close(row) if is_long or is_slow else None

    def clear(self) -> None:
        """Forget the steps of the span that is open."""
        self._rows = []
        self._steps, self._first = 0, None
        self._seconds = self._data = 0.0
        self._delay_before = math.nan

    def _close(self, last: TimedStep) -> Span:
        rows, first = self._rows, self._first or last
        delay = last.run_delay_s - self._delay_before
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
            numel=median(row.numel for row in rows) if rows else 0.0,
            workers=last.workers,
            delay_share=delay / self._seconds if self._seconds else math.nan,
        )
        self.clear()
        self._delay_before = last.run_delay_s
        return span
