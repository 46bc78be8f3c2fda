"""The iterations of a run since its beginning, in bounded memory.

A bucket is a span of the history (``span_history.py``): no dip of the scale and no slow step is
smoothed away in it.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from operator import add
from typing import TYPE_CHECKING

from ampwatch.host.fleet.span_history import SpanHistory
from ampwatch.report.verdict import RECENT_STEPS
from ampwatch.wire.records import NO_PHASES, SKIP_CLASSES, SkipClass

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ampwatch.wire.records import DevicePhasesRecord, Phases, StepRecord

MAX_BUCKETS = 1024

NO_SKIPS = (0,) * len(SKIP_CLASSES)


@dataclass(slots=True)
class Bucket:
    """The events of some consecutive iterations.

    Attributes:
        time_ns: Unix time at the end of the last one. Unit: ns.
        num_steps: Iterations that were read; fewer than the span when some were lost.
        scale_min, scale_max, scale_last: Smallest, largest and newest loss scale; NaN without a scaler.
        loss_sum: Sum of the finite losses.
        num_losses: Iterations with a finite loss.
        num_nonfinite_losses: Iterations with a loss that was NaN or infinite.
        loss_last: Newest loss, also one that is not finite; None without any.
        duration_sum: Sum of the known durations. Unit: s.
        num_durations: Iterations of known duration.
        duration_max: Longest known duration, NaN if none is known. Unit: s.
        skips: Skipped iterations per class, in the order of ``SKIP_CLASSES``.
        phase_sums: Time of each phase, all iterations together. Unit: s.
        num_phased: Iterations whose phases are known.
        device_phase_sums: Time of each phase on the device, in the iterations that it has timed and whose
            times came in these: a few iterations late. Unit: s.
        num_device_phased: How many those are.
    """

    first_step: int
    last_step: int
    time_ns: int
    num_steps: int = 1
    scale_min: float = math.nan
    scale_max: float = math.nan
    scale_last: float = math.nan
    loss_sum: float = 0.0
    num_losses: int = 0
    num_nonfinite_losses: int = 0
    loss_last: float | None = None
    duration_sum: float = 0.0
    num_durations: int = 0
    duration_max: float = math.nan
    skips: tuple[int, ...] = NO_SKIPS
    phase_sums: Phases = NO_PHASES
    num_phased: int = 0
    device_phase_sums: Phases = NO_PHASES
    num_device_phased: int = 0

    @classmethod
    def of(cls, record: StepRecord) -> Bucket:
        """Return the bucket of the one iteration of ``record``."""
        bucket = cls(record.step, record.step, record.time_ns)
        bucket.scale_min = bucket.scale_max = bucket.scale_last = record.loss_scale
        if record.num_losses > 0:
            # One NaN in the sum would make the mean of the whole bucket NaN for good.
            finite = math.isfinite(record.loss)
            bucket.loss_sum = record.loss if finite else 0.0
            bucket.num_losses = int(finite)
            bucket.num_nonfinite_losses = int(not finite)
            bucket.loss_last = record.loss
        if math.isfinite(record.duration_s):
            bucket.duration_sum = bucket.duration_max = record.duration_s
            bucket.num_durations = 1
        if record.skip_class is not SkipClass.NONE:
            bucket.skips = tuple(int(c is record.skip_class) for c in SKIP_CLASSES)
        if any(record.phases):
            bucket.phase_sums, bucket.num_phased = record.phases, 1
        return bucket

    def merge(self, newer: Bucket) -> None:
        """Take in ``newer``, the bucket of iterations after these."""
        self.last_step = max(self.last_step, newer.last_step)
        self.time_ns = newer.time_ns
        self.num_steps += newer.num_steps
        self.scale_min = _best(min, self.scale_min, newer.scale_min)
        self.scale_max = _best(max, self.scale_max, newer.scale_max)
        self.scale_last = newer.scale_last
        self.loss_sum += newer.loss_sum
        self.num_losses += newer.num_losses
        self.num_nonfinite_losses += newer.num_nonfinite_losses
        # A bucket without a loss says nothing about it; it must not hide the one before.
        self.loss_last = self.loss_last if newer.loss_last is None else newer.loss_last
        self.duration_sum += newer.duration_sum
        self.num_durations += newer.num_durations
        self.duration_max = _best(max, self.duration_max, newer.duration_max)
        self.skips = _summed(self.skips, newer.skips)
        self.phase_sums = _added(self.phase_sums, newer.phase_sums)
        self.num_phased += newer.num_phased
        self.device_phase_sums = _added(self.device_phase_sums, newer.device_phase_sums)
        self.num_device_phased += newer.num_device_phased

    @property
    def loss_mean(self) -> float:
        """Mean of the finite losses; NaN without any."""
        return self.loss_sum / self.num_losses if self.num_losses else math.nan

    @property
    def duration_mean(self) -> float:
        """Mean of the known durations; NaN without any. Unit: s."""
        return self.duration_sum / self.num_durations if self.num_durations else math.nan


def _best(pick: Callable[[float, float], float], one: float, other: float) -> float:
    """Return ``pick`` of both, where NaN stands for "not known"."""
    if math.isnan(one):
        return other
    return one if math.isnan(other) else pick(one, other)


def _summed(skips: Sequence[int], more: Sequence[int]) -> tuple[int, ...]:
    if not any(more):
        return tuple(skips)
    return tuple(one + other for one, other in zip(skips, more, strict=True))


def _added(one: Phases, other: Phases) -> Phases:
    # Most iterations of a device are not timed by it: one of four is.
    if other is NO_PHASES:
        return one
    if one is NO_PHASES:
        return other
    return tuple(map(add, one, other))


class History(SpanHistory[Bucket]):
    """The iterations of one rank, thinned as the run grows.

    Cost:
        About 0.5 MB at the most. A record takes a few microseconds; one that makes the
        history too long about a millisecond.
    """

    def __init__(self, max_buckets: int = MAX_BUCKETS) -> None:
        super().__init__(max_buckets)
        self._recent_from = self._recent_steps = 0
        self._recent_skips = NO_SKIPS

    def put(self, record: StepRecord) -> None:
        """Append the iteration of ``record``."""
        stride, bucket = self.stride, Bucket.of(record)
        self.add(bucket)
        self._count_recent([bucket] if stride == self.stride else None)

    def put_device(self, record: DevicePhasesRecord) -> None:
        """Take in an iteration as its device has timed it, with the newest iteration.

        Those who have seen the buckets before are notified of it with the next iteration: all of them but
        the last one stay as they were.
        """
        if self.spans and any(record.phases):
            newest = self.spans[-1]
            newest.device_phase_sums = _added(newest.device_phase_sums, record.phases)
            newest.num_device_phased += 1

    @property
    def recent(self) -> tuple[Sequence[int], int]:
        """The skipped ones of the newest iterations per class, and how many those are.

        At least ``RECENT_STEPS`` if the run has them; more where the history has thinned them.
        """
        return self._recent_skips, self._recent_steps

    def _count_recent(self, new: Sequence[Bucket] | None) -> None:
        """Follow the newest iterations: ``None`` after all buckets have become other ones."""
        if new is None:
            self._recent_from, self._recent_steps, self._recent_skips = 0, 0, NO_SKIPS
            new = self.spans
        for bucket in new:
            self._recent_steps += bucket.num_steps
            self._recent_skips = _summed(self._recent_skips, bucket.skips)
        # Kept up with, not counted when asked for: that is a thousand buckets a rank and scrape.
        while True:
            oldest = self.spans[self._recent_from]
            if self._recent_steps - oldest.num_steps < RECENT_STEPS:
                return
            self._recent_from += 1
            self._recent_steps -= oldest.num_steps
            self._recent_skips = _summed(self._recent_skips, [-count for count in oldest.skips])

    def time_of(self, step: int) -> int | None:
        """Return the Unix time by which ``step`` was over; ``None`` if all known steps are older.

        As exact as the stride; for a step before the first known one, the time of that one.
        Unit: ns.
        """
        place = bisect_left(self.spans, step, key=lambda bucket: bucket.last_step)
        return self.spans[place].time_ns if place < len(self.spans) else None
