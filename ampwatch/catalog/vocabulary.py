"""Names and values of labels that more than one metric has."""

from __future__ import annotations

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
    "forward_overflow",
    "silent_overflow",
    "masked_row_nan",
    "forward_nan_underflow",
    "nonfinite_input",
    "backward_nonfinite_any_scale",
    "reduce_overflow",
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
    "grad_accum_rounding",
    "ema_rounding",
    "metric_accum_rounding",
    "lossy_integer_cast",
    "fp8_saturation",
    "fp8_underflow",
    "fp8_scale_nonfinite",
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
    "clip_before_unscale",
    "unscaled_step",
    "mixed_scaled_backward",
    "scale_changed_mid_accumulation",
    "clip_nonfinite_norm",
    "backward_under_autocast",
    "api_error",
    "scale_reset",
    "periodic_skip",
    "shared_scaler_desync",
    "rank_found_inf_mismatch",
    "divergence",
    "stale_autocast_cache",
    "compile_backward_autocast",
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

FINDING = (*RANK, "kind", "severity", "root")
MODULE = (*RANK, "module")
