"""Metrics of the op census and of profiler windows."""

from __future__ import annotations

from ampwatch.host.metrics.catalog.metric import Metric
from ampwatch.host.metrics.catalog.vocabulary import MODULE, RANK

PRECISION_MIX: tuple[Metric, ...] = (
    Metric(
        "ampwatch_census_iterations_total",
        "counter",
        RANK,
        "Iterations whose ops were counted.",
    ),
    Metric(
        "ampwatch_last_census_timestamp_seconds",
        "gauge",
        RANK,
        "Unix time of the end of the newest iteration whose ops were counted.",
        "seconds",
    ),
    Metric(
        "ampwatch_op_calls_total",
        "counter",
        (*RANK, "op_kind", "dtype"),
        "ATen ops in counted iterations, by what they do and what they computed in, casts left out. Absent before the first census; a pair appears when it is first seen.",
    ),
    Metric(
        "ampwatch_op_bytes_total",
        "counter",
        (*RANK, "op_kind", "dtype"),
        "Bytes that these ops have read and written. Absent before the first census.",
    ),
    Metric(
        "ampwatch_flops_total",
        "counter",
        (*RANK, "dtype"),
        "Floating-point operations of matmuls, convolutions and attention in counted iterations, by what they computed in, backward and recomputation included; 0 for the usual dtypes before.",
    ),
    Metric(
        "ampwatch_tensor_core_flops_total",
        "counter",
        (*RANK, "dtype"),
        "The part of ampwatch_flops_total in a dtype and with dimensions that tensor cores run at full speed: what could run on them. What did is in ampwatch_kernel_seconds_total.",
    ),
    Metric(
        "ampwatch_casts_total",
        "counter",
        (*RANK, "from_dtype", "to_dtype"),
        "Casts from one dtype to another in counted iterations. Absent before the first census; a pair appears when it is first seen.",
    ),
    Metric(
        "ampwatch_cast_bytes_total",
        "counter",
        (*RANK, "from_dtype", "to_dtype"),
        "Bytes that these casts have read and written. Absent before the first census.",
    ),
    Metric(
        "ampwatch_autocast_fallback_ops_total",
        "counter",
        (*RANK, "reason"),
        "Ops of the forward pass that ran in float32 although the training uses autocast, in counted iterations, by why.",
    ),
    Metric(
        "ampwatch_autocast_fallback_flops_total",
        "counter",
        (*RANK, "reason"),
        "Floating-point operations of these ops: what autocast could have made faster.",
    ),
    Metric(
        "ampwatch_module_low_precision_flops_ratio",
        "gauge",
        MODULE,
        "Share of the module's floating-point operations in 16 bits and fewer, in the newest iteration whose ops were counted; absent for a module without any.",
        "ratio",
    ),
)

KERNELS: tuple[Metric, ...] = (
    Metric(
        "ampwatch_kernel_seconds_total",
        "counter",
        (*RANK, "unit", "dtype"),
        "Time of GPU kernels in profiled iterations, by the unit that multiplies and the dtype, both told by the name of the kernel, by the rules of the release in ampwatch_run_info. On a GPU the usual pairs are 0 before, others appear when they are first seen; absent on a CPU.",
        "seconds",
    ),
    Metric(
        "ampwatch_kernel_misaligned_seconds_total",
        "counter",
        RANK,
        "Time of matmul kernels that assume less than full alignment of their matrices. Absent where only a CPU was profiled.",
        "seconds",
    ),
    Metric(
        "ampwatch_kernel_lagging_seconds_total",
        "counter",
        RANK,
        "Time of matmul kernels that were made for an older architecture than that of the GPU. Absent where only a CPU was profiled.",
        "seconds",
    ),
    Metric(
        "ampwatch_kernel_gemv_seconds_total",
        "counter",
        RANK,
        "Time of matrix-vector kernels on float16 or bfloat16, which have no use for tensor cores. Absent where only a CPU was profiled.",
        "seconds",
    ),
    Metric(
        "ampwatch_kernel_busy_seconds_total",
        "counter",
        RANK,
        "Time in profiled iterations in which the device ran a kernel; over ampwatch_profiled_seconds_total the share in which it was busy. Absent where only a CPU was profiled.",
        "seconds",
    ),
    Metric(
        "ampwatch_cpu_op_seconds_total",
        "counter",
        (*RANK, "dtype"),
        "Time of all ATen ops on a CPU in profiled iterations, by the dtype of their inputs; a dtype appears when it is first seen.",
        "seconds",
    ),
    Metric(
        "ampwatch_profiled_seconds_total",
        "counter",
        RANK,
        "Wall time of profiled iterations.",
        "seconds",
    ),
    Metric(
        "ampwatch_profiler_iterations_total",
        "counter",
        RANK,
        "Iterations that were profiled, without those whose data were lost.",
    ),
    Metric(
        "ampwatch_profiler_windows_total",
        "counter",
        RANK,
        "Profiler windows: a few iterations each, rarely.",
    ),
    Metric(
        "ampwatch_profiler_windows_invalid_total",
        "counter",
        RANK,
        "Profiler windows that lost data; nothing of them is counted elsewhere.",
    ),
    Metric(
        "ampwatch_profiler_windows_skipped_total",
        "counter",
        (*RANK, "reason"),
        "Profiler windows that were due and not opened, by why.",
    ),
    Metric(
        "ampwatch_profiler_seconds_total",
        "counter",
        (*RANK, "part"),
        "What profiler windows have cost the training, by what the time went into.",
        "seconds",
    ),
    Metric(
        "ampwatch_profiler_drag_ratio",
        "gauge",
        RANK,
        "Usual step time after the newest profiler window over the one before: above 1 the profiler has left something behind. Absent while that is not known.",
        "ratio",
    ),
    Metric(
        "ampwatch_profiler_memory_growth_bytes",
        "gauge",
        RANK,
        "What the resident memory of the training process grew by over its profiler windows. Absent before the first.",
        "bytes",
    ),
    Metric(
        "ampwatch_peak_flops_per_second",
        "gauge",
        (*RANK, "dtype"),
        "What the GPU could do at most, without structured sparsity, in floating-point operations per second: derived from its SMs, clock and compute capability, or as the setting peak_flops says. Absent for a GPU of which that is not known.",
    ),
    Metric(
        "ampwatch_ideal_step_seconds",
        "gauge",
        RANK,
        "Time that the floating-point operations of an iteration would take at the peak of the dtype of each: over the time it does take, the share of the ceiling that was used, whatever the mix. Absent where a peak is not known.",
        "seconds",
    ),
    Metric(
        "ampwatch_ideal_time_ratio",
        "gauge",
        RANK,
        "Share of the ceiling that is used: ampwatch_ideal_step_seconds over the usual time of an iteration. Each dtype is held against its own peak, so that the mix makes no difference; above 1 a peak is not that of the device.",
        "ratio",
    ),
    Metric(
        "ampwatch_mfu_ratio",
        "gauge",
        RANK,
        "Floating-point operations per second over the peak of float16 or bfloat16, whatever they were computed in: model FLOPs utilization as papers quote it, and HFU where activations are computed again, which is counted here.",
        "ratio",
    ),
    Metric(
        "ampwatch_precision_capability",
        "gauge",
        (*RANK, "feature", "state", "reason"),
        "How it stands with what could be told of precision, and why something is absent (value is always 1).",
    ),
    Metric(
        "ampwatch_tensor_views_disagree",
        "gauge",
        (*RANK, "views"),
        "Whether two views of the tensor cores contradict each other (1) or not (0): cycles of the hardware, time of the kernels, FLOPs over the peak. Absent where one of the two is not known.",
    ),
)
