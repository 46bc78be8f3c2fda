"""What op censuses and profiler windows have to say about each metric of the catalog."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ampwatch.host.metrics.catalog import DTYPES, NO_DTYPE, OTHER_DTYPE, PROFILER_PARTS, ROOT_MODULE
from ampwatch.host.metrics.reading import one
from ampwatch.numerics.formats import OF_TRAINING
from ampwatch.numerics.units.ops import Fallback
from ampwatch.report.op_lines import op_lines
from ampwatch.report.op_shares import CPU, NO_GPU, Absence, low_precision_share, on_cpu_only
from ampwatch.wire.records import KERNEL_UNITS, WindowSkip

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ampwatch.host.fleet import RankView
    from ampwatch.host.metrics.reading import OfRank, Samples
    from ampwatch.wire.records import CensusRecord, FallbackTotal, OpTotal, WindowRecord

_BORN_AT_0 = [fmt.name for fmt in OF_TRAINING]
"""Dtypes whose FLOPs are 0 before they are seen, so that the first are an increase."""

_BY_BITS = [fmt.name for fmt in sorted(OF_TRAINING, key=lambda fmt: fmt.bits)]
_KERNELS_BORN_AT_0 = [
    ((unit, dtype), 0.0) for unit in KERNEL_UNITS[:3] for dtype in (*_BY_BITS, NO_DTYPE)
]
"""Pairs of unit and dtype that are 0 on a GPU before they are seen: all matmuls there usually are."""

_PARTS = dict(
    zip(PROFILER_PARTS, ("first_ns", "start_ns", "run_ns", "stop_ns", "walk_ns"), strict=True)
)


def dtype_label(dtype: str) -> str:
    """Return a dtype as one of the few words of its label."""
    if not dtype:
        return NO_DTYPE
    return dtype if dtype in DTYPES else OTHER_DTYPE


def _of_census(samples: Callable[[CensusRecord], Samples]) -> OfRank:
    """Return the samples of a family that is absent before the first census."""

    def read(rank: RankView) -> Samples:
        return () if rank.precision.census is None else samples(rank.precision.census)

    return read


def _added_up(pairs: Iterable[tuple[tuple[str, ...], float]]) -> Samples:
    """Return one sample for all values of the same labels: several dtypes may share one."""
    totals: dict[tuple[str, ...], float] = {}
    for labels, value in pairs:
        totals[labels] = totals.get(labels, 0) + value
    return totals.items()


def _ops(read: Callable[[OpTotal], int]) -> OfRank:
    return _of_census(
        lambda census: _added_up(
            ((total.kind.label, dtype_label(total.dtype)), read(total)) for total in census.ops
        )
    )


def _flops(read: Callable[[OpTotal], int]) -> OfRank:
    """Return the samples of FLOPs by dtype, those of the usual dtypes born at 0."""

    def samples(rank: RankView) -> Samples:
        census = rank.precision.census
        found = () if census is None else census.ops
        return _added_up(
            [
                *(((dtype,), 0) for dtype in _BORN_AT_0),
                *(((dtype_label(t.dtype),), read(t)) for t in found if t.kind.has_flops),
            ]
        )

    return samples


def _casts(name: str) -> OfRank:
    return _of_census(
        lambda census: _added_up(
            ((dtype_label(cast.from_dtype), dtype_label(cast.to_dtype)), getattr(cast, name))
            for cast in census.casts
        )
    )


def _fallbacks(read: Callable[[FallbackTotal], int]) -> OfRank:
    """Return the samples of fallbacks to float32, every reason born at 0."""

    def samples(rank: RankView) -> Samples:
        census = rank.precision.census
        found = () if census is None else census.fallbacks
        reasons = [((reason.label,), 0) for reason in Fallback if reason is not Fallback.NONE]
        return _added_up([*reasons, *(((t.reason.label,), read(t)) for t in found)])

    return samples


def _modules(rank: RankView) -> Samples:
    census = rank.precision.census
    tracked = set(rank.ranges.modules.exported)
    lines = [] if census is None or not tracked else op_lines(census, "module")
    for line in lines:
        share = low_precision_share(line.mix)
        if line.name in tracked and share is not None:
            yield (line.name or ROOT_MODULE,), share


def _window(read: Callable[[WindowRecord], Any]) -> OfRank:
    """Return the samples of a counter of profiler windows, born at 0."""
    return one(lambda rank: 0 if rank.precision.window is None else read(rank.precision.window))


def _seconds(name: str) -> OfRank:
    return _window(lambda window: getattr(window, name) / 1e9)


def _kernel_time(name: str) -> OfRank:
    """Return the samples of a time of kernels: a CPU on which windows have looked has none."""
    read = _seconds(name)

    def samples(rank: RankView) -> Samples:
        window = rank.precision.window
        return () if window is not None and on_cpu_only(window) else read(rank)

    return samples


def _skipped(rank: RankView) -> Samples:
    window = rank.precision.window
    for reason in WindowSkip:
        yield (reason.label,), 0 if window is None else window.skipped[reason]


def _profiler_seconds(rank: RankView) -> Samples:
    window = rank.precision.window
    for part, name in _PARTS.items():
        yield (part,), 0 if window is None else getattr(window, name) / 1e9


def _drag(rank: RankView) -> float | None:
    window = rank.precision.window
    return None if window is None or math.isnan(window.drag) else window.drag


def _memory_growth(rank: RankView) -> float | None:
    window = rank.precision.window
    return None if window is None or not window.windows else window.memory_bytes


def _kernel_seconds(rank: RankView) -> Samples:
    window = rank.precision.window
    totals = () if window is None else window.totals
    return _added_up(
        [
            *(_KERNELS_BORN_AT_0 if _is_on_gpu(rank) else ()),
            *(
                ((t.unit, dtype_label(t.dtype)), t.nanoseconds / 1e9)
                for t in totals
                if t.unit != CPU
            ),
        ]
    )


def _is_on_gpu(rank: RankView) -> bool:
    """Whether the training process has named a GPU."""
    return "gpu_capability" in rank.facts or rank.facts.get("device", "") not in NO_GPU


def _cpu_op_seconds(rank: RankView) -> Samples:
    window = rank.precision.window
    totals = () if window is None else window.totals
    return _added_up(
        ((dtype_label(t.dtype),), t.nanoseconds / 1e9) for t in totals if t.unit == CPU
    )


def _peaks(rank: RankView) -> Samples:
    for dtype, flops in rank.precision.peaks.flops.items():
        yield (dtype_label(dtype),), flops


def _capabilities(rank: RankView) -> Samples:
    census = rank.precision.census
    how = Absence.WAITING.value if census is None else census.source.label
    yield ("ops", Absence.OK.state, how), 1
    reasons = {
        "kernels": rank.precision.kernels_absence,
        "arithmetic": rank.arithmetic.absence,
    }
    for feature, reason in reasons.items():
        yield (feature, reason.state, reason.value), 1


def _disagreements(rank: RankView) -> Samples:
    for views, sentence in rank.tensor_views.conflicts().items():
        yield (views,), int(bool(sentence))


OF_PRECISION: dict[str, OfRank] = {
    "ampwatch_census_iterations_total": one(
        lambda rank: 0 if rank.precision.census is None else rank.precision.census.iterations
    ),
    "ampwatch_last_census_timestamp_seconds": _of_census(
        lambda census: [((), census.time_ns / 1e9)]
    ),
    "ampwatch_op_calls_total": _ops(lambda total: total.calls),
    "ampwatch_op_bytes_total": _ops(lambda total: total.bytes),
    "ampwatch_flops_total": _flops(lambda total: total.flops),
    "ampwatch_tensor_core_flops_total": _flops(lambda total: total.tensor_flops),
    "ampwatch_casts_total": _casts("calls"),
    "ampwatch_cast_bytes_total": _casts("bytes"),
    "ampwatch_autocast_fallback_ops_total": _fallbacks(lambda total: total.calls),
    "ampwatch_autocast_fallback_flops_total": _fallbacks(lambda total: total.flops),
    "ampwatch_module_low_precision_flops_ratio": _modules,
    "ampwatch_kernel_seconds_total": _kernel_seconds,
    "ampwatch_kernel_misaligned_seconds_total": _kernel_time("misaligned_ns"),
    "ampwatch_kernel_lagging_seconds_total": _kernel_time("lagging_ns"),
    "ampwatch_kernel_gemv_seconds_total": _kernel_time("gemv_ns"),
    "ampwatch_kernel_busy_seconds_total": _kernel_time("busy_ns"),
    "ampwatch_cpu_op_seconds_total": _cpu_op_seconds,
    "ampwatch_profiled_seconds_total": _seconds("wall_ns"),
    "ampwatch_profiler_iterations_total": _window(lambda window: window.iterations),
    "ampwatch_profiler_windows_total": _window(lambda window: window.windows),
    "ampwatch_profiler_windows_invalid_total": _window(lambda window: window.invalid),
    "ampwatch_profiler_windows_skipped_total": _skipped,
    "ampwatch_profiler_seconds_total": _profiler_seconds,
    "ampwatch_profiler_drag_ratio": one(_drag),
    "ampwatch_profiler_memory_growth_bytes": one(_memory_growth),
    "ampwatch_peak_flops_per_second": _peaks,
    "ampwatch_ideal_step_seconds": one(lambda rank: rank.arithmetic.ideal_seconds),
    "ampwatch_ideal_time_ratio": one(lambda rank: rank.arithmetic.utilization),
    "ampwatch_mfu_ratio": one(lambda rank: rank.arithmetic.mfu),
    "ampwatch_precision_capability": _capabilities,
    "ampwatch_tensor_views_disagree": _disagreements,
}
"""Name of a metric to its samples of one rank, without the labels that tell ranks apart."""
