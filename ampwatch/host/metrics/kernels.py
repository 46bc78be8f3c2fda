"""Metrics of profiler windows: kernels by the unit that multiplies, the ceiling, and their cost."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ampwatch.host.metrics.scopes import NO_DTYPE, PER_RANK, WINDOW, dtype_label, each, part, summed
from ampwatch.numerics.formats import OF_TRAINING
from ampwatch.report.op_shares import CPU, NO_GPU, Absence, on_cpu_only
from ampwatch.wire.records import KERNEL_UNITS, WindowSkip

if TYPE_CHECKING:
    from collections.abc import Callable

    from ampwatch.host.fleet import RankView
    from ampwatch.host.metrics.metric import Reader, Rows
    from ampwatch.host.metrics.scopes import Table
    from ampwatch.wire.records import WindowRecord

PROFILER_PARTS: dict[str, Callable[[WindowRecord], int]] = {
    "load": lambda window: window.first_ns,
    "start": lambda window: window.start_ns,
    "run": lambda window: window.run_ns,
    "stop": lambda window: window.stop_ns,
    "walk": lambda window: window.walk_ns,
}
"""Parts of the time of profiler windows: the first start, the others, the iterations, the ends, and
reading the events. Each with its time. Unit: ns."""

_BY_BITS = [fmt.name for fmt in sorted(OF_TRAINING, key=lambda fmt: fmt.bits)]
_STARTS_AT_0 = [
    ((unit, dtype), 0.0) for unit in KERNEL_UNITS[:3] for dtype in (*_BY_BITS, NO_DTYPE)
]
"""Pairs of unit and dtype that are 0 on a GPU before they are seen: all matmuls there usually are."""


def _kernel_seconds(known: tuple[WindowRecord | None, bool]) -> Table:
    window, is_on_gpu = known
    totals = () if window is None else window.totals
    # On a CPU these zeros would say that tensor cores could have been used.
    zeros = _STARTS_AT_0 if is_on_gpu else []
    return summed(
        zeros
        + [((t.unit, dtype_label(t.dtype)), t.nanoseconds / 1e9) for t in totals if t.unit != CPU]
    )


def _is_on_gpu(rank: RankView) -> bool:
    """Return whether the training process has named a GPU."""
    return "gpu_capability" in rank.facts or rank.facts.get("device", "") not in NO_GPU


def _kernel_time(read_ns: Callable[[WindowRecord], int]) -> Reader:
    """Return the reader of a time of kernels, which a CPU does not have."""

    def seconds(window: WindowRecord | None) -> float | None:
        if window is None:
            return 0
        # A zero beside the profiled time would say that a GPU was idle.
        return None if on_cpu_only(window) else read_ns(window) / 1e9

    return WINDOW.or_none.one(seconds)


def _cpu_op_seconds(window: WindowRecord) -> Table:
    return summed(
        ((dtype_label(t.dtype),), t.nanoseconds / 1e9) for t in window.totals if t.unit == CPU
    )


def _known(rank: RankView) -> tuple[str, Absence, Absence]:
    """Return how ops were counted, and why a share of kernels and of the ceiling is absent."""
    census = rank.precision.census
    how = Absence.WAITING.value if census is None else census.source.label
    return how, rank.precision.kernels_absence, rank.arithmetic.absence


def _capabilities(known: tuple[str, Absence, Absence]) -> Table:
    how, *reasons = known
    yield ("ops", Absence.OK.state, how), 1
    for feature, reason in zip(("kernels", "arithmetic"), reasons, strict=True):
        yield (feature, reason.state, reason.value), 1


_ARITHMETIC = part(lambda rank: rank.arithmetic)


KERNELS: Rows = {
    "ampwatch_kernel_seconds_total": (
        "Time of GPU kernels in profiled iterations, by unit and dtype, both from the name of the kernel. Usual pairs start at 0, others appear when they are first seen.",
        part(lambda rank: (rank.precision.window, _is_on_gpu(rank))).by(
            "unit", "dtype", read=_kernel_seconds
        ),
    ),
    "ampwatch_kernel_misaligned_seconds_total": (
        "Time of matmul kernels that assume less than full alignment of their matrices.",
        _kernel_time(lambda window: window.misaligned_ns),
    ),
    "ampwatch_kernel_lagging_seconds_total": (
        "Time of matmul kernels made for an older architecture than that of the GPU.",
        _kernel_time(lambda window: window.lagging_ns),
    ),
    "ampwatch_kernel_gemv_seconds_total": (
        "Time of matrix-vector kernels in float16 or bfloat16, which cannot use tensor cores.",
        _kernel_time(lambda window: window.gemv_ns),
    ),
    "ampwatch_kernel_busy_seconds_total": (
        "Time in profiled iterations in which the device ran a kernel.",
        _kernel_time(lambda window: window.busy_ns),
    ),
    "ampwatch_cpu_op_seconds_total": (
        "Time of ATen ops on a CPU in profiled iterations, by the dtype of their inputs; a dtype appears when it is first seen.",
        WINDOW.by("dtype", read=_cpu_op_seconds),
    ),
    "ampwatch_profiled_seconds_total": (
        "Wall time of profiled iterations.",
        WINDOW.count(lambda window: window.wall_ns / 1e9),
    ),
    "ampwatch_profiler_iterations_total": (
        "Iterations that were profiled, without those whose data were lost.",
        WINDOW.count(lambda window: window.iterations),
    ),
    "ampwatch_profiler_windows_total": (
        "Profiler windows: a few iterations each, rarely.",
        WINDOW.count(lambda window: window.windows),
    ),
    "ampwatch_profiler_windows_invalid_total": (
        "Profiler windows that lost data; nothing of them is counted elsewhere.",
        WINDOW.count(lambda window: window.invalid),
    ),
    "ampwatch_profiler_windows_skipped_total": (
        "Profiler windows that were due and not opened.",
        WINDOW.counts("reason", [why.label for why in WindowSkip], lambda window: window.skipped),
    ),
    "ampwatch_profiler_seconds_total": (
        "Time that profiler windows have cost the training.",
        WINDOW.counts(
            "part",
            PROFILER_PARTS,
            lambda window: (read_ns(window) / 1e9 for read_ns in PROFILER_PARTS.values()),
        ),
    ),
    "ampwatch_profiler_drag_ratio": (
        "Usual step time after the newest profiler window over that before: above 1 the profiler left something behind.",
        WINDOW.one(lambda window: None if math.isnan(window.drag) else window.drag),
    ),
    "ampwatch_profiler_memory_growth_bytes": (
        "Growth of the training process's resident memory over its profiler windows.",
        WINDOW.one(lambda window: window.memory_bytes if window.windows else None),
    ),
    "ampwatch_peak_flops_per_second": (
        "Peak of the GPU in floating-point operations per second, without sparsity: from its SMs, clock and compute capability, or the setting peak_flops.",
        part(lambda rank: rank.precision.peaks).by(
            "dtype", read=lambda peaks: each({dtype_label(d): n for d, n in peaks.flops.items()})
        ),
    ),
    "ampwatch_ideal_step_seconds": (
        "Time that the floating-point operations of an iteration would take at the peak of the dtype of each.",
        _ARITHMETIC.one(lambda used: used.ideal_seconds),
    ),
    "ampwatch_ideal_time_ratio": (
        "Share of the peak that is used, for any mix of dtypes: ampwatch_ideal_step_seconds over the usual time of an iteration. Above 1 the peak is wrong.",
        _ARITHMETIC.one(lambda used: used.utilization),
    ),
    "ampwatch_mfu_ratio": (
        "Floating-point operations per second over the peak of float16 or bfloat16: model FLOPs utilization as in papers; HFU with activation checkpointing.",
        _ARITHMETIC.one(lambda used: used.mfu),
    ),
    "ampwatch_precision_capability": (
        "State of each measurement of precision, and why it is absent (value is always 1).",
        part(_known).by("feature", "state", "reason", read=_capabilities),
    ),
    "ampwatch_tensor_views_disagree": (
        "Whether two views of the tensor cores contradict each other (1) or not (0): hardware cycles, time of kernels, FLOPs over the peak.",
        PER_RANK.by(
            "views",
            read=lambda rank: each(
                {views: int(bool(s)) for views, s in rank.tensor_views.conflicts().items()}
            ),
        ),
    ),
}
