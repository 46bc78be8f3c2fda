"""Measurements in, records out: by module, and all together."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ampwatch.diagnosis.detector import Detector, Shared
from ampwatch.diagnosis.gradients.lost_gradients import LostGradients, flush_of
from ampwatch.diagnosis.state.poisoned_state import PoisonedState
from ampwatch.numerics.blocks import BLOCK_SIZES, merged_blocks
from ampwatch.numerics.exponents import merged, nearest_exponent
from ampwatch.numerics.whatif import cast
from ampwatch.wire.records import ALL_MODULES, RangeRecord, SamplingRecord, Topic

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ampwatch.diagnosis.evidence.iteration import Iteration, TensorRange
    from ampwatch.diagnosis.steps.steps import StepVerdict
    from ampwatch.numerics.blocks import BlockHistogram
    from ampwatch.numerics.exponents import ExponentHistogram
    from ampwatch.numerics.formats import FloatFormat

APART_NS = 100_000_000
"""Between two times that the records of a topic are written, unless something in them is not
finite: nobody sees more, and a ring must not overflow before the daemon reads it. Unit: ns."""


class RangeRecorder(Detector):
    """Writes what was measured, at most ``max_modules`` modules of a topic at a time.

    Attributes:
        norms: L2 norms of the newest gradients that were measured, by parameter, without the loss
            scale; those that are finite.
    """

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self._most = shared.settings.max_modules
        self._put = shared.put
        self._cost = shared.sampling_cost
        self._lost = shared.of(LostGradients)
        self._samples = [0] * len(Topic)
        self._nonfinite: dict[tuple[Topic, str], tuple[int, int]] = {}
        self._gradients = [0] * 6
        self._state = shared.of(PoisonedState).nonfinite
        self._left_out: dict[Topic, int] = {}
        self._written_ns: dict[Topic, int] = {}
        self.norms: dict[str, float] = {}

    def detect(self, iteration: Iteration, _verdict: StepVerdict) -> None:
        """Write the records of one iteration, if anything was measured in it.

        Cost: about 10 us a module on the training thread.
        """
        if not iteration.topics:
            return
        for topic in sorted(iteration.topics):
            # A fused optimizer is called for skipped steps as well: that changes nothing.
            skipped = topic is Topic.UPDATE and any(iteration.found_inf.values())
            every = [r for r in iteration.ranges if r.topic is topic and r.span == 1]
            if topic is Topic.BUFFER:
                every = self._state.without_meant(every)
            if every and not skipped:
                self._samples[topic] += 1
                self._record_topic(iteration, topic, _scaled(iteration, every))
        self._put(self._sampling(iteration.step))

    def _record_topic(
        self,
        iteration: Iteration,
        topic: Topic,
        every: Sequence[TensorRange],
    ) -> None:
        everything = merged(r.histogram for r in every)
        if topic is Topic.GRADIENT:
            self._count_gradients(every, everything)
        if not self._is_time(topic, iteration.time_ns) and not everything.nonfinite:
            return
        by_module: dict[str, list[TensorRange]] = {}
        for r in every:
            by_module.setdefault(r.module, []).append(r)
        records = [
            self._of_module(iteration, topic, module, ranges)
            for module, ranges in by_module.items()
        ]
        if topic is Topic.GRADIENT:
            together = self._of_module(iteration, topic, ALL_MODULES, every, everything)
            if topic in iteration.incomplete:
                together.norm = math.nan  # that of some of the gradients would pass for all of them
            self._put(together)
            scale = together.loss_scale
            norms = ((r.name, r.norm / scale) for r in every if scale)
            self.norms = {name: norm for name, norm in norms if math.isfinite(norm)}
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
        histogram: ExponentHistogram | None = None,
    ) -> RangeRecord:
        if histogram is None:
            histogram = merged(r.histogram for r in ranges)
        nans, infs = self._nonfinite.get((topic, module), (0, 0))
        if histogram.nonfinite:
            nans, infs = nans + histogram.nans, infs + histogram.infs
            self._nonfinite[topic, module] = nans, infs
        dtypes = {r.dtype for r in ranges}
        # By name once: several calls of a module were judged together.
        keys = dict.fromkeys((topic, r.name) for r in ranges)
        flush = flush_of([self._lost.judged[key] for key in keys if key in self._lost.judged])
        return RangeRecord(
            step=iteration.step,
            time_ns=iteration.time_ns,
            topic=topic,
            module=module,
            dtype=dtypes.pop() if len(dtypes) == 1 else "mixed",
            loss_scale=_loss_scale(iteration, topic),
            total_nans=nans,
            total_infs=infs,
            norm=math.sqrt(sum(r.norm**2 for r in ranges)),
            flushed=-1 if flush.zeros is None else flush.zeros,
            blocks=_blocks(ranges),
            before_step=flush.step,
            before=flush.whole,
            histogram=histogram,
        )

    def _count_gradients(self, every: Sequence[TensorRange], everything: ExponentHistogram) -> None:
        by_format: dict[FloatFormat | None, list[ExponentHistogram]] = {}
        flushed = underflow = subnormal = 0
        for r in every:
            gradient = self._lost.judged[r.topic, r.name]
            by_format.setdefault(gradient.format, []).append(r.histogram)
            flushed += gradient.flushed or 0
        for fmt, histograms in by_format.items():
            if fmt is not None:
                outcome = cast(merged(histograms), fmt)
                underflow += outcome.underflow
                subnormal += outcome.subnormal
        for index, count in enumerate(
            (
                everything.binned + everything.nonfinite,
                everything.zeros,
                underflow + flushed,
                subnormal,
                everything.nans,
                everything.infs,
            )
        ):
            self._gradients[index] += count

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
            parameter_nonfinite=self._state.num_elements(Topic.WEIGHT),
            buffer_nonfinite=self._state.num_elements(Topic.BUFFER),
            device_ns=cost.device_ns,
        )


def _scaled(iteration: Iteration, every: Sequence[TensorRange]) -> Sequence[TensorRange]:
    """Return gradients as they were before ``unscale_``, also those of a skipped step.

    These were measured afterwards; the scale is a power of two, or near one.
    """
    scale = iteration.scale_before
    if every[0].topic is not Topic.GRADIENT or not 0.0 < scale < math.inf:
        return every
    exponent = nearest_exponent(scale)
    return [r if r.scaled else _times_power_of_two(r, exponent) for r in every]


def _times_power_of_two(r: TensorRange, exponent: int) -> TensorRange:
    blocks = tuple(b.shifted(exponent) for b in r.blocks)
    return r._replace(histogram=r.histogram.shifted(exponent), blocks=blocks)


def _blocks(ranges: Sequence[TensorRange]) -> tuple[BlockHistogram, ...]:
    """Return the blocks of tensors together; none if they were not measured."""
    every = [blocks for r in ranges for blocks in r.blocks]
    return tuple(merged_blocks(every, size) for size in BLOCK_SIZES) if every else ()


def _loss_scale(iteration: Iteration, topic: Topic) -> float:
    multiplied = topic in (Topic.GRADIENT, Topic.ACTIVATION_GRADIENT)
    scale = iteration.scale_before
    return scale if multiplied and 0.0 <= scale < math.inf else 1.0


def _trouble(record: RangeRecord) -> tuple[int, float]:
    """Sort key of the modules that are recorded when there are too many."""
    histogram = record.histogram
    return histogram.nonfinite, histogram.zero_share
