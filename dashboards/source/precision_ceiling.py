"""The rows of the dashboard Precision about the ceiling, and about the views that lead to it."""

from __future__ import annotations

from dashboards.source.fields import (
    BAD,
    GOOD,
    NEUTRAL,
    NOTE,
    Step,
    described,
    limit_line,
    thresholds,
    words,
)
from dashboards.source.panels import Panel, StateTimeline, TimeSeries
from dashboards.source.precision_kernels import AT_LEAST, MATMULS, SECONDS
from dashboards.source.precision_shares import OVER, RUN, share, sums
from dashboards.source.queries import Query, of
from dashboards.source.tables import Column, Key, Table

_IDEAL_RATIO = "ampwatch_ideal_time_ratio"
_IDEAL_SECONDS = "ampwatch_ideal_step_seconds"
_MFU = "ampwatch_mfu_ratio"
_PEAK = "ampwatch_peak_flops_per_second"
_STEP = "ampwatch_step_duration_seconds"
_BUSY = "ampwatch_kernel_busy_seconds_total"
_PROFILED = "ampwatch_profiled_seconds_total"
_DISAGREE = "ampwatch_tensor_views_disagree"
_PIPES = "ampwatch_gpu_tensor_active_ratio"
_ON = "ampwatch_gpu_process_info"

_NO_PEAK = "Not known: no GPU, no step times yet, or a peak nobody has told (set peak_flops)"

_USED = thresholds(NEUTRAL, Step(0.2, NOTE), Step(0.4, GOOD))
"""Well tuned language models reach 40 to 60 %; there is no bad, only room."""


def _mean(metric: str) -> str:
    return f"avg by (run) ({of(metric)})"


def ceiling() -> tuple[Panel, ...]:
    """Return how much of the peak was used, and the factors that it is made of."""
    step = (
        f"sum by (run) (rate({of(_STEP + '_sum')}[$__rate_interval]))"
        f" / (sum by (run) (rate({of(_STEP + '_count')}[$__rate_interval])) > 0)"
    )
    return (
        TimeSeries(
            id=501,
            title="Share of the ceiling",
            description=described(
                shows="The time that the FLOPs of a step would take at the peak of the dtype of"
                " each, over the time that it does take: right for any mix of dtypes. Mean of the"
                " ranks.",
                good="40 to 60 % is what well tuned language models reach. There is no bad value,"
                " only room.",
                act="a fall is what to look at: the factors beside say which part. Above 100 % the"
                " peak is not that of the device: set peak_flops.",
                metrics=[_IDEAL_RATIO],
            ),
            unit="percentunit",
            no_value=_NO_PEAK,
            queries=(Query(_mean(_IDEAL_RATIO), "{{run}}"),),
            minimum=0,
            thresholds=_USED,
            width=8,
        ),
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
            width=8,
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
            width=8,
        ),
        TimeSeries(
            id=504,
            title="Time of a step, and what it could be",
            description=described(
                shows="Mean wall time of an iteration, and the time that its FLOPs would take at"
                " the peak.",
                good="two flat lines, a factor of two to three apart.",
                act="the ideal falls and the time does not: less work was given, not more speed."
                " The time rises alone: see the GPU's clocks, and the dashboard Ranks.",
                metrics=[_STEP, _IDEAL_SECONDS],
            ),
            unit="s",
            no_value="No steps in the time range",
            queries=(
                Query(step, "{{run}}"),
                Query(_mean(_IDEAL_SECONDS), "{{run}} at the peak"),
            ),
            minimum=0,
            overrides=(limit_line("/ at the peak$/", GOOD),),
        ),
        Table(
            id=505,
            title="The peaks",
            description=described(
                shows="What the GPU could do at most in each dtype, without structured sparsity:"
                " from its SMs, clock and compute capability, or from the setting peak_flops.",
                good="what the data sheet says, in its column without sparsity.",
                act="if it differs, set peak_flops: all shares of the ceiling follow from it.",
                metrics=[_PEAK],
            ),
            unit="flops",
            no_value=_NO_PEAK,
            keys=(RUN, Key(label="dtype", title="Dtype")),
            columns=(
                Column(
                    title="Slowest rank", expr=f"min by (run, dtype) ({of(_PEAK)})", unit="flops"
                ),
                Column(
                    title="Fastest rank", expr=f"max by (run, dtype) ({of(_PEAK)})", unit="flops"
                ),
            ),
            sort_by="Slowest rank",
            descending=True,
            width=12,
        ),
    )


_VIEWS = words({0: ("agree", GOOD), 1: ("contradict each other", BAD)})


def views() -> tuple[Panel, ...]:
    """Return the three views beside one another, and where they contradict each other."""
    on_the_gpu = "on (job, instance, uuid) group_left ()"
    pipes = of(_PIPES, 'pipe="any"')
    return (
        StateTimeline(
            id=601,
            title="Which views contradict each other",
            description=described(
                shows="Cycles of the hardware, time of the kernels, and FLOPs over the peak: three"
                " measurements of the same tensor cores, two and two, of the worst rank.",
                good="agree.",
                act="hardware above kernels: names that no rule knows, or another process on the"
                " GPU. Kernels above arithmetic: tensor cores wait for memory, or alignment is"
                " missing. The finding tensor_views_disagree says which.",
                metrics=[_DISAGREE],
            ),
            unit="none",
            no_value="Not known: it takes two views, and the capabilities below say what is missing",
            queries=(Query(f"max by (run, views) ({of(_DISAGREE)})", "{{run}} {{views}}"),),
            mappings=(_VIEWS,),
            thresholds=thresholds(GOOD, Step(1, BAD)),
        ),
        TimeSeries(
            id=602,
            title="The three views",
            description=described(
                shows="Hardware: cycles in which a tensor pipe was active, 75 % is full. Kernels:"
                " profiled time with a kernel that multiplies on tensor cores for certain."
                " Arithmetic: the share of the ceiling. Means of the ranks.",
                good="hardware between the other two: a kernel on tensor cores does not use them"
                " in every cycle, and not every cycle is a useful FLOP.",
                act="read the contradictions beside; a view that is missing is explained below.",
                metrics=[_PIPES, _ON, SECONDS, _PROFILED, _IDEAL_RATIO],
            ),
            unit="percentunit",
            no_value="None of the three views is known: see below why",
            queries=(
                Query(f"avg by (run) ({of(_ON)} * {on_the_gpu} {pipes})", "{{run}} hardware"),
                Query(share(sums(SECONDS, AT_LEAST), sums(_PROFILED)), "{{run}} kernels"),
                Query(_mean(_IDEAL_RATIO), "{{run}} arithmetic"),
            ),
            minimum=0,
        ),
    )
