"""``ampwatch explain``: the page about a kind of finding, about an alert, or a guide; a finding of a run."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ampwatch.cli.output import MAX_WIDTH, encodable, hanging, in_colours, piped, progress, width
from ampwatch.cli.report import boxes_of
from ampwatch.diagnosis.kinds.tables import by_family
from ampwatch.errors import did_you_mean
from ampwatch.host.daemon.leftovers import jobs
from ampwatch.report import accounts
from ampwatch.report.incidents import Incident
from ampwatch.report.judged_boxes import judge_boxes
from ampwatch.report.one_line import printable
from ampwatch.report.pages import Page, Shelf, for_terminal, pages
from ampwatch.report.report import render_incident
from ampwatch.report.verdict import RunVerdict
from ampwatch.wire.blackbox import Box

DESCRIPTION = """\
Explain a kind of finding: what it means, a program that shows it, and the remedy. Or print the
runbook of an alert, or a guide. With --run: print a finding of a run of this machine, or of a
report, and then the page of its kind.

The pages are installed with ampwatch: no network is needed. A daemon serves them as well, under
/explain/, /runbooks/ and /docs/.
"""

EPILOG = """\
examples:
  ampwatch explain
      a line for each kind, each alert and each guide
  ampwatch explain forward_overflow
      the page about findings of that kind
  ampwatch explain AmpwatchLossScaleCollapsed
      the runbook of that alert
  ampwatch explain settings
      all settings
  ampwatch explain --run gpt
      the root finding of the run
  ampwatch explain grad_underflow --run gpt.json
      the findings of that kind in a report
  ampwatch explain forward_overflow@decoder.3
      the finding with that key (logs and JSON reports have it), of the newest run that has one

The exit status is 2 if no page or finding has that name.
"""

NO_PAGE = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb."""
    names = parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="a kind of finding, its key, an alert or a guide; a list of pages if not given",
    )
    # Which argcomplete reads.
    names.completer = lambda **_: list(pages())  # type: ignore[attr-defined]
    parser.add_argument(
        "--run",
        metavar="RUN|PATH",
        help="a run of this machine, or a report: explain its own findings",
    )


def run(args: argparse.Namespace) -> int:
    """Print the pages.

    Raises:
        AmpwatchError: If the installation is incomplete.
    """
    known = pages()
    if args.run is not None or any("@" in name for name in args.names):  # the key of a finding
        return _explain_findings(args.names, args.run, known)
    if unknown := [name for name in args.names if name not in known]:
        for name in unknown:
            near = did_you_mean(name, known) or "; `ampwatch explain` lists them"
            words = f"expected a kind of finding, an alert or a guide, got {name!r}{near}"
            print(f"ampwatch: {words}", file=sys.stderr)
        return NO_PAGE
    with piped():
        if args.names:
            _print_pages([known[name] for name in args.names])
        else:
            print(encodable("\n".join(_listed(known))))
    return 0


def _explain_findings(names: Sequence[str], run: str | None, known: Mapping[str, Page]) -> int:
    """Print findings of a run, each once, and the pages of their kinds; return the exit status.

    Without names the finding at the root of the run's trouble; of the newest run that has made the
    findings if none is named.

    Raises:
        ReportError: If there is no such run or report.
    """
    with progress("reading what runs have left"):
        found = jobs(boxes_of(run))
    # A key alone says nothing of its run: the newest one that has it is meant.
    having = [job for job in found if _named(judge_boxes(job), names)]
    job = (having if run is None and having else found)[-1]
    verdict = judge_boxes(job)
    # What the verdict is about; the first finding where it is about none.
    root = verdict.subject or next(iter(verdict.incidents), None)
    chosen = _named(verdict, names) if names else [] if root is None else [root]
    if not chosen:
        print(_nothing(job, verdict, names), file=sys.stderr)
        return NO_PAGE
    with piped():
        for member in chosen:
            print(_rendered(job, verdict, member))
        kinds = dict.fromkeys(member.finding.kind for member in chosen)
        _print_pages([known[kind] for kind in kinds if kind in known])
    return 0


def _members(verdict: RunVerdict) -> list[Incident]:
    return [member for incident in verdict.incidents for member in incident.members]


def _named(verdict: RunVerdict, names: Sequence[str]) -> list[Incident]:
    """Return the findings that are of one of the kinds, or have one of the keys."""
    return [m for m in _members(verdict) if {m.finding.kind, m.finding.key} & set(names)]


def _rendered(job: Sequence[Box], verdict: RunVerdict, member: Incident) -> str:
    """Return a finding in words: whose it is, what it says, and what explains it."""
    who, finding = job[0].identity, member.finding
    ranks = f", {accounts.ranks(member.ranks, who.world_size)}" if who.world_size > 1 else ""
    lines = [f"Run {who.run}{ranks}: {finding.key}"]
    root = next((s for s in verdict.incidents if member in s.symptoms), None)
    if root is not None:
        place = accounts.place(root.finding)
        lines.append(f"  Explained by: {root.finding.kind} in {place} ({root.finding.key})")
    lines += ["", *render_incident(member, width()).splitlines()]
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


def _print_pages(chosen: Iterable[Page]) -> None:
    is_coloured = in_colours()
    for place, page in enumerate(chosen):
        if place:
            print()
        if is_coloured:
            _print_with_rich(for_terminal(page))
        else:
            print(encodable(for_terminal(page).rstrip()))


def _print_with_rich(text: str) -> None:
    from rich.console import Console  # noqa: PLC0415 - an extra
    from rich.markdown import Markdown  # noqa: PLC0415

    console = Console()
    console.print(Markdown(text, hyperlinks=False), width=min(console.width, MAX_WIDTH))


def _listed(known: Mapping[str, Page]) -> Iterator[str]:
    """Yield a line for each page, under the headings of its shelf and of its family."""
    for family, kinds in by_family():
        yield from _section(family.title, [known[row.slug] for row in kinds if row.slug in known])
    for shelf in (Shelf.RUNBOOKS, Shelf.GUIDES):
        yield from _section(shelf.title, [page for page in known.values() if page.shelf is shelf])
    yield "ampwatch explain NAME prints the page."


def _section(title: str, listed: list[Page]) -> Iterator[str]:
    yield title
    names = max((len(page.name) for page in listed), default=0)
    for page in listed:
        yield from hanging(f"  {page.name:<{names}}  {page.gist}", width(), names + 4)
    yield ""
