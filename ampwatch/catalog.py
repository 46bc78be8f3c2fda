"""Every exported metric: name, type, unit, labels, help. One table, read by everybody.

The exporter makes its families from it, ``docs/metrics.md`` is printed from it
(``python -m ampwatch.catalog > docs/metrics.md``), dashboards and alert rules are
tested against it. Names and labels are frozen once released.

What an event is, is a counter; what a scrape could miss is held; ratios are left
to PromQL. A value that is not known is absent, never 0 and never NaN.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Literal

from ampwatch.aggregate.gpus import (
    CAPABILITY_STATES,
    MAX_FURTHER_XIDS,
    OTHER_XIDS,
    TENSOR_PIPES,
    THROTTLE_REASONS,
    Feature,
    Reason,
)
from ampwatch.aggregate.precision import Absence
from ampwatch.numerics.whatif import Fit
from ampwatch.precision.ops import Fallback, OpKind
from ampwatch.records import (
    KERNEL_UNITS,
    SKIP_CLASSES,
    RunState,
    Severity,
    Topic,
    WindowSkip,
)

MetricType = Literal["counter", "gauge", "histogram", "info"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One exported family.

    Attributes:
        name: As users query it: with ``_total`` for a counter, ``_info`` for an info.
        type: Prometheus type; an info is a gauge of value 1 in the text format.
        labels: Names of all labels, those that tell ranks apart first.
        help: What one sample says, and where it comes from.
        unit: Base unit that ends the name; empty without one.
    """

    name: str
    type: MetricType
    labels: tuple[str, ...]
    help: str
    unit: str = ""

    @property
    def family(self) -> str:
        """The name of the family in OpenMetrics, without ``_total`` or ``_info``."""
        return self.name.removesuffix("_total").removesuffix("_info")


RANK = ("run", "rank")
"""Labels of everything a training process reports."""

RUN_FACTS = (
    "device",
    "autocast_dtype",
    "scaler",
    "init_scale",
    "growth_factor",
    "backoff_factor",
    "growth_interval",
    "torch",
    "python",
    "allow_tf32",
    "cudnn_allow_tf32",
    "float32_matmul_precision",
    "allow_fp16_reduced_precision_reduction",
    "allow_bf16_reduced_precision_reduction",
    "cudnn_benchmark",
)
"""Facts of a run that are labels of ``ampwatch_run_info``; a fact by another name is not exported."""

GPU = ("gpu", "uuid")
"""Labels of everything a GPU reports."""

GPU_FACTS = (
    "name",
    "pci_bus_id",
    "compute_capability",
    "driver_version",
    "cuda_version",
    "synthetic",
)
"""Facts of a GPU that are labels of ``ampwatch_gpu_info``."""

MIG = (*GPU, "gpu_instance")
"""Labels of everything a GPU instance reports."""

KINDS = (
    "scale_collapse",
    "scale_below_one",
    "scale_runaway",
    "scaler_with_bf16",
    "scheduler_ahead",
    "grad_underflow",
    "fp16_without_scaler",
    "range_too_wide",
    "headroom_low",
    "scale_stuck_low",
    "update_rounding",
    "optimizer_eps_underflow",
    "param_nonfinite",
    "buffer_nonfinite",
    "fp16_loss_caps_scale",
    "autocast_inactive",
    "fp32_matmul",
    "dims_unaligned",
    "layout_nchw",
    "cast_overhead",
    "no_memory_gain",
    "cpu_isa_missing",
    "backend_flags",
    "matmul_is_gemv",
    "kernels_outdated",
    "tensor_views_disagree",
)
"""The kinds of findings that this release makes; a ring of another release may hold more."""

ROOT_MODULE = "(root)"
"""What the label ``module`` says for the model itself, whose qualified name is empty: to
Prometheus an empty label is no label. No attribute name made by ordinary code looks like it."""

DTYPES = (
    "float64",
    "float32",
    "tf32",
    "float16",
    "bfloat16",
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e4m3fnuz",
    "float8_e5m2fnuz",
    "float8",
    "mx",
    "int8",
)
"""What the label ``dtype`` says; ``OTHER_DTYPE`` for every other one, so that it stays bounded."""

OTHER_DTYPE = "other"

NO_DTYPE = "unknown"
"""What it says of a kernel whose name tells no dtype: to Prometheus an empty label is no label."""

PROFILER_PARTS = ("load", "start", "run", "stop", "walk")
"""What the time of profiler windows goes into: the first start, the others, the iterations, the
ends, and reading the events."""

_FINDING = (*RANK, "kind", "severity", "root")
_MODULE = (*RANK, "module")

TOPICS: dict[str, tuple[Metric, ...]] = {
    "Daemon": (
        Metric(
            "ampwatch_build_info",
            "info",
            ("version",),
            "Version of the ampwatch daemon (value is always 1).",
        ),
        Metric(
            "ampwatch_collector_success",
            "gauge",
            ("collector",),
            "Whether the newest pass of the collector succeeded (1) or not (0).",
        ),
        Metric(
            "ampwatch_collector_duration_seconds",
            "gauge",
            ("collector",),
            "Time the newest pass of the collector took.",
            "seconds",
        ),
        Metric(
            "ampwatch_rings_unreadable",
            "gauge",
            (),
            "Ring files found that this daemon cannot read: written by another version, or damaged.",
        ),
    ),
    "Run": (
        Metric(
            "ampwatch_run_info",
            "info",
            (*RANK, "world_size", "local_rank", "version", *RUN_FACTS),
            "Static facts of a monitored rank; a fact that is not known is empty (value is always 1).",
        ),
        Metric(
            "ampwatch_run_state",
            "gauge",
            (*RANK, "state"),
            "Whether the rank is in the given state (1) or not (0).",
        ),
        Metric(
            "ampwatch_run_start_timestamp_seconds",
            "gauge",
            RANK,
            "Unix time at which ampwatch.monitor() was called on this rank.",
            "seconds",
        ),
        Metric(
            "ampwatch_last_report_timestamp_seconds",
            "gauge",
            RANK,
            "Unix time of the newest report of this rank: its start, a step or its end.",
            "seconds",
        ),
        Metric(
            "ampwatch_overhead_seconds_total",
            "counter",
            RANK,
            "Host time that ampwatch spent on the training thread.",
            "seconds",
        ),
        Metric(
            "ampwatch_observations_dropped_total",
            "counter",
            RANK,
            "Steps whose values ampwatch did not read because the device was too far behind.",
        ),
        Metric(
            "ampwatch_sensor_errors_total",
            "counter",
            RANK,
            "Exceptions inside ampwatch that it kept from the training loop.",
        ),
        Metric(
            "ampwatch_ring_records_dropped_total",
            "counter",
            RANK,
            "Records that the training process could not write into its ring.",
        ),
        Metric(
            "ampwatch_ring_records_lost_total",
            "counter",
            RANK,
            "Slots of the ring that were overwritten or unreadable before the daemon read them; a record takes one or more.",
        ),
    ),
    "Loss scaling": (
        Metric(
            "ampwatch_loss_scale",
            "gauge",
            RANK,
            "Current loss scale of the GradScaler; absent without an enabled one.",
        ),
        Metric(
            "ampwatch_loss_scale_min",
            "gauge",
            RANK,
            "Smallest loss scale of the last 60 s (up to 120 s), so that a dip between two scrapes is seen.",
        ),
        Metric(
            "ampwatch_loss_scale_initial",
            "gauge",
            RANK,
            "Loss scale the GradScaler started from (init_scale).",
        ),
        Metric(
            "ampwatch_loss_scale_growth_interval_steps",
            "gauge",
            RANK,
            "Consecutive unskipped steps after which the GradScaler grows the scale (growth_interval).",
        ),
        Metric(
            "ampwatch_loss_scale_growth_tracker_steps",
            "gauge",
            RANK,
            "Consecutive unskipped steps the GradScaler has counted so far.",
        ),
        Metric(
            "ampwatch_loss_scale_growths_total",
            "counter",
            RANK,
            "Times the GradScaler grew the loss scale.",
        ),
        Metric(
            "ampwatch_loss_scale_backoffs_total",
            "counter",
            RANK,
            "Times the GradScaler reduced the loss scale after non-finite gradients.",
        ),
        Metric(
            "ampwatch_loss_scale_set_by_hand_total",
            "counter",
            RANK,
            "Times the loss scale changed in another way than by the GradScaler's own growth or backoff.",
        ),
    ),
    "Steps and loss": (
        Metric(
            "ampwatch_steps_total",
            "counter",
            RANK,
            "Iterations of the training loop, one per update of the GradScaler, skipped ones included.",
        ),
        Metric(
            "ampwatch_optimizer_steps_total",
            "counter",
            (*RANK, "optimizer"),
            "Optimizer steps attempted, applied and skipped.",
        ),
        Metric(
            "ampwatch_optimizer_steps_skipped_total",
            "counter",
            (*RANK, "optimizer", "class"),
            "Optimizer steps the GradScaler skipped because of non-finite gradients, by why it happened.",
        ),
        Metric(
            "ampwatch_optimizer_consecutive_skipped_steps",
            "gauge",
            RANK,
            "Length of the current run of skipped iterations.",
        ),
        Metric(
            "ampwatch_optimizer_consecutive_skipped_steps_max",
            "gauge",
            RANK,
            "Longest run of skipped iterations of the last 60 s (up to 120 s), so that one between two scrapes is seen.",
        ),
        Metric(
            "ampwatch_last_step_timestamp_seconds",
            "gauge",
            RANK,
            "Unix time at which the newest iteration ended.",
            "seconds",
        ),
        Metric(
            "ampwatch_last_applied_step_timestamp_seconds",
            "gauge",
            RANK,
            "Unix time at which the newest iteration ended in which no optimizer step was skipped.",
            "seconds",
        ),
        Metric(
            "ampwatch_step_duration_seconds",
            "histogram",
            RANK,
            "Wall time between the ends of consecutive iterations, of those this daemon has read: starts again with it, without what was in the ring before.",
            "seconds",
        ),
        Metric(
            "ampwatch_loss",
            "gauge",
            RANK,
            "Newest loss handed to GradScaler.scale(), unscaled; NaN or infinite if the loss is.",
        ),
        Metric(
            "ampwatch_loss_nonfinite_total",
            "counter",
            RANK,
            "Iterations in which a loss was NaN or infinite.",
        ),
    ),
    "Sampling": (
        Metric(
            "ampwatch_samples_total",
            "counter",
            (*RANK, "topic"),
            "Iterations in which tensors were measured, by what they are.",
        ),
        Metric(
            "ampwatch_last_sample_timestamp_seconds",
            "gauge",
            (*RANK, "topic"),
            "Unix time of the newest measurement that was recorded, by what was measured; at most ten a second are, unless something is NaN or infinite.",
            "seconds",
        ),
        Metric(
            "ampwatch_sample_standard_error_ratio",
            "gauge",
            (*RANK, "topic"),
            "What a share of elements in any module may be off by (largest standard error, of a share of one half), where not all of its elements were counted; 0 where all were. Largest magnitudes, NaN and infinities are always those of all elements.",
            "ratio",
        ),
        Metric(
            "ampwatch_samples_dropped_total",
            "counter",
            RANK,
            "Measurements that ampwatch gave up because the device was too far behind.",
        ),
        Metric(
            "ampwatch_sampling_interval_steps",
            "gauge",
            RANK,
            "Iterations from one sampled one to the next, as the overhead budget has it now; those since the last one if they are more.",
        ),
        Metric(
            "ampwatch_device_overhead_seconds_total",
            "counter",
            RANK,
            "Device time of the measurements; 0 on a CPU, where it is part of ampwatch_overhead_seconds_total.",
            "seconds",
        ),
        Metric(
            "ampwatch_tensors_refused",
            "gauge",
            RANK,
            "Tensors in the newest sample that cannot be measured (integer, complex, meta ...).",
        ),
        Metric(
            "ampwatch_modules_left_out",
            "gauge",
            RANK,
            "Modules in the newest sample whose ranges were not recorded, because there are more than the setting max_modules.",
        ),
        Metric(
            "ampwatch_modules_untracked",
            "gauge",
            RANK,
            "Measured modules without series of their own, because of the setting module_series.",
        ),
    ),
    "Gradients": (
        Metric(
            "ampwatch_gradient_elements_total",
            "counter",
            RANK,
            "Gradient elements looked at in sampled iterations.",
        ),
        Metric(
            "ampwatch_gradient_zero_elements_total",
            "counter",
            RANK,
            "Gradient elements looked at that are zero.",
        ),
        Metric(
            "ampwatch_gradient_underflow_elements_total",
            "counter",
            RANK,
            "Gradient elements looked at that are zero only because of the dtype of autocast, at the loss scale of their time: zeros that it has flushed (which are among the zero elements as well), and others that it would flush.",
        ),
        Metric(
            "ampwatch_gradient_subnormal_elements_total",
            "counter",
            RANK,
            "Gradient elements looked at that would be subnormal in the autocast dtype at the loss scale of their time.",
        ),
        Metric(
            "ampwatch_gradient_nonfinite_elements_total",
            "counter",
            (*RANK, "kind"),
            "Gradient elements looked at that are NaN or infinite.",
        ),
        Metric(
            "ampwatch_gradient_magnitude",
            "histogram",
            RANK,
            "Magnitudes of the finite gradient elements above zero, without the loss scale, in the sampled iterations that this daemon has read, at most ten a second: starts again with it. Bounds are powers of two; there is no sum.",
        ),
        Metric(
            "ampwatch_scaled_gradient_amax",
            "gauge",
            RANK,
            "Largest finite gradient magnitude of the newest sample, multiplied by the loss scale; absent if nothing in it was finite.",
        ),
        Metric(
            "ampwatch_scaled_gradient_amax_max",
            "gauge",
            RANK,
            "Largest scaled gradient magnitude of the newest sample, or of the last 60 s (up to 120 s) if one was larger, so that a peak between two scrapes is seen.",
        ),
        Metric(
            "ampwatch_autocast_dtype_max",
            "gauge",
            RANK,
            "Largest finite number of the autocast dtype (65504 for float16); of several dtypes the one with the smallest range; absent if none was seen.",
        ),
        Metric(
            "ampwatch_loss_scale_window_low",
            "gauge",
            RANK,
            "Smallest power of two as loss scale that flushes no larger share of the non-zero ones of the newest gradients to zero in the autocast dtype than the setting window_epsilon allows; without one, in the dtype of a model that is in float16 or bfloat16 as a whole. Absent otherwise, and where some were flushed before they were measured.",
        ),
        Metric(
            "ampwatch_loss_scale_window_high",
            "gauge",
            RANK,
            "Largest power of two as loss scale at which none of the newest gradients overflows that dtype, below the scale at which some were infinite; if it is smaller than the low one, no scale does for both.",
        ),
        Metric(
            "ampwatch_gradient_format_fit",
            "gauge",
            (*RANK, "format", "fit"),
            "Whether the newest gradients, without the loss scale, fit the format in this way (1) or not (0); absent where some were flushed, NaN or infinite before they were measured.",
        ),
    ),
    "Parameters and buffers": (
        Metric(
            "ampwatch_parameter_nonfinite_elements",
            "gauge",
            RANK,
            "NaN and infinite elements of the parameters when they were last looked at.",
        ),
        Metric(
            "ampwatch_buffer_nonfinite_elements",
            "gauge",
            RANK,
            "NaN and infinite elements of the buffers when they were last looked at.",
        ),
    ),
    "Modules": (
        Metric(
            "ampwatch_module_gradient_amax",
            "gauge",
            _MODULE,
            "Largest finite gradient magnitude of the module's parameters when the module was last measured, multiplied by the loss scale.",
        ),
        Metric(
            "ampwatch_module_gradient_zero_ratio",
            "gauge",
            _MODULE,
            "Share of the gradient elements of the module's parameters that are zero, when the module was last measured.",
            "ratio",
        ),
        Metric(
            "ampwatch_module_gradient_underflow_ratio",
            "gauge",
            _MODULE,
            "Share of all gradient elements of the module's parameters that are zero only because of the dtype of autocast (their own without one), when the module was last measured: zeros that it has flushed, and others that it would flush.",
            "ratio",
        ),
        Metric(
            "ampwatch_module_gradient_nonfinite_elements_total",
            "counter",
            (*_MODULE, "kind"),
            "Gradient elements of the module's parameters seen so far that are NaN or infinite.",
        ),
        Metric(
            "ampwatch_module_activation_amax",
            "gauge",
            _MODULE,
            "Largest finite magnitude of the module's output when the module was last measured.",
        ),
        Metric(
            "ampwatch_module_activation_dtype_max",
            "gauge",
            _MODULE,
            "Largest finite number of the dtype of the module's output; absent if there are several.",
        ),
        Metric(
            "ampwatch_module_activation_gradient_amax",
            "gauge",
            _MODULE,
            "Largest finite magnitude of the gradients of the module's output when the module was last measured, multiplied by the loss scale.",
        ),
        Metric(
            "ampwatch_module_update_unchanged_ratio",
            "gauge",
            _MODULE,
            "Share of the elements of the module's parameters, of a subsample, that the optimizer left as they were when the module was last measured.",
            "ratio",
        ),
    ),
    "Precision mix": (
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
            "ATen ops in counted iterations, by what they do and what they computed in, casts left out; a pair appears when it is first seen.",
        ),
        Metric(
            "ampwatch_op_bytes_total",
            "counter",
            (*RANK, "op_kind", "dtype"),
            "Bytes that these ops have read and written.",
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
            "Casts from one dtype to another in counted iterations; a pair appears when it is first seen.",
        ),
        Metric(
            "ampwatch_cast_bytes_total",
            "counter",
            (*RANK, "from_dtype", "to_dtype"),
            "Bytes that these casts have read and written.",
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
            _MODULE,
            "Share of the module's floating-point operations in 16 bits and fewer, in the newest iteration whose ops were counted; absent for a module without any.",
            "ratio",
        ),
    ),
    "Kernels": (
        Metric(
            "ampwatch_kernel_seconds_total",
            "counter",
            (*RANK, "unit", "dtype"),
            "Time of GPU kernels in profiled iterations, by the unit that multiplies and the dtype, both told by the name of the kernel, by the rules of the release in ampwatch_run_info; a pair appears when it is first seen.",
            "seconds",
        ),
        Metric(
            "ampwatch_kernel_misaligned_seconds_total",
            "counter",
            RANK,
            "Time of matmul kernels that assume less than full alignment of their matrices.",
            "seconds",
        ),
        Metric(
            "ampwatch_kernel_lagging_seconds_total",
            "counter",
            RANK,
            "Time of matmul kernels that were made for an older architecture than that of the GPU.",
            "seconds",
        ),
        Metric(
            "ampwatch_kernel_gemv_seconds_total",
            "counter",
            RANK,
            "Time of matrix-vector kernels on float16 or bfloat16, which have no use for tensor cores.",
            "seconds",
        ),
        Metric(
            "ampwatch_kernel_busy_seconds_total",
            "counter",
            RANK,
            "Time in profiled iterations in which the device ran a kernel; over ampwatch_profiled_seconds_total the share in which it was busy.",
            "seconds",
        ),
        Metric(
            "ampwatch_cpu_op_seconds_total",
            "counter",
            (*RANK, "dtype"),
            "Time of matmuls, convolutions and attention on a CPU in profiled iterations, by the dtype of their inputs; a dtype appears when it is first seen.",
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
            "What the resident memory of the training process grew by over its profiler windows.",
            "bytes",
        ),
        Metric(
            "ampwatch_peak_flops",
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
            "ampwatch_flops_utilization_ratio",
            "gauge",
            RANK,
            "Floating-point operations per second over the peak of float16 or bfloat16: what is quoted as MFU, and as HFU where activations are computed again, which is counted here.",
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
    ),
    "Findings": (
        Metric(
            "ampwatch_findings",
            "gauge",
            _FINDING,
            "Findings so far, one per place (module, parameter, optimizer ...) at which it was made.",
        ),
        Metric(
            "ampwatch_finding_last_seen_timestamp_seconds",
            "gauge",
            _FINDING,
            "Unix time of the newest iteration in which a finding of this kind is known to have been seen; told at least once a minute while it lasts.",
            "seconds",
        ),
        Metric(
            "ampwatch_finding_steps_total",
            "counter",
            (*RANK, "kind"),
            "Iterations in which a finding of this kind was seen, added up over its places; 0 for the known kinds before.",
        ),
        Metric(
            "ampwatch_finding_records_left_out_total",
            "counter",
            RANK,
            "Reports of further findings, repeated ones included, that the daemon did not keep, because the rank has too many.",
        ),
    ),
    "GPUs": (
        Metric(
            "ampwatch_gpu_info",
            "info",
            (*GPU, *GPU_FACTS),
            "Static facts of a GPU; a fact that is not told is empty (value is always 1).",
        ),
        Metric(
            "ampwatch_gpu_up",
            "gauge",
            GPU,
            "Whether a GPU that was seen before answered at the newest look (1) or not (0): it has fallen off the bus, has to be reset, or the driver is gone.",
        ),
        Metric(
            "ampwatch_gpu_capability",
            "gauge",
            (*GPU, "feature", "state", "reason"),
            "How it stands with what could be read of a GPU, and why something is absent (value is always 1). Without gpu and uuid: NVML itself.",
        ),
        Metric(
            "ampwatch_gpu_utilization_ratio",
            "gauge",
            GPU,
            "Share of the newest sample period of the driver in which any kernel ran (NVML); a kernel that fills one SM counts in full. Absent in MIG mode.",
            "ratio",
        ),
        Metric(
            "ampwatch_gpu_tensor_active_ratio",
            "gauge",
            (*GPU, "pipe"),
            "Share of cycles in which a tensor pipe was active, mean since the look before (NVML GPM; Hopper and newer). A pipe is not a dtype: hmma counts float16, bfloat16 and TF32. About 0.75 is a full load.",
            "ratio",
        ),
        Metric(
            "ampwatch_gpu_sm_active_ratio",
            "gauge",
            GPU,
            "Share of SMs that were busy, mean since the look before (NVML GPM; Hopper and newer).",
            "ratio",
        ),
        Metric(
            "ampwatch_gpu_sm_occupancy_ratio",
            "gauge",
            GPU,
            "Warps that were resident over those that fit, mean since the look before (NVML GPM; Hopper and newer).",
            "ratio",
        ),
        Metric(
            "ampwatch_gpu_dram_active_ratio",
            "gauge",
            GPU,
            "Share of the memory bandwidth that was used, mean since the look before (NVML GPM; Hopper and newer).",
            "ratio",
        ),
        Metric(
            "ampwatch_gpu_tensor_active_cycles_total",
            "counter",
            (*GPU, "pipe"),
            "SM cycles in which a tensor pipe was active, since the machine was started (NVML GPM; drivers from 595).",
        ),
        Metric(
            "ampwatch_gpu_sm_active_cycles_total",
            "counter",
            GPU,
            "SM cycles in which the SM was busy, since the machine was started (NVML GPM; drivers from 595).",
        ),
        Metric(
            "ampwatch_gpu_sm_cycles_total",
            "counter",
            GPU,
            "SM cycles that have elapsed since the machine was started (NVML GPM; drivers from 595).",
        ),
        Metric(
            "ampwatch_gpu_memory_used_bytes",
            "gauge",
            GPU,
            "GPU memory in use (NVML), without what the driver keeps for itself; with it where the driver does not tell the two apart.",
            "bytes",
        ),
        Metric(
            "ampwatch_gpu_memory_reserved_bytes",
            "gauge",
            GPU,
            "GPU memory that the driver and the firmware keep for themselves (NVML).",
            "bytes",
        ),
        Metric(
            "ampwatch_gpu_memory_capacity_bytes",
            "gauge",
            GPU,
            "GPU memory in all (NVML).",
            "bytes",
        ),
        Metric(
            "ampwatch_gpu_energy_joules_total",
            "counter",
            GPU,
            "Energy used since the driver was loaded (NVML); its rate is the mean power in watts.",
            "joules",
        ),
        Metric(
            "ampwatch_gpu_power_watts",
            "gauge",
            GPU,
            "Power drawn (NVML): on most GPUs of the Ampere generation and newer the mean of a second.",
            "watts",
        ),
        Metric(
            "ampwatch_gpu_power_limit_watts",
            "gauge",
            GPU,
            "Power limit that is enforced (NVML).",
            "watts",
        ),
        Metric(
            "ampwatch_gpu_temperature_celsius",
            "gauge",
            GPU,
            "Temperature of the GPU core (NVML).",
            "celsius",
        ),
        Metric(
            "ampwatch_gpu_memory_temperature_celsius",
            "gauge",
            GPU,
            "Temperature of the GPU memory (NVML).",
            "celsius",
        ),
        Metric(
            "ampwatch_gpu_clock_hertz",
            "gauge",
            (*GPU, "domain"),
            "Clock right now (NVML).",
            "hertz",
        ),
        Metric(
            "ampwatch_gpu_clock_max_hertz",
            "gauge",
            (*GPU, "domain"),
            "Highest clock the GPU can run at (NVML).",
            "hertz",
        ),
        Metric(
            "ampwatch_gpu_throttle_seconds_total",
            "counter",
            (*GPU, "reason"),
            "Time for which the clocks were held down, by why (NVML); several reasons may hold at once.",
            "seconds",
        ),
        Metric(
            "ampwatch_gpu_xid_errors_total",
            "counter",
            (*GPU, "xid"),
            "XID errors since this daemon began to listen (NVML).",
        ),
        Metric(
            "ampwatch_gpu_xid_last_timestamp_seconds",
            "gauge",
            (*GPU, "xid"),
            "Unix time of the newest XID error of this code; absent before the first.",
            "seconds",
        ),
        Metric(
            "ampwatch_gpu_ecc_errors_total",
            "counter",
            (*GPU, "severity"),
            "ECC errors in the memories of the GPU since the driver was loaded (NVML).",
        ),
        Metric(
            "ampwatch_gpu_remapped_rows",
            "gauge",
            (*GPU, "severity"),
            "Rows of the memory that have been replaced by spare ones, by the errors that made it necessary (NVML; Ampere and newer).",
        ),
        Metric(
            "ampwatch_gpu_row_remap_pending",
            "gauge",
            GPU,
            "Whether a row waits to be replaced (1) or not (0), which happens at the next reset of the GPU (NVML).",
        ),
        Metric(
            "ampwatch_gpu_row_remap_failed",
            "gauge",
            GPU,
            "Whether a row could not be replaced (1) or not (0): the GPU needs to be exchanged (NVML).",
        ),
        Metric(
            "ampwatch_gpu_pcie_transmit_bytes_per_second",
            "gauge",
            GPU,
            "Traffic from the GPU over PCIe, mean since the look before (NVML GPM); before Hopper of 20 ms, if the setting gpu_link_throughput is on.",
        ),
        Metric(
            "ampwatch_gpu_pcie_receive_bytes_per_second",
            "gauge",
            GPU,
            "Traffic to the GPU over PCIe, mean since the look before (NVML GPM); before Hopper of 20 ms, if the setting gpu_link_throughput is on.",
        ),
        Metric(
            "ampwatch_gpu_nvlink_transmit_bytes_total",
            "counter",
            GPU,
            "Data sent over all NVLinks of the GPU, without protocol (NVML).",
            "bytes",
        ),
        Metric(
            "ampwatch_gpu_nvlink_receive_bytes_total",
            "counter",
            GPU,
            "Data received over all NVLinks of the GPU, without protocol (NVML).",
            "bytes",
        ),
        Metric(
            "ampwatch_gpu_processes",
            "gauge",
            GPU,
            "Processes that compute on the GPU, watched or not (NVML).",
        ),
        Metric(
            "ampwatch_gpu_process_info",
            "info",
            (*RANK, *GPU),
            "On which GPU a watched rank computes (value is always 1); absent where the daemon cannot tell.",
        ),
        Metric(
            "ampwatch_gpu_process_memory_used_bytes",
            "gauge",
            (*RANK, *GPU),
            "GPU memory that a watched rank uses, that of its CUDA context included (NVML).",
            "bytes",
        ),
        Metric(
            "ampwatch_gpu_mig_enabled",
            "gauge",
            GPU,
            "Whether the GPU is in MIG mode (1) or not (0); absent if it does not have that.",
        ),
        Metric(
            "ampwatch_mig_info",
            "info",
            (*MIG, "compute_instance", "mig_uuid", "profile"),
            "The MIG devices of a GPU (value is always 1).",
        ),
        Metric(
            "ampwatch_mig_memory_used_bytes",
            "gauge",
            MIG,
            "Memory of a GPU instance in use (NVML).",
            "bytes",
        ),
        Metric(
            "ampwatch_mig_memory_capacity_bytes",
            "gauge",
            MIG,
            "Memory of a GPU instance in all (NVML).",
            "bytes",
        ),
        Metric(
            "ampwatch_mig_tensor_active_ratio",
            "gauge",
            (*MIG, "pipe"),
            "Share of cycles in which a tensor pipe of a GPU instance was active, mean since the look before (NVML GPM).",
            "ratio",
        ),
        Metric(
            "ampwatch_mig_sm_active_ratio",
            "gauge",
            MIG,
            "Share of SMs of a GPU instance that were busy, mean since the look before (NVML GPM).",
            "ratio",
        ),
        Metric(
            "ampwatch_mig_sm_occupancy_ratio",
            "gauge",
            MIG,
            "Warps of a GPU instance that were resident over those that fit, mean since the look before (NVML GPM).",
            "ratio",
        ),
        Metric(
            "ampwatch_mig_dram_active_ratio",
            "gauge",
            MIG,
            "Share of the memory bandwidth of a GPU instance that was used, mean since the look before (NVML GPM).",
            "ratio",
        ),
    ),
}
"""The metrics by the question they answer, in the order in which they are exported."""

CATALOG: tuple[Metric, ...] = tuple(metric for metrics in TOPICS.values() for metric in metrics)
"""All metrics, in the order in which they are exported."""


def _values(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names)


LABELS: dict[str, str] = {
    "run": "Name of the run; `~2`, `~3` ... is appended to a job while one that started earlier runs under the same name.",
    "rank": "Global rank in the process group, `0` without one.",
    "collector": "Which of the daemon's collectors: `rings` reads the records of the training processes, `gpu` the GPUs.",
    "state": "Of a run: "
    + _values(tuple(state.value for state in RunState))
    + ". Of what could be read of a GPU or told of precision: "
    + _values(CAPABILITY_STATES)
    + ".",
    "optimizer": "`0` to `7` in the order in which they were first seen, `other` for all beyond.",
    "class": _values(tuple(skip.label for skip in SKIP_CLASSES))
    + ": searching the scale, just after a growth, neither, several in a row.",
    "kind": "Of findings: slug of the kind of failure, never changed between releases: "
    + _values(KINDS)
    + ". Of elements: `nan` or `inf`.",
    "topic": _values(tuple(topic.label for topic in Topic)) + ".",
    "format": "Name of the dtype in PyTorch: `float16`, `bfloat16`, `float8_e4m3fn` or `float8_e5m2`.",
    "fit": _values(tuple(fit.value for fit in Fit))
    + ": as they are, with some power of two as scale, with none.",
    "module": f"Qualified name of a module, `{ROOT_MODULE}` for the model itself; of at most so many modules as the setting `module_series` says, chosen once.",
    "op_kind": _values(tuple(kind.label for kind in OpKind if kind is not OpKind.CAST)) + ".",
    "dtype": f"{_values(DTYPES)}; `{OTHER_DTYPE}` for every other one, `{NO_DTYPE}` where the name of a kernel does not say. `tf32` is float32 that may use TF32.",
    "from_dtype": "As `dtype`.",
    "to_dtype": "As `dtype`.",
    "unit": _values(KERNEL_UNITS[:-1])
    + ": tensor cores, the general-purpose cores, not known which of the two, and kernels that multiply no matrices.",
    "part": _values(PROFILER_PARTS)
    + ": loading the profiler, starting it, iterations that took longer, stopping it, reading its events.",
    "views": "`hardware_kernels`, `hardware_arithmetic` or `kernels_arithmetic`.",
    "severity": "Of findings: "
    + _values(tuple(severity.value for severity in Severity))
    + ". Of ECC errors: `corrected` or `uncorrected`. Of remapped rows: `correctable` or `uncorrectable`.",
    "gpu": "Number that NVML gives the GPU; it changes when another GPU goes. Empty for NVML itself.",
    "uuid": "UUID of the GPU as NVML, `nvidia-smi -L` and DCGM say it, beginning with `GPU-`; with `SYNTHETIC-` if it does not exist.",
    "feature": "What could be read of a GPU: "
    + _values(("nvml", *(feature.value for feature in Feature)))
    + ", or one part of it (`tensor_active_dmma`) where that differs from the rest; `uuid` of a GPU that cannot tell its name. What could be told of precision: `kernels`, the share of tensor cores in their time, and `arithmetic`, the share of the ceiling that was used.",
    "reason": "Of throttling: "
    + _values((*THROTTLE_REASONS, "thermal"))
    + ", the last one only where the driver does not tell the kinds apart. Of what could be read of a GPU: "
    + _values(tuple(reason.value for reason in Reason))
    + ". Of what could be told of precision: "
    + _values(tuple(absence.value for absence in Absence))
    + ". Of float32 under autocast: "
    + _values(tuple(reason.label for reason in Fallback if reason is not Fallback.NONE))
    + ". Of profiler windows that were not opened: "
    + _values(tuple(reason.label for reason in WindowSkip))
    + ".",
    "pipe": _values(TENSOR_PIPES) + ": of all tensor pipes together, then of each.",
    "domain": "`sm` or `memory`.",
    "xid": f"Code of the error as NVIDIA's table of XIDs has it, `{OTHER_XIDS}` for those beyond {MAX_FURTHER_XIDS} that were not expected.",
    "name": "Name of the product.",
    "pci_bus_id": "Address on the PCI bus.",
    "compute_capability": "CUDA compute capability, as `9.0`.",
    "driver_version": "Version of the NVIDIA driver.",
    "cuda_version": "Highest version of CUDA that the driver supports.",
    "synthetic": "`true` for a GPU of `ampwatch daemon --demo-gpu`, which does not exist; else `false`.",
    "gpu_instance": "Number of the GPU instance (MIG), used again after a reconfiguration.",
    "compute_instance": "Number of the compute instance within its GPU instance.",
    "mig_uuid": "UUID of the MIG device, beginning with `MIG-`.",
    "profile": "Profile of the MIG device, as `1g.10gb`.",
    "root": "`true`, or `false` when another finding explains this one.",
    "version": "Version of ampwatch: of the daemon, or of the training process.",
    "world_size": "Number of ranks in the process group.",
    "local_rank": "Rank on this host.",
    "device": "Name of the device that is trained on.",
    "autocast_dtype": "Dtypes of the autocast regions that were seen.",
    "scaler": "Class of the gradient scaler; `none` without one, `disabled` if it is.",
    "init_scale": "Loss scale the scaler was made with.",
    "growth_factor": "Factor of a growth.",
    "backoff_factor": "Factor of a backoff.",
    "growth_interval": "Unskipped steps before a growth.",
    "torch": "Version of PyTorch.",
    "python": "Version of Python in the training process.",
    "allow_tf32": "Whether float32 matmuls may use TF32.",
    "cudnn_allow_tf32": "Whether cuDNN convolutions may use TF32.",
    "float32_matmul_precision": "`torch.get_float32_matmul_precision()`.",
    "allow_fp16_reduced_precision_reduction": "Whether float16 matmuls may accumulate in float16.",
    "allow_bf16_reduced_precision_reduction": "Whether bfloat16 matmuls may accumulate in bfloat16.",
    "cudnn_benchmark": "Whether cuDNN searches for its fastest algorithms.",
}
"""Every label: what it says, and its values where they are few."""

_INTRODUCTION = """\
# Metrics

Generated from `ampwatch/catalog.py`; change that file, then run
`python -m ampwatch.catalog > docs/metrics.md`.

- Counters of a rank exist at 0 from the first scrape of a run. The gauges of a finding appear when it is
  made. Alert on `ampwatch_finding_last_seen_timestamp_seconds`, which needs no earlier sample:
  `time() - ampwatch_finding_last_seen_timestamp_seconds{severity="critical"} < 600`.
- Totals are kept by the training process, so they survive a restart of the daemon. The
  histograms and `ampwatch_ring_records_lost_total` start again with the daemon.
- A value that is not known is absent: no `ampwatch_loss_scale` without a scaler, and nothing
  about ranges before the first sample.
- Ranges are of sampled iterations: what `ampwatch_samples_total` counts. Two counters make the
  share of all gradient elements that are zero only because of the dtype of autocast, zeros that it
  has flushed included:
  `rate(ampwatch_gradient_underflow_elements_total[5m]) / rate(ampwatch_gradient_elements_total[5m])`.
- How old a sample is: `time() - ampwatch_last_sample_timestamp_seconds`.
- Series per module are those of at most `module_series` modules of a rank. They appear when the
  module is chosen, its counters with what they have come to by then, so that their first increase
  is not seen: alert on the counters of the rank, which are there from the start. A module that has
  series keeps them; half are held back for modules that get into trouble later. The page shows all.
- What is read of GPUs, from where, and what is absent when: [gpu.md](gpu.md).
- Facts that do not change are labels of `ampwatch_run_info`. Join them with
  `* on (job, instance, run, rank) group_left (autocast_dtype) ampwatch_run_info`.
- The share of tensor cores in the time of matmul kernels is a range, for not every kernel says by
  its name where it multiplies. At least
  `sum by (run, rank) (rate(ampwatch_kernel_seconds_total{unit="tensor"}[1h])) / sum by (run, rank) (rate(ampwatch_kernel_seconds_total{unit=~"tensor|cuda|unknown"}[1h]))`,
  at most the same with `unit=~"tensor|unknown"` above the line. Windows are rare: take a long range.
- The share of the ceiling that was used, correct for any mix of dtypes:
  `ampwatch_ideal_step_seconds / (rate(ampwatch_step_duration_seconds_sum[5m]) / rate(ampwatch_step_duration_seconds_count[5m]))`.
- Ops are of counted iterations, kernels of profiled ones: what `ampwatch_census_iterations_total`
  and `ampwatch_profiler_iterations_total` count. Shares are rates over rates of the same.
- A run that has ended stays for the setting `grace_seconds`, with its last values.
"""


def markdown() -> str:
    """Return the text of ``docs/metrics.md``."""
    parts = [_INTRODUCTION]
    for topic, metrics in TOPICS.items():
        parts.append(f"## {topic}\n")
        parts.append("| name | type | labels | help |\n| --- | --- | --- | --- |")
        parts += [_row(metric) for metric in metrics]
        parts.append("")
    parts.append("## Labels\n\n| label | says |\n| --- | --- |")
    parts += [f"| `{name}` | {text} |" for name, text in LABELS.items()]
    return "\n".join(parts) + "\n"


def _row(metric: Metric) -> str:
    labels = ", ".join(metric.labels) or "none"
    return f"| `{metric.name}` | {metric.type} | {labels} | {metric.help} |"


if __name__ == "__main__":
    sys.stdout.write(markdown())
