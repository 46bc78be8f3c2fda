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

from ampwatch.numerics.whatif import Fit
from ampwatch.records import SKIP_CLASSES, RunState, Severity, Topic

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
)
"""The kinds of findings that this release makes; a ring of another release may hold more."""

ROOT_MODULE = "(root)"
"""What the label ``module`` says for the model itself, whose qualified name is empty: to
Prometheus an empty label is no label. No attribute name made by ordinary code looks like it."""

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
}
"""The metrics by the question they answer, in the order in which they are exported."""

CATALOG: tuple[Metric, ...] = tuple(metric for metrics in TOPICS.values() for metric in metrics)
"""All metrics, in the order in which they are exported."""


def _values(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names)


LABELS: dict[str, str] = {
    "run": "Name of the run; `~2`, `~3` ... is appended to a job while one that started earlier runs under the same name.",
    "rank": "Global rank in the process group, `0` without one.",
    "collector": "Which of the daemon's collectors: `rings` reads the records of the training processes.",
    "state": _values(tuple(state.value for state in RunState)) + ".",
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
    "severity": _values(tuple(severity.value for severity in Severity)) + ".",
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
- Facts that do not change are labels of `ampwatch_run_info`. Join them with
  `* on (job, instance, run, rank) group_left (autocast_dtype) ampwatch_run_info`.
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
