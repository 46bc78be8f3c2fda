"""The ranks of a run in two lines: how many are in which state, and what the worst one says.

Two hundred ranks are read as one word and the few that differ from the rest.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ampwatch.report.accounts import ranks
from ampwatch.report.verdict import Level
from ampwatch.report.words import number

if TYPE_CHECKING:
    from ampwatch.report.verdict import RunVerdict, Verdict


CAUSE = "the cause"
"""Part of the rank whose end made the others of its job end."""


@dataclass(frozen=True, slots=True)
class Roll:
    """The ranks of a run, counted.

    Attributes:
        counts: As in "248 healthy, 7 stale (ranks 3, 9-14), 1 failing (rank 77)": the most common
            state first, and the ranks that are in another one named. States that differ only in
            their cause are counted apart, with its kind, or with the rank that made them end.
        worst: The rank that is worst off, with its state and its sentence; empty where all ranks
            are in one state for one cause.
    """

    counts: str
    worst: str


def call_the_roll(verdict: RunVerdict) -> Roll:
    """Count the ranks of ``verdict`` by their state."""
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
        who = [ranks(members)] if place else []
        noted = f" ({', '.join(why + who)})" if why or who else ""
        parts.append(f"{number(len(members))} {level.value}{noted}")
    worst = ""
    if len(groups) > 1:
        said = verdict.by_rank[verdict.speaker]
        verb = "has" if said.level is Level.FAILED else "is"
        worst = f"rank {verdict.speaker} {verb} {said.level.value}: {said.sentence}"
    return Roll(", ".join(parts), worst)


def part_of(rank: int, verdict: RunVerdict) -> str:
    """Return ``CAUSE`` for the rank whose end made others of its job fail, else nothing."""
    failed = sum(one.level is Level.FAILED for one in verdict.by_rank.values())
    return CAUSE if failed > 1 and verdict.by_rank[rank].is_cause else ""


def _cause(verdict: Verdict) -> str:
    if verdict.ended_by is not None:
        return f"because of rank {verdict.ended_by.rank}"
    return "" if verdict.root is None else verdict.root.finding.kind
