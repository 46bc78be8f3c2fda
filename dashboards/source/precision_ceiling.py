"""The rows of the dashboard Precision about the ceiling, and about the views that lead to it."""

from __future__ import annotations

from dashboards.source.fields import (
    GOOD,
    NEUTRAL,
    NOTE,
    Step,
    described,
    thresholds,
)
from dashboards.source.panels import Panel, TimeSeries
from dashboards.source.precision_kernels import AT_LEAST, MATMULS, SECONDS
from dashboards.source.precision_shares import OVER, share, sums
from dashboards.source.queries import Query, of

_MFU = "ampwatch_mfu_ratio"
_BUSY = "ampwatch_kernel_busy_seconds_total"
_PROFILED = "ampwatch_profiled_seconds_total"
_NO_PEAK = "Not known: no GPU, no step times yet, or an unknown peak (set peak_flops)"

_USED = thresholds(NEUTRAL, Step(0.2, NOTE), Step(0.4, GOOD))
"""Well tuned language models reach 40 to 60 %; there is no bad, only room."""


def _mean(metric: str) -> str:
    return f"avg by (run) ({of(metric)})"


def ceiling() -> tuple[Panel, ...]:
    """Return how much of the peak was used, and the factors that it is made of."""
    return (
        TimeSeries(
            id=502,
            title="Model FLOPs utilization (MFU)",
            description=described(
                shows="FLOPs a second over the peak of float16 or bfloat16, as papers quote it."
                " With activation checkpointing it is HFU: what is computed again is counted.",
                good="close to the share of the ceiling; below it by what still runs in float32.",
                act="compare with published numbers of the same model and GPU, not with 100 %.",
                metrics=[_MFU],
            ),
            unit="percentunit",
            no_value=_NO_PEAK,
            queries=(Query(_mean(_MFU), "{{run}}"),),
            minimum=0,
            thresholds=_USED,
        ),
        TimeSeries(
            id=503,
            title="What the ceiling is lost to",
            description=described(
                shows="Of profiled time: how much of it a kernel ran at all (busy); of the time of"
                " kernels, how much multiplied matrices; of that, how much was on tensor cores for"
                " certain. Their product bounds the share of the ceiling from above.",
                good="each above 80 %.",
                act="busy is low: the CPU, the data loader or communication holds the GPU up."
                " Multiplying is low: pointwise ops and memory traffic. Tensor cores is low: dtype,"
                " dimensions, kernels.",
                metrics=[_BUSY, _PROFILED, SECONDS],
            ),
            unit="percentunit",
            no_value=f"No profiler window on a GPU within {OVER}",
            queries=(
                Query(share(sums(_BUSY), sums(_PROFILED)), "{{run}} busy"),
                Query(share(sums(SECONDS, MATMULS), sums(SECONDS)), "{{run}} multiplying"),
                Query(
                    share(sums(SECONDS, AT_LEAST), sums(SECONDS, MATMULS)),
                    "{{run}} on tensor cores",
                ),
            ),
            minimum=0,
            maximum=1,
        ),
    )
