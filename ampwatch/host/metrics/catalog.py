"""Every exported metric, by topic, and the page that is printed from them.

A metric is one object: name, type, unit, labels, help and the reader of its value, in the module
of its topic. The exporter walks over all of them, ``docs/metrics.md`` is printed from them
(``python -m ampwatch.host.metrics.catalog > docs/metrics.md``), dashboards and alert rules are
tested against them. Names and labels are frozen once released.

What an event is, is a counter; what a scrape could miss is held; ratios are left
to PromQL. A value that is not known is absent, never 0 and never NaN.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from ampwatch.host.metrics.gpus import GPUS, MIG
from ampwatch.host.metrics.gradients import GRADIENTS, MODULES, PARAMETERS_AND_BUFFERS
from ampwatch.host.metrics.kernels import KERNELS
from ampwatch.host.metrics.labels import LABELS
from ampwatch.host.metrics.precision import PRECISION_MIX
from ampwatch.host.metrics.run import (
    DAEMON,
    LOSS_SCALING,
    RUN,
    SAMPLING,
    STEPS_AND_LOSS,
    TIMES,
    TRAINING_MEMORY,
)
from ampwatch.host.metrics.verdict import FINDINGS, VERDICT

if TYPE_CHECKING:
    from ampwatch.host.metrics.metric import Metric

TOPICS: dict[str, tuple[Metric, ...]] = {
    "Daemon": DAEMON,
    "Run": RUN,
    "Verdict": VERDICT,
    "Loss scaling": LOSS_SCALING,
    "Steps and loss": STEPS_AND_LOSS,
    "Step time": TIMES,
    "Memory": TRAINING_MEMORY,
    "Sampling": SAMPLING,
    "Gradients": GRADIENTS,
    "Parameters and buffers": PARAMETERS_AND_BUFFERS,
    "Modules": MODULES,
    "Precision mix": PRECISION_MIX,
    "Kernels": KERNELS,
    "Findings": FINDINGS,
    "GPUs": (*GPUS, *MIG),
}
"""The metrics by the question they answer, in the order in which they are exported."""

CATALOG: tuple[Metric, ...] = tuple(metric for metrics in TOPICS.values() for metric in metrics)
"""All metrics, in the order in which they are exported."""

_INTRODUCTION = """\
# Metrics

Generated from `ampwatch/host/metrics/`; change what is there, then run
`python -m ampwatch.host.metrics.catalog > docs/metrics.md`.

- Counters of a rank exist at 0 from the first scrape of a run, except where the table says otherwise. The gauges of a finding appear when it is
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
- Series per module are those of at most `module_series` modules of a rank. In data-parallel
  training all ranks say the same of a module, so that by default one of them represents it: the
  lowest of a machine that measures it (`module_series_ranks`), and another one while it alone has
  trouble with it. Everything else is exported for every rank. The series of a module appear when it
  is chosen, its counters with what they have come to by then, so that their first increase
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
  `ampwatch_ideal_time_ratio`, of the newest steps, or
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
