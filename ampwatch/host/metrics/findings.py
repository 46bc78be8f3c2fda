"""Metrics of findings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ampwatch.diagnosis.kinds.registry import KINDS
from ampwatch.host.metrics.metric import Exemplified, Metric
from ampwatch.host.metrics.scopes import part

if TYPE_CHECKING:
    from collections.abc import Callable

    from ampwatch.host.fleet.findings import FindingSums, SortTotals
    from ampwatch.host.metrics.metric import Reader
    from ampwatch.host.metrics.scopes import Table


_SUMS = part(lambda rank: rank.finding_totals.sums)


def _by_sort(read: Callable[[SortTotals], float]) -> Reader:
    """Return the reader of a value per kind, severity and whether another finding explains it."""

    def totals(sums: FindingSums) -> Table:
        for sort, found in sums.by_sort.items():
            yield (sort.kind, sort.severity.value, str(sort.root).lower()), read(found)

    return _SUMS.by("kind", "severity", "root", read=totals)


def _steps(sums: FindingSums) -> Table:
    steps, newest = sums.steps_by_kind, sums.newest_by_kind
    # The known kinds are born at 0, so that the first is an increase; a writer of another release
    # may have further ones.
    for kind in dict.fromkeys((*KINDS, *steps)):
        if kind not in newest:
            yield (kind,), 0
            continue
        finding, seen_ns = newest[kind]
        yield (kind,), Exemplified(steps[kind], {"step": str(finding.last_step)}, seen_ns / 1e9)


FINDINGS: tuple[Metric, ...] = (
    Metric(
        "ampwatch_findings",
        "gauge",
        "Findings so far, one per place (module, parameter, optimizer ...) at which it was made.",
        _by_sort(lambda totals: totals.num_places),
    ),
    Metric(
        "ampwatch_finding_last_seen_timestamp_seconds",
        "gauge",
        "Unix time of the newest iteration in which a finding of this kind is known to have been seen; told at least once a minute while it lasts.",
        _by_sort(lambda totals: totals.last_seen_ns / 1e9),
        unit="seconds",
    ),
    Metric(
        "ampwatch_finding_steps_total",
        "counter",
        "Iterations in which a finding of this kind was seen, added up over its places; 0 for the known kinds before. In OpenMetrics with the newest iteration as exemplar (step).",
        _SUMS.by("kind", read=_steps),
    ),
    Metric(
        "ampwatch_finding_records_left_out_total",
        "counter",
        "Reports of further findings, repeated ones included, that the daemon did not keep, because the rank has too many.",
        _SUMS.one(lambda sums: sums.left_out),
    ),
)
