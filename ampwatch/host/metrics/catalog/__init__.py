"""Every exported metric: name, type, unit, labels, help. One table, read by everybody.

The exporter makes its families from it, ``docs/metrics.md`` is printed from it
(``python -m ampwatch.host.metrics.catalog > docs/metrics.md``), dashboards and alert rules are
tested against it. Names and labels are frozen once released.

What an event is, is a counter; what a scrape could miss is held; ratios are left
to PromQL. A value that is not known is absent, never 0 and never NaN.
"""

from __future__ import annotations

from ampwatch.diagnosis.kinds.registry import KINDS
from ampwatch.host.metrics.catalog import findings, gpus, page, precision, ranges, runs
from ampwatch.host.metrics.catalog.labels import LABELS
from ampwatch.host.metrics.catalog.metric import Metric, MetricType
from ampwatch.host.metrics.catalog.vocabulary import (
    DTYPES,
    GPU,
    GPU_FACTS,
    MIG,
    NO_DTYPE,
    OTHER_DTYPE,
    PROFILER_PARTS,
    RANK,
    ROOT_MODULE,
    RUN_FACTS,
)

__all__ = [
    "CATALOG",
    "DTYPES",
    "GPU",
    "GPU_FACTS",
    "KINDS",
    "LABELS",
    "MIG",
    "NO_DTYPE",
    "OTHER_DTYPE",
    "PROFILER_PARTS",
    "RANK",
    "ROOT_MODULE",
    "RUN_FACTS",
    "TOPICS",
    "Metric",
    "MetricType",
    "markdown",
]

TOPICS: dict[str, tuple[Metric, ...]] = {
    "Daemon": runs.DAEMON,
    "Run": runs.RUN,
    "Loss scaling": runs.LOSS_SCALING,
    "Steps and loss": runs.STEPS_AND_LOSS,
    "Sampling": ranges.SAMPLING,
    "Gradients": ranges.GRADIENTS,
    "Parameters and buffers": ranges.PARAMETERS_AND_BUFFERS,
    "Modules": ranges.MODULES,
    "Precision mix": precision.PRECISION_MIX,
    "Kernels": precision.KERNELS,
    "Findings": findings.FINDINGS,
    "GPUs": gpus.GPUS,
}
"""The metrics by the question they answer, in the order in which they are exported."""


CATALOG: tuple[Metric, ...] = tuple(metric for metrics in TOPICS.values() for metric in metrics)
"""All metrics, in the order in which they are exported."""


def markdown() -> str:
    """Return the text of ``docs/metrics.md``."""
    return page.markdown(TOPICS)
