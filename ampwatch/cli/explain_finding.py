"""``ampwatch explain`` of a finding that was made: its own words and numbers, then the page of its kind."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING

from ampwatch.cli.output import encodable, piped
from ampwatch.cli.progress import progress
from ampwatch.cli.report import MAX_WIDTH, MIN_WIDTH, boxes_of
from ampwatch.errors import did_you_mean
from ampwatch.host.daemon.leftovers import jobs
from ampwatch.report import accounts
from ampwatch.report.judged_boxes import judge_boxes
from ampwatch.report.one_line import printable
from ampwatch.report.report import render_incident

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ampwatch.report.incidents import Incident
    from ampwatch.report.pages import Page
    from ampwatch.report.verdict import RunVerdict
    from ampwatch.wire.blackbox import Box

NOT_FOUND = 2


def explain_findings(
    names: Sequence[str],
    run: str | None,
    print_pages: Callable[[Iterable[Page]], None],
    known: Mapping[str, Page],
) -> int:
    """Print findings of a run, each once, and the pages of their kinds; return the exit status.

    Args:
        names: Kinds or keys; the finding at the root of the run's trouble if there is none.
        run: Name of the run or path of a report; ``None`` for the newest run that has made the
            findings.
        print_pages: Prints pages.
        known: Pages by name.

    Raises:
        ReportError: If there is no such run or report.
    """
    with progress("reading what runs have left"):
        found = jobs(boxes_of(run))
    # A key alone says nothing of its run: the newest one that has it is meant.
    having = [job for job in found if _named(judge_boxes(job), names)]
    job = (having if run is None and having else found)[-1]
    verdict = judge_boxes(job)
    chosen = _named(verdict, names) if names else _root(verdict)
    if not chosen:
        print(_nothing(job, verdict, names), file=sys.stderr)
        return NOT_FOUND
    with piped():
        for member in chosen:
            print(_rendered(job, verdict, member))
        kinds = dict.fromkeys(member.finding.kind for member in chosen)
        print_pages([known[kind] for kind in kinds if kind in known])
    return 0


def _members(verdict: RunVerdict) -> list[Incident]:
    return [member for incident in verdict.incidents for member in incident.members]


def _root(verdict: RunVerdict) -> list[Incident]:
    """Return the finding that the verdict is about; the first one where it is about none."""
    root = verdict.subject or next(iter(verdict.incidents), None)
    return [] if root is None else [root]


def _named(verdict: RunVerdict, names: Sequence[str]) -> list[Incident]:
    """Return the findings that are of one of the kinds, or have one of the keys."""
    return [m for m in _members(verdict) if {m.finding.kind, m.finding.key} & set(names)]


def _rendered(job: Sequence[Box], verdict: RunVerdict, member: Incident) -> str:
    """Return a finding in words: whose it is, what it says, and what explains it."""
    who, finding = job[0].identity, member.finding
    columns = min(max(shutil.get_terminal_size((MAX_WIDTH, 40)).columns, MIN_WIDTH), MAX_WIDTH)
    ranks = f", {accounts.ranks(member.ranks, who.world_size)}" if who.world_size > 1 else ""
    lines = [f"Run {who.run}{ranks}: {finding.key}"]
    root = next((s for s in verdict.incidents if member in s.symptoms), None)
    if root is not None:
        place = accounts.place(root.finding)
        lines.append(f"  Explained by: {root.finding.kind} in {place} ({root.finding.key})")
    lines += ["", *render_incident(member, columns).splitlines()]
    return encodable("\n".join([*map(printable, lines), ""]))


def _nothing(job: Sequence[Box], verdict: RunVerdict, names: Sequence[str]) -> str:
    run = job[0].identity.run
    keys = [member.finding.key for member in _members(verdict)]
    if not keys:
        return printable(f"ampwatch: run {run} has no findings")
    kinds = [member.finding.kind for member in _members(verdict)]
    near = did_you_mean(names[0] if names else "", [*kinds, *keys])
    asked = ", ".join(map(repr, names))
    return printable(f"ampwatch: run {run} has no finding {asked}; it has {', '.join(keys)}{near}")
