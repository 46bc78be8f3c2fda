"""Every exported metric, by topic, and the page that is printed from them.

A metric is one row in the module of its topic: name, help and the reader of its value. The exporter
walks over all of them, ``docs/metrics.md`` is printed from them (``python -m
ampwatch.host.metrics.catalog > docs/metrics.md``), dashboards and alert rules are tested against
them. Names and labels are frozen once released.

What an event is, is a counter; what a scrape could miss is held; ratios are left
to PromQL. A value that is not known is absent, never 0 and never NaN.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from ampwatch.host.metrics import gpus, gradients, kernels, precision, run, verdict
from ampwatch.host.metrics.labels import LABELS
from ampwatch.host.metrics.metric import Metric

if TYPE_CHECKING:
    from ampwatch.host.metrics.metric import Rows

_ROWS: dict[str, Rows] = {
    "Daemon": run.DAEMON,
    "Run": run.RUN,
    "Verdict": verdict.VERDICT,
    "Loss scaling": run.LOSS_SCALING,
    "Steps and loss": run.STEPS_AND_LOSS,
    "Step time": run.TIMES,
    "Memory": run.TRAINING_MEMORY,
    "Sampling": run.SAMPLING,
    "Gradients": gradients.GRADIENTS,
    "Parameters and buffers": gradients.PARAMETERS_AND_BUFFERS,
    "Modules": gradients.MODULES,
    "Precision mix": precision.PRECISION_MIX,
    "Kernels": kernels.KERNELS,
    "Findings": verdict.FINDINGS,
    "GPUs": gpus.GPUS,
}
TOPICS = {
    topic: tuple(Metric(name, *row) for name, row in rows.items()) for topic, rows in _ROWS.items()
}
"""The metrics by the question they answer, in the order in which they are exported."""

CATALOG: tuple[Metric, ...] = tuple(metric for metrics in TOPICS.values() for metric in metrics)
"""All metrics, in the order in which they are exported."""

_INTRODUCTION = """\
# Metrics

Generated from `ampwatch/host/metrics/`; change what is there, then run
`python -m ampwatch.host.metrics.catalog > docs/metrics.md`.

Names that end in `_total` are counters, those in `_info` have the value 1 and facts as labels; all others are gauges, but for the
histograms, which are marked. Labels that all metrics of a topic have are above its table, others in braces.

- **Counters** of a rank exist at 0 from the first scrape of a run, unless the table says otherwise. The training process keeps them, so they
  survive a restart of the daemon; histograms and `ampwatch_ring_records_lost_total` do not.
- **An unknown value is absent**: no `ampwatch_loss_scale` without a scaler, no ranges before the first sample, no kernels of a GPU on a
  CPU. Of GPUs: [absent, never zero](gpu.md#absent-never-zero).
- **Ranges** are of sampled iterations (`ampwatch_samples_total`, at most ten a second), ops of counted ones
  (`ampwatch_census_iterations_total`), kernels of profiled ones (`ampwatch_profiler_iterations_total`). A share is the rate of one such
  counter over that of another:
  `rate(ampwatch_gradient_underflow_elements_total[5m]) / rate(ampwatch_gradient_elements_total[5m])`. More: [precision](lab.md#in-promql).
- **Findings** have no gauge before the first one. Alert on the time, which needs no earlier sample:
  `time() - ampwatch_finding_last_seen_timestamp_seconds{severity="critical"} < 600`.
- **Modules** have series on [one rank of a machine](operate.md#fleets), at most `module_series` of them. A module that has series keeps
  them; half are held back for modules that get into trouble later. Values are of the last time the module was measured. A counter of a
  module appears with what it has counted by then: alert on the counters of the rank.
- **Facts** of a run are joined with `* on (job, instance, run, rank) group_left (autocast_dtype) ampwatch_run_info`.
- **A run that has ended** keeps its last values for `grace_seconds`.
"""

_HEAD = "| name | help |\n| --- | --- |"


def markdown() -> str:
    """Return the text of ``docs/metrics.md``."""
    parts = [_INTRODUCTION]
    for topic, metrics in TOPICS.items():
        shared = [name for name in metrics[0].labels if all(name in m.labels for m in metrics)]
        parts.append(f"## {topic}\n")
        if shared:
            parts.append(f"Labels of all: {', '.join(f'`{name}`' for name in shared)}.\n")
        parts.append(_HEAD)
        parts += [_row(metric, shared) for metric in metrics]
        parts.append("")
    parts.append("## Labels\n")
    parts += [f"- `{name}`: {text}" for name, text in LABELS.items()]
    return "\n".join(parts) + "\n"


def _row(metric: Metric, shared: list[str]) -> str:
    own = ", ".join(name for name in metric.labels if name not in shared)
    name = f"`{metric.name}{{{own}}}`" if own else f"`{metric.name}`"
    kind = ", histogram" if metric.type == "histogram" else ""
    return f"| {name}{kind} | {metric.help.replace(' (value is always 1)', '')} |"


if __name__ == "__main__":
    sys.stdout.write(markdown())
