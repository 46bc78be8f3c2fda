"""Measurements in, records out: by module, and all together."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ampwatch.numerics.exponents import merged
from ampwatch.numerics.formats import FORMATS
from ampwatch.numerics.whatif import cast
from ampwatch.records import ALL_MODULES, RangeRecord, SamplingRecord, Topic

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ampwatch.diagnosis.evidence import Iteration, SamplingCost, TensorRange
    from ampwatch.numerics.exponents import ExponentHistogram
    from ampwatch.numerics.formats import FloatFormat
    from ampwatch.records import Record
    from ampwatch.settings import Settings

APART_NS = 100_000_000
"""Between two times that the records of a topic are written, unless something in them is not
finite: nobody sees more, and a ring must not overflow before the daemon reads it. Unit: ns."""


class RangeRecorder:
    """Writes what was measured, at most ``max_modules`` modules of a topic at a time.

    Args:
        settings: ``max_modules``.
        put: Where records go.
        cost: Asked what sampling has cost and missed so far.
        autocast_dtypes: Names of the autocast dtypes seen; read, not copied.
    """

    def __init__(
        self,
        settings: Settings,
        put: Callable[[Record], None],
        cost: Callable[[], SamplingCost],
        autocast_dtypes: Sequence[str],
    ) -> None:
        self._most = settings.max_modules
        self._put = put
        self._cost = cost
        self._autocast_dtypes = autocast_dtypes
        self._samples = [0] * len(Topic)
        self._nonfinite: dict[tuple[Topic, str], tuple[int, int]] = {}
        self._gradients = [0] * 6
        self._state = {Topic.WEIGHT: -1, Topic.BUFFER: -1}
        self._left_out = 0
        self._written_ns: dict[Topic, int] = {}

    def record(self, iteration: Iteration) -> None:
        """Write the records of one iteration, if anything was measured in it.

        Cost: about 10 us a module on the training thread.
        """
        if not iteration.topics:
            return
        self._left_out = 0
        for topic in sorted(iteration.topics):
            self._samples[topic] += 1
            # A fused optimizer is called for skipped steps as well: that changes nothing.
            skipped = topic is Topic.UPDATE and any(iteration.found_inf.values())
            if not skipped:
                self._record_topic(iteration, topic)
        self._put(self._sampling(iteration.step))

    def _record_topic(self, iteration: Iteration, topic: Topic) -> None:
        by_module: dict[str, list[TensorRange]] = {}
        for r in iteration.ranges:
            if r.topic is topic and r.span == 1:
                by_module.setdefault(r.module, []).append(r)
        if not by_module:
            return
        every = [r for ranges in by_module.values() for r in ranges]
        everything = merged(r.histogram for r in every)
        if topic is Topic.GRADIENT:
            self._count_gradients(everything)
        elif topic in self._state:
            self._state[topic] = everything.nonfinite
        if not self._is_time(topic, iteration.time_ns) and not everything.nonfinite:
            return
        scale = _scale(iteration, by_module)
        records = [
            self._of_module(iteration, topic, module, ranges, scale)
            for module, ranges in by_module.items()
        ]
        if topic is Topic.GRADIENT:
            self._put(self._of_module(iteration, topic, ALL_MODULES, every, scale, everything))
        self._left_out += max(0, len(records) - self._most)
        if len(records) > self._most:
            records.sort(key=_trouble, reverse=True)
        for record in records[: self._most]:
            self._put(record)

    def _is_time(self, topic: Topic, now_ns: int) -> bool:
        """Whether the records of a topic may be written again."""
        due = now_ns - self._written_ns.get(topic, -APART_NS) >= APART_NS
        if due:
            self._written_ns[topic] = now_ns
        return due

    def _of_module(
        self,
        iteration: Iteration,
        topic: Topic,
        module: str,
        ranges: Sequence[TensorRange],
        scale: float,
        histogram: ExponentHistogram | None = None,
    ) -> RangeRecord:
        if histogram is None:
            histogram = merged(r.histogram for r in ranges)
        nans, infs = self._nonfinite.get((topic, module), (0, 0))
        if histogram.nonfinite:
            nans, infs = nans + histogram.nans, infs + histogram.infs
            self._nonfinite[topic, module] = nans, infs
        dtypes = {r.dtype for r in ranges}
        return RangeRecord(
            step=iteration.step,
            time_ns=iteration.time_ns,
            topic=topic,
            module=module,
            dtype=dtypes.pop() if len(dtypes) == 1 else "mixed",
            num_tensors=len(ranges),
            loss_scale=scale,
            total_nans=nans,
            total_infs=infs,
            histogram=histogram,
        )

    def _count_gradients(self, histogram: ExponentHistogram) -> None:
        outcome = cast(histogram, self._autocast_format())
        for index, count in enumerate(
            (
                histogram.binned + histogram.nonfinite,
                histogram.zeros,
                outcome.underflow,
                outcome.subnormal,
                histogram.nans,
                histogram.infs,
            )
        ):
            self._gradients[index] += count

    def _autocast_format(self) -> FloatFormat:
        names = [name for name in self._autocast_dtypes if name in FORMATS]
        # With several the narrowest range counts.
        return min((FORMATS[n] for n in names), key=lambda f: f.max, default=FORMATS["float32"])

    def _sampling(self, step: int) -> SamplingRecord:
        cost = self._cost()
        elements, zeros, underflow, subnormal, nans, infs = self._gradients
        gradient, activation, backward, weight, update, buffer = self._samples
        return SamplingRecord(
            step=step,
            interval=cost.interval,
            samples=(gradient, activation, backward, weight, update, buffer),
            samples_dropped=cost.dropped,
            tensors_refused=cost.refused,
            modules_left_out=self._left_out,
            gradient_elements=elements,
            gradient_zeros=zeros,
            gradient_underflow=underflow,
            gradient_subnormal=subnormal,
            gradient_nans=nans,
            gradient_infs=infs,
            parameter_nonfinite=self._state[Topic.WEIGHT],
            buffer_nonfinite=self._state[Topic.BUFFER],
            device_ns=cost.device_ns,
        )


def _scale(iteration: Iteration, by_module: dict[str, list[TensorRange]]) -> float:
    scaled = any(r.scaled for ranges in by_module.values() for r in ranges)
    scale = iteration.scale_before
    return scale if scaled and math.isfinite(scale) and scale > 0 else 1.0


def _trouble(record: RangeRecord) -> tuple[int, float]:
    """Sort key of the modules that are recorded when there are too many."""
    histogram = record.histogram
    return histogram.nonfinite, histogram.zero_share
