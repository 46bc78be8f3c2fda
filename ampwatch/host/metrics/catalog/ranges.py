"""Metrics of what sampling measures: gradients, state, modules."""

from __future__ import annotations

from ampwatch.host.metrics.catalog.metric import Metric
from ampwatch.host.metrics.catalog.vocabulary import MODULE, RANK

SAMPLING: tuple[Metric, ...] = (
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
        "Measured modules of which this rank exports no series, because of the settings module_series and module_series_ranks.",
    ),
)

GRADIENTS: tuple[Metric, ...] = (
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
)

PARAMETERS_AND_BUFFERS: tuple[Metric, ...] = (
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
)

MODULES: tuple[Metric, ...] = (
    Metric(
        "ampwatch_module_gradient_amax",
        "gauge",
        MODULE,
        "Largest finite gradient magnitude of the module's parameters when the module was last measured, multiplied by the loss scale.",
    ),
    Metric(
        "ampwatch_module_gradient_zero_ratio",
        "gauge",
        MODULE,
        "Share of the gradient elements of the module's parameters that are zero, when the module was last measured.",
        "ratio",
    ),
    Metric(
        "ampwatch_module_gradient_underflow_ratio",
        "gauge",
        MODULE,
        "Share of all gradient elements of the module's parameters that are zero only because of the dtype of autocast (their own without one), when the module was last measured: zeros that it has flushed, and others that it would flush.",
        "ratio",
    ),
    Metric(
        "ampwatch_module_gradient_nonfinite_elements_total",
        "counter",
        (*MODULE, "kind"),
        "Gradient elements of the module's parameters seen so far that are NaN or infinite.",
    ),
    Metric(
        "ampwatch_module_activation_amax",
        "gauge",
        MODULE,
        "Largest finite magnitude of the module's output when the module was last measured.",
    ),
    Metric(
        "ampwatch_module_activation_dtype_max",
        "gauge",
        MODULE,
        "Largest finite number of the dtype of the module's output; absent if there are several.",
    ),
    Metric(
        "ampwatch_module_activation_gradient_amax",
        "gauge",
        MODULE,
        "Largest finite magnitude of the gradients of the module's output when the module was last measured, multiplied by the loss scale.",
    ),
    Metric(
        "ampwatch_module_update_unchanged_ratio",
        "gauge",
        MODULE,
        "Share of the elements of the module's parameters, of a subsample, that the optimizer left as they were when the module was last measured.",
        "ratio",
    ),
)
