"""Activity of the tensor pipes and the SMs: GPM, on Hopper and newer.

A value belongs to the time between two samples, so one of each GPU is kept from pass to
pass. Never from two threads, and never for several GPUs at once: NVML has crashed then.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from ampwatch.host.fleet.gpus import Feature, Reason
from ampwatch.host.gpu.nvml import SUCCESS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ampwatch.host.fleet.gpus import Answer, Answers
    from ampwatch.host.gpu.nvml import Nvml

MIN_SECONDS = 0.1
"""Samples closer together than the driver refreshes its counters give 0 or NaN. Unit: s."""

MAX_SECONDS = 600.0
"""A mean over longer than this, as after the machine has slept, is nobody's present. Unit: s."""


class GpmMetric(NamedTuple):
    """A GPM metric: its number in nvml.h, and the factor from its unit to ours."""

    feature: Feature
    part: str
    number: int
    scale: float


MEANS = (
    GpmMetric(Feature.SM_ACTIVE, "", 2, 0.01),
    GpmMetric(Feature.TENSOR_ACTIVE, "any", 5, 0.01),
    GpmMetric(Feature.TENSOR_ACTIVE, "hmma", 7, 0.01),
    GpmMetric(Feature.TENSOR_ACTIVE, "imma", 9, 0.01),
    GpmMetric(Feature.TENSOR_ACTIVE, "dmma", 8, 0.01),
    GpmMetric(Feature.TENSOR_ACTIVE, "dfma", 6, 0.01),
)
"""Means over the time between two samples, in percent."""

TOTALS = (
    GpmMetric(Feature.SM_CYCLES, "", 248, 1.0),
    GpmMetric(Feature.TENSOR_CYCLES, "any", 250, 1.0),
    GpmMetric(Feature.TENSOR_CYCLES, "hmma", 252, 1.0),
    GpmMetric(Feature.TENSOR_CYCLES, "imma", 253, 1.0),
    GpmMetric(Feature.TENSOR_CYCLES, "dmma", 251, 1.0),
    GpmMetric(Feature.TENSOR_CYCLES, "dfma", 254, 1.0),
)
"""Cycles since the machine was started; drivers before 595 do not know them."""


class Gpm:
    """The samples of one GPU or of one GPU instance.

    Args:
        take: Fills a sample; returns a ``Reason`` if that fails.
        clock: A clock that never goes back. Unit: s.
    """

    def __init__(
        self,
        nvml: Nvml,
        take: Callable[[Any], Any],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._nvml = nvml
        self._take = take
        self._clock = clock
        self._older: Any = None
        self._spare: Any = None
        self._taken_at = -math.inf
        self._answers = nothing(Reason.WAITING)

    def read(self) -> Answers:
        """Take a sample, and return what has happened since the one before."""
        if self._spare is None:
            sample = self._nvml.call("nvmlGpmSampleAlloc")
            if isinstance(sample, Reason):
                return nothing(sample)
            self._spare = sample
        elapsed = self._clock() - self._taken_at
        # The driver would answer 0 or NaN, and 0 reads as an idle GPU.
        if elapsed < MIN_SECONDS:
            return self._answers
        took = self._take(self._spare)
        if isinstance(took, Reason):
            return nothing(took)
        # Two buffers take turns: the older one is read below and is the spare of the next pass.
        older, self._older, self._spare = self._older, self._spare, self._older
        self._taken_at = self._clock()
        if older is None or elapsed > MAX_SECONDS:
            self._answers = nothing(Reason.WAITING)
        else:
            # Apart, because a driver that does not know a number may refuse the whole question.
            self._answers = {}
            self._ask(MEANS, older)
            self._ask(TOTALS, older)
        return self._answers

    def close(self) -> None:
        """Give the samples back; NVML wants that before it is shut down."""
        for sample in (self._older, self._spare):
            if sample is not None:
                self._nvml.call("nvmlGpmSampleFree", sample)
        self._older = self._spare = None

    def _ask(self, metrics: Sequence[GpmMetric], older: Any) -> None:
        answers = self._measured(metrics, older)
        for metric, answer in zip(metrics, answers, strict=True):
            self._answers.setdefault(metric.feature, {})[metric.part] = answer

    def _measured(self, metrics: Sequence[GpmMetric], older: Any) -> list[Answer]:
        make = self._nvml.constant("c_nvmlGpmMetricsGet_t")
        if make is None:
            return [Reason.NOT_IN_BINDING] * len(metrics)
        question = make()
        question.version = 1
        question.numMetrics = len(metrics)
        question.sample1, question.sample2 = older, self._older
        for i, metric in enumerate(metrics):
            question.metrics[i].metricId = metric.number
        answer = self._nvml.call("nvmlGpmMetricsGet", question)
        if isinstance(answer, Reason):
            return [answer] * len(metrics)
        return [self._value(metric, question.metrics[i]) for i, metric in enumerate(metrics)]

    def _value(self, metric: GpmMetric, got: Any) -> Answer:
        """Return the value of one metric; that the question succeeded says nothing about it."""
        if got.nvmlReturn != SUCCESS:
            return self._nvml.reason(f"GPM metric {metric.number}", got.nvmlReturn)
        if not (math.isfinite(got.value) and got.value >= 0):
            return Reason.NO_DATA
        return float(got.value) * metric.scale


def nothing(reason: Reason) -> Answers:
    """Return ``reason`` for every metric of GPM."""
    answers: Answers = {}
    for metric in (*MEANS, *TOTALS):
        answers.setdefault(metric.feature, {})[metric.part] = reason
    return answers


def support(nvml: Nvml, handle: Any) -> Reason:
    """Return whether a GPU has GPM: ``OK``, or why not."""
    answer = nvml.call("nvmlGpmQueryDeviceSupport", handle)
    if isinstance(answer, Reason):
        return answer
    return Reason.OK if answer.isSupportedDevice else Reason.NOT_SUPPORTED
