"""The times of consecutive steps, taken together: one step alone says nothing about time."""

from __future__ import annotations

import math
from bisect import bisect_left
from itertools import accumulate
from operator import itemgetter
from statistics import fmean, median, pstdev
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct

from ampwatch.wire.records import StepPhase

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ampwatch.diagnosis.evidence.iteration import Iteration
    from ampwatch.wire.records import Phases

_OF_DATA = itemgetter(StepPhase.DATA)

MIN_STEPS = 16
MIN_SECONDS = 1.5
"""Steps and time of a span, at least: with fewer the median of a host that does other things
moves by as much as what is looked for. Unit: s."""

MAX_ROWS = 256
"""Steps of a span whose times are kept one by one, for medians."""

MAX_SPAN_SECONDS = 600.0
"""Time after which a span ends with fewer steps, if it has ``MIN_SLOW_STEPS``. Unit: s."""

MIN_SLOW_STEPS = 4


class _Moment(NamedTuple):
    """The end of a step on its host."""

    step: int  # index of the step
    cpu_ns: int  # CPU time of the thread so far; -1 where it is not known. Unit: ns.
    # time so far in which the thread could run and had no core, likewise. Unit: ns.
    run_delay_ns: int
    time_ns: int  # unix time. Unit: ns.


def _moment_of(iteration: Iteration) -> _Moment:
    time = iteration.time
    return _Moment(iteration.step, time.cpu_ns, time.run_delay_ns, iteration.time_ns)


class Span(Struct, frozen=True):
    """The times of consecutive steps.

    Attributes:
        first_step: First step.
        last_step: Last step.
        steps: How many were taken in.
        seconds: Sum of their durations. Unit: s.
        data_seconds: Of that, spent waiting for data. Unit: s.
        usual: Median duration of those that are quiet; NaN without any. Unit: s.
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

    Cost: 0.3 us a step of many at once; a span of many is closed in 0.3 ms.
    """

    def __init__(self) -> None:
        # Of each step that is kept its phases, and the elements that the model was called with.
        self._rows: list[tuple[Phases, int]] = []
        self._steps = self._first_step = 0
        self._seconds = self._data = 0.0
        self._stride = 1
        self._before: _Moment | None = None

    def take(self, steps: Sequence[Iteration], phases: Sequence[Phases]) -> Iterator[Span]:
        """Take in steps in a row; yield the spans that they complete.

        Args:
            steps: The steps.
            phases: Where the time of each went. Unit: s.
        """
        begin = 0
        while begin < len(steps):
            if not self._steps:
                self._first_step = steps[begin].step
                self._before = self._before or _moment_of(steps[begin])
            sums = list(accumulate(map(sum, phases[begin:]), initial=self._seconds))[1:]
            # How many more steps there must be for either way to complete a span.
            num = 1 + min(
                max(fewest - self._steps - 1, bisect_left(sums, seconds))
                for fewest, seconds in (
                    (MIN_STEPS, MIN_SECONDS),
                    (MIN_SLOW_STEPS, MAX_SPAN_SECONDS),
                )
            )
            end = min(begin + num, len(steps))
            self._keep(steps[begin:end], phases[begin:end])
            self._steps += end - begin
            self._seconds = sums[end - begin - 1]
            self._data = sum(map(_OF_DATA, phases[begin:end]), self._data)
            if end == begin + num:
                yield self._close(steps[end - 1])
            begin = end

    def _keep(self, steps: Sequence[Iteration], phases: Sequence[Phases]) -> None:
        """Keep each ``stride``-th of these steps, with twice the stride whenever there are too many."""
        at = 0
        while at < len(steps):
            at += -(self._steps + at + 1) % self._stride
            room = (MAX_ROWS + 1 - len(self._rows)) * self._stride
            kept = range(at, min(at + room, len(steps)), self._stride)
            # Whose ops were watched took longer than a step takes.
            self._rows += [
                (phases[i], steps[i].time.numel)
                for i in kept
                if steps[i].census is None and steps[i].window is None
            ]
            at += max(room, 1)
            if len(self._rows) > MAX_ROWS:
                # Each second one of all, so that the median is that of the whole span.
                at = kept[-1] + 1
                self._rows = self._rows[::2]
                self._stride *= 2

    def clear(self) -> None:
        """Forget the steps of the span that is open."""
        self._rows = []
        self._steps, self._stride = 0, 1
        self._seconds = self._data = 0.0
        self._before = None

    def _close(self, iteration: Iteration) -> Span:
        rows, last = self._rows, _moment_of(iteration)
        before = self._before or last
        delay = _seconds(last.run_delay_ns) - _seconds(before.run_delay_ns)
        cpu = _seconds(last.cpu_ns) - _seconds(before.cpu_ns)
        numels = [float(numel) for _, numel in rows] or [0.0]
        span = Span(
            first_step=self._first_step,
            last_step=last.step,
            steps=self._steps,
            seconds=self._seconds,
            data_seconds=self._data,
            usual=median(sum(phases) for phases, _ in rows) if rows else math.nan,
            usual_phases=tuple(
                median(times) for times in zip(*(phases for phases, _ in rows), strict=True)
            ),
            numel=fmean(numels),
            # Exact arithmetic takes half a millisecond, and as a rule all are the same.
            numel_error=pstdev(numels) / math.sqrt(len(numels)) if len({*numels}) > 1 else 0.0,
            workers=iteration.time.workers,
            delay_share=delay / (delay + cpu) if delay + cpu > 0.0 else math.nan,
            wall_seconds=(last.time_ns - before.time_ns) / 1e9,
        )
        self.clear()
        self._before = last
        return span


def _seconds(nanoseconds: int) -> float:
    return nanoseconds / 1e9 if nanoseconds >= 0 else math.nan
