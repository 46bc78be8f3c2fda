"""What a page has about each run, and a line for each rank, whoever is looked at."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, NamedTuple

from ampwatch.host.page.rows import State, found
from ampwatch.report import accounts
from ampwatch.report.headline import headline
from ampwatch.report.verdict import Level
from ampwatch.report.words import number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ampwatch.host.fleet import RankView
    from ampwatch.report.verdict import RunVerdict, Verdict


CAUSE = "the cause"
"""Part of the rank whose end made the others of its job end."""


class Shown(NamedTuple):
    """The ranks that somebody looks at.

    Attributes:
        run: Label of the run; of the one that is worst off if there is none of it.
        rank: Its rank as text; the one that speaks for the run if there is none of it.
        beside: Run and rank that are compared with it.
    """

    run: str | None = None
    rank: str | None = None
    beside: tuple[str, str] | None = None


def of_run(ranks: Sequence[RankView], verdict: RunVerdict, now: float) -> State:
    """Return what is about all ranks of a run."""
    counts, worst = counted(verdict)
    return {
        **words_of(verdict),
        "headline": asdict(headline(verdict, now)),
        "speaker": verdict.shown_rank,
        "counts": counts,
        "worst": worst,
        "users": sorted({rank.user for rank in ranks}),
        "hosts": sorted({rank.identity.host for rank in ranks}),
        "found": found(verdict),
        "world_size": max(rank.identity.world_size for rank in ranks),
        "badness": verdict.level.badness,
    }


def there(lines: State, shown: Shown) -> Shown:
    """Return the ranks that somebody is shown who asks for ``shown``; none where there are no runs."""
    runs = lines["runs"]
    if not runs:
        return Shown()
    worst = min(runs, key=lambda run: (runs[run]["badness"], -_began(runs[run])))
    run = worst if shown.run is None or shown.run not in runs else shown.run
    ranks, shown_rank = runs[run]["ranks"], str(runs[run]["speaker"])
    rank = shown_rank if shown.rank is None or shown.rank not in ranks else shown.rank
    other, index = shown.beside or ("", "")
    is_there = other in runs and index in runs[other]["ranks"]
    return Shown(run, rank, (other, index) if is_there else None)


def _began(run: State) -> float:
    """Return when the first rank of a run began. Unit: s, Unix time."""
    return min(float(rank["started"]) for rank in run["ranks"].values())


def in_lines(ranks: Sequence[RankView], verdict: RunVerdict, now: float) -> State:
    """Return a run with a line for each of its ranks."""
    lines = {str(r.identity.rank): line_of(r, verdict) for r in ranks}
    return {**of_run(ranks, verdict, now), "ranks": lines}


def line_of(rank: RankView, of_run: RunVerdict) -> State:
    """Return what is to be seen of a rank that nobody looks at."""
    index = rank.identity.rank
    verdict = of_run.by_rank[index]
    line: State = {
        "level": verdict.level.value,
        "sentence": verdict.sentence,
        "state": rank.state.value,
        "started": rank.identity.started_ns / 1e9,
        "last_seen": rank.last_record_ns / 1e9,
    }
    if part := part_of(index, of_run):
        line["part"] = part
    if verdict.ended_by is not None:
        line["ended_by"] = verdict.ended_by.rank
    return line if rank.newest is None else {**line, "step": rank.newest.step}


def words_of(verdict: Verdict) -> State:
    """Return what a verdict says."""
    words = {
        "level": verdict.level.value,
        "sentence": verdict.sentence,
        "advice": verdict.advice,
    }
    return words if verdict.root is None else {**words, "root": verdict.root.finding.key}


def counted(verdict: RunVerdict) -> tuple[str, str]:
    """Return how many ranks are in which state, and what the one says that is worst off.

    The first is as in "248 healthy, 7 stale (ranks 3, 9-14), 1 failing (rank 77)": the most common
    state first, and the ranks that are in another one named. States that differ only in their cause
    are counted apart, with its kind, or with the rank that made them end. The second is empty where
    all ranks are in one state for one cause.
    """
    groups: dict[tuple[Level, str], list[int]] = {}
    for rank, of_rank in verdict.by_rank.items():
        groups.setdefault((of_rank.level, _cause(of_rank)), []).append(rank)
    # Of equally common ones the worst last, so that it is not the one whose ranks go unnamed.
    order = sorted(groups, key=lambda group: (-len(groups[group]), -group[0].badness, group[1]))
    num_causes = Counter(level for level, _ in groups)
    parts = []
    for place, (level, cause) in enumerate(order):
        members = groups[level, cause]
        why = [cause] if cause and num_causes[level] > 1 else []
        who = [accounts.ranks(members)] if place else []
        noted = f" ({', '.join(why + who)})" if why or who else ""
        parts.append(f"{number(len(members))} {level.value}{noted}")
    worst = ""
    if len(groups) > 1:
        judged = verdict.by_rank[verdict.shown_rank]
        verb = "has" if judged.level is Level.FAILED else "is"
        worst = f"rank {verdict.shown_rank} {verb} {judged.level.value}: {judged.sentence}"
    return ", ".join(parts), worst


def part_of(rank: int, verdict: RunVerdict) -> str:
    """Return ``CAUSE`` for the rank whose end made others of its job fail, else nothing."""
    failed = sum(one.level is Level.FAILED for one in verdict.by_rank.values())
    return CAUSE if failed > 1 and verdict.by_rank[rank].is_cause else ""


def _cause(verdict: Verdict) -> str:
    if verdict.ended_by is not None:
        return f"because of rank {verdict.ended_by.rank}"
    return "" if verdict.root is None else verdict.root.finding.kind
