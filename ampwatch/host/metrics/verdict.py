"""Metrics of the verdict on a run: how it goes, what is at the root of it, and who ended it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ampwatch.host.fleet.text import encodable
from ampwatch.host.metrics.metric import Metric
from ampwatch.host.metrics.scopes import PER_RANK, part
from ampwatch.report.accounts import place
from ampwatch.report.endings import Failure
from ampwatch.report.headline import first_remedy
from ampwatch.report.verdict import Level
from ampwatch.wire.records import RunState

if TYPE_CHECKING:
    from ampwatch.host.fleet import RankView
    from ampwatch.host.metrics.scopes import Table

MAX_ROOTS = 16
"""Roots of a rank that are exported with their place. Of further ones the place is ``OTHER``: a
training in which something else breaks every hour must not make series without end."""

MAX_TEXT = 160
"""Characters of a label that is text."""

MAX_REMEDY = 400
"""Characters of a remedy: the longest first sentence of a kind's advice is to be read whole."""

OTHER = "other"


def _level(rank: RankView) -> Level | None:
    return None if rank.verdict is None else rank.verdict.level


def _health(current: Level | None) -> Table:
    for level in Level:
        yield (level.label,), int(level is current)


def _root(rank: RankView) -> Table:
    story = None if rank.verdict is None else rank.verdict.root
    if story is None:
        return
    finding = story.finding
    where = finding.kind, place(finding), finding.op, str(finding.first_step)
    if where not in rank.roots:
        if len(rank.roots) >= MAX_ROOTS:
            where = finding.kind, OTHER, "", ""
        else:
            rank.roots.add(where)
    kind, *rest = (encodable(text)[:MAX_TEXT] for text in where)
    # That of a place that is not named may be another one each time, too.
    remedy = "" if OTHER in where else first_remedy(finding, MAX_REMEDY)
    yield (kind, story.severity.value, *rest, encodable(remedy)[:MAX_REMEDY]), 1


def _failure(rank: RankView) -> Table:
    if rank.state is RunState.FAILED:
        failure = Failure(rank.identity.rank, rank.end_reason, 0.0)
        is_cause = rank.verdict is not None and rank.verdict.is_cause
        yield (str(is_cause).lower(), failure.error), 1


VERDICT: tuple[Metric, ...] = (
    Metric(
        "ampwatch_run_health",
        "gauge",
        "Whether the verdict on the rank is the given one (1) or not (0); the page and reports show the same.",
        part(_level).by("health", read=_health),
    ),
    Metric(
        "ampwatch_root_info",
        "info",
        "The finding that the verdict on the rank speaks of (value is always 1): its kind, the worst severity of what it explains, its place in words, its op, its first iteration and what to do first. Absent where nothing alarming is current.",
        PER_RANK.by("kind", "severity", "place", "op", "first_step", "remedy", read=_root),
    ),
    Metric(
        "ampwatch_rank_failure_info",
        "info",
        "A rank that has failed (value is always 1): whether its failure made the other ranks of its run end, and the class of its exception, or killed.",
        PER_RANK.by("cause", "error", read=_failure),
    ),
)
