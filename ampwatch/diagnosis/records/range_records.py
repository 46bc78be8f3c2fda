"""Measurements in, records out: by module, and all together."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ampwatch.numerics.exponents import merged
from ampwatch.numerics.formats import FORMATS
from ampwatch.numerics.whatif import cast, flushed_zeros
from ampwatch.wire.records import ALL_MODULES, RangeRecord, SamplingRecord, Topic

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ampwatch.diagnosis.evidence.iteration import Iteration, SamplingCost, TensorRange
    from ampwatch.numerics.exponents import ExponentHistogram
    from ampwatch.numerics.formats import FloatFormat
    from ampwatch.settings import Settings
    from ampwatch.wire.records import Record

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
        self._left_out: dict[Topic, int] = {}
        self._written_ns: dict[Topic, int] = {}

    def record(self, iteration: Iteration) -> None:
        """Write the records of one iteration, if anything was measured in it.

        Cost: about 10 us a module on the training thread.
        """
        if not iteration.topics:
            return
        for topic in sorted(iteration.topics):
            # A fused optimizer is called for skipped steps as well: that changes nothing.
            skipped = topic is Topic.UPDATE and any(iteration.found_inf.values())
            every = [r for r in iteration.ranges if r.topic is topic and r.span == 1]
            if every and not skipped:
                self._samples[topic] += 1
                self._record_topic(iteration, topic, _scaled(iteration, every))
        self._put(self._sampling(iteration.step))

    def _record_topic(
        self, iteration: Iteration, topic: Topic, every: Sequence[TensorRange]
    ) -> None:
        everything = merged(r.histogram for r in every)
        if topic is Topic.GRADIENT:
            self._count_gradients(every, everything)
        elif topic in self._state:
            self._state[topic] = everything.nonfinite
        if not self._is_time(topic, iteration.time_ns) and not everything.nonfinite:
            return
        by_module: dict[str, list[TensorRange]] = {}
        for r in every:
            by_module.setdefault(r.module, []).append(r)
        scale = _loss_scale(iteration, topic)
        records = [
            self._of_module(iteration, topic, module, ranges, scale)
            for module, ranges in by_module.items()
        ]
        if topic is Topic.GRADIENT:
            self._put(self._of_module(iteration, topic, ALL_MODULES, every, scale, everything))
        self._left_out[topic] = max(0, len(records) - self._most)
        if self._left_out[topic]:
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

    def _count_gradients(self, every: Sequence[TensorRange], everything: ExponentHistogram) -> None:
        fmt = self._autocast_format()
        outcome = cast(everything, fmt)
        with_zeros = [r.histogram for r in every if r.histogram.zeros]
        flushed = sum(flushed_zeros(h, fmt, everything.amax) for h in with_zeros)
        for index, count in enumerate(
            (
                everything.binned + everything.nonfinite,
                everything.zeros,
                outcome.underflow + flushed,
                outcome.subnormal,
                everything.nans,
                everything.infs,
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
            modules_left_out=max(self._left_out.values(), default=0),
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


def _scaled(iteration: Iteration, every: Sequence[TensorRange]) -> Sequence[TensorRange]:
    """Return gradients as they were before ``unscale_``, also those of a skipped step.

    These were measured afterwards; the scale is a power of two, or near one.
    """
    scale = iteration.scale_before
    if every[0].topic is not Topic.GRADIENT or not 0.0 < scale < math.inf:
        return every
    exponent = round(math.log2(scale))
    return [r if r.scaled else r._replace(histogram=r.histogram.shifted(exponent)) for r in every]


def _loss_scale(iteration: Iteration, topic: Topic) -> float:
    multiplied = topic in (Topic.GRADIENT, Topic.ACTIVATION_GRADIENT)
    scale = iteration.scale_before
    return scale if multiplied and 0.0 <= scale < math.inf else 1.0


def _trouble(record: RangeRecord) -> tuple[int, float]:
    """Sort key of the modules that are recorded when there are too many."""
    histogram = record.histogram
    return histogram.nonfinite, histogram.zero_share
