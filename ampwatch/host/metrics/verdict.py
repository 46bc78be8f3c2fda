"""Metrics of the verdict on a run: how it goes, what is at the root of it, who ended it, and what was found."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ampwatch.diagnosis.kinds.registry import KINDS
from ampwatch.host.metrics.metric import Exemplified
from ampwatch.host.metrics.scopes import PER_RANK, each, exported, part
from ampwatch.report.accounts import place
from ampwatch.report.endings import Failure
from ampwatch.report.headline import first_remedy
from ampwatch.report.verdict import Level
from ampwatch.state import facts
from ampwatch.state.text import encodable
from ampwatch.wire.records import RunState

if TYPE_CHECKING:
    from collections.abc import Callable

    from ampwatch.host.fleet import RankView
    from ampwatch.host.metrics.metric import Reader, Rows
    from ampwatch.host.metrics.scopes import Table
    from ampwatch.state.findings import FindingSums, SortTotals


MAX_ROOTS = 16
"""Roots of a rank that are exported with their place. Of further ones the place is ``OTHER``: a
training in which something else breaks every hour must not make series without end."""

MAX_TEXT = 160
"""Characters of a label that is text."""

MAX_REMEDY = 400
"""Characters of a remedy, which are whole sentences: the first one of a kind's advice has room."""

OTHER = "other"


def _root(rank: RankView) -> Table:
    incident = None if rank.verdict is None else rank.verdict.root
    if incident is None:
        return
    finding = incident.finding
    where = finding.kind, place(finding), finding.op, str(finding.first_step)
    if where not in rank.roots:
        if len(rank.roots) >= MAX_ROOTS:
            where = finding.kind, OTHER, "", ""
        else:
            rank.roots.add(where)
    kind, *rest = (encodable(text)[:MAX_TEXT] for text in where)
    # That of a place that is not named may be another one each time, too.
    remedy = "" if OTHER in where else first_remedy(finding, MAX_REMEDY)
    yield (kind, incident.severity.value, *rest, encodable(remedy)), 1


def _failure(rank: RankView) -> Table:
    if rank.state is RunState.FAILED:
        failure = Failure(rank.identity.rank, rank.end_reason, 0.0)
        is_cause = rank.verdict is not None and rank.verdict.is_cause
        yield (str(is_cause).lower(), failure.error), 1


VERDICT: Rows = {
    "ampwatch_run_health": (
        "Whether the verdict on the rank, as on the page and in reports, is the given one (1) or not (0).",
        part(lambda rank: None if rank.verdict is None else rank.verdict.level).by(
            "health", read=lambda current: each({v.label: int(v is current) for v in Level})
        ),
    ),
    "ampwatch_root_info": (
        "The finding that the verdict on the rank names (value is always 1), with the worst severity of what it explains. Absent where nothing alarming is current.",
        PER_RANK.by("kind", "severity", "place", "op", "first_step", "remedy", read=_root),
    ),
    "ampwatch_rank_failure_info": (
        "A rank that has failed (value is always 1).",
        PER_RANK.by("cause", "error", read=_failure),
    ),
}


_SUMS = part(lambda rank: rank.finding_totals.sums)


def _by_sort(read: Callable[[SortTotals], float]) -> Reader:
    """Return the reader of a value per kind, severity and whether another finding explains it."""

    def totals(sums: FindingSums) -> Table:
        for sort, found in sums.by_sort.items():
            yield (sort.kind, sort.severity.value, str(sort.root).lower()), read(found)

    return _SUMS.by("kind", "severity", "root", read=totals)


def _steps(sums: FindingSums) -> Table:
    steps, newest = sums.steps_by_kind, sums.newest_by_kind
    # The known kinds start at 0, so that the first is an increase; a writer of another release
    # may have further ones.
    for kind in dict.fromkeys((*KINDS, *steps)):
        if kind not in newest:
            yield (kind,), 0
            continue
        finding, seen_ns = newest[kind]
        yield (kind,), Exemplified(steps[kind], {"step": str(finding.last_step)}, seen_ns / 1e9)


FINDINGS: Rows = {
    **exported(facts.FINDINGS),
    "ampwatch_findings": (
        "Findings so far, one per place (module, parameter, optimizer ...).",
        _by_sort(lambda totals: totals.num_places),
    ),
    "ampwatch_finding_last_seen_timestamp_seconds": (
        "Unix time at which a finding of this kind was last seen; updated at least once a minute while it lasts.",
        _by_sort(lambda totals: totals.last_seen_ns / 1e9),
    ),
    "ampwatch_finding_steps_total": (
        "Iterations in which a finding of this kind was seen, summed over places. In OpenMetrics with the newest iteration as exemplar (step).",
        _SUMS.by("kind", read=_steps),
    ),
}
