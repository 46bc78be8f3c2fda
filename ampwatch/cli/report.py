"""``ampwatch report``: what went wrong in a run, in words, also after it is gone."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import time
from pathlib import Path
from typing import NoReturn

from ampwatch.cli.output import encodable, piped, progress, width
from ampwatch.errors import ReportError, SettingsError, did_you_mean
from ampwatch.host.daemon.leftovers import find_leftovers, jobs, read_path
from ampwatch.numerics.written import counted
from ampwatch.report.gate import Check, gate, parse
from ampwatch.report.html_report import render_html, when
from ampwatch.report.judged_boxes import render_json
from ampwatch.report.report import render_boxes
from ampwatch.report.run_list import row_of
from ampwatch.report.short import INDENT, render_short
from ampwatch.runtime import ring_directories
from ampwatch.settings import Settings
from ampwatch.wire.blackbox import Box
from ampwatch.wire.blackbox.document import to_json
from ampwatch.wire.blackbox.files import report_directory

DESCRIPTION = """\
Report what went wrong in a training: what to do first, what broke, where, since when, and how
sure that is.

A run with a finding writes a report at once, and again when it ends. For a run that was killed,
ran out of memory or hangs, the rest is read from its ring in shared memory. Of a run that ended
without findings the daemon writes one. A report is a JSON file: copy it to any machine and name it here. No daemon is
needed, and nothing is changed.
"""

EPILOG = """\
examples:
  ampwatch report
      the run that was started last
  ampwatch report gpt --html gpt.html
      the last run of that name, as one HTML file with pictures
  ampwatch report --short
      on one screen: state, cause, place, what to do first; other findings are counted
  ampwatch report --all
      one line for each of the newest 50 runs that left a report
  ampwatch report gpt --json > gpt.json
      everything that is known of all its ranks
  ampwatch report gpt.json
      on any machine
  ampwatch report gpt.json --check "skips<1%, scale>=1024, findings=0"
      in CI: exit status 0 if each holds on each rank, else 1 and the reason
"""

MAX_LISTED = 50
"""Runs that ``--all`` lists; ``--short`` and ``--json`` have all of them."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb."""
    add = parser.add_argument
    add(
        "run",
        nargs="?",
        metavar="RUN|PATH",
        help="name of the run, or a report, a directory of reports (with a slash: ./reports) or a"
        " ring; the run that was started last if not given",
    )
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--json", action="store_true", help="everything, for programs")
    how.add_argument("--short", action="store_true", help="on one screen; with --all for each run")
    how.add_argument(
        "--check",
        type=_checks,
        metavar="LIMITS",
        help="whether numbers keep to limits: skips, scale, findings, critical, nonfinite, or keys of"
        " `watch.metrics()`",
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--html", metavar="OUT", help="write a page of its own to OUT")
    which.add_argument(
        "--all", action="store_true", help="a line for each run instead of the newest run"
    )


def _checks(expression: str) -> list[Check]:
    """Return what ``--check`` asks for; argparse says what is wrong with it, and ends with 2."""
    try:
        return parse(expression)
    except SettingsError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def run(args: argparse.Namespace) -> int:
    """Print the report, or what came of the checks; return the exit status.

    Raises:
        SettingsError: If a setting is not usable.
        ReportError: If there is nothing to report on, or the page cannot be written.
    """
    if args.check and args.html:
        args.parser.error("expected --check without --html: write the page in a run of its own")
    if args.check:
        return _check(args)
    with progress("reading what runs have left"):
        found = jobs(boxes_of(args.run))
    with piped():
        if args.all:
            _print_all(args, found)
        else:
            _print_newest(args, found[-1], num_earlier=len(found) - 1)
    return 0


def _check(args: argparse.Namespace) -> int:
    """Print whether the checks hold, and of a run in which one does not what went wrong."""
    found = jobs(boxes_of(args.run))
    held = True
    with piped():
        for job in found if args.all else found[-1:]:
            holds, text = gate(args.check, job)
            held &= holds
            print(encodable(text), end="")
            if not holds and any(box.has_alarm for box in job):
                print(f"\n{_short(job)}", end="")
    return 0 if held else 1


def _print_all(args: argparse.Namespace, found: list[list[Box]]) -> None:
    if args.json:
        print(to_json(box for job in found for box in job))
    elif args.short:
        print("\n".join(map(_short, reversed(found))), end="")
    else:
        print("\n".join(_listed(found)))


def _print_newest(args: argparse.Namespace, job: list[Box], num_earlier: int) -> None:
    if args.json:
        print(render_json(job))
    if args.html:
        _write_page(args.html, job)
    if args.short:
        print(_short(job), end="")
        if any(box.findings for box in job):
            more = f"ampwatch explain --run {shlex.quote(job[0].identity.run)}"
            print(encodable(f"{'more':<{INDENT}}{more}"))
    elif args.html or args.json:
        return
    else:
        print(encodable(render_boxes(job, width())), end="")
    if num_earlier:
        print(f"\n{counted(num_earlier, 'earlier run')}: ampwatch report --all")


def boxes_of(asked: str | None) -> list[Box]:
    """Return what there is of a run, or in a path.

    Args:
        asked: Name of the run or path; of all runs if ``None``.

    Raises:
        ReportError: If there is nothing.
    """
    if asked is not None and is_path(asked):
        return read_path(Path(asked))
    settings = Settings.resolve()
    leftovers = find_leftovers(settings, asked)
    for problem in leftovers.problems:
        print(f"ampwatch: {problem}", file=sys.stderr)
    if not leftovers.boxes:
        _nothing(asked, settings)
    return leftovers.boxes


def is_path(asked: str) -> bool:
    """Return whether ``asked`` is a path: runs are mostly called like a directory that is there, too."""
    path = Path(asked)
    if path.is_dir():
        return "/" in asked
    return path.exists() or path.suffix in (".json", ".ring")


def _nothing(asked: str | None, settings: Settings) -> NoReturn:
    places = [report_directory(settings.report_dir)]
    places += ring_directories(settings.ring_dir, settings.runtime_dir)
    where = ", ".join(map(str, places))
    if asked is None:
        msg = f"no report and no running training in {where}; without a daemon a run that ended well leaves none"
        raise ReportError(msg)
    others = {box.identity.run for box in find_leftovers(settings).boxes}
    names = f"only {', '.join(sorted(others))}" if others else "nor any other"
    names += f"; to read the directory, write ./{asked}" if Path(asked).is_dir() else ""
    msg = f"no run or file {asked!r} in {where}, {names}; without a daemon a run that ended well leaves none{did_you_mean(asked, others)}"
    raise ReportError(msg)


def _short(job: list[Box]) -> str:
    """Return the report of one run in some ten lines."""
    return encodable(render_short(job, time.time(), width()))


def _listed(found: list[list[Box]]) -> list[str]:
    """Return two lines for each of the newest jobs, and how many came before."""
    lines = []
    for row in map(row_of, reversed(found[-MAX_LISTED:])):
        kinds = ", ".join(row.kinds) or "no finding"
        ranks = f" ({row.ranks} ranks)" if row.ranks > 1 else ""
        lines.append(f"{when(row.started_ns)}  {row.run}{ranks}: {row.level}, {kinds}")
        lines.append(f"    {row.progress}")
    if earlier := found[:-MAX_LISTED]:
        lines.append(f"{counted(len(earlier), 'earlier run')}: ampwatch report --all --short")
    return [encodable(line) for line in lines]


def _write_page(out: str, job: list[Box]) -> None:
    with progress("drawing the page"):
        page = render_html(job)
    try:
        # It names tracebacks, settings and the host, as reports do: readable by its owner alone.
        file = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(file, "w", encoding="utf-8") as f:
            f.write(page)
    except OSError as error:
        msg = f"cannot write {out!r}: {error.strerror}"
        raise ReportError(msg) from error
    print(f"Written: {Path(out).absolute()}", file=sys.stderr)
