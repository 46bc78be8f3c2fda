"""The rows of the dashboard Precision about what its numbers rest on, and what that costs."""

from __future__ import annotations

from dashboards.source.capabilities import PRECISION_FEATURES, PRECISION_REASONS, STATE_WORDS
from dashboards.source.fields import BAD, GOOD, WARN, Step, described, thresholds
from dashboards.source.panels import Panel, Stat, TimeSeries
from dashboards.source.precision_shares import OVER, RUN, sums
from dashboards.source.queries import Query, of
from dashboards.source.tables import Column, Key, Table

_CAPABILITY = "ampwatch_precision_capability"
_WINDOWS = "ampwatch_profiler_windows_total"
_INVALID = "ampwatch_profiler_windows_invalid_total"
_SKIPPED = "ampwatch_profiler_windows_skipped_total"
_ITERATIONS = "ampwatch_profiler_iterations_total"
_SECONDS = "ampwatch_profiler_seconds_total"
_DRAG = "ampwatch_profiler_drag_ratio"
_MEMORY = "ampwatch_profiler_memory_growth_bytes"
_CPU = "ampwatch_cpu_op_seconds_total"


def absent() -> tuple[Panel, ...]:
    """Return how it stands with each measurement, in words."""
    return (
        Table(
            id=701,
            title="What is measured, and why something is not",
            description=described(
                shows="How many ranks of a run have each measurement, and if not, for what reason."
                " A value that is not known is absent from the panels above, never zero.",
                good="supported, for all ranks of the run.",
                act="the reason says what to change; docs/precision.md has the details.",
                metrics=[_CAPABILITY],
            ),
            unit="none",
            no_value="No run was chosen that is watched at level standard or deep",
            keys=(
                RUN,
                Key(label="feature", title="What", mappings=(PRECISION_FEATURES,)),
                Key(label="state", title="State", mappings=(STATE_WORDS,), width=140),
                Key(label="reason", title="Why", mappings=(PRECISION_REASONS,)),
            ),
            columns=(
                Column(
                    title="Ranks",
                    expr=f"count by (run, feature, state, reason) ({of(_CAPABILITY)})",
                    width=90,
                ),
            ),
            sort_by="Run",
        ),
    )


def windows() -> tuple[Panel, ...]:
    """Return how often the profiler ran, and what it has cost."""
    none = "No profiler window was opened, or no run was chosen"
    return (
        Stat(
            id=801,
            width=6,
            title="Windows",
            course=False,
            description=described(
                shows="Profiler windows of the time range that gave data, over all ranks.",
                good="a few in each hour.",
                act="with none, the panel beside says why they were not opened.",
                metrics=[_WINDOWS, _INVALID],
            ),
            unit="none",
            no_value=none,
            decimals=0,
            queries=(
                Query(
                    f"sum(increase({of(_WINDOWS)}[$__range]))"
                    f" - sum(increase({of(_INVALID)}[$__range]))"
                ),
            ),
        ),
        Stat(
            id=802,
            width=6,
            title="Profiled iterations",
            course=False,
            description=described(
                shows="Iterations of the time range that were profiled: what the time of kernels"
                " is of.",
                good="two or three for each window.",
                act="nothing by itself: with few, the shares of kernels rest on little.",
                metrics=[_ITERATIONS],
            ),
            unit="none",
            no_value=none,
            decimals=0,
            queries=(Query(f"sum(increase({of(_ITERATIONS)}[$__range]))"),),
        ),
        Stat(
            id=803,
            width=6,
            title="Drag after a window",
            description=described(
                shows="Usual step time after the newest window over the one before, of the worst"
                " rank.",
                good="1.00; noise is below 1.05.",
                act="above, the profiler has left something behind: ampwatch opens no further"
                " window then. Report it with the versions of PyTorch and the driver.",
                metrics=[_DRAG],
            ),
            unit="none",
            no_value="Not known yet: it takes a window and the steps after it",
            decimals=2,
            queries=(Query(f"max({of(_DRAG)})"),),
            thresholds=thresholds(GOOD, Step(1.05, WARN), Step(1.2, BAD)),
        ),
        Stat(
            id=804,
            width=6,
            title="Memory left behind",
            description=described(
                shows="What the memory of a training process grew by over its windows, of the"
                " worst rank.",
                good="below 100 MiB, and not rising.",
                act="if it rises with each window, set window_seconds to 0 and report it.",
                metrics=[_MEMORY],
            ),
            unit="bytes",
            no_value=none,
            queries=(Query(f"max({of(_MEMORY)})"),),
            thresholds=thresholds(GOOD, Step(100 << 20, WARN), Step(1 << 30, BAD)),
        ),
        TimeSeries(
            id=805,
            title="Windows that were not opened",
            description=described(
                shows=f"Windows that were due within {OVER} and not opened, by why: the training's"
                " own profiler runs, a CUDA graph is captured, the overhead budget, drag, memory.",
                good="none, or budget: then the next one comes later.",
                act="profiler: stop yours when it is done. drag or memory: see beside.",
                metrics=[_SKIPPED],
            ),
            unit="none",
            no_value=none,
            queries=(Query(sums(_SKIPPED, by="reason"), "{{reason}}"),),
            minimum=0,
        ),
        TimeSeries(
            id=806,
            title="What windows have cost the training",
            description=described(
                shows=f"Seconds within {OVER}, over all ranks, by what they went into: loading the"
                " profiler (once), starting, slower iterations, stopping, reading.",
                good="a few seconds an hour for each rank; load once.",
                act="if run or walk are large, lengthen window_seconds.",
                metrics=[_SECONDS],
            ),
            unit="s",
            no_value=none,
            queries=(Query(sums(_SECONDS, by="part"), "{{part}}"),),
            minimum=0,
            stacked=True,
        ),
    )


def on_the_cpu() -> tuple[Panel, ...]:
    """Return the time of ops on a CPU, where there are no kernels to look at."""
    return (
        TimeSeries(
            id=901,
            title="Time of ops on the CPU by dtype",
            description=described(
                shows=f"Time of all ATen ops in the profiled iterations of {OVER}, by the dtype of"
                " their inputs.",
                good="most of it in the dtype of autocast, where the CPU has instructions for it.",
                act="float16 or bfloat16 slower than float32: the CPU lacks AMX or AVX512-BF16"
                " (finding cpu_isa_missing).",
                metrics=[_CPU],
            ),
            unit="s",
            no_value="No training on a CPU was profiled: it needs window_seconds",
            queries=(Query(sums(_CPU, by="dtype"), "{{dtype}}"),),
            minimum=0,
            stacked=True,
        ),
    )
