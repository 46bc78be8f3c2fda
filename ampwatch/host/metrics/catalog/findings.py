"""Metrics of findings."""

from __future__ import annotations

from ampwatch.host.metrics.catalog.metric import Metric
from ampwatch.host.metrics.catalog.vocabulary import FINDING, RANK

FINDINGS: tuple[Metric, ...] = (
    Metric(
        "ampwatch_findings",
        "gauge",
        FINDING,
        "Findings so far, one per place (module, parameter, optimizer ...) at which it was made.",
    ),
    Metric(
        "ampwatch_finding_last_seen_timestamp_seconds",
        "gauge",
        FINDING,
        "Unix time of the newest iteration in which a finding of this kind is known to have been seen; told at least once a minute while it lasts.",
        "seconds",
    ),
    Metric(
        "ampwatch_finding_steps_total",
        "counter",
        (*RANK, "kind"),
        "Iterations in which a finding of this kind was seen, added up over its places; 0 for the known kinds before. In OpenMetrics with the newest iteration as exemplar (step).",
    ),
    Metric(
        "ampwatch_finding_records_left_out_total",
        "counter",
        RANK,
        "Reports of further findings, repeated ones included, that the daemon did not keep, because the rank has too many.",
    ),
)
